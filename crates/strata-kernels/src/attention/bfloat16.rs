//! Attention with products of bfloat16: tiles of 64 of a row's tokens, softmax as it goes, sums in float32.
//!
//! A row's tiles are made of its own tokens only, in their order, by grains of the cache; a token of a grain that the row
//! does not attend to has probability 0, and its value is taken as 0 whatever lies there. Queries, and probabilities
//! relative to the largest score so far, are rounded to bfloat16; the softmax divides by the sum of the rounded ones.
//! A cache in Q8_0 is decoded on the way, four grains of keys or 64 dimensions of a tile's values at a time, and computed
//! with as if it had been kept in bfloat16.

use std::arch::x86_64::*;
use std::array::from_fn;
use std::cell::RefCell;
use std::mem::transmute;
use std::ops::Range;
use std::ptr::null;

use super::cache::{GRAIN_TOKENS, Grains, Line, PADDING, Store};
use super::decode::{decode_keys, decode_values};
use super::tiles::{TILE_GRAINS, TILE_TOKENS, Tile, Tiles};
use super::{KvCache, KvType, Queries, Selections};
use crate::Cpu;
use crate::math::exp;
use crate::pool::DisjointMut;
use crate::vector::{LANES, fold, prefetch};

/// Token pairs of a tile.
const TILE_PAIRS: usize = TILE_TOKENS / 2;
/// Neighbouring rows that go through their tiles together: what one reads of the cache, the next finds nearby.
const ROWS: usize = 8;
/// Query heads whose sums a product keeps in registers, times four registers each.
const HEADS: usize = 6;
/// Lines of values, of each token pair, that sums are kept of.
const VALUE_LINES: usize = 4;

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
    /// Keys of four grains, or [`VALUE_LINES`] of both pairs of a tile's grains, decoded.
    decoded: Vec<Line>,
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
    stored: &'a [Line],
    /// The first line of this head in a grain, and lines from one grain to the next.
    first: usize,
    stride: usize,
    grains: Grains,
}

pub(super) fn attend(cpu: &Cpu, cache: &KvCache, queries: &Queries<'_>, selections: &Selections, out: &mut [f32]) {
    let Store::Grains(stored) = &cache.store else { unreachable!("float32 is attended to in float32") };
    let (kv_heads, dim, grains) = (cache.heads(), cache.dim(), cache.grains());
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
            let lines = 2 * grains.lines();
            let head = Head { stored, first: kv_head * lines, stride: kv_heads * lines, grains };
            let heads = kv_head * group + part * part_heads..kv_head * group + group.min((part + 1) * part_heads);
            let rows = row_group * ROWS..rows.min((row_group + 1) * ROWS);
            SCRATCH.with_borrow_mut(|scratch| {
                // SAFETY: only a processor that has the instructions computes in bfloat16.
                unsafe {
                    match grains.kv {
                        KvType::Q8_0 => {
                            attend_rows::<true>(&head, queries, heads.clone(), rows.clone(), selections, scratch);
                        }
                        _ => attend_rows::<false>(&head, queries, heads.clone(), rows.clone(), selections, scratch),
                    }
                }
                let width = grains.width() / LANES;
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

/// Leaves the unscaled sums and the softmax of `[rows][heads]` in `scratch`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
fn attend_rows<const Q8: bool>(
    head: &Head<'_>,
    queries: &Queries<'_>,
    heads: Range<usize>,
    rows: Range<usize>,
    selections: &Selections,
    scratch: &mut Scratch,
) {
    let (dim, width, count) = (head.grains.dim, head.grains.width(), heads.len());
    scratch.prepare(rows.len() * count, count, width);
    let Scratch { queries: rounded, sums, scores, weights, softmax, factors, decoded } = scratch;
    let decoded = decoded.as_mut_ptr();
    let rounded: *mut u16 = rounded.as_mut_ptr().cast();
    for row in 0..rows.len() {
        for h in 0..count {
            let at = ((rows.start + row) * queries.heads + heads.start + h) * queries.stride;
            // SAFETY: `prepare` made room for `[rows][heads][width]`.
            unsafe { round_query(&queries.values[at..][..dim], rounded.add((row * count + h) * width)) };
        }
    }
    let mut tiles: [Option<Tiles<'_>>; ROWS] =
        from_fn(|row| (row < rows.len()).then(|| Tiles::of(selections.row(rows.start + row).ranges())));
    let mut turn = 0;
    let mut coming = next_tile(&mut tiles, &mut turn).map(|(row, tile)| (row, head.locate(&tile), tile));
    while let Some((row, located, tile)) = coming {
        coming = next_tile(&mut tiles, &mut turn).map(|(row, tile)| (row, head.locate(&tile), tile));
        let coming = coming.as_ref().map(|(_, located, _)| located);
        // SAFETY: `locate` checks the grains; `prepare` made room for the rest, all of which this function owns.
        unsafe {
            let query = rounded.add(row * count * width).cast_const();
            score_tile::<Q8>(query, count, head.grains, &located, tile.len, coming, decoded, scores.as_mut_ptr());
            let scale = 1.0 / (dim as f32).sqrt();
            for h in 0..count {
                let scores = &mut scores[h * (TILE_TOKENS / LANES)..][..TILE_TOKENS / LANES];
                let scores = scores.try_into().expect("the scores of a tile");
                let weights = &mut weights[2 * h..][..2];
                factors[h] = softmax[row * count + h].add_tile(scores, scale, tile.mask, weights);
            }
            let sums = sums.as_mut_ptr().cast::<f32>().add(row * count * width);
            let weights = weights.as_ptr().cast();
            add_values::<Q8>(weights, factors, head.grains, &located, &tile, coming, decoded, sums);
        }
    }
}

/// The next tile of the next row that has one; rows take turns.
fn next_tile(tiles: &mut [Option<Tiles<'_>>; ROWS], turn: &mut usize) -> Option<(usize, Tile)> {
    for _ in 0..ROWS {
        let row = *turn % ROWS;
        *turn += 1;
        if let Some(tile) = tiles[row].as_mut().and_then(Tiles::next) {
            return Some((row, tile));
        }
    }
    None
}

impl Scratch {
    fn prepare(&mut self, rows_heads: usize, heads: usize, width: usize) {
        fn at_least<T: Clone>(buffer: &mut Vec<T>, len: usize, value: T) {
            if buffer.len() < len {
                buffer.resize(len, value);
            }
        }
        at_least(&mut self.queries, (rows_heads * width * 2).div_ceil(size_of::<Line>()), Line::ZERO);
        at_least(&mut self.sums, rows_heads * width / LANES, Floats([0.0; LANES]));
        at_least(&mut self.scores, heads * TILE_TOKENS / LANES, Floats([0.0; LANES]));
        at_least(&mut self.weights, heads * 2, Line::ZERO);
        at_least(&mut self.decoded, (width / 2).max(TILE_GRAINS * 2 * VALUE_LINES), Line::ZERO);
        self.sums[..rows_heads * width / LANES].fill(Floats([0.0; LANES]));
        self.softmax.clear();
        self.softmax.resize(rows_heads, Softmax { largest: f32::NEG_INFINITY, sum: 0.0 });
        self.factors.clear();
        self.factors.resize(heads, 0.0);
    }
}

/// Where the grains of a tile begin, by fours: keys, then values. Places that have no grain repeat the first.
type Quads = [[*const Line; 4]; TILE_GRAINS / 4];

impl Head<'_> {
    fn locate(&self, tile: &Tile) -> Quads {
        let mut out = [[null(); 4]; TILE_GRAINS / 4];
        for i in 0..TILE_GRAINS {
            let grain = tile.grains[if i < tile.len { i } else { 0 }];
            let at = self.first + grain * self.stride;
            assert!(at + 2 * self.grains.lines() <= self.stored.len(), "attend: grain {grain} is not in the cache");
            out[i / 4][i % 4] = self.stored[at..].as_ptr();
        }
        out
    }
}

/// Rounds a query to bfloat16 and pads it with zeros.
///
/// # Safety
/// `out` must be writable for as many values as [`Grains::width`] says.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn round_query(query: &[f32], out: *mut u16) {
    for at in (0..query.len().next_multiple_of(PADDING)).step_by(LANES) {
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
/// for the keys of the tile that comes next: by then they are in the second cache.
///
/// # Safety
/// `query` must be readable for `[heads][width]`, keys for their lines, and `decoded` and `out` writable for four grains
/// and for all scores.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,f16c")]
#[allow(clippy::too_many_arguments)] // one step of the caller's loop
unsafe fn score_tile<const Q8: bool>(
    query: *const u16,
    heads: usize,
    grains: Grains,
    keys: &Quads,
    tile_grains: usize,
    coming: Option<&Quads>,
    decoded: *mut Line,
    out: *mut Floats,
) {
    let width = grains.width();
    for quad in 0..tile_grains.div_ceil(4) {
        let mut near = keys[quad];
        if Q8 {
            for g in 0..4 {
                // SAFETY: by the caller's promise; four grains have `width / 2` lines.
                near[g] = unsafe { decode_keys(near[g].cast(), grains, decoded.add(g * width / 8)) };
            }
        }
        let mut h = 0;
        while h < heads {
            // SAFETY: head `h` and those after it are within `heads`; the rest is the caller's promise.
            unsafe {
                let (query, out) = (query.add(h * width), out.add(h * (TILE_TOKENS / LANES) + quad));
                let coming = part_of(coming, quad, h, heads);
                for_heads!(heads - h, score_quad, (query, width, near, coming, grains.lines(), out));
            }
            h += HEADS;
        }
    }
}

/// The grains of a quad of the next tile that are asked for while the heads from `h` on are computed: what is asked for is
/// spread over the heads, so that memory is never asked for more than it is soon to give.
#[inline]
fn part_of(coming: Option<&Quads>, quad: usize, h: usize, heads: usize) -> &[*const Line] {
    match coming {
        Some(coming) if heads <= HEADS => &coming[quad],
        Some(coming) if h < 2 * HEADS => &coming[quad][h / HEADS * 2..][..2],
        _ => &[],
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
    coming: &[*const Line],
    coming_lines: usize,
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
            if line < coming_lines {
                for grain in coming {
                    prefetch(grain.wrapping_add(line));
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

/// `sums = sums * factor + weights * values` for all heads: `weights` is `[heads][TILE_PAIRS]`, `sums` `[heads][width]`. Asks
/// for the values of the tile that comes next.
///
/// # Safety
/// Values must be readable for their lines, `weights` and `sums` for the heads that `factors` has, `sums` writable, and
/// `decoded` for [`VALUE_LINES`] of both pairs of all grains.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,f16c")]
#[allow(clippy::too_many_arguments)] // one step of the caller's loop
unsafe fn add_values<const Q8: bool>(
    weights: *const i32,
    factors: &[f32],
    grains: Grains,
    values: &Quads,
    tile: &Tile,
    coming: Option<&Quads>,
    decoded: *mut Line,
    sums: *mut f32,
) {
    let width = grains.width();
    let heads = factors.len();
    let is_whole = tile.mask == u64::MAX >> (64 - GRAIN_TOKENS * tile.len);
    for line in (0..width / LANES).step_by(VALUE_LINES) {
        let mut near = [null(); TILE_GRAINS];
        for g in 0..tile.len {
            let grain = values[g / 4][g % 4].wrapping_add(grains.lines());
            // SAFETY: by the caller's promise.
            near[g] = unsafe {
                match Q8 {
                    true => decode_values(grain.cast(), grains, line, decoded.add(g * 2 * VALUE_LINES)),
                    false => grain.add(line),
                }
            };
        }
        let near = &near[..tile.len];
        let pair_lines = if Q8 { VALUE_LINES } else { width / LANES };
        let mut h = 0;
        while h < factors.len() {
            let factors = &factors[h..];
            // SAFETY: head `h` and those after it are within `factors`; the rest is the caller's promise.
            unsafe {
                let (weights, sums) = (weights.add(h * TILE_PAIRS), sums.add(h * width + line * LANES));
                let (left, mask) = (factors.len(), tile.mask);
                // A tile has as many groups of lines as quads, if heads are 256 wide.
                let coming = part_of(coming, line / VALUE_LINES % coming.map_or(1, |quads| quads.len()), h, heads);
                let coming = (coming, grains.lines());
                if is_whole {
                    for_heads!(left, add_lines, true, (weights, factors, width, near, pair_lines, coming, mask, sums));
                } else {
                    for_heads!(left, add_lines, false, (weights, factors, width, near, pair_lines, coming, mask, sums));
                }
            }
            h += HEADS;
        }
    }
}

/// [`add_values`] for `H` heads and [`VALUE_LINES`] of each pair of tokens, `pair_lines` from one pair to the next.
///
/// # Safety
/// As for [`add_values`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
#[allow(clippy::too_many_arguments)] // one step of the caller's loop
unsafe fn add_lines<const H: usize, const WHOLE: bool>(
    weights: *const i32,
    factors: &[f32],
    width: usize,
    values: &[*const Line],
    pair_lines: usize,
    (coming, coming_lines): (&[*const Line], usize),
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
                let at = grain.add(pair % 2 * pair_lines);
                if pair < coming_lines {
                    for grain in coming {
                        prefetch(grain.wrapping_add(coming_lines + pair));
                    }
                }
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
