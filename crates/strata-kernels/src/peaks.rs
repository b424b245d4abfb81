//! What a machine can do at most: multiply-adds and bytes read per second, measured.
//!
//! Owns: loops that do nothing but one instruction, on registers, and a loop that does nothing but read.
//! Promises: the same threads as the kernels have, so that a kernel's rate can be held against these.
//! Refuses: to know nominal clocks and widths.

use std::hint::black_box;
use std::time::{Duration, Instant};

#[cfg(target_arch = "x86_64")]
use crate::amx;
use crate::vector::PORTABLE_FUSED;
use crate::{Arithmetic, Cpu, Isa};

/// An instruction that multiplies and adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peak {
    /// Float32 multiply-adds of a family; those of [`Isa::Amx`] are AVX-512's.
    Float32(Isa),
    /// Dot products of two bfloat16 pairs (VDPBF16PS).
    Bfloat16Dots,
    /// Dot products of four 8-bit integers (VPDPBUSD).
    Int8Dots,
    /// Products of bfloat16 tiles (TDPBF16PS).
    Bfloat16Tiles,
    /// Products of 8-bit tiles (TDPBUSD).
    Int8Tiles,
}

/// How long a measurement takes, at least.
const SAMPLE: Duration = Duration::from_millis(20);
/// Rounds of a task: some tens of microseconds.
const ROUNDS: usize = 1 << 13;
/// Running sums of 512 bits, which hide the latency of an instruction.
#[cfg(target_arch = "x86_64")]
const SUMS: usize = 16;
/// Bytes that a thread reads at a time.
const READ_BYTES: usize = 1 << 20;

impl Peak {
    /// Every one.
    pub const ALL: [Self; 7] = [
        Self::Float32(Isa::Portable),
        Self::Float32(Isa::Avx2),
        Self::Float32(Isa::Avx512),
        Self::Bfloat16Dots,
        Self::Int8Dots,
        Self::Bfloat16Tiles,
        Self::Int8Tiles,
    ];

    /// The one that bounds the products of `cpu`.
    pub fn of(cpu: &Cpu) -> Self {
        match (cpu.arithmetic(), cpu.isa()) {
            (Arithmetic::Float32, Isa::Amx) => Self::Float32(Isa::Avx512),
            (Arithmetic::Float32, isa) => Self::Float32(isa),
            (Arithmetic::Bfloat16, Isa::Amx) if Self::Bfloat16Tiles.task().is_some() => Self::Bfloat16Tiles,
            (Arithmetic::Bfloat16, _) => Self::Bfloat16Dots,
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32(Isa::Portable) => "float32 portable",
            Self::Float32(Isa::Avx2) => "float32 AVX2 FMA",
            Self::Float32(Isa::Avx512 | Isa::Amx) => "float32 AVX-512 FMA",
            Self::Bfloat16Dots => "bfloat16 VDPBF16PS",
            Self::Int8Dots => "int8 VPDPBUSD",
            Self::Bfloat16Tiles => "bfloat16 AMX tiles",
            Self::Int8Tiles => "int8 AMX tiles",
        }
    }

    /// Operations per second of all threads of `cpu`, two for a multiply-add; `None` where the machine has no such
    /// instruction.
    pub fn flops_per_second(self, cpu: &Cpu) -> Option<f64> {
        let task = self.task()?;
        let flops = std::sync::atomic::AtomicUsize::new(0);
        // More tasks than threads, so that one that is interrupted does not leave the others idle.
        let tasks = cpu.threads() * 16;
        let start = Instant::now();
        while start.elapsed() < SAMPLE {
            cpu.pool.run(
                tasks,
                false,
                || (),
                |(), _| {
                    flops.fetch_add(task(), std::sync::atomic::Ordering::Relaxed);
                },
            );
        }
        Some(flops.into_inner() as f64 / start.elapsed().as_secs_f64())
    }

    /// A loop of the instruction, which returns the operations it did.
    fn task(self) -> Option<fn() -> usize> {
        match self {
            Self::Float32(Isa::Portable) => Some(portable),
            #[cfg(target_arch = "x86_64")]
            Self::Float32(isa) if isa.is_available() => match isa {
                // SAFETY: the family is available.
                Isa::Avx2 => Some(|| unsafe { x86::avx2() }),
                // SAFETY: as above.
                _ => Some(|| unsafe { x86::avx512() }),
            },
            #[cfg(target_arch = "x86_64")]
            Self::Bfloat16Dots if Isa::Avx512.fastest_arithmetic() == Arithmetic::Bfloat16 => {
                // SAFETY: the processor has AVX-512 with BF16.
                Some(|| unsafe { x86::bfloat16_dots() })
            }
            #[cfg(target_arch = "x86_64")]
            Self::Int8Dots if Isa::Avx512.is_available() && is_x86_feature_detected!("avx512vnni") => {
                // SAFETY: the processor has AVX-512 with VNNI.
                Some(|| unsafe { x86::int8_dots() })
            }
            #[cfg(target_arch = "x86_64")]
            Self::Bfloat16Tiles if Isa::Amx.is_available() => {
                // SAFETY: tiles of bfloat16 are available.
                Some(|| 2 * 16 * 16 * 32 * unsafe { amx::bfloat16_products() })
            }
            #[cfg(target_arch = "x86_64")]
            Self::Int8Tiles if Isa::Amx.is_available() && amx::has_feature(amx::INT8) => {
                // SAFETY: tiles are available, and so are their products of integers.
                Some(|| 2 * 16 * 16 * 64 * unsafe { amx::int8_products() })
            }
            _ => None,
        }
    }
}

/// Bytes per second that all threads of `cpu` read of `bytes`, which must be much more than the caches hold.
pub fn read_bytes_per_second(cpu: &Cpu, bytes: &[u8]) -> f64 {
    let parts: Vec<&[u8]> = bytes.chunks(READ_BYTES).collect();
    let start = Instant::now();
    cpu.pool.run(
        parts.len(),
        false,
        || (),
        |(), part| {
            black_box(sum(parts[part]));
        },
    );
    bytes.len() as f64 / start.elapsed().as_secs_f64()
}

/// The sum of a part's words: eight running sums, so that loads are all that takes time.
fn sum(bytes: &[u8]) -> u64 {
    let (lines, _) = bytes.as_chunks::<64>();
    let mut sums = [0u64; 8];
    for line in lines {
        for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}

/// What the compiler makes of multiply-adds for the target's baseline.
fn portable() -> usize {
    const LANES: usize = 32;
    let (a, b) = (black_box(0.5f32), black_box(1.0f32));
    // Sums that differ, or the compiler would see that one is enough.
    let mut sums = [0f32; LANES];
    for lane in 0..LANES {
        sums[lane] = black_box(lane as f32);
    }
    for _ in 0..ROUNDS {
        for sum in &mut sums {
            *sum = if PORTABLE_FUSED { sum.mul_add(a, b) } else { *sum * a + b };
        }
    }
    black_box(sums);
    ROUNDS * LANES * 2
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{ROUNDS, SUMS};

    /// # Safety
    /// The processor must have AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn avx2() -> usize {
        // Sixteen registers: twelve sums and the factors.
        const SUMS: usize = 12;
        let (a, b) = (_mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(black_box(1.0)));
        let mut sums = [_mm256_setzero_ps(); SUMS];
        for i in 0..SUMS {
            sums[i] = _mm256_set1_ps(black_box(i as f32));
        }
        for _ in 0..ROUNDS {
            for i in 0..SUMS {
                sums[i] = _mm256_fmadd_ps(sums[i], a, b);
            }
        }
        black_box(sums);
        ROUNDS * SUMS * 8 * 2
    }

    /// # Safety
    /// The processor must have AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn avx512() -> usize {
        let (a, b) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(1.0)));
        let mut sums = [_mm512_setzero_ps(); SUMS];
        for i in 0..SUMS {
            sums[i] = _mm512_set1_ps(black_box(i as f32));
        }
        for _ in 0..ROUNDS {
            for i in 0..SUMS {
                sums[i] = _mm512_fmadd_ps(sums[i], a, b);
            }
        }
        black_box(sums);
        ROUNDS * SUMS * 16 * 2
    }

    /// # Safety
    /// The processor must have AVX-512 with BF16.
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) unsafe fn bfloat16_dots() -> usize {
        // Pairs of ones.
        let ones = _mm512_set1_epi32(black_box(0x3F80_3F80));
        // SAFETY: both are 512 bits of anything.
        let ones: __m512bh = unsafe { std::mem::transmute(ones) };
        let mut sums = [_mm512_setzero_ps(); SUMS];
        for i in 0..SUMS {
            sums[i] = _mm512_set1_ps(black_box(i as f32));
        }
        for _ in 0..ROUNDS {
            for i in 0..SUMS {
                sums[i] = _mm512_dpbf16_ps(sums[i], ones, ones);
            }
        }
        black_box(sums);
        ROUNDS * SUMS * 32 * 2
    }

    /// # Safety
    /// The processor must have AVX-512 with VNNI.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) unsafe fn int8_dots() -> usize {
        let ones = _mm512_set1_epi8(black_box(1));
        let mut sums = [_mm512_setzero_si512(); SUMS];
        for i in 0..SUMS {
            sums[i] = _mm512_set1_epi32(black_box(i as i32));
        }
        for _ in 0..ROUNDS {
            for i in 0..SUMS {
                sums[i] = _mm512_dpbusd_epi32(sums[i], ones, ones);
            }
        }
        black_box(sums);
        ROUNDS * SUMS * 64 * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_that_is_there_has_a_peak_and_no_other() {
        for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
            assert_eq!(Peak::Float32(isa).task().is_some(), isa.is_available(), "{isa}");
        }
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for cpu in [Cpu::precise(isa, 1).unwrap(), Cpu::fast(isa, 1).unwrap()] {
                assert!(Peak::of(&cpu).task().is_some(), "{isa} {}", cpu.arithmetic());
            }
        }
    }

    /// Two for a multiply-add, of the lanes that a register has.
    #[test]
    fn operations_are_counted() {
        assert_eq!(portable(), 8192 * 32 * 2);
        for (peak, flops) in [
            (Peak::Float32(Isa::Avx2), 8192 * 12 * 16),
            (Peak::Float32(Isa::Avx512), 8192 * 16 * 32),
            (Peak::Bfloat16Dots, 8192 * 16 * 64),
            (Peak::Int8Dots, 8192 * 16 * 128),
            (Peak::Bfloat16Tiles, 512 * 4 * 16 * 16 * 64),
            (Peak::Int8Tiles, 512 * 4 * 16 * 16 * 128),
        ] {
            if let Some(task) = peak.task() {
                assert_eq!(task(), flops, "{}", peak.name());
            }
        }
    }

    #[test]
    fn all_words_are_read() {
        let bytes: Vec<u8> = (0..3 * 64).map(|i| if i % 8 == 0 { i as u8 } else { 0 }).collect();
        assert_eq!(sum(&bytes), (0..3 * 64).step_by(8).sum::<usize>() as u64);
    }
}
