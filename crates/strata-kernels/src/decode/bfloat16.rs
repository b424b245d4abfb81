//! The types of the largest matrices straight to bfloat16: every value that a group of weights can have is made and rounded
//! once, in a table that one register holds, and the codes of 32 weights choose from it (VPERMW).
//!
//! Owns: their decoders. The values of a table are those that [`super::iquants`] and its neighbours make one by one.

use std::arch::x86_64::*;

use strata_quant::fields::{bytes_at, u16_at, u32_at};
use strata_quant::grids::{IQ4_VALUES, codes};

use super::iquants::odd_scales;
use super::kquants::scales_and_minima;
use super::lanes::{Avx512, f16, load_16, load_32, nibbles_32};
use super::sink::Sink;

/// 32 bfloat16 values, one for each of five bits of a code.
type Table = __m512i;

/// Sixteen values, rounded, twice: bit 4 of a code does not matter.
///
/// # Safety
/// The processor must have AVX-512 with BF16.
#[inline(always)]
unsafe fn table_of_16(values: __m512) -> Table {
    // SAFETY: the caller vouches for the instructions.
    unsafe { table_of_32(values, values) }
}

/// # Safety
/// As [`table_of_16`].
#[inline(always)]
unsafe fn table_of_32(low: __m512, high: __m512) -> Table {
    // SAFETY: the caller vouches for the instructions; both types are 512 plain bits.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

/// The values of a table that the low five bits of 32 words choose.
///
/// # Safety
/// As [`table_of_16`].
#[inline(always)]
unsafe fn choose<S: Sink>(sink: &mut S, codes: __m512i, table: Table) {
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
unsafe fn times(values: &[f32; 16], scale: f32) -> __m512 {
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

/// Tables for weights of a code of two bits and a sign, in groups with scales of their own: eight values for each of four
/// scales. `values` has those of the codes, then those with the sign.
///
/// # Safety
/// As [`table_of_16`].
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
/// As [`table_of_16`].
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
/// As [`table_of_16`].
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
/// As [`table_of_16`].
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
/// As [`table_of_16`], and BMI2.
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
/// As [`table_of_16`].
#[inline(always)]
unsafe fn eight_entries<const N: usize>(codes: &[u16; N], [low, high]: [u64; 2]) -> __m128i {
    // SAFETY: the caller vouches for the instructions.
    unsafe { _mm_unpacklo_epi64(entries(codes, low), entries(codes, high)) }
}

/// Weights from eight entries of a codebook, of four codes of three bits each, and their sign bits. `table` has the values
/// of the codes, then these negated.
///
/// # Safety
/// As [`table_of_16`].
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

/// 32 signed bytes under two scales.
///
/// # Safety
/// As [`table_of_16`].
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
/// As [`table_of_16`].
#[inline(always)]
pub(super) unsafe fn q8_0<S: Sink>(block: &[u8; 34], sink: &mut S) {
    // SAFETY: the caller vouches for the instructions.
    unsafe { scaled(sink, load_32(bytes_at(block, 2)), [f16(u16_at(block, 0)); 2]) }
}

/// # Safety
/// As [`table_of_16`].
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
/// As [`table_of_16`].
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
/// As [`table_of_16`].
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
/// As [`table_of_16`].
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
/// As [`table_of_16`].
#[inline(always)]
pub(super) unsafe fn bf16<S: Sink>(bytes: &[u8; 64], sink: &mut S) {
    // SAFETY: the caller vouches for the instructions; 64 readable bytes.
    unsafe { sink.take(_mm512_loadu_si512(bytes.as_ptr().cast())) }
}
