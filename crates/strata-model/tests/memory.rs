//! The numbers for a memory plan, held against models that were really loaded.

mod common;

use std::path::Path;

use common::{data, strata_mini};
use strata_backend::{KvType, RecordingBackend};
use strata_gguf::Gguf;
use strata_model::qwen4exp::{Config, Model, Options, memory_shape};

/// What loading gives to a backend is what the plan counts, but for the factors of experts (three floats each).
#[track_caller]
fn dense_weights_are_counted(path: &Path) {
    let gguf = Gguf::open(path).unwrap();
    let shape = memory_shape(&gguf, &Config::read(&gguf, None).unwrap(), 256, KvType::Bfloat16).unwrap();
    let experts = shape.experts * shape.part_bytes.len() as u64;
    let backend = RecordingBackend::default();
    let recording = backend.recording();
    Model::load(&gguf, Box::new(backend), Options::default()).unwrap();
    let loaded = recording.lock().unwrap().loaded_bytes as u64;
    assert_eq!(shape.dense_bytes, loaded + 12 * experts, "{}", path.display());
}

#[test]
fn dense_weights_are_those_that_are_loaded() {
    dense_weights_are_counted(&strata_mini("strata-mini-iq2xs-q4_0.gguf"));
    for name in ["mini4", "moe8ple", "longqsa"] {
        dense_weights_are_counted(&data(&format!("oracle/{name}/model-f16.gguf")));
    }
}

/// The shipped model by its card: 12 layers of 96 experts of width 64, hidden size 256, top-8; gate and up in IQ2_XS (74
/// bytes for 256 weights), down in Q4_0 (18 for 32); table rows of 32 in IQ4_NL (18 bytes).
#[test]
fn the_numbers_of_the_shipped_model() {
    let gguf = Gguf::open(&strata_mini("strata-mini-iq2xs-q4_0.gguf")).unwrap();
    let shape = memory_shape(&gguf, &Config::read(&gguf, None).unwrap(), 256, KvType::Bfloat16).unwrap();
    assert_eq!((shape.experts, shape.top_k), (96, 8));
    assert_eq!(shape.part_bytes, [[64 * 74, 64 * 74, 256 * 2 * 18]; 12]);
    assert_eq!(shape.ple_row_bytes, 18);
    assert_eq!(shape.room_token_bytes, 4 * (256 + 3 * 64) + 8);
}
