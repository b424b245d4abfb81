//! Bfloat16 products with the dot-product instruction of AVX-512.
//!
//! A dot product is sixteen running sums: sum `l` takes the pairs `l, l + 16, ...` of values, of each pair the second
//! product first (VDPBF16PS), and they are folded by halves. Rows are padded with zeros to whole lines.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use strata_gguf::TensorType;

use super::{LINE, Line, Out, WeightRows};
use crate::decode::{dots, dots_of_two};
use crate::vector::x86::fold_four;

/// Input rows of a register tile.
const TILE_ROWS: usize = 6;
/// Weight rows of a register tile.
const TILE_WEIGHTS: usize = 4;
/// The most input rows that [`multiply_blocks`] takes.
pub(crate) const MOST_DECODED_ROWS: usize = 4;

/// Rounds rows of `cols` values into rows of whole lines, padded with zeros.
///
/// # Safety
/// The processor must have AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(crate) unsafe fn round_row(x: &[f32], out: &mut [Line]) {
    let (lines, rest) = x.as_chunks::<LINE>();
    for (x, out) in lines.iter().zip(out.iter_mut()) {
        // SAFETY: 32 readable values, and 32 places; the caller vouches for the instructions.
        unsafe {
            let (low, high) = (_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16)));
            let rounded: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(high, low));
            _mm512_store_si512(out.0.as_mut_ptr().cast(), rounded);
        }
    }
    if !rest.is_empty() {
        let out = &mut out[lines.len()].0;
        *out = [0; LINE];
        for (out, x) in out.iter_mut().zip(rest) {
            *out = crate::bfloat16::round(*x);
        }
    }
}

/// Multiplies weight rows with all input rows, each `lines` lines long.
///
/// # Safety
/// The places of all outputs (input rows x weight rows) must be writable and nobody else's; the processor must have AVX-512
/// with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(crate) unsafe fn multiply(w: WeightRows<'_>, x: &[Line], lines: usize, out: Out<'_>) {
    let rows = x.len() / lines;
    assert_eq!(w.bytes().len(), w.count() * lines * size_of::<Line>(), "weight rows as long as input rows");
    let mut t = 0;
    // SAFETY: tiles stay inside of the rows and outputs; see above.
    unsafe {
        while t + TILE_ROWS <= rows {
            multiply_rows::<TILE_ROWS>(w, x, lines, t, out);
            t += TILE_ROWS;
        }
        match rows - t {
            1 => multiply_rows::<1>(w, x, lines, t, out),
            2 => multiply_rows::<2>(w, x, lines, t, out),
            3 => multiply_rows::<3>(w, x, lines, t, out),
            4 => multiply_rows::<4>(w, x, lines, t, out),
            5 => multiply_rows::<5>(w, x, lines, t, out),
            _ => {}
        }
    }
}

/// All weight rows with the input rows `t .. t + C`.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn multiply_rows<const C: usize>(w: WeightRows<'_>, x: &[Line], lines: usize, t: usize, out: Out<'_>) {
    let mut n = 0;
    // SAFETY: as above.
    unsafe {
        // With few inputs, more weight rows at a time hide the latency of the sums.
        if C <= 2 {
            while n + 2 * TILE_WEIGHTS <= w.count() {
                tile::<8, C>(w, x, lines, t, n, out);
                n += 2 * TILE_WEIGHTS;
            }
        }
        while n + TILE_WEIGHTS <= w.count() {
            tile::<TILE_WEIGHTS, C>(w, x, lines, t, n, out);
            n += TILE_WEIGHTS;
        }
        while n < w.count() {
            tile::<1, C>(w, x, lines, t, n, out);
            n += 1;
        }
    }
}

/// The weight rows `n .. n + R` with the input rows `t .. t + C`.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn tile<const R: usize, const C: usize>(
    w: WeightRows<'_>,
    x: &[Line],
    lines: usize,
    t: usize,
    n: usize,
    out: Out<'_>,
) {
    // SAFETY: as above.
    unsafe {
        let row_bytes = lines * size_of::<Line>();
        let start = w.bytes().as_ptr().add(n * row_bytes);
        let x = x.as_ptr().add(t * lines);
        if R == TILE_WEIGHTS && C == TILE_ROWS {
            let mut sums = MaybeUninit::uninit();
            full_tile(sums.as_mut_ptr(), start, x.cast(), row_bytes, lines);
            return put(sums.assume_init(), t, n, out);
        }
        let mut sums = [[_mm512_setzero_ps(); C]; R];
        for line in 0..lines {
            let mut xs = [bfloats(_mm512_setzero_si512()); C];
            for c in 0..C {
                xs[c] = bfloats(_mm512_load_si512(x.add(c * lines + line).cast()));
            }
            for r in 0..R {
                let weights = start.add(r * row_bytes + line * size_of::<Line>());
                let weights = bfloats(_mm512_loadu_si512(weights.cast()));
                for c in 0..C {
                    sums[r][c] = _mm512_dpbf16_ps(sums[r][c], weights, xs[c]);
                }
            }
        }
        put(sums, t, n, out);
    }
}

/// Multiplies weight rows, given as their blocks, with at most [`MOST_DECODED_ROWS`] input rows: what is decoded goes from
/// registers into the sums.
///
/// # Safety
/// The places of all outputs (input rows x weight rows) must be writable and nobody else's; the processor must have AVX-512
/// with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,f16c,bmi2")]
pub(crate) unsafe fn multiply_blocks(
    ty: TensorType,
    blocks: &[u8],
    count: usize,
    x: &[Line],
    lines: usize,
    out: Out<'_>,
) {
    // SAFETY: the caller's promises.
    unsafe {
        match x.len() / lines {
            1 => multiply_decoded::<1>(ty, blocks, count, x, lines, out),
            2 => multiply_decoded::<2>(ty, blocks, count, x, lines, out),
            3 => multiply_decoded::<3>(ty, blocks, count, x, lines, out),
            4 => multiply_decoded::<4>(ty, blocks, count, x, lines, out),
            rows => assert_eq!(rows, 0, "too many input rows to decode for"),
        }
    }
}

/// # Safety
/// As [`multiply_blocks`].
#[inline(always)]
unsafe fn multiply_decoded<const C: usize>(
    ty: TensorType,
    blocks: &[u8],
    count: usize,
    x: &[Line],
    lines: usize,
    out: Out<'_>,
) {
    let row_bytes = blocks.len() / count;
    assert_eq!(ty.row_bytes((lines * LINE) as u64), Some(row_bytes as u64), "weight rows as long as input rows");
    // SAFETY: as above.
    unsafe {
        let row = |n: usize| &blocks[n * row_bytes..][..row_bytes];
        // Two runs of rows, so that memory is read in two runs, too.
        let half = count / 4 * 2;
        for n in (0..half).step_by(2) {
            let [a, b] = dots_of_two::<C>(ty, [row(n), row(half + n)], x.as_ptr(), lines);
            let [c, d] = dots_of_two::<C>(ty, [row(n + 1), row(half + n + 1)], x.as_ptr(), lines);
            let scale = _mm_set1_ps(out.scale());
            for t in 0..C {
                let four = _mm_mul_ps(fold_four(a[t], c[t], b[t], d[t]), scale);
                _mm_storel_pd(out.at(t, n).cast(), _mm_castps_pd(four));
                _mm_storeh_pd(out.at(t, half + n).cast(), _mm_castps_pd(four));
            }
        }
        for n in 2 * half..count {
            put::<1, C>([dots(ty, row(n), x.as_ptr(), lines)], 0, n, out);
        }
    }
}

/// Folds sums and puts them out, of weight rows from `n` on and input rows from `t` on.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn put<const R: usize, const C: usize>(sums: [[__m512; C]; R], t: usize, n: usize, out: Out<'_>) {
    // SAFETY: as above.
    unsafe {
        let scale = _mm_set1_ps(out.scale());
        for c in 0..C {
            let mut r = 0;
            while r + 4 <= R {
                let four = fold_four(sums[r][c], sums[r + 1][c], sums[r + 2][c], sums[r + 3][c]);
                _mm_storeu_ps(out.at(t + c, n + r), _mm_mul_ps(four, scale));
                r += 4;
            }
            while r < R {
                let zero = _mm512_setzero_ps();
                let one = fold_four(sums[r][c], zero, zero, zero);
                *out.at(t + c, n + r) = _mm_cvtss_f32(_mm_mul_ss(one, scale));
                r += 1;
            }
        }
    }
}

/// The sums of a full tile. All rows are `row_bytes` apart and `lines` lines long, at least one.
///
/// Written out because the compiler keeps some of these 24 sums in memory.
///
/// # Safety
/// `sums` must be writable, the rows readable so far; the processor must have AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn full_tile(
    sums: *mut [[__m512; TILE_ROWS]; TILE_WEIGHTS],
    weights: *const u8,
    x: *const u8,
    row_bytes: usize,
    lines: usize,
) {
    // SAFETY: it reads the rows, as the caller vouches for, and writes the 24 sums.
    unsafe {
        std::arch::asm!(
            "vpxord zmm0, zmm0, zmm0",
            "vpxord zmm1, zmm1, zmm1",
            "vpxord zmm2, zmm2, zmm2",
            "vpxord zmm3, zmm3, zmm3",
            "vpxord zmm4, zmm4, zmm4",
            "vpxord zmm5, zmm5, zmm5",
            "vpxord zmm6, zmm6, zmm6",
            "vpxord zmm7, zmm7, zmm7",
            "vpxord zmm8, zmm8, zmm8",
            "vpxord zmm9, zmm9, zmm9",
            "vpxord zmm10, zmm10, zmm10",
            "vpxord zmm11, zmm11, zmm11",
            "vpxord zmm12, zmm12, zmm12",
            "vpxord zmm13, zmm13, zmm13",
            "vpxord zmm14, zmm14, zmm14",
            "vpxord zmm15, zmm15, zmm15",
            "vpxord zmm16, zmm16, zmm16",
            "vpxord zmm17, zmm17, zmm17",
            "vpxord zmm18, zmm18, zmm18",
            "vpxord zmm19, zmm19, zmm19",
            "vpxord zmm20, zmm20, zmm20",
            "vpxord zmm21, zmm21, zmm21",
            "vpxord zmm22, zmm22, zmm22",
            "vpxord zmm23, zmm23, zmm23",
            "2:",
            "vmovdqu64 zmm24, [{x}]",
            "vmovdqu64 zmm25, [{x} + {row}]",
            "vmovdqu64 zmm26, [{x} + 2*{row}]",
            "vmovdqu64 zmm27, [{y}]",
            "vmovdqu64 zmm28, [{y} + {row}]",
            "vmovdqu64 zmm29, [{y} + 2*{row}]",
            "vmovdqu64 zmm30, [{w}]",
            "vmovdqu64 zmm31, [{w} + {row}]",
            "vdpbf16ps zmm0, zmm30, zmm24",
            "vdpbf16ps zmm1, zmm30, zmm25",
            "vdpbf16ps zmm2, zmm30, zmm26",
            "vdpbf16ps zmm3, zmm30, zmm27",
            "vdpbf16ps zmm4, zmm30, zmm28",
            "vdpbf16ps zmm5, zmm30, zmm29",
            "vmovdqu64 zmm30, [{w} + 2*{row}]",
            "vdpbf16ps zmm6, zmm31, zmm24",
            "vdpbf16ps zmm7, zmm31, zmm25",
            "vdpbf16ps zmm8, zmm31, zmm26",
            "vdpbf16ps zmm9, zmm31, zmm27",
            "vdpbf16ps zmm10, zmm31, zmm28",
            "vdpbf16ps zmm11, zmm31, zmm29",
            "vmovdqu64 zmm31, [{v}]",
            "vdpbf16ps zmm12, zmm30, zmm24",
            "vdpbf16ps zmm13, zmm30, zmm25",
            "vdpbf16ps zmm14, zmm30, zmm26",
            "vdpbf16ps zmm15, zmm30, zmm27",
            "vdpbf16ps zmm16, zmm30, zmm28",
            "vdpbf16ps zmm17, zmm30, zmm29",
            "vdpbf16ps zmm18, zmm31, zmm24",
            "vdpbf16ps zmm19, zmm31, zmm25",
            "vdpbf16ps zmm20, zmm31, zmm26",
            "vdpbf16ps zmm21, zmm31, zmm27",
            "vdpbf16ps zmm22, zmm31, zmm28",
            "vdpbf16ps zmm23, zmm31, zmm29",
            "add {x}, 64",
            "add {y}, 64",
            "add {w}, 64",
            "add {v}, 64",
            "dec {lines}",
            "jnz 2b",
            "vmovups [{sums} + 0], zmm0",
            "vmovups [{sums} + 64], zmm1",
            "vmovups [{sums} + 128], zmm2",
            "vmovups [{sums} + 192], zmm3",
            "vmovups [{sums} + 256], zmm4",
            "vmovups [{sums} + 320], zmm5",
            "vmovups [{sums} + 384], zmm6",
            "vmovups [{sums} + 448], zmm7",
            "vmovups [{sums} + 512], zmm8",
            "vmovups [{sums} + 576], zmm9",
            "vmovups [{sums} + 640], zmm10",
            "vmovups [{sums} + 704], zmm11",
            "vmovups [{sums} + 768], zmm12",
            "vmovups [{sums} + 832], zmm13",
            "vmovups [{sums} + 896], zmm14",
            "vmovups [{sums} + 960], zmm15",
            "vmovups [{sums} + 1024], zmm16",
            "vmovups [{sums} + 1088], zmm17",
            "vmovups [{sums} + 1152], zmm18",
            "vmovups [{sums} + 1216], zmm19",
            "vmovups [{sums} + 1280], zmm20",
            "vmovups [{sums} + 1344], zmm21",
            "vmovups [{sums} + 1408], zmm22",
            "vmovups [{sums} + 1472], zmm23",
            sums = in(reg) sums,
            x = inout(reg) x => _,
            y = inout(reg) x.add(3 * row_bytes) => _,
            w = inout(reg) weights => _,
            v = inout(reg) weights.add(3 * row_bytes) => _,
            row = in(reg) row_bytes,
            lines = inout(reg) lines => _,
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
            out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _, out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _, out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
            out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _, out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
            options(nostack),
        );
    }
}

/// A register's bits as bfloat16 values.
#[inline(always)]
fn bfloats(bits: __m512i) -> __m512bh {
    // SAFETY: both are 512 plain bits.
    unsafe { std::mem::transmute(bits) }
}
