//! The mixture of experts (spec 6.4): the router and the shared expert are weights of the backend, the routed experts
//! are records of the store.

use strata_backend::{ExpertShape, HyperRead, MatrixId, SharedExpert};
use strata_gguf::{Gguf, Tensor, TensorType};
use strata_store::{LayerRecords, PartRange};

use super::config::{Config, MoeConfig};
use super::hyper;
use super::weights::{Loader, shaped};
use crate::ModelError;

/// What a layer's mixture of experts is made of, besides the records.
pub(super) struct Moe {
    pub(super) read: HyperRead,
    pub(super) router: MatrixId,
    pub(super) shared: SharedExpert,
    pub(super) experts: ExpertShape,
    /// Factors of gate, up and down for each expert.
    pub(super) scales: Vec<[f32; 3]>,
}

pub(super) fn load(loader: &mut Loader<'_>, config: &Config, layer: usize) -> Result<(Moe, LayerRecords), ModelError> {
    let &MoeConfig { experts, ff, shared_ff, .. } = &config.moe;
    let hidden = config.hidden;
    let name = |part: &str| format!("blk.{layer}.{part}");
    let is_fused = is_fused(loader.gguf, layer);
    let [gate, up, down] = routed(loader.gguf, config, layer)?;
    let gate_up = if is_fused { ["ffn_gate_up_exps"; 2] } else { ["ffn_gate_exps", "ffn_up_exps"] };
    let gate_scales = loader.scales(&name(gate_up[0]), experts)?;
    let up_scales = loader.scales(&name(gate_up[1]), experts)?;
    let down_scales = loader.scales(&name("ffn_down_exps"), experts)?;
    let moe = Moe {
        read: hyper::load(loader, config, &name("hc_ffn"), true)?,
        router: loader.matrix(&name("ffn_gate_inp"), hidden, experts)?,
        shared: SharedExpert {
            gate_inp: loader.vector(&name("ffn_gate_inp_shexp.weight"), hidden)?,
            gate: loader.matrix(&name("ffn_gate_shexp"), hidden, shared_ff)?,
            up: loader.matrix(&name("ffn_up_shexp"), hidden, shared_ff)?,
            down: loader.matrix(&name("ffn_down_shexp"), shared_ff, hidden)?,
        },
        experts: ExpertShape { gate: gate.0, up: up.0, down: down.0, hidden, ff },
        scales: (0..experts).map(|e| [gate_scales[e], up_scales[e], down_scales[e]]).collect(),
    };
    Ok((moe, LayerRecords { experts: experts as u32, parts: [gate.1, up.1, down.1] }))
}

/// Whether gate and up are one tensor.
fn is_fused(gguf: &Gguf, layer: usize) -> bool {
    gguf.tensor(&format!("blk.{layer}.ffn_gate_up_exps.weight")).is_some()
}

/// Types and places of the routed experts' gate, up and down matrices.
pub(super) fn routed(gguf: &Gguf, config: &Config, layer: usize) -> Result<[(TensorType, PartRange); 3], ModelError> {
    let &MoeConfig { experts, ff, .. } = &config.moe;
    let hidden = config.hidden;
    let name = |part: &str| format!("blk.{layer}.{part}.weight");
    let down = shaped(gguf, &name("ffn_down_exps"), &[ff, hidden, experts])?;
    let down = (down.ty, part(down, hidden, 0, hidden));
    // Some files hold gate and up in one tensor, the gate's rows first.
    if is_fused(gguf, layer) {
        if let Some(second) = gguf.tensor(&name("ffn_gate_exps")).or(gguf.tensor(&name("ffn_up_exps"))) {
            return Err(ModelError::Unsupported { tensor: second.name.clone() });
        }
        let both = shaped(gguf, &name("ffn_gate_up_exps"), &[hidden, 2 * ff, experts])?;
        return Ok([(both.ty, part(both, 2 * ff, 0, ff)), (both.ty, part(both, 2 * ff, ff, ff)), down]);
    }
    let gate = shaped(gguf, &name("ffn_gate_exps"), &[hidden, ff, experts])?;
    let up = shaped(gguf, &name("ffn_up_exps"), &[hidden, ff, experts])?;
    Ok([(gate.ty, part(gate, ff, 0, ff)), (up.ty, part(up, ff, 0, ff)), down])
}

/// The rows `first .. first + rows` of each expert's `expert_rows` rows of a tensor.
fn part(tensor: &Tensor, expert_rows: usize, first: usize, rows: usize) -> PartRange {
    let row_bytes = tensor.row_bytes();
    PartRange {
        file: tensor.file,
        offset: tensor.offset + first as u64 * row_bytes,
        stride_bytes: expert_rows as u64 * row_bytes,
        len_bytes: rows as u64 * row_bytes,
    }
}
