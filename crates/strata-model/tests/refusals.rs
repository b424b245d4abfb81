//! Files that are no model of the architecture are refused with the name of what is wrong, what was expected and what is
//! there; odd but usable files are used.

mod common;

use common::{Recorded, data, logits, max_difference, rewrite};
use strata_backend::{CpuBackend, Isa};
use strata_gguf::{Array, Gguf, NewTensor, Value};
use strata_model::ModelError;
use strata_model::qwen4exp::{MixerKind, Model, Options};
use tempfile::TempDir;

fn load(path: &std::path::Path, options: Options) -> Result<Model, ModelError> {
    Model::load(&Gguf::open(path).unwrap(), Box::new(CpuBackend::precise(Isa::best(), 1).unwrap()), options)
}

/// Loads `oracle/NAME` with changes.
fn changed(
    name: &str,
    metadata: impl Fn(&str, &Value) -> Option<Value>,
    tensors: impl Fn(&NewTensor) -> Option<NewTensor>,
) -> Result<(Model, TempDir), ModelError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("changed.gguf");
    rewrite(&data(&format!("oracle/{name}/model-f16.gguf")), &path, metadata, tensors);
    load(&path, Options::default()).map(|model| (model, dir))
}

fn same_metadata(_: &str, value: &Value) -> Option<Value> {
    Some(value.clone())
}

fn same_tensors(tensor: &NewTensor) -> Option<NewTensor> {
    Some(tensor.clone())
}

#[test]
fn every_required_key_is_named_when_it_is_missing() {
    let source = Gguf::open(&data("oracle/moe8ple/model-f16.gguf")).unwrap();
    // The model does not depend on these: names and notes, the tokenizer, and keys with a stated default.
    let optional = |key: &str| {
        key.starts_with("tokenizer.")
            || (key.starts_with("general.") && key != "general.architecture")
            || [
                "rope.dimension_sections",
                "full_attention_interval",
                "vocab_size",
                "attention.compress_ratios",
                "ple.layers",
            ]
            .iter()
            .any(|known| key.ends_with(known))
    };
    let mut required = 0;
    for (left_out, _) in source.metadata().iter() {
        let result = changed("moe8ple", |key, value| (key != left_out).then(|| value.clone()), same_tensors);
        if optional(left_out) {
            assert!(result.is_ok(), "{left_out} is optional: {}", result.err().unwrap());
        } else {
            let error = result.err().unwrap_or_else(|| panic!("{left_out} was not missed")).to_string();
            assert!(error.contains(&format!("`{left_out}`")) && error.contains("missing"), "{left_out}: {error}");
            required += 1;
        }
    }
    assert!(required >= 30, "only {required} keys are required");
}

#[test]
fn every_tensor_is_named_when_it_is_missing_or_has_another_shape() {
    for name in ["mini4", "moe8ple"] {
        let source = Gguf::open(&data(&format!("oracle/{name}/model-f16.gguf"))).unwrap();
        for tensor in source.tensors() {
            let with = |change: &dyn Fn(&NewTensor) -> Option<NewTensor>| {
                let keep = |t: &NewTensor| if t.name == tensor.name { change(t) } else { Some(t.clone()) };
                changed(name, same_metadata, keep).err().map(|error| error.to_string())
            };
            let error = with(&|_| None);
            if tensor.name != "output.weight" {
                let error = error.unwrap_or_else(|| panic!("{} was not missed", tensor.name));
                assert!(error.contains(&format!("tensor `{}` is missing", tensor.name)), "{error}");
            }
            // The same data in other dimensions, and of another length.
            let mut dims = tensor.dims.clone();
            dims[0] *= 2;
            let grown = dims.clone();
            if dims.len() > 1 && dims[1].is_multiple_of(2) {
                dims[1] /= 2;
                let error = with(&|t| Some(NewTensor { dims: dims.clone(), ..t.clone() }));
                // A list of values may be divided into dimensions in any way.
                if !tensor.name.contains("norm") && !tensor.name.contains("gate_inp_shexp") {
                    let error = error.unwrap_or_else(|| panic!("{} {dims:?} was taken", tensor.name));
                    assert!(error.contains(&format!("tensor `{}`", tensor.name)), "{error}");
                    assert!(error.contains(&format!("got {dims:?}")), "{error}");
                }
            }
            assert_ne!(grown, tensor.dims);
        }
    }
}

#[test]
fn values_that_cannot_be_are_refused_by_name() {
    let cases: [(&str, Value, &str); 25] = [
        ("general.architecture", Value::String("llama".to_owned()), "`llama` is not supported"),
        ("qwen4exp.block_count", Value::U32(0), "expected a size"),
        ("qwen4exp.block_count", Value::U32(1 << 24), "expected 1 to 4096"),
        ("qwen4exp.block_count", Value::String("many".to_owned()), "expected"),
        ("qwen4exp.embedding_length", Value::U32(u32::MAX), "expected a size"),
        ("qwen4exp.embedding_length", Value::I32(-64), "expected"),
        ("qwen4exp.ssm.state_size", Value::U32(1 << 15), "from 1 to 4096"),
        ("qwen4exp.ssm.conv_kernel", Value::U32(9), "from 1 to 8"),
        ("qwen4exp.ple.conv_kernel", Value::U32(9), "from 1 to 8"),
        ("qwen4exp.expert_used_count", Value::U32(1025), "from 1 to 1024"),
        ("qwen4exp.expert_feed_forward_length", Value::Array(Array::U32(vec![32, 64])), "different ones"),
        ("qwen4exp.expert_used_count", Value::U32(33), "33 experts a token of only 32"),
        ("qwen4exp.expert_count", Value::U32(1 << 20), "in each of 8 layers: at most 4194304 in all"),
        ("qwen4exp.attention.head_count_kv", Value::U32(5), "not a multiple of 5"),
        ("qwen4exp.attention.value_length", Value::U32(16), "differs from the key length"),
        ("qwen4exp.rope.dimension_count", Value::U32(7), "expected an even number"),
        ("qwen4exp.rope.dimension_count", Value::U32(64), "expected an even number up to 16"),
        ("qwen4exp.rope.freq_base", Value::F32(f32::NAN), "expected a number above 0"),
        ("qwen4exp.attention.layer_norm_rms_epsilon", Value::F32(-1.0), "expected a number above 0"),
        ("qwen4exp.ssm.inner_size", Value::U32(12), "value heads of 32"),
        ("qwen4exp.hyper_connection.count", Value::U32(1000), "at most 64"),
        ("qwen4exp.ple.layers", Value::Array(Array::I32(vec![8])), "one layer below 8"),
        ("qwen4exp.ple.layer_multipliers", Value::Array(Array::U64(vec![1])), "expected 3 numbers, got 1"),
        ("qwen4exp.ple.head_offsets", Value::Array(Array::U64(vec![u64::MAX; 8])), "head 0 uses"),
        ("qwen4exp.attention.compress_ratios", Value::Array(Array::I32(vec![0, 0, 0, 4])), "expected 8 numbers, got 4"),
    ];
    for (key, bad, expected) in cases {
        let with = |k: &str, value: &Value| Some(if k == key { bad.clone() } else { value.clone() });
        let error = changed("moe8ple", with, same_tensors).err().unwrap_or_else(|| panic!("{key} {bad:?} was taken"));
        let text = error.to_string();
        let names_key = matches!(error, ModelError::Architecture(_)) || text.contains(&format!("`{key}`"));
        // Heads are checked where they divide something: the message names the whole.
        assert!(names_key || key.ends_with("head_count_kv"), "{key}: {text}");
        assert!(text.contains(expected), "{key} {bad:?}: {text}");
    }
}

/// Spec 2, "Defect to expect": converters that write zeros for the block sizes.
#[test]
fn lost_block_sizes_are_repaired_with_a_warning_and_can_be_overridden() {
    let key = "qwen4exp.attention.compress_ratios";
    for lost in [None, Some(Value::Array(Array::I32(vec![0; 8])))] {
        let with = |k: &str, value: &Value| if k == key { lost.clone() } else { Some(value.clone()) };
        let (mut model, dir) = changed("longqsa", with, same_tensors).unwrap();
        let warnings = &model.config().warnings;
        assert!(warnings.len() == 1 && warnings[0].contains(key) && warnings[0].contains("4 tokens"), "{warnings:?}");
        // The repaired model computes what the intact one does, well past the selection budget.
        let recorded = Recorded::open(&data("oracle/longqsa/reference.safetensors"));
        let ids = recorded.u32("prefill.input_ids");
        let mut sequence = model.new_sequence().unwrap();
        let got = logits(&mut model, &mut sequence, &ids, &[ids.len()]);
        assert!(max_difference(&got, &recorded.f32("prefill.logits")) <= 5e-5);

        // 0 = attend to everything, as the file says.
        let dense = Options { block_tokens: Some(0), ..Options::default() };
        let mut model = load(&dir.path().join("changed.gguf"), dense).unwrap();
        assert!(model.config().warnings.is_empty());
        assert_eq!(model.config().mixers[3], MixerKind::Qsa { block_tokens: 0 });
        let mut sequence = model.new_sequence().unwrap();
        let dense = logits(&mut model, &mut sequence, &ids, &[ids.len()]);
        let vocabulary = model.vocabulary();
        // Equal while everything fits the budget (8 blocks of 4 and a tail), different after.
        assert!(max_difference(&dense[..35 * vocabulary], &got[..35 * vocabulary]) <= 5e-5);
        assert!(max_difference(&dense[150 * vocabulary..], &got[150 * vocabulary..]) > 1e-2);
    }
    let (model, _dir) = changed("longqsa", same_metadata, same_tensors).unwrap();
    assert!(model.config().warnings.is_empty());
}

#[test]
fn norms_may_be_divided_into_dimensions_in_any_way() {
    let split = |t: &NewTensor| {
        let mut t = t.clone();
        if t.name.contains("hc_attn_norm") {
            t.dims = vec![t.dims[0] / 4, 4];
        } else if t.name.contains("ffn_gate_inp_shexp") {
            t.dims = vec![t.dims[0], 1];
        }
        Some(t)
    };
    let (mut model, _dir) = changed("mini4", same_metadata, split).unwrap();
    let recorded = Recorded::open(&data("oracle/mini4/reference.safetensors"));
    let ids = recorded.u32("prefill.input_ids");
    let mut sequence = model.new_sequence().unwrap();
    let got = logits(&mut model, &mut sequence, &ids, &[ids.len()]);
    assert!(max_difference(&got, &recorded.f32("prefill.logits")) <= 5e-5);
}

#[test]
fn a_draft_head_alone_is_no_model() {
    let only_draft = |t: &NewTensor| (!t.name.starts_with("blk.")).then(|| t.clone());
    let error = changed("mini4", same_metadata, only_draft).err().unwrap().to_string();
    assert!(error.contains("blk.0.") && error.contains("draft head"), "{error}");
}

#[test]
fn what_cannot_go_on_says_so_and_leaves_the_model_usable() {
    use strata_model::qwen4exp::{Rows, Unobserved};
    let options = Options { context_tokens: Some(20), ..Options::default() };
    let mut model = load(&data("oracle/mini4/model-f16.gguf"), options).unwrap();
    let mut sequence = model.new_sequence().unwrap();
    let mut out = Vec::new();
    let mut forward = |model: &mut Model, ids: &[u32]| {
        out.clear();
        model.forward(&mut sequence, ids, Rows::Last, &mut out, &mut Unobserved).map_err(|error| error.to_string())
    };
    assert_eq!(forward(&mut model, &[1; 21]).unwrap_err(), "the context is full: 21 tokens in a context of 20");
    assert_eq!(forward(&mut model, &[1, 256]).unwrap_err(), "token id 256 is not in the model's vocabulary of 256 ids");
    // Neither touched the sequence.
    forward(&mut model, &[1; 20]).unwrap();
    assert_eq!(forward(&mut model, &[1]).unwrap_err(), "the context is full: 21 tokens in a context of 20");
}

/// A file is untrusted wherever its bytes come from: flipped bytes give an error or a model that runs, never a panic.
#[test]
fn flipped_bytes_never_panic() {
    use strata_model::qwen4exp::{Rows, Unobserved};
    let sound = std::fs::read(data("oracle/moe8ple/model-f16.gguf")).unwrap();
    let header_bytes = sound.len()
        - Gguf::open(&data("oracle/moe8ple/model-f16.gguf")).unwrap().tensors().map(|t| t.len_bytes).sum::<u64>()
            as usize;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flipped.gguf");
    let mut random = 0x1234_5678_9ABC_DEF0u64;
    let mut next = |below: usize| {
        // splitmix64: the same files on every run.
        random = random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = (random ^ (random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) as usize % below
    };
    let (mut opened, mut ran) = (0, 0);
    for round in 0..600 {
        let mut bytes = sound.clone();
        for _ in 0..1 + next(3) {
            // Mostly the header; every fifth file in the weights too.
            let at = if round % 5 == 0 { next(sound.len()) } else { next(header_bytes) };
            bytes[at] = [0, 1, 0x7F, 0x80, 0xFF, bytes[at] ^ 1 << next(8)][next(6)];
        }
        std::fs::write(&path, &bytes).unwrap();
        let Ok(gguf) = Gguf::open(&path) else { continue };
        opened += 1;
        let backend = Box::new(CpuBackend::precise(Isa::best(), 1).unwrap());
        let Ok(mut model) = Model::load(&gguf, backend, Options::default()) else { continue };
        let Ok(mut sequence) = model.new_sequence() else { continue };
        // A model whose weights became infinite may give anything; it must give it in order.
        let _ = model.forward(&mut sequence, &[1, 5, 9, 3], Rows::All, &mut Vec::new(), &mut Unobserved);
        ran += 1;
    }
    assert!(opened > 50 && ran > 10 && ran < opened, "{opened} opened, {ran} ran: the flips miss their aim");
}

#[test]
fn an_absurd_context_is_refused_with_its_size() {
    for context_tokens in [usize::MAX, usize::MAX / 128, 1 << 50] {
        let options = Options { context_tokens: Some(context_tokens), ..Options::default() };
        let error = match load(&data("oracle/mini4/model-f16.gguf"), options) {
            Ok(mut model) => model.new_sequence().unwrap_err(),
            Err(error) => error,
        };
        let text = error.to_string();
        assert!(text.contains("not enough memory") && text.contains("attention cache"), "{text}");
    }
}
