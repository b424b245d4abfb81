//! What the last rows gave to a state: some of them can be given to it once more, without computing them again.

use strata_kernels::{Cpu, gdn};

use super::states::{GdnState, State};
use crate::SavedState;

/// The first rows since a state was told to keep them, each as wide as what the state takes of it.
#[derive(Default)]
pub(super) struct Kept {
    /// Rows to be kept.
    most: usize,
    rows: usize,
    /// `[rows][width]`.
    values: Vec<f32>,
}

impl Kept {
    /// Forgets what was kept, and keeps the next `most` rows.
    pub(super) fn begin(&mut self, most: usize) {
        self.most = most;
        self.rows = 0;
        self.values.clear();
    }

    /// How many of the next `rows` rows are to be kept.
    pub(super) fn wanted(&self, rows: usize) -> usize {
        rows.min(self.most - self.rows)
    }

    /// Keeps the next row: its parts, one after the other.
    pub(super) fn push<'a>(&mut self, parts: impl IntoIterator<Item = &'a [f32]>) {
        self.rows += 1;
        parts.into_iter().for_each(|part| self.values.extend_from_slice(part));
    }

    /// Row `row`.
    fn row(&self, row: usize) -> &[f32] {
        let width = self.values.len() / self.rows;
        &self.values[row * width..][..width]
    }
}

/// What a row gives to Gated DeltaNet: the convolution's input; then queries, keys and values, heads one after the other;
/// then log decays and write strengths. `convolved` is `[heads][count][dim]`.
pub(super) fn keep_gdn(
    kept: &mut Kept,
    (new, channels): (&[f32], usize),
    (convolved, dim): (&[f32], usize),
    (log_decay, beta): (&[f32], &[f32]),
    count: usize,
) {
    let value_heads = log_decay.len() / count;
    for row in 0..kept.wanted(count) {
        let head = |h: usize| &convolved[(h * count + row) * dim..][..dim];
        let gates = row * value_heads..(row + 1) * value_heads;
        let ends = [&new[row * channels..][..channels], &log_decay[gates.clone()], &beta[gates]];
        let heads = (0..channels / dim).map(head);
        kept.push(std::iter::once(ends[0]).chain(heads).chain(ends[1..].iter().copied()));
    }
}

impl State {
    /// Makes it what it was after the first `rows` kept rows, which came after `saved`.
    pub(super) fn replay(&mut self, cpu: &Cpu, saved: &SavedState, kept: &Kept, rows: usize) {
        assert!(rows <= kept.rows || matches!(self, Self::Qsa(_)), "{rows} rows are to stay of {}", kept.rows);
        match self {
            Self::Qsa(s) => {
                let (dim, block_tokens) = s.index;
                let tokens = saved.tokens + rows;
                s.cache.truncate(tokens);
                s.block_keys.truncate(tokens / block_tokens * dim);
                // The open block: what is left of its raw keys, old ones and those of the rows.
                let mut raw = saved.values.clone();
                if dim > 0 {
                    (0..rows).for_each(|row| raw.extend_from_slice(kept.row(row)));
                }
                let open = raw.len() - tokens % block_tokens * dim;
                s.open_keys.clear();
                s.open_keys.extend_from_slice(&raw[open..]);
            }
            _ if rows == 0 => self.restore(saved),
            Self::Residual(streams) => streams.copy_from_slice(kept.row(rows - 1)),
            Self::Ple(history) => {
                history.restore(&saved.values);
                (0..rows).for_each(|row| history.push(kept.row(row)));
            }
            Self::Gdn(_) => {
                self.restore(saved);
                let Self::Gdn(s) = self else { unreachable!("the state's kind does not change") };
                replay_gdn(cpu, s, kept, rows);
            }
        }
    }
}

fn replay_gdn(cpu: &Cpu, s: &mut GdnState, kept: &Kept, rows: usize) {
    let [value_heads, dim, _] = s.matrix.shape();
    let channels = s.history.width;
    let key_heads = (channels / dim - value_heads) / 2;
    let (mut convolved, mut log_decay, mut beta) = (Vec::new(), Vec::new(), Vec::new());
    for head in 0..channels / dim {
        (0..rows).for_each(|row| convolved.extend_from_slice(&kept.row(row)[channels + head * dim..][..dim]));
    }
    for row in 0..rows {
        let (new, rest) = kept.row(row).split_at(channels);
        s.history.push(new);
        let (decays, strengths) = rest[channels..].split_at(value_heads);
        log_decay.extend_from_slice(decays);
        beta.extend_from_slice(strengths);
    }
    let (queries, rest) = convolved.split_at(rows * key_heads * dim);
    let (keys, values) = rest.split_at(rows * key_heads * dim);
    let strip = gdn::Strip { queries, keys, values, log_decay: &log_decay, beta: &beta, key_heads, value_heads };
    gdn::recurrent(cpu, &strip, &mut s.matrix, &mut vec![0.0; values.len()]);
}
