//! Recorded routes are those that the model computes.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use strata_engine::sim::{LayerRoutes, Trace};
use strata_engine::trace::{self, Then};
use strata_engine::{Engine, EngineOptions, SamplerParams, Stop, exact};

fn mini4() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../strata-model/tests/data/oracle/mini4/model-f16.gguf")
}

fn engine(pass_tokens: usize, strip_rows: usize) -> Engine {
    let mut options = EngineOptions { pass_tokens: Some(pass_tokens), ..EngineOptions::default() };
    options.model.strip_rows = strip_rows;
    options.model.keep_details = true;
    Engine::open(&mini4(), &options).unwrap()
}

fn record(engine: &mut Engine, ids: &[u32]) -> Trace {
    trace::record(engine, ids, Then::Given(&[]), &Stop::new(false)).unwrap()
}

const IDS: [u32; 20] = [5, 3, 9, 1, 1, 7, 2, 8, 30, 4, 6, 11, 3, 9, 14, 2, 0, 5, 21, 13];

#[test]
fn routes_are_those_of_a_dump() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = engine(100, 6);
    let trace = record(&mut engine, &IDS);
    assert_eq!(trace.strips.iter().map(|strip| strip.rows).collect::<Vec<_>>(), [6, 6, 6, 2]);
    let moe = engine.model().config().moe.clone();
    assert_eq!((trace.experts, trace.top_k), (moe.experts as u32, moe.top_k as u32));
    let out = dir.path().join("dump");
    exact::dump(&mut engine, &IDS, &[], &out, &Stop::new(false)).unwrap();
    for layer in 0..trace.layers as usize {
        let bytes = std::fs::read(out.join(format!("layer{layer:02}.00000000.safetensors"))).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let ids = tensors.tensor("route_ids").unwrap();
        let ids: Vec<_> = ids.data().chunks(4).map(|id| u32::from_le_bytes(id.try_into().unwrap())).collect();
        for (strip, ids) in trace.strips.iter().zip(ids.chunks(6 * moe.top_k)) {
            let routes = &strip.layers[layer];
            assert_eq!(routes.demand, LayerRoutes::count(trace.experts, ids, &[]).demand, "layer {layer}");
            let forecast: u32 = routes.forecast.iter().map(|demand| demand.tokens).sum();
            let is_last = layer + 1 == trace.layers as usize;
            assert_eq!(forecast, if is_last { 0 } else { strip.rows * trace.top_k });
        }
    }
    let mut bytes = Vec::new();
    trace.write(&mut bytes).unwrap();
    assert_eq!(Trace::read(&mut bytes.as_slice()).unwrap(), trace);
}

#[test]
fn passes_do_not_change_what_is_recorded() {
    let whole = record(&mut engine(100, 4), &IDS);
    assert_eq!(record(&mut engine(8, 4), &IDS), whole);
    assert_eq!(whole.passes(8).len(), 3);
    assert!(trace::record(&mut engine(8, 4), &[], Then::Given(&[1]), &Stop::new(false)).is_err());
    assert!(trace::record(&mut engine(8, 4), &IDS, Then::Given(&[]), &Stop::new(true)).unwrap_err().is_cancelled());
}

/// A long recording is not lost at the end of the context.
#[test]
fn what_is_written_ends_with_the_context() {
    let mut options = EngineOptions::default();
    options.model.context_tokens = Some(IDS.len() + 12);
    let mut engine = Engine::open(&mini4(), &options).unwrap();
    let sampling = SamplerParams::default();
    let mut write = |tokens| {
        trace::record(&mut engine, &IDS, Then::Written { tokens, sampling }, &Stop::new(false)).unwrap().decode
    };
    let all = write(usize::MAX);
    assert_eq!(all.len(), 12);
    assert_eq!(write(11), all[..11]);
}

/// Tokens that come one by one have the routes that they have in a prompt, and so have those that the model writes.
#[test]
fn what_comes_after_a_prompt_is_recorded_token_by_token() {
    let stop = Stop::new(false);
    let whole = record(&mut engine(100, 1), &IDS);
    let mut engine = engine(100, 1);
    let split = trace::record(&mut engine, &IDS[..15], Then::Given(&IDS[15..]), &stop).unwrap();
    assert_eq!((&split.strips[..], &split.decode[..]), whole.strips.split_at(15));
    assert_eq!(split.tokens(), 15);

    let written = Then::Written { tokens: 4, sampling: SamplerParams::default() };
    let written = trace::record(&mut engine, &IDS, written, &stop).unwrap();
    assert_eq!((&written.strips, written.decode.len()), (&whole.strips, 4));
    // Greedy: the token of the largest logit of the row before it.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("logits.safetensors");
    let mut ids = IDS.to_vec();
    for _ in 0..4 {
        exact::logits(&mut engine, &ids, &[], &path, &stop).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let values = tensors.tensor("logits").unwrap().data().chunks(4);
        let values: Vec<_> = values.map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect();
        let last = &values[values.len() - engine.model().vocabulary()..];
        let largest = last.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        ids.push(last.iter().position(|logit| *logit == largest).unwrap() as u32);
    }
    assert_eq!(record(&mut engine, &ids).strips[20..], written.decode);
}
