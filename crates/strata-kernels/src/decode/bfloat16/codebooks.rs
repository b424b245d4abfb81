//! Types with codebooks (IQ1, IQ2, IQ3): entries are looked up in packed form, their codes spread over the words of a
//! register, and values chosen from a table.

use std::arch::x86_64::*;

use strata_quant::fields::{bytes_at, u16_at, u32_at};
use strata_quant::grids::codes;

use super::super::iquants::odd_scales;
use super::super::lanes::{Avx512, f16, load_32};
use super::Sink;
use super::tables::{Table, choose, table_of_16, table_of_32, times};

/// Tables for weights of a code of two bits and a sign, in groups with scales of their own: eight values for each of four
/// scales. `values` has those of the codes, then those with the sign.
///
/// # Safety
/// The processor must have AVX-512 with BF16.
#[inline(always)]
unsafe fn table_of_4_scales(values: &[f32; 8], scales: __m128) -> Table {
    // SAFETY: the caller vouches for the instructions; eight readable values.
    unsafe {
        let values = _mm512_broadcast_f32x8(_mm256_loadu_ps(values.as_ptr()));
        let scales = _mm512_castps128_ps512(scales);
        let low = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1), scales);
        let high = _mm512_permutexvar_ps(_mm512_setr_epi32(2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3), scales);
        table_of_32(_mm512_mul_ps(values, low), _mm512_mul_ps(values, high))
    }
}

/// `d (2 n + 1)` for four numbers `n`.
///
/// # Safety
/// The processor must have AVX-512 with BF16.
#[inline(always)]
unsafe fn odd_times(n: __m128i, d: f32) -> __m128 {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let odd = _mm_add_epi32(_mm_add_epi32(n, n), _mm_set1_epi32(1));
        _mm_mul_ps(_mm_set1_ps(d), _mm_cvtepi32_ps(odd))
    }
}

/// Weights from four entries of a codebook, of eight codes of two bits each (entry 0 lowest), and their sign bits. Weights
/// 0 to 15 have the scale `scales[0]` of the table, the others `scales[1]`.
///
/// # Safety
/// The processor must have AVX-512 with BF16.
#[inline(always)]
unsafe fn choose_two_bit<S: Sink>(sink: &mut S, entries: __m128i, signs: u32, table: Table, scales: [i16; 2]) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        // Each entry into the eight words of its weights, and there its code down to bit 0.
        let words = _mm512_shuffle_epi8(
            _mm512_broadcastq_epi64(entries),
            _mm512_set_epi64(
                0x0706_0706_0706_0706,
                0x0706_0706_0706_0706,
                0x0504_0504_0504_0504,
                0x0504_0504_0504_0504,
                0x0302_0302_0302_0302,
                0x0302_0302_0302_0302,
                0x0100_0100_0100_0100,
                0x0100_0100_0100_0100,
            ),
        );
        let (low, high) = (0x0006_0004_0002_0000, 0x000e_000c_000a_0008);
        let codes = _mm512_srlv_epi16(words, _mm512_set_epi64(high, low, high, low, high, low, high, low));
        let (first, second) = (_mm256_set1_epi16(8 * scales[0]), _mm256_set1_epi16(8 * scales[1]));
        let groups = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
        // Two bits of one, the others of the other.
        let codes = _mm512_ternarylogic_epi64::<0xca>(_mm512_set1_epi16(3), codes, groups);
        choose(sink, _mm512_mask_add_epi16(codes, signs, codes, _mm512_set1_epi16(4)), table);
    }
}

/// Four entries of a codebook in the lower half of a register, by indices in 16 bits each.
///
/// # Safety
/// The processor must have AVX-512 with BF16.
#[inline(always)]
unsafe fn entries<const N: usize>(codes: &[u16; N], indices: u64) -> __m128i {
    // SAFETY: as the caller vouches.
    let mut found = unsafe { _mm_setzero_si128() };
    macro_rules! insert {
        ($($k:literal)*) => {$(
            // SAFETY: the caller vouches for the instructions.
            unsafe {
                found = _mm_insert_epi16::<$k>(found, i32::from(codes[(indices >> (16 * $k)) as usize % N]));
            }
        )*};
    }
    insert!(0 1 2 3);
    found
}

/// Magnitudes of the IQ2 types, and negated. The fourth code does not occur.
const IQ2_VALUES: [f32; 8] = [8.0, 25.0, 43.0, 0.0, -8.0, -25.0, -43.0, 0.0];

/// The bits of four bytes in the even bytes of a word.
///
/// # Safety
/// The processor must have BMI2.
#[inline(always)]
unsafe fn in_even_bytes(bytes: u32) -> u64 {
    // SAFETY: the caller vouches for the instruction.
    unsafe { _pdep_u64(u64::from(bytes), 0x00ff_00ff_00ff_00ff) }
}

/// Sign bits from seven of each eight: the last makes their number even.
///
/// # Safety
/// The processor must have BMI2.
#[inline(always)]
unsafe fn with_eighth_signs(sevens: u32) -> u32 {
    // SAFETY: the caller vouches for the instruction.
    let signs = unsafe { _pdep_u32(sevens, 0x7f7f_7f7f) };
    // The parity of each byte in its bit 0. What comes from a byte's neighbour stays above.
    let parity = signs ^ signs >> 4;
    let parity = parity ^ parity >> 2;
    let parity = parity ^ parity >> 1;
    signs | (parity & 0x0101_0101) << 7
}

/// # Safety
/// The processor must have AVX-512 with BF16, and BMI2.
#[inline(always)]
pub(super) unsafe fn iq2_s<S: Sink>(block: &[u8; 82], sink: &mut S) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let scales = odd_scales::<Avx512>(f16(u16_at(block, 0)) * 0.125, *bytes_at(block, 74));
        for i in 0..4 {
            let table = table_of_4_scales(&IQ2_VALUES, _mm_loadu_ps(scales.as_ptr().add(4 * i)));
            for k in 0..2 {
                let b = 2 * i + k;
                let high = _pdep_u64(u64::from(block[66 + b]), 0x0300_0300_0300_0300);
                let entries = entries(&codes::IQ2_S, in_even_bytes(u32_at(block, 2 + 4 * b)) | high);
                let first = 2 * k as i16;
                choose_two_bit(sink, entries, u32_at(block, 34 + 4 * b), table, [first, first + 1]);
            }
        }
    }
}

/// # Safety
/// As [`iq2_s`].
#[inline(always)]
pub(super) unsafe fn iq2_xs<S: Sink>(block: &[u8; 74], sink: &mut S) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let scales = odd_scales::<Avx512>(f16(u16_at(block, 0)) * 0.125, *bytes_at(block, 66));
        for i in 0..4 {
            let table = table_of_4_scales(&IQ2_VALUES, _mm_loadu_ps(scales.as_ptr().add(4 * i)));
            for k in 0..2 {
                let packed = u64::from_le_bytes(*bytes_at(block, 2 + 8 * (2 * i + k)));
                let signs = with_eighth_signs(_pext_u64(packed, 0xfe00_fe00_fe00_fe00) as u32);
                let first = 2 * k as i16;
                choose_two_bit(sink, entries(&codes::IQ2_XS, packed), signs, table, [first, first + 1]);
            }
        }
    }
}

/// # Safety
/// As [`iq2_s`].
#[inline(always)]
pub(super) unsafe fn iq2_xxs<S: Sink>(block: &[u8; 66], sink: &mut S) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let d = f16(u16_at(block, 0)) * 0.125;
        for i in 0..2 {
            // The upper words of four pairs; a scale is their top nibble.
            let pairs = load_32(bytes_at(block, 2 + 32 * i));
            let upper = _mm256_permutevar8x32_epi32(pairs, _mm256_setr_epi32(1, 3, 5, 7, 0, 0, 0, 0));
            let scales = odd_times(_mm_srli_epi32::<28>(_mm256_castsi256_si128(upper)), d);
            let table = table_of_4_scales(&IQ2_VALUES, scales);
            for k in 0..4 {
                let b = 4 * i + k;
                let entries = entries(&codes::IQ2_XXS, in_even_bytes(u32_at(block, 2 + 8 * b)));
                let signs = with_eighth_signs(u32_at(block, 6 + 8 * b) & 0x0fff_ffff);
                choose_two_bit(sink, entries, signs, table, [k as i16; 2]);
            }
        }
    }
}

/// Eight times the values of IQ1: those of the grid plus an eighth, and minus an eighth.
const IQ1_VALUES: [f32; 8] = [-7.0, 1.0, 9.0, 0.0, -9.0, -1.0, 7.0, 0.0];

/// # Safety
/// As [`iq2_s`].
#[inline(always)]
pub(super) unsafe fn iq1_m<S: Sink>(block: &[u8; 56], sink: &mut S) {
    // Twelve bits of small scales in each of four numbers; their top nibbles, together, are `d`.
    let top = |i: usize| u16_at(block, 48 + 2 * i) >> 12 << (4 * i);
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let d = f16(top(0) | top(1) | top(2) | top(3)) * 0.125;
        for i in 0..4 {
            let small = _mm_set1_epi32(i32::from(u16_at(block, 48 + 2 * i)));
            let small = _mm_and_si128(_mm_srlv_epi32(small, _mm_setr_epi32(0, 3, 6, 9)), _mm_set1_epi32(7));
            let table = table_of_4_scales(&IQ1_VALUES, odd_times(small, d));
            for k in 0..2 {
                let b = 2 * i + k;
                // A nibble for each entry: three bits of its index, and the shift's sign.
                let high = u64::from(u16_at(block, 32 + 2 * b));
                let index_bits = _pdep_u64(_pext_u64(high, 0x7777), 0x0700_0700_0700_0700);
                let entries = entries(&codes::IQ1, in_even_bytes(u32_at(block, 4 * b)) | index_bits);
                let shifts = _pdep_u32(_pext_u32(high as u32, 0x8888), 0x0101_0101) * 255;
                let first = 2 * k as i16;
                choose_two_bit(sink, entries, shifts, table, [first, first + 1]);
            }
        }
    }
}

/// # Safety
/// As [`iq2_s`].
#[inline(always)]
pub(super) unsafe fn iq1_s<S: Sink>(block: &[u8; 50], sink: &mut S) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let d = f16(u16_at(block, 0)) * 0.125;
        for i in 0..2 {
            let packed = _mm_cvtepu16_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(*bytes_at(block, 34 + 8 * i))));
            let small = _mm_and_si128(_mm_srli_epi32::<12>(packed), _mm_set1_epi32(7));
            let table = table_of_4_scales(&IQ1_VALUES, odd_times(small, d));
            for k in 0..4 {
                let b = 4 * i + k;
                let packed = u16_at(block, 34 + 2 * b);
                let high = _pdep_u64(u64::from(packed), 0x0700_0700_0700_0700);
                let entries = entries(&codes::IQ1, in_even_bytes(u32_at(block, 2 + 4 * b)) | high);
                let shifts = 0u32.wrapping_sub(u32::from(packed >> 15));
                choose_two_bit(sink, entries, shifts, table, [k as i16; 2]);
            }
        }
    }
}

/// Eight entries, by indices in 16 bits each.
///
/// # Safety
/// The processor must have AVX-512 with BF16.
#[inline(always)]
unsafe fn eight_entries<const N: usize>(codes: &[u16; N], [low, high]: [u64; 2]) -> __m128i {
    // SAFETY: the caller vouches for the instructions.
    unsafe { _mm_unpacklo_epi64(entries(codes, low), entries(codes, high)) }
}

/// Weights from eight entries of a codebook, of four codes of three bits each, and their sign bits. `table` has the values
/// of the codes, then these negated.
///
/// # Safety
/// The processor must have AVX-512 with BF16.
#[inline(always)]
unsafe fn choose_three_bit<S: Sink>(sink: &mut S, entries: __m128i, signs: u32, table: Table) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        // Each entry into the four words of its weights, and there its code down to bit 0.
        let entries = _mm512_broadcast_i32x4(entries);
        let words = _mm512_shuffle_epi8(
            entries,
            _mm512_set_epi64(
                0x0f0e_0f0e_0f0e_0f0e,
                0x0d0c_0d0c_0d0c_0d0c,
                0x0b0a_0b0a_0b0a_0b0a,
                0x0908_0908_0908_0908,
                0x0706_0706_0706_0706,
                0x0504_0504_0504_0504,
                0x0302_0302_0302_0302,
                0x0100_0100_0100_0100,
            ),
        );
        let codes = _mm512_srlv_epi16(words, _mm512_set1_epi64(0x0009_0006_0003_0000));
        let codes = _mm512_and_si512(codes, _mm512_set1_epi16(7));
        choose(sink, _mm512_mask_add_epi16(codes, signs, codes, _mm512_set1_epi16(8)), table);
    }
}

const IQ3_S_VALUES: [f32; 16] =
    [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0, -1.0, -3.0, -5.0, -7.0, -9.0, -11.0, -13.0, -15.0];

/// # Safety
/// As [`iq2_s`].
#[inline(always)]
pub(super) unsafe fn iq3_s<S: Sink>(block: &[u8; 110], sink: &mut S) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let [s0, s1, s2, s3] = *bytes_at(block, 106);
        let scales = odd_scales::<Avx512>(f16(u16_at(block, 0)), [s0, s1, s2, s3, 0, 0, 0, 0]);
        for b in 0..8 {
            let high = u64::from(block[66 + b]);
            let mut indices = [0; 2];
            for half in 0..2 {
                let bits = _pdep_u64(high >> (4 * half), 0x0100_0100_0100_0100);
                indices[half] = in_even_bytes(u32_at(block, 2 + 8 * b + 4 * half)) | bits;
            }
            let found = eight_entries(&codes::IQ3_S, indices);
            let signs = u32_at(block, 74 + 4 * b);
            choose_three_bit(sink, found, signs, table_of_16(times(&IQ3_S_VALUES, scales[b])));
        }
    }
}

const IQ3_XXS_VALUES: [f32; 16] =
    [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0, -4.0, -12.0, -20.0, -28.0, -36.0, -44.0, -52.0, -62.0];

/// # Safety
/// As [`iq2_s`].
#[inline(always)]
pub(super) unsafe fn iq3_xxs<S: Sink>(block: &[u8; 98], sink: &mut S) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let d = f16(u16_at(block, 0)) * 0.25;
        for b in 0..8 {
            let indices = [in_even_bytes(u32_at(block, 2 + 8 * b)), in_even_bytes(u32_at(block, 6 + 8 * b))];
            let found = eight_entries(&codes::IQ3_XXS, indices);
            let packed = u32_at(block, 66 + 4 * b);
            let table = table_of_16(times(&IQ3_XXS_VALUES, d * (2 * (packed >> 28) + 1) as f32));
            choose_three_bit(sink, found, with_eighth_signs(packed & 0x0fff_ffff), table);
        }
    }
}
