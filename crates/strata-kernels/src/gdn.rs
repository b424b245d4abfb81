//! Gated DeltaNet (spec 6.2): the causal convolution, and the recurrence over tokens in two forms.

use crate::math::{exp, silu};
use crate::vector::{Lanes, add_product, dispatch};

dispatch! {
    /// Causal depthwise convolution of one row, then silu: `out[c] = silu(sum_k taps[k][c] * window[k][c])`.
    ///
    /// `taps` is `[K][channels]`, oldest tap first; `window` holds the `K` input rows the taps meet, oldest first.
    pub fn convolve = convolve_body(taps: &[f32], window: &[&[f32]], out: &mut [f32])
}

#[inline(always)]
fn convolve_body<V: Lanes, const FUSED: bool>(taps: &[f32], window: &[&[f32]], out: &mut [f32]) {
    assert_eq!(taps.len(), window.len() * out.len(), "convolve: a row of taps for each row of the window");
    out.fill(0.0);
    for (taps, input) in taps.chunks_exact(out.len()).zip(window) {
        assert_eq!(input.len(), out.len(), "convolve: lengths differ");
        for ((o, w), u) in out.iter_mut().zip(taps).zip(input.iter()) {
            *o = add_product::<FUSED>(*o, *w, *u);
        }
    }
    out.iter_mut().for_each(|v| *v = silu(*v));
}

/// What one value head reads and writes for a run of tokens. Token `t`'s vectors lie at `start + t * stride`.
pub struct Head<'a> {
    /// Convolved rows; `q`, `k` (normalised, `q` scaled) and `v` are parts of a row.
    pub rows: &'a [f32],
    /// Values from one token's row to the next.
    pub stride: usize,
    /// Where this head's query, key and value start in a row.
    pub starts: [usize; 3],
    /// `exp(g)` needs `g`: the log decay of each token, `<= 0`, and its write strength `beta`.
    pub gates: &'a [(f32, f32)],
}

impl Head<'_> {
    /// Widths of keys and of values, by the sizes of the state and of the output. There is at least one token.
    #[inline(always)]
    fn widths(&self, state: &[f32], out: &[f32]) -> (usize, usize) {
        let width = out.len() / self.gates.len();
        let keys = state.len() / width;
        assert!(out.len() == self.gates.len() * width && state.len() == keys * width, "Gated DeltaNet: shapes differ");
        (keys, width)
    }

    #[inline(always)]
    fn vector(&self, which: usize, t: usize, width: usize) -> &[f32] {
        &self.rows[t * self.stride + self.starts[which]..][..width]
    }
}

dispatch! {
    /// The recurrence, token by token: `M <- exp(g) M; M <- M + k (beta (v - M^T k))^T; o = M^T q`.
    ///
    /// `state` is `[d_key][d_value]`, `scratch` at least `d_value` long, `out` `[tokens][d_value]`.
    pub fn recurrent = recurrent_body(head: &Head<'_>, state: &mut [f32], scratch: &mut [f32], out: &mut [f32])
}

#[inline(always)]
fn recurrent_body<V: Lanes, const FUSED: bool>(
    head: &Head<'_>,
    state: &mut [f32],
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let (keys, width) = head.widths(state, out);
    let read = &mut scratch[..width];
    for (t, out) in out.chunks_exact_mut(width).enumerate() {
        let (g, beta) = head.gates[t];
        let decay = exp(g);
        let (q, k, v) = (head.vector(0, t, keys), head.vector(1, t, keys), head.vector(2, t, width));
        read.fill(0.0);
        for (m, k) in state.chunks_exact_mut(width).zip(k) {
            for (m, r) in m.iter_mut().zip(read.iter_mut()) {
                *m *= decay;
                *r = add_product::<FUSED>(*r, *m, *k);
            }
        }
        for (r, v) in read.iter_mut().zip(v) {
            *r = beta * (v - *r);
        }
        out.fill(0.0);
        for ((m, k), q) in state.chunks_exact_mut(width).zip(k).zip(q) {
            for ((m, d), o) in m.iter_mut().zip(read.iter()).zip(out.iter_mut()) {
                *m = add_product::<FUSED>(*m, *k, *d);
                *o = add_product::<FUSED>(*o, *m, *q);
            }
        }
    }
}

/// Tokens that the chunked form takes together.
pub const CHUNK_TOKENS: usize = 64;

/// Scratch values that [`chunked`] needs for heads of these widths.
pub fn chunked_scratch_len(keys: usize, width: usize) -> usize {
    CHUNK_TOKENS * (CHUNK_TOKENS + keys + width + 1)
}

/// The chunked form of [`recurrent`]: the same result up to rounding, as products over [`CHUNK_TOKENS`] tokens.
///
/// Its bytes depend on where chunks begin, that is, on how a prompt was cut; [`recurrent`]'s do not. `scratch` must have
/// [`chunked_scratch_len`] values.
pub fn chunked(head: &Head<'_>, state: &mut [f32], scratch: &mut [f32], out: &mut [f32]) {
    let (keys, width) = head.widths(state, out);
    let (a, rest) = scratch.split_at_mut(CHUNK_TOKENS * CHUNK_TOKENS);
    let (w, rest) = rest.split_at_mut(CHUNK_TOKENS * keys);
    let (d, sums) = rest.split_at_mut(CHUNK_TOKENS * width);

    for (chunk, out) in out.chunks_mut(CHUNK_TOKENS * width).enumerate() {
        let base = chunk * CHUNK_TOKENS;
        let len = out.len() / width;
        let gates = &head.gates[base..base + len];
        let key = |i: usize| head.vector(1, base + i, keys);
        // c_i = g_1 + ... + g_i; only differences c_i - c_j <= 0 are exponentiated.
        let mut sum = 0.0;
        for (c, (g, _)) in sums.iter_mut().zip(gates) {
            sum += g;
            *c = sum;
        }
        let c = &sums[..len];
        // (I + A) U = diag(beta) V and (I + A) W = diag(beta exp(c)) K, by forward substitution; U is kept in `d`.
        for i in 0..len {
            let beta = gates[i].1;
            for j in 0..i {
                a[i * CHUNK_TOKENS + j] = beta * dot(key(i), key(j)) * exp(c[i] - c[j]);
            }
            let (w_done, w_row) = w.split_at_mut(i * keys);
            let (d_done, d_row) = d.split_at_mut(i * width);
            let scale = beta * exp(c[i]);
            w_row.iter_mut().zip(key(i)).for_each(|(w, k)| *w = scale * k);
            d_row.iter_mut().zip(head.vector(2, base + i, width)).for_each(|(d, v)| *d = beta * v);
            for j in 0..i {
                let f = a[i * CHUNK_TOKENS + j];
                w_row.iter_mut().zip(&w_done[j * keys..(j + 1) * keys]).for_each(|(w, p)| *w -= f * p);
                d_row.iter_mut().zip(&d_done[j * width..(j + 1) * width]).for_each(|(d, p)| *d -= f * p);
            }
        }
        // D = U - W M.
        for i in 0..len {
            let d = &mut d[i * width..(i + 1) * width];
            for (m, w) in state.chunks_exact(width).zip(&w[i * keys..(i + 1) * keys]) {
                d.iter_mut().zip(m).for_each(|(d, m)| *d -= w * m);
            }
        }
        // o_i = exp(c_i) q_i^T M + sum_{j <= i} (q_i . k_j) exp(c_i - c_j) D_j.
        for (i, out) in out.chunks_exact_mut(width).enumerate() {
            let q = head.vector(0, base + i, keys);
            let decay = exp(c[i]);
            out.fill(0.0);
            for (m, q) in state.chunks_exact(width).zip(q) {
                out.iter_mut().zip(m).for_each(|(o, m)| *o += decay * q * m);
            }
            for j in 0..=i {
                let f = dot(q, key(j)) * exp(c[i] - c[j]);
                out.iter_mut().zip(&d[j * width..(j + 1) * width]).for_each(|(o, d)| *o += f * d);
            }
        }
        // M <- exp(c_C) M + sum_j exp(c_C - c_j) k_j D_j^T.
        let last = c[len - 1];
        state.iter_mut().for_each(|m| *m *= exp(last));
        for j in 0..len {
            let f = exp(last - c[j]);
            for (m, k) in state.chunks_exact_mut(width).zip(key(j)) {
                m.iter_mut().zip(&d[j * width..(j + 1) * width]).for_each(|(m, d)| *m += f * k * d);
            }
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
