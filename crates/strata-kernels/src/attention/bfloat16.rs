//! Attention with products of bfloat16: tiles of 64 of a row's tokens, softmax as it goes, sums in float32.
//!
//! A row's tiles are made of its own tokens only, in their order, by grains of the cache; a token of a grain that the row
//! does not attend to has probability 0, and its value is taken as 0 whatever lies there. Queries, and probabilities
//! relative to the largest score so far, are rounded to bfloat16; the softmax divides by the sum of the rounded ones.

use std::arch::x86_64::*;
use std::array::from_fn;
use std::cell::RefCell;
use std::mem::transmute;
use std::ops::Range;
use std::ptr::null;

use super::cache::{GRAIN_TOKENS, Line, grain_lines, padded};
use super::{KvCache, Queries, Ranges, Selections};
use crate::math::exp;
use crate::pool::DisjointMut;
use crate::vector::{LANES, fold, prefetch};
use crate::{Arithmetic, Cpu};

/// Grains of a tile.
const TILE_GRAINS: usize = 16;
/// Tokens of a tile.
const TILE_TOKENS: usize = TILE_GRAINS * GRAIN_TOKENS;
/// Token pairs of a tile.
const TILE_PAIRS: usize = TILE_TOKENS / 2;
/// Neighbouring rows that go through their tiles together: what one reads of the cache, the next finds nearby.
const ROWS: usize = 8;
/// Query heads whose sums a product keeps in registers, times four registers each.
const HEADS: usize = 6;

/// Calls the form of a function for as many heads as are left, at most [`HEADS`].
macro_rules! for_heads {
    ($left:expr, $f:ident, $($flag:literal,)? ($($arg:expr),*)) => {
        match $left {
            1 => $f::<1, $($flag)?>($($arg),*),
            2 => $f::<2, $($flag)?>($($arg),*),
            3 => $f::<3, $($flag)?>($($arg),*),
            4 => $f::<4, $($flag)?>($($arg),*),
            5 => $f::<5, $($flag)?>($($arg),*),
            _ => $f::<HEADS, $($flag)?>($($arg),*),
        }
    };
}

/// One register of float32.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Floats([f32; LANES]);

/// What a thread keeps between tasks.
#[derive(Default)]
struct Scratch {
    /// `[ROWS][heads][padded dim]`, bfloat16.
    queries: Vec<Line>,
    /// `[ROWS][heads][padded dim]`.
    sums: Vec<Floats>,
    /// `[heads][TILE_TOKENS]`, of one row and tile.
    scores: Vec<Floats>,
    /// `[heads][TILE_PAIRS][2]`, bfloat16.
    weights: Vec<Line>,
    softmax: Vec<Softmax>,
    /// `[heads]`: what earlier sums are multiplied with.
    factors: Vec<f32>,
}

/// The softmax of one row and head, so far.
#[derive(Clone, Copy)]
struct Softmax {
    largest: f32,
    sum: f32,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The keys and values of one key/value head.
#[derive(Clone, Copy)]
struct Head<'a> {
    keys: &'a [Line],
    values: &'a [Line],
    /// The first line of this head in a grain, and lines from one grain to the next.
    first: usize,
    stride: usize,
    dim: usize,
}

pub(super) fn attend(
    cpu: &Cpu,
    cache: &KvCache,
    [keys, values]: [&[Line]; 2],
    queries: &Queries<'_>,
    selections: &Selections,
    out: &mut [f32],
) {
    assert_eq!(cpu.arithmetic(), Arithmetic::Bfloat16, "attend: the cache is of another arithmetic");
    let (kv_heads, dim) = (cache.heads(), cache.dim());
    let (rows, group) = (selections.rows(), queries.heads / kv_heads);
    let row_groups = rows.div_ceil(ROWS);
    // With few rows there are more threads than tasks: then the heads of a group are shared out.
    let parts = cpu.threads().div_ceil((row_groups * kv_heads).max(1)).min(group);
    let part_heads = group.div_ceil(parts);
    let parts = group.div_ceil(part_heads);
    let out = DisjointMut::new(out);
    cpu.pool.run(
        kv_heads * parts * row_groups,
        false,
        || (),
        |(), task| {
            let (kv_head, part, row_group) = (task / row_groups / parts, task / row_groups % parts, task % row_groups);
            let lines = grain_lines(dim);
            let head = Head { keys, values, first: kv_head * lines, stride: kv_heads * lines, dim };
            let heads = kv_head * group + part * part_heads..kv_head * group + group.min((part + 1) * part_heads);
            let rows = row_group * ROWS..rows.min((row_group + 1) * ROWS);
            SCRATCH.with_borrow_mut(|scratch| {
                // SAFETY: only a processor that has the instructions computes in bfloat16.
                unsafe { attend_rows(&head, queries, heads.clone(), rows.clone(), selections, scratch) };
                let width = padded(dim) / LANES;
                for (i, (row, h)) in rows.flat_map(|row| heads.clone().map(move |h| (row, h))).enumerate() {
                    let scale = 1.0 / scratch.softmax[i].sum;
                    // SAFETY: this task alone writes these rows of these heads.
                    let out = unsafe { out.part((row * queries.heads + h) * dim, dim) };
                    for (out, sums) in out.chunks_mut(LANES).zip(&scratch.sums[i * width..]) {
                        for (o, sum) in out.iter_mut().zip(&sums.0) {
                            *o = sum * scale;
                        }
                    }
                }
            });
        },
    );
}

/// A part of a row's tokens: grains, and which of their tokens are meant.
struct Tile {
    grains: [usize; TILE_GRAINS],
    len: usize,
    /// Bit `4 g + t`: token `t` of grain `g`.
    mask: u64,
}

/// Cuts a row's ranges into tiles.
struct Tiles<'a> {
    ranges: Ranges<'a>,
    /// What is left of the last range.
    rest: Range<usize>,
}

impl Tiles<'_> {
    fn next(&mut self) -> Option<Tile> {
        let mut tile = Tile { grains: [0; TILE_GRAINS], len: 0, mask: 0 };
        while tile.len < TILE_GRAINS {
            if self.rest.is_empty() {
                let Some(range) = self.ranges.next() else { break };
                self.rest = range;
            }
            let start = self.rest.start;
            let grain = start / GRAIN_TOKENS;
            let end = self.rest.end.min((grain + 1) * GRAIN_TOKENS);
            let tokens = ((1 << (end - start)) - 1) << (start % GRAIN_TOKENS);
            tile.grains[tile.len] = grain;
            tile.mask |= tokens << (GRAIN_TOKENS * tile.len);
            tile.len += 1;
            self.rest.start = end;
        }
        (tile.len > 0).then_some(tile)
    }
}

/// Leaves the unscaled sums and the softmax of `[rows][heads]` in `scratch`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
fn attend_rows(
    head: &Head<'_>,
    queries: &Queries<'_>,
    heads: Range<usize>,
    rows: Range<usize>,
    selections: &Selections,
    scratch: &mut Scratch,
) {
    let (width, count) = (padded(head.dim), heads.len());
    scratch.prepare(rows.len() * count, count, width);
    let Scratch { queries: rounded, sums, scores, weights, softmax, factors } = scratch;
    let rounded: *mut u16 = rounded.as_mut_ptr().cast();
    for row in 0..rows.len() {
        for h in 0..count {
            let at = ((rows.start + row) * queries.heads + heads.start + h) * queries.stride;
            // SAFETY: `prepare` made room for `[rows][heads][width]`.
            unsafe { round_query(&queries.values[at..][..head.dim], rounded.add((row * count + h) * width)) };
        }
    }
    let mut tiles: [Option<Tiles<'_>>; ROWS] = from_fn(|row| {
        (row < rows.len()).then(|| Tiles { ranges: selections.row(rows.start + row).ranges(), rest: 0..0 })
    });
    let mut is_left = true;
    while is_left {
        is_left = false;
        for row in 0..rows.len() {
            let Some(tile) = tiles[row].as_mut().and_then(Tiles::next) else { continue };
            is_left = true;
            // SAFETY: `locate` checks the grains; `prepare` made room for the rest, all of which this function owns.
            unsafe {
                let located = head.locate(&tile);
                let query = rounded.add(row * count * width).cast_const();
                score_tile(query, count, width, &located, tile.len, scores.as_mut_ptr());
                let scale = 1.0 / (head.dim as f32).sqrt();
                for h in 0..count {
                    let scores = &mut scores[h * (TILE_TOKENS / LANES)..][..TILE_TOKENS / LANES];
                    let scores = scores.try_into().expect("the scores of a tile");
                    let weights = &mut weights[2 * h..][..2];
                    factors[h] = softmax[row * count + h].add_tile(scores, scale, tile.mask, weights);
                }
                let sums = sums.as_mut_ptr().cast::<f32>().add(row * count * width);
                add_values(weights.as_ptr().cast(), factors, width, &located[1], &tile, sums);
            }
        }
    }
}

impl Scratch {
    fn prepare(&mut self, rows_heads: usize, heads: usize, width: usize) {
        fn at_least<T: Clone>(buffer: &mut Vec<T>, len: usize, value: T) {
            if buffer.len() < len {
                buffer.resize(len, value);
            }
        }
        at_least(&mut self.queries, (rows_heads * width * 2).div_ceil(size_of::<Line>()), Line([0; 32]));
        at_least(&mut self.sums, rows_heads * width / LANES, Floats([0.0; LANES]));
        at_least(&mut self.scores, heads * TILE_TOKENS / LANES, Floats([0.0; LANES]));
        at_least(&mut self.weights, heads * 2, Line([0; 32]));
        self.sums[..rows_heads * width / LANES].fill(Floats([0.0; LANES]));
        self.softmax.clear();
        self.softmax.resize(rows_heads, Softmax { largest: f32::NEG_INFINITY, sum: 0.0 });
        self.factors.clear();
        self.factors.resize(heads, 0.0);
    }
}

/// Where the grains of a tile begin, by fours. Places that have no grain repeat the first.
type Quads = [[*const Line; 4]; TILE_GRAINS / 4];

impl Head<'_> {
    /// The keys and the values of a tile's grains.
    fn locate(&self, tile: &Tile) -> [Quads; 2] {
        let mut out = [[[null(); 4]; TILE_GRAINS / 4]; 2];
        for i in 0..TILE_GRAINS {
            let grain = tile.grains[if i < tile.len { i } else { 0 }];
            let at = self.first + grain * self.stride;
            let end = at + grain_lines(self.dim);
            assert!(end <= self.keys.len() && end <= self.values.len(), "attend: grain {grain} is not in the cache");
            out[0][i / 4][i % 4] = self.keys[at..].as_ptr();
            out[1][i / 4][i % 4] = self.values[at..].as_ptr();
        }
        out
    }
}

/// Rounds a query to bfloat16 and pads it with zeros.
///
/// # Safety
/// `out` must be writable for `padded(query.len())` values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn round_query(query: &[f32], out: *mut u16) {
    for at in (0..padded(query.len())).step_by(LANES) {
        let mask = ((1u32 << query.len().saturating_sub(at).min(LANES)) - 1) as __mmask16;
        // SAFETY: the mask ends at the query's end; the caller made room for the padding.
        unsafe {
            let values = _mm512_maskz_loadu_ps(mask, query.as_ptr().wrapping_add(at));
            let rounded = transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(values));
            _mm256_storeu_si256(out.add(at).cast(), rounded);
        }
    }
}

/// Products of `heads` queries with the keys of a tile, `[heads][TILE_TOKENS]`, written up to the last grain's quad. Asks
/// for what comes after: the values of the same grains, and the keys of the next.
///
/// # Safety
/// `query` must be readable for `[heads][width]`, keys for their lines, and `out` writable for all scores.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn score_tile(
    query: *const u16,
    heads: usize,
    width: usize,
    [keys, values]: &[Quads; 2],
    grains: usize,
    out: *mut Floats,
) {
    for quad in 0..grains.div_ceil(4) {
        let mut h = 0;
        while h < heads {
            // SAFETY: head `h` and those after it are within `heads`; the rest is the caller's promise.
            unsafe {
                let (query, out) = (query.add(h * width), out.add(h * (TILE_TOKENS / LANES) + quad));
                let coming = [values[quad], keys[(quad + 1) % keys.len()]];
                let coming = if h == 0 { &coming[..] } else { &[] };
                for_heads!(heads - h, score_quad, (query, width, keys[quad], coming, out));
            }
            h += HEADS;
        }
    }
}

/// Products of `H` queries with four grains of keys.
///
/// # Safety
/// As for [`score_tile`], for `H` heads.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn score_quad<const H: usize>(
    query: *const u16,
    width: usize,
    keys: [*const Line; 4],
    coming: &[[*const Line; 4]],
    out: *mut Floats,
) {
    // SAFETY: by the caller's promise; a line of keys goes with eight values of each query.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); 4]; H];
        for line in 0..width / 8 {
            let mut key = [_mm512_setzero_si512(); 4];
            for g in 0..4 {
                key[g] = _mm512_load_si512(keys[g].add(line).cast());
            }
            for quad in coming {
                for g in 0..4 {
                    prefetch(quad[g].wrapping_add(line));
                }
            }
            for h in 0..H {
                let eight = _mm512_broadcast_i32x4(_mm_loadu_si128(query.add(h * width + line * 8).cast()));
                for g in 0..4 {
                    sums[h][g] = products(sums[h][g], eight, key[g]);
                }
            }
        }
        // A register has four sums for each token of its grain. Adding them transposes: lane `4 t + g`, then `4 g + t`.
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        for h in 0..H {
            let [a, b, c, d] = sums[h];
            let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
            let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
            let even = _mm512_shuffle_ps::<0b01_00_01_00>(ab, cd);
            let odd = _mm512_shuffle_ps::<0b11_10_11_10>(ab, cd);
            let tokens = _mm512_permutexvar_ps(order, _mm512_add_ps(even, odd));
            _mm512_store_ps(out.add(h * (TILE_TOKENS / LANES)).cast(), tokens);
        }
    }
}

/// `sums` and the products of pairs of bfloat16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn products(sums: __m512, a: __m512i, b: __m512i) -> __m512 {
    // SAFETY: both types are 64 bytes of which every pattern is a value.
    unsafe { _mm512_dpbf16_ps(sums, transmute::<__m512i, __m512bh>(a), transmute::<__m512i, __m512bh>(b)) }
}

impl Softmax {
    /// Turns the scores of a tile into rounded probabilities relative to the largest so far, and gives the factor for
    /// all earlier sums. Tokens that the mask lacks get probability 0.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    fn add_tile(
        &mut self,
        scores: &mut [Floats; TILE_TOKENS / LANES],
        scale: f32,
        mask: u64,
        weights: &mut [Line],
    ) -> f32 {
        let scale = _mm512_set1_ps(scale);
        let mut largest = _mm512_set1_ps(self.largest);
        for i in 0..scores.len() {
            let lanes = (mask >> (LANES * i)) as __mmask16;
            // SAFETY: the array is of registers.
            unsafe {
                let at = scores[i].0.as_mut_ptr();
                let scaled = _mm512_mul_ps(_mm512_load_ps(at), scale);
                let scaled = _mm512_mask_blend_ps(lanes, _mm512_set1_ps(f32::NEG_INFINITY), scaled);
                _mm512_store_ps(at, scaled);
                largest = _mm512_max_ps(largest, scaled);
            }
        }
        let largest = _mm512_reduce_max_ps(largest);
        for lanes in scores.iter_mut() {
            for score in &mut lanes.0 {
                *score = exp(*score - largest);
            }
        }
        let ones = _mm512_set1_epi16(0x3f80);
        let mut sum = _mm512_setzero_ps();
        for (two, weights) in scores.chunks_exact(2).zip(weights) {
            // SAFETY: both are registers.
            unsafe {
                let [low, high] = [_mm512_load_ps(two[0].0.as_ptr()), _mm512_load_ps(two[1].0.as_ptr())];
                let rounded = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
                _mm512_store_si512(weights.0.as_mut_ptr().cast(), rounded);
                sum = products(sum, rounded, ones);
            }
        }
        let mut lanes = Floats([0.0; LANES]);
        // SAFETY: sixteen aligned places.
        unsafe { _mm512_store_ps(lanes.0.as_mut_ptr(), sum) };
        let factor = exp(self.largest - largest);
        self.sum = self.sum * factor + fold(lanes.0);
        self.largest = largest;
        factor
    }
}

/// `sums = sums * factor + weights * values` for all heads: `weights` is `[heads][TILE_PAIRS]`, `sums` `[heads][width]`.
///
/// # Safety
/// Values must be readable for their lines, `weights` and `sums` for the heads that `factors` has, `sums` writable.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn add_values(weights: *const i32, factors: &[f32], width: usize, values: &Quads, tile: &Tile, sums: *mut f32) {
    let values = &values.as_flattened()[..tile.len];
    let is_whole = tile.mask == u64::MAX >> (64 - GRAIN_TOKENS * tile.len);
    for line in (0..width / LANES).step_by(4) {
        let mut h = 0;
        while h < factors.len() {
            let factors = &factors[h..];
            // SAFETY: head `h` and those after it are within `factors`; the rest is the caller's promise.
            unsafe {
                let (weights, sums) = (weights.add(h * TILE_PAIRS), sums.add(h * width + line * LANES));
                if is_whole {
                    for_heads!(
                        factors.len(),
                        add_lines,
                        true,
                        (weights, factors, width, values, line, tile.mask, sums)
                    );
                } else {
                    for_heads!(
                        factors.len(),
                        add_lines,
                        false,
                        (weights, factors, width, values, line, tile.mask, sums)
                    );
                }
            }
            h += HEADS;
        }
    }
}

/// [`add_values`] for `H` heads and four lines of values.
///
/// # Safety
/// As for [`add_values`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn add_lines<const H: usize, const WHOLE: bool>(
    weights: *const i32,
    factors: &[f32],
    width: usize,
    values: &[*const Line],
    line: usize,
    mask: u64,
    sums: *mut f32,
) {
    // SAFETY: by the caller's promise.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); 4]; H];
        for h in 0..H {
            for i in 0..4 {
                let sum = _mm512_load_ps(sums.add(h * width + i * LANES));
                acc[h][i] = _mm512_mul_ps(sum, _mm512_set1_ps(factors[h]));
            }
        }
        for (g, grain) in values.iter().enumerate() {
            for pair in 2 * g..2 * g + 2 {
                let at = grain.add(pair % 2 * (width / LANES) + line);
                let mut value = [_mm512_setzero_si512(); 4];
                for i in 0..4 {
                    value[i] = _mm512_load_si512(at.add(i).cast());
                    if !WHOLE {
                        let tokens = (mask >> (2 * pair)) as u32;
                        let kept = ((tokens & 1) * 0xffff) | ((tokens >> 1 & 1) * 0xffff_0000);
                        value[i] = _mm512_and_si512(value[i], _mm512_set1_epi32(kept as i32));
                    }
                }
                for h in 0..H {
                    let weight = _mm512_set1_epi32(*weights.add(h * TILE_PAIRS + pair));
                    for i in 0..4 {
                        acc[h][i] = products(acc[h][i], weight, value[i]);
                    }
                }
            }
        }
        for h in 0..H {
            for i in 0..4 {
                _mm512_store_ps(sums.add(h * width + i * LANES), acc[h][i]);
            }
        }
    }
}
