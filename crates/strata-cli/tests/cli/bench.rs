//! `strata bench` and `--profile`: what is counted and said. How long things take is never looked at.

use serde_json::Value;

use crate::{arg, oracle, strata};

fn json_lines(args: &[&str]) -> Vec<Value> {
    strata(args).ok().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

const TIMING_KEYS: [&str; 38] = [
    "backend",
    "bench",
    "bytes_missed",
    "bytes_read",
    "bytes_wasted",
    "compute_floor_s",
    "context_tokens",
    "drive_floor_s",
    "early_forecast",
    "exposed_wait_s",
    "first_64_tok_s",
    "flops_per_second",
    "flops_per_token",
    "forecast",
    "fraction",
    "hit_rate",
    "lookups",
    "memory_floor_s",
    "ngram_bytes_read",
    "ngram_wait_s",
    "peak",
    "peak_flops_per_second",
    "peak_rss_bytes",
    "plan_bytes",
    "ratio",
    "records_missed",
    "records_read",
    "records_wasted",
    "routes",
    "runs",
    "seconds",
    "seconds_max",
    "seconds_min",
    "steady_tok_s",
    "tok_s",
    "tokens",
    "tokens_per_second",
    "wall_s",
];

/// Multiply-adds of the shape `small` cut to its first layer, Gated DeltaNet, by hand: 256 values in each of 4 streams, rank
/// 32; 4 value heads and 2 key heads of 64; 4 of 32 experts and a shared one of 64.
const SMALL_LAYER: u64 = 256 * (512 + 2 * 256 + 2 * 4) + 2 * 1024 * (2 * 32 + 4) + 256 * 32 + 5 * 3 * 256 * 64;
const SMALL_RECURRENCE: u64 = 3 * 4 * 64 * 64;
const SMALL_LOGITS: u64 = 2 * 1024 * 32 + 256 * 2048;

#[test]
fn a_synthetic_model_is_timed_on_the_ids_it_names() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("s.gguf");
    strata(&["synth", arg(&model), "--shape", "small", "--layers", "1"]).ok();
    let base = ["-m", arg(&model), "--repeat", "2", "--threads", "1", "--json"];
    let [prefill] = &json_lines(&[&["bench", "prefill", "-n", "10"], &base[..]].concat())[..] else {
        panic!("one line")
    };
    assert_eq!(
        (&prefill["bench"], &prefill["tokens"], &prefill["pass_tokens"]),
        (&"prefill".into(), &10.into(), &10.into())
    );
    assert!(prefill["backend"].as_str().unwrap().ends_with("1 thread"), "{prefill}");
    // Logits of the last of ten tokens.
    let flops = 2 * (10 * (SMALL_LAYER + SMALL_RECURRENCE) + SMALL_LOGITS);
    assert_eq!(prefill["flops_per_token"].as_f64(), Some(flops as f64 / 10.0));
    let number = |key: &str| prefill[key].as_f64().unwrap();
    let runs: Vec<f64> =
        prefill["runs"].as_array().unwrap().iter().map(|run| run["wall_s"].as_f64().unwrap()).collect();
    assert!(runs.len() == 2 && (number("wall_s") - (runs[0] + runs[1]) / 2.0).abs() < 1e-9, "the median: {prefill}");
    assert!((number("flops_per_second") * number("wall_s") - flops as f64).abs() < 1.0);
    // Everything is in memory: nothing is read, and the run is its own floor.
    assert_eq!((number("bytes_read"), number("drive_floor_s"), number("ratio")), (0.0, 0.0, 1.0));

    // More tokens than the file names, by far fewer than a context has.
    let many = json_lines(&[&["bench", "prefill", "-n", "9000", "--repeat", "1"], &base[..2], &base[4..]].concat());
    assert_eq!(many[0]["tokens"], 9000);

    let decode = &json_lines(&[&["bench", "decode", "-n", "3", "--context-tokens", "5"], &base[..]].concat())[0];
    assert_eq!(keys(decode), TIMING_KEYS);
    assert_eq!((&decode["tokens"], &decode["context_tokens"]), (&3.into(), &5.into()));
    // All in memory: nothing is missing or forecast, and the run is its own floor.
    let number = |key: &str| decode[key].as_f64().unwrap();
    assert_eq!(
        (number("bytes_missed"), number("bytes_read"), number("hit_rate"), number("ratio")),
        (0.0, 0.0, 1.0, 1.0)
    );
    assert_eq!((number("drive_floor_s"), &decode["forecast"]["recall"]), (0.0, &Value::Null));
    assert!((number("tokens_per_second") * number("seconds") - 3.0).abs() < 1e-9, "{decode}");
    assert!(
        number("tok_s") > 0.0 && number("wall_s") == number("seconds") && number("memory_floor_s") > 0.0,
        "{decode}"
    );
    // Logits of every token.
    let flops = 2 * (SMALL_LAYER + SMALL_RECURRENCE + SMALL_LOGITS);
    assert_eq!(decode["flops_per_token"].as_f64(), Some(flops as f64));
}

#[test]
fn the_shipped_model_is_timed_on_the_shipped_text() {
    let people = strata(&["bench", "decode", "-n", "2", "--context-tokens", "0", "--repeat", "1"]).ok();
    for part in ["decode, 2 tokens, 1 run on cpu", "tok/s", "GFLOP a token"] {
        assert!(people.contains(part), "{part}\n{people}");
    }
    strata(&["bench", "prefill", "-n", "5000", "--repeat", "1"]).fails(1, &["context of 4096", "--context"]);
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text");
    std::fs::write(&text, "A short text.").unwrap();
    let lines = json_lines(&["bench", "prefill", "-n", "40", "--repeat", "1", "--json", "--text", arg(&text)]);
    assert_eq!(lines[0]["tokens"], 40, "a short text is repeated");
    std::fs::write(&text, "").unwrap();
    strata(&["bench", "prefill", "--text", arg(&text)]).fails(1, &["0 tokens"]);
    strata(&["bench", "prefill", "-m", &oracle("mini4", "model-f16.gguf")]).fails(1, &["no tokenizer"]);
}

#[test]
fn two_settings_are_compared() {
    let lines = json_lines(&["bench", "prefill", "-n", "9", "--repeat", "2", "--compare", "strip=4,9", "--json"]);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(line["compare"], serde_json::json!(["strip=4", "strip=9"]));
    assert_eq!((&line["pairs"], &line["interleaved"]), (&2.into(), &true.into()));
    let seconds = |side: &str| -> Vec<f64> {
        line[side].as_array().unwrap().iter().map(|run| run["wall_s"].as_f64().unwrap()).collect()
    };
    let (a, b) = (seconds("a"), seconds("b"));
    let median = (b[0] / a[0] + b[1] / a[1]) / 2.0;
    assert!((line["b_over_a"].as_f64().unwrap() - median).abs() < 1e-9, "{line}");

    let lines =
        json_lines(&["bench", "decode", "-n", "1", "--repeat", "1", "--compare", "isa=portable,auto", "--json"]);
    assert!(lines[0]["backend"].as_str().unwrap().contains("portable float32"), "{lines:?}");
}

#[test]
fn more_tokens_than_any_memory_holds_are_refused() {
    let most = usize::MAX.to_string();
    for args in [&["bench", "prefill", "-n", &most][..], &["bench", "decode", "-n", &most, "--context-tokens", "5"]] {
        let ran = strata(args);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains("tokens in a context of 4096: use less text"), "{}", ran.stderr);
    }
}

/// Calls of an operation in a table, by its name.
fn calls(table: &str, name: &str) -> u64 {
    let line = table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in\n{table}"));
    line[name.len()..].split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_profile_counts_operations_and_changes_nothing() {
    let run = ["run", "--raw", "--temp", "0", "-n", "4", "The files are"];
    let (plain, profiled) = (strata(&run), strata(&[&run[..], &["--profile"]].concat()));
    assert_eq!(plain.stdout, profiled.stdout);
    // One pass for the prompt and one for each token but the last, of twelve layers, three of them attention.
    let table = &profiled.stderr;
    assert_eq!((calls(table, "embed"), calls(table, "head"), calls(table, "n-grams")), (4, 4, 4));
    assert_eq!((calls(table, "mix gdn"), calls(table, "mix qsa")), (4 * 9, 4 * 3));
    assert_eq!((calls(table, "read streams"), calls(table, "write streams")), (4 * 24, 4 * 24));
    assert_eq!((calls(table, "route"), calls(table, "combine")), (4 * 12, 4 * 12));
    assert!(
        calls(table, "experts") >= 4 * 12 && table.contains("host: the rest") && table.contains("\nall "),
        "{table}"
    );
    assert!(!plain.stderr.contains("mix gdn"));

    // Only what is timed: neither the run before nor the prompt of a decode.
    let args = ["bench", "decode", "-n", "3", "--context-tokens", "4", "--repeat", "2", "--profile", "--json"];
    let ran = strata(&args);
    assert_eq!((calls(&ran.stderr, "embed"), calls(&ran.stderr, "mix gdn")), (6, 6 * 9), "{}", ran.stderr);
    ran.ok();
}

#[test]
fn kernels_are_held_against_the_machine() {
    let base = ["bench", "kernels", "--weights-gb", "0.2", "--threads", "1"];
    let lines = json_lines(&[&base[..], &["--filter", "q2_0", "--json"]].concat());
    let of = |value: &Value| (value["kernel"].as_str().unwrap().to_owned(), value["rows"].as_u64().unwrap());
    let kernels: Vec<_> = lines.iter().map(of).collect();
    let expected = [("decode", 0), ("row", 1), ("dense", 512), ("grouped", 24), ("grouped", 128)];
    assert_eq!(kernels, expected.map(|(kernel, rows)| (kernel.to_owned(), rows)));
    for line in &lines {
        let expected = [
            "fraction",
            "gbytes_s",
            "gflops",
            "gweights_s",
            "isa",
            "kernel",
            "peak_gbytes_s",
            "peak_gflops",
            "rows",
            "threads",
            "type",
        ];
        assert_eq!(keys(line), expected);
        assert_eq!((&line["type"], &line["threads"]), (&"Q2_0".into(), &1.into()));
        let number = |key: &str| line[key].as_f64().unwrap();
        // 18 bytes hold 64 weights, each of which meets every row, of experts every row of its own.
        assert!((number("gweights_s") * 18.0 / 64.0 / number("gbytes_s") - 1.0).abs() < 1e-9, "{line}");
        let flops = 2.0 * number("rows") * number("gweights_s");
        assert!((flops - number("gflops")).abs() <= 1e-9 * flops, "{line}");
        let fractions = [number("gflops") / number("peak_gflops"), number("gbytes_s") / number("peak_gbytes_s")];
        assert!((number("fraction") / fractions[0].max(fractions[1]) - 1.0).abs() < 1e-9, "{line}");
    }
    let people = strata(&[&base[..], &["--filter", "row Q8_0", "--isa", "portable"]].concat()).ok();
    for part in ["portable float32, 1 thread\n", "float32 portable", "of limit", "\nrow      Q8_0"] {
        assert!(people.contains(part), "{part}\n{people}");
    }
    assert_eq!(people.lines().filter(|line| line.contains("Q8_0")).count(), 1);
}
