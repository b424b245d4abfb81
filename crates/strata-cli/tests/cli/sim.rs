//! `strata sim` and `strata trace`: recorded and made-up routes in virtual time.

use serde_json::Value;

use crate::{arg, strata};

fn json_lines(args: &[&str]) -> Vec<Value> {
    strata(args).ok().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn run(args: &[&str]) -> Value {
    json_lines(&[&["sim", "--json"], args].concat()).remove(0)
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("{key} of {value}"))
}

#[test]
fn without_flags_the_reference_is_shown() {
    let lines = json_lines(&["sim", "--json"]);
    assert_eq!(lines.len(), 7 + 8);
    for line in &lines[..7] {
        let measured: Vec<_> = line["measured_s"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();
        let middle = (measured[0] + measured[1]) / 2.0;
        assert!((number(line, "wall_s") / middle - 1.0).abs() < 0.1, "{line}");
    }
    let table = strata(&["sim"]).ok();
    for part in ["before    1024   1024  4.016 - 4.521", "after     2048   2048          5.980", "8192 tokens"] {
        assert!(table.contains(part), "{part}\n{table}");
    }
    assert!(table.contains(&format!("{:.3}", number(&lines[1], "wall_s"))), "{table}");
}

/// Three layers of four experts that are all used, one GiB a second, no latency: by hand.
#[test]
fn a_run_follows_its_flags() {
    let flags = "--arena-share 0.5 --layers 3 --experts 4 --top-k 4 --tokens 8 --record-bytes 1048576 --drive-gb-s 1 --latency-us 0 --depth 1 \
        --hot-share 0 --mixer-ms 128 --layer-ms 2 --expert-us 100 --expert-row-us 50 --prompt-ms 7 \
        --ple-ms 0 --lookahead off";
    let flags: Vec<_> = flags.split_whitespace().collect();
    strata(&[&["sim"], &flags[..]].concat())
        .fails(1, &["the arena has 6 slots; at least 9 are needed", "--arena-share"]);
    let flags = [&["--arena-share", "1"], &flags[2..]].concat();
    let report = run(&flags);
    let (mixer_ms, read_ms, expert_ms) = (128.0 * 8.0 / 1024.0 + 2.0, 1000.0 / 1024.0, 0.1 + 8.0 * 0.05);
    // An expert is computed while the next is read.
    let wall_s = (3.0 * (mixer_ms + 4.0 * read_ms + expert_ms) + 7.0) / 1e3;
    assert!((number(&report, "wall_s") - wall_s).abs() < 1e-6, "{report} {wall_s}");
    let wait_for_all = run(&[&flags[..], &["--wait-for-all"]].concat());
    let wall_s = wall_s + 3.0 * 3.0 * expert_ms / 1e3;
    assert!((number(&wait_for_all, "wall_s") - wall_s).abs() < 1e-6, "{wait_for_all} {wall_s}");
    assert_eq!(number(&report, "lookups_missed"), 12.0);
    assert_eq!(number(&report, "read_bytes"), 12.0 * f64::from(1 << 20));
    assert!((number(&report, "drive_floor_s") - 12.0 * read_ms / 1e3).abs() < 1e-6);

    // Eternities are no failure.
    run(&["--mixer-ms", "1e6", "--drive-gb-s", "1e-6", "--record-bytes", "1099511627776", "--latency-us", "1e6"]);

    // But routes must fit into memory.
    for huge in [
        &["--tokens", "1048576", "--layers", "1024", "--experts", "4096"][..],
        &["--tokens", "1048576", "--strip", "1"],
    ] {
        strata(&[&["sim"], huge].concat()).fails(2, &["do not fit into memory", "--tokens", "--strip"]);
    }

    let shown = strata(&[&["sim"], &flags[..]].concat()).ok();
    assert!(shown.contains("prompt         8 tokens in 1 pass\n") && shown.contains("100.0 % missed"), "{shown}");
}

#[test]
fn lookahead_pays_and_longer_passes_read_less() {
    // Of few layers, the hot set must leave room for two.
    let base = ["--tokens", "2048", "--layers", "8", "--arena-share", "0.4", "--hot-share", "0.3", "--seed", "3"];
    let off = run(&[&base[..], &["--lookahead", "off"]].concat());
    let profile = run(&[&base[..], &["--lookahead", "profile", "--ahead-cap", "256"]].concat());
    let router = run(&base);
    for report in [&profile, &router] {
        assert!(number(&off, "wall_s") > number(report, "wall_s"), "{off} {report}");
        assert!(number(&off, "lookups_missed") > number(report, "lookups_missed"), "{off} {report}");
    }
    assert_eq!(number(&off, "passes"), 2.0);
    let long = run(&[&base[..], &["--pass", "2048"]].concat());
    assert!(number(&long, "read_bytes") < 0.7 * number(&router, "read_bytes"), "{long} {router}");
}

#[test]
fn recorded_routes_are_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let (text, other) = (dir.path().join("text.routes"), dir.path().join("other.routes"));
    let ran = strata(&["trace", "record", "--limit", "70", "--strip", "16", "-o", arg(&text)]);
    assert!(ran.stderr.contains("routes of 70 tokens in 12 layers"), "{ran:?}");
    strata(&["trace", "record", "--ids", "1,2,3", "-o", arg(&other)]).ok();
    let machine = ["--trace", arg(&text), "--record-bytes", "14000", "--ple-ms", "1"];
    let short = run(&[&machine[..], &["--pass", "16"]].concat());
    assert_eq!((number(&short, "tokens"), number(&short, "passes")), (70.0, 5.0));
    let long = run(&[&machine[..], &["--pass", "1000"]].concat());
    assert_eq!(number(&long, "passes"), 1.0);
    let lookups =
        |report: &Value| ["resident", "ahead", "missed"].map(|kind| number(report, &format!("lookups_{kind}")));
    // Twelve layers of 96 experts, of which a token uses eight.
    let distinct: f64 = lookups(&long).iter().sum();
    assert!((96.0..=1152.0).contains(&distinct) && distinct < lookups(&short).iter().sum(), "{long} {short}");
    let profile = [&machine[..], &["--lookahead", "profile"]].concat();
    strata(&[&["sim"], &profile[..]].concat()).fails(2, &["--profile"]);
    run(&[&profile[..], &["--profile", arg(&other), "--hot", "ranking"]].concat());

    std::fs::write(&other, b"STRATART\x01\x00").unwrap();
    strata(&["sim", "--trace", arg(&other)]).fails(1, &["other.routes", "at offset 9, the number of layers is 0"]);
    strata(&["sim", "--trace", "no-such-file"]).fails(1, &["no-such-file"]);
    let (small, model) = (dir.path().join("small.routes"), dir.path().join("s.gguf"));
    strata(&["synth", arg(&model), "--shape", "small"]).ok();
    strata(&["trace", "record", "-m", arg(&model), "--limit", "5", "-o", arg(&small)]).ok();
    strata(&[&["sim"], &machine[..], &["--profile", arg(&small)]].concat()).fails(1, &["12 layers of 96 experts"]);
}

#[test]
fn single_tokens_are_replayed_through_caches() {
    let dir = tempfile::tempdir().unwrap();
    let (single, text) = (dir.path().join("single.routes"), dir.path().join("text.routes"));
    let ran = strata(&["trace", "record", "--limit", "70", "--decode", "40", "-o", arg(&single)]);
    assert!(ran.stderr.contains("routes of 30 tokens and 40 after them in 12 layers"), "{ran:?}");
    let lines = json_lines(&["trace", "replay", arg(&single), "--json"]);
    let best = &lines[0];
    for line in &lines {
        // 30 % of 12 layers of 96 experts; a token uses eight of each.
        assert_eq!(number(line, "slots"), 346.0);
        assert_eq!(number(line, "hits") + number(line, "misses"), 40.0 * 96.0, "{line}");
        assert!(number(line, "hits") <= number(best, "hits"), "{line}");
        let layers: f64 = line["layers"].as_array().unwrap().iter().map(|layer| number(layer, "hits")).sum();
        assert_eq!(layers, number(line, "hits"));
        let first = number(&line["first"], "hits") + number(&line["first"], "misses");
        assert_eq!(first, 40.0 * 96.0, "all are among the first 64");
    }
    assert!(number(best, "hits") > number(&lines[1], "hits"), "{best} {}", lines[1]);
    let shown = strata(&["trace", "replay", arg(&single), "--slots", "200", "--layers"]).ok();
    assert!(shown.starts_with("200 of 1152 experts (17.4 %) in memory; 40 tokens after a text of 30\n"), "{shown}");
    assert!(shown.contains("\nthe arena ") && shown.contains("\nhits in each layer, %\n"), "{shown}");

    let ran = strata(&["trace", "record", "--limit", "20", "--write", "3", "-o", arg(&text)]);
    assert!(ran.stderr.contains("routes of 20 tokens and 3 after them"), "{ran:?}");
    let with_profile = json_lines(&["trace", "replay", arg(&single), "--profile", arg(&text), "--json"]);
    assert_eq!(number(&with_profile[0], "hits"), number(best, "hits"));
    assert_ne!(number(&with_profile[1], "hits"), number(&lines[1], "hits"));

    strata(&["trace", "record", "--limit", "20", "-o", arg(&text)]).ok();
    strata(&["trace", "replay", arg(&text)]).fails(1, &["text.routes", "--decode or --write"]);
    strata(&["trace", "replay", arg(&single), "--slots", "16"]).fails(1, &["at least 17 are needed", "--share"]);
}
