//! `strata tokenize`.

use serde_json::{Value, json};

use crate::{strata, strata_reads};

/// Texts and their ids by another implementation of the tokenizer are tested with the engine; here, that all forms of
/// output say the same and lose nothing.
#[test]
fn all_forms_agree_and_spell_the_text() {
    let text = "The cat's 12 naive files:\n\tint x;";
    let ids = strata(&["tokenize", "--ids", text]).ok();
    let ids: Vec<u64> = ids.trim().split(',').map(|id| id.parse().unwrap()).collect();
    let json: Value = serde_json::from_str(&strata(&["tokenize", "--json", text]).ok()).unwrap();
    assert_eq!(json["ids"], json!(ids));
    let spelled: String = json["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(spelled, text);
    let table = strata(&["tokenize", text]).ok();
    let column: Vec<u64> = table.lines().map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect();
    assert_eq!(column, ids);
}

/// The four bytes of an emoji that the vocabulary does not have as a whole.
#[test]
fn parts_of_characters_are_shown_as_bytes() {
    let table = strata(&["tokenize", "\u{1f600}"]).ok();
    let bytes: String = table.lines().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert_eq!(bytes.replace("b\"", "").replace('"', ""), "\\xf0\\x9f\\x98\\x80", "{table}");
}

#[test]
fn text_from_stdin_is_the_same_text() {
    let ids = strata(&["tokenize", "--ids", "one two"]).ok();
    assert_eq!(ids, strata_reads(&["tokenize", "--ids"], b"one two").ok());
    assert_eq!(ids, strata_reads(&["tokenize", "--ids", "-"], b"one two").ok());
    assert_eq!(strata_reads(&["tokenize", "--json"], b"").ok(), "{\"ids\":[],\"tokens\":[]}\n");
    strata_reads(&["tokenize"], b"\xc3").fails(1, &["standard input", "UTF-8", "offset 0"]);
}

/// The ids of special tokens are those of the model's card.
#[test]
fn special_tokens_only_where_asked() {
    let ids = |args: &[&str]| strata(&[&["tokenize", "--ids"], args].concat()).ok();
    assert_eq!(ids(&["--special", "<|endoftext|><|im_start|><|im_end|>"]), "0,1,2\n");
    let plain = ids(&["<|endoftext|>"]);
    assert!(plain.split(',').count() > 1 && plain.split(',').all(|id| id.trim() != "0"), "{plain}");
}

#[test]
fn two_forms_at_once_make_no_sense() {
    strata(&["tokenize", "--ids", "--json", "x"]).fails(2, &["--ids", "--json"]);
}
