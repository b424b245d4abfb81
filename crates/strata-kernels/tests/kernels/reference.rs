//! What the tests share: random values, poison, comparisons, and the plain scalar forms of the larger kernels.

use strata_gguf::TensorType;
use strata_kernels::matmul::Matrix;
use strata_kernels::{Arithmetic, Cpu, Isa};
use strata_quant::{EncodeError, decode_row, encode_row};

/// Numbers of threads that results must not depend on.
pub(crate) const THREADS: &[usize] = if cfg!(miri) { &[1, 2] } else { &[1, 2, 5] };

/// The instruction sets of this machine.
pub(crate) fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

/// Every instruction set of this machine with every number of threads.
pub(crate) fn cpus() -> impl Iterator<Item = Cpu> {
    isas().flat_map(|isa| THREADS.iter().map(move |threads| Cpu::precise(isa, *threads).unwrap()))
}

/// The instruction sets of this machine with products in bfloat16.
pub(crate) fn fast_isas() -> impl Iterator<Item = Isa> {
    #[cfg(all(feature = "emulated-amx", target_os = "linux", target_arch = "x86_64"))]
    assert_eq!(Isa::Amx.is_available(), is_x86_feature_detected!("avx512bf16"), "the emulator runs");
    isas().filter(|isa| isa.fastest_arithmetic() == Arithmetic::Bfloat16)
}

/// Each of them with every number of threads.
pub(crate) fn fast_cpus() -> impl Iterator<Item = Cpu> {
    fast_isas().flat_map(|isa| THREADS.iter().map(move |threads| Cpu::fast(isa, *threads).unwrap()))
}

/// Whether the code for `isa` multiplies and adds with one rounding.
pub(crate) fn is_fused(isa: Isa) -> bool {
    isa != Isa::Portable || cfg!(any(target_arch = "aarch64", target_feature = "fma"))
}

/// Runs `f` for every instruction set and number of threads: the bits are those of the instruction set, and of all fused
/// ones. Returns them.
pub(crate) fn same_bits(f: impl Fn(&Cpu) -> Vec<f32>) -> Vec<(Isa, Vec<f32>)> {
    let mut results: Vec<(Isa, Vec<f32>)> = Vec::new();
    for cpu in cpus() {
        let got = f(&cpu);
        let alike = |isa: Isa| isa == cpu.isa() || is_fused(isa) && is_fused(cpu.isa());
        if let Some((isa, want)) = results.iter().find(|(isa, _)| alike(*isa)) {
            assert_eq!(bits(&got), bits(want), "{} with {} threads, and {isa}", cpu.isa(), cpu.threads());
        }
        results.push((cpu.isa(), got));
    }
    results
}

/// SplitMix64: a small generator, so that a seed names a test case.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// In `-1 .. 1`.
    pub(crate) fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.float()).collect()
    }
}

/// `len` NaNs, each with bits of its own: a kernel that reads one or leaves one is caught, and so is one that writes
/// where it should not.
pub(crate) fn poison(len: usize) -> Vec<f32> {
    (0..len).map(poison_at).collect()
}

/// The poison at place `at`.
pub(crate) fn poison_at(at: usize) -> f32 {
    f32::from_bits(0x7fc0_0000 | (at as u32 + 1) & 0x003f_ffff)
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

pub(crate) fn doubles(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

/// Panics at the first value that is further than `tolerance` from the wanted one.
#[track_caller]
pub(crate) fn assert_close(got: &[f32], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= tolerance, "{what}: value {i} is {got}, want {want} within {tolerance:e}");
    }
}

/// A matrix that owns its bytes, and its weights as the format's decoder gives them.
pub(crate) struct Weights {
    pub(crate) ty: TensorType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) scale: f32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) decoded: Vec<f32>,
}

impl Weights {
    pub(crate) fn random(random: &mut Random, ty: TensorType, rows: usize, cols: usize, scale: f32) -> Self {
        let mut bytes = Vec::new();
        for _ in 0..rows {
            match encode_row(ty, &random.floats(cols), &mut bytes) {
                Ok(()) => {}
                Err(EncodeError::NoEncoder(_)) => {
                    (0..cols / ty.block_weights()).for_each(|_| bytes.extend(random_block(random, ty)));
                }
                Err(error) => panic!("{error}"),
            }
        }
        let mut decoded = vec![0.0; rows * cols];
        decode_row(ty, &bytes, &mut decoded);
        Self { ty, rows, cols, scale, bytes, decoded }
    }

    pub(crate) fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.ty, self.rows, self.cols, self.scale, &self.bytes)
    }

    pub(crate) fn row(&self, n: usize) -> &[f32] {
        &self.decoded[n * self.cols..][..self.cols]
    }

    /// One output row in double precision.
    pub(crate) fn times(&self, x: &[f64]) -> Vec<f64> {
        assert_eq!(x.len(), self.cols);
        let product = |n| -> f64 { self.row(n).iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum() };
        (0..self.rows).map(|n| product(n) * f64::from(self.scale)).collect()
    }
}

/// Random bytes whose float scales happen to be of a sane size.
fn random_block(random: &mut Random, ty: TensorType) -> Vec<u8> {
    let mut weights = vec![0.0; ty.block_weights()];
    loop {
        let block: Vec<u8> = (0..ty.block_bytes()).map(|_| random.bits() as u8).collect();
        decode_row(ty, &block, &mut weights);
        let largest = weights.iter().fold(0.0, |a: f32, w| if w.is_finite() { a.max(w.abs()) } else { f32::INFINITY });
        if (1e-2..1e2).contains(&largest) {
            return block;
        }
    }
}

/// The arithmetic that all kernels promise for a dot product: sixteen running sums (sum `l` takes the elements `l`,
/// `l + 16`, ...), with one rounding a step or two, then folded by halves.
pub(crate) fn dot_in_lanes(fused: bool, a: &[f32], b: &[f32]) -> f32 {
    let mut sums = vec![0.0f32; 16];
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        let sum = &mut sums[i % 16];
        *sum = if fused { a.mul_add(*b, *sum) } else { *sum + a * b };
    }
    while sums.len() > 1 {
        let upper = sums.split_off(sums.len() / 2);
        sums.iter_mut().zip(upper).for_each(|(a, b)| *a += b);
    }
    sums[0]
}

pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(crate) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}
