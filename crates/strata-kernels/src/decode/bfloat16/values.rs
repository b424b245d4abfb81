//! Types of many values: weights are made in float32 and rounded; and plain numbers.

use std::arch::x86_64::*;

use strata_quant::fields::{bytes_at, u16_at};

use super::super::lanes::{f16, load_16, load_32, nibbles_32};
use super::Sink;
use super::tables::table_of_32;

/// 32 signed bytes under two scales.
///
/// # Safety
/// The processor must have AVX-512 with BF16.
#[inline(always)]
unsafe fn scaled<S: Sink>(sink: &mut S, codes: __m256i, scales: [f32; 2]) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(codes)));
        let high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256::<1>(codes)));
        let (low, high) =
            (_mm512_mul_ps(low, _mm512_set1_ps(scales[0])), _mm512_mul_ps(high, _mm512_set1_ps(scales[1])));
        sink.take(table_of_32(low, high));
    }
}

/// # Safety
/// The processor must have AVX-512 with BF16.
#[inline(always)]
pub(super) unsafe fn q8_0<S: Sink>(block: &[u8; 34], sink: &mut S) {
    // SAFETY: the caller vouches for the instructions.
    unsafe { scaled(sink, load_32(bytes_at(block, 2)), [f16(u16_at(block, 0)); 2]) }
}

/// # Safety
/// The processor must have AVX-512 with BF16.
#[inline(always)]
pub(super) unsafe fn q6_k<S: Sink>(block: &[u8; 210], sink: &mut S) {
    // SAFETY: the caller vouches for the instructions; the store fills the sixteen places.
    unsafe {
        let mut scales = [0.0; 16];
        let small = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(bytes_at(block, 192))));
        _mm512_storeu_ps(scales.as_mut_ptr(), _mm512_mul_ps(small, _mm512_set1_ps(f16(u16_at(block, 208)))));
        let (top, offset) = (_mm256_set1_epi8(0x30), _mm256_set1_epi8(32));
        for half in 0..2 {
            let [p0, p2] = nibbles_32(load_32(bytes_at(block, 64 * half)));
            let [p1, p3] = nibbles_32(load_32(bytes_at(block, 64 * half + 32)));
            let high = load_32(bytes_at(block, 128 + 32 * half));
            // Two bits of plane `k` lie at bit `2 k`; they belong at bit 4.
            let tops = [_mm256_slli_epi16::<4>(high), _mm256_slli_epi16::<2>(high), high, _mm256_srli_epi16::<2>(high)];
            for (k, plane) in [p0, p1, p2, p3].into_iter().enumerate() {
                let codes = _mm256_or_si256(plane, _mm256_and_si256(tops[k], top));
                let group = 8 * half + 2 * k;
                scaled(sink, _mm256_sub_epi8(codes, offset), [scales[group], scales[group + 1]]);
            }
        }
    }
}

/// 32 weights of F32.
///
/// # Safety
/// The processor must have AVX-512 with BF16.
#[inline(always)]
pub(super) unsafe fn f32<S: Sink>(bytes: &[u8; 128], sink: &mut S) {
    // SAFETY: the caller vouches for the instructions; twice sixteen readable values.
    unsafe {
        let values = bytes.as_ptr().cast();
        sink.take(table_of_32(_mm512_loadu_ps(values), _mm512_loadu_ps(values.add(16))));
    }
}

/// 32 values.
///
/// # Safety
/// The processor must have AVX-512 with BF16.
#[inline(always)]
pub(super) unsafe fn f32_values<S: Sink>(values: &[f32; 32], sink: &mut S) {
    // SAFETY: the caller vouches for the instructions; twice sixteen readable values.
    unsafe {
        let values = values.as_ptr();
        sink.take(table_of_32(_mm512_loadu_ps(values), _mm512_loadu_ps(values.add(16))));
    }
}

/// 32 weights of F16.
///
/// # Safety
/// The processor must have AVX-512 with BF16.
#[inline(always)]
pub(super) unsafe fn f16_values<S: Sink>(bytes: &[u8; 64], sink: &mut S) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let low = _mm512_cvtph_ps(load_32(bytes_at(bytes, 0)));
        sink.take(table_of_32(low, _mm512_cvtph_ps(load_32(bytes_at(bytes, 32)))));
    }
}

/// 32 weights of BF16, as they are.
///
/// # Safety
/// The processor must have AVX-512 with BF16.
#[inline(always)]
pub(super) unsafe fn bf16<S: Sink>(bytes: &[u8; 64], sink: &mut S) {
    // SAFETY: the caller vouches for the instructions; 64 readable bytes.
    unsafe { sink.take(_mm512_loadu_si512(bytes.as_ptr().cast())) }
}
