//! Vector decoders against the scalar ones of `strata-quant` (which have a specification of their own there): the same
//! bits, for every type and instruction set.

use std::panic::{AssertUnwindSafe, catch_unwind};

use strata_gguf::TensorType;
use strata_kernels::decode::{decode_blocks, decode_blocks_to_bfloat16};
use strata_kernels::{Isa, bfloat16};
use strata_quant::decode_row;

use crate::reference::{Random, fast_isas, isas, poison, poison_at};

/// Places around an output that nobody may write.
const MARGIN: usize = 19;

/// Types to test: few under miri, which is slow.
const TYPES: &[TensorType] = if cfg!(miri) { &[TensorType::Q8_0, TensorType::F16] } else { TensorType::ALL };

/// Decodes `blocks` with every instruction set and by definition; a NaN equals any NaN.
#[track_caller]
fn check(ty: TensorType, blocks: &[u8]) {
    let len = blocks.len() / ty.block_bytes() * ty.block_weights();
    let mut want = vec![0.0; len];
    decode_row(ty, blocks, &mut want);
    check_bfloat16(ty, blocks, &want);
    for isa in isas() {
        let mut out = poison(len + 2 * MARGIN);
        decode_blocks(isa, ty, blocks, &mut out[MARGIN..][..len]);
        let untouched = |at: usize| out[at].to_bits() == poison_at(at).to_bits();
        assert!((0..MARGIN).chain(MARGIN + len..len + 2 * MARGIN).all(untouched), "{isa}, {ty}: wrote outside");
        for (e, (got, want)) in out[MARGIN..].iter().zip(&want).enumerate() {
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{isa}, {ty}, block {}, weight {}: {got:e}, not {want:e}",
                e / ty.block_weights(),
                e % ty.block_weights()
            );
        }
    }
}

/// The same for bfloat16: the definition's values, rounded.
fn check_bfloat16(ty: TensorType, blocks: &[u8], want: &[f32]) {
    for isa in fast_isas() {
        let mut out = vec![0x7fc1; want.len() + 2 * MARGIN];
        decode_blocks_to_bfloat16(isa, ty, blocks, &mut out[MARGIN..][..want.len()]);
        let around = out[..MARGIN].iter().chain(&out[MARGIN + want.len()..]);
        assert!(around.into_iter().all(|bits| *bits == 0x7fc1), "{isa}, {ty}: wrote outside");
        for (e, (got, want)) in out[MARGIN..].iter().zip(want).enumerate() {
            // What the file has as bfloat16 stays as it is: products flush it.
            let is_flushed = |bits: u16| bits & 0x7f80 == 0;
            let same =
                *got == bfloat16::round(*want) || ty == TensorType::BF16 && is_flushed(*got) && want.is_subnormal();
            assert!(
                same || want.is_nan() && bfloat16::to_f32(*got).is_nan(),
                "{isa}, {ty}, block {}, weight {}: {got:04x}, not {want:e} rounded",
                e / ty.block_weights(),
                e % ty.block_weights()
            );
        }
    }
}

fn random_bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.bits() as u8).collect()
}

#[test]
fn every_value_of_every_byte() {
    let mut random = Random::new(10);
    let values = if cfg!(miri) { 2 } else { 256 };
    for &ty in TYPES {
        for base in 0..2 {
            let mut block = random_bytes(&mut random, ty.block_bytes());
            for position in 0..block.len() {
                let mut blocks = block.repeat(values);
                for (value, block) in blocks.chunks_exact_mut(ty.block_bytes()).enumerate() {
                    block[position] = value as u8;
                }
                check(ty, &blocks);
                // The second time around the other bytes are all zero or all one, in turn.
                if base == 1 {
                    block[position] = [0, 255][position % 2];
                }
            }
        }
    }
}

#[test]
fn thousands_of_random_blocks_at_every_alignment() {
    let mut random = Random::new(11);
    let rounds = if cfg!(miri) { 3 } else { 300 };
    for &ty in TYPES {
        for round in 0..rounds {
            // From no block to many; the single-weight types get tails of every length.
            let count = if round < 40 { round } else { random.below(40) };
            let shift = round % 64;
            let bytes = random_bytes(&mut random, shift + count * ty.block_bytes());
            check(ty, &bytes[shift..]);
        }
    }
}

/// Where a block has its float16 numbers.
fn float16_offsets(ty: TensorType) -> &'static [usize] {
    match ty {
        TensorType::Q2_K => &[80, 82],
        TensorType::Q3_K => &[108],
        TensorType::Q6_K => &[208],
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => &[0, 2],
        // IQ1_M has the nibbles of one in the upper ends of four numbers; these have other scales, or none.
        TensorType::F32 | TensorType::IQ1_M | TensorType::MXFP4 | TensorType::NVFP4 => &[],
        _ => &[0],
    }
}

/// Subnormal, infinite and NaN scales are among them.
#[test]
#[cfg(not(miri))]
fn every_float16_scale() {
    let mut random = Random::new(12);
    for &ty in TYPES {
        for &offset in float16_offsets(ty) {
            let mut blocks = random_bytes(&mut random, 65536 * ty.block_bytes());
            for (block, x) in blocks.chunks_exact_mut(ty.block_bytes()).zip(0..=u16::MAX) {
                block[offset..offset + 2].copy_from_slice(&x.to_le_bytes());
            }
            check(ty, &blocks);
        }
    }
    let mut blocks = random_bytes(&mut random, 65536 * TensorType::IQ1_M.block_bytes());
    for (block, x) in blocks.chunks_exact_mut(TensorType::IQ1_M.block_bytes()).zip(0..=u16::MAX) {
        for i in 0..4 {
            let top = &mut block[49 + 2 * i];
            *top = *top & 15 | ((x >> (4 * i)) as u8) << 4;
        }
    }
    check(TensorType::IQ1_M, &blocks);
}

#[test]
fn lengths_that_do_not_fit_together_are_refused() {
    for isa in isas() {
        for &ty in TYPES {
            let (bytes, weights) = (ty.block_bytes(), ty.block_weights());
            for (given_bytes, given_weights) in [
                (bytes - 1, weights),
                (bytes + 1, weights),
                (bytes, weights + 1),
                (bytes, weights - 1),
                (2 * bytes, weights),
                (bytes, 2 * weights),
                (0, weights),
                (40 * bytes, 30 * weights),
                (30 * bytes, 40 * weights),
            ] {
                let run = || decode_blocks(isa, ty, &vec![0; given_bytes], &mut vec![0.0; given_weights]);
                let message = *catch_unwind(AssertUnwindSafe(run)).unwrap_err().downcast::<String>().unwrap();
                let want = format!("{given_bytes} bytes of {ty} do not decode to {given_weights} weights");
                assert!(message.contains(&want), "{isa}: {message}");
            }
        }
    }
}

#[test]
fn instructions_that_the_machine_lacks_are_refused() {
    for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
        let run = || decode_blocks(isa, TensorType::Q8_0, &[0; 34], &mut [0.0; 32]);
        assert!(catch_unwind(run).is_err(), "{isa} ran");
    }
}
