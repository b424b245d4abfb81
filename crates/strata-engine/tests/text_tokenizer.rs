//! The tokenizer against recorded ids, against the published tokenizer file, and on files that are wrong.

use std::path::{Path, PathBuf};
use std::time::Instant;

use proptest::prelude::*;
use serde::Deserialize;
use strata_engine::{Tokenizer, TokenizerError};
use strata_gguf::{Array, Gguf, Metadata, Value};
use tokenizers::normalizers::NFC;
use tokenizers::{NormalizedString, Normalizer};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/strata-mini").join(name)
}

fn mini_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/strata-mini").join(name)
}

fn mini() -> Tokenizer {
    let file = Gguf::open(&mini_file("strata-mini-iq2xs-q4_0.gguf")).unwrap();
    Tokenizer::from_metadata(file.metadata()).unwrap()
}

/// The model's own tokenizer file, read by the library.
fn published() -> tokenizers::Tokenizer {
    tokenizers::Tokenizer::from_file(data("tokenizer.json")).unwrap()
}

fn nfc(text: &str) -> String {
    let mut normalized = NormalizedString::from(text);
    NFC.normalize(&mut normalized).unwrap();
    normalized.get().to_owned()
}

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    plain_ids: Vec<u32>,
}

/// What tools/gen_encodings.py recorded.
fn recorded() -> Vec<Case> {
    serde_json::from_str(&std::fs::read_to_string(data("encodings.json")).unwrap()).unwrap()
}

#[test]
fn ids_are_those_recorded_in_python() {
    let (ours, cases) = (mini(), recorded());
    assert!(cases.len() > 40);
    assert!(cases.iter().filter(|case| case.ids != case.plain_ids).count() >= 4);
    for Case { text, ids, plain_ids } in cases {
        assert_eq!(ours.encode(&text, true).unwrap(), ids, "{text:?}");
        assert_eq!(ours.encode(&text, false).unwrap(), plain_ids, "{text:?} as plain text");
        assert_eq!(ours.decode(&ids, false), nfc_around_special(&text), "{text:?}");
        assert_eq!(ours.decode(&plain_ids, false), nfc(&text), "{text:?} as plain text");
    }
}

/// Special tokens are found before normalisation, so that nothing composes across them.
fn nfc_around_special(text: &str) -> String {
    let mut parts = vec![text];
    for name in ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] {
        parts = parts.into_iter().flat_map(|part| part.split_inclusive(name)).collect();
    }
    parts
        .into_iter()
        .map(|part| match ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].iter().find(|name| part.ends_with(*name)) {
            Some(name) => nfc(&part[..part.len() - name.len()]) + name,
            None => nfc(part),
        })
        .collect()
}

#[test]
fn the_held_out_text_is_encoded_as_published() {
    let text = std::fs::read_to_string(mini_file("eval.txt")).unwrap();
    let expected = published().encode_fast(text.as_str(), false).unwrap();
    assert_eq!(mini().encode(&text, true).unwrap(), expected.get_ids());
    assert_eq!(mini().decode(expected.get_ids(), false), nfc(&text));
}

/// Pieces that are hard to cut, put together at random.
fn hard_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[ \t\r\n\u{a0}\u{3000}]{1,6}",
        3 => "[a-zA-Zéßж中ㄱあ\u{300}-\u{36f}]{1,8}",
        2 => "[0-9½٣]{1,5}",
        2 => "[!-/:-@'<|>_]{1,4}",
        1 => "'(s|S|re|VE|ll|d|T|m)",
        1 => "<\\|(im_start|im_end|endoftext)\\|>",
        1 => "[👩\u{200d}👧🏽\u{fe0f}🇯🇵]{1,5}",
        2 => "\\PC{0,6}",
        1 => any::<char>().prop_map(String::from),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

#[test]
fn random_text_is_encoded_as_published() {
    let (ours, published) = (mini(), published());
    let mut plain = published.clone();
    plain.set_encode_special_tokens(true);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(3000));
    runner
        .run(&hard_text(), |text| {
            let ids = ours.encode(&text, true).unwrap();
            let expected = published.encode_fast(text.as_str(), false).unwrap();
            prop_assert_eq!(ids.as_slice(), expected.get_ids());
            let plain_ids = ours.encode(&text, false).unwrap();
            let expected = plain.encode_fast(text.as_str(), false).unwrap();
            prop_assert_eq!(plain_ids.as_slice(), expected.get_ids());
            prop_assert!(plain_ids.iter().all(|&id| !ours.is_control(id)));
            prop_assert_eq!(ours.decode(&plain_ids, true), nfc(&text));
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_file_describes_itself() {
    let mini = mini();
    assert_eq!(mini.vocab_len(), 16_384);
    assert_eq!(mini.token_to_id("<|im_start|>"), Some(1));
    assert_eq!(mini.token_to_id("Ġthe"), Some(mini.encode(" the", false).unwrap()[0]));
    assert_eq!(mini.token_to_id("no such token"), None);
    assert_eq!(mini.token_bytes(2), b"<|im_end|>");
    assert_eq!(mini.token_bytes(mini.token_to_id("Ġthe").unwrap()), b" the");
    assert_eq!(mini.eos_id(), Some(2));
    assert_eq!(mini.padding_id(), Some(0));
    assert_eq!(mini.end_of_turn_ids(), [0, 2]);
    assert!(mini.is_control(1) && !mini.is_control(3) && !mini.is_control(u32::MAX));
}

#[test]
fn control_tokens_can_be_left_out_and_ids_without_a_token_are_nothing() {
    let mini = mini();
    let ids = mini.encode("a<|im_end|>b", true).unwrap();
    assert_eq!(ids.len(), 3);
    assert_eq!(mini.decode(&ids, true), "ab");
    assert_eq!(mini.decode(&ids, false), "a<|im_end|>b");
    assert_eq!(mini.decode(&[ids[0], 16_384, 20_000, u32::MAX, ids[2]], false), "ab");
    assert_eq!(mini.token_bytes(16_384), b"");
    // The first two bytes of a three-byte letter, then a letter.
    let half: Vec<u32> = ["â", "Ĥ", "x"].iter().map(|token| mini.token_to_id(token).unwrap()).collect();
    assert_eq!(mini.decode(&half, false), "\u{FFFD}x");
}

/// Every kind of long run, and a run of spaces longer than a matcher with a stack of a million entries can take.
#[test]
fn long_texts_take_seconds_at_most() {
    let mini = mini();
    let texts = [
        std::fs::read_to_string(mini_file("eval.txt")).unwrap(),
        "a".repeat(200_000),
        " ".repeat(200_000),
        "\n \n".repeat(70_000),
        "=".repeat(200_000),
        "e\u{301}\u{323}".repeat(40_000),
        "\u{301}\u{323}".repeat(50_000),
        " \u{3000}".repeat(50_000) + "x",
        "<|im_end|>".repeat(20_000),
        "<|im_".repeat(40_000),
    ];
    for text in texts {
        let start = Instant::now();
        let ids = mini.encode(&text, true).unwrap();
        assert!(start.elapsed().as_secs() < 5, "{:?}: {:?}", &text[..4], start.elapsed());
        assert_eq!(mini.decode(&ids, false), nfc(&text));
    }
    let id = |token| mini.token_to_id(token).unwrap();
    let ids = mini.encode(&format!("x{}y z", " ".repeat(2_000_000)), true).unwrap();
    assert_eq!(ids[0], id("x"));
    assert_eq!(ids[ids.len() - 2..], [id("Ġy"), id("Ġz")]);
}

/// Entries of a vocabulary: the 256 bytes, then the given tokens and types.
fn vocabulary(extra: &[(&str, i32)], merges: &[&str], pre: &str) -> Metadata {
    let printable = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let letters = (0..256u32).filter(printable).chain(256..256 + 68);
    let mut tokens: Vec<String> = letters.map(|c| char::from_u32(c).unwrap().to_string()).collect();
    assert_eq!(tokens.len(), 256);
    let mut types = vec![1; 256];
    tokens.extend(extra.iter().map(|(token, _)| (*token).to_owned()));
    types.extend(extra.iter().map(|(_, ty)| ty));
    let mut metadata = Metadata::new();
    let mut set = |key: &str, value| metadata.insert(format!("tokenizer.ggml.{key}"), value).unwrap();
    set("model", Value::String("gpt2".to_owned()));
    set("pre", Value::String(pre.to_owned()));
    set("tokens", Value::Array(Array::String(tokens)));
    set("token_type", Value::Array(Array::I32(types)));
    set("merges", Value::Array(Array::String(merges.iter().map(|&merge| merge.to_owned()).collect())));
    metadata
}

/// `metadata` with one value replaced, or removed.
fn with(metadata: &Metadata, key: &str, value: Option<Value>) -> Metadata {
    let key = format!("tokenizer.ggml.{key}");
    let mut changed = Metadata::new();
    for (name, old) in metadata.iter().filter(|(name, _)| *name != key) {
        changed.insert(name, old.clone()).unwrap();
    }
    if let Some(value) = value {
        changed.insert(key, value).unwrap();
    }
    changed
}

fn error(metadata: &Metadata) -> String {
    Tokenizer::from_metadata(metadata).unwrap_err().to_string()
}

/// A combining mark is part of a word for qwen35 and not for qwen2: a merge across the border shows it.
/// U+0307 is the bytes cc 87, written `Ì` and `ĩ`.
#[test]
fn combining_marks_tell_qwen2_from_qwen35() {
    let extra = [("qÌ", 1), ("qÌĩ", 1)];
    let merges = ["q Ì", "qÌ ĩ"];
    let words = |pre, text: &str| {
        let tokenizer = Tokenizer::from_metadata(&vocabulary(&extra, &merges, pre)).unwrap();
        let ids = tokenizer.encode(text, false).unwrap();
        ids.iter().map(|&id| tokenizer.token_bytes(id).to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(words("qwen35", "q\u{307}"), [b"q\xcc\x87".to_vec()]);
    assert_eq!(words("qwen2", "q\u{307}"), [b"q".to_vec(), b"\xcc".to_vec(), b"\x87".to_vec()]);
    // Without a mark they agree.
    assert_eq!(words("qwen35", "qÌ"), words("qwen2", "qÌ"));
}

/// User-defined tokens are found in text that may hold special ones, are never split, and stay when decoded.
#[test]
fn user_defined_unused_and_control_tokens() {
    let extra = [("<think>", 4), ("<|im_end|>", 3), ("[PAD7]", 5), ("th", 1)];
    let metadata = vocabulary(&extra, &["t h"], "qwen35");
    let tokenizer = Tokenizer::from_metadata(&metadata).unwrap();
    assert_eq!(tokenizer.encode("<think><|im_end|>th", true).unwrap(), [256, 257, 259]);
    let plain = tokenizer.encode("<think>", false).unwrap();
    assert_eq!(plain.len(), 6, "five single letters and `th`: {plain:?}");
    assert_eq!(tokenizer.decode(&[256, 257, 258, 259], true), "<think>th");
    assert_eq!(tokenizer.decode(&[256, 257, 258, 259], false), "<think><|im_end|>th");
    assert!(!tokenizer.encode("[PAD7]", true).unwrap().contains(&258));
}

/// All tokens that end a turn are armed, by key and by name; ordinary tokens of such a name are not.
/// Field report 37: answers that never end.
#[test]
fn all_end_of_turn_tokens_are_armed() {
    let extra = [
        ("<|eot_id|>", 3),
        ("</s>", 1),
        ("<|im_end|>", 3),
        ("<end_of_turn>", 3),
        ("stop", 1),
        ("halt", 1),
        ("<|im_start|>", 3),
    ];
    let mut metadata = vocabulary(&extra, &[], "qwen2");
    let ids = |metadata: &Metadata| Tokenizer::from_metadata(metadata).unwrap().end_of_turn_ids().to_vec();
    assert_eq!(ids(&metadata), [256, 258, 259]);
    metadata.insert("tokenizer.ggml.eos_token_id", Value::U32(260)).unwrap();
    assert_eq!(ids(&metadata), [256, 258, 259, 260]);
    metadata.insert("tokenizer.ggml.eom_token_id", Value::I64(261)).unwrap();
    metadata.insert("tokenizer.ggml.eot_token_id", Value::U16(258)).unwrap();
    assert_eq!(ids(&metadata), [256, 258, 259, 260, 261]);
}

#[test]
fn unknown_kinds_are_refused_by_name() {
    let good = vocabulary(&[], &[], "qwen2");
    assert!(Tokenizer::from_metadata(&good).is_ok());
    let string = |text: &str| Some(Value::String(text.to_owned()));
    for none in [with(&good, "model", string("none")), with(&good, "model", None), Metadata::new()] {
        assert!(matches!(Tokenizer::from_metadata(&none), Err(TokenizerError::NoTokenizer)));
    }
    let model = error(&with(&good, "model", string("llama")));
    assert!(model.contains("`llama`") && model.contains("`gpt2`"), "{model}");
    let pre = error(&with(&good, "pre", string("deepseek-v3")));
    assert!(pre.contains("`deepseek-v3`") && pre.contains("`qwen2`") && pre.contains("`qwen35`"), "{pre}");
    for key in ["pre", "tokens", "token_type", "merges"] {
        let missing = error(&with(&good, key, None));
        assert!(missing.contains(&format!("tokenizer.ggml.{key}")) && missing.contains("missing"), "{missing}");
        let wrong = error(&with(&good, key, Some(Value::U32(1))));
        assert!(wrong.contains(&format!("tokenizer.ggml.{key}")), "{wrong}");
    }
}

#[test]
fn vocabularies_that_do_not_fit_together_are_refused() {
    let check = |metadata: &Metadata, parts: &[&str]| {
        let text = error(metadata);
        assert!(parts.iter().all(|part| text.contains(part)), "{text}: {parts:?}");
    };
    check(&vocabulary(&[("x", 1)], &[], "qwen2"), &["tokens", "256", "\"x\""]);
    check(&vocabulary(&[("ab", 1), ("ab", 5)], &[], "qwen2"), &["256", "257", "\"ab\""]);
    // A letter of the byte alphabet is missing: without it text with that byte would be lost.
    let strings = |tokens: &[&str]| Some(Value::Array(Array::String(tokens.iter().map(|&t| t.to_owned()).collect())));
    let few = with(&vocabulary(&[], &[], "qwen2"), "tokens", strings(&["a", "b"]));
    check(&few, &["token_type", "256 entries", "2 tokens"]);
    let none = with(&with(&few, "tokens", strings(&[])), "token_type", Some(Value::Array(Array::I32(Vec::new()))));
    check(&none, &["tokens", "byte 0x00"]);

    // The last merge makes a piece longer than any token.
    let long = "a".repeat(1000);
    let merges = [
        ("ab", "two tokens"),
        ("a ", "two tokens"),
        (" a", "two tokens"),
        ("", "two tokens"),
        ("a b c", "\"b c\""),
        ("a zz", "\"zz\""),
        ("zz a", "\"zz\""),
        ("a b", "\"ab\""),
        ("LONG LONG", "is not in"),
    ];
    for (merge, part) in merges {
        let metadata = vocabulary(&[(&long, 1)], &[&merge.replace("LONG", &long)], "qwen2");
        check(&metadata, &["merges", "merge 0", part]);
    }
    for key in ["bos_token_id", "eos_token_id", "padding_token_id", "eot_token_id", "eom_token_id"] {
        let good = vocabulary(&[], &[], "qwen2");
        check(&with(&good, key, Some(Value::U32(256))), &[key, "token 256", "256"]);
        check(&with(&good, key, Some(Value::I32(-1))), &[key]);
        assert!(Tokenizer::from_metadata(&with(&good, key, Some(Value::U32(255)))).is_ok());
    }
}

proptest! {
    /// Whatever the strings are, building ends in a tokenizer that works or in an error.
    #[test]
    fn odd_vocabularies_never_panic(
        extra in proptest::collection::vec(("\\PC{0,5}", -1..8i32), 0..8),
        merges in proptest::collection::vec("[ab \u{120}]{0,4}", 0..4),
        text in "\\PC{0,20}",
    ) {
        let extra: Vec<(&str, i32)> = extra.iter().map(|(token, ty)| (token.as_str(), *ty)).collect();
        let merges: Vec<&str> = merges.iter().map(String::as_str).collect();
        if let Ok(tokenizer) = Tokenizer::from_metadata(&vocabulary(&extra, &merges, "qwen35")) {
            let plain = tokenizer.encode(&text, false).unwrap();
            prop_assert_eq!(tokenizer.decode(&plain, false), nfc(&text));
            let ids = tokenizer.encode(&text, true).unwrap();
            prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_len()));
        }
    }
}
