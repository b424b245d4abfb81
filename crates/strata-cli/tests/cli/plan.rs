//! `strata plan`: sums, advice that works, and what is refused. Sizes of the shipped model are those of its card: 12
//! layers of 96 experts of width 64, hidden size 256; gate and up in IQ2_XS (74 bytes for 256 weights), down in Q4_0 (18
//! for 32).

use serde_json::Value;

use crate::{arg, oracle, strata};

const GIB: f64 = (1u64 << 30) as f64;
/// Pages of the three parts of a record (4,736 and 9,216 bytes: two and three pages), and one more for each.
const SLOT_BYTES: u64 = (3 + 3 + 4) * 4096;
/// What is not counted: 256 MiB, and 4 MiB a thread.
const RESERVE_BYTES: u64 = 256 << 20;

fn plan(args: &[&str]) -> Value {
    serde_json::from_str(&strata(&[&["plan", "--json"], args].concat()).ok()).unwrap()
}

fn number(plan: &Value, key: &str) -> u64 {
    plan[key].as_u64().unwrap_or_else(|| panic!("{key} of {plan}"))
}

#[track_caller]
fn parts_sum_up(plan: &Value) {
    let parts = ["dense", "state", "cache", "workspace", "ple", "reserve", "arena"];
    let sum: u64 = parts.iter().map(|part| number(plan, &format!("{part}_bytes"))).sum();
    assert_eq!(sum, number(plan, "plan_bytes"), "{plan}");
    assert!(plan["budget_bytes"].as_u64().is_none_or(|budget| sum <= budget), "{plan}");
    assert_eq!(number(plan, "slots") * number(plan, "slot_bytes"), number(plan, "arena_bytes"), "{plan}");
}

#[test]
fn the_shipped_model_is_resident() {
    let shown = plan(&[]);
    parts_sum_up(&shown);
    assert_eq!(number(&shown, "experts"), 12 * 96);
    assert_eq!((number(&shown, "slots"), shown["limit"].as_str()), (12 * 96, Some("nothing")));
    assert_eq!((number(&shown, "slot_bytes"), number(&shown, "areas")), (SLOT_BYTES, 1));
    // Two times top-8, and 8 experts on their way.
    assert_eq!(number(&shown, "smallest_slots"), 2 * 8 + 8);
    assert_eq!(number(&plan(&["--io-depth", "32"]), "smallest_slots"), 2 * 8 + 32);
    let inspected: Value = serde_json::from_str(&strata(&["inspect", "--json"]).ok()).unwrap();
    // Three factors for each expert come to the dense weights, and 4 x 1,024 taps that the file has in F16 become float32.
    let dense = number(&inspected, "dense_bytes") + 12 * 12 * 96 + 2 * 4 * 1024;
    assert_eq!(number(&shown, "dense_bytes"), dense);
    assert!(shown["prompts"].as_array().unwrap().iter().all(|prompt| prompt["expert_bytes"] == 0));
    assert!(number(&shown, "reserve_bytes") > RESERVE_BYTES);
}

#[test]
fn limits_are_kept_and_said() {
    let arena = plan(&["--arena-gb", "0.01", "--context", "2000", "--pass", "100", "--drive-gb", "2"]);
    parts_sum_up(&arena);
    let slots = (0.01 * GIB) as u64 / SLOT_BYTES;
    assert_eq!((number(&arena, "slots"), arena["limit"].as_str()), (slots, Some("arena")));
    assert_eq!((number(&arena, "context_tokens"), number(&arena, "pass_tokens")), (2000, 100));
    // The drive reads 2 GiB a second; only prompts that fit into the context are told.
    let prompts = arena["prompts"].as_array().unwrap();
    assert_eq!(prompts.len(), 1);
    let prompt = &prompts[0];
    assert_eq!((number(prompt, "tokens"), number(prompt, "passes")), (1024, 11));
    let seconds = (number(prompt, "expert_bytes") + number(prompt, "ple_bytes")) as f64 / 2.0 / GIB;
    assert!((prompt["drive_s"].as_f64().unwrap() - seconds).abs() < 1e-6, "{prompt} {seconds}");

    let short = plan(&["--context", "1000", "--precise"]);
    let long = plan(&["--context", "2000", "--precise"]);
    assert_eq!(2 * number(&short, "cache_bytes"), number(&long, "cache_bytes"));
}

/// Three of the shipped model's layers attend, with 2 key/value heads of 64; the indexer keeps a key of 64 for 8 tokens.
#[test]
fn a_long_context_by_what_keys_and_values_are_kept_in() {
    // In Q8_0 four tokens of a head have 256 codes and a line of 64 bytes for the scales.
    for (kv, head_bytes) in [("f32", 64 * 4), ("bf16", 64 * 2), ("q8_0", (256 + 64) / 4)] {
        let shown = plan(&["--context", "262144", "--kv", kv]);
        parts_sum_up(&shown);
        assert_eq!(number(&shown, "cache_bytes"), 262_144 * 3 * (2 * 2 * head_bytes + 64 * 4 / 8), "{kv}");
    }
    assert_eq!(plan(&["--precise"])["cache_bytes"], plan(&["--kv", "f32"])["cache_bytes"]);
    assert_eq!(plan(&["--isa", "portable"])["cache_bytes"], plan(&["--kv", "f32"])["cache_bytes"]);
    strata(&["plan", "--kv", "q4_0"]).fails(2, &["q4_0", "f32, bf16, q8_0"]);
}

/// What an error says is enough is enough, and less is not.
#[test]
fn errors_give_advice_that_works() {
    let ran = strata(&["plan", "--memory-gb", "0.2"]);
    let needed = ran.stderr.split("it needs ").nth(1).unwrap().split(" GiB").next().unwrap().to_owned();
    ran.fails(1, &["a context of 4096 tokens", "does not fit into 0.20 GiB (the memory asked for)"]);
    let enough = plan(&["--memory-gb", &needed]);
    parts_sum_up(&enough);
    assert!(number(&enough, "slots") < 12 * 96 && enough["limit"] == "memory", "{enough}");
    let less = format!("{:.2}", needed.parse::<f64>().unwrap() - 0.01);
    strata(&["plan", "--memory-gb", &less]).fails(1, &[&format!("it needs {needed} GiB")]);

    strata(&["plan", "--arena-gb", "0.0005"]).fails(1, &["an arena of 0.01 GiB is too small", "needs 24 slots"]);
    let most = "18446744073709551615";
    strata(&["plan", "--context", most]).fails(1, &["no memory would be enough"]);
    strata(&["plan", "--context", most, "--strip", most, "--pass", most]).fails(1, &["no memory would be enough"]);
    strata(&["plan", "-m", "no-such.gguf"]).fails(1, &["no-such.gguf"]);
    if plan(&[])["budget_bytes"].is_number() {
        strata(&["plan", "--memory-gb", "1000000"]).fails(1, &["1000000.00 GiB of memory were asked for, but"]);
        strata(&["plan", "--context", "100000000"]).fails(1, &["or a context of at most"]);
    }
}

#[test]
fn a_synthetic_model_and_one_without_n_gram_table() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("s.gguf");
    strata(&["synth", arg(&model), "--shape", "small"]).ok();
    let shown = plan(&["-m", arg(&model), "--arena-gb", "0.004"]);
    parts_sum_up(&shown);
    // 4 layers of 32 experts of 64 by 256: at most 5,248 bytes (IQ2_S) twice and 4,608 (Q2_0), of two pages and one more.
    assert_eq!((number(&shown, "experts"), number(&shown, "slot_bytes")), (128, 9 * 4096));
    assert_eq!(number(&shown, "slots"), (0.004 * GIB) as u64 / (9 * 4096));
    let none = plan(&["-m", &oracle("mini4", "model-f16.gguf")]);
    parts_sum_up(&none);
    assert_eq!(number(&none, "ple_bytes"), 0);
}

#[test]
fn people_read_the_same() {
    let table = strata(&["plan", "--arena-gb", "0.01", "--drive-gb", "1"]).ok();
    let shown = plan(&["--arena-gb", "0.01", "--drive-gb", "1"]);
    let slots = number(&shown, "slots");
    for part in [
        format!("{slots} of 1152 experts"),
        format!("slots of {SLOT_BYTES} bytes"),
        format!("{:.3}  {slots}", number(&shown, "arena_bytes") as f64 / GIB),
        "4096 tokens of context".to_owned(),
        format!("{:.2}\n", shown["prompts"][0]["drive_s"].as_f64().unwrap()),
    ] {
        assert!(table.contains(&part), "{part}\n{table}");
    }
    assert!(!strata(&["plan"]).ok().contains("of 1152"));
}
