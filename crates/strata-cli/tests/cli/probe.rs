//! `strata probe`: its tables, its files, and what it refuses.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use serde_json::Value;

use crate::{arg, strata};

#[test]
fn a_directory_is_measured_with_a_file_that_is_gone_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let shown = strata(&["probe", arg(dir.path()), "--size-gb", "0.03", "--seconds", "1", "--json"]).ok();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let lines: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, rates) = lines.split_last().unwrap();
    assert!(summary["warnings"].is_array() && summary.get("drive").is_some(), "{summary}");
    let of_file: Value = {
        let file = dir.path().join("file");
        fs::write(&file, vec![1; 4096]).unwrap();
        let shown = strata(&["probe", arg(&file), "--seconds", "0.1", "--json"]).ok();
        serde_json::from_str(shown.lines().last().unwrap()).unwrap()
    };
    assert_eq!(summary["drive"], of_file["drive"], "the file's drive is known when its name is gone");
    let mut seen = BTreeSet::new();
    for rate in rates {
        let number = |key: &str| rate[key].as_f64().unwrap_or_else(|| panic!("{key} of {rate}"));
        assert!(number("reads") >= 1.0 && number("bytes_per_second") > 0.0, "{rate}");
        assert!(number("read_seconds_median") <= number("read_seconds_max"), "{rate}");
        let (bytes, depth) = (number("read_bytes") as u64, number("depth") as u64);
        assert!([4 << 10, 64 << 10, 512 << 10, 1536 << 10, 4 << 20].contains(&bytes) && depth <= 128);
        assert!(seen.insert((rate["reader"].as_str().unwrap().to_owned(), bytes, depth)), "twice: {rate}");
    }
    assert!(
        seen.iter().any(|(reader, ..)| reader == "threads") && seen.iter().any(|(reader, ..)| reader == "buffered")
    );
}

/// Field report 23: what the page cache gave is not certified.
#[test]
fn field_report_23_what_memory_gave_is_never_the_drives() {
    // A file that was just written, and is wholly in memory, on a file system that has nothing but memory.
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    let path = dir.path().join("file");
    fs::write(&path, vec![1; 8 << 20]).unwrap();
    let shown = strata(&["probe", arg(&path), "--seconds", "0.5"]).ok();
    assert!(shown.contains("not direct") && shown.contains("cached, not certified"), "{shown}");
    assert!(shown.contains("nothing is certain about experts"), "{shown}");
    assert!(!shown.contains("--drive-gb"), "{shown}");
}

/// A download that has only begun, say: reads of what is not there cost nothing.
#[test]
#[cfg(target_os = "linux")]
fn field_report_23_holes_of_a_file_are_never_the_drives() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("holes");
    fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let shown = strata(&["probe", arg(&path), "--seconds", "0.5"]).ok();
    assert!(shown.contains("holes, or compressed, not certified"), "{shown}");
    assert!(shown.contains("nothing is certain about experts") && !shown.contains("--drive-gb"), "{shown}");

    // As large as files can be: only so much of it is measured as there is a table for.
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    let path = dir.path().join("huge");
    let file = fs::File::create(&path).unwrap();
    if file.set_len(7 << 60).is_ok() {
        strata(&["probe", arg(&path), "--seconds", "0.1", "--json"]).ok();
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    strata(&["probe", arg(&dir.path().join("missing"))]).fails(1, &["missing", "cannot open it"]);
    let small = dir.path().join("small");
    fs::write(&small, "x").unwrap();
    strata(&["probe", arg(&small)]).fails(1, &["small", "too short"]);
    strata(&["probe", arg(dir.path()), "--size-gb", "1e9"]).fails(1, &["are free", "--size-gb"]);
    strata(&["probe", arg(dir.path()), "--seconds", "0"]).fails(2, &["--seconds"]);
    strata(&["probe"]).fails(2, &["<FILE|DIR>"]);
}

/// Field report 27: started as a background task, reads may be slowed down by the system: the setting is named, by
/// whoever reads.
#[test]
#[cfg(target_os = "linux")]
fn field_report_27_a_low_priority_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let nice = |args: &[&str]| {
        let mut command = std::process::Command::new("nice");
        command.args(["-n", "19", env!("CARGO_BIN_EXE_strata")]).args(args).current_dir(crate::root());
        let output = command.env("XDG_CACHE_HOME", dir.path()).output().unwrap();
        let ran = crate::Ran::from(output);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.stderr
    };
    let low = "I/O priority is 7 of 7";
    let notes = nice(&["probe", arg(dir.path()), "--size-gb", "0.01", "--seconds", "0.2"]);
    assert!(notes.contains(low), "{notes}");
    let run = ["run", "--raw", "-n", "1", "a"];
    let notes = nice(&[&run[..], &["--arena-gb", "0.01"]].concat());
    assert!(notes.contains(low), "{notes}");
    let notes = nice(&run);
    assert!(!notes.contains(low), "what is in memory waits for no drive: {notes}");
}

#[test]
#[cfg(unix)]
fn ctrl_c_leaves_no_file_behind() {
    for (size_gb, seconds) in [("0.03", "60"), ("3", "1")] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = crate::command(&["probe", arg(dir.path()), "--size-gb", size_gb, "--seconds", seconds]);
        let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(700));
        let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
