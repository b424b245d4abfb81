//! Inputs in the layout that tiles multiply, and the product of a panel of weights with them.

use std::arch::x86_64::*;

use super::tiles::{Block, Operands, Results, TILE_ROWS, Tiles};
use crate::products::{LINE, Line, Out, WeightRows};
use crate::{Isa, UnavailableIsa};

/// Columns that one step of a product takes: a line of each weight row.
const COLUMN_BLOCK: usize = LINE;

/// Lines of inputs in one step of a product: pairs of columns.
const STEP_LINES: usize = COLUMN_BLOCK / 2;

/// The number of lines that `rows` input rows of `cols` columns are packed into.
pub(crate) fn packed_lines(rows: usize, cols: usize) -> usize {
    rows.div_ceil(TILE_ROWS) * group_lines(cols)
}

/// Lines of a group of sixteen input rows.
fn group_lines(cols: usize) -> usize {
    cols.div_ceil(COLUMN_BLOCK) * STEP_LINES
}

/// Rounds `rows` input rows of `cols` columns to bfloat16 and packs them: groups of sixteen rows after one another; in a
/// group one line for each pair of columns, with the pairs of the sixteen rows. Rows and columns that are missing are zero.
///
/// Rounding is that of VCVTNEPS2BF16: to nearest even, subnormal numbers to zero.
///
/// # Panics
/// When `packed` is not as long as [`packed_lines`] says, a row is not `cols` long, or this machine cannot run
/// [`Isa::Amx`].
pub(crate) fn pack<'x>(rows: usize, cols: usize, row: impl Fn(usize) -> &'x [f32], packed: &mut [Line]) {
    assert!(Isa::Amx.is_available(), "{}", UnavailableIsa(Isa::Amx));
    assert_eq!(packed.len(), packed_lines(rows, cols), "pack: lines of {rows} rows of {cols} columns");
    for (group, packed) in packed.chunks_exact_mut(group_lines(cols)).enumerate() {
        let mut group_rows: [&[f32]; TILE_ROWS] = [&[]; TILE_ROWS];
        let count = TILE_ROWS.min(rows - group * TILE_ROWS);
        for (i, group_row) in group_rows[..count].iter_mut().enumerate() {
            *group_row = row(group * TILE_ROWS + i);
            assert_eq!(group_row.len(), cols, "pack: columns of a row");
        }
        // SAFETY: the assertion above: this machine has the instructions.
        unsafe { pack_group(&group_rows[..count], cols, packed) };
    }
}

/// [`pack`] for a group of at most sixteen rows.
#[target_feature(enable = "avx512f,avx512bf16")]
fn pack_group(rows: &[&[f32]], cols: usize, packed: &mut [Line]) {
    for (step, lines) in packed.as_chunks_mut::<STEP_LINES>().0.iter_mut().enumerate() {
        let first = step * COLUMN_BLOCK;
        let mut pairs = [_mm512_setzero_si512(); TILE_ROWS];
        for (row, pairs) in rows.iter().zip(&mut pairs) {
            let part = &row[first..cols.min(first + COLUMN_BLOCK)];
            let mask = !(!0u64 << part.len()) as u32;
            // SAFETY: a masked load touches only the lanes whose bit is set, and these are in `part`.
            let (low, high) = unsafe {
                let low = _mm512_maskz_loadu_ps(mask as u16, part.as_ptr());
                (low, _mm512_maskz_loadu_ps((mask >> 16) as u16, part.as_ptr().wrapping_add(16)))
            };
            // SAFETY: both types are 64 bytes of anything.
            *pairs = unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) };
        }
        let columns = transposed(pairs);
        for (line, column) in lines.iter_mut().zip(columns) {
            // SAFETY: a line is 64 bytes, aligned to as many.
            unsafe { _mm512_store_si512((&raw mut *line).cast(), column) };
        }
    }
}

/// Multiplies weight rows with `rows` input rows, which [`pack`] packed. It is fastest with multiples of 32 weight rows,
/// aligned to 64 bytes.
///
/// # Safety
/// The places of all outputs (input rows x weight rows) must be writable and nobody else's.
///
/// # Panics
/// When the lengths do not fit together, or this machine cannot run [`Isa::Amx`].
pub(crate) unsafe fn multiply(w: WeightRows<'_>, packed: &[Line], rows: usize, out: Out<'_>) {
    assert!(Isa::Amx.is_available(), "{}", UnavailableIsa(Isa::Amx));
    let cols = w.row_bytes() / size_of::<u16>();
    assert!(cols > 0, "multiply: weight rows of no columns");
    assert_eq!(packed.len(), packed_lines(rows, cols), "multiply: lines of {rows} rows of {cols} columns");
    // SAFETY: the caller's promises, and the assertions above.
    unsafe { multiply_tiles(w.bytes(), w.row_bytes(), packed, rows, out) };
}

/// [`multiply`] after its checks.
///
/// # Safety
/// As [`multiply`]; and the lengths must fit together, with at least one block of columns.
#[target_feature(enable = "avx512f")]
unsafe fn multiply_tiles(panel: &[u8], row_bytes: usize, packed: &[Line], rows: usize, out: Out<'_>) {
    const BLOCK_ROWS: usize = 2 * TILE_ROWS;
    let cols = row_bytes / size_of::<u16>();
    let mut results = Block([[[[0.0; TILE_ROWS]; TILE_ROWS]; 2]; 2]);
    let (whole, rest) = panel.split_at(panel.len() - panel.len() % (BLOCK_ROWS * row_bytes));
    // All blocks of one shape share a configuration: the whole ones, then the rest.
    for (part, first) in [(whole, 0), (rest, whole.len() / row_bytes)] {
        if part.is_empty() {
            continue;
        }
        let block_rows = BLOCK_ROWS.min(part.len() / row_bytes);
        let weight_tiles = [TILE_ROWS.min(block_rows), block_rows.saturating_sub(TILE_ROWS)];
        // SAFETY: tiles are available by the caller's checks, and released at the end of this round.
        let tiles = unsafe { Tiles::configure(weight_tiles[0], weight_tiles[1].max(1)) };
        // Inputs in the outer loop: they come from further away than the panel.
        for (pair, inputs) in packed.chunks(2 * group_lines(cols)).enumerate() {
            let pair_rows = BLOCK_ROWS.min(rows - pair * BLOCK_ROWS);
            let input_tiles = [TILE_ROWS.min(pair_rows), pair_rows.saturating_sub(TILE_ROWS)];
            for (block, weights) in part.chunks_exact(block_rows * row_bytes).enumerate() {
                let operands = Operands {
                    weights: [weights.as_ptr(), weights.as_ptr().wrapping_add(TILE_ROWS * row_bytes)],
                    weight_stride_bytes: row_bytes,
                    inputs: [inputs.as_ptr(), inputs.as_ptr().wrapping_add(group_lines(cols))],
                    steps: row_bytes / size_of::<Line>(),
                };
                // SAFETY: the weights are `block_rows` rows, the inputs one or two groups, all of `steps` steps.
                unsafe {
                    match (weight_tiles[1], input_tiles[1]) {
                        (0, 0) => tiles.one_by_one(&operands, &mut results),
                        (0, _) => tiles.one_by_two(&operands, &mut results),
                        (_, 0) => tiles.two_by_one(&operands, &mut results),
                        _ => tiles.two_by_two(&operands, &mut results),
                    }
                }
                for (w, &count) in weight_tiles.iter().enumerate() {
                    for (x, &rows) in input_tiles.iter().enumerate() {
                        if count == 0 || rows == 0 {
                            continue;
                        }
                        let (t, n) = (pair * BLOCK_ROWS + x * TILE_ROWS, first + block * BLOCK_ROWS + w * TILE_ROWS);
                        // SAFETY: these are rows and weights of the caller's.
                        unsafe { write(&results.0[w][x], count, rows, out, t, n) };
                    }
                }
            }
        }
    }
}

/// Writes the results for `count` weights, whose column is the first, and `rows` inputs from row `first_row` on, scaled.
///
/// # Safety
/// The places of these outputs must be writable.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn write(results: &Results, count: usize, rows: usize, out: Out<'_>, first_row: usize, column: usize) {
    let mut by_weight = [_mm512_setzero_si512(); TILE_ROWS];
    for n in 0..TILE_ROWS {
        // SAFETY: sixteen values.
        by_weight[n] = unsafe { _mm512_loadu_si512(results[n].as_ptr().cast()) };
    }
    let by_row = transposed(by_weight);
    let scale = _mm512_set1_ps(out.scale());
    let mask = !(!0u32 << count) as u16;
    for t in 0..TILE_ROWS {
        if t < rows {
            let values = _mm512_mul_ps(_mm512_castsi512_ps(by_row[t]), scale); // exact when the scale is 1
            // SAFETY: a masked store touches only the `count` lanes whose bit is set.
            unsafe { _mm512_mask_storeu_ps(out.at(first_row + t, column), mask, values) };
        }
    }
}

/// The transposed matrix of sixteen rows of sixteen 32-bit values.
#[target_feature(enable = "avx512f")]
#[inline]
fn transposed(rows: [__m512i; 16]) -> [__m512i; 16] {
    // First in blocks of 4 x 4: quads[4 i + j] has, in its part l, column 4 l + j of the rows 4 i .. 4 i + 4.
    let mut quads = rows;
    for i in 0..4 {
        let (a, b, c, d) = (rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3]);
        let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        quads[4 * i] = _mm512_unpacklo_epi64(ab_low, cd_low);
        quads[4 * i + 1] = _mm512_unpackhi_epi64(ab_low, cd_low);
        quads[4 * i + 2] = _mm512_unpacklo_epi64(ab_high, cd_high);
        quads[4 * i + 3] = _mm512_unpackhi_epi64(ab_high, cd_high);
    }
    // Then the blocks: EVEN takes the parts 0 and 2 of both operands, ODD the parts 1 and 3.
    const EVEN: i32 = 0b10_00_10_00;
    const ODD: i32 = 0b11_01_11_01;
    let mut columns = rows;
    for j in 0..4 {
        let (a, b, c, d) = (quads[j], quads[4 + j], quads[8 + j], quads[12 + j]);
        let (ab_even, ab_odd) = (_mm512_shuffle_i32x4::<EVEN>(a, b), _mm512_shuffle_i32x4::<ODD>(a, b));
        let (cd_even, cd_odd) = (_mm512_shuffle_i32x4::<EVEN>(c, d), _mm512_shuffle_i32x4::<ODD>(c, d));
        columns[j] = _mm512_shuffle_i32x4::<EVEN>(ab_even, cd_even);
        columns[4 + j] = _mm512_shuffle_i32x4::<EVEN>(ab_odd, cd_odd);
        columns[8 + j] = _mm512_shuffle_i32x4::<ODD>(ab_even, cd_even);
        columns[12 + j] = _mm512_shuffle_i32x4::<ODD>(ab_odd, cd_odd);
    }
    columns
}
