//! Types with blocks of 32 or 64 weights, and float16.
//!
//! Owns: their decoders. `d` is the scale of a block.

use std::arch::x86_64::*;

use strata_quant::fields::{bytes_at, u16_at};
use strata_quant::grids::IQ4_VALUES;

use super::lanes::{Wide, f16, halves, load_16, load_32, nibbles_16, put_32};

/// Eight weights of F16.
///
/// # Safety
/// The processor must have AVX2 and F16C.
#[inline(always)]
pub(super) unsafe fn float16(bytes: &[u8; 16], out: &mut [f32; 8]) {
    // SAFETY: the caller vouches for the instructions; the store fills the eight places.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_cvtph_ps(load_16(bytes))) }
}

/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn q8_0<W: Wide>(block: &[u8; 34], out: &mut [f32; 32]) {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let d = f16(u16_at(block, 0));
        put_32::<W>(out, load_32(bytes_at(block, 2)), [d, d]);
    }
}

/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn q4_0<W: Wide>(block: &[u8; 18], out: &mut [f32; 32]) {
    let [low, high] = halves(out);
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let d = f16(u16_at(block, 0));
        let eight = _mm_set1_epi8(8);
        let codes = nibbles_16(load_16(bytes_at(block, 2)));
        W::put(low, _mm_sub_epi8(codes[0], eight), d);
        W::put(high, _mm_sub_epi8(codes[1], eight), d);
    }
}

/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn iq4_nl<W: Wide>(block: &[u8; 18], out: &mut [f32; 32]) {
    // SAFETY: the caller vouches for the instructions.
    unsafe { table_of_16::<W>(f16(u16_at(block, 0)), bytes_at(block, 2), out) }
}

/// The table of IQ4_NL and IQ4_XS, made when this is compiled.
const IQ4_BYTES: [u8; 16] = {
    let mut bytes = [0; 16];
    let mut code = 0;
    while code < 16 {
        bytes[code] = IQ4_VALUES[code].cast_unsigned();
        code += 1;
    }
    bytes
};

/// The values of IQ4_NL and IQ4_XS for the low nibbles of `packed`, then for its high nibbles, times `scale`.
///
/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn table_of_16<W: Wide>(scale: f32, packed: &[u8; 16], out: &mut [f32; 32]) {
    let [low, high] = halves(out);
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let table = load_16(&IQ4_BYTES);
        let codes = nibbles_16(load_16(packed));
        W::put(low, _mm_shuffle_epi8(table, codes[0]), scale);
        W::put(high, _mm_shuffle_epi8(table, codes[1]), scale);
    }
}

/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn q2_0<W: Wide>(block: &[u8; 18], out: &mut [f32; 64]) {
    let (out, _) = out.as_chunks_mut::<16>();
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let d = f16(u16_at(block, 0));
        let packed = load_16(bytes_at(block, 2));
        // Plane `k` has the weights `k, 4 + k, 8 + k, ...`: the four weights of a byte are neighbours.
        let (mask, one) = (_mm_set1_epi8(3), _mm_set1_epi8(1));
        let p0 = _mm_sub_epi8(_mm_and_si128(packed, mask), one);
        let p1 = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16::<2>(packed), mask), one);
        let p2 = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16::<4>(packed), mask), one);
        let p3 = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16::<6>(packed), mask), one);
        let (front_01, front_23) = (_mm_unpacklo_epi8(p0, p1), _mm_unpacklo_epi8(p2, p3));
        let (back_01, back_23) = (_mm_unpackhi_epi8(p0, p1), _mm_unpackhi_epi8(p2, p3));
        W::put(&mut out[0], _mm_unpacklo_epi16(front_01, front_23), d);
        W::put(&mut out[1], _mm_unpackhi_epi16(front_01, front_23), d);
        W::put(&mut out[2], _mm_unpacklo_epi16(back_01, back_23), d);
        W::put(&mut out[3], _mm_unpackhi_epi16(back_01, back_23), d);
    }
}
