//! What a sequence keeps from one token to the next (spec 6.7).

use std::ops::Range;

use strata_kernels::attention::KvCache;
use strata_kernels::{gdn, reserve};

use super::zeroed;
use crate::{BackendError, SavedState, StatePart, StateShape};

pub(super) enum State {
    Gdn(GdnState),
    Qsa(QsaState),
    Ple(History),
    /// Streams of the last token.
    Residual(Vec<f32>),
}

pub(super) struct GdnState {
    pub(super) matrix: gdn::State,
    pub(super) history: History,
}

/// The last rows that went into a convolution, oldest first; zeros before the sequence.
pub(super) struct History {
    pub(super) width: usize,
    rows: Vec<f32>,
}

pub(super) struct QsaState {
    pub(super) cache: KvCache,
    /// Indexer keys of the tokens after the last complete block, `[tokens][dim]`.
    pub(super) open_keys: Vec<f32>,
    /// `[blocks][dim]`.
    pub(super) block_keys: Vec<f32>,
    /// Width of an indexer's key, and tokens of a block.
    pub(super) index: (usize, usize),
}

impl State {
    pub(super) fn new(shape: &StateShape) -> Result<Self, BackendError> {
        Ok(match *shape {
            StateShape::Gdn { value_heads, head_dim, channels, history_rows } => Self::Gdn(GdnState {
                matrix: gdn::State::new(value_heads, head_dim, head_dim).map_err(|_| BackendError::OutOfMemory {
                    what: "DeltaNet state",
                    bytes: value_heads * head_dim * head_dim * size_of::<f32>(),
                })?,
                history: History::new(history_rows, channels)?,
            }),
            StateShape::Ple { channels, history_rows } => Self::Ple(History::new(history_rows, channels)?),
            StateShape::Residual { width } => Self::Residual(zeroed(width, "residual")?),
            StateShape::Qsa { context_tokens, kv, kv_heads, head_dim, indexer } => {
                let (dim, block_tokens) = indexer.unwrap_or((0, 1));
                let cache = KvCache::new(kv, kv_heads, head_dim, context_tokens);
                let bytes = KvCache::bytes(kv, kv_heads, head_dim, context_tokens);
                Self::Qsa(QsaState {
                    cache: cache.ok_or(BackendError::OutOfMemory { what: CACHE, bytes })?,
                    open_keys: reserved(block_tokens.min(context_tokens), dim)?,
                    block_keys: reserved(context_tokens / block_tokens, dim)?,
                    index: (dim, block_tokens),
                })
            }
        })
    }

    pub(super) fn reset(&mut self) {
        match self {
            Self::Gdn(s) => {
                s.matrix.reset();
                s.history.rows.fill(0.0);
            }
            Self::Ple(history) => history.rows.fill(0.0),
            Self::Residual(streams) => streams.fill(0.0),
            Self::Qsa(s) => {
                s.cache.clear();
                s.open_keys.clear();
                s.block_keys.clear();
            }
        }
    }

    pub(super) fn save(&self, saved: &mut SavedState) -> Result<(), BackendError> {
        match self {
            Self::Gdn(s) => saved.fill(0, [s.matrix.values(), &s.history.rows]),
            Self::Ple(history) => saved.fill(0, [&history.rows, &[]]),
            Self::Residual(streams) => saved.fill(0, [streams, &[]]),
            Self::Qsa(s) => saved.fill(s.cache.tokens(), [&s.open_keys, &[]]),
        }
    }

    pub(super) fn restore(&mut self, saved: &SavedState) {
        match self {
            Self::Gdn(s) => {
                let (matrix, history) = saved.values.split_at(s.matrix.values().len());
                s.matrix.set(matrix);
                s.history.restore(history);
            }
            Self::Ple(history) => history.restore(&saved.values),
            Self::Residual(streams) => streams.copy_from_slice(&saved.values),
            Self::Qsa(s) => {
                let (dim, block_tokens) = s.index;
                s.cache.truncate(saved.tokens);
                s.block_keys.truncate(saved.tokens / block_tokens * dim);
                s.open_keys.clear();
                s.open_keys.extend_from_slice(&saved.values);
            }
        }
    }

    pub(super) fn read(&self, part: StatePart) -> Vec<f32> {
        match (self, part) {
            (Self::Gdn(s), StatePart::GdnMatrix) => {
                let [heads, keys, width] = s.matrix.shape();
                let mut out = vec![0.0; heads * keys * width];
                out.chunks_exact_mut(keys * width).enumerate().for_each(|(h, rows)| s.matrix.read(h, rows));
                out
            }
            (Self::Gdn(s), StatePart::ConvHistory) => s.history.rows.clone(),
            (Self::Ple(history), StatePart::ConvHistory) => history.rows.clone(),
            (Self::Qsa(s), StatePart::Keys) => s.cache.keys(),
            (Self::Qsa(s), StatePart::Values) => s.cache.values(),
            (Self::Qsa(s), StatePart::OpenBlockKeys) => s.open_keys.clone(),
            (Self::Qsa(s), StatePart::BlockKeys) => s.block_keys.clone(),
            _ => Vec::new(),
        }
    }
}

const CACHE: &str = "the attention cache (a shorter context needs less)";

/// Room for the rows of a cache that fills as tokens come.
fn reserved(rows: usize, width: usize) -> Result<Vec<f32>, BackendError> {
    // The number of rows is a user's wish: it may be absurd.
    let len = rows.saturating_mul(width);
    reserve(len).ok_or(BackendError::OutOfMemory { what: CACHE, bytes: len.saturating_mul(4) })
}

impl QsaState {
    /// Where the keys are of the blocks that some tokens complete.
    pub(super) fn block_values(&self, tokens: &Range<usize>) -> Range<usize> {
        let (dim, block_tokens) = self.index;
        tokens.start / block_tokens * dim..tokens.end / block_tokens * dim
    }

    /// Whether `more` tokens fit.
    pub(super) fn check_room(&self, more: usize) -> Result<(), BackendError> {
        let (needed_tokens, context_tokens) = (self.cache.tokens() + more, self.cache.capacity_tokens());
        if needed_tokens > context_tokens {
            return Err(BackendError::ContextFull { needed_tokens, context_tokens });
        }
        Ok(())
    }
}

impl History {
    fn new(rows: usize, width: usize) -> Result<Self, BackendError> {
        Ok(Self { width, rows: zeroed(rows * width, "convolution state")? })
    }

    /// Rows kept.
    fn len(&self) -> usize {
        self.rows.len() / self.width
    }

    /// The row `back` rows before row `at` of `new`, reaching into the history where `new` does not go back so far.
    pub(super) fn row<'a>(&'a self, new: &'a [f32], at: usize, back: usize) -> &'a [f32] {
        match at.checked_sub(back) {
            Some(row) => &new[row * self.width..][..self.width],
            None => &self.rows[(self.len() + at - back) * self.width..][..self.width],
        }
    }

    /// Its rows, oldest first.
    pub(super) fn values(&self) -> &[f32] {
        &self.rows
    }

    /// Back to the rows that it had.
    pub(super) fn restore(&mut self, rows: &[f32]) {
        self.rows.copy_from_slice(rows);
    }

    /// Forgets the oldest rows in favour of `new`.
    pub(super) fn push(&mut self, new: &[f32]) {
        let len = self.rows.len();
        let keep = len.saturating_sub(new.len());
        self.rows.copy_within(len - keep.., 0);
        let from = new.len() - (len - keep);
        self.rows[keep..].copy_from_slice(&new[from..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_is_the_last_rows_however_they_came() {
        let all: Vec<f32> = (1..=14).map(|v| v as f32).collect(); // seven rows of two
        for cut in 0..=7 {
            let mut history = History::new(3, 2).unwrap();
            let (first, second) = all.split_at(cut * 2);
            history.push(first);
            // Rows seen from the second part are the same as in one piece.
            for at in 0..7 - cut {
                for back in 0..=3 {
                    let absolute = (cut + at).checked_sub(back);
                    let want = absolute.map_or([0.0, 0.0], |row| [all[row * 2], all[row * 2 + 1]]);
                    assert_eq!(history.row(second, at, back), want, "cut {cut} at {at} back {back}");
                }
            }
            history.push(second);
            assert_eq!(history.rows, all[8..]);
        }
    }
}
