//! Attention in float32: every score is one dot product, the softmax is over all tokens at once, and an output value is
//! one running sum in the order of the tokens. Keys and values that are kept in a smaller type are decoded a stretch of
//! tokens at a time, once for all heads that share them.

use std::cell::RefCell;
use std::ptr::null;

use super::cache::{Part, Store};
use super::{KvCache, Queries, Selections};
use crate::Cpu;
use crate::math::exp;
use crate::pool::DisjointMut;
use crate::vector::{LANES, Lanes, add_product, dispatch, dots, prefetch};

/// Query heads that share what is read of the cache.
const HEADS: usize = 4;
/// Keys whose scores are found together.
const KEYS: usize = 4;
/// Tokens after which the next heads and dimensions have their turn, so that their values come from a near cache.
const STRETCH: usize = 64;

/// What a thread keeps between tasks.
#[derive(Default)]
struct Scratch {
    tokens: Vec<u32>,
    /// `[heads that share keys][tokens]`.
    weights: Vec<f32>,
    /// `[heads that share keys]`: what sums are multiplied with in the end.
    factors: Vec<f32>,
    /// `[STRETCH][dim]`.
    decoded: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

pub(super) fn attend(cpu: &Cpu, cache: &KvCache, queries: &Queries<'_>, selections: &Selections, out: &mut [f32]) {
    let (kv_heads, dim) = (cache.heads(), cache.dim());
    let group = queries.heads / kv_heads;
    let out = DisjointMut::new(out);
    cpu.pool.run(
        selections.rows() * kv_heads,
        false,
        || (),
        |(), task| {
            SCRATCH.with_borrow_mut(|scratch| {
                let Scratch { tokens, weights, factors, decoded } = scratch;
                tokens.clear();
                selections.row(task / kv_heads).ranges().for_each(|r| tokens.extend(r.start as u32..r.end as u32));
                weights.resize(weights.len().max(group * tokens.len()), 0.0);
                factors.resize(factors.len().max(group), 0.0);
                decoded.resize(decoded.len().max(STRETCH * dim), 0.0);
                let head = Head { cache, head: task % kv_heads };
                let width = group * queries.stride;
                // SAFETY: this task alone writes the heads of its key/value head in its row.
                let out = unsafe { out.part(task * group * dim, group * dim) };
                heads(cpu.isa(), &head, &queries.values[task * width..][..width], scratch, out);
            });
        },
    );
}

/// Keys and values of one key/value head.
struct Head<'a> {
    cache: &'a KvCache,
    head: usize,
}

/// Where the keys or values of a stretch of tokens are.
type Stretch = [*const f32; STRETCH];

impl Head<'_> {
    /// Finds the keys or values of at most [`STRETCH`] tokens, or decodes them into `decoded`.
    #[inline(always)]
    fn locate(&self, part: Part, tokens: &[u32], decoded: &mut [f32], out: &mut Stretch) {
        let (heads, dim) = (self.cache.heads(), self.cache.dim());
        match &self.cache.store {
            Store::Rows { .. } => _ = self.find(part, tokens, out),
            Store::Grains(stored) => {
                let grains = self.cache.grains();
                for i in 0..tokens.len() {
                    let row = &mut decoded[i * dim..][..dim];
                    grains.read_token(part, stored, heads, (tokens[i] as usize, self.head), row);
                    out[i] = row.as_ptr();
                }
            }
        }
    }

    /// Finds what needs no decoding, and says of how many tokens.
    #[inline(always)]
    fn find(&self, part: Part, tokens: &[u32], out: &mut Stretch) -> usize {
        let Store::Rows { keys, values } = &self.cache.store else { return 0 };
        let rows = if matches!(part, Part::Keys) { keys } else { values };
        let (heads, dim) = (self.cache.heads(), self.cache.dim());
        for i in 0..tokens.len() {
            out[i] = rows[(tokens[i] as usize * heads + self.head) * dim..][..dim].as_ptr();
        }
        tokens.len()
    }
}

dispatch! {
    /// The query heads of one row that share a key/value head.
    fn heads = heads_body(head: &Head<'_>, queries: &[f32], scratch: &mut Scratch, out: &mut [f32])
}

#[inline(always)]
fn heads_body<V: Lanes, const FUSED: bool>(head: &Head<'_>, queries: &[f32], scratch: &mut Scratch, out: &mut [f32]) {
    let Scratch { tokens, weights, factors, decoded } = scratch;
    let (dim, len) = (head.cache.dim(), tokens.len());
    let count = out.len() / dim;
    let stride = queries.len() / count;
    let (mut rows, mut coming) = ([null(); STRETCH], [null(); STRETCH]);

    let mut at = 0;
    while at < len {
        let end = len.min(at + STRETCH);
        head.locate(Part::Keys, &tokens[at..end], decoded, &mut rows);
        let asked = match end == len {
            true => head.find(Part::Values, &tokens[..len.min(STRETCH)], &mut coming),
            false => head.find(Part::Keys, &tokens[end..len.min(end + STRETCH)], &mut coming),
        };
        let mut h = 0;
        while h < count {
            let coming = if h == 0 { &coming[..asked] } else { &[] };
            let (queries, weights) = (&queries[h * stride..], &mut weights[h * len..]);
            // SAFETY: the rows were located; `dispatch` vouches for the instructions.
            unsafe {
                if h + HEADS <= count {
                    scores::<V, FUSED, HEADS>(&rows[..end - at], coming, queries, stride, dim, weights, len, at);
                    h += HEADS;
                } else {
                    scores::<V, FUSED, 1>(&rows[..end - at], coming, queries, stride, dim, weights, len, at);
                    h += 1;
                }
            }
        }
        at = end;
    }

    for h in 0..count {
        factors[h] = softmax(&mut weights[h * len..][..len]);
    }

    out.fill(0.0);
    let mut at = 0;
    while at < len {
        let end = len.min(at + STRETCH);
        head.locate(Part::Values, &tokens[at..end], decoded, &mut rows);
        let asked = head.find(Part::Values, &tokens[end..len.min(end + STRETCH)], &mut coming);
        let mut h = 0;
        while h < count {
            let coming = if h == 0 { &coming[..asked] } else { &[] };
            let (weights, out) = (&weights[h * len..], &mut out[h * dim..]);
            // SAFETY: as above.
            unsafe {
                if h + HEADS <= count {
                    add_values::<V, FUSED, HEADS>(&rows[..end - at], coming, weights, len, at, dim, out);
                    h += HEADS;
                } else {
                    add_values::<V, FUSED, 1>(&rows[..end - at], coming, weights, len, at, dim, out);
                    h += 1;
                }
            }
        }
        at = end;
    }
    for h in 0..count {
        for o in &mut out[h * dim..][..dim] {
            *o *= factors[h];
        }
    }
}

/// Scores of `H` heads for a stretch of keys, into `weights`, `[H][len]`, from `at`. Asks for `coming` rows.
///
/// # Safety
/// All keys must be readable for `dim` values, and the processor must have the instructions of `V`.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // one loop of the caller's
unsafe fn scores<V: Lanes, const FUSED: bool, const H: usize>(
    keys: &[*const f32],
    coming: &[*const f32],
    queries: &[f32],
    stride: usize,
    dim: usize,
    weights: &mut [f32],
    len: usize,
    at: usize,
) {
    let weights = &mut weights[..(H - 1) * len + at + keys.len()];
    let mut query = [queries.as_ptr(); H];
    for h in 0..H {
        query[h] = queries[h * stride..][..dim].as_ptr();
    }
    let scale = 1.0 / (dim as f32).sqrt();
    let mut i = 0;
    while i + KEYS <= keys.len() {
        for k in i..coming.len().min(i + KEYS) {
            for line in 0..dim.div_ceil(LANES) {
                prefetch(coming[k].wrapping_add(line * LANES));
            }
        }
        // SAFETY: all are `dim` long; the caller vouches for the instructions.
        let products =
            unsafe { dots::<V, FUSED, KEYS, H>([keys[i], keys[i + 1], keys[i + 2], keys[i + 3]], query, dim) };
        for k in 0..KEYS {
            for h in 0..H {
                weights[h * len + at + i + k] = products[k][h] * scale;
            }
        }
        i += KEYS;
    }
    while i < keys.len() {
        // SAFETY: as above.
        let products = unsafe { dots::<V, FUSED, 1, H>([keys[i]], query, dim) };
        for h in 0..H {
            weights[h * len + at + i] = products[0][h] * scale;
        }
        i += 1;
    }
}

/// Turns scores into weights relative to the largest, and gives the factor that makes their sum one.
#[inline(always)]
fn softmax(weights: &mut [f32]) -> f32 {
    // By lanes, which the largest of all does not depend on.
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = weights.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = if chunk[lane] > lanes[lane] { chunk[lane] } else { lanes[lane] };
        }
    }
    let mut largest = f32::NEG_INFINITY;
    for weight in lanes.iter().chain(rest) {
        largest = largest.max(*weight);
    }
    for weight in weights.iter_mut() {
        *weight = exp(*weight - largest);
    }
    let mut sum = 0.0;
    for weight in weights.iter() {
        sum += *weight;
    }
    1.0 / sum
}

/// Adds a stretch of values by `weights`, `[H][len]` from `at`, to the sums of `H` heads. Asks for `coming` rows.
///
/// # Safety
/// All values must be readable for `dim`, and the processor must have the instructions of `V`.
#[inline(always)]
unsafe fn add_values<V: Lanes, const FUSED: bool, const H: usize>(
    values: &[*const f32],
    coming: &[*const f32],
    weights: &[f32],
    len: usize,
    at: usize,
    dim: usize,
    out: &mut [f32],
) {
    let weights = &weights[at..(H - 1) * len + at + values.len()];
    let out = &mut out[..H * dim];
    let whole = dim / LANES * LANES;
    let mut d = 0;
    // SAFETY: dimensions below `whole` are asked for; the rest as the caller promises.
    unsafe {
        // More sums where there are registers for them.
        while V::REGISTERS == 1 && d + 4 * LANES <= whole {
            add_lanes::<V, H, 4>(values, coming, weights, len, dim, d, out);
            d += 4 * LANES;
        }
        while d < whole {
            add_lanes::<V, H, 1>(values, coming, weights, len, dim, d, out);
            d += LANES;
        }
    }
    for d in whole..dim {
        for i in 0..values.len() {
            // SAFETY: `d` is below `dim`.
            let value = unsafe { *values[i].add(d) };
            for h in 0..H {
                out[h * dim + d] = add_product::<FUSED>(out[h * dim + d], weights[h * len + i], value);
            }
        }
    }
}

/// [`add_values`] for the dimensions from `d` on, as many as `D` registers have; `weights` begin with the stretch's.
///
/// # Safety
/// All values and outputs must have these dimensions, `weights` those of `H` heads for all values; the processor must have
/// the instructions of `V`.
#[inline(always)]
unsafe fn add_lanes<V: Lanes, const H: usize, const D: usize>(
    values: &[*const f32],
    coming: &[*const f32],
    weights: &[f32],
    len: usize,
    dim: usize,
    d: usize,
    out: &mut [f32],
) {
    // SAFETY: by the caller's promise.
    unsafe {
        let mut sums = [[V::zero(); D]; H];
        for h in 0..H {
            for i in 0..D {
                sums[h][i] = V::load(out.as_ptr().add(h * dim + d + i * LANES));
            }
        }
        for token in 0..values.len() {
            let at = values[token].add(d);
            let mut value = [V::zero(); D];
            for i in 0..D {
                value[i] = V::load(at.add(i * LANES));
            }
            if token < coming.len() {
                for i in 0..D {
                    prefetch(coming[token].wrapping_add(d + i * LANES));
                }
            }
            for h in 0..H {
                let weight = V::splat(*weights.as_ptr().add(h * len + token));
                for i in 0..D {
                    sums[h][i] = sums[h][i].add_product(weight, value[i]);
                }
            }
        }
        for h in 0..H {
            for i in 0..D {
                sums[h][i].store(out.as_mut_ptr().add(h * dim + d + i * LANES));
            }
        }
    }
}
