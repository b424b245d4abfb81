//! Attention in float32: every score is one dot product, the softmax is over all tokens at once, and an output value is
//! one running sum in the order of the tokens.

use std::cell::RefCell;

use super::{KvCache, Queries, Selections};
use crate::Cpu;
use crate::math::exp;
use crate::pool::DisjointMut;
use crate::vector::{LANES, Lanes, add_product, dispatch, dots};

/// Query heads that share what is read of the cache.
const HEADS: usize = 4;
/// Keys whose scores are found together.
const KEYS: usize = 4;
/// Tokens after which the next dimensions have their turn, so that their values come from a near cache.
const STRETCH: usize = 64;

/// What a thread keeps between tasks.
#[derive(Default)]
struct Scratch {
    tokens: Vec<u32>,
    /// `[HEADS][tokens]`.
    weights: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

pub(super) fn attend(
    cpu: &Cpu,
    cache: &KvCache,
    [keys, values]: [&[f32]; 2],
    queries: &Queries<'_>,
    selections: &Selections,
    out: &mut [f32],
) {
    let (kv_heads, dim) = (cache.heads(), cache.dim());
    let group = queries.heads / kv_heads;
    let out = DisjointMut::new(out);
    cpu.pool.run(
        selections.rows() * kv_heads,
        false,
        || (),
        |(), task| {
            SCRATCH.with_borrow_mut(|Scratch { tokens, weights }| {
                tokens.clear();
                selections.row(task / kv_heads).ranges().for_each(|r| tokens.extend(r.start as u32..r.end as u32));
                weights.resize(weights.len().max(HEADS * tokens.len()), 0.0);
                let at = task % kv_heads * dim;
                let head = Head { keys: &keys[at..], values: &values[at..], stride: kv_heads * dim, dim };
                let width = group * queries.stride;
                // SAFETY: this task alone writes the heads of its key/value head in its row.
                let out = unsafe { out.part(task * group * dim, group * dim) };
                let weights = &mut weights[..HEADS * tokens.len()];
                heads(cpu.isa(), &head, &queries.values[task * width..][..width], tokens, weights, out);
            });
        },
    );
}

/// Keys and values of one key/value head: token `t` starts at `t * stride`.
struct Head<'a> {
    keys: &'a [f32],
    values: &'a [f32],
    stride: usize,
    dim: usize,
}

dispatch! {
    /// The query heads of one row that share a key/value head.
    fn heads = heads_body(head: &Head<'_>, queries: &[f32], tokens: &[u32], weights: &mut [f32], out: &mut [f32])
}

#[inline(always)]
fn heads_body<V: Lanes, const FUSED: bool>(
    head: &Head<'_>,
    queries: &[f32],
    tokens: &[u32],
    weights: &mut [f32],
    out: &mut [f32],
) {
    let count = out.len() / head.dim;
    let stride = queries.len() / count;
    for &token in tokens {
        let end = token as usize * head.stride + head.dim;
        assert!(end <= head.keys.len() && end <= head.values.len(), "attend: token {token} is not in the cache");
    }
    let mut h = 0;
    while h + HEADS <= count {
        let out = &mut out[h * head.dim..][..HEADS * head.dim];
        // SAFETY: the tokens are in the cache; `dispatch` vouches for the instructions.
        unsafe { some_heads::<V, FUSED, HEADS>(head, &queries[h * stride..], stride, tokens, weights, out) };
        h += HEADS;
    }
    while h < count {
        let out = &mut out[h * head.dim..][..head.dim];
        // SAFETY: as above.
        unsafe { some_heads::<V, FUSED, 1>(head, &queries[h * stride..], stride, tokens, weights, out) };
        h += 1;
    }
}

/// # Safety
/// All tokens must be in the cache, and the processor must have the instructions of `V`.
#[inline(always)]
unsafe fn some_heads<V: Lanes, const FUSED: bool, const H: usize>(
    head: &Head<'_>,
    queries: &[f32],
    stride: usize,
    tokens: &[u32],
    weights: &mut [f32],
    out: &mut [f32],
) {
    let (dim, count) = (head.dim, tokens.len());
    let weights = &mut weights[..H * count];
    let mut query = [queries.as_ptr(); H];
    for h in 0..H {
        query[h] = queries[h * stride..][..dim].as_ptr();
    }

    let scale = 1.0 / (dim as f32).sqrt();
    let mut at = 0;
    while at + KEYS <= count {
        let mut keys = [head.keys.as_ptr(); KEYS];
        for i in 0..KEYS {
            // SAFETY: the caller vouches for the token.
            keys[i] = unsafe { head.keys.as_ptr().add(tokens[at + i] as usize * head.stride) };
        }
        // SAFETY: all are `dim` long; the caller vouches for the instructions.
        let products = unsafe { dots::<V, FUSED, KEYS, H>(keys, query, dim) };
        for i in 0..KEYS {
            for h in 0..H {
                weights[h * count + at + i] = products[i][h] * scale;
            }
        }
        at += KEYS;
    }
    while at < count {
        // SAFETY: as above.
        let products = unsafe {
            let key = head.keys.as_ptr().add(tokens[at] as usize * head.stride);
            dots::<V, FUSED, 1, H>([key], query, dim)
        };
        for h in 0..H {
            weights[h * count + at] = products[0][h] * scale;
        }
        at += 1;
    }

    let mut factors = [0.0; H];
    for h in 0..H {
        let weights = &mut weights[h * count..][..count];
        let mut largest = f32::NEG_INFINITY;
        for weight in weights.iter() {
            largest = largest.max(*weight);
        }
        for weight in weights.iter_mut() {
            *weight = exp(*weight - largest);
        }
        let mut sum = 0.0;
        for weight in weights.iter() {
            sum += *weight;
        }
        factors[h] = 1.0 / sum;
    }

    out.fill(0.0);
    let whole = dim / LANES * LANES;
    let mut first = 0;
    while first < count {
        let stretch = first..count.min(first + STRETCH);
        let mut d = 0;
        while d < whole {
            // SAFETY: `d + LANES <= dim`, the length of an output and of a value; the rest as above.
            unsafe {
                let mut sums = [V::zero(); H];
                for h in 0..H {
                    sums[h] = V::load(out.as_ptr().add(h * dim + d));
                }
                for i in stretch.clone() {
                    let value = V::load(head.values.as_ptr().add(tokens[i] as usize * head.stride + d));
                    for h in 0..H {
                        sums[h] = sums[h].add_product(V::splat(weights[h * count + i]), value);
                    }
                }
                for h in 0..H {
                    out[h * dim + d..][..LANES].copy_from_slice(&sums[h].to_array());
                }
            }
            d += LANES;
        }
        for d in whole..dim {
            for i in stretch.clone() {
                let value = head.values[tokens[i] as usize * head.stride + d];
                for h in 0..H {
                    out[h * dim + d] = add_product::<FUSED>(out[h * dim + d], weights[h * count + i], value);
                }
            }
        }
        first = stretch.end;
    }
    for h in 0..H {
        for o in &mut out[h * dim..][..dim] {
            *o *= factors[h];
        }
    }
}
