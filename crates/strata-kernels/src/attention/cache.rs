//! Keys and values of a sequence, in the layout that an arithmetic reads fastest.

use crate::Arithmetic;
use crate::bfloat16::{round, to_f32};

/// Tokens that lie together in a bfloat16 cache.
pub(super) const GRAIN_TOKENS: usize = 4;
/// Dimensions are padded with zeros to a multiple of this in a bfloat16 cache: what a product keeps sums of.
const PADDING: usize = 64;
/// Dimensions in a line of keys.
const KEY_LINE: usize = 8;
/// Dimensions in a line of values.
const VALUE_LINE: usize = 16;

/// One register of bfloat16.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u16; 32]);

/// Rotated, normalised keys, and values, of all key/value heads.
pub struct KvCache {
    heads: usize,
    dim: usize,
    tokens: usize,
    capacity_tokens: usize,
    pub(super) store: Store,
}

/// The bfloat16 layouts are `[grain of 4 tokens][head]`, then for keys lines of `[4 tokens][8 dims]`, for values
/// `[2 token pairs]` lines of `[16 dims][2 tokens]`. Tokens that a grain does not have yet are zeros.
pub(super) enum Store {
    /// `[tokens][heads][dim]`.
    Float32 {
        keys: Vec<f32>,
        values: Vec<f32>,
    },
    Bfloat16 {
        keys: Vec<Line>,
        values: Vec<Line>,
    },
}

impl KvCache {
    /// An empty cache with room for `capacity_tokens`, or `None` when there is not enough memory.
    pub fn new(arithmetic: Arithmetic, heads: usize, dim: usize, capacity_tokens: usize) -> Option<Self> {
        // The number of tokens is a user's wish: it may be absurd.
        let store = match arithmetic {
            Arithmetic::Float32 => {
                let len = capacity_tokens.saturating_mul(heads * dim);
                Store::Float32 { keys: reserved(len)?, values: reserved(len)? }
            }
            Arithmetic::Bfloat16 => {
                let len = capacity_tokens.div_ceil(GRAIN_TOKENS).saturating_mul(heads * grain_lines(dim));
                Store::Bfloat16 { keys: reserved(len)?, values: reserved(len)? }
            }
        };
        Some(Self { heads, dim, tokens: 0, capacity_tokens, store })
    }

    /// Memory that a cache takes when it is full; `usize::MAX` when that is no number.
    pub fn bytes(arithmetic: Arithmetic, heads: usize, dim: usize, capacity_tokens: usize) -> usize {
        let bytes = match arithmetic {
            Arithmetic::Float32 => capacity_tokens.checked_mul(heads * dim * size_of::<f32>()),
            Arithmetic::Bfloat16 => {
                capacity_tokens.div_ceil(GRAIN_TOKENS).checked_mul(heads * grain_lines(dim) * size_of::<Line>())
            }
        };
        bytes.and_then(|bytes| bytes.checked_mul(2)).unwrap_or(usize::MAX)
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

    /// Forgets all tokens.
    pub fn clear(&mut self) {
        self.tokens = 0;
        match &mut self.store {
            Store::Float32 { keys, values } => [keys, values].map(Vec::clear),
            Store::Bfloat16 { keys, values } => [keys, values].map(Vec::clear),
        };
    }

    /// Forgets all tokens but the first `tokens`: what is appended next gives the same bytes as if they had never been.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn truncate(&mut self, tokens: usize) {
        assert!(tokens <= self.tokens, "cache: {tokens} tokens are to be kept of {}", self.tokens);
        self.tokens = tokens;
        let (heads, dim) = (self.heads, self.dim);
        match &mut self.store {
            Store::Float32 { keys, values } => [keys, values].map(|store| store.truncate(tokens * heads * dim)),
            Store::Bfloat16 { keys, values } => {
                let head_lines = grain_lines(dim);
                let kept = tokens.div_ceil(GRAIN_TOKENS) * heads * head_lines;
                keys.truncate(kept);
                values.truncate(kept);
                // Of the grain that is not full, the forgotten tokens become zeros again.
                let last = tokens / GRAIN_TOKENS * heads * head_lines;
                for place in tokens % GRAIN_TOKENS..GRAIN_TOKENS {
                    for line in &mut keys[last..] {
                        line.0[place * KEY_LINE..][..KEY_LINE].fill(0);
                    }
                    for head in values[last..].chunks_exact_mut(head_lines) {
                        for line in &mut head[place / 2 * (head_lines / 2)..][..head_lines / 2] {
                            line.0.chunks_exact_mut(2).for_each(|pair| pair[place % 2] = 0);
                        }
                    }
                }
                [(), ()]
            }
        };
    }

    /// Appends tokens: `keys` and `values` are `[tokens][heads][dim]`.
    ///
    /// # Panics
    /// When they do not fit, in shape or number.
    pub fn append(&mut self, keys: &[f32], values: &[f32]) {
        let tokens = keys.len() / (self.heads * self.dim);
        let whole = keys.len() == tokens * self.heads * self.dim && values.len() == keys.len();
        assert!(whole && tokens <= self.capacity_tokens - self.tokens, "cache: shapes differ, or it is full");
        let (first, heads, dim) = (self.tokens, self.heads, self.dim);
        match &mut self.store {
            Store::Float32 { keys: old_keys, values: old_values } => {
                old_keys.extend_from_slice(keys);
                old_values.extend_from_slice(values);
            }
            Store::Bfloat16 { keys: key_lines, values: value_lines } => {
                let len = (first + tokens).div_ceil(GRAIN_TOKENS) * heads * grain_lines(dim);
                key_lines.resize(len, Line([0; 32]));
                value_lines.resize(len, Line([0; 32]));
                let rows = keys.chunks_exact(dim).zip(values.chunks_exact(dim));
                for (i, (key, value)) in rows.enumerate() {
                    let (token, head) = (first + i / heads, i % heads);
                    let lines = (token / GRAIN_TOKENS * heads + head) * grain_lines(dim);
                    let place = token % GRAIN_TOKENS;
                    for (line, key) in key_lines[lines..].iter_mut().zip(key.chunks(KEY_LINE)) {
                        for (to, k) in line.0[place * KEY_LINE..].iter_mut().zip(key) {
                            *to = round(*k);
                        }
                    }
                    let lines = lines + place / 2 * (grain_lines(dim) / 2);
                    for (line, value) in value_lines[lines..].iter_mut().zip(value.chunks(VALUE_LINE)) {
                        for (to, v) in line.0.chunks_exact_mut(2).zip(value) {
                            to[place % 2] = round(*v);
                        }
                    }
                }
            }
        }
        self.tokens += tokens;
    }

    /// All keys, `[tokens][heads][dim]`.
    pub fn keys(&self) -> Vec<f32> {
        match &self.store {
            Store::Float32 { keys, .. } => keys.clone(),
            Store::Bfloat16 { keys, .. } => {
                self.unpacked(|lines, place, d| keys[lines + d / KEY_LINE].0[place * KEY_LINE + d % KEY_LINE])
            }
        }
    }

    /// All values, `[tokens][heads][dim]`.
    pub fn values(&self) -> Vec<f32> {
        match &self.store {
            Store::Float32 { values, .. } => values.clone(),
            Store::Bfloat16 { values, .. } => self.unpacked(|lines, place, d| {
                let line = lines + place / 2 * (grain_lines(self.dim) / 2) + d / VALUE_LINE;
                values[line].0[d % VALUE_LINE * 2 + place % 2]
            }),
        }
    }

    /// Reads every value by the first line of its grain and head, its token's place in the grain and its dimension.
    fn unpacked(&self, at: impl Fn(usize, usize, usize) -> u16) -> Vec<f32> {
        let mut out = Vec::with_capacity(self.tokens * self.heads * self.dim);
        for token in 0..self.tokens {
            for head in 0..self.heads {
                let lines = (token / GRAIN_TOKENS * self.heads + head) * grain_lines(self.dim);
                out.extend((0..self.dim).map(|d| to_f32(at(lines, token % GRAIN_TOKENS, d))));
            }
        }
        out
    }
}

/// `dim` as a bfloat16 cache pads it.
pub(super) fn padded(dim: usize) -> usize {
    dim.next_multiple_of(PADDING)
}

/// Lines of one head's keys in a grain, and of its values.
pub(super) fn grain_lines(dim: usize) -> usize {
    padded(dim) / KEY_LINE
}

/// Room that fills as tokens come: the system hands out memory when it is written.
fn reserved<T>(len: usize) -> Option<Vec<T>> {
    let mut out = Vec::new();
    out.try_reserve_exact(len).ok()?;
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that a cache holds, padding and empty places too.
    fn bits(cache: &KvCache) -> Vec<u32> {
        match &cache.store {
            Store::Float32 { keys, values } => keys.iter().chain(values).map(|v| v.to_bits()).collect(),
            Store::Bfloat16 { keys, values } => {
                keys.iter().chain(values).flat_map(|line| line.0).map(u32::from).collect()
            }
        }
    }

    #[test]
    fn forgotten_tokens_leave_nothing() {
        let (heads, dim) = (2, 20);
        let width = heads * dim;
        let row = |token: usize, seed: usize| (0..width).map(move |i| (token * 100 + seed * 7 + i + 1) as f32);
        let rows = |tokens: std::ops::Range<usize>, seed| tokens.flat_map(|t| row(t, seed)).collect::<Vec<f32>>();
        for arithmetic in [Arithmetic::Float32, Arithmetic::Bfloat16] {
            for written in 0..=11 {
                for kept in 0..=written {
                    let mut cache = KvCache::new(arithmetic, heads, dim, 11).unwrap();
                    let mut fresh = KvCache::new(arithmetic, heads, dim, 11).unwrap();
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
}
