//! The state of the recurrence, in the order in which it is computed.
//!
//! Columns do not touch each other, so the matrix of a head is cut into blocks of columns that fit the first-level cache,
//! one after the other: `[head][block][key][COLUMNS]`. The last block is padded with columns that stay zero.

use std::collections::TryReserveError;

use crate::vector::LANES;

/// Vectors of columns in a block: with 128 keys, 16 KB of state, and as many running sums as hide the latency of a
/// multiply-add.
pub(super) const VECTORS: usize = 2;
/// Columns of a block.
pub(super) const COLUMNS: usize = VECTORS * LANES;

/// One matrix `[keys][width]` for each value head.
pub struct State {
    values: Vec<f32>,
    /// Where the first cache line begins.
    start: usize,
    heads: usize,
    keys: usize,
    width: usize,
}

impl State {
    /// Bytes of the matrices of `heads` heads, padding of columns included.
    pub fn bytes(heads: usize, keys: usize, width: usize) -> usize {
        [heads, keys, width.next_multiple_of(COLUMNS)]
            .iter()
            .fold(size_of::<f32>(), |bytes, n| bytes.saturating_mul(*n))
    }

    /// All zeros, as before the first token.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn new(heads: usize, keys: usize, width: usize) -> Result<Self, TryReserveError> {
        let len = heads * keys * width.next_multiple_of(COLUMNS);
        let mut values = Vec::new();
        values.try_reserve_exact(len + LANES)?;
        values.resize(len + LANES, 0.0);
        let start = values.as_ptr().align_offset(LANES * size_of::<f32>()).min(LANES);
        Ok(Self { values, start, heads, keys, width })
    }

    /// Heads, and the widths of keys and of values.
    pub fn shape(&self) -> [usize; 3] {
        [self.heads, self.keys, self.width]
    }

    /// Back to all zeros.
    pub fn reset(&mut self) {
        self.values.fill(0.0);
    }

    /// Copies the matrix of `head` into `rows`, `[keys][width]`.
    pub fn read(&self, head: usize, rows: &mut [f32]) {
        assert_eq!(rows.len(), self.keys * self.width, "the state of a head");
        for (key, row) in rows.chunks_exact_mut(self.width).enumerate() {
            for (block, columns) in row.chunks_mut(COLUMNS).enumerate() {
                columns.copy_from_slice(&self.values[self.place(head, block, key)..][..columns.len()]);
            }
        }
    }

    /// Sets the matrix of `head` to `rows`, `[keys][width]`.
    pub fn write(&mut self, head: usize, rows: &[f32]) {
        assert_eq!(rows.len(), self.keys * self.width, "the state of a head");
        for (key, row) in rows.chunks_exact(self.width).enumerate() {
            for (block, columns) in row.chunks(COLUMNS).enumerate() {
                let place = self.place(head, block, key);
                self.values[place..][..columns.len()].copy_from_slice(columns);
            }
        }
    }

    fn place(&self, head: usize, block: usize, key: usize) -> usize {
        self.start + (head * self.blocks() + block) * self.block_len() + key * COLUMNS
    }

    /// Blocks of a head.
    pub(super) fn blocks(&self) -> usize {
        self.width.div_ceil(COLUMNS)
    }

    pub(super) fn block_len(&self) -> usize {
        self.keys * COLUMNS
    }

    /// All of it, in an order of its own: for copies.
    pub fn values(&self) -> &[f32] {
        let len = self.heads * self.blocks() * self.block_len();
        &self.values[self.start..][..len]
    }

    /// Makes it what [`values`](Self::values) gave for a state of this shape.
    pub fn set(&mut self, values: &[f32]) {
        self.values_mut().copy_from_slice(values);
    }

    /// All blocks of all heads.
    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        let len = self.heads * self.blocks() * self.block_len();
        &mut self.values[self.start..][..len]
    }
}
