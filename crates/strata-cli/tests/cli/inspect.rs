//! `strata inspect`. Expected numbers of the shipped model are those of its card: 12 layers of 96 experts of width 64,
//! hidden size 256, gate and up in IQ2_XS (74 bytes for 256 weights), down in Q4_0 (18 for 32), an n-gram table of
//! 131,584 rows of 32 in IQ4_NL (18 for 32), 79.20 M weights in all.

use serde_json::{Value, json};

use crate::{arg, mini, oracle, strata};

const FILE_BYTES: u64 = 39_976_640;
/// Weights of one of the three projections of all experts.
const PROJECTION_WEIGHTS: u64 = 12 * 96 * 64 * 256;
const EXPERT_BYTES: u64 = 2 * PROJECTION_WEIGHTS / 256 * 74 + PROJECTION_WEIGHTS / 32 * 18;
const TABLE_BYTES: u64 = 131_584 * 18;

fn inspect_json(args: &[&str]) -> Value {
    serde_json::from_str(&strata(&[&["inspect", "--json"], args].concat()).ok()).unwrap()
}

fn sum(list: &Value, key: &str) -> u64 {
    list.as_array().unwrap().iter().map(|entry| entry[key].as_u64().unwrap()).sum()
}

#[test]
fn the_parts_of_the_shipped_model() {
    let path = mini();
    let shown = inspect_json(&[arg(&path)]);
    assert_eq!(shown["files"], json!([{ "path": arg(&path), "bytes": FILE_BYTES }]));
    assert_eq!(shown["expert_bytes"], EXPERT_BYTES);
    assert_eq!(shown["table_bytes"], TABLE_BYTES);

    let all = sum(&shown["tensors"], "bytes");
    let parts = ["expert_bytes", "table_bytes", "dense_bytes"].map(|part| shown[part].as_u64().unwrap());
    assert_eq!((parts.iter().sum::<u64>(), sum(&shown["groups"], "bytes")), (all, all));
    assert!(all < FILE_BYTES);
    let weights = sum(&shown["groups"], "weights");
    assert_eq!((weights as f64 / 1e4).round(), 7920.0, "{weights} weights");

    let metadata = &shown["metadata"];
    assert_eq!(metadata["general.architecture"], "qwen4exp");
    for (key, value) in [("block_count", 12), ("embedding_length", 256), ("expert_count", 96), ("expert_used_count", 8)]
    {
        assert_eq!(metadata[format!("qwen4exp.{key}")], value, "{key}");
    }
    assert_eq!(metadata["tokenizer.ggml.tokens"]["length"], 16384);
}

#[test]
fn tensors_lie_in_the_file_and_apart() {
    let shown = inspect_json(&[]);
    let mut ranges: Vec<(u64, u64)> = shown["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| (t["offset"].as_u64().unwrap(), t["bytes"].as_u64().unwrap()))
        .collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
    }
    let (offset, bytes) = ranges.last().unwrap();
    assert!(offset + bytes <= FILE_BYTES);
}

#[test]
fn the_table_shows_the_same_numbers() {
    let table = strata(&["inspect"]).ok();
    for part in [format!("({EXPERT_BYTES} bytes)"), format!("({TABLE_BYTES} bytes)"), "40.0 MB".into(), "IQ2_XS".into()]
    {
        assert!(table.contains(&part), "{part}\n{table}");
    }
    assert!(!table.contains("blk.0."), "{table}");
    let tensors = strata(&["inspect", "--tensors"]).ok();
    assert_eq!(tensors.matches("ffn_gate_exps.weight").count(), 12);
    // A vocabulary is shown by its beginning.
    assert!(table.lines().all(|line| line.len() < 2_000));
}

#[test]
fn a_model_without_n_gram_table() {
    let shown = inspect_json(&[&oracle("mini4", "model-f16.gguf")]);
    assert_eq!((shown["table_bytes"].as_u64(), shown["files"][0]["bytes"].as_u64()), (Some(0), Some(982_976)));
}

/// A file can name its keys as it likes; it cannot move the cursor of a terminal.
#[test]
fn names_in_a_file_are_shown_without_control_characters() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("odd.gguf");
    let model = std::fs::read(mini()).unwrap();
    let key = b"general.basename";
    let at = model.windows(key.len()).position(|window| window == key).unwrap();
    let mut odd = model.clone();
    odd[at..at + key.len()].copy_from_slice(b"general\x1b[2Jename");
    std::fs::write(&path, odd).unwrap();
    let table = strata(&["inspect", arg(&path)]).ok();
    assert!(table.contains("general\\u{1b}[2Jename") && !table.contains('\x1b'), "{table}");
}
