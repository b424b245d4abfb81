//! Gated DeltaNet (spec 6.2): convolution and norms before the recurrence, the recurrence over tokens in two forms, norm
//! and gate after it.
//!
//! Between them, vectors lie by head: `[head][token][width]`, so that a head's tokens follow each other in memory.

mod chunked;
mod recurrent;
mod state;

pub use chunked::{CHUNK_TOKENS, chunked};
pub use recurrent::recurrent;
pub use state::State;

use crate::Cpu;
use crate::conv::{Window, convolve};
use crate::math::{sigmoid, softplus};
use crate::norm::squares;
use crate::pool::DisjointMut;
use crate::vector::{Lanes, dispatch};

/// How the channels of a convolved row are split into heads: queries, keys, values.
#[derive(Clone, Copy, Debug)]
pub struct HeadShape {
    /// Heads of queries, and of keys.
    pub key_heads: usize,
    /// Heads of values.
    pub value_heads: usize,
    /// Width of every head.
    pub dim: usize,
}

/// Heads of a row that a thread takes at least: a microsecond's work.
const HEADS_GRAIN: usize = 16;
/// Heads that are convolved row after row, before the next heads: their taps and the rows that they meet stay in the
/// first-level cache.
const HEADS_TOGETHER: usize = 4;

/// Convolution and silu of all rows; then queries and keys are divided by their length (the epsilon 1e-6 is added to the
/// sum of squares), queries also by `sqrt(dim)`.
///
/// `taps` is `[K][channels]`, oldest tap first; `window(t)` gives the input rows that they meet for row `t`; `out` is
/// `[head][token][dim]`.
pub fn convolve_heads<'a>(
    cpu: &Cpu,
    shape: HeadShape,
    taps: &[f32],
    window: impl Fn(usize) -> Window<'a> + Sync,
    out: &mut [f32],
) {
    let HeadShape { key_heads, value_heads, dim } = shape;
    let heads = 2 * key_heads + value_heads;
    let tokens = out.len() / (heads * dim);
    assert_eq!(out.len(), tokens * heads * dim, "convolve: shapes differ");
    let query_scale = 1.0 / (dim as f32).sqrt();
    let groups = heads.div_ceil(HEADS_TOGETHER);
    let out = DisjointMut::new(out);
    cpu.for_ranges(groups * tokens, HEADS_GRAIN / HEADS_TOGETHER, |units| {
        for unit in units {
            let (group, t) = (unit / tokens, unit % tokens);
            let window = window(t);
            for h in group * HEADS_TOGETHER..heads.min((group + 1) * HEADS_TOGETHER) {
                // SAFETY: head `h` of row `t` is this unit's alone.
                let out = unsafe { out.part((h * tokens + t) * dim, dim) };
                let scale = match h / key_heads {
                    0 => Some(query_scale),
                    1 => Some(1.0),
                    _ => None,
                };
                convolve_head(cpu.isa(), taps, &window, h * dim, scale, out);
            }
        }
    });
}

dispatch! {
    fn convolve_head = convolve_head_body(
        taps: &[f32], window: &Window<'_>, first: usize, scale: Option<f32>, out: &mut [f32],
    )
}

#[inline(always)]
fn convolve_head_body<V: Lanes, const FUSED: bool>(
    taps: &[f32],
    window: &Window<'_>,
    first: usize,
    scale: Option<f32>,
    out: &mut [f32],
) {
    convolve::<V, FUSED>(taps, window, first, out);
    if let Some(scale) = scale {
        let factor = scale / (squares::<V, FUSED>(out) + 1e-6).sqrt();
        for v in out {
            *v *= factor;
        }
    }
}

/// Rows of gates that a thread takes at least.
const GATES_GRAIN: usize = 16;

/// Decay and write strength of each head, in place: `alpha <- a softplus(alpha + dt_bias)`, the log decay, and
/// `beta <- sigma(beta)`. Both are `[tokens][heads]`.
pub fn gates(cpu: &Cpu, a: &[f32], dt_bias: &[f32], alpha: &mut [f32], beta: &mut [f32]) {
    let heads = a.len();
    let tokens = alpha.len() / heads;
    let fits = dt_bias.len() == heads && alpha.len() == tokens * heads && beta.len() == alpha.len();
    assert!(fits, "gates: shapes differ");
    let (alpha, beta) = (DisjointMut::new(alpha), DisjointMut::new(beta));
    cpu.for_ranges(tokens, GATES_GRAIN, |rows| {
        let (at, len) = (rows.start * heads, rows.len() * heads);
        // SAFETY: the ranges of rows do not overlap.
        unsafe { gate_rows(cpu.isa(), a, dt_bias, alpha.part(at, len), beta.part(at, len)) };
    });
}

dispatch! {
    fn gate_rows = gate_rows_body(a: &[f32], dt_bias: &[f32], alpha: &mut [f32], beta: &mut [f32])
}

#[inline(always)]
fn gate_rows_body<V: Lanes, const FUSED: bool>(a: &[f32], dt_bias: &[f32], alpha: &mut [f32], beta: &mut [f32]) {
    for row in alpha.chunks_exact_mut(a.len()) {
        for ((v, a), dt_bias) in row.iter_mut().zip(a).zip(dt_bias) {
            *v = a * softplus(*v + dt_bias);
        }
    }
    for v in beta {
        *v = sigmoid(*v);
    }
}

/// What the recurrence reads of a strip of tokens. Value head `h` uses key head `h mod key_heads`.
pub struct Strip<'a> {
    /// Queries, normalised and scaled: `[key_heads][tokens][keys]`.
    pub queries: &'a [f32],
    /// Keys, normalised: `[key_heads][tokens][keys]`.
    pub keys: &'a [f32],
    /// Values: `[value_heads][tokens][width]`.
    pub values: &'a [f32],
    /// `g <= 0`, the log of each decay: `[tokens][value_heads]`.
    pub log_decay: &'a [f32],
    /// Write strengths: `[tokens][value_heads]`.
    pub beta: &'a [f32],
    /// Heads of queries, and of keys.
    pub key_heads: usize,
    /// Heads of values.
    pub value_heads: usize,
}

/// One value head of a [`Strip`].
struct Head<'a> {
    index: usize,
    tokens: usize,
    keys: usize,
    width: usize,
    /// Its part of `queries`.
    q: &'a [f32],
    /// Its part of `keys`.
    k: &'a [f32],
    /// Its part of `values`.
    v: &'a [f32],
    strip: &'a Strip<'a>,
}

impl Strip<'_> {
    /// Tokens, width of keys, width of values.
    ///
    /// # Panics
    /// When a length does not fit, also those of `state` and of `out`, which is as long as the values.
    fn sizes(&self, state: &State, out: &[f32]) -> (usize, usize, usize) {
        let tokens = self.log_decay.len() / self.value_heads;
        let (keys, width) = (self.keys.len() / self.key_heads / tokens, self.values.len() / self.value_heads / tokens);
        let fits = self.log_decay.len() == tokens * self.value_heads
            && self.beta.len() == self.log_decay.len()
            && self.keys.len() == self.key_heads * tokens * keys
            && self.queries.len() == self.keys.len()
            && self.values.len() == self.value_heads * tokens * width
            && out.len() == self.values.len()
            && state.shape() == [self.value_heads, keys, width];
        assert!(fits, "Gated DeltaNet: shapes differ");
        (tokens, keys, width)
    }

    fn head(&self, index: usize, (tokens, keys, width): (usize, usize, usize)) -> Head<'_> {
        let key_head = index % self.key_heads * tokens * keys;
        Head {
            index,
            tokens,
            keys,
            width,
            q: &self.queries[key_head..][..tokens * keys],
            k: &self.keys[key_head..][..tokens * keys],
            v: &self.values[index * tokens * width..][..tokens * width],
            strip: self,
        }
    }
}

impl Head<'_> {
    #[inline(always)]
    fn query(&self, t: usize) -> &[f32] {
        &self.q[t * self.keys..][..self.keys]
    }

    #[inline(always)]
    fn key(&self, t: usize) -> &[f32] {
        &self.k[t * self.keys..][..self.keys]
    }

    #[inline(always)]
    fn value(&self, t: usize) -> &[f32] {
        &self.v[t * self.width..][..self.width]
    }

    #[inline(always)]
    fn log_decay(&self, t: usize) -> f32 {
        self.strip.log_decay[t * self.strip.value_heads + self.index]
    }

    #[inline(always)]
    fn beta(&self, t: usize) -> f32 {
        self.strip.beta[t * self.strip.value_heads + self.index]
    }
}

/// Norm of each head and gate, row by row: `out = x / sqrt(mean(x^2) + eps) .* gamma .* sigma(z)`.
///
/// `x` is `[head][token][width]`, `gamma` `[width]`; `z` and `out` are `[token][head][width]`.
pub fn norm_and_gate(cpu: &Cpu, x: &[f32], heads: usize, gamma: &[f32], eps: f32, z: &[f32], out: &mut [f32]) {
    let width = gamma.len();
    let tokens = out.len() / (heads * width);
    let fits = out.len() == tokens * heads * width && x.len() == out.len() && z.len() == out.len();
    assert!(fits, "norm and gate: shapes differ");
    let out = DisjointMut::new(out);
    cpu.for_ranges(tokens * heads, HEADS_GRAIN, |units| {
        for unit in units {
            let (t, h) = (unit / heads, unit % heads);
            let x = &x[(h * tokens + t) * width..][..width];
            // SAFETY: head `h` of row `t` is this unit's alone.
            let out = unsafe { out.part(unit * width, width) };
            norm_and_gate_head(cpu.isa(), x, gamma, eps, &z[unit * width..][..width], out);
        }
    });
}

dispatch! {
    fn norm_and_gate_head = norm_and_gate_head_body(x: &[f32], gamma: &[f32], eps: f32, z: &[f32], out: &mut [f32])
}

#[inline(always)]
fn norm_and_gate_head_body<V: Lanes, const FUSED: bool>(
    x: &[f32],
    gamma: &[f32],
    eps: f32,
    z: &[f32],
    out: &mut [f32],
) {
    let factor = 1.0 / (squares::<V, FUSED>(x) / x.len() as f32 + eps).sqrt();
    for (((o, x), gamma), z) in out.iter_mut().zip(x).zip(gamma).zip(z) {
        *o = x * factor * gamma * sigmoid(*z);
    }
}
