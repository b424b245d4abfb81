//! `--timeline` and `strata report`.

use std::path::Path;

use serde_json::Value;

use crate::{arg, mini, oracle, strata};

fn trace(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Spans of a name.
fn count(trace: &Value, name: &str) -> usize {
    trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X" && e["name"] == name).count()
}

#[test]
fn a_run_has_a_timeline_and_a_page_and_the_same_text() {
    let dir = tempfile::tempdir().unwrap();
    let (json, page) = (dir.path().join("run.json"), dir.path().join("run.html"));
    let run = ["run", "--raw", "--temp", "0", "-n", "4", "The files are"];
    let plain = strata(&run);
    // Less room than the experts need, so that some are read.
    let streamed = ["--arena-gb", "0.02", "--io", "buffered", "--timeline", arg(&json)];
    let recorded = strata(&[&run[..], &streamed].concat());
    assert_eq!(plain.stdout, recorded.stdout);
    let spans = trace(&json)["otherData"]["spans"].as_u64().unwrap();
    assert!(recorded.stderr.contains(&format!("run.json: {spans} spans\n")), "{recorded:?}");
    recorded.ok();
    // One pass for the prompt and one for each token but the last, of twelve layers, three of them attention.
    let trace = trace(&json);
    for (name, calls) in
        [("embed", 4), ("write streams", 4 * 24), ("mix gdn", 4 * 9), ("mix qsa", 4 * 3), ("combine", 4 * 12)]
    {
        assert_eq!(count(&trace, name), calls, "{name}");
    }
    let about = &trace["otherData"];
    let read = trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["args"]["class"].is_string());
    let read_bytes: u64 = read.map(|e| e["args"]["bytes"].as_u64().unwrap()).sum();
    let classes = about["record_bytes"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap());
    assert_eq!(read_bytes, classes.sum::<u64>());
    assert!(read_bytes > 0 && read_bytes == about["read_bytes"].as_u64().unwrap(), "{about}");
    let title = about["title"].as_str().unwrap();
    assert!(title.starts_with("run, ") && title.ends_with(" written"), "{title}");

    let ran = strata(&["report", arg(&json), "-o", arg(&page)]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{ran:?}");
    let page = std::fs::read_to_string(&page).unwrap();
    for part in [title, "The drive was busy", "strata-mini-iq2xs-q4_0.gguf on cpu", "<th scope=\"row\">read "] {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(page.matches("<g><title>layer ").count(), 12);
}

#[test]
fn a_benchmark_has_the_timeline_of_its_last_run() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("bench.json");
    let args = ["bench", "decode", "-n", "3", "--context-tokens", "4", "--repeat", "2", "--json", "--timeline"];
    let line: Value = serde_json::from_str(&strata(&[&args[..], &[arg(&json)]].concat()).ok()).unwrap();
    let trace = trace(&json);
    assert_eq!((count(&trace, "embed"), count(&trace, "mix gdn")), (3, 3 * 9));
    assert_eq!(trace["otherData"]["title"], "bench decode, 3 tokens after 4");
    let wall_s = trace["otherData"]["wall_s"].as_f64().unwrap();
    assert!(wall_s >= line["seconds_min"].as_f64().unwrap(), "{wall_s} {line}");
}

#[test]
fn what_cannot_be_recorded_is_said_before_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("no/such.json");
    strata(&["run", "x", "--timeline", arg(dir.path())]).fails(1, &["this is a directory"]);
    strata(&["bench", "prefill", "--timeline", arg(&nowhere)]).fails(1, &["there is no directory"]);
    if cfg!(target_os = "linux") {
        // Nobody can make a file there.
        let ran = strata(&["bench", "prefill", "--timeline", "/proc/t.json"]);
        assert!(!ran.stderr.contains("plan: "), "{ran:?}");
        ran.fails(1, &["/proc/t.json: it cannot be written"]);
    }
    strata(&["bench", "prefill", "--timeline", "x", "--compare", "strip=4,9"]).fails(2, &["cannot be used with"]);
}

#[test]
fn what_is_no_timeline_makes_no_page() {
    let dir = tempfile::tempdir().unwrap();
    let (input, page) = (dir.path().join("input.json"), dir.path().join("page.html"));
    let report = |input: &str| strata(&["report", input, "-o", arg(&page)]);
    report("no-such-file.json").fails(1, &["no-such-file.json: No such file"]);
    report(arg(dir.path())).fails(1, &["not a timeline of strata"]);
    report(arg(&mini())).fails(1, &["mini-iq2xs-q4_0.gguf: not a timeline of strata: expected value at line 1"]);
    report(&oracle("mini4", "model-f16.gguf")).fails(1, &["not a timeline of strata"]);
    for (text, problem) in [("", "EOF"), ("{\"traceEvents\":[]}", "missing field `otherData`"), ("[[[[", "line 1")] {
        std::fs::write(&input, text).unwrap();
        report(arg(&input)).fails(1, &["input.json: not a timeline of strata", problem]);
    }
    assert!(!page.exists());
    strata(&["report", arg(&input)]).fails(2, &["--output"]);
    strata(&["report", arg(&input), "-o", arg(dir.path())]).fails(1, &["this is a directory"]);
}
