//! Sparse attention (spec 6.3).
//!
//! Owns: the cache of keys and values and the types it may have, the choice of blocks, and attention over the chosen
//! tokens in either arithmetic.
//! Promises: a row's result is a function of its own query and its own tokens, in their order: neighbours, strips,
//! threads and what else lies in the cache do not show.
//! Refuses: to know projections, norms and rotations; it is handed rotated queries and keys.

#[cfg(target_arch = "x86_64")]
mod bfloat16;
mod cache;
#[cfg(target_arch = "x86_64")]
mod decode;
mod float32;
mod select;
#[cfg(target_arch = "x86_64")]
mod tiles;

pub use cache::{KvCache, KvType};
pub use select::{Index, Ranges, Selected, Selections, best_blocks, block_scores};

use crate::math::sigmoid;
use crate::vector::{Lanes, dispatch};
use crate::{Arithmetic, Cpu};

/// Queries of a strip: head `h` of row `t` starts at `(t * heads + h) * stride`.
#[derive(Clone, Copy)]
pub struct Queries<'a> {
    /// Rotated, normalised queries, `[rows][heads][stride]`, of which each head's first values count.
    pub values: &'a [f32],
    /// Query heads; each key/value head serves as many of them, neighbours.
    pub heads: usize,
    /// Values from one head to the next.
    pub stride: usize,
}

/// `out = softmax_j(q . k_j / sqrt(dim)) v_j` for each row and head over the row's selected tokens, in their order.
///
/// `out` is `[rows][heads][dim]`, all of it written. A row without tokens has no result: it becomes NaN. Keys and values
/// that are kept in less than float32 are rounded as the processor's arithmetic rounds; those in float32 are not.
///
/// # Panics
/// When shapes differ, or tokens were selected that the cache does not have.
pub fn attend(cpu: &Cpu, cache: &KvCache, queries: &Queries<'_>, selections: &Selections, out: &mut [f32]) {
    let rows = selections.rows();
    let &Queries { values, heads, stride } = queries;
    let whole = heads.is_multiple_of(cache.heads()) && stride >= cache.dim();
    let whole = whole && values.len() == rows * heads * stride && out.len() == rows * heads * cache.dim();
    assert!(whole, "attend: shapes differ");
    let visible = selections.visible_tokens();
    assert!(rows == 0 || visible <= cache.tokens(), "attend: {visible} tokens are seen of {}", cache.tokens());
    match cpu.arithmetic() {
        #[cfg(target_arch = "x86_64")]
        Arithmetic::Bfloat16 if cache.kv() != KvType::Float32 => {
            bfloat16::attend(cpu, cache, queries, selections, out);
        }
        _ => float32::attend(cpu, cache, queries, selections, out),
    }
}

dispatch! {
    /// `values <- values .* sigmoid(gates)` for the heads of one row: `values` is `[heads][dim]`; the gates of a head
    /// follow its query, `[heads][2][dim]`.
    pub fn gate = gate_body(values: &mut [f32], projected: &[f32], dim: usize)
}

#[inline(always)]
fn gate_body<V: Lanes, const FUSED: bool>(values: &mut [f32], projected: &[f32], dim: usize) {
    assert!(values.len().is_multiple_of(dim) && projected.len() == 2 * values.len(), "gate: shapes differ");
    for (values, projected) in values.chunks_exact_mut(dim).zip(projected.chunks_exact(2 * dim)) {
        for (value, gate) in values.iter_mut().zip(&projected[dim..]) {
            *value *= sigmoid(*gate);
        }
    }
}
