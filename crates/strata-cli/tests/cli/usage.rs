//! The command line itself: help, completions, what is refused, and readers that go away.

use std::io::Read;
use std::process::Stdio;

use crate::{command, strata};

const COMMANDS: [&[&str]; 22] = [
    &[],
    &["run"],
    &["chat"],
    &["inspect"],
    &["plan"],
    &["sim"],
    &["trace", "record"],
    &["trace", "replay"],
    &["tokenize"],
    &["logits"],
    &["dump"],
    &["parity"],
    &["kld"],
    &["eval", "ppl"],
    &["synth"],
    &["bench", "prefill"],
    &["bench", "decode"],
    &["bench", "kernels"],
    &["report"],
    &["doctor"],
    &["calibrate"],
    &["completions"],
];

#[test]
fn every_command_has_help_that_fits() {
    for name in COMMANDS {
        for flag in ["-h", "--help"] {
            let ran = strata(&[name, &[flag]].concat());
            assert_eq!(ran.stderr, "", "{name:?}");
            let help = ran.ok();
            assert!(help.contains("Usage: strata"), "{name:?}\n{help}");
            for line in help.lines() {
                assert!(line.chars().count() <= 100, "{name:?}: {line}");
            }
        }
    }
    let help = strata(&["--help"]).ok();
    for name in &COMMANDS[1..] {
        assert!(help.contains(&format!("\n  {} ", name[0])), "{name:?}\n{help}");
    }
    assert!(strata(&["--version"]).ok().starts_with("strata "));
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    for name in COMMANDS {
        strata(&[name, &["--no-such-flag"]].concat()).fails(2, &["--no-such-flag"]);
    }
    for args in [
        &[][..],
        &["fly"],
        &["eval"],
        &["run", "--raw", "--system", "x", "y"],
        &["run", "a", "b"],
        &["run", "--isa", "abacus", "x"],
        &["run", "--seed", "-1", "x"],
        &["logits", "--ids", "1"],
        &["logits", "-o", "x"],
        &["logits", "-o", "x", "--ids", "1", "--text", "y"],
        &["logits", "-o", "x", "--ids", ""],
        &["logits", "-o", "x", "--ids", "1,two"],
        &["logits", "-o", "x", "--ids", "-1"],
        &["logits", "-o", "x", "--ids", "4294967296"],
        &["logits", "-o", "x", "--ids", "1", "--pieces", "1,0"],
        &["dump", "--ids", "1"],
        &["parity", "default"],
        &["parity", "default", "pass=0", "--ids", "1"],
        &["parity", "default", "color=red", "--ids", "1"],
        &["parity", "default", "threads=1000000", "--ids", "1"],
        &["parity", "default", "no-such-directory", "--ids", "1"],
        &["parity", "default", "pass=1"],
        &["plan", "--memory-gb", "0"],
        &["plan", "--arena-gb", "lots"],
        &["plan", "--drive-gb", "nan"],
        &["plan", "--context", "0"],
        &["plan", "--pass", "0"],
        &["sim", "--arena-share", "1.1"],
        &["sim", "--drive-gb-s", "0"],
        &["sim", "--ple-share", "1"],
        &["sim", "--mixer-ms", "inf"],
        &["sim", "--experts", "0"],
        &["sim", "--trace", "x", "--tokens", "5"],
        &["sim", "--profile", "x"],
        &["trace"],
        &["trace", "record"],
        &["trace", "record", "-o", "x", "--limit", "0"],
        &["trace", "record", "-o", "x", "--ids", "1", "--text", "y"],
        &["trace", "record", "-o", "x", "--ids", "1,2", "--decode", "2"],
        &["trace", "record", "-o", "x", "--ids", "1,2", "--decode", "1", "--write", "1"],
        &["trace", "replay"],
        &["trace", "replay", "x", "--slots", "0"],
        &["trace", "replay", "x", "--slots", "9", "--share", "0.5"],
        &["kld"],
        &["kld", "--save", "x"],
        &["kld", "--save", "x", "--against", "y"],
        &["kld", "--against", "y", "--ids", "1"],
        &["bench"],
        &["bench", "prefill", "--tokens", "0"],
        &["bench", "prefill", "--repeat", "0"],
        &["bench", "prefill", "--compare", "color=a,b"],
        &["bench", "prefill", "--compare", "isa=avx2"],
        &["bench", "prefill", "--compare", "pass=1,2,3"],
        &["bench", "decode", "--compare", "strip=1,0"],
        &["bench", "decode", "--compare", "precise=yes,no"],
        &["bench", "kernels", "--filter", "no such kernel"],
        &["bench", "kernels", "--weights-gb", "0.1"],
        &["bench", "kernels", "--weights-gb", "nan"],
        &["eval", "ppl"],
        &["eval", "ppl", "--text", "x", "--window", "1"],
        &["doctor", "--memory-gb", "0"],
        &["calibrate", "--sizes", "1,0"],
        &["calibrate", "--arena-gb", "1"],
        &["calibrate", "--memory-gb", "1"],
        &["calibrate", "--forget", "--sizes", "1"],
        &["calibrate", "--repeat", "0"],
        // What does nothing is no help to anyone.
        &["run", "--moce-bonus", "1", "x"],
        &["run", "--moce-slots", "20", "--route", "exact", "x"],
        &["chat", "--moce-keep", "1"],
        &["bench", "decode", "--moce-mass", "0.5", "--compare", "pass=1,2"],
        &["run", "--mtp", "x", "--draft", "lookup", "y"],
        &["run", "--mtp", "x", "--draft", "off", "y"],
        &["run", "--mtp-norm", "one", "--draft", "lookup", "x"],
        &["chat", "--draft-max", "2"],
        &["completions"],
        &["completions", "teletype"],
    ] {
        let ran = strata(args);
        assert!(!ran.stderr.is_empty(), "{args:?}");
        ran.fails(2, &[]);
    }
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = strata(&["completions", shell]).ok();
        for name in &COMMANDS[1..] {
            assert!(name.iter().all(|word| script.contains(word)), "{shell}: {name:?}");
        }
        assert!(script.contains("qsa-block"), "{shell}");
    }
}

/// As `| head -c 1` does.
#[test]
fn a_reader_that_goes_away_is_no_failure() {
    for args in [
        &["run", "--raw", "--temp", "0", "-n", "2000", "The names of the files are:"][..],
        &["inspect", "--tensors"],
        &["inspect", "--json"],
        &["run", "--help"],
    ] {
        let mut child = command(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0]).unwrap();
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.lines().all(|line| line.starts_with("strata: plan: ")), "{args:?}: {told}");
    }
}

/// Once a panic in each of these.
#[test]
fn nobody_has_to_read_the_notes() {
    for (args, code) in [(&["run", "--raw", "-n", "2", "hi"][..], 0), (&["run", "-m", "missing", "hi"], 1)] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = command(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer).status().unwrap();
        assert_eq!(status.code(), Some(code), "{args:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_a_failure() {
    for args in [&["tokenize", "hi"][..], &["inspect"], &["run", "--raw", "-n", "2", "hi"], &["completions", "bash"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = command(args).stdin(Stdio::null()).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains("cannot write the output"), "{args:?}: {stderr}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_text_without_end_is_refused() {
    let zeros = || std::fs::File::open("/dev/zero").unwrap();
    for args in
        [&["run", "-f", "/dev/zero"][..], &["run"], &["tokenize"], &["chat"], &["eval", "ppl", "--text", "/dev/zero"]]
    {
        let output = command(args).stdin(zeros()).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{args:?}");
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains("it is too long: at most 256 MiB"), "{args:?}: {told}");
    }
}
