//! A model file as the engine sees it: recommendations, broken arithmetic, and the order of a dump's layers.

use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use strata_engine::{Engine, EngineError, EngineOptions, Limit, Stop, exact};
use strata_gguf::{Gguf, GgufWriter, NewTensor, Value};

fn mini4() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../strata-model/tests/data/oracle/mini4/model-f16.gguf")
}

/// Writes mini4 with more metadata, and with other bytes in one tensor.
fn changed(path: &Path, extra: &[(&str, Value)], tensor: &str, change: impl Fn(&mut Vec<u8>)) {
    let source = Gguf::open(&mini4()).unwrap();
    let mut metadata = source.metadata().clone();
    for (key, value) in extra {
        metadata.insert(*key, value.clone()).unwrap();
    }
    let declared: Vec<_> =
        source.tensors().map(|t| NewTensor { name: t.name.clone(), dims: t.dims.clone(), ty: t.ty }).collect();
    let mut writer = GgufWriter::create(path, &metadata, &declared).unwrap();
    for t in source.tensors() {
        let mut bytes = source.read(t).unwrap();
        if t.name == tensor {
            change(&mut bytes);
        }
        writer.write(&bytes).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn recommended_sampling_is_read_as_writers_store_it() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str, extra: &[(&str, Value)]| {
        let path = dir.path().join(name);
        changed(&path, extra, "", |_| ());
        Engine::open(&path, &EngineOptions::default()).unwrap()
    };
    let defaults = open("a.gguf", &[]).sampling().unwrap();
    assert_eq!((defaults.temperature, defaults.top_k, defaults.top_p, defaults.min_p), (0.8, 40, 0.95, 0.05));

    let extra = [
        ("general.sampling.temp", Value::I32(1)),
        ("general.sampling.top_k", Value::I32(-1)),
        ("general.sampling.top_p", Value::F64(0.5)),
    ];
    let read = open("b.gguf", &extra).sampling().unwrap();
    assert_eq!((read.temperature, read.top_k, read.top_p), (1.0, 0, 0.5));

    // What cannot be read is told when it is asked for, with the file; the model can be used all the same.
    let mut engine = open("c.gguf", &[("general.sampling.top_k", Value::String("many".to_owned()))]);
    let text = engine.sampling().unwrap_err().to_string();
    assert!(text.contains("c.gguf") && text.contains("general.sampling.top_k"), "{text}");
    exact::logits(&mut engine, &[1, 2], &[], &dir.path().join("o.safetensors"), &Stop::new(false)).unwrap();
}

#[test]
fn a_run_of_broken_numbers_is_not_compared() {
    let dir = tempfile::tempdir().unwrap();
    let (broken, record) = (dir.path().join("broken.gguf"), dir.path().join("record.safetensors"));
    let stop = Stop::new(false);
    let mut sound = Engine::open(&mini4(), &EngineOptions::default()).unwrap();
    exact::save_logits(&mut sound, &[1, 2, 3], &record, &stop).unwrap();
    let same = exact::divergence(&mut sound, &record, &stop).unwrap();
    assert_eq!((same.mean_kl, same.max_kl, same.top1_agreement), (0.0, 0.0, 1.0));

    changed(&broken, &[], "output.weight", |bytes| bytes[..2].copy_from_slice(&0x7E00u16.to_le_bytes()));
    let mut broken = Engine::open(&broken, &EngineOptions::default()).unwrap();
    let error = exact::divergence(&mut broken, &record, &stop).unwrap_err();
    assert!(matches!(error, EngineError::NotFinite { position: 0 }), "{error}");
}

#[test]
fn a_dump_needs_an_engine_that_keeps_details() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Engine::open(&mini4(), &EngineOptions::default()).unwrap();
    let error = exact::dump(&mut engine, &[1, 2], &[], &dir.path().join("d"), &Stop::new(false)).unwrap_err();
    assert!(error.to_string().contains("keep_details"), "{error}");
}

/// A dump of one position whose layers hold one value each.
fn write_dump(dir: &Path, layers: &[(usize, f32)]) {
    std::fs::create_dir_all(dir).unwrap();
    let write = |name: &str, tensor: &str, dtype, bytes: &[u8]| {
        let view = TensorView::new(dtype, vec![1], bytes).unwrap();
        std::fs::write(dir.join(name), safetensors::serialize([(tensor, view)], None).unwrap()).unwrap();
    };
    write("ids.safetensors", "ids", Dtype::U32, &7u32.to_le_bytes());
    for (layer, value) in layers {
        write(&format!("layer{layer:02}.00000000.safetensors"), "streams", Dtype::F32, &value.to_le_bytes());
    }
    write("logits.00000000.safetensors", "logits", Dtype::F32, &1f32.to_le_bytes());
}

#[test]
fn layers_are_compared_in_the_order_of_computation() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let layers: Vec<_> = (0..120).map(|layer| (layer, layer as f32)).collect();
    write_dump(&a, &layers);
    let differing: Vec<_> = layers.iter().map(|(l, v)| (*l, if *l >= 20 { v + 1.0 } else { *v })).collect();
    write_dump(&b, &differing);
    let parity = exact::parity(&a, &b).unwrap();
    let names: Vec<_> = parity.layers.iter().map(|layer| layer.name.clone()).collect();
    let want = (0..120).map(|layer| format!("layer{layer:02}")).chain(["logits".to_owned()]);
    assert_eq!(names, want.collect::<Vec<_>>());
    assert_eq!(parity.first.unwrap().layer, "layer20");
}

#[test]
fn an_engine_gives_memory_back_and_writes_the_same() {
    let mini = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/strata-mini/strata-mini-iq2xs-q4_0.gguf");
    let dir = tempfile::tempdir().unwrap();
    let mut engine = Engine::open(&mini, &EngineOptions::default()).unwrap();
    let logits = |engine: &mut Engine| {
        let path = dir.path().join("logits.safetensors");
        let ids: Vec<u32> = (300..360).collect();
        exact::logits(engine, &ids, &[40, 1], &path, &Stop::new(false)).unwrap();
        std::fs::read(path).unwrap()
    };
    let before = logits(&mut engine);
    let plan = engine.plan().clone();
    assert_eq!((plan.slots, plan.limit), (plan.experts, Limit::Nothing));

    // More than there is changes nothing, and neither does too little.
    engine.shrink(plan.arena_bytes + 1).unwrap();
    assert!(matches!(engine.shrink(50 * plan.slot_bytes), Err(EngineError::Model(_))));
    assert_eq!(*engine.plan(), plan);

    engine.shrink(200 * plan.slot_bytes + 1).unwrap();
    let now = engine.plan();
    assert_eq!((now.slots, now.arena_bytes, now.limit), (200, 200 * plan.slot_bytes, Limit::Arena));
    assert_eq!(now.total_bytes(), plan.total_bytes() - plan.arena_bytes + now.arena_bytes);
    assert!(logits(&mut engine) == before, "other bytes");
}

/// Nothing but the loading of experts and the replay of reads is left of a prompt of no tokens.
#[test]
fn a_benchmark_that_is_stopped_where_nobody_looks_does_not_go_on() {
    use strata_engine::bench::Decode;
    let mut options = EngineOptions { arena_bytes: Some(1 << 20), ..EngineOptions::default() };
    options.model.context_tokens = Some(64);
    let mini = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/strata-mini/strata-mini-iq2xs-q4_0.gguf");
    let mut engine = Engine::open(&mini, &options).unwrap();
    let stop = Stop::new(true);
    assert!(engine.warm_up(&[], &stop).unwrap_err().is_cancelled());
    for with_floors in [false, true] {
        assert!(engine.run_prefill(&[], with_floors, &stop).unwrap_err().is_cancelled());
    }
    let nothing = Decode { context: Vec::new(), ids: Vec::new() };
    assert!(engine.run_decode(&nothing, false, &stop).unwrap_err().is_cancelled());
    engine.warm_up(&[1, 2, 3], &Stop::new(false)).unwrap();
}
