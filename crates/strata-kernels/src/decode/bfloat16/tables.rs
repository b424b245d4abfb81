//! Types of four bits and fewer without a codebook, and five: tables of values.

use std::arch::x86_64::*;

use strata_quant::fields::{bytes_at, u16_at, u32_at};
use strata_quant::grids::IQ4_VALUES;

use super::super::kquants::scales_and_minima;
use super::super::lanes::{f16, load_16, load_32};
use super::Sink;

/// 32 bfloat16 values, one for each of five bits of a code.
pub(super) type Table = __m512i;

/// Sixteen values, rounded, twice: bit 4 of a code does not matter.
///
/// # Safety
/// The processor must have AVX-512 with BF16.
#[inline(always)]
pub(super) unsafe fn table_of_16(values: __m512) -> Table {
    // SAFETY: the caller vouches for the instructions.
    unsafe { table_of_32(values, values) }
}

/// # Safety
/// As [`table_of_16`].
#[inline(always)]
pub(super) unsafe fn table_of_32(low: __m512, high: __m512) -> Table {
    // SAFETY: the caller vouches for the instructions; both types are 512 plain bits.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

/// The values of a table that the low five bits of 32 words choose.
///
/// # Safety
/// As [`table_of_16`].
#[inline(always)]
pub(super) unsafe fn choose<S: Sink>(sink: &mut S, codes: __m512i, table: Table) {
    // SAFETY: the caller vouches for the instructions.
    unsafe { sink.take(_mm512_permutexvar_epi16(codes, table)) }
}

/// Low nibbles of sixteen bytes, then their high nibbles, as words whose higher bits are anything.
///
/// # Safety
/// As [`table_of_16`].
#[inline(always)]
unsafe fn nibbles(packed: &[u8; 16]) -> __m512i {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let words = _mm256_cvtepu8_epi16(load_16(packed));
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(words), _mm256_srli_epi16::<4>(words))
    }
}

/// `0, 1, ..., 15`, and `first` more.
const fn counting(first: i8) -> [f32; 16] {
    let mut values = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        values[i] = (first + i as i8) as f32;
        i += 1;
    }
    values
}

const IQ4_FLOATS: [f32; 16] = {
    let mut values = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        values[i] = IQ4_VALUES[i] as f32;
        i += 1;
    }
    values
};

/// # Safety
/// As [`table_of_16`].
#[inline(always)]
pub(super) unsafe fn times(values: &[f32; 16], scale: f32) -> __m512 {
    // SAFETY: the caller vouches for the instructions; sixteen readable values.
    unsafe { _mm512_mul_ps(_mm512_loadu_ps(values.as_ptr()), _mm512_set1_ps(scale)) }
}

/// # Safety
/// As [`table_of_16`].
#[inline(always)]
pub(super) unsafe fn q4_0<S: Sink>(block: &[u8; 18], sink: &mut S) {
    const VALUES: [f32; 16] = counting(-8);
    // SAFETY: the caller vouches for the instructions.
    unsafe { choose(sink, nibbles(bytes_at(block, 2)), table_of_16(times(&VALUES, f16(u16_at(block, 0))))) }
}

/// # Safety
/// As [`table_of_16`].
#[inline(always)]
pub(super) unsafe fn iq4_nl<S: Sink>(block: &[u8; 18], sink: &mut S) {
    // SAFETY: the caller vouches for the instructions.
    unsafe { choose(sink, nibbles(bytes_at(block, 2)), table_of_16(times(&IQ4_FLOATS, f16(u16_at(block, 0))))) }
}

/// # Safety
/// As [`table_of_16`].
#[inline(always)]
pub(super) unsafe fn iq4_xs<S: Sink>(block: &[u8; 136], sink: &mut S) {
    // SAFETY: the caller vouches for the instructions; the stores fill their arrays.
    unsafe {
        // Scales of six bits: four in the nibbles of a word, two in a half word.
        let (low, high) = (u32_at(block, 4), u32::from(u16_at(block, 2)));
        let low = _mm256_and_si256(
            _mm256_srlv_epi32(_mm256_set1_epi32(low.cast_signed()), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)),
            _mm256_set1_epi32(15),
        );
        let high = _mm256_and_si256(
            _mm256_srlv_epi32(_mm256_set1_epi32(high.cast_signed()), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)),
            _mm256_set1_epi32(3),
        );
        let codes = _mm256_sub_epi32(_mm256_or_si256(low, _mm256_slli_epi32::<4>(high)), _mm256_set1_epi32(32));
        let mut scales = [0.0; 8];
        let d = _mm256_set1_ps(f16(u16_at(block, 0)));
        _mm256_storeu_ps(scales.as_mut_ptr(), _mm256_mul_ps(d, _mm256_cvtepi32_ps(codes)));
        for b in 0..8 {
            choose(sink, nibbles(bytes_at(block, 8 + 16 * b)), table_of_16(times(&IQ4_FLOATS, scales[b])));
        }
    }
}

/// # Safety
/// As [`table_of_16`].
#[inline(always)]
pub(super) unsafe fn q2_0<S: Sink>(block: &[u8; 18], sink: &mut S) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let values = _mm_mul_ps(_mm_setr_ps(-1.0, 0.0, 1.0, 2.0), _mm_set1_ps(f16(u16_at(block, 0))));
        // Four values, again and again: only two bits of a code matter.
        let table = _mm512_broadcastq_epi64(std::mem::transmute::<__m128bh, __m128i>(_mm_cvtneps_pbh(values)));
        for half in 0..2 {
            let packed = i64::from_le_bytes(*bytes_at(block, 2 + 8 * half));
            // Each byte into four words.
            let bytes = _mm512_cvtepu8_epi64(_mm_cvtsi64_si128(packed));
            let words = _mm512_shuffle_epi8(
                bytes,
                _mm512_set4_epi32(
                    0x8008_8008u32.cast_signed(),
                    0x8008_8008u32.cast_signed(),
                    0x8000_8000u32.cast_signed(),
                    0x8000_8000u32.cast_signed(),
                ),
            );
            choose(sink, _mm512_srlv_epi16(words, _mm512_set1_epi64(0x0006_0004_0002_0000)), table);
        }
    }
}

/// `scale * code - min` for the codes 0 to 15, and `first` more.
///
/// # Safety
/// As [`table_of_16`].
#[inline(always)]
unsafe fn affine(values: &[f32; 16], scale: f32, min: f32) -> __m512 {
    // SAFETY: the caller vouches for the instructions.
    unsafe { _mm512_sub_ps(times(values, scale), _mm512_set1_ps(min)) }
}

/// # Safety
/// As [`table_of_16`].
#[inline(always)]
pub(super) unsafe fn q4_k<S: Sink>(block: &[u8; 144], sink: &mut S) {
    const VALUES: [f32; 16] = counting(0);
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let (scales, minima) = scales_and_minima(block);
        for i in 0..4 {
            let low = _mm512_cvtepu8_epi16(load_32(bytes_at(block, 16 + 32 * i)));
            choose(sink, low, table_of_16(affine(&VALUES, scales[2 * i], minima[2 * i])));
            let table = table_of_16(affine(&VALUES, scales[2 * i + 1], minima[2 * i + 1]));
            choose(sink, _mm512_srli_epi16::<4>(low), table);
        }
    }
}

/// # Safety
/// As [`table_of_16`].
#[inline(always)]
pub(super) unsafe fn q5_k<S: Sink>(block: &[u8; 176], sink: &mut S) {
    const LOW: [f32; 16] = counting(0);
    const HIGH: [f32; 16] = counting(16);
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let (scales, minima) = scales_and_minima(block);
        let sixteen = _mm512_set1_epi16(16);
        // Bits 0 and 1 of each word are the fifth bits of the groups at hand.
        let mut fifth = _mm512_cvtepu8_epi16(load_32(bytes_at(block, 16)));
        for i in 0..4 {
            let low = _mm512_cvtepu8_epi16(load_32(bytes_at(block, 48 + 32 * i)));
            for (k, nibbles, fifth) in [
                (2 * i, low, _mm512_slli_epi16::<4>(fifth)),
                (2 * i + 1, _mm512_srli_epi16::<4>(low), _mm512_slli_epi16::<3>(fifth)),
            ] {
                let (scale, min) = (scales[k], minima[k]);
                // Bit 4 of one, the others of the other.
                let codes = _mm512_ternarylogic_epi64::<0xca>(sixteen, fifth, nibbles);
                choose(sink, codes, table_of_32(affine(&LOW, scale, min), affine(&HIGH, scale, min)));
            }
            fifth = _mm512_srli_epi16::<2>(fifth);
        }
    }
}
