//! `strata run`, and what every command does with a model file that is not one.

use std::path::Path;

use crate::{arg, command, mini, oracle, strata, strata_reads};

/// The numbers of tokens in a summary line: prompt and written.
fn counts(stderr: &str) -> (usize, usize) {
    let number = |after: &str| {
        let rest = stderr.split_once(after).unwrap_or_else(|| panic!("no `{after}` in {stderr:?}")).1;
        rest.split(' ').next().unwrap().parse().unwrap()
    };
    (number("[prompt: "), number("written: "))
}

#[test]
fn text_goes_to_stdout_and_a_plan_and_a_summary_to_stderr() {
    let ran = strata(&["run", "--temp", "0", "-n", "6", "What is a file?"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.ends_with('\n') && ran.stdout.trim().len() > 3, "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 2, "{ran:?}");
    assert!(ran.stderr.starts_with("strata: plan: ") && ran.stderr.contains("all 1152 experts"), "{ran:?}");
    assert!(ran.stderr.contains("tok/s") && ran.stderr.contains("stopped at --tokens"), "{ran:?}");
    let (_, written) = counts(&ran.stderr);
    assert_eq!(written, 6);
}

/// The first token of a greedy continuation is the most probable one by `strata logits`, which shares neither the
/// tokenizer's nor the sampler's path.
#[test]
fn greedy_text_is_the_most_probable_token() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("logits.safetensors");
    let prompt = "The kernel reads the file and";
    let ids = strata(&["tokenize", "--ids", prompt]).ok();
    strata(&["logits", "--ids", ids.trim(), "-o", arg(&output)]).ok();
    let (shape, logits) = crate::exact::f32s(&output, "logits");
    let last = &logits[(shape[0] - 1) * shape[1]..];
    let best = (0..last.len()).max_by(|a, b| last[*a].total_cmp(&last[*b])).unwrap();

    let ran = strata(&["run", "--raw", "--temp", "0", "-n", "1", prompt]);
    assert_eq!(counts(&ran.stderr), (ids.split(',').count(), 1));
    let text = ran.ok();
    let written = strata(&["tokenize", "--ids", text.strip_suffix('\n').unwrap()]).ok();
    assert_eq!(written.trim(), best.to_string(), "{text:?}");
}

#[test]
fn one_prompt_and_seed_give_one_text() {
    let with = |more: &[&str]| {
        let mut args =
            vec!["run", "--raw", "-n", "12", "--temp", "1.5", "--top-k", "0", "--top-p", "1", "--min-p", "0"];
        args.extend(more);
        args.push("In the beginning");
        strata(&args).ok()
    };
    let first = with(&["--seed", "1", "--threads", "1"]);
    assert_eq!(first, with(&["--seed", "1", "--threads", "2"]));
    assert_eq!(first, with(&["--seed", "1", "--pass", "1", "--strip", "1", "--threads", "3"]));
    assert_ne!(first, with(&["--seed", "2"]));
}

#[test]
fn prompts_from_argument_stdin_and_file_are_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("question.txt");
    std::fs::write(&file, "Name two colors.").unwrap();
    let base = ["run", "--temp", "0", "-n", "5"];
    let run = |more: &[&str], input: &str| strata_reads(&[&base[..], more].concat(), input.as_bytes()).ok();
    let text = run(&["Name two colors."], "");
    assert_eq!(text, run(&[], "Name two colors."));
    assert_eq!(text, run(&["-"], "Name two colors."));
    assert_eq!(text, run(&["-f", arg(&file)], ""));
    assert_eq!(text, run(&["-f", "-"], "Name two colors."));
    // An argument is the prompt whatever waits on standard input, and comes before the text of a file.
    assert_eq!(text, run(&["Name two colors."], "Something else."));
    let both = run(&["Answer.\n\nNo, wait.", "-f", arg(&file)], "");
    assert_eq!(both, run(&["Answer.\n\nNo, wait.\n\nName two colors."], ""));
    strata(&["run", "-", "-f", arg(&file)]).fails(2, &["--file"]);
}

#[test]
fn the_template_and_the_system_text_are_part_of_the_prompt() {
    let tokens = |more: &[&str]| counts(&strata(&[&["run", "-n", "1", "--temp", "0"], more].concat()).stderr).0;
    let plain = tokens(&["--raw", "hello"]);
    let chat = tokens(&["hello"]);
    let system = tokens(&["--system", "Be brief.", "hello"]);
    assert!(plain < chat && chat < system, "{plain} {chat} {system}");
}

#[test]
fn prompts_that_cannot_be_used() {
    strata_reads(&["run"], b"").fails(1, &["prompt is empty"]);
    strata(&["run", "--raw", ""]).fails(1, &["prompt is empty"]);
    strata_reads(&["run"], b"abc\xff").fails(1, &["standard input", "UTF-8", "offset 3"]);
    strata(&["run", "-f", "no/such/file"]).fails(1, &["no/such/file"]);
    strata(&["run", "-f", "models"]).fails(1, &["models"]);
    let long = "word ".repeat(200_000);
    strata_reads(&["run"], long.as_bytes()).fails(1, &["tokens, but the context holds 4096", "--context"]);
    strata_reads(&["run", "--raw", "--context", "10"], &long.as_bytes()[..100]).fails(1, &["context of 10"]);
    // A zero byte is a character like any other.
    strata_reads(&["run", "-n", "1"], b"a\0b").ok();
}

#[test]
fn writing_ends_where_the_context_ends() {
    let args = ["run", "--raw", "--temp", "0", "--context", "8", "-n", "50", "one, two, three,"];
    let ran = strata(&args);
    let (prompt, written) = counts(&ran.stderr);
    // The last token written needs no room: nothing follows it.
    assert_eq!(prompt + written, 9, "{ran:?}");
    assert!(ran.stderr.contains("context is full"), "{ran:?}");
    ran.ok();
}

#[test]
fn settings_beyond_reason_are_told_or_harmless() {
    let run = |more: &[&str]| strata(&[&["run", "--raw", "--seed", "7"], more, &["hi"]].concat());
    let usual = run(&["-n", "2"]).ok();
    assert_eq!(usual, run(&["-n", "2", "--pass", "1000000000000", "--strip", "1000000000000"]).ok());
    run(&["--context", "1000000000000"]).fails(1, &["does not fit into", "a context of at most"]);
    run(&["--context", "18446744073709551615"]).fails(1, &["memory"]);
    run(&["--qsa-block", "1000000000000"]).fails(1, &["1000000000000"]);
    // Once an endless wait for a million threads.
    run(&["--threads", "1000000"]).fails(2, &["--threads", "1024"]);
    run(&["--temp", "nan"]).fails(1, &["temperature", "NaN"]);
    for flag in ["--tokens", "--context", "--pass", "--strip"] {
        run(&[flag, "0"]).fails(2, &[flag, "at least 1"]);
        run(&[flag, "x"]).fails(2, &[flag, "at least 1"]);
    }
}

#[test]
fn what_is_no_model_is_told_by_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let model = std::fs::read(mini()).unwrap();
    let missing = arg(&dir.path().join("missing.gguf")).to_owned();
    let mut cases = vec![
        (missing, "No such file"),
        (arg(dir.path()).to_owned(), "not a regular file"),
        (file("text.gguf", b"This is a letter, not a model.\n"), "not a GGUF file"),
        (file("empty.gguf", b""), "empty"),
    ];
    // Cut in the magic, the header, the metadata, the vocabulary, the tensors' table and their data.
    for len in [3, 20, 1_000, 100_000, 500_000, 20_000_000, model.len() - 1] {
        let says = if len == 3 { "not a GGUF file" } else { "cut off" };
        cases.push((file(&format!("cut-{len}.gguf"), &model[..len]), says));
    }
    for (path, says) in &cases {
        strata(&["run", "-m", path, "hi"]).fails(1, &[path, says]);
        strata(&["inspect", path]).fails(1, &[path, says]);
        strata(&["logits", "-m", path, "--ids", "1", "-o", "/dev/null"]).fails(1, &[path, says]);
    }
    let (path, says) = &cases[0];
    strata(&["chat", "-m", path]).fails(1, &[path, says]);
    strata(&["tokenize", "-m", path, "hi"]).fails(1, &[path, says]);
    strata(&["eval", "ppl", path, "--text", "Cargo.toml"]).fails(1, &[path, says]);
}

#[cfg(unix)]
#[test]
fn a_model_that_may_not_be_read() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret.gguf");
    std::fs::write(&path, b"GGUF").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o0)).unwrap();
    // A superuser reads it all the same, and is told that it is cut off.
    let says = if std::fs::read(&path).is_ok() { "cut off" } else { "Permission denied" };
    strata(&["run", "-m", arg(&path), "hi"]).fails(1, &[arg(&path), says]);
}

#[test]
fn a_model_without_tokenizer_has_no_text() {
    let model = oracle("mini4", "model-f16.gguf");
    for args in [
        &["run", "hi"][..],
        &["run", "--raw", "hi"],
        &["chat"],
        &["tokenize", "hi"],
        &["logits", "--text", "Cargo.toml", "-o", "/dev/null"],
        &["parity", "default", "pass=1", "--text", "Cargo.toml"],
    ] {
        strata(&[args, &["-m", &model]].concat()).fails(1, &["no tokenizer", "tokenizer.ggml.model"]);
    }
}

/// Runs a copy of the program with the current directory `dir`.
fn copy_runs(program: &Path, dir: &Path) -> crate::Ran {
    let mut run = std::process::Command::new(program);
    run.args(["run", "--raw", "-n", "2", "hi"]).current_dir(dir).env_clear().output().unwrap().into()
}

#[test]
fn the_shipped_model_is_found_beside_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("bin").join("strata");
    let elsewhere = dir.path().join("elsewhere");
    std::fs::create_dir_all(program.parent().unwrap()).unwrap();
    std::fs::create_dir_all(&elsewhere).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_strata"), &program).unwrap();
    copy_runs(&program, &elsewhere).fails(1, &["no model", "-m FILE"]);

    let beside = dir.path().join("models/strata-mini");
    std::fs::create_dir_all(&beside).unwrap();
    std::fs::copy(mini(), beside.join(mini().file_name().unwrap())).unwrap();
    copy_runs(&program, &elsewhere).ok();
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0, "running leaves nothing behind");
}

#[test]
fn a_bare_environment_is_enough() {
    let path = mini();
    let mut run = command(&["run", "--raw", "-n", "2", "hi", "-m", arg(&path)]);
    crate::Ran::from(run.env_clear().env("TERM", "dumb").output().unwrap()).ok();
}

#[test]
fn drafts_change_no_text_and_are_summed_up() {
    let prompt =
        "The reader opens the file and reads the page. The writer opens the file and reads the page. The reader";
    let run = |more: &[&str]| strata(&[&["run", "--raw", "--temp", "0", "-n", "40"], more, &[prompt]].concat());
    let (plain, drafted) = (run(&[]), run(&["--draft", "lookup", "--draft-max", "5", "--arena-gb", "0.01"]));
    assert!(!plain.stderr.contains("drafts") && drafted.stderr.contains(" | drafts: "), "{drafted:?}");
    assert!(drafted.stderr.lines().any(|line| line.ends_with(" accepted]")), "{drafted:?}");
    assert_eq!(plain.ok(), drafted.ok());
    run(&["--draft", "lookup", "--draft-max", "8"]).fails(2, &["--draft-max"]);
    run(&["--draft", "mtp"]).fails(1, &["no draft head"]);
    run(&["--mtp", "head.gguf"]).fails(2, &["--mtp does nothing without --draft mtp|auto"]);
}
