//! Which tokens each row of a strip attends to.

use std::ops::Range;

use crate::Cpu;
use crate::pool::DisjointMut;
use crate::vector::{LANES, Lanes, dispatch, dots, prefetch};

/// What blocks are chosen by.
pub struct Index<'a> {
    /// Query heads of the indexer.
    pub heads: usize,
    /// Width of a head.
    pub dim: usize,
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Blocks that are chosen.
    pub budget_blocks: usize,
    /// Rotated, normalised queries, `[rows][heads][dim]`.
    pub queries: &'a [f32],
    /// Keys of all complete blocks, `[blocks][dim]`.
    pub block_keys: &'a [f32],
}

/// The tokens that each row of a strip attends to, and the memory to find them. Row `t` sees `first_visible + t` tokens.
#[derive(Default)]
pub struct Selections {
    rows: usize,
    first_visible: usize,
    block_tokens: usize,
    /// `None`: every row attends to all that it sees.
    budget_blocks: Option<usize>,
    /// `[rows][budget_blocks]`, ascending; only written for rows that see more blocks.
    blocks: Vec<u32>,
    /// `[SCORED_ROWS][blocks]`.
    scores: Vec<f32>,
}

/// The tokens that one row attends to: blocks, then a tail.
#[derive(Clone, Copy)]
pub struct Selected<'a> {
    /// Ascending; none when the row attends to everything.
    blocks: &'a [u32],
    block_tokens: usize,
    tail: (usize, usize),
}

/// Rows whose scores are found together: a key is read once for all of them.
const SCORED_ROWS: usize = 16;
/// Keys whose products are found together.
const KEYS: usize = 2;
/// Keys that are asked for before their turn: they mostly come from memory, and a single row is soon done with them.
const AHEAD: usize = 32;
/// Heads of queries whose products are found together.
const HEADS: usize = 4;
/// Keys that one task finds the scores of, at least: those of several rows at once are few, or its scores would not stay
/// near.
const TASK_KEYS: usize = 64;
/// Scores that one task finds at most.
const TASK_SCORES: usize = SCORED_ROWS * TASK_KEYS;
/// Tasks for each thread, at least, where there are scores enough.
const TASKS_A_THREAD: usize = 4;

impl Selections {
    /// Every row attends to all tokens that it sees.
    pub fn set_everything(&mut self, first_visible: usize, rows: usize) {
        (self.rows, self.first_visible, self.budget_blocks) = (rows, first_visible, None);
    }

    /// Rows that see no more than the budget's blocks attend to everything; the others to their best blocks and to the
    /// tokens after the last complete block.
    pub fn choose(&mut self, cpu: &Cpu, first_visible: usize, index: &Index<'_>) {
        let &Index { dim, block_tokens, budget_blocks: budget, queries, block_keys, .. } = index;
        let width = index.heads * dim;
        let rows = queries.len() / width;
        let whole =
            queries.len() == rows * width && block_keys.len() >= (first_visible + rows - 1) / block_tokens * dim;
        assert!(whole && budget > 0, "choice of blocks: shapes differ, or there is nothing to choose");
        (self.rows, self.first_visible) = (rows, first_visible);
        (self.block_tokens, self.budget_blocks) = (block_tokens, Some(budget));
        let complete = move |row: usize| (first_visible + row) / block_tokens;
        self.blocks.resize(rows * budget, 0);
        for first in (0..rows).step_by(SCORED_ROWS) {
            let group = first..rows.min(first + SCORED_ROWS);
            let blocks = complete(group.end - 1);
            if blocks <= budget {
                continue;
            }
            // Rows before the last may not see all of these blocks: what they do not see is not looked at below.
            let queries = &queries[group.start * width..group.end * width];
            let scores_len = group.len() * blocks;
            self.scores.resize(self.scores.len().max(scores_len), 0.0);
            let scores = DisjointMut::new(&mut self.scores[..scores_len]);
            // Keys that follow each other are soon at hand: stretches are as long as threads without work allow.
            let task_keys = blocks / (TASKS_A_THREAD * cpu.threads());
            let task_keys = task_keys.clamp(TASK_KEYS, TASK_SCORES / group.len()) / KEYS * KEYS;
            cpu.pool.run(
                blocks.div_ceil(task_keys),
                false,
                || (),
                |(), task| {
                    let keys = task * task_keys..blocks.min((task + 1) * task_keys);
                    let mut part = [0.0; TASK_SCORES];
                    let part = &mut part[..group.len() * keys.len()];
                    block_scores(cpu.isa(), queries, &block_keys[keys.start * dim..keys.end * dim], width, dim, part);
                    for (row, part) in part.chunks_exact(keys.len()).enumerate() {
                        // SAFETY: this task alone writes the scores of its keys.
                        unsafe { scores.part(row * blocks + keys.start, keys.len()) }.copy_from_slice(part);
                    }
                },
            );
            let scores = &self.scores;
            cpu.for_rows(&mut self.blocks[group.start * budget..group.end * budget], budget, |row, out| {
                let seen = complete(group.start + row);
                if seen > budget {
                    best_blocks(cpu.isa(), &scores[row * blocks..][..seen], out);
                }
            });
        }
    }

    /// Rows of the strip.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The tokens that the last row sees.
    pub(super) fn visible_tokens(&self) -> usize {
        self.first_visible + self.rows.saturating_sub(1)
    }

    /// What a row attends to.
    pub fn row(&self, row: usize) -> Selected<'_> {
        assert!(row < self.rows, "selection of row {row} of {}", self.rows);
        let visible = self.first_visible + row;
        match self.budget_blocks {
            Some(budget) if visible / self.block_tokens > budget => Selected {
                blocks: &self.blocks[row * budget..][..budget],
                block_tokens: self.block_tokens,
                tail: (visible / self.block_tokens * self.block_tokens, visible),
            },
            _ => Selected { blocks: &[], block_tokens: 1, tail: (0, visible) },
        }
    }
}

impl<'a> Selected<'a> {
    /// The chosen blocks, ascending; `None` when the row attends to everything.
    pub fn blocks(self) -> Option<&'a [u32]> {
        (self.tail.0 > 0).then_some(self.blocks)
    }

    /// The ranges of tokens, ascending.
    pub fn ranges(self) -> Ranges<'a> {
        Ranges { blocks: self.blocks.iter(), block_tokens: self.block_tokens, tail: self.tail.0..self.tail.1 }
    }
}

/// Ranges of tokens; none of them is empty.
pub struct Ranges<'a> {
    blocks: std::slice::Iter<'a, u32>,
    block_tokens: usize,
    tail: Range<usize>,
}

impl Iterator for Ranges<'_> {
    type Item = Range<usize>;

    #[inline]
    fn next(&mut self) -> Option<Range<usize>> {
        match self.blocks.next() {
            Some(block) => Some(*block as usize * self.block_tokens..(*block as usize + 1) * self.block_tokens),
            None => Some(std::mem::take(&mut self.tail)).filter(|tail| !tail.is_empty()),
        }
    }
}

dispatch! {
    /// Scores of blocks for rows of queries: `score_b = sum_h max(0, iq_h . ik_b)`.
    ///
    /// `queries` is `[rows][width]`, heads of `dim` in a row, `block_keys` `[blocks][dim]`, `scores` `[rows][blocks]`.
    pub fn block_scores = block_scores_body(
        queries: &[f32], block_keys: &[f32], width: usize, dim: usize, scores: &mut [f32],
    )
}

#[inline(always)]
fn block_scores_body<V: Lanes, const FUSED: bool>(
    queries: &[f32],
    block_keys: &[f32],
    width: usize,
    dim: usize,
    scores: &mut [f32],
) {
    let (rows, blocks) = (queries.len() / width, block_keys.len() / dim);
    let whole = width.is_multiple_of(dim) && queries.len() == rows * width && block_keys.len() == blocks * dim;
    assert!(whole && scores.len() == rows * blocks, "block scores: shapes differ");
    let heads = width / dim;
    let key = block_keys.as_ptr();
    for row in 0..rows {
        let query = queries[row * width..][..width].as_ptr();
        let scores = &mut scores[row * blocks..][..blocks];
        let mut b = 0;
        // SAFETY of the products below: every query and key is `dim` long, and the numbers of heads and blocks are those
        // of the slices; `dispatch` vouches for the instructions.
        while b + KEYS <= blocks {
            if row == 0 {
                for line in 0..KEYS * dim / LANES {
                    prefetch(key.wrapping_add((b + AHEAD) * dim + line * LANES));
                }
            }
            let mut sums = [0.0; KEYS];
            let mut h = 0;
            while h + HEADS <= heads {
                // SAFETY: see above.
                let tile = unsafe {
                    let at = query.add(h * dim);
                    let queries = [at, at.add(dim), at.add(2 * dim), at.add(3 * dim)];
                    dots::<V, FUSED, KEYS, HEADS>([key.add(b * dim), key.add((b + 1) * dim)], queries, dim)
                };
                for i in 0..KEYS {
                    for product in tile[i] {
                        sums[i] += product.max(0.0);
                    }
                }
                h += HEADS;
            }
            while h < heads {
                // SAFETY: see above.
                let tile = unsafe {
                    let keys = [key.add(b * dim), key.add((b + 1) * dim)];
                    dots::<V, FUSED, KEYS, 1>(keys, [query.add(h * dim)], dim)
                };
                for i in 0..KEYS {
                    sums[i] += tile[i][0].max(0.0);
                }
                h += 1;
            }
            scores[b..b + KEYS].copy_from_slice(&sums);
            b += KEYS;
        }
        while b < blocks {
            let mut sum = 0.0;
            for h in 0..heads {
                // SAFETY: see above.
                let product = unsafe { dots::<V, FUSED, 1, 1>([key.add(b * dim)], [query.add(h * dim)], dim)[0][0] };
                sum += product.max(0.0);
            }
            scores[b] = sum;
            b += 1;
        }
    }
}

dispatch! {
    /// Writes the `out.len()` best blocks in ascending order, the lower block first among equal scores.
    ///
    /// Scores are not negative, as [`block_scores`] gives them, and there are at least as many as places.
    pub fn best_blocks = best_blocks_body(scores: &[f32], out: &mut [u32])
}

#[inline(always)]
fn best_blocks_body<V: Lanes, const FUSED: bool>(scores: &[f32], out: &mut [u32]) {
    let budget = out.len();
    assert!(budget <= scores.len(), "{budget} best of {} blocks", scores.len());
    // The bits of numbers that are not negative are in the order of the numbers: halve their range until `low` is the
    // largest score that `budget` blocks reach, or one that just so many do.
    let (mut low, mut high) = (0, f32::INFINITY.to_bits() as i32 + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let count = reaching(scores, middle);
        if count >= budget {
            low = middle;
        } else {
            high = middle;
        }
        if count == budget {
            break;
        }
    }
    let mut equals = if budget == 0 { 0 } else { budget - reaching(scores, low + 1) };
    let mut count = 0;
    for (block, score) in scores.iter().enumerate() {
        if count == budget {
            break;
        }
        let score = score.to_bits() as i32;
        let is_equal = score == low && equals > 0;
        // Written whether it stays or not: a branch that nobody can predict costs more.
        out[count] = block as u32;
        count += usize::from(score > low || is_equal);
        equals -= usize::from(is_equal);
    }
}

/// How many scores have at least these bits.
#[inline(always)]
fn reaching(scores: &[f32], bits: i32) -> usize {
    let mut count = 0i32;
    for score in scores {
        count += i32::from(score.to_bits() as i32 >= bits);
    }
    count as usize
}
