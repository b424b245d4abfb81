//! Types of many values: weights are made in float32 and rounded; and plain numbers.

use std::arch::x86_64::*;

use strata_quant::fields::{bytes_at, u16_at};

use super::super::kquants::q6_k_codes;
use super::super::lanes::{Avx512, Wide, f16, load_16, load_32};
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
    let mut scales = [0.0; 16];
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        Avx512::put(&mut scales, load_16(bytes_at(block, 192)), f16(u16_at(block, 208)));
        for half in 0..2 {
            let codes = q6_k_codes(block, half);
            for k in 0..4 {
                let group = 8 * half + 2 * k;
                scaled(sink, codes[k], [scales[group], scales[group + 1]]);
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
