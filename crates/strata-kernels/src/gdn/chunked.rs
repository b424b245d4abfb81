//! The recurrence as products over chunks of tokens: equal to the other form up to rounding, but its bytes depend on where
//! chunks begin, that is, on how a prompt was cut. It exists for comparison.

use super::{Head, State, Strip};
use crate::Cpu;
use crate::math::exp;

/// Tokens that the chunked form takes together.
pub const CHUNK_TOKENS: usize = 64;

/// The chunked form of [`recurrent`](super::recurrent), on the same state.
pub fn chunked(cpu: &Cpu, strip: &Strip<'_>, state: &mut State, out: &mut [f32]) {
    let sizes @ (tokens, keys, width) = strip.sizes(state, out);
    let mut matrices = vec![0.0; strip.value_heads * keys * width];
    for (h, matrix) in matrices.chunks_exact_mut(keys * width).enumerate() {
        state.read(h, matrix);
    }
    cpu.for_row_pairs((&mut matrices, keys * width), (out, tokens * width), |h, matrix, out| {
        chunked_head(&strip.head(h, sizes), matrix, out);
    });
    for (h, matrix) in matrices.chunks_exact(keys * width).enumerate() {
        state.write(h, matrix);
    }
}

fn chunked_head(head: &Head<'_>, state: &mut [f32], out: &mut [f32]) {
    let &Head { keys, width, .. } = head;
    let mut scratch = vec![0.0; CHUNK_TOKENS * (CHUNK_TOKENS + keys + width + 1)];
    let (a, rest) = scratch.split_at_mut(CHUNK_TOKENS * CHUNK_TOKENS);
    let (w, rest) = rest.split_at_mut(CHUNK_TOKENS * keys);
    let (d, sums) = rest.split_at_mut(CHUNK_TOKENS * width);

    for (chunk, out) in out.chunks_mut(CHUNK_TOKENS * width).enumerate() {
        let base = chunk * CHUNK_TOKENS;
        let len = out.len() / width;
        let key = |i: usize| head.key(base + i);
        // c_i = g_1 + ... + g_i; only differences c_i - c_j <= 0 are exponentiated.
        let mut sum = 0.0;
        for (i, c) in sums[..len].iter_mut().enumerate() {
            sum += head.log_decay(base + i);
            *c = sum;
        }
        let c = &sums[..len];
        // (I + A) U = diag(beta) V and (I + A) W = diag(beta exp(c)) K, by forward substitution; U is kept in `d`.
        for i in 0..len {
            let beta = head.beta(base + i);
            for j in 0..i {
                a[i * CHUNK_TOKENS + j] = beta * dot(key(i), key(j)) * exp(c[i] - c[j]);
            }
            let (w_done, w_row) = w.split_at_mut(i * keys);
            let (d_done, d_row) = d.split_at_mut(i * width);
            let scale = beta * exp(c[i]);
            w_row.iter_mut().zip(key(i)).for_each(|(w, k)| *w = scale * k);
            d_row.iter_mut().zip(head.value(base + i)).for_each(|(d, v)| *d = beta * v);
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
            let q = head.query(base + i);
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
