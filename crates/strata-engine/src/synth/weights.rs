//! The tensors of a synthetic model: names, shapes and types as in the public file (spec 4 and 12), and what fills them.
//!
//! Promises: activations stay near 1 through any number of layers: matrices keep norms (standard deviation of
//! gain / sqrt(inputs)), and what layers add to the streams is small beside the embedding, which so survives.

use strata_gguf::{NewTensor, TensorType};

use super::Routing;
use super::shapes::{CONV_TAPS, PLE_LAYER, Shape};

/// A tensor and what fills it.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) tensor: NewTensor,
    pub(super) fill: Fill,
}

/// What fills a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fill {
    /// Random weights of this standard deviation.
    Random(f32),
    /// Values around `mean`, the same for every run of `period` values.
    Around { mean: f32, std: f32, period: usize },
    /// Decays of Gated DeltaNet heads: from -1/16 to -4, the logarithms evenly spaced.
    Decays,
    /// The embedding's rows.
    Embedding,
    /// The output's rows.
    Output,
}

const IQ4_XS: TensorType = TensorType::IQ4_XS;
const IQ3_S: TensorType = TensorType::IQ3_S;
const Q6_K: TensorType = TensorType::Q6_K;

/// Root mean square of a layer's input: gates near one half halve the normalised streams.
pub(super) const INPUT_RMS: f32 = 0.5;
/// Root mean square of what a mixer or a mixture adds to the streams, whose own is 1. After 96 additions their sum is
/// about half of the embedding.
const OUTPUT_RMS: f32 = 0.05;
/// Standard deviation of router logits: the best of ten weighs about a quarter.
const LOGIT_STD: f32 = 2.0;
/// Root mean square of `silu(x) y` for normal x and y of deviation 1, of `silu(x)` alone, and of a gate `sigma(x)`.
const SILU_RMS: f32 = 0.6;
const GATE_RMS: f32 = 0.54;
/// Standard deviation of the write weights' logits: weights then lie between 0.75 and 1.25.
const INJECT_STD: f32 = 0.5;

/// Types of a class of tensors with their numbers in the public file, dealt out evenly to its layers.
fn dealt(counts: &[(TensorType, usize)], nth: usize) -> TensorType {
    let total: usize = counts.iter().map(|(_, count)| count).sum();
    // Seven has no factor in common with 12, 36 and 48, so each place is taken once.
    let mut at = nth * 7 % total;
    for &(ty, count) in counts {
        if at < count {
            return ty;
        }
        at -= count;
    }
    unreachable!("the place lies below the sum of the counts")
}

/// Type of a layer's routed gate and up matrices.
fn expert_type(layer: usize) -> TensorType {
    match layer {
        8 | 13 | 37 => TensorType::IQ1_M,
        1 | 4 | 9 | 10 | 11 | 14 | 18 | 19 | 27 | 29 | 30 => TensorType::IQ2_XXS,
        _ => TensorType::IQ2_S,
    }
}

/// Collects the tensors of a model.
struct Plan<'a> {
    shape: &'a Shape,
    routing: &'a Routing,
    tensors: Vec<Planned>,
}

/// All tensors, in the order in which a file has them; the n-gram table, if there is one, is the last.
pub(super) fn tensors(shape: &Shape, routing: &Routing) -> Vec<Planned> {
    let mut plan = Plan { shape, routing, tensors: Vec::new() };
    plan.put("token_embd.weight", &[shape.hidden, shape.vocabulary], IQ4_XS, Fill::Embedding);
    plan.put("output.weight", &[shape.hidden, shape.vocabulary], IQ4_XS, Fill::Output);
    plan.hyper("output_hc", false);
    for layer in 0..shape.layers {
        plan.layer(layer);
    }
    plan.ngram_module();
    plan.tensors
}

impl Plan<'_> {
    fn put(&mut self, name: impl Into<String>, dims: &[usize], ty: TensorType, fill: Fill) {
        let dims = dims.iter().map(|dim| *dim as u64).collect();
        self.tensors.push(Planned { tensor: NewTensor { name: name.into(), dims, ty }, fill });
    }

    /// A matrix that makes values of root mean square `out` of `cols` values of root mean square `input`.
    fn matrix(&mut self, name: String, dims: [usize; 2], ty: TensorType, input: f32, out: f32) {
        let std = out / (input * (dims[0] as f32).sqrt());
        self.put(name, &dims, ty, Fill::Random(std));
    }

    /// A norm's factors.
    fn norm(&mut self, name: String, len: usize) {
        self.put(name, &[len], TensorType::F32, Fill::Around { mean: 1.0, std: 0.05, period: len });
    }

    fn layer(&mut self, layer: usize) {
        self.hyper(&format!("blk.{layer}.hc_attn"), true);
        if Shape::has_attention(layer) {
            self.attention(layer);
        } else {
            self.gated_deltanet(layer);
        }
        self.hyper(&format!("blk.{layer}.hc_ffn"), true);
        self.experts(layer);
    }

    /// Norm, gate and write weights of a read of the streams (spec 6.1).
    fn hyper(&mut self, prefix: &str, has_inject: bool) {
        let &Shape { hidden, streams, low_rank, .. } = self.shape;
        let (wide, bf16) = (self.shape.wide(), TensorType::BF16);
        // All streams have the same factors. They differ from layer to layer, and are what the next layer's router
        // cannot know when it forecasts from this layer's input.
        let factors = Fill::Around { mean: 1.0, std: self.routing.drift, period: hidden };
        self.put(format!("{prefix}_norm.weight"), &[wide], TensorType::F32, factors);
        // The products are divided by the number of streams before they are used.
        let scaled = streams as f32;
        self.matrix(format!("{prefix}_down.weight"), [wide, low_rank], bf16, 1.0, scaled);
        self.matrix(format!("{prefix}_up.weight"), [low_rank, wide], bf16, SILU_RMS, self.routing.gate);
        if has_inject {
            self.matrix(format!("{prefix}_inject.weight"), [wide, streams], bf16, 1.0, scaled * INJECT_STD);
        }
    }

    fn gated_deltanet(&mut self, layer: usize) {
        let &Shape { hidden, value_heads, gdn_dim, .. } = self.shape;
        let (channels, inner) = (self.shape.channels(), self.shape.inner());
        let nth = layer - layer / 4;
        let name = |part: &str| format!("blk.{layer}.{part}");
        let f32 = TensorType::F32;
        let around = |mean, std, period| Fill::Around { mean, std, period };
        self.matrix(
            name("attn_qkv.weight"),
            [hidden, channels],
            dealt(&[(IQ4_XS, 35), (IQ3_S, 1)], nth),
            INPUT_RMS,
            1.0,
        );
        let gate_type = dealt(&[(IQ4_XS, 22), (IQ3_S, 11), (Q6_K, 3)], nth);
        self.matrix(name("attn_gate.weight"), [hidden, inner], gate_type, INPUT_RMS, 1.0);
        self.put(name("ssm_conv1d.weight"), &[CONV_TAPS, channels], f32, around(0.3, 0.3, CONV_TAPS * channels));
        self.matrix(name("ssm_alpha.weight"), [hidden, value_heads], TensorType::BF16, INPUT_RMS, 1.0);
        self.matrix(name("ssm_beta.weight"), [hidden, value_heads], TensorType::BF16, INPUT_RMS, 1.0);
        self.put(name("ssm_dt.bias"), &[value_heads], f32, around(-3.0, 1.0, value_heads));
        self.put(name("ssm_a"), &[value_heads], f32, Fill::Decays);
        self.norm(name("ssm_norm.weight"), gdn_dim);
        let out_type = dealt(&[(IQ4_XS, 29), (IQ3_S, 6), (Q6_K, 1)], nth);
        self.matrix(name("ssm_out.weight"), [inner, hidden], out_type, SILU_RMS, OUTPUT_RMS);
    }

    fn attention(&mut self, layer: usize) {
        let &Shape { hidden, heads, kv_heads, head_dim, indexer_heads, indexer_dim, .. } = self.shape;
        let nth = layer / 4;
        let name = |part: &str| format!("blk.{layer}.{part}");
        let q_type = dealt(&[(IQ4_XS, 11), (IQ3_S, 1)], nth);
        self.matrix(name("attn_q.weight"), [hidden, 2 * heads * head_dim], q_type, INPUT_RMS, 1.0);
        let k_type = dealt(&[(IQ4_XS, 8), (IQ3_S, 1), (Q6_K, 3)], nth);
        self.matrix(name("attn_k.weight"), [hidden, kv_heads * head_dim], k_type, INPUT_RMS, 1.0);
        let v_type = dealt(&[(IQ4_XS, 7), (Q6_K, 5)], nth);
        self.matrix(name("attn_v.weight"), [hidden, kv_heads * head_dim], v_type, INPUT_RMS, 1.0);
        let out_type = dealt(&[(IQ4_XS, 10), (IQ3_S, 1), (Q6_K, 1)], nth);
        self.matrix(name("attn_output.weight"), [heads * head_dim, hidden], out_type, GATE_RMS, OUTPUT_RMS);
        self.norm(name("attn_q_norm.weight"), head_dim);
        self.norm(name("attn_k_norm.weight"), head_dim);
        let bf16 = TensorType::BF16;
        self.matrix(name("indexer.q_proj.weight"), [hidden, indexer_heads * indexer_dim], bf16, INPUT_RMS, 1.0);
        self.matrix(name("indexer.k_proj.weight"), [hidden, indexer_dim], bf16, INPUT_RMS, 1.0);
        self.norm(name("indexer.q_norm.weight"), indexer_dim);
        self.norm(name("indexer.k_norm.weight"), indexer_dim);
    }

    fn experts(&mut self, layer: usize) {
        let &Shape { hidden, experts, ff, shared_ff, .. } = self.shape;
        let name = |part: &str| format!("blk.{layer}.{part}");
        let std = |inputs: usize, input: f32, out: f32| Fill::Random(out / (input * (inputs as f32).sqrt()));
        self.matrix(name("ffn_gate_inp.weight"), [hidden, experts], TensorType::BF16, INPUT_RMS, LOGIT_STD);
        for part in ["ffn_gate_exps.weight", "ffn_up_exps.weight"] {
            self.put(name(part), &[hidden, ff, experts], expert_type(layer), std(hidden, INPUT_RMS, 1.0));
        }
        // Weights of the chosen experts make their sum smaller than one of them.
        let out = 2.0 * OUTPUT_RMS;
        self.put(name("ffn_down_exps.weight"), &[ff, hidden, experts], TensorType::Q2_0, std(ff, SILU_RMS, out));
        self.put(name("ffn_gate_inp_shexp.weight"), &[hidden], TensorType::BF16, std(hidden, INPUT_RMS, 1.0));
        let gate_type = dealt(&[(IQ4_XS, 31), (IQ3_S, 9), (Q6_K, 8)], layer);
        self.matrix(name("ffn_gate_shexp.weight"), [hidden, shared_ff], gate_type, INPUT_RMS, 1.0);
        let up_type = dealt(&[(IQ4_XS, 26), (IQ3_S, 14), (Q6_K, 8)], layer);
        self.matrix(name("ffn_up_shexp.weight"), [hidden, shared_ff], up_type, INPUT_RMS, 1.0);
        let down_type = dealt(&[(TensorType::IQ4_NL, 36), (TensorType::Q8_0, 7), (TensorType::Q2_0, 5)], layer);
        self.matrix(name("ffn_down_shexp.weight"), [shared_ff, hidden], down_type, SILU_RMS, OUTPUT_RMS);
    }

    fn ngram_module(&mut self) {
        let Some(ple) = &self.shape.ple else { return };
        let (hidden, wide, embedded) = (self.shape.hidden, self.shape.wide(), ple.embedded());
        let name = |part: &str| format!("blk.{PLE_LAYER}.{part}");
        self.matrix(name("ple_key.weight"), [embedded, wide], TensorType::BF16, 1.0, 1.0);
        self.matrix(name("ple_value.weight"), [embedded, hidden], TensorType::BF16, 1.0, OUTPUT_RMS);
        for part in ["ple_norm_key.weight", "ple_norm_query.weight", "ple_norm_conv.weight"] {
            self.norm(name(part), wide);
        }
        let taps = Fill::Around { mean: 0.0, std: OUTPUT_RMS, period: CONV_TAPS * wide };
        self.put(name("ple_conv1d.weight"), &[CONV_TAPS, wide], TensorType::F16, taps);
        let rows = ple.table_rows() as usize;
        self.put("per_layer_token_embd.weight", &[ple.row_dim, rows], TensorType::IQ4_NL, Fill::Random(1.0));
    }
}
