//! Sixteen lanes of float32: the one shape in which sums are accumulated.
//!
//! A dot product of length `n` is sixteen running sums — lane `l` takes the elements `l, l + 16, l + 32, ...` — that are
//! folded at the end by halves. Every implementation of [`Lanes`] does exactly that, so vector width, tile size and row
//! count never show in a result.

/// Lanes of an accumulator.
pub(crate) const LANES: usize = 16;

/// Sixteen float32 values.
pub(crate) trait Lanes: Copy {
    /// Vector registers that they take.
    const REGISTERS: usize;
    /// # Safety
    /// `at` must be readable for sixteen values; the processor must have the instructions of the implementation.
    unsafe fn load(at: *const f32) -> Self;
    /// # Safety
    /// `at` must be writable for sixteen values; the processor must have the instructions of the implementation.
    unsafe fn store(self, at: *mut f32);
    /// All lanes zero. # Safety: the processor must have the instructions of the implementation.
    unsafe fn zero() -> Self;
    /// All lanes `value`. # Safety: as `zero`.
    unsafe fn splat(value: f32) -> Self;
    /// `self * a`, lane by lane. # Safety: as `zero`.
    unsafe fn times(self, a: Self) -> Self;
    /// `self + a * b`, lane by lane. # Safety: as `zero`.
    unsafe fn add_product(self, a: Self, b: Self) -> Self;
    /// The lanes as an array. # Safety: as `zero`.
    unsafe fn to_array(self) -> [f32; LANES];
    /// [`fold`] of each of four. # Safety: as `zero`.
    #[inline(always)]
    unsafe fn fold_four(four: [Self; 4]) -> [f32; 4] {
        let [a, b, c, d] = four;
        // SAFETY: by the caller's promise.
        unsafe { [fold(a.to_array()), fold(b.to_array()), fold(c.to_array()), fold(d.to_array())] }
    }
}

/// `c + a * b` as the vector code of this target does it: fused wherever the hardware fuses.
#[inline(always)]
pub(crate) fn add_product<const FUSED: bool>(c: f32, a: f32, b: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { c + a * b }
}

/// Whether plain Rust code of this target has a fused multiply-add instruction (without one, `mul_add` is a slow call).
pub(crate) const PORTABLE_FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

/// Folds sixteen running sums by halves.
#[inline(always)]
pub(crate) fn fold(mut sums: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
        half /= 2;
    }
    sums[0]
}

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct PortableLanes([f32; LANES]);

impl Lanes for PortableLanes {
    const REGISTERS: usize = 4;

    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        // SAFETY: the caller promises sixteen readable values; no alignment is asked for.
        Self(unsafe { at.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        // SAFETY: the caller promises sixteen writable values; no alignment is asked for.
        unsafe { at.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([0.0; LANES])
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    unsafe fn times(mut self, a: Self) -> Self {
        for lane in 0..LANES {
            self.0[lane] *= a.0[lane];
        }
        self
    }
    #[inline(always)]
    unsafe fn add_product(mut self, a: Self, b: Self) -> Self {
        for lane in 0..LANES {
            self.0[lane] = add_product::<PORTABLE_FUSED>(self.0[lane], a.0[lane], b.0[lane]);
        }
        self
    }
    #[inline(always)]
    unsafe fn to_array(self) -> [f32; LANES] {
        self.0
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, Lanes};

    /// AVX2 + FMA: lanes 0-7 and 8-15.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2Lanes(__m256, __m256);

    // SAFETY of each block below: the trait's callers promise the instructions and, for `load` and `store`, the memory.
    impl Lanes for Avx2Lanes {
        const REGISTERS: usize = 2;

        #[inline(always)]
        unsafe fn load(at: *const f32) -> Self {
            // SAFETY: see above.
            unsafe { Self(_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))) }
        }
        #[inline(always)]
        unsafe fn store(self, at: *mut f32) {
            // SAFETY: see above.
            unsafe {
                _mm256_storeu_ps(at, self.0);
                _mm256_storeu_ps(at.add(8), self.1);
            }
        }
        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: see above.
            unsafe { Self(_mm256_setzero_ps(), _mm256_setzero_ps()) }
        }
        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: see above.
            unsafe { Self(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
        }
        #[inline(always)]
        unsafe fn times(self, a: Self) -> Self {
            // SAFETY: see above.
            unsafe { Self(_mm256_mul_ps(self.0, a.0), _mm256_mul_ps(self.1, a.1)) }
        }
        #[inline(always)]
        unsafe fn add_product(self, a: Self, b: Self) -> Self {
            // SAFETY: see above.
            unsafe { Self(_mm256_fmadd_ps(a.0, b.0, self.0), _mm256_fmadd_ps(a.1, b.1, self.1)) }
        }
        #[inline(always)]
        unsafe fn to_array(self) -> [f32; LANES] {
            let mut out = [0.0; LANES];
            // SAFETY: see above; the array has sixteen places.
            unsafe { self.store(out.as_mut_ptr()) };
            out
        }
    }

    /// AVX-512F: one register.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512Lanes(__m512);

    impl Lanes for Avx512Lanes {
        const REGISTERS: usize = 1;

        #[inline(always)]
        unsafe fn load(at: *const f32) -> Self {
            // SAFETY: see above.
            unsafe { Self(_mm512_loadu_ps(at)) }
        }
        #[inline(always)]
        unsafe fn store(self, at: *mut f32) {
            // SAFETY: see above.
            unsafe { _mm512_storeu_ps(at, self.0) }
        }
        #[inline(always)]
        unsafe fn zero() -> Self {
            // SAFETY: see above.
            unsafe { Self(_mm512_setzero_ps()) }
        }
        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: see above.
            unsafe { Self(_mm512_set1_ps(value)) }
        }
        #[inline(always)]
        unsafe fn times(self, a: Self) -> Self {
            // SAFETY: see above.
            unsafe { Self(_mm512_mul_ps(self.0, a.0)) }
        }
        #[inline(always)]
        unsafe fn add_product(self, a: Self, b: Self) -> Self {
            // SAFETY: see above.
            unsafe { Self(_mm512_fmadd_ps(a.0, b.0, self.0)) }
        }
        #[inline(always)]
        unsafe fn to_array(self) -> [f32; LANES] {
            let mut out = [0.0; LANES];
            // SAFETY: see above; the array has sixteen places.
            unsafe { self.store(out.as_mut_ptr()) };
            out
        }
        #[inline(always)]
        unsafe fn fold_four([a, b, c, d]: [Self; 4]) -> [f32; 4] {
            let mut out = [0.0; 4];
            // SAFETY: see above; the array has four places.
            unsafe { _mm_storeu_ps(out.as_mut_ptr(), fold_four(a.0, b.0, c.0, d.0)) };
            out
        }
    }

    /// Folds the sixteen sums of each register by halves, as [`super::fold`] does: those of all four at once.
    ///
    /// # Safety
    /// The processor must have AVX-512F.
    #[inline(always)]
    pub(crate) unsafe fn fold_four(a: __m512, b: __m512, c: __m512, d: __m512) -> __m128 {
        // SAFETY: the caller vouches for the instructions.
        unsafe {
            // Eight sums each of a and b, then of c and d; then four of each.
            let ab =
                _mm512_add_ps(_mm512_shuffle_f32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b));
            let cd =
                _mm512_add_ps(_mm512_shuffle_f32x4::<0b01_00_01_00>(c, d), _mm512_shuffle_f32x4::<0b11_10_11_10>(c, d));
            let fours = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd),
            );
            // Then two, then one, which the others of its four lanes repeat.
            let twos = _mm512_add_ps(fours, _mm512_permute_ps::<0b01_00_11_10>(fours));
            let ones = _mm512_add_ps(twos, _mm512_permute_ps::<0b10_11_00_01>(twos));
            let order = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
            _mm512_castps512_ps128(_mm512_permutexvar_ps(order, ones))
        }
    }
}

/// Asks for the cache line at `at`, wherever that points to, as far as the second cache: on Zen 4, half as much again is
/// under way as to the first.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    // SAFETY: a prefetch reads nothing: it does not fault.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Dot products of `R` rows of weights with `C` rows of inputs, all `len` long.
///
/// # Safety
/// Each pointer must be readable for `len` values; the processor must have the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn dots<V: Lanes, const FUSED: bool, const R: usize, const C: usize>(
    w: [*const f32; R],
    x: [*const f32; C],
    len: usize,
) -> [[f32; C]; R] {
    // SAFETY: `at` stays below `len`, which the caller vouches for.
    unsafe {
        let mut acc = [[V::zero(); C]; R];
        let whole = len / LANES * LANES;
        let mut at = 0;
        while at < whole {
            let mut xs = [V::zero(); C];
            for c in 0..C {
                xs[c] = V::load(x[c].add(at));
            }
            for r in 0..R {
                let wr = V::load(w[r].add(at));
                for c in 0..C {
                    acc[r][c] = acc[r][c].add_product(wr, xs[c]);
                }
            }
            at += LANES;
        }
        let mut out = [[0.0; C]; R];
        if len == whole && C == 4 {
            for r in 0..R {
                let four = V::fold_four([acc[r][0], acc[r][1 % C], acc[r][2 % C], acc[r][3 % C]]);
                for c in 0..C {
                    out[r][c] = four[c % 4];
                }
            }
            return out;
        }
        for r in 0..R {
            for c in 0..C {
                let mut sums = acc[r][c].to_array();
                for lane in 0..len - whole {
                    sums[lane] = add_product::<FUSED>(sums[lane], *w[r].add(whole + lane), *x[c].add(whole + lane));
                }
                out[r][c] = fold(sums);
            }
        }
        out
    }
}

/// Compiles one function body for every instruction set, and a function that picks the one of a [`Cpu`](crate::Cpu).
///
/// The body is generic over `V: Lanes` and `const FUSED: bool`; it is `#[inline(always)]`, so that each wrapper compiles
/// it with its own instructions.
macro_rules! dispatch {
    ($(#[$meta:meta])* $vis:vis fn $name:ident = $body:ident ( $($arg:ident : $ty:ty),* $(,)? ) $(-> $ret:ty)?) => {
        $(#[$meta])*
        $vis fn $name(isa: $crate::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx2,fma")]
            fn avx512($($arg: $ty),*) $(-> $ret)? { $body::<$crate::vector::x86::Avx512Lanes, true>($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $ret)? { $body::<$crate::vector::x86::Avx2Lanes, true>($($arg),*) }

            assert!(isa.is_available(), "{}", $crate::UnavailableIsa(isa));
            match isa {
                // SAFETY: the assertion above: this machine has the instructions.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx512 | $crate::Isa::Amx => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx2 => unsafe { avx2($($arg),*) },
                _ => $body::<$crate::vector::PortableLanes, { $crate::vector::PORTABLE_FUSED }>($($arg),*),
            }
        }
    };
}
pub(crate) use dispatch;

#[inline(always)]
fn dot_body<V: Lanes, const FUSED: bool>(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "dot product of slices of different lengths");
    // SAFETY: both slices are `a.len()` long; `dispatch` vouches for the instructions.
    unsafe { dots::<V, FUSED, 1, 1>([a.as_ptr()], [b.as_ptr()], a.len())[0][0] }
}

/// Sum of squares in the lane order of this module, in plain code (norms are a small part of a layer).
#[inline(always)]
pub(crate) fn sum_of_squares<const FUSED: bool>(x: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let mut chunks = x.chunks_exact(LANES);
    for chunk in &mut chunks {
        for lane in 0..LANES {
            sums[lane] = add_product::<FUSED>(sums[lane], chunk[lane], chunk[lane]);
        }
    }
    for (sum, v) in sums.iter_mut().zip(chunks.remainder()) {
        *sum = add_product::<FUSED>(*sum, *v, *v);
    }
    fold(sums)
}

dispatch! {
    /// The dot product of two slices of one length.
    pub fn dot = dot_body(a: &[f32], b: &[f32]) -> f32
}
