//! Grains in Q8_0 to grains in bfloat16, in registers: a value is its code times its scale, rounded once.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::cache::{BLOCK, GRAIN_TOKENS, Grains, Line};

/// Lines of bfloat16 keys, and of the values of a token pair, that a block of scales covers.
const KEY_LINES: usize = BLOCK / 8;
const VALUE_LINES: usize = BLOCK / 16;
/// Codes of a line of bfloat16.
const CODES: usize = 32;

/// Decodes the keys of a grain, and gives `out`, which has room for them.
///
/// # Safety
/// `grain` must be readable as a grain in Q8_0, and `out` writable for the lines of the same in bfloat16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,f16c")]
pub(super) unsafe fn decode_keys(grain: *const u8, grains: Grains, out: *mut Line) -> *const Line {
    // A line has eight dimensions of each token.
    let first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    let second = _mm512_add_epi32(first, _mm512_set1_epi32(2));
    // SAFETY: the scales and codes of every block are within the grain, its lines within `out`.
    unsafe {
        let codes = grain.add(grains.scale_lines() * size_of::<Line>());
        for block in 0..grains.width() / BLOCK {
            let scales = scales(grain, block);
            let scales = [_mm512_permutexvar_ps(first, scales), _mm512_permutexvar_ps(second, scales)];
            for line in block * KEY_LINES..(block + 1) * KEY_LINES {
                _mm512_store_si512(out.add(line).cast(), decode_line(codes.add(line * CODES), scales));
            }
        }
    }
    out
}

/// Decodes 64 dimensions of the values of a grain, from line `first_line` of each token pair on, `[2 pairs][4 lines]`, and
/// gives `out`.
///
/// # Safety
/// As for [`decode_keys`]; there must be four such lines, the first of them at a multiple of four.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,f16c")]
pub(super) unsafe fn decode_values(grain: *const u8, grains: Grains, first_line: usize, out: *mut Line) -> *const Line {
    // Tokens of a pair take turns.
    let first = _mm512_setr_epi32(0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1);
    let second = _mm512_add_epi32(first, _mm512_set1_epi32(2));
    // SAFETY: by the caller's promise.
    unsafe {
        let codes = grain.add(grains.scale_lines() * size_of::<Line>() + first_line * CODES);
        let pair_codes = grains.width() / 16 * CODES;
        for block in 0..2 {
            let scales = scales(grain, first_line / VALUE_LINES + block);
            let scales = [_mm512_permutexvar_ps(first, scales), _mm512_permutexvar_ps(second, scales)];
            for line in block * VALUE_LINES..(block + 1) * VALUE_LINES {
                for pair in 0..2 {
                    let line_codes = codes.add(pair * pair_codes + line * CODES);
                    let decoded = decode_line(line_codes, [scales[pair]; 2]);
                    _mm512_store_si512(out.add(pair * 2 * VALUE_LINES + line).cast(), decoded);
                }
            }
        }
    }
    out
}

/// The scales of the four tokens of a block, in the first lanes.
///
/// # Safety
/// `grain` must be readable as a grain that has the block.
#[inline]
#[target_feature(enable = "avx512f,f16c")]
unsafe fn scales(grain: *const u8, block: usize) -> __m512 {
    // SAFETY: by the caller's promise.
    let halves = unsafe { _mm_loadl_epi64(grain.add(block * GRAIN_TOKENS * 2).cast()) };
    _mm512_castps128_ps512(_mm_cvtph_ps(halves))
}

/// A line of bfloat16: 32 codes times the scales of their lanes.
///
/// # Safety
/// 32 codes must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn decode_line(codes: *const u8, [first, second]: [__m512; 2]) -> __m512i {
    // SAFETY: by the caller's promise; both types are 64 bytes of which every pattern is a value.
    unsafe {
        let low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes.cast())));
        let high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes.add(16).cast())));
        let rounded = _mm512_cvtne2ps_pbh(_mm512_mul_ps(high, second), _mm512_mul_ps(low, first));
        transmute::<__m512bh, __m512i>(rounded)
    }
}
