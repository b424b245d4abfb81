//! Models that stream from the drive: the same texts, within the plan, and what is counted, kept and refused.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{Ran, arg, command, strata};

const RUN: [&str; 7] = ["run", "--raw", "--temp", "0", "-n", "10", "The kernel reads the file and"];

fn json_lines(args: &[&str]) -> Vec<Value> {
    strata(args).ok().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} in {value}"))
}

/// The small synthetic model: 4 layers of 32 experts in slots of 36,864 bytes, of which a token uses 4.
fn small(dir: &Path) -> (PathBuf, PathBuf) {
    let (model, ids) = (dir.join("s.gguf"), dir.join("ids"));
    strata(&["synth", arg(&model), "--shape", "small", "--save-ids", arg(&ids)]).ok();
    (model, ids)
}

/// GiB of an arena of 24 slots of the small model, and a bit.
const SMALL_ARENA: &str = "0.00084";
/// GiB of an arena of 25 slots of the shipped model; the least is 24.
const MINI_ARENA: &str = "0.00096";

#[test]
fn field_report_12_40_texts_do_not_depend_on_memory_or_drive() {
    let run = |more: &[&str]| strata(&[&RUN[..], more].concat()).ok();
    for arithmetic in [&[][..], &["--precise"]] {
        let expected = run(arithmetic);
        for more in [
            &["--arena-gb", MINI_ARENA][..],
            &["--arena-gb", MINI_ARENA, "--threads", "1", "--lookahead", "off", "--io", "threads"],
            &["--arena-gb", "0.01", "--io", "buffered", "--pass", "3", "--strip", "2", "--ple", "sync"],
            &["--arena-gb", "0.02", "--io-depth", "2", "--lookahead", "profile", "--forecast-min", "3"],
        ] {
            assert_eq!(run(&[arithmetic, more].concat()), expected, "{arithmetic:?} {more:?}");
        }
    }
}

#[test]
fn a_model_in_two_files_streams_from_both() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("s.gguf");
    strata(&["synth", arg(&model), "--shape", "small", "--split", "--table-rows", "4000"]).ok();
    let first = dir.path().join("s-00001-of-00002.gguf");
    let ids: Vec<_> = (0..200).map(|i| (i * 37 % 2000).to_string()).collect();
    let logits = |name: &str, more: &[&str]| {
        let output = dir.path().join(name);
        let args = ["logits", "-m", arg(&first), "--ids", &ids.join(","), "-o", arg(&output)];
        strata(&[&args[..], more].concat()).ok();
        std::fs::read(output).unwrap()
    };
    let expected = logits("all", &[]);
    assert!(logits("some", &["--arena-gb", SMALL_ARENA]) == expected);
    assert!(logits("few", &["--arena-gb", SMALL_ARENA, "--pieces", "150,1,9", "--io", "threads"]) == expected);
}

/// Distinct experts of every layer of every pass, by `strata dump`.
fn lookups(model: &Path, ids: &Path, tokens: usize, pass: &str) -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("dump");
    let limit = tokens.to_string();
    strata(&["dump", "-m", arg(model), "--ids-file", arg(ids), "--limit", &limit, "--pass", pass, "-o", arg(&output)])
        .ok();
    let mut lookups = 0;
    for entry in std::fs::read_dir(&output).unwrap() {
        let path = entry.unwrap().path();
        if !path.file_name().unwrap().to_str().unwrap().starts_with("layer") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let (routes, _) = tensors.tensor("route_ids").unwrap().data().as_chunks::<4>();
        lookups += routes.iter().collect::<BTreeSet<_>>().len() as u64;
    }
    lookups
}

/// Every number that a run of `bench prefill` must tell.
const KEYS: [&str; 16] = [
    "tokens",
    "pass_tokens",
    "wall_s",
    "tok_s",
    "drive_floor_s",
    "compute_floor_s",
    "ratio",
    "drive_busy",
    "bytes_needed",
    "bytes_read",
    "bytes_wasted",
    "lookups",
    "exposed_wait_s",
    "peak_rss_bytes",
    "plan_bytes",
    "conditions",
];

#[track_caller]
fn adds_up(run: &Value, tokens: u64, pass: u64, lookups: u64) {
    for key in KEYS {
        assert!(run.get(key).is_some(), "{key} is not in {run}");
    }
    assert_eq!((number(run, "tokens"), number(run, "pass_tokens")), (tokens, pass));
    let kinds = &run["lookups"];
    let [resident, ahead, missed] = ["resident", "ahead", "missed"].map(|kind| number(kinds, kind));
    assert_eq!(resident + ahead + missed, lookups, "{run}");
    assert_eq!(number(run, "records_needed"), ahead + missed, "{run}");
    for what in ["records", "bytes"] {
        let [needed, read, wasted] = ["needed", "read", "wasted"].map(|which| number(run, &format!("{what}_{which}")));
        assert_eq!(read, needed + wasted, "{what} of {run}");
    }
    assert!(number(run, "bytes_read") > 0);
    let seconds = |key: &str| run[key].as_f64().unwrap();
    assert!((seconds("tok_s") * seconds("wall_s") - tokens as f64).abs() < 1e-6);
    let floor = seconds("drive_floor_s").max(seconds("compute_floor_s"));
    assert!(floor > 0.0 && (seconds("ratio") * floor / seconds("wall_s") - 1.0).abs() < 1e-6);
    assert!(seconds("exposed_wait_s") >= 0.0 && seconds("exposed_wait_s") < seconds("wall_s"));
    if cfg!(target_os = "linux") {
        assert!(number(run, "peak_rss_bytes") <= number(run, "plan_bytes"), "{run}");
    }
}

#[test]
fn field_report_17_56_58_a_run_that_streams_tells_what_it_read_and_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (model, ids) = small(dir.path());
    let lookups = lookups(&model, &ids, 300, "128");
    let base = ["bench", "prefill", "-m", arg(&model), "-n", "300", "--pass", "128", "--repeat", "2", "--json"];
    let arena = ["--arena-gb", SMALL_ARENA];
    let shown = &json_lines(&[&base[..], &arena].concat())[0];
    let runs = shown["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    for run in runs {
        adds_up(run, 300, 128, lookups);
        assert!(run["conditions"].get("clock_mhz").is_some() && run["conditions"].get("swapped_bytes").is_some());
    }
    assert_eq!((&shown["bench"], number(shown, "plan_bytes")), (&"prefill".into(), number(&runs[0], "plan_bytes")));

    // Computation alone: what the run beside it read is not told as if it had been read in that time.
    let fake = &json_lines(&[&base[..], &arena, &["--fake-stream"]].concat())[0];
    for key in ["bytes_read", "bytes_needed", "bytes_wasted", "ngram_bytes_read"] {
        assert_eq!(number(fake, key), 0, "{key} of {fake}");
    }
    assert!(fake["ratio"].is_null() && fake["drive_floor_s"].is_null() && fake["wall_s"].as_f64().unwrap() > 0.0);

    let lines = json_lines(&[&base[..], &arena, &["--compare", "lookahead=off,router"]].concat());
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(line["compare"], serde_json::json!(["lookahead=off", "lookahead=router"]));
    for side in ["a", "b"] {
        let runs = line[side].as_array().unwrap();
        assert_eq!(runs.len(), 2);
        runs.iter().for_each(|run| adds_up(run, 300, 128, lookups));
    }
    assert!(line["b_over_a"].as_f64().unwrap() > 0.0);
    assert!(line["a"].as_array().unwrap().iter().all(|run| run["bytes_wasted"] == 0), "nothing is guessed: {line}");
    // One strip, and nothing read before it is demanded: what is not resident is missed.
    let one_strip = ["-n", "100", "--lookahead", "off", "--no-floors"];
    let run = &json_lines(&[&base[..4], &base[8..], &arena, &one_strip].concat())[0];
    let lookups = &run["lookups"];
    assert!(number(lookups, "ahead") == 0 && number(lookups, "missed") > 0, "{run}");
}

#[test]
fn field_report_10_what_is_resident_is_decided_by_the_plan_and_equal_on_repeat() {
    let dir = tempfile::tempdir().unwrap();
    let (model, _) = small(dir.path());
    let args = ["bench", "prefill", "-m", arg(&model), "-n", "200", "--repeat", "3", "--no-floors", "--json"];
    let ran = strata(&[&args[..], &["--arena-gb", "0.002"]].concat());
    // 58 slots of 36,864 bytes. Of these, 2 x 4 + 12 are the ring, as many as may be on their way at a time.
    assert!(ran.stderr.contains("58 of 128 experts"), "{ran:?}");
    let shown: Value = serde_json::from_str(&ran.ok()).unwrap();
    let of_run = |run: &Value| ["resident", "ahead", "missed"].map(|kind| number(&run["lookups"], kind));
    let runs: Vec<_> = shown["runs"].as_array().unwrap().iter().map(of_run).collect();
    let [resident, ahead, missed] = runs[0];
    assert!(resident > 0 && resident < 58 && ahead + missed > 0, "{runs:?}");
    let all = |run: &[u64; 3]| run.iter().sum::<u64>();
    assert!(runs.iter().all(|run| run[0] == resident && all(run) == all(&runs[0])), "{runs:?}");
}

/// Distinct experts of single tokens are those that they are routed to: four in each of four layers.
#[test]
fn tokens_one_by_one_tell_what_they_missed_and_foresaw() {
    let dir = tempfile::tempdir().unwrap();
    let (model, _) = small(dir.path());
    let base = ["bench", "decode", "-m", arg(&model), "-n", "128", "--context-tokens", "9", "--repeat", "1", "--json"];
    let arena = ["--arena-gb", "0.0017"];
    let checked = |run: &Value| {
        let kinds = &run["lookups"];
        let [resident, ahead, missed] = ["resident", "ahead", "missed"].map(|kind| number(kinds, kind));
        assert_eq!(resident + ahead + missed, 128 * 4 * 4, "{run}");
        assert_eq!(number(run, "records_missed"), ahead + missed, "{run}");
        let seconds = |key: &str| run[key].as_f64().unwrap();
        assert!((seconds("hit_rate") * (128.0 * 16.0) - resident as f64).abs() < 1e-6, "{run}");
        let floors = seconds("drive_floor_s") + seconds("compute_floor_s");
        assert!(seconds("drive_floor_s") > 0.0 && seconds("compute_floor_s") > seconds("memory_floor_s"), "{run}");
        assert!((seconds("ratio") * floors / seconds("wall_s") - 1.0).abs() < 1e-6, "{run}");
        assert!(seconds("first_64_tok_s") > 0.0 && seconds("steady_tok_s") > 0.0, "{run}");
        if cfg!(target_os = "linux") {
            assert!(number(run, "peak_rss_bytes") <= number(run, "plan_bytes"), "{run}");
        }
    };
    let [line] = &json_lines(&[&base[..], &arena, &["--compare", "lookahead=off,router"]].concat())[..] else {
        panic!()
    };
    let [off, router] = ["a", "b"].map(|side| line[side].as_array().unwrap());
    off.iter().chain(router).for_each(checked);
    // What is missing is read once, and nothing else.
    assert_eq!((number(&off[0], "bytes_wasted"), &off[0]["forecast"]["recall"]), (0, &Value::Null), "{line}");
    assert_eq!(number(&off[0], "bytes_read"), number(&off[0], "bytes_missed"), "{line}");
    let [missed, read, wasted] = ["missed", "read", "wasted"].map(|what| number(&router[0], &format!("bytes_{what}")));
    // Reads may be under way when the run begins and ends.
    let record_bytes = missed / number(&router[0], "records_missed");
    assert!(read.abs_diff(missed + wasted) <= 24 * record_bytes, "{line}");
    assert!(read * 10 <= missed * 16 + 24 * 10 * record_bytes, "{line}");
    let part = |what: &str| router[0]["forecast"][what].as_f64().unwrap();
    assert!(part("precision") > 0.0 && part("precision") <= 1.0 && part("recall") > 0.0 && part("recall") <= 1.0);
    // Two layers ahead: whether there is time for it is the machine's matter; it is counted apart.
    let more = [&base[..], &arena, &["--compare", "lookahead=router,router2", "--no-floors"]].concat();
    let [line] = &json_lines(&more)[..] else { panic!() };
    for side in ["a", "b"] {
        let run = &line[side][0];
        assert_eq!(["resident", "ahead", "missed"].map(|kind| number(&run["lookups"], kind)).iter().sum::<u64>(), 2048);
        assert!(run["forecast"]["precision"].as_f64().unwrap() > 0.0, "{line}");
        let early = run["early_forecast"]["recall"].as_f64();
        assert!(early.is_none_or(|part| side == "b" && (0.0..=1.0).contains(&part)), "{line}");
    }
    // The compute floor goes on where the run ended.
    strata(&[&base[..], &["--arena-gb", "0.0017", "--context", "200"]].concat()).fails(1, &["context of 200"]);
    strata(&[&base[..], &["--arena-gb", "0.0017", "--context", "200", "--no-floors"]].concat()).ok();

    let ran = strata(&[&RUN[..], &["--arena-gb", MINI_ARENA]].concat());
    assert!(ran.stderr.contains("% resident") && ran.stderr.contains("% of what was missing]"), "{}", ran.stderr);
}

#[test]
#[cfg(target_os = "linux")]
fn field_report_03_memory_stays_within_the_plan() {
    let dir = tempfile::tempdir().unwrap();
    let (model, _) = small(dir.path());
    let bench = ["bench", "prefill", "--repeat", "1", "--no-floors", "--json"];
    let small = ["-m", arg(&model)];
    for more in [
        &["-n", "500", "--arena-gb", "0.01"][..],
        &["-n", "500", "--precise", "--pass", "4096"],
        &["-n", "2000", "--context", "4096", "--arena-gb", MINI_ARENA, "--io", "buffered"],
        &[&small[..], &["-n", "3000", "--arena-gb", SMALL_ARENA, "--context", "100000"]].concat(),
        &[&small[..], &["-n", "3000", "--arena-gb", SMALL_ARENA, "--precise", "--io", "mmap"]].concat(),
    ] {
        let run = &json_lines(&[&bench[..], more].concat())[0];
        let (peak, plan) = (number(run, "peak_rss_bytes"), number(run, "plan_bytes"));
        assert!(peak <= plan, "{more:?}: {peak} of {plan}");
        // Not because the plan is far too large: more than half of it is what is not counted.
        assert!(plan - (256 << 20) < 2 * peak, "{more:?}: {peak} of {plan}");
    }
}

/// A run of the shipped model in a small arena, with a cache of its own.
fn run_with_cache(cache: &Path) -> Ran {
    let mut run = command(&[&RUN[..], &["--arena-gb", MINI_ARENA]].concat());
    run.env("XDG_CACHE_HOME", cache).stdin(std::process::Stdio::null()).output().unwrap().into()
}

/// Files of a kind that are kept.
fn kept_files(cache: &Path, kind: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(cache.join("strata")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|file| file.extension().unwrap() == kind).collect()
}

/// The one file of usage that is kept, and its counts.
fn kept(cache: &Path) -> (PathBuf, Vec<u32>) {
    let files = kept_files(cache, "usage");
    let [file] = &files[..] else { panic!("{files:?}") };
    let bytes = std::fs::read(file).unwrap();
    // What it is, whose it is, and a number for each of 12 layers of 96 experts.
    let (counts, rest) = bytes[16 + 32..].as_chunks::<4>();
    assert!(bytes.starts_with(b"strata usage 01\n") && (counts.len(), rest.len()) == (12 * 96, 0));
    (file.clone(), counts.iter().map(|count| u32::from_le_bytes(*count)).collect())
}

#[test]
#[cfg(target_os = "linux")]
fn field_report_30_what_was_used_is_kept_for_the_next_run_of_this_model() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path();
    let text = run_with_cache(cache).ok();
    let (file, once) = kept(cache);
    // Each row uses 8 experts of each layer; of the tokens written the last is not read.
    let rows = once[..96].iter().sum::<u32>() / 8;
    assert!(rows > 12 && once.chunks_exact(96).all(|layer| layer.iter().sum::<u32>() == rows * 8), "{rows}");
    assert_eq!(run_with_cache(cache).ok(), text);
    let twice: Vec<u32> = once.iter().map(|count| 2 * count).collect();
    assert_eq!(kept(cache).1, twice, "the second run goes on from what the first one left");

    // What is damaged, or another model's, counts as none, and is replaced.
    let good = std::fs::read(&file).unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] ^= byte;
        bytes
    };
    for (what, bytes) in [
        ("another kind of file", with(3, 1)),
        ("another model", with(20, 1)),
        ("cut off", good[..good.len() - 2].to_vec()),
        ("too few", good[..good.len() - 4].to_vec()),
        ("empty", Vec::new()),
    ] {
        std::fs::write(&file, bytes).unwrap();
        assert_eq!(run_with_cache(cache).ok(), text, "{what}");
        assert_eq!(kept(cache).1, once, "{what}");
    }

    // Where every expert has a slot, no usage is kept; where it cannot be, that is said.
    let other = tempfile::tempdir().unwrap();
    let run = command(&RUN).env("XDG_CACHE_HOME", other.path()).output().unwrap();
    assert_eq!(Ran::from(run).ok(), text);
    assert!(kept_files(other.path(), "usage").is_empty());
    let ran = run_with_cache(&file);
    assert!(ran.stderr.contains("which experts were used is not kept"), "{ran:?}");
    assert_eq!(ran.ok(), text);
}

#[test]
fn field_report_12_55_too_little_memory_is_told_before_anything_is_loaded() {
    for command in [&["run", "hi"][..], &["chat"], &["bench", "prefill"], &["logits", "--ids", "1", "-o", "/dev/null"]]
    {
        let with = |more: &[&str]| strata(&[command, more].concat());
        with(&["--memory-gb", "0.01"]).fails(1, &["does not fit into 0.01 GiB (the memory asked for)", "it needs"]);
        with(&["--arena-gb", "0.0005"]).fails(1, &["an arena of 0.01 GiB is too small", "needs 24 slots"]);
        with(&["--arena-gb", "0.002", "--io-depth", "1000"]).fails(1, &["is too small", "needs 1016 slots"]);
    }
    strata(&["run", "hi", "--arena-gb=-1"]).fails(2, &["--arena-gb"]);
    strata(&["run", "hi", "--io", "carrier-pigeon"]).fails(2, &["--io", "uring"]);
    for depth in ["0", "1025", "x"] {
        strata(&["run", "hi", "--io-depth", depth]).fails(2, &["--io-depth", "from 1 to 1024"]);
        let compare = format!("io-depth=8,{depth}");
        strata(&["bench", "prefill", "--compare", &compare]).fails(2, &[&compare, "io-depth"]);
        let setting = format!("io-depth={depth}");
        strata(&["parity", &setting, "default", "--ids", "1"]).fails(2, &["io-depth"]);
    }
}

#[test]
fn field_report_52_files_that_are_no_models_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let (model, ids) = small(dir.path());
    let whole = std::fs::read(&model).unwrap();
    for cut in [whole.len() / 2, whole.len() - 1] {
        std::fs::write(&model, &whole[..cut]).unwrap();
        let args = ["-m", arg(&model), "--arena-gb", SMALL_ARENA];
        strata(&[&["bench", "prefill", "-n", "9"], &args[..]].concat()).fails(1, &["s.gguf", "cut off"]);
    }
    strata(&["bench", "prefill", "-m", arg(&ids), "--arena-gb", SMALL_ARENA]).fails(1, &["ids", "not a GGUF file"]);
}

#[cfg(unix)]
mod interrupted {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    /// Starts a command, and stops it so long after it has told its plan.
    fn stop_after(args: &[&str], wait: Duration, cache: &Path) -> (Option<i32>, String) {
        let mut run = command(args);
        run.env("XDG_CACHE_HOME", cache).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = run.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut plan = String::new();
        stderr.read_line(&mut plan).unwrap();
        assert!(plan.starts_with("strata: plan: "), "{plan:?}");
        std::thread::sleep(wait);
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        let start = Instant::now();
        let output = child.wait_with_output().unwrap();
        assert!(start.elapsed() < Duration::from_secs(10), "it took {:?}", start.elapsed());
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    }

    #[test]
    fn ctrl_c_ends_loading_and_passes() {
        let dir = tempfile::tempdir().unwrap();
        let long = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17,".repeat(60);
        let run = ["run", "--raw", "--temp", "0", "-n", "100000", "--arena-gb"];
        for wait_ms in [0, 5, 20, 100, 700] {
            let wait = Duration::from_millis(wait_ms);
            let loading = [&run[..], &["0.04", "--io", "buffered", "--io-depth", "1", "a"]].concat();
            assert_eq!(stop_after(&loading, wait, dir.path()).0, Some(130), "{wait_ms}");
            let (code, text) = stop_after(&[&run[..], &[MINI_ARENA, &long]].concat(), wait, dir.path());
            assert!(code == Some(130) && text.trim().is_empty(), "{code:?} {text:?}");
        }
        // The cache is whole, whatever was stopped.
        assert_eq!(run_with_cache(dir.path()).ok(), strata(&RUN).ok());
    }
}
