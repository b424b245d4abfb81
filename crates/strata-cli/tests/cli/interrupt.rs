//! Ctrl-C, as the signal that a terminal sends.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Ran, command};

/// Text that a model goes on with for a long time.
const COUNTING: &str = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17,";
const LONG_RUN: [&str; 8] = ["run", "--raw", "--temp", "0", "-n", "100000", "--context", "30000"];

fn start(args: &[&str]) -> Child {
    let mut command = command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
}

fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// The child's end, which must come soon after now.
fn end(child: Child) -> Ran {
    let start = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "it took {:?}", start.elapsed());
    output.into()
}

#[test]
fn a_run_keeps_what_it_wrote() {
    let mut child = start(&[&LONG_RUN[..], &[COUNTING]].concat());
    let mut written = [0; 4];
    child.stdout.as_mut().unwrap().read_exact(&mut written).unwrap();
    interrupt(&child);
    let ran = end(child);
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.stdout.ends_with('\n'), "{ran:?}");
    assert!(ran.stderr.contains("\n[prompt: ") && ran.stderr.ends_with(", stopped]\n"), "{ran:?}");
}

/// The whole prompt is one pass, and takes far longer than the signal takes to come.
#[test]
fn a_prompt_is_given_up() {
    let prompt = COUNTING.repeat(100);
    let child = start(&[&LONG_RUN[..], &["--pass", "30000", &prompt]].concat());
    std::thread::sleep(Duration::from_millis(1500));
    interrupt(&child);
    let ran = end(child);
    assert_eq!((ran.code, ran.stdout.trim()), (Some(130), ""), "{ran:?}");
}

#[test]
fn the_exactness_tools_are_given_up() {
    let ids = (0..4000).map(|i| (i % 1000 + 10).to_string()).collect::<Vec<_>>().join(",");
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("logits.safetensors");
    let child = start(&["logits", "--ids", &ids, "-o", crate::arg(&output)]);
    std::thread::sleep(Duration::from_millis(1500));
    interrupt(&child);
    let ran = end(child);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(130), "", ""));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left half written");
}

/// The first Ctrl-C stops the answer, one at the prompt ends the program.
#[test]
fn a_chat_goes_on_after_a_stopped_answer() {
    let mut child = start(&["chat", "--temp", "0", "-n", "100000"]);
    let mut stdin = child.stdin.take().unwrap();
    let mut notes = BufReader::new(child.stderr.take().unwrap());
    let mut note = String::new();

    writeln!(stdin, "Count: {COUNTING}").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 2]).unwrap();
    interrupt(&child);
    notes.read_line(&mut note).unwrap();
    assert!(note.starts_with("strata: plan: "), "{note:?}");
    notes.read_line(&mut note).unwrap();
    assert!(note.ends_with(", stopped]\n"), "{note:?}");

    // An answer is a note here: one that is no end of the program.
    writeln!(stdin, "/help").unwrap();
    note.clear();
    notes.read_line(&mut note).unwrap();
    assert!(note.contains("/exit"), "{note:?}");
    interrupt(&child);
    assert_eq!(end(child).code, Some(130));
}
