//! i-quants of 256 weights: entries of a codebook times signs (IQ2, IQ3), plus a shift (IQ1), or a table (IQ4_XS).
//!
//! Owns: their decoders. `d` is the scale of a block. The scale of a group is `d (0.5 + n) / 4` and the like: made as
//! `d / 8 (2 n + 1)`, which is the same number, since both forms are exact in float32 for every float16 `d`.

use std::arch::x86_64::*;

use strata_quant::fields::{bytes_at, u16_at, u32_at};
use strata_quant::grids::{IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, SIGN_MASKS, SIGN_MASKS_7};

use super::lanes::{Wide, f16, halves, nibbles_16, pair};
use super::simple::table_of_16;

/// Sixteen bytes of a codebook, negated where `masks` is 255.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn signed(entries: __m128i, masks: __m128i) -> __m128i {
    // SAFETY: the caller vouches for the instructions.
    unsafe { _mm_sub_epi8(_mm_xor_si128(entries, masks), masks) }
}

/// `d (2 n + 1)` for the nibbles `n` of eight bytes, low nibbles first.
///
/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn odd_scales<W: Wide>(d: f32, packed: [u8; 8]) -> [f32; 16] {
    let mut scales = [0.0; 16];
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let [low, high] = nibbles_16(pair(u64::from_le_bytes(packed), 0));
        let n = _mm_unpacklo_epi8(low, high);
        W::put(&mut scales, _mm_add_epi8(_mm_add_epi8(n, n), _mm_set1_epi8(1)), d);
    }
    scales
}

/// Four entries of four bytes in a register.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn four(e0: u32, e1: u32, e2: u32, e3: u32) -> __m128i {
    // SAFETY: the caller vouches for the instructions.
    unsafe { _mm_set_epi32(e3.cast_signed(), e2.cast_signed(), e1.cast_signed(), e0.cast_signed()) }
}

/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn iq2_xs<W: Wide>(block: &[u8; 74], out: &mut [f32; 256]) {
    let (out, _) = out.as_chunks_mut::<16>();
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let scales = odd_scales::<W>(f16(u16_at(block, 0)) * 0.125, *bytes_at(block, 66));
        for (g, out) in out.iter_mut().enumerate() {
            let (x, y) = (usize::from(u16_at(block, 2 + 4 * g)), usize::from(u16_at(block, 4 + 4 * g)));
            let entries = pair(IQ2_XS[x & 511], IQ2_XS[y & 511]);
            W::put(out, signed(entries, pair(SIGN_MASKS_7[x >> 9], SIGN_MASKS_7[y >> 9])), scales[g]);
        }
    }
}

/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn iq2_s<W: Wide>(block: &[u8; 82], out: &mut [f32; 256]) {
    let (out, _) = out.as_chunks_mut::<32>();
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let scales = odd_scales::<W>(f16(u16_at(block, 0)) * 0.125, *bytes_at(block, 74));
        for (b, out) in out.iter_mut().enumerate() {
            let high = usize::from(block[66 + b]);
            let entry = |l: usize| IQ2_S[usize::from(block[2 + 4 * b + l]) | high << (8 - 2 * l) & 0x300];
            let mask = |l: usize| SIGN_MASKS[usize::from(block[34 + 4 * b + l])];
            let [front, back] = halves(out);
            W::put(front, signed(pair(entry(0), entry(1)), pair(mask(0), mask(1))), scales[2 * b]);
            W::put(back, signed(pair(entry(2), entry(3)), pair(mask(2), mask(3))), scales[2 * b + 1]);
        }
    }
}

/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn iq2_xxs<W: Wide>(block: &[u8; 66], out: &mut [f32; 256]) {
    let (out, _) = out.as_chunks_mut::<32>();
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let d = f16(u16_at(block, 0)) * 0.125;
        for (b, out) in out.iter_mut().enumerate() {
            let entry = |l: usize| IQ2_XXS[usize::from(block[2 + 8 * b + l])];
            let packed = u32_at(block, 6 + 8 * b);
            let mask = |l: usize| SIGN_MASKS_7[(packed >> (7 * l) & 127) as usize];
            let scale = d * (2 * (packed >> 28) + 1) as f32;
            let [front, back] = halves(out);
            W::put(front, signed(pair(entry(0), entry(1)), pair(mask(0), mask(1))), scale);
            W::put(back, signed(pair(entry(2), entry(3)), pair(mask(2), mask(3))), scale);
        }
    }
}

/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn iq3_xxs<W: Wide>(block: &[u8; 98], out: &mut [f32; 256]) {
    let (out, _) = out.as_chunks_mut::<32>();
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let d = f16(u16_at(block, 0)) * 0.25;
        for (b, out) in out.iter_mut().enumerate() {
            let entry = |t: usize| IQ3_XXS[usize::from(block[2 + 8 * b + t])];
            let packed = u32_at(block, 66 + 4 * b);
            let mask = |l: usize| SIGN_MASKS_7[(packed >> (7 * l) & 127) as usize];
            let scale = d * (2 * (packed >> 28) + 1) as f32;
            let [front, back] = halves(out);
            let entries = four(entry(0), entry(1), entry(2), entry(3));
            W::put(front, signed(entries, pair(mask(0), mask(1))), scale);
            let entries = four(entry(4), entry(5), entry(6), entry(7));
            W::put(back, signed(entries, pair(mask(2), mask(3))), scale);
        }
    }
}

/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn iq3_s<W: Wide>(block: &[u8; 110], out: &mut [f32; 256]) {
    let (out, _) = out.as_chunks_mut::<32>();
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let [s0, s1, s2, s3] = *bytes_at(block, 106);
        let scales = odd_scales::<W>(f16(u16_at(block, 0)), [s0, s1, s2, s3, 0, 0, 0, 0]);
        for (b, out) in out.iter_mut().enumerate() {
            let high = usize::from(block[66 + b]);
            let entry = |t: usize| IQ3_S[usize::from(block[2 + 8 * b + t]) | high << (8 - t) & 256];
            let mask = |l: usize| SIGN_MASKS[usize::from(block[74 + 4 * b + l])];
            let [front, back] = halves(out);
            let entries = four(entry(0), entry(1), entry(2), entry(3));
            W::put(front, signed(entries, pair(mask(0), mask(1))), scales[b]);
            let entries = four(entry(4), entry(5), entry(6), entry(7));
            W::put(back, signed(entries, pair(mask(2), mask(3))), scales[b]);
        }
    }
}

/// `8 (entry + shift)` for two entries of the grid of IQ1: `8 entry + 1`, or `8 entry - 1` where bit 0 of `negative` is
/// set.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn shifted(indices: [usize; 2], negative: [usize; 2]) -> __m128i {
    const SHIFTS: [u64; 2] = [0x0101_0101_0101_0101, u64::MAX];
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let entries = pair(IQ1[indices[0]], IQ1[indices[1]]);
        // There is no shift of bytes; what comes from the neighbour is masked out.
        let times_8 = _mm_and_si128(_mm_slli_epi16::<3>(entries), _mm_set1_epi8(!7));
        _mm_add_epi8(times_8, pair(SHIFTS[negative[0] & 1], SHIFTS[negative[1] & 1]))
    }
}

/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn iq1_s<W: Wide>(block: &[u8; 50], out: &mut [f32; 256]) {
    let (out, _) = out.as_chunks_mut::<32>();
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let d = f16(u16_at(block, 0)) * 0.125;
        for (b, out) in out.iter_mut().enumerate() {
            let packed = usize::from(u16_at(block, 34 + 2 * b));
            let scale = d * (2 * (packed >> 12 & 7) + 1) as f32;
            let index = |l: usize| usize::from(block[2 + 4 * b + l]) | (packed >> (3 * l) & 7) << 8;
            let negative = [packed >> 15; 2];
            let [front, back] = halves(out);
            W::put(front, shifted([index(0), index(1)], negative), scale);
            W::put(back, shifted([index(2), index(3)], negative), scale);
        }
    }
}

/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn iq1_m<W: Wide>(block: &[u8; 56], out: &mut [f32; 256]) {
    let (out, _) = out.as_chunks_mut::<64>();
    // Twelve bits of small scales in each of four numbers; their top nibbles, together, are `d`.
    let top = |i: usize| u16_at(block, 48 + 2 * i) >> 12 << (4 * i);
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let d = f16(top(0) | top(1) | top(2) | top(3)) * 0.125;
        for (i, out) in out.iter_mut().enumerate() {
            let packed = u32::from(u16_at(block, 48 + 2 * i));
            for (k, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let g = 4 * i + k;
                let scale = d * (2 * (packed >> (3 * k) & 7) + 1) as f32;
                let high = usize::from(block[32 + g]);
                let low = [usize::from(block[2 * g]), usize::from(block[2 * g + 1])];
                let indices = [low[0] | (high & 7) << 8, low[1] | (high >> 4 & 7) << 8];
                W::put(out, shifted(indices, [high >> 3, high >> 7]), scale);
            }
        }
    }
}

/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn iq4_xs<W: Wide>(block: &[u8; 136], out: &mut [f32; 256]) {
    let (out, _) = out.as_chunks_mut::<32>();
    let high_bits = u16_at(block, 2);
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let d = f16(u16_at(block, 0));
        for (b, out) in out.iter_mut().enumerate() {
            let low = block[4 + b / 2] >> (b % 2 * 4) & 15;
            let high = (high_bits >> (2 * b) & 3) as u8;
            let scale = d * f32::from((low | high << 4).cast_signed() - 32);
            table_of_16::<W>(scale, bytes_at(block, 8 + 16 * b), out);
        }
    }
}
