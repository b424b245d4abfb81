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
    // The same prompt: its state may be kept, but nothing of the conversation is in it.
    let size = |ran: &Ran, turn: usize| summaries(ran)[turn].split(' ').nth(1).unwrap().parse::<usize>().unwrap();
    assert_eq!(size(&ran, 1), size(&ran, 0), "{ran:?}");
    assert_eq!(ran.ok(), [once.as_str(); 2].concat());

    // What was said before changes the answer's prompt; the system text survives /clear.
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

/// The file is cut off and made whole again between messages: those that need what is missing fail, and no more.
#[test]
fn field_report_52_a_drive_that_fails_ends_an_answer_and_not_the_conversation() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("m.gguf");
    std::fs::copy(mini(), &path).unwrap();
    let whole = std::fs::metadata(&path).unwrap().len();
    let source = Gguf::open(&mini()).unwrap();
    let experts = source.tensors().filter(|tensor| tensor.name.contains("_exps."));
    let cut = experts.map(|tensor| tensor.offset).min().unwrap();
    let rest = std::fs::read(&path).unwrap().split_off(cut as usize);

    let args = ["chat", "--temp", "0", "-n", "6", "--arena-gb", "0.00096", "-m", path.to_str().unwrap()];
    let mut command = crate::command(&args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut notes = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    // Nothing is read before the plan and the hot set; the answer's end is told by a line.
    let mut told = |what: &str| {
        let line = notes.by_ref().find(|line| line.starts_with("[prompt: ") || line.starts_with("strata: expert"));
        assert!(line.as_ref().is_some_and(|line| line.starts_with(what)), "{what}: {line:?}");
        line.unwrap()
    };
    writeln!(stdin, "Hello there.").unwrap();
    told("[prompt: ");
    let file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.set_len(cut).unwrap();
    writeln!(stdin, "What is a list?").unwrap();
    let problem = told("strata: expert");
    assert!(problem.contains("m.gguf") && problem.contains("was shortened or replaced"), "{problem}");
    (&file).write_all(&rest).unwrap();
    assert_eq!(file.metadata().unwrap().len(), whole);
    writeln!(stdin, "What is a list?").unwrap();
    told("[prompt: ");
    drop(stdin);
    assert!(notes.any(|line| line == "strata: messages that got no answer: 1"));
    let answers = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(answers.code, Some(1));
    let right = chat(&["--arena-gb", "0.00096"], b"Hello there.\nWhat is a list?\n").ok();
    assert_eq!(answers.stdout.replace('\n', ""), right.replace('\n', ""));
}
