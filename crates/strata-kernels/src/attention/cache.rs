//! Keys and values of a sequence, in the types that they may be kept in and layouts that attention reads fast.

use std::ops::Range;

use strata_gguf::TensorType;
use strata_quant::encode_row;
use strata_quant::fields::f16_at;

use crate::bfloat16::{round, to_f32};
use crate::{Arithmetic, reserve};

/// Tokens that lie together, but for float32.
pub(super) const GRAIN_TOKENS: usize = 4;
/// Dimensions are padded with zeros to a multiple of this in grains: what a product keeps sums of.
pub(super) const PADDING: usize = 64;
/// Values in a line of bfloat16, in whose order the values of a grain lie.
const LINE_VALUES: usize = 32;
/// Dimensions that lie together, of one token.
const RUN: usize = 8;
/// Dimensions that share a scale in [`KvType::Q8_0`].
pub(super) const BLOCK: usize = 32;

/// What keys and values are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// Float32. Attention over it computes in float32 whatever the processor's arithmetic is.
    Float32,
    /// Bfloat16.
    Bfloat16,
    /// Eight bits a value, and a float16 scale for each 32 dimensions of a token's head: GGML's Q8_0.
    Q8_0,
}

impl KvType {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Float32, Self::Bfloat16, Self::Q8_0];

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "f32",
            Self::Bfloat16 => "bf16",
            Self::Q8_0 => "q8_0",
        }
    }

    /// The type that loses nothing that products of this arithmetic would use.
    pub fn of(arithmetic: Arithmetic) -> Self {
        match arithmetic {
            Arithmetic::Float32 => Self::Float32,
            Arithmetic::Bfloat16 => Self::Bfloat16,
        }
    }
}

/// One register.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

impl Line {
    pub(super) const ZERO: Self = Self([0; 64]);
}

/// Rotated, normalised keys, and values, of all key/value heads.
pub struct KvCache {
    kv: KvType,
    heads: usize,
    dim: usize,
    tokens: usize,
    capacity_tokens: usize,
    pub(super) store: Store,
}

pub(super) enum Store {
    /// `[tokens][heads][dim]`.
    Rows { keys: Vec<f32>, values: Vec<f32> },
    /// `[grain of 4 tokens][head][keys, values]`, as [`Grains`] says. Tokens that a grain does not have yet are zeros.
    Grains(Vec<Line>),
}

/// How the keys or values of a grain lie in one head.
///
/// Keys are `[dim / 8][4 tokens][8 dims]`, values `[2 token pairs][dim / 16][16 dims][2 tokens]`. In
/// [`KvType::Q8_0`] these are bytes, and before them are the scales, `[dim / 32][4 tokens]`, in whole lines.
#[derive(Clone, Copy)]
pub(super) struct Grains {
    pub(super) kv: KvType,
    pub(super) dim: usize,
}

/// Keys or values.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Keys,
    Values,
}

impl Part {
    /// Where the values of a token's dimensions from `RUN * run` are in a grain: the first, and the step from one to the
    /// next.
    #[inline(always)]
    fn run(self, width: usize, token: usize, run: usize) -> (usize, usize) {
        match self {
            Self::Keys => (run * LINE_VALUES + token * RUN, 1),
            Self::Values => (token / 2 * 2 * width + run / 2 * LINE_VALUES + run % 2 * 2 * RUN + token % 2, 2),
        }
    }
}

impl Grains {
    /// Dimensions, padded.
    pub(super) fn width(self) -> usize {
        self.dim.next_multiple_of(PADDING)
    }

    /// Lines of scales in a grain.
    pub(super) fn scale_lines(self) -> usize {
        match self.kv {
            KvType::Q8_0 => (self.width() / BLOCK * GRAIN_TOKENS * 2).div_ceil(size_of::<Line>()),
            _ => 0,
        }
    }

    /// Lines of one head's keys in a grain, and of its values.
    pub(super) fn lines(self) -> usize {
        let value_bytes = if self.kv == KvType::Q8_0 { 1 } else { 2 };
        self.scale_lines() + GRAIN_TOKENS * self.width() * value_bytes / size_of::<Line>()
    }

    /// The keys or values of a head in a grain that holds both.
    #[inline(always)]
    fn place(self, part: Part) -> Range<usize> {
        match part {
            Part::Keys => 0..self.lines(),
            Part::Values => self.lines()..2 * self.lines(),
        }
    }

    /// Rounds a token's keys or values into a head's grain. `buffer` is for blocks on their way.
    fn write(self, part: Part, head: &mut [Line], token: usize, values: &[f32], buffer: &mut Vec<u8>) {
        let width = self.width();
        let grain = &mut head[self.place(part)];
        if self.kv != KvType::Q8_0 {
            for (run, values) in values.chunks(RUN).enumerate() {
                let (first, step) = part.run(width, token, run);
                for (i, value) in values.iter().enumerate() {
                    let at = first + i * step;
                    grain[at / LINE_VALUES].0[at % LINE_VALUES * 2..][..2]
                        .copy_from_slice(&round(*value).to_le_bytes());
                }
            }
            return;
        }
        let (scales, codes) = grain.split_at_mut(self.scale_lines());
        for (block, values) in values.chunks(BLOCK).enumerate() {
            let mut padded = [0.0; BLOCK];
            padded[..values.len()].copy_from_slice(values);
            buffer.clear();
            if encode_row(TensorType::Q8_0, &padded, buffer).is_err() {
                // What no scale reaches, and what is no number, stays no number.
                buffer.extend_from_slice(&NAN_SCALE.to_le_bytes());
                buffer.resize(2 + BLOCK, 0);
            }
            let at = (block * GRAIN_TOKENS + token) * 2;
            scales[at / 64].0[at % 64..][..2].copy_from_slice(&buffer[..2]);
            for (run, block_codes) in buffer[2..].chunks_exact(RUN).enumerate() {
                let (first, step) = part.run(width, token, block * (BLOCK / RUN) + run);
                for (i, code) in block_codes.iter().enumerate() {
                    let at = first + i * step;
                    codes[at / 64].0[at % 64] = *code;
                }
            }
        }
    }

    /// The keys or values of a token and head in a cache of `heads` heads, `[dim]`.
    #[inline(always)]
    pub(super) fn read_token(
        self,
        part: Part,
        stored: &[Line],
        heads: usize,
        (token, head): (usize, usize),
        out: &mut [f32],
    ) {
        let lines = 2 * self.lines();
        let head = &stored[(token / GRAIN_TOKENS * heads + head) * lines..][..lines];
        let (grain, token) = (&head[self.place(part)], token % GRAIN_TOKENS);
        let width = self.width();
        let codes = &grain[self.scale_lines()..];
        for (run, out) in out.chunks_mut(RUN).enumerate() {
            let (first, step) = part.run(width, token, run);
            if self.kv == KvType::Q8_0 {
                let at = (run / (BLOCK / RUN) * GRAIN_TOKENS + token) * 2;
                let scale = f16_at(&grain[at / 64].0, at % 64);
                let line = &codes[first / 64].0[first % 64..];
                for (i, o) in out.iter_mut().enumerate() {
                    *o = scale * f32::from(line[i * step] as i8);
                }
            } else {
                let line = &codes[first / LINE_VALUES].0[first % LINE_VALUES * 2..];
                for (i, o) in out.iter_mut().enumerate() {
                    *o = to_f32(u16::from_le_bytes([line[2 * i * step], line[2 * i * step + 1]]));
                }
            }
        }
    }
}

/// A float16 that is no number.
const NAN_SCALE: u16 = 0x7e00;

impl KvCache {
    /// Rows are copied from a multiple of so many tokens on.
    pub const COPIED_TOGETHER: usize = GRAIN_TOKENS;

    /// An empty cache with room for `capacity_tokens`, or `None` when there is not enough memory. The system hands the
    /// memory out as tokens come.
    pub fn new(kv: KvType, heads: usize, dim: usize, capacity_tokens: usize) -> Option<Self> {
        // The number of tokens is a user's wish: it may be absurd.
        let store = match kv {
            KvType::Float32 => {
                let len = capacity_tokens.saturating_mul(heads * dim);
                Store::Rows { keys: reserve(len)?, values: reserve(len)? }
            }
            _ => {
                let lines = Grains { kv, dim }.lines();
                let len = capacity_tokens.div_ceil(GRAIN_TOKENS).saturating_mul(heads * 2 * lines);
                Store::Grains(reserve(len)?)
            }
        };
        Some(Self { kv, heads, dim, tokens: 0, capacity_tokens, store })
    }

    /// Memory that a cache takes when it is full; `usize::MAX` when that is no number.
    pub fn bytes(kv: KvType, heads: usize, dim: usize, capacity_tokens: usize) -> usize {
        let bytes = match kv {
            KvType::Float32 => capacity_tokens.checked_mul(heads * dim * size_of::<f32>()),
            _ => {
                let grain_bytes = Grains { kv, dim }.lines() * size_of::<Line>();
                capacity_tokens.div_ceil(GRAIN_TOKENS).checked_mul(heads * grain_bytes)
            }
        };
        bytes.and_then(|bytes| bytes.checked_mul(2)).unwrap_or(usize::MAX)
    }

    /// What keys and values are kept in.
    pub fn kv(&self) -> KvType {
        self.kv
    }

    /// Tokens in it.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Tokens there is room for.
    pub fn capacity_tokens(&self) -> usize {
        self.capacity_tokens
    }

    /// Key/value heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Width of a head.
    pub fn dim(&self) -> usize {
        self.dim
    }

    pub(super) fn grains(&self) -> Grains {
        Grains { kv: self.kv, dim: self.dim }
    }

    /// Forgets all tokens.
    pub fn clear(&mut self) {
        self.tokens = 0;
        match &mut self.store {
            Store::Rows { keys, values } => {
                keys.clear();
                values.clear();
            }
            Store::Grains(lines) => lines.clear(),
        }
    }

    /// Forgets all tokens but the first `tokens`: what is appended next gives the same bytes as if they had never been.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn truncate(&mut self, tokens: usize) {
        assert!(tokens <= self.tokens, "cache: {tokens} tokens are to be kept of {}", self.tokens);
        self.tokens = tokens;
        let (heads, dim, grains) = (self.heads, self.dim, self.grains());
        match &mut self.store {
            Store::Rows { keys, values } => {
                keys.truncate(tokens * heads * dim);
                values.truncate(tokens * heads * dim);
            }
            Store::Grains(stored) => {
                stored.truncate(tokens.div_ceil(GRAIN_TOKENS) * heads * 2 * grains.lines());
                self.empty_places();
            }
        }
    }

    /// Of a grain that is not full, the tokens that are not there become zeros.
    fn empty_places(&mut self) {
        let (tokens, heads, grains) = (self.tokens, self.heads, self.grains());
        let Store::Grains(stored) = &mut self.store else { return };
        let lines = 2 * grains.lines();
        let nothing = vec![0.0; self.dim];
        for head in stored[tokens / GRAIN_TOKENS * heads * lines..].chunks_exact_mut(lines) {
            for token in tokens % GRAIN_TOKENS..GRAIN_TOKENS {
                for part in [Part::Keys, Part::Values] {
                    grains.write(part, head, token, &nothing, &mut Vec::new());
                }
            }
        }
    }

    /// Bytes that [`copy_rows`](Self::copy_rows) gives of so many tokens.
    pub fn rows_bytes(&self, tokens: usize) -> usize {
        match self.store {
            Store::Rows { .. } => tokens * self.row_bytes(),
            Store::Grains(_) => tokens.div_ceil(GRAIN_TOKENS) * self.row_bytes(),
        }
    }

    /// Bytes of what lies together: a token, or a grain.
    fn row_bytes(&self) -> usize {
        match self.store {
            Store::Rows { .. } => 2 * self.heads * self.dim * size_of::<f32>(),
            Store::Grains(_) => 2 * self.heads * self.grains().lines() * size_of::<Line>(),
        }
    }

    /// Appends the bytes of some tokens to `out`, for [`append_rows`](Self::append_rows) of a cache of the same shape.
    ///
    /// # Panics
    /// When there are no such tokens, or the first is not a multiple of [`COPIED_TOGETHER`](Self::COPIED_TOGETHER).
    pub fn copy_rows(&self, tokens: Range<usize>, out: &mut Vec<u8>) {
        let is_there = tokens.start <= tokens.end && tokens.end <= self.tokens;
        assert!(is_there && tokens.start.is_multiple_of(GRAIN_TOKENS), "cache: {tokens:?} cannot be copied");
        match &self.store {
            Store::Rows { keys, values } => {
                let width = self.heads * self.dim;
                for token in tokens {
                    let row = token * width..(token + 1) * width;
                    let row = keys[row.clone()].iter().chain(&values[row]);
                    row.for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
                }
            }
            Store::Grains(stored) => {
                let lines = 2 * self.heads * self.grains().lines();
                let grains = tokens.start / GRAIN_TOKENS * lines..tokens.end.div_ceil(GRAIN_TOKENS) * lines;
                stored[grains].iter().for_each(|line| out.extend_from_slice(&line.0));
            }
        }
    }

    /// Appends tokens whose bytes [`copy_rows`](Self::copy_rows) gave: what the cache holds then is the same as if they had
    /// been [appended](Self::append) here.
    ///
    /// # Panics
    /// When these are not the bytes of so many tokens, they do not fit, or the cache's own tokens are not a multiple of
    /// [`COPIED_TOGETHER`](Self::COPIED_TOGETHER).
    pub fn append_rows(&mut self, tokens: usize, bytes: &[u8]) {
        let fits = bytes.len() == self.rows_bytes(tokens) && tokens <= self.capacity_tokens - self.tokens;
        assert!(fits && self.tokens.is_multiple_of(GRAIN_TOKENS), "cache: {tokens} tokens cannot be taken");
        match &mut self.store {
            Store::Rows { keys, values } => {
                for row in bytes.chunks_exact(2 * self.heads * self.dim * size_of::<f32>()) {
                    let (key, value) = row.split_at(row.len() / 2);
                    for (to, from) in [(&mut *keys, key), (&mut *values, value)] {
                        to.extend(from.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
                    }
                }
            }
            Store::Grains(stored) => {
                for line in bytes.chunks_exact(size_of::<Line>()) {
                    let mut copy = Line::ZERO;
                    copy.0.copy_from_slice(line);
                    stored.push(copy);
                }
            }
        }
        self.tokens += tokens;
        // The last grain may come from a cache that had more tokens.
        self.empty_places();
    }

    /// Appends tokens: `keys` and `values` are `[tokens][heads][dim]`. In [`KvType::Q8_0`], 32 dimensions of which one is
    /// no number, or too large for any scale, become no numbers.
    ///
    /// # Panics
    /// When they do not fit, in shape or number.
    pub fn append(&mut self, keys: &[f32], values: &[f32]) {
        let tokens = keys.len() / (self.heads * self.dim);
        let whole = keys.len() == tokens * self.heads * self.dim && values.len() == keys.len();
        assert!(whole && tokens <= self.capacity_tokens - self.tokens, "cache: shapes differ, or it is full");
        let (first, heads, dim, grains) = (self.tokens, self.heads, self.dim, self.grains());
        match &mut self.store {
            Store::Rows { keys: old_keys, values: old_values } => {
                old_keys.extend_from_slice(keys);
                old_values.extend_from_slice(values);
            }
            Store::Grains(stored) => {
                let lines = 2 * grains.lines();
                stored.resize((first + tokens).div_ceil(GRAIN_TOKENS) * heads * lines, Line::ZERO);
                let mut buffer = Vec::new();
                for (i, (key, value)) in keys.chunks_exact(dim).zip(values.chunks_exact(dim)).enumerate() {
                    let (token, head) = (first + i / heads, i % heads);
                    let head = &mut stored[(token / GRAIN_TOKENS * heads + head) * lines..][..lines];
                    grains.write(Part::Keys, head, token % GRAIN_TOKENS, key, &mut buffer);
                    grains.write(Part::Values, head, token % GRAIN_TOKENS, value, &mut buffer);
                }
            }
        }
        self.tokens += tokens;
    }

    /// All keys as rounded, `[tokens][heads][dim]`.
    pub fn keys(&self) -> Vec<f32> {
        match &self.store {
            Store::Rows { keys, .. } => keys.clone(),
            Store::Grains(stored) => self.unpacked(Part::Keys, stored),
        }
    }

    /// All values as rounded, `[tokens][heads][dim]`.
    pub fn values(&self) -> Vec<f32> {
        match &self.store {
            Store::Rows { values, .. } => values.clone(),
            Store::Grains(stored) => self.unpacked(Part::Values, stored),
        }
    }

    fn unpacked(&self, part: Part, stored: &[Line]) -> Vec<f32> {
        let mut out = vec![0.0; self.tokens * self.heads * self.dim];
        for (i, row) in out.chunks_exact_mut(self.dim).enumerate() {
            self.grains().read_token(part, stored, self.heads, (i / self.heads, i % self.heads), row);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that a cache holds, padding and empty places too.
    fn bits(cache: &KvCache) -> Vec<u32> {
        match &cache.store {
            Store::Rows { keys, values } => keys.iter().chain(values).map(|v| v.to_bits()).collect(),
            Store::Grains(lines) => lines.iter().flat_map(|line| line.0).map(u32::from).collect(),
        }
    }

    /// Keys or values of some tokens.
    fn rows(tokens: Range<usize>, seed: usize) -> Vec<f32> {
        let row = |token: usize| (0..HEADS * DIM).map(move |i| (token * 100 + seed * 7 + i + 1) as f32);
        tokens.flat_map(row).collect()
    }

    const HEADS: usize = 2;
    const DIM: usize = 20;

    #[test]
    fn forgotten_tokens_leave_nothing() {
        let (heads, dim) = (HEADS, DIM);
        for kv in KvType::ALL {
            for written in 0..=11 {
                for kept in 0..=written {
                    let mut cache = KvCache::new(kv, heads, dim, 11).unwrap();
                    let mut fresh = KvCache::new(kv, heads, dim, 11).unwrap();
                    cache.append(&rows(0..written, 1), &rows(0..written, 2));
                    cache.truncate(kept);
                    fresh.append(&rows(0..kept, 1), &rows(0..kept, 2));
                    assert_eq!((bits(&cache), cache.tokens()), (bits(&fresh), kept), "{kept} of {written}");
                    for cache in [&mut cache, &mut fresh] {
                        cache.append(&rows(kept..11, 3), &rows(kept..11, 4));
                    }
                    assert_eq!(bits(&cache), bits(&fresh), "{kept} of {written}, then others");
                }
            }
        }
    }

    #[test]
    fn copied_rows_are_those_that_were_appended() {
        const TOKENS: usize = 13;
        for kv in KvType::ALL {
            let empty = || KvCache::new(kv, HEADS, DIM, TOKENS).unwrap();
            let mut from = empty();
            from.append(&rows(0..TOKENS, 1), &rows(0..TOKENS, 2));
            for copied in 0..=TOKENS {
                for first in (0..=copied).step_by(KvCache::COPIED_TOGETHER) {
                    let (mut fresh, mut into) = (empty(), empty());
                    fresh.append(&rows(0..copied, 1), &rows(0..copied, 2));
                    for range in [0..first, first..copied] {
                        let mut bytes = vec![7];
                        from.copy_rows(range.clone(), &mut bytes);
                        into.append_rows(range.len(), &bytes[1..]);
                    }
                    assert_eq!((bits(&into), into.tokens()), (bits(&fresh), copied), "{copied} in {kv:?}");
                    for cache in [&mut into, &mut fresh] {
                        cache.append(&rows(copied..TOKENS, 3), &rows(copied..TOKENS, 4));
                    }
                    assert_eq!(bits(&into), bits(&fresh), "{copied} in {kv:?}, then others");
                }
            }
        }
    }
}
