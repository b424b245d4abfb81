//! Which instructions and how many threads: chosen once, handed to every kernel.

use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
use crate::amx;
use crate::pool::{DisjointMut, Pool};
use crate::products::Products;

/// A family of vector instructions that the kernels have code for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, vectorised by the compiler for the target's baseline.
    Portable,
    /// AVX2 with FMA and F16C (x86-64).
    Avx2,
    /// AVX-512 F, BW, DQ and VL (x86-64): every processor with AVX-512 but the Xeon Phi.
    Avx512,
    /// AVX-512 with BF16, and AMX tiles for products (x86-64).
    Amx,
}

impl Isa {
    /// Every family, slowest first.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Avx2, Self::Avx512, Self::Amx];

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
        }
    }

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        // Every kernel asks. One answer for each, since one's may depend on another's.
        static AVAILABLE: [OnceLock<bool>; 4] = [const { OnceLock::new() }; 4];
        *AVAILABLE[self as usize].get_or_init(|| self.needs().iter().all(|need| (need.is_there)()))
    }

    /// What it needs and this machine lacks, in words; empty when it is available.
    pub fn missing(self) -> Vec<&'static str> {
        let mut missing: Vec<_> = self.needs().iter().filter(|need| !(need.is_there)()).map(|need| need.name).collect();
        // Nothing can be granted where there is nothing.
        if missing.len() > 1 {
            missing.retain(|name| *name != GRANTED_TILES);
        }
        missing
    }

    #[cfg(target_arch = "x86_64")]
    fn needs(self) -> &'static [Need] {
        &X86_NEEDS[..match self {
            Self::Portable => 0,
            Self::Avx2 => 3,
            Self::Avx512 => 7,
            Self::Amx => X86_NEEDS.len(),
        }]
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn needs(self) -> &'static [Need] {
        match self {
            Self::Portable => &[],
            _ => &[Need { name: "an x86-64 processor", is_there: || false }],
        }
    }

    /// The arithmetic of its fastest products.
    pub fn fastest_arithmetic(self) -> Arithmetic {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 | Self::Amx if is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("bmi2") => {
                Arithmetic::Bfloat16
            }
            _ => Arithmetic::Float32,
        }
    }

    /// The fastest family this machine can run.
    pub fn best() -> Self {
        Self::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Self::Portable)
    }
}

/// A feature of the processor or the system.
struct Need {
    name: &'static str,
    is_there: fn() -> bool,
}

const GRANTED_TILES: &str = "the system's leave to use AMX tiles";

/// In the order of the families: each needs the first so many of them.
#[cfg(target_arch = "x86_64")]
const X86_NEEDS: [Need; 12] = [
    Need { name: "AVX2", is_there: || is_x86_feature_detected!("avx2") },
    Need { name: "FMA", is_there: || is_x86_feature_detected!("fma") },
    Need { name: "F16C", is_there: || is_x86_feature_detected!("f16c") },
    Need { name: "AVX512F", is_there: || is_x86_feature_detected!("avx512f") },
    Need { name: "AVX512BW", is_there: || is_x86_feature_detected!("avx512bw") },
    Need { name: "AVX512DQ", is_there: || is_x86_feature_detected!("avx512dq") },
    Need { name: "AVX512VL", is_there: || is_x86_feature_detected!("avx512vl") },
    Need { name: "AVX512_BF16", is_there: || is_x86_feature_detected!("avx512bf16") },
    Need { name: "BMI2", is_there: || is_x86_feature_detected!("bmi2") },
    Need { name: "AMX-TILE", is_there: || amx::has_feature(amx::TILE) || amx::is_available() },
    Need { name: "AMX-BF16", is_there: || amx::has_feature(amx::BF16) || amx::is_available() },
    Need { name: GRANTED_TILES, is_there: amx::is_available },
];

/// What products of inputs and weights are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Float32 throughout.
    Float32,
    /// Weights (after scaling) and inputs are rounded to bfloat16; their products are summed in float32.
    Bfloat16,
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Float32 => "float32",
            Self::Bfloat16 => "bfloat16",
        })
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An instruction set was asked for that this machine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnavailableIsa(pub Isa);

impl fmt::Display for UnavailableIsa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this processor cannot run the `{}` kernels; the best it has is `{}`", self.0, Isa::best())
    }
}

impl std::error::Error for UnavailableIsa {}

/// Into how many ranges even work is cut for each thread: enough that a thread which was interrupted is not waited for
/// long.
const RANGES_A_THREAD: usize = 4;

/// Columns of a row that are worth a thread of their own.
const LEAST_COLUMNS: usize = 512;

/// The processor as the kernels see it: an instruction set that is known to be available, and threads.
pub struct Cpu {
    isa: Isa,
    arithmetic: Arithmetic,
    pub(crate) pool: Pool,
}

impl Cpu {
    /// Kernels for `isa` that compute in float32, on `threads` threads (0 = as many as the machine has).
    ///
    /// # Errors
    /// When this machine lacks the instructions.
    pub fn precise(isa: Isa, threads: usize) -> Result<Self, UnavailableIsa> {
        Self::new(isa, Arithmetic::Float32, threads)
    }

    /// [`precise`](Self::precise), but with the fastest arithmetic that `isa` has.
    ///
    /// # Errors
    /// When this machine lacks the instructions.
    pub fn fast(isa: Isa, threads: usize) -> Result<Self, UnavailableIsa> {
        Self::new(isa, isa.fastest_arithmetic(), threads)
    }

    fn new(isa: Isa, arithmetic: Arithmetic, threads: usize) -> Result<Self, UnavailableIsa> {
        if !isa.is_available() {
            return Err(UnavailableIsa(isa));
        }
        Ok(Self { isa, arithmetic, pool: Pool::new(threads) })
    }

    /// What products are rounded to.
    pub fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    /// The instruction set in use. Always available: that is checked when the value is made.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// How products are computed.
    pub(crate) fn products(&self) -> Products {
        match self.arithmetic {
            Arithmetic::Float32 => Products::Float32,
            #[cfg(target_arch = "x86_64")]
            Arithmetic::Bfloat16 if self.isa == Isa::Amx => Products::Tiles,
            #[cfg(target_arch = "x86_64")]
            Arithmetic::Bfloat16 => Products::Dots,
            #[cfg(not(target_arch = "x86_64"))]
            Arithmetic::Bfloat16 => unreachable!("no instruction set of this machine has it"),
        }
    }

    /// The number of threads in use.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Runs `f` on ranges that make up `0 .. units`, on all threads: a few ranges a thread, however many units there are,
    /// and none (but the last) shorter than `grain`, so that threads are not woken for crumbs.
    pub(crate) fn for_ranges(&self, units: usize, grain: usize, f: impl Fn(Range<usize>) + Sync) {
        let len = units.div_ceil(RANGES_A_THREAD * self.threads()).max(grain);
        self.pool.run(units.div_ceil(len), false, || (), |(), i| f(i * len..units.min((i + 1) * len)));
    }

    /// Into how many parts to cut each of `rows` rows of `width` columns that may be computed apart: into one, unless there
    /// are fewer rows than threads.
    pub(crate) fn parts_of_rows(&self, rows: usize, width: usize) -> usize {
        if rows < self.threads() { width.div_ceil(LEAST_COLUMNS) } else { 1 }
    }

    /// Runs `f(i, row i of out)` for each `width`-wide row of `out`, on all threads.
    pub fn for_rows<T: Send>(&self, out: &mut [T], width: usize, f: impl Fn(usize, &mut [T]) + Sync) {
        self.for_rows_with(out, width, || (), |(), i, row| f(i, row));
    }

    /// [`for_rows`](Self::for_rows) with something that each thread makes once and keeps between its rows.
    pub fn for_rows_with<T: Send, S>(
        &self,
        out: &mut [T],
        width: usize,
        init: impl Fn() -> S + Sync,
        f: impl Fn(&mut S, usize, &mut [T]) + Sync,
    ) {
        let rows = out.len() / width;
        assert_eq!(out.len(), rows * width, "a whole number of rows");
        let out = DisjointMut::new(out);
        self.pool.run(rows, false, init, |s, i| {
            // SAFETY: task i alone takes row i.
            f(s, i, unsafe { out.part(i * width, width) });
        });
    }

    /// Runs `f(i, row i of a, row i of b)` for the rows of two outputs with the same number of rows.
    pub fn for_row_pairs<T: Send, U: Send>(
        &self,
        (a, a_width): (&mut [T], usize),
        (b, b_width): (&mut [U], usize),
        f: impl Fn(usize, &mut [T], &mut [U]) + Sync,
    ) {
        let rows = a.len() / a_width;
        assert!(a.len() == rows * a_width && b.len() == rows * b_width, "a whole, equal number of rows");
        let (a, b) = (DisjointMut::new(a), DisjointMut::new(b));
        self.pool.run(
            rows,
            false,
            || (),
            |(), i| {
                // SAFETY: task i alone takes row i of each.
                unsafe { f(i, a.part(i * a_width, a_width), b.part(i * b_width, b_width)) };
            },
        );
    }
}
