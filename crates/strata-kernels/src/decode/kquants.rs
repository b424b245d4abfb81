//! k-quants: blocks of 256 weights whose groups of 16 or 32 have small integer scales under one float16 scale.
//!
//! Owns: their decoders. Products of a float16 and an integer of a few bits are exact, so that it does not matter where
//! they are made.

use std::arch::x86_64::*;

use strata_quant::fields::{bytes_at, u16_at, u32_at};

use super::lanes::{Wide, f16, load_16, load_32, nibbles_32, put_32, put_32_less};

/// Scales and minima of the eight groups of a block of Q4_K or Q5_K.
///
/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn scales_and_minima(block: &[u8]) -> ([f32; 8], [f32; 8]) {
    // Four six-bit numbers at a time, each in its byte of a word.
    let (a, b, c) = (u32_at(block, 4), u32_at(block, 8), u32_at(block, 12));
    let (low, top) = (0x0f0f_0f0f, 0x0303_0303);
    let scales = [a & 0x3f3f_3f3f, c & low | (a >> 6 & top) << 4];
    let minima = [b & 0x3f3f_3f3f, c >> 4 & low | (b >> 6 & top) << 4];
    // SAFETY: the caller vouches for the instructions.
    unsafe { (times_8(scales, f16(u16_at(block, 0))), times_8(minima, f16(u16_at(block, 2)))) }
}

/// `d` times each of eight bytes.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn times_8(bytes: [u32; 2], d: f32) -> [f32; 8] {
    let mut out = [0.0; 8];
    let bytes = i64::from(bytes[0]) | i64::from(bytes[1]) << 32;
    // SAFETY: the caller vouches for the instructions; the store fills the eight places.
    unsafe {
        let values = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes)));
        _mm256_storeu_ps(out.as_mut_ptr(), _mm256_mul_ps(_mm256_set1_ps(d), values));
    }
    out
}

/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn q4_k<W: Wide>(block: &[u8; 144], out: &mut [f32; 256]) {
    let (out, _) = out.as_chunks_mut::<32>();
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let (scales, minima) = scales_and_minima(block);
        for i in 0..4 {
            let [low, high] = nibbles_32(load_32(bytes_at(block, 16 + 32 * i)));
            put_32_less::<W>(&mut out[2 * i], low, scales[2 * i], minima[2 * i]);
            put_32_less::<W>(&mut out[2 * i + 1], high, scales[2 * i + 1], minima[2 * i + 1]);
        }
    }
}

/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn q5_k<W: Wide>(block: &[u8; 176], out: &mut [f32; 256]) {
    let (out, _) = out.as_chunks_mut::<32>();
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let (scales, minima) = scales_and_minima(block);
        let sixteen = _mm256_set1_epi8(16);
        // Bits 0 and 1 of each byte are the fifth bits of the groups at hand.
        let mut fifth = load_32(bytes_at(block, 16));
        for i in 0..4 {
            let [low, high] = nibbles_32(load_32(bytes_at(block, 48 + 32 * i)));
            let low = _mm256_or_si256(low, _mm256_and_si256(_mm256_slli_epi16::<4>(fifth), sixteen));
            let high = _mm256_or_si256(high, _mm256_and_si256(_mm256_slli_epi16::<3>(fifth), sixteen));
            fifth = _mm256_srli_epi16::<2>(fifth);
            put_32_less::<W>(&mut out[2 * i], low, scales[2 * i], minima[2 * i]);
            put_32_less::<W>(&mut out[2 * i + 1], high, scales[2 * i + 1], minima[2 * i + 1]);
        }
    }
}

/// The 128 signed codes of half a block of Q6_K, 32 in a register.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
pub(super) unsafe fn q6_k_codes(block: &[u8; 210], half: usize) -> [__m256i; 4] {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let (top, offset) = (_mm256_set1_epi8(0x30), _mm256_set1_epi8(32));
        let [p0, p2] = nibbles_32(load_32(bytes_at(block, 64 * half)));
        let [p1, p3] = nibbles_32(load_32(bytes_at(block, 64 * half + 32)));
        let high = load_32(bytes_at(block, 128 + 32 * half));
        // Two bits of plane `k` lie at bit `2 k`; they belong at bit 4.
        let tops = [_mm256_slli_epi16::<4>(high), _mm256_slli_epi16::<2>(high), high, _mm256_srli_epi16::<2>(high)];
        let mut codes = [p0, p1, p2, p3];
        for k in 0..4 {
            codes[k] = _mm256_sub_epi8(_mm256_or_si256(codes[k], _mm256_and_si256(tops[k], top)), offset);
        }
        codes
    }
}

/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn q6_k<W: Wide>(block: &[u8; 210], out: &mut [f32; 256]) {
    let (out, _) = out.as_chunks_mut::<32>();
    let mut scales = [0.0; 16];
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        W::put(&mut scales, load_16(bytes_at(block, 192)), f16(u16_at(block, 208)));
        for half in 0..2 {
            let codes = q6_k_codes(block, half);
            for k in 0..4 {
                let group = 8 * half + 2 * k;
                put_32::<W>(&mut out[4 * half + k], codes[k], [scales[group], scales[group + 1]]);
            }
        }
    }
}
