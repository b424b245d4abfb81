//! Rows of inputs times a matrix of quantised weights.
//!
//! A panel of weight rows is decoded once into float32 and multiplied with every input row. How rows are grouped into
//! tiles depends on their number; the arithmetic of one output value does not.

use strata_gguf::TensorType;

use crate::decode::decode_blocks;
use crate::pool::DisjointMut;
use crate::vector::{Lanes, dispatch, dots};
use crate::{Cpu, Isa};

/// A matrix as a file stores it: `rows` rows of `cols` weights each.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    ty: TensorType,
    rows: usize,
    cols: usize,
    scale: f32,
    bytes: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// A view of `bytes` as a `rows x cols` matrix of type `ty`, whose products are multiplied by `scale`.
    ///
    /// # Panics
    /// When the bytes are not exactly those of such a matrix; shapes are checked when a model is loaded.
    pub fn new(ty: TensorType, rows: usize, cols: usize, scale: f32, bytes: &'a [u8]) -> Self {
        let row_bytes = ty.row_bytes(cols as u64).expect("a row is a whole number of blocks") as usize;
        assert_eq!(bytes.len(), rows * row_bytes, "bytes of a {rows} x {cols} matrix of {ty}");
        Self { ty, rows, cols, scale, bytes }
    }

    /// Weight rows, the length of an output row.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Weights in a row, the length of an input row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Decodes the rows `first .. first + out.len() / cols` into `out`, without the scale. The bits do not depend on `isa`.
    pub fn decode(&self, isa: Isa, first: usize, out: &mut [f32]) {
        let row_bytes = self.bytes.len() / self.rows;
        let count = out.len() / self.cols;
        decode_blocks(isa, self.ty, &self.bytes[first * row_bytes..(first + count) * row_bytes], out);
    }
}

/// Weight rows decoded together.
const PANEL_ROWS: usize = 16;
/// Below this many multiplications, waking other threads costs more than it saves.
const SMALL_PRODUCT: usize = 1 << 17;
/// Rows of weights and of inputs in one register tile.
const TILE: usize = 4;

/// `y[t][n] = scale sum_k w[n][k] x[t][k]` for `rows` input rows.
///
/// `x` is `[rows][w.cols]`; `y` is `[rows][w.rows]`, all of it written.
pub fn matmul(cpu: &Cpu, w: &Matrix<'_>, x: &[f32], y: &mut [f32]) {
    let rows = x.len() / w.cols;
    assert!(x.len() == rows * w.cols && y.len() == rows * w.rows, "matmul: shapes differ");
    let out = DisjointMut::new(y);
    let small = w.rows * w.cols * rows.max(4) < SMALL_PRODUCT;
    cpu.pool.run(
        w.rows.div_ceil(PANEL_ROWS),
        small,
        || vec![0.0; PANEL_ROWS * w.cols],
        |panel: &mut Vec<f32>, task| {
            // SAFETY: this task alone writes the columns of its panel, in any row.
            unsafe { multiply_rows(cpu.isa(), w, task * PANEL_ROWS, x, &out, panel) };
        },
    );
}

/// [`matmul`] on the caller's thread, through a caller's panel buffer of at least [`panel_len`] values.
pub(crate) fn matmul_here(isa: Isa, w: &Matrix<'_>, x: &[f32], y: &mut [f32], panel: &mut [f32]) {
    let rows = x.len() / w.cols;
    assert!(x.len() == rows * w.cols && y.len() == rows * w.rows, "matmul: shapes differ");
    let out = DisjointMut::new(y);
    for first in (0..w.rows).step_by(PANEL_ROWS) {
        // SAFETY: one thread.
        unsafe { multiply_rows(isa, w, first, x, &out, panel) };
    }
}

/// Decodes the panel of weight rows that begins at `first` and multiplies it with all input rows, into `[rows][w.rows]`.
///
/// # Safety
/// Nobody else may use these columns of the output meanwhile.
unsafe fn multiply_rows(
    isa: Isa,
    w: &Matrix<'_>,
    first: usize,
    x: &[f32],
    out: &DisjointMut<'_, f32>,
    panel: &mut [f32],
) {
    let count = PANEL_ROWS.min(w.rows - first);
    let panel = &mut panel[..count * w.cols];
    w.decode(isa, first, panel);
    multiply_panel(isa, panel, count, x, &|t, n, values| {
        // SAFETY: by the caller's promise nobody else uses the part, and it is dropped before the next is taken.
        put(unsafe { out.part(t * w.rows + first + n, values.len()) }, values, w.scale);
    });
}

/// Length of the panel buffer for matrices with up to `cols` columns.
pub(crate) fn panel_len(cols: usize) -> usize {
    PANEL_ROWS * cols
}

/// Receives, for input row `t`, the outputs `n, n + 1, ...` of the panel.
type Store<'a> = &'a dyn Fn(usize, usize, &[f32]);

fn put(out: &mut [f32], values: &[f32], scale: f32) {
    for (o, v) in out.iter_mut().zip(values) {
        *o = v * scale; // exact when the scale is 1
    }
}

dispatch! {
    /// Multiplies `count` decoded weight rows with all input rows.
    fn multiply_panel = multiply_panel_body(panel: &[f32], count: usize, x: &[f32], store: Store<'_>)
}

#[inline(always)]
fn multiply_panel_body<V: Lanes, const FUSED: bool>(panel: &[f32], count: usize, x: &[f32], store: Store<'_>) {
    let cols = panel.len() / count;
    let rows = x.len() / cols;
    let w_row = |n: usize| panel[n * cols..][..cols].as_ptr();
    let x_row = |t: usize| x[t * cols..][..cols].as_ptr();
    let mut t = 0;
    while t + TILE <= rows {
        let xs = [x_row(t), x_row(t + 1), x_row(t + 2), x_row(t + 3)];
        let mut n = 0;
        while n + TILE <= count {
            let ws = [w_row(n), w_row(n + 1), w_row(n + 2), w_row(n + 3)];
            // SAFETY: every row is `cols` long; `dispatch` vouches for the instructions.
            let tile = unsafe { dots::<V, FUSED, TILE, TILE>(ws, xs, cols) };
            for c in 0..TILE {
                store(t + c, n, &[tile[0][c], tile[1][c], tile[2][c], tile[3][c]]);
            }
            n += TILE;
        }
        while n < count {
            // SAFETY: as above.
            let tile = unsafe { dots::<V, FUSED, 1, TILE>([w_row(n)], xs, cols) };
            for (c, value) in tile[0].iter().enumerate() {
                store(t + c, n, &[*value]);
            }
            n += 1;
        }
        t += TILE;
    }
    while t < rows {
        let mut n = 0;
        while n + TILE <= count {
            let ws = [w_row(n), w_row(n + 1), w_row(n + 2), w_row(n + 3)];
            // SAFETY: as above.
            let tile = unsafe { dots::<V, FUSED, TILE, 1>(ws, [x_row(t)], cols) };
            store(t, n, &[tile[0][0], tile[1][0], tile[2][0], tile[3][0]]);
            n += TILE;
        }
        while n < count {
            // SAFETY: as above.
            let tile = unsafe { dots::<V, FUSED, 1, 1>([w_row(n)], [x_row(t)], cols) };
            store(t, n, &tile[0]);
            n += 1;
        }
        t += 1;
    }
}
