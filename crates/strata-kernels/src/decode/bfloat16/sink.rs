//! Where decoded bfloat16 weights go: into memory, or straight into dot products.

use std::arch::x86_64::*;

use crate::products::Line;

/// Takes the weights of a row in order, 32 at a time.
pub(super) trait Sink {
    /// # Safety
    /// The processor must have AVX-512 with BF16, and there must be as many weights to take.
    unsafe fn take(&mut self, weights: __m512i);
}

/// Writes them one after another.
pub(super) struct Memory {
    pub(super) next: *mut u16,
}

impl Sink for Memory {
    #[inline(always)]
    unsafe fn take(&mut self, weights: __m512i) {
        // SAFETY: the caller vouches for the room, and the instructions.
        unsafe {
            _mm512_storeu_si512(self.next.cast(), weights);
            self.next = self.next.add(32);
        }
    }
}

/// Multiplies them with `C` input rows, into the sums of [`crate::products::bfloat16`].
pub(super) struct Dots<const C: usize> {
    /// The next line of the first input row.
    pub(super) next: *const Line,
    /// Lines from one input row to the next.
    pub(super) row_lines: usize,
    pub(super) sums: [__m512; C],
}

impl<const C: usize> Sink for Dots<C> {
    #[inline(always)]
    unsafe fn take(&mut self, weights: __m512i) {
        // SAFETY: the caller vouches for the lines, and the instructions; both types are 512 plain bits.
        unsafe {
            let weights = std::mem::transmute::<__m512i, __m512bh>(weights);
            for c in 0..C {
                let x = _mm512_load_si512(self.next.add(c * self.row_lines).cast());
                self.sums[c] = _mm512_dpbf16_ps(self.sums[c], weights, std::mem::transmute::<__m512i, __m512bh>(x));
            }
            self.next = self.next.add(1);
        }
    }
}
