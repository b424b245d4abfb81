//! `strata chat` with lines from a pipe.

use strata_gguf::{Gguf, GgufWriter, Metadata, NewTensor, Value};

use crate::{Ran, mini, strata_reads};

fn chat(more: &[&str], input: &[u8]) -> Ran {
    strata_reads(&[&["chat", "--temp", "0", "-n", "6"], more].concat(), input)
}

/// The summary lines: one an answer.
fn summaries(ran: &Ran) -> Vec<&str> {
    ran.stderr.lines().filter(|line| line.starts_with("[prompt: ")).collect()
}

#[test]
fn a_second_turn_reads_only_what_is_new() {
    let ran = chat(&[], b"Hello there.\nWhat is a list?\n");
    let turns = summaries(&ran);
    assert_eq!(turns.len(), 2, "{ran:?}");
    assert!(!turns[0].contains("known") && turns[1].contains("known"), "{ran:?}");
    ran.ok();
}

#[test]
fn forgetting_starts_anew() {
    let once = chat(&[], b"Hello there.\n").ok();
    let ran = chat(&[], b"Hello there.\n/clear\nHello there.\n");
    assert!(!summaries(&ran)[1].contains("known"), "{ran:?}");
    assert_eq!(ran.ok(), [once.as_str(); 2].concat());

    // What was said before changes the answer's prompt; the system text survives /clear.
    let size = |ran: &Ran, turn: usize| summaries(ran)[turn].split(' ').nth(1).unwrap().parse::<usize>().unwrap();
    let plain = chat(&[], b"Hello there.\nHello there.\n/clear\nHello there.\n");
    let told = chat(&["--system", "Be brief."], b"Hello there.\nHello there.\n/clear\nHello there.\n");
    assert!(size(&plain, 1) > size(&plain, 0) && size(&plain, 2) == size(&plain, 0), "{plain:?}");
    assert!(size(&told, 0) > size(&plain, 0) && size(&told, 2) == size(&told, 0), "{told:?}");
}

#[test]
fn conversations_end_where_they_are_told_to() {
    for input in ["Hi.\n/exit\nHi.\n", "Hi.\n/quit\nHi.\n", "Hi.\r\n/exit\r\n", "\n \n\nHi.\n\n", "Hi.", "/help\nHi.\n"]
    {
        let ran = chat(&[], input.as_bytes());
        assert_eq!(summaries(&ran).len(), 1, "{input:?}: {ran:?}");
        assert!(!ran.ok().trim().is_empty(), "{input:?}");
    }
    assert_eq!(chat(&[], b"").ok(), "");
    assert_eq!(chat(&[], b"/exit\n").ok(), "");
}

#[test]
fn a_line_ending_is_no_part_of_what_is_said() {
    assert_eq!(chat(&[], b"Hi.\n").ok(), chat(&[], b"  Hi.\r\n").ok());
}

#[test]
fn too_long_a_line_is_refused_and_the_talk_goes_on() {
    let line = "word ".repeat(20_000);
    let ran = chat(&[], format!("Hi.\n{line}\nAnd now?\n").as_bytes());
    assert!(ran.stderr.contains("the context holds 4096") && ran.stderr.contains("--context"), "{ran:?}");
    let turns = summaries(&ran);
    assert_eq!(turns.len(), 2, "{ran:?}");
    assert!(turns[1].contains("known"), "the refused line is forgotten: {ran:?}");
    ran.ok();
}

#[test]
fn bytes_that_are_no_text_do_not_end_a_conversation() {
    let ran = chat(&[], b"a\xff\0b\nHi.\n");
    assert_eq!(summaries(&ran).len(), 2, "{ran:?}");
    ran.ok();
}

#[test]
fn a_message_that_the_template_refuses_does_not_end_a_conversation() {
    // The shipped model with a template that refuses one word, in words that hold a terminal code.
    let template = "{%- for m in messages %}{%- if 'forbidden' in m.content %}{{- raise_exception('no \x1b[31m way') }}\
                    {%- endif %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}\
                    {%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("picky.gguf");
    let source = Gguf::open(&mini()).unwrap();
    let mut metadata = Metadata::new();
    for (key, value) in source.metadata().iter() {
        let value = if key == "tokenizer.chat_template" { Value::String(template.to_owned()) } else { value.clone() };
        metadata.insert(key, value).unwrap();
    }
    let declared: Vec<_> =
        source.tensors().map(|t| NewTensor { name: t.name.clone(), dims: t.dims.clone(), ty: t.ty }).collect();
    let mut writer = GgufWriter::create(&path, &metadata, &declared).unwrap();
    source.tensors().for_each(|t| writer.write(&source.read(t).unwrap()).unwrap());
    writer.finish().unwrap();

    let ran = chat(&["-m", path.to_str().unwrap()], b"Hi.\nthis is forbidden\nAnd now?\n");
    assert!(ran.stderr.contains("refuses these messages: no \\u{1b}[31m way"), "{ran:?}");
    let turns = summaries(&ran);
    assert_eq!(turns.len(), 2, "{ran:?}");
    assert!(turns[1].contains("known"), "the refused message is forgotten: {ran:?}");
    ran.ok();
}
