//! `strata calibrate`: sizes are timed in turns, the best is kept, used, and forgotten.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::{Ran, arg, command};

const RUN: [&str; 7] = ["run", "--raw", "--temp", "0", "-n", "8", "The kernel reads the file and"];
/// Slots of the shipped model.
const SLOT_BYTES: u64 = 10 * 4096;

/// A command with a cache of its own.
fn with_cache(cache: &Path, args: &[&str]) -> Ran {
    command(args).env("XDG_CACHE_HOME", cache).stdin(Stdio::null()).output().unwrap().into()
}

fn json(ran: Ran) -> Value {
    serde_json::from_str(&ran.ok()).unwrap()
}

fn kept(cache: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(cache.join("strata")).into_iter().flatten().map(|entry| entry.unwrap().path());
    files.into_iter().find(|file| file.extension().is_some_and(|kind| kind == "calibration"))
}

#[test]
fn field_report_05_06_the_arena_that_was_found_best_is_used_until_it_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path();
    let text = with_cache(cache, &RUN).ok();
    let sizes = ["calibrate", "--sizes", "0.002,0.004,0.01,5", "-n", "3", "--context-tokens", "5", "--repeat", "2"];
    let ran = with_cache(cache, &[&sizes[..], &["--json"]].concat());
    assert_eq!(ran.stderr.lines().filter(|line| line.contains("tok/s")).count(), 8, "{ran:?}");
    let found = json(ran);
    let tried = found["sizes"].as_array().unwrap();
    // 5 GiB are more than all experts take.
    let slots: Vec<u64> = tried.iter().map(|size| size["slots"].as_u64().unwrap()).collect();
    let of_gib = |gib: f64| (gib * (1u64 << 30) as f64) as u64 / SLOT_BYTES;
    assert_eq!(slots, [of_gib(0.002), of_gib(0.004), of_gib(0.01), 12 * 96]);
    for (size, slots) in tried.iter().zip(&slots) {
        assert_eq!(size["arena_bytes"], slots * SLOT_BYTES);
        let seconds: Vec<f64> = size["seconds"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();
        assert!(seconds.len() == 2 && seconds.iter().all(|s| *s > 0.0), "{size}");
        let median = (seconds[0] + seconds[1]) / 2.0;
        assert!((size["tok_s"].as_f64().unwrap() * median - 3.0).abs() < 1e-9, "{size}");
    }
    // The fastest, or a smaller one that is nearly as fast.
    let rate = |size: &Value| size["tok_s"].as_f64().unwrap();
    let best = tried.iter().map(rate).fold(0.0, f64::max);
    let arena = found["arena_bytes"].as_u64().unwrap();
    let chosen = tried.iter().find(|size| size["arena_bytes"] == arena).unwrap();
    assert!(rate(chosen) * 1.03 >= best * 0.999, "{found}");

    // A run obeys, whichever was found: here one that is smaller than what there is room for.
    let file = kept(cache).unwrap();
    let good = fs::read_to_string(&file).unwrap();
    let small = good.replacen(&format!("\"arena_bytes\":{arena}"), &format!("\"arena_bytes\":{}", 100 * SLOT_BYTES), 1);
    fs::write(&file, &small).unwrap();
    let ran = with_cache(cache, &RUN);
    let date = found["date"].as_str().unwrap();
    assert!(ran.stderr.contains(&format!("(100 of 1152 experts, calibrated {date})")), "{ran:?}");
    assert_eq!(ran.ok(), text);
    let plan = |more: &[&str]| json(with_cache(cache, &[&["plan", "--json"], more].concat()));
    let calibrated = plan(&[]);
    assert_eq!((&calibrated["slots"], &calibrated["limit"]), (&100.into(), &"calibrated".into()));
    // What the user says counts more.
    assert_eq!(plan(&["--arena-gb", "0.01"])["slots"], of_gib(0.01));
    assert_eq!(plan(&["--memory-gb", "1"])["slots"], 12 * 96);

    // What is damaged, another model's or absurd counts as none, or as the least or the most there can be.
    for (bytes, slots) in [
        (small[..small.len() - 4].to_owned(), 12 * 96),
        (small.replacen("\"model\":\"", "\"model\":\"0", 1), 12 * 96),
        (String::new(), 12 * 96),
        (small.replacen(&(100 * SLOT_BYTES).to_string(), "1", 1), 24),
        (small.replacen(&(100 * SLOT_BYTES).to_string(), "18446744073709551615", 1), 12 * 96),
    ] {
        fs::write(&file, &bytes).unwrap();
        assert_eq!(plan(&[])["slots"], slots, "{bytes}");
    }

    fs::write(&file, &small).unwrap();
    assert!(with_cache(cache, &["calibrate", "--forget"]).ok().contains("is forgotten"));
    assert_eq!((kept(cache), plan(&[])["slots"].as_u64()), (None, Some(12 * 96)));
    assert_eq!(json(with_cache(cache, &["calibrate", "--forget", "--json"]))["forgotten"], false);
}

#[test]
fn people_read_a_table() {
    let dir = tempfile::tempdir().unwrap();
    // As it is installed: with a text of the user's own.
    let (text, model) = (dir.path().join("text.txt"), crate::mini());
    fs::write(&text, "one two three").unwrap();
    let args = ["calibrate", "--sizes", "0.002,0.01", "-n", "2", "--context-tokens", "2", "--repeat", "1"];
    let args = [&args[..], &["--text", arg(&text), "-m", arg(&model)]].concat();
    let shown = with_cache(dir.path(), &args).ok();
    assert_eq!(shown.lines().count(), 4, "{shown}");
    assert_eq!(shown.matches("  kept\n").count(), 1, "{shown}");
}

#[test]
fn what_cannot_be_calibrated_is_said() {
    let dir = tempfile::tempdir().unwrap();
    // All experts have slots.
    assert!(with_cache(dir.path(), &["calibrate"]).ok().contains("there is nothing to find"));
    assert_eq!(json(with_cache(dir.path(), &["calibrate", "--json"]))["arena_bytes"], Value::Null);
    assert_eq!(kept(dir.path()), None);
    with_cache(dir.path(), &["calibrate", "-m", "missing.gguf"]).fails(1, &["missing.gguf"]);
    let cut = dir.path().join("cut.gguf");
    fs::write(&cut, &fs::read(crate::mini()).unwrap()[..1 << 20]).unwrap();
    with_cache(dir.path(), &["calibrate", "-m", arg(&cut)]).fails(1, &["cut.gguf"]);
    with_cache(dir.path(), &["calibrate", "--context", "20"]).ok();
    let sizes = ["--sizes", "0.002", "-n", "1", "--context-tokens", "1", "--repeat", "1"];
    with_cache(dir.path(), &[&["calibrate", "--context", "3"][..], &sizes].concat()).fails(1, &["--context"]);
    // Where nothing can be kept, that is a failure: it is all that was asked for. What was measured is shown.
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let ran = with_cache(&file, &[&["calibrate"][..], &sizes].concat());
    assert!(ran.code == Some(1) && ran.stderr.contains("calibration"), "{ran:?}");
    assert!(ran.stdout.contains("  best\n") && !ran.stdout.contains("kept"), "{ran:?}");
    with_cache(dir.path(), &["calibrate", "--text", "missing.txt", "--sizes", "0.002"]).fails(1, &["missing.txt"]);
}
