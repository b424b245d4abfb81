//! Files that hold the same model in another form give the same bytes: factors beside tensors, gate and up in one tensor,
//! trailing dimensions of 1. What would silently change results is refused.

mod common;

use std::path::Path;

use common::{data, logits, model};
use strata_backend::{CpuBackend, Isa};
use strata_gguf::{Gguf, GgufWriter, NewTensor, TensorType};
use strata_model::qwen4exp::{Model, Options};

/// A model's tensors, to be changed and written again.
struct Parts {
    source: Gguf,
    tensors: Vec<(NewTensor, Vec<u8>)>,
}

impl Parts {
    fn of(name: &str) -> Self {
        let source = Gguf::open(&data(&format!("oracle/{name}/model-f16.gguf"))).unwrap();
        let part = |t: &strata_gguf::Tensor| {
            (NewTensor { name: t.name.clone(), dims: t.dims.clone(), ty: t.ty }, source.read(t).unwrap())
        };
        let tensors = source.tensors().map(part).collect();
        Self { source, tensors }
    }

    fn get(&mut self, name: &str) -> &mut (NewTensor, Vec<u8>) {
        self.tensors.iter_mut().find(|(t, _)| t.name == name).unwrap_or_else(|| panic!("{name}"))
    }

    fn add_f32(&mut self, name: &str, values: &[f32]) {
        let tensor = NewTensor { name: name.to_owned(), dims: vec![values.len() as u64], ty: TensorType::F32 };
        self.tensors.push((tensor, values.iter().flat_map(|v| v.to_le_bytes()).collect()));
    }

    /// Doubles all weights of a tensor, exactly.
    fn double(&mut self, name: &str) {
        let (tensor, bytes) = self.get(name);
        match tensor.ty {
            TensorType::F32 => bytes.chunks_exact_mut(4).for_each(|b| {
                let doubled = 2.0 * f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                b.copy_from_slice(&doubled.to_le_bytes());
            }),
            TensorType::F16 => bytes.chunks_exact_mut(2).for_each(|b| {
                let bits = u16::from_le_bytes([b[0], b[1]]);
                let exponent = bits >> 10 & 31;
                assert!(exponent < 30, "{name}: too large to double");
                // A subnormal doubles by a shift of its fraction, which may carry into the exponent.
                let doubled = if exponent == 0 { bits & 0x8000 | (bits & 0x7FFF) << 1 } else { bits + 0x400 };
                b.copy_from_slice(&doubled.to_le_bytes());
            }),
            ty => panic!("{name} is {ty}"),
        }
    }

    /// Gate and up of a layer in one tensor: each expert's gate rows, then its up rows.
    fn fuse(&mut self, layer: usize) {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps.weight");
        let (mut fused, up) = (self.get(&name("gate")).clone(), self.get(&name("up")).1.clone());
        let expert_bytes = up.len() / fused.0.dims[2] as usize;
        let pairs = fused.1.chunks_exact(expert_bytes).zip(up.chunks_exact(expert_bytes));
        fused.1 = pairs.flat_map(|(gate, up)| [gate, up].concat()).collect();
        fused.0.dims[1] *= 2;
        fused.0.name = name("gate_up");
        self.tensors.retain(|(t, _)| t.name != name("gate") && t.name != name("up"));
        self.tensors.push(fused);
    }

    fn write(&self, path: &Path) {
        let declared: Vec<_> = self.tensors.iter().map(|(t, _)| t.clone()).collect();
        let mut writer = GgufWriter::create(path, self.source.metadata(), &declared).unwrap();
        self.tensors.iter().for_each(|(_, bytes)| writer.write(bytes).unwrap());
        writer.finish().unwrap();
    }

    fn logits(&self) -> Vec<u32> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("variant.gguf");
        self.write(&path);
        let mut model = model(&path, Options::default());
        let mut sequence = model.new_sequence().unwrap();
        let ids: Vec<u32> = (0..40).map(|i| i * 11 % 250).collect();
        logits(&mut model, &mut sequence, &ids, &[40]).iter().map(|v| v.to_bits()).collect()
    }

    fn refusal(&self) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("variant.gguf");
        self.write(&path);
        let backend = Box::new(CpuBackend::precise(Isa::best(), 1).unwrap());
        let result = Model::load(&Gguf::open(&path).unwrap(), backend, Options::default());
        result.err().expect("the file is refused").to_string()
    }
}

#[test]
fn a_factor_beside_a_matrix_is_the_same_as_larger_weights() {
    let plain = Parts::of("moe8ple").logits();
    for part in ["attn_qkv", "ssm_out", "hc_ffn_down", "ffn_gate_inp", "ffn_down_shexp", "ffn_down_exps", "ffn_up_exps"]
    {
        let name = format!("blk.2.{part}");
        let (mut factor, mut doubled) = (Parts::of("moe8ple"), Parts::of("moe8ple"));
        factor.add_f32(&format!("{name}.scale"), &[2.0]);
        doubled.double(&format!("{name}.weight"));
        let doubled = doubled.logits();
        assert!(doubled != plain, "{name}: the weights do not matter");
        assert!(factor.logits() == doubled, "{name}: the factor does not count");
    }
}

#[test]
fn each_expert_may_have_its_own_factor() {
    let (mut one, mut each) = (Parts::of("moe8ple"), Parts::of("moe8ple"));
    one.add_f32("blk.2.ffn_down_exps.scale", &[0.5]);
    each.add_f32("blk.2.ffn_down_exps.scale", &[0.5; 32]);
    assert!(one.logits() == each.logits());
    let mut wrong = Parts::of("moe8ple");
    wrong.add_f32("blk.2.ffn_down_exps.scale", &[0.5; 31]);
    let text = wrong.refusal();
    assert!(text.contains("`blk.2.ffn_down_exps.scale`") && text.contains("[32]") && text.contains("[31]"), "{text}");
}

#[test]
fn gate_and_up_in_one_tensor_are_the_same_as_two_with_and_without_factor() {
    let mut fused = Parts::of("moe8ple");
    (0..8).for_each(|layer| fused.fuse(layer));
    assert!(fused.logits() == Parts::of("moe8ple").logits());

    fused.add_f32("blk.2.ffn_gate_up_exps.scale", &[2.0]);
    let mut doubled = Parts::of("moe8ple");
    doubled.double("blk.2.ffn_gate_exps.weight");
    doubled.double("blk.2.ffn_up_exps.weight");
    assert!(fused.logits() == doubled.logits());
}

#[test]
fn what_has_no_stated_meaning_is_refused() {
    for name in
        ["token_embd", "per_layer_token_embd", "blk.0.ffn_gate_inp_shexp", "blk.0.hc_attn_norm", "blk.0.ssm_conv1d"]
    {
        let mut parts = Parts::of("moe8ple");
        parts.add_f32(&format!("{name}.scale"), &[3.0]);
        let text = parts.refusal();
        assert!(text.contains(&format!("`{name}.scale` is not supported")), "{text}");
    }
    // Both forms of gate and up at once.
    let mut parts = Parts::of("moe8ple");
    let gate = parts.get("blk.0.ffn_gate_exps.weight").clone();
    parts.fuse(0);
    parts.tensors.push(gate);
    let text = parts.refusal();
    assert!(text.contains("`blk.0.ffn_gate_exps.weight` is not supported"), "{text}");
}

#[test]
fn trailing_dimensions_of_one_do_not_matter() {
    let mut parts = Parts::of("mini4");
    for (tensor, _) in &mut parts.tensors {
        if tensor.dims.len() < 3 {
            tensor.dims.push(1);
        }
    }
    assert!(parts.logits() == Parts::of("mini4").logits());
}
