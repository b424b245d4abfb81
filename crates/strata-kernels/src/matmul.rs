//! Rows of inputs times a matrix of quantised weights.
//!
//! A panel of weight rows is decoded once and multiplied with every input row. Where weights are already as the products
//! want them, nothing is decoded.

use strata_gguf::TensorType;

use crate::decode::{decode_blocks, decode_blocks_to_bfloat16};
use crate::inputs::{Form, Inputs, grown};
#[cfg(target_arch = "x86_64")]
use crate::products::bfloat16::{MOST_DECODED_ROWS, multiply_blocks};
use crate::products::{LINE, Line, Out, WeightRows, float32, values_mut};
use crate::scratch::Scratch;
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
        decode_blocks(isa, self.ty, self.row_blocks(first, out.len() / self.cols), out);
    }

    /// The blocks of `count` rows.
    fn row_blocks(&self, first: usize, count: usize) -> &'a [u8] {
        let row_bytes = self.bytes.len() / self.rows;
        &self.bytes[first * row_bytes..(first + count) * row_bytes]
    }
}

/// Weight rows of a task.
pub(crate) const PANEL_ROWS: usize = 32;
/// Below this many multiplications, waking other threads costs more than it saves.
const SMALL_PRODUCT: usize = 1 << 17;

/// `y[t][n] = scale sum_k w[n][k] x[t][k]` for all input rows, in the arithmetic of `cpu`.
///
/// `x` is `[rows][w.cols]`; `y` is `[rows][w.rows]`, all of it written.
///
/// # Panics
/// When shapes do not fit together.
pub fn matmul(cpu: &Cpu, w: &Matrix<'_>, x: &[f32], y: &mut [f32]) {
    // Taken out of the scratch: this thread's tasks will want the rest of it.
    let mut inputs = std::mem::take(&mut Scratch::of_thread().inputs);
    matmul_of(cpu, w, &inputs.inputs(cpu, x, w.cols), y);
    Scratch::of_thread().inputs = inputs;
}

/// [`matmul`] of inputs that are ready: several products may read them.
///
/// # Panics
/// When shapes do not fit together, or the inputs were rounded for another arithmetic than that of `cpu`.
pub fn matmul_of(cpu: &Cpu, w: &Matrix<'_>, x: &Inputs<'_>, y: &mut [f32]) {
    assert!(x.cols == w.cols && y.len() == x.rows * w.rows, "matmul: shapes differ");
    assert!(x.fits(cpu.products()), "matmul: inputs of another arithmetic");
    let small = w.rows * w.cols * x.rows.max(4) < SMALL_PRODUCT;
    let out = Out::new(y, w.rows);
    cpu.pool.run(w.rows.div_ceil(PANEL_ROWS), small, Scratch::of_thread, |scratch, task| {
        // SAFETY: this task alone writes the columns of its panel, in any row.
        unsafe { multiply_panel(cpu.isa(), w, task * PANEL_ROWS, x, out, &mut scratch.panel) };
    });
}

/// Decoded weight rows, kept between panels.
#[derive(Default)]
pub(crate) struct Panel {
    floats: Vec<f32>,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    lines: Vec<Line>,
}

/// Multiplies the panel of weight rows that begins at `first` with all input rows, into the columns of these weight rows.
///
/// # Safety
/// These columns of the output must be writable for every input row, and nobody else's meanwhile.
pub(crate) unsafe fn multiply_panel(
    isa: Isa,
    w: &Matrix<'_>,
    first: usize,
    x: &Inputs<'_>,
    out: Out<'_>,
    panel: &mut Panel,
) {
    if x.rows == 0 {
        return; // nothing to decode for, and an output that has no columns
    }
    let end = w.rows.min(first + PANEL_ROWS);
    // With few inputs the decoded rows are read once: then the fewer there are, the nearer they still lie. Unless they
    // are never written, or sixteen inputs cost as much as one.
    let step = match x.form {
        #[cfg(target_arch = "x86_64")]
        Form::Packed(_) => PANEL_ROWS,
        #[cfg(target_arch = "x86_64")]
        Form::Lines(_) if x.rows <= MOST_DECODED_ROWS => PANEL_ROWS,
        _ if x.rows < 8 => 4,
        _ => PANEL_ROWS,
    };
    for n in (first..end).step_by(step) {
        let count = step.min(end - n);
        // SAFETY: the caller's promise, for some of its columns.
        let out = unsafe { out.columns(n) }.scaled(w.scale);
        match x.form {
            Form::Floats(x) => {
                let floats = grown(&mut panel.floats, count * w.cols, 0.0);
                w.decode(isa, n, floats);
                // SAFETY: as above.
                unsafe { float32::multiply(isa, floats, count, x, out) };
            }
            #[cfg(target_arch = "x86_64")]
            Form::Lines(lines) if x.rows <= MOST_DECODED_ROWS && w.cols.is_multiple_of(LINE) => {
                let blocks = w.row_blocks(n, count);
                // SAFETY: as above; inputs have this form where the processor has AVX-512 with BF16.
                unsafe { multiply_blocks(w.ty, blocks, count, lines, w.cols / LINE, out) };
            }
            #[cfg(target_arch = "x86_64")]
            Form::Lines(x) => {
                let rows = weight_rows(isa, w, n, count, panel);
                // SAFETY: as above; inputs have this form where the processor has AVX-512 with BF16.
                unsafe { crate::products::bfloat16::multiply(rows, x, w.cols.div_ceil(LINE), out) };
            }
            #[cfg(target_arch = "x86_64")]
            Form::Packed(packed) => {
                let rows = weight_rows(isa, w, n, count, panel);
                // SAFETY: as above; inputs have this form where the processor has tiles.
                unsafe { crate::amx::multiply(rows, packed, x.rows, out) };
            }
        }
    }
}

/// Weight rows in bfloat16: where the file has them so, in place; else decoded and padded to whole lines.
#[cfg(target_arch = "x86_64")]
fn weight_rows<'p>(isa: Isa, w: &Matrix<'p>, first: usize, count: usize, panel: &'p mut Panel) -> WeightRows<'p> {
    let blocks = w.row_blocks(first, count);
    if w.ty == TensorType::BF16 && w.cols.is_multiple_of(LINE) {
        return WeightRows::new(blocks, count);
    }
    let lines = grown(&mut panel.lines, count * w.cols.div_ceil(LINE), Line::ZERO);
    if w.cols.is_multiple_of(LINE) {
        decode_blocks_to_bfloat16(isa, w.ty, blocks, values_mut(lines));
    } else {
        let rows = blocks.chunks_exact(blocks.len() / count);
        for (blocks, row) in rows.zip(lines.chunks_exact_mut(w.cols.div_ceil(LINE))) {
            row[w.cols / LINE] = Line::ZERO;
            decode_blocks_to_bfloat16(isa, w.ty, blocks, &mut values_mut(row)[..w.cols]);
        }
    }
    WeightRows::of_lines(lines, count)
}
