//! What the decoders are built from: sixteen codes in bytes, and their way to sixteen float32 values.
//!
//! Owns: the one operation that differs between AVX2 and AVX-512, and the splitting of nibbles.
//! Everything on bytes is done in 128 and 256 bits, which both have.

use std::arch::x86_64::*;

/// An instruction set that turns bytes into float32 values.
pub(super) trait Wide {
    /// `out = scale * codes`, the codes being signed bytes.
    ///
    /// # Safety
    /// The processor must have the instructions of the implementation.
    unsafe fn put(out: &mut [f32; 16], codes: __m128i, scale: f32);

    /// `out = scale * codes - min`, with two roundings.
    ///
    /// # Safety
    /// As [`put`](Self::put).
    unsafe fn put_less(out: &mut [f32; 16], codes: __m128i, scale: f32, min: f32);
}

/// AVX2 and F16C: two registers of eight.
pub(super) struct Avx2;

/// AVX-512F: one register.
pub(super) struct Avx512;

impl Wide for Avx2 {
    #[inline(always)]
    unsafe fn put(out: &mut [f32; 16], codes: __m128i, scale: f32) {
        // SAFETY: the caller vouches for the instructions; the stores fill the sixteen places.
        unsafe {
            let scale = _mm256_set1_ps(scale);
            let low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
            let high = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(codes, codes)));
            _mm256_storeu_ps(out.as_mut_ptr(), _mm256_mul_ps(scale, low));
            _mm256_storeu_ps(out.as_mut_ptr().add(8), _mm256_mul_ps(scale, high));
        }
    }

    #[inline(always)]
    unsafe fn put_less(out: &mut [f32; 16], codes: __m128i, scale: f32, min: f32) {
        // SAFETY: as above.
        unsafe {
            let (scale, min) = (_mm256_set1_ps(scale), _mm256_set1_ps(min));
            let low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
            let high = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(codes, codes)));
            _mm256_storeu_ps(out.as_mut_ptr(), _mm256_sub_ps(_mm256_mul_ps(scale, low), min));
            _mm256_storeu_ps(out.as_mut_ptr().add(8), _mm256_sub_ps(_mm256_mul_ps(scale, high), min));
        }
    }
}

impl Wide for Avx512 {
    #[inline(always)]
    unsafe fn put(out: &mut [f32; 16], codes: __m128i, scale: f32) {
        // SAFETY: the caller vouches for the instructions; the store fills the sixteen places.
        unsafe {
            let codes = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
            _mm512_storeu_ps(out.as_mut_ptr(), _mm512_mul_ps(_mm512_set1_ps(scale), codes));
        }
    }

    #[inline(always)]
    unsafe fn put_less(out: &mut [f32; 16], codes: __m128i, scale: f32, min: f32) {
        // SAFETY: as above.
        unsafe {
            let codes = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
            let scaled = _mm512_mul_ps(_mm512_set1_ps(scale), codes);
            _mm512_storeu_ps(out.as_mut_ptr(), _mm512_sub_ps(scaled, _mm512_set1_ps(min)));
        }
    }
}

/// [`Wide::put`] for 32 codes under two scales.
///
/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn put_32<W: Wide>(out: &mut [f32; 32], codes: __m256i, scales: [f32; 2]) {
    let [low, high] = halves(out);
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        W::put(low, _mm256_castsi256_si128(codes), scales[0]);
        W::put(high, _mm256_extracti128_si256::<1>(codes), scales[1]);
    }
}

/// [`Wide::put_less`] for 32 codes.
///
/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
pub(super) unsafe fn put_32_less<W: Wide>(out: &mut [f32; 32], codes: __m256i, scale: f32, min: f32) {
    let [low, high] = halves(out);
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        W::put_less(low, _mm256_castsi256_si128(codes), scale, min);
        W::put_less(high, _mm256_extracti128_si256::<1>(codes), scale, min);
    }
}

/// The halves of 32 places.
#[inline(always)]
pub(super) fn halves(out: &mut [f32; 32]) -> [&mut [f32; 16]; 2] {
    let (low, high) = out.split_first_chunk_mut().expect("16 of 32");
    [low, high.first_chunk_mut().expect("the other 16 of 32")]
}

/// The value of float16 bits.
///
/// # Safety
/// The processor must have F16C.
#[inline(always)]
pub(super) unsafe fn f16(bits: u16) -> f32 {
    let register: __m128i;
    // SAFETY: it moves between registers; the caller vouches for the instructions.
    unsafe {
        // Written out because the compiler would insert the bits into a register that the previous block still needs:
        // then no block begins before the one before it has ended.
        std::arch::asm!("vmovd {}, {:e}", out(xmm_reg) register, in(reg) u32::from(bits), options(pure, nomem, nostack, preserves_flags));
        _mm_cvtss_f32(_mm_cvtph_ps(register))
    }
}

/// Sixteen bytes in a register.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
pub(super) unsafe fn load_16(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: sixteen readable bytes; no alignment is asked for.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// 32 bytes in a register.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
pub(super) unsafe fn load_32(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: 32 readable bytes; no alignment is asked for.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Two groups of eight bytes, first weight lowest, in a register.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
pub(super) unsafe fn pair(low: u64, high: u64) -> __m128i {
    // SAFETY: the caller vouches for the instructions.
    unsafe { _mm_set_epi64x(high.cast_signed(), low.cast_signed()) }
}

/// Low nibbles of 16 bytes, and high nibbles.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
pub(super) unsafe fn nibbles_16(packed: __m128i) -> [__m128i; 2] {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let mask = _mm_set1_epi8(15);
        [_mm_and_si128(packed, mask), _mm_and_si128(_mm_srli_epi16::<4>(packed), mask)]
    }
}

/// Low nibbles of 32 bytes, and high nibbles.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
pub(super) unsafe fn nibbles_32(packed: __m256i) -> [__m256i; 2] {
    // SAFETY: the caller vouches for the instructions.
    unsafe {
        let mask = _mm256_set1_epi8(15);
        [_mm256_and_si256(packed, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(packed), mask)]
    }
}
