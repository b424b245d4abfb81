//! The numbers for a memory plan, held against models that were really loaded.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{Recorded, data, model, strata_mini};
use strata_backend::{KvType, RecordingBackend};
use strata_gguf::Gguf;
use strata_model::qwen4exp::{Config, DraftHead, Model, Options, Rows, Unobserved, add_draft_head, memory_shape};

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

/// Keys of an open block come and go: a plan counts a full one.
#[test]
fn checkpoints_are_as_large_as_the_plan_says() {
    let path = data("oracle/moe8ple/model-f16.gguf");
    let (gguf, head) = (Gguf::open(&path).unwrap(), Gguf::open(&data("oracle/moe8ple/mtp-q8_0.gguf")).unwrap());
    let head = DraftHead { file: Some(Arc::new(head)), ..DraftHead::default() };
    let config = Config::read(&gguf, None).unwrap();
    let ids = Recorded::open(&data("oracle/moe8ple/reference.safetensors")).u32("prefill.input_ids");
    for draft_head in [None, Some(head)] {
        let mut shape = memory_shape(&gguf, &config, 256, KvType::Float32).unwrap();
        if let Some(head) = &draft_head {
            add_draft_head(&mut shape, &gguf, &config, head, 256, KvType::Float32).unwrap();
        }
        let mut model = model(&path, Options { draft_head, ..Options::default() });
        let mut sequence = model.new_sequence().unwrap();
        let mut largest_bytes = 0;
        for id in &ids[..9] {
            model.forward(&mut sequence, &[*id], Rows::Last, &mut Vec::new(), &mut Unobserved).unwrap();
            largest_bytes = largest_bytes.max(model.checkpoint(&sequence).unwrap().bytes() as u64);
        }
        let blocks_bytes = (config.layers * config.attention.indexer_dim * 4) as u64;
        assert!(largest_bytes <= shape.checkpoint_bytes, "{largest_bytes} of {}", shape.checkpoint_bytes);
        assert!(
            shape.checkpoint_bytes <= largest_bytes + blocks_bytes,
            "{largest_bytes} of {}",
            shape.checkpoint_bytes
        );
    }
}
