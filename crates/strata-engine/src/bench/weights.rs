//! Memory full of valid weights, more than caches hold.
//!
//! Promises: no bytes are handed out again before all others were.

use strata_gguf::TensorType;
use strata_kernels::Cpu;

use crate::synth::blocks::{Random, random_blocks};

/// Bytes of weights that are made; the memory repeats them.
const POOL_BYTES: usize = 16 << 20;
/// Bytes of a cache line, where the memory begins.
const LINE_BYTES: usize = 64;
/// Standard deviation of the weights.
const STD: f32 = 0.02;

/// The memory.
pub(super) struct Weights {
    bytes: Vec<u8>,
    /// Where it begins in `bytes`, and how much of it holds whole blocks.
    start: usize,
    len_bytes: usize,
}

/// A walk through the memory.
#[derive(Clone, Copy, Default)]
pub(super) struct Cursor(usize);

impl Weights {
    /// Memory of this size, of zeros; `None`: there is not so much.
    pub(super) fn allocate(len_bytes: usize) -> Option<Self> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len_bytes.checked_add(LINE_BYTES)?).ok()?;
        bytes.resize(len_bytes + LINE_BYTES, 0);
        let start = bytes.as_ptr().align_offset(LINE_BYTES).min(LINE_BYTES);
        Some(Self { bytes, start, len_bytes })
    }

    /// Fills it with weights of this type.
    pub(super) fn fill(&mut self, cpu: &Cpu, ty: TensorType) {
        let all_bytes = self.bytes.len() - LINE_BYTES;
        let pool_blocks = POOL_BYTES.min(all_bytes) / ty.block_bytes();
        let pool = random_blocks(ty, STD, pool_blocks * ty.block_weights(), &mut Random::named(0, ty.name()));
        self.len_bytes = all_bytes / pool.len() * pool.len();
        let bytes = &mut self.bytes[self.start..][..self.len_bytes];
        cpu.for_rows(bytes, pool.len(), |_, part| part.copy_from_slice(&pool));
    }

    /// The next `len_bytes` bytes, a whole number of blocks; from the beginning when there are not so many.
    pub(super) fn next(&self, cursor: &mut Cursor, len_bytes: usize) -> &[u8] {
        if cursor.0 + len_bytes > self.len_bytes {
            cursor.0 = 0;
        }
        let at = self.start + cursor.0;
        cursor.0 += len_bytes;
        &self.bytes[at..at + len_bytes]
    }

    /// Part `i` of `parts` equal ones.
    pub(super) fn part(&self, i: usize, parts: usize) -> &[u8] {
        let len = self.len_bytes / parts;
        &self.bytes[self.start + i % parts * len..][..len]
    }
}

#[cfg(test)]
mod tests {
    use strata_kernels::Isa;
    use strata_quant::decode_row;

    use super::*;

    #[test]
    fn a_walk_meets_valid_weights_and_comes_round() {
        let cpu = Cpu::precise(Isa::Portable, 2).unwrap();
        let mut weights = Weights::allocate(1 << 20).unwrap();
        for ty in [TensorType::IQ2_S, TensorType::F32, TensorType::Q4_K] {
            weights.fill(&cpu, ty);
            let len = ty.row_bytes(2560).unwrap() as usize;
            let mut cursor = Cursor::default();
            let first = weights.next(&mut cursor, len).to_vec();
            let mut values = vec![0.0; 2560];
            let mut rows = 1;
            while cursor.0 + len <= weights.len_bytes {
                decode_row(ty, weights.next(&mut cursor, len), &mut values);
                assert!(values.iter().all(|value| value.abs() < 1.0), "{ty}, row {rows}");
                rows += 1;
            }
            assert_eq!(rows, weights.len_bytes / len);
            assert_eq!(weights.next(&mut cursor, len), first);
        }
    }
}
