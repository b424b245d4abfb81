//! The draft head against numbers recorded from the reference (`tools/oracle/pack_draft_head.py`), from its own file and
//! from the model's.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{Recorded, data, max_difference, model};
use strata_backend::KvType;
use strata_gguf::{Gguf, GgufWriter, Metadata, NewTensor, Value};
use strata_model::ModelError;
use strata_model::qwen4exp::{
    Config, DraftHead, Model, Options, Rows, Streaming, StreamsNorm, Unobserved, add_draft_head, has_draft_block,
    memory_shape,
};

const LOGITS: f32 = 5e-5;

fn trunk() -> std::path::PathBuf {
    data("oracle/moe8ple/model-f16.gguf")
}

fn head_file() -> Gguf {
    Gguf::open(&data("oracle/moe8ple/mtp-q8_0.gguf")).unwrap()
}

fn ids() -> Vec<u32> {
    Recorded::open(&data("oracle/moe8ple/reference.safetensors")).u32("prefill.input_ids")
}

fn with_head(file: Option<Gguf>, norm: StreamsNorm) -> Options {
    Options { draft_head: Some(DraftHead { file: file.map(Arc::new), norm }), ..Options::default() }
}

/// Takes the text in uneven pieces and looks what the head says behind some of its tokens.
fn compare(model: &mut Model, reading: &str) {
    let (ids, recorded) = (ids(), Recorded::open(&data("oracle/moe8ple/mtp.safetensors")));
    let vocabulary = model.vocabulary();
    let mut sequence = model.new_sequence().unwrap();
    let mut logits = Vec::new();
    let none = model.draft(&mut sequence, ids[0], 3, &mut logits, &mut Unobserved).unwrap();
    assert!(none.is_empty(), "there is nothing to go on from");
    let mut entries = recorded.u32("entries");
    let last = entries.pop().unwrap() as usize;
    assert_eq!(last, ids.len() - 2);
    for (at, entry) in entries.iter().map(|entry| *entry as usize).enumerate() {
        let taken = &ids[sequence.tokens()..=entry];
        model.forward(&mut sequence, taken, Rows::Last, &mut Vec::new(), &mut Unobserved).unwrap();
        logits.clear();
        let drafts = model.draft(&mut sequence, ids[entry + 1], 1, &mut logits, &mut Unobserved).unwrap();
        let want = recorded.f32(&format!("{reading}.logits"))[at * vocabulary..][..vocabulary].to_vec();
        let difference = max_difference(&logits, &want);
        assert!(difference <= LOGITS, "{reading}, entry {entry}: logits differ by {difference}");
        assert!(want.iter().all(|logit| *logit <= want[drafts[0] as usize]));
    }
    // Twice: a draft leaves nothing behind.
    let taken = &ids[sequence.tokens()..=last];
    model.forward(&mut sequence, taken, Rows::Last, &mut Vec::new(), &mut Unobserved).unwrap();
    for _ in 0..2 {
        logits.clear();
        let drafts = model.draft(&mut sequence, ids[last + 1], 4, &mut logits, &mut Unobserved).unwrap();
        assert_eq!(drafts[..3], recorded.u32(&format!("{reading}.chain_tokens")), "{reading}");
        let mut want = recorded.f32(&format!("{reading}.logits")).split_off(entries.len() * vocabulary);
        want.extend(recorded.f32(&format!("{reading}.chain_logits")));
        let difference = max_difference(&logits, &want);
        assert!(difference <= LOGITS, "{reading}, chain: logits differ by {difference}");
    }
    model.free(sequence);
}

#[test]
fn a_head_in_its_own_file_drafts_what_the_reference_does() {
    for (norm, reading) in [(StreamsNorm::One, "one"), (StreamsNorm::Grouped, "grouped")] {
        compare(&mut model(&trunk(), with_head(Some(head_file()), norm)), reading);
        // Its experts stream through the smallest arena; passes and strips are cut.
        let streaming =
            Streaming { slots: Some(16), depth: Some(8), small_table_bytes: Some(0), ..Streaming::default() };
        let cut = Options { pass_tokens: 16, strip_rows: 5, streaming, ..with_head(Some(head_file()), norm) };
        compare(&mut model(&trunk(), cut), reading);
    }
}

/// Writes the trunk and the head, or the head alone with its last read under the trunk's name.
fn write(path: &Path, is_whole: bool) {
    let (trunk, head) = (Gguf::open(&trunk()).unwrap(), head_file());
    let mut metadata = Metadata::new();
    for (key, value) in trunk.metadata().iter() {
        let value = if key == "qwen4exp.block_count" { &Value::U32(9) } else { value };
        metadata.insert(key, value.clone()).unwrap();
    }
    metadata.insert("qwen4exp.nextn_predict_layers", Value::U32(1)).unwrap();
    let rename = |name: &str| match is_whole {
        true => name.to_owned(),
        false => name.replace("blk.8.nextn.hc_head_", "output_hc_"),
    };
    let files = if is_whole { vec![&trunk, &head] } else { vec![&head] };
    let all = || files.iter().flat_map(|gguf| gguf.tensors().map(move |tensor| (gguf, tensor)));
    let new: Vec<_> = all().map(|(_, t)| NewTensor { name: rename(&t.name), dims: t.dims.clone(), ty: t.ty }).collect();
    let mut writer = GgufWriter::create(path, &metadata, &new).unwrap();
    all().for_each(|(gguf, tensor)| writer.write(&gguf.read(tensor).unwrap()).unwrap());
    writer.finish().unwrap();
}

#[test]
fn a_head_in_the_models_file_or_with_the_other_names_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, other) = (dir.path().join("whole.gguf"), dir.path().join("other.gguf"));
    write(&whole, true);
    write(&other, false);
    assert!(has_draft_block(&Gguf::open(&whole).unwrap()) && !has_draft_block(&Gguf::open(&trunk()).unwrap()));
    compare(&mut model(&whole, with_head(None, StreamsNorm::One)), "one");
    compare(&mut model(&trunk(), with_head(Some(Gguf::open(&other).unwrap()), StreamsNorm::Grouped)), "grouped");

    // Not wanted, it is not there.
    let mut without = model(&whole, Options::default());
    let mut sequence = without.new_sequence().unwrap();
    without.forward(&mut sequence, &ids(), Rows::Last, &mut Vec::new(), &mut Unobserved).unwrap();
    assert!(!without.has_draft_head());
    assert!(without.draft(&mut sequence, 1, 3, &mut Vec::new(), &mut Unobserved).unwrap().is_empty());
}

#[test]
fn what_is_no_head_is_refused() {
    let load = |file: Option<Gguf>| {
        let backend = Box::new(strata_backend::RecordingBackend::default());
        let options = with_head(file, StreamsNorm::One);
        Model::load(&Gguf::open(&trunk()).unwrap(), backend, options).err().expect("no head")
    };
    let error = load(None);
    assert!(matches!(&error, ModelError::MissingTensor { name, .. } if name.contains("nextn.eh_proj")), "{error}");
    assert!(error.to_string().contains("no draft head"), "{error}");

    // A head of another model: its matrices do not fit.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("narrow.gguf");
    let halved = |t: &NewTensor| {
        let is_join = t.name.ends_with("eh_proj.weight");
        Some(NewTensor { dims: if is_join { vec![64, 128] } else { t.dims.clone() }, ..t.clone() })
    };
    common::rewrite(&data("oracle/moe8ple/mtp-q8_0.gguf"), &path, |_, value| Some(value.clone()), halved);
    let error = load(Some(Gguf::open(&path).unwrap()));
    assert!(matches!(error, ModelError::Shape { .. }), "{error}");
}

#[test]
fn the_plan_counts_what_a_head_takes() {
    let gguf = Gguf::open(&trunk()).unwrap();
    let config = Config::read(&gguf, None).unwrap();
    let options = with_head(Some(head_file()), StreamsNorm::One);
    let mut shape = memory_shape(&gguf, &config, 256, KvType::Float32).unwrap();
    let before = shape.clone();
    add_draft_head(&mut shape, &gguf, &config, options.draft_head.as_ref().unwrap(), 256, KvType::Float32).unwrap();
    let backend = strata_backend::RecordingBackend::default();
    let recording = backend.recording();
    Model::load(&gguf, Box::new(backend), options).unwrap();
    let loaded = recording.lock().unwrap().loaded_bytes as u64;
    assert_eq!(shape.dense_bytes, loaded + 12 * 9 * 32, "and three factors for each of 32 experts in 9 layers");
    // Gate and up are 16 x 64 in Q8_0, 34 bytes for 32 weights; down is 64 x 16 in float16.
    assert_eq!(shape.part_bytes[8], [16 * 68, 16 * 68, 2048]);
    // Keys and values of two heads of 32.
    assert_eq!(shape.cache_token_bytes - before.cache_token_bytes, 2 * 2 * 32 * 4);
}
