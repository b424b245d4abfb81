//! Input rows in the form that products want.
//!
//! Owns: rounding rows, once for all products that read them. Promises: a row's form does not depend on its neighbours.

use crate::Cpu;
#[cfg(target_arch = "x86_64")]
use crate::amx;
use crate::pool::DisjointMut;
use crate::products::{LINE, Line, Products};

/// Rows of inputs, ready for products.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) form: Form<'a>,
}

#[derive(Clone, Copy)]
pub(crate) enum Form<'a> {
    /// `[rows][cols]`.
    Floats(&'a [f32]),
    /// `[rows][lines of a row]`, the last line of a row padded with zeros.
    #[cfg(target_arch = "x86_64")]
    Lines(&'a [Line]),
    /// What [`amx::pack`] makes of rows.
    #[cfg(target_arch = "x86_64")]
    Packed(&'a [Line]),
}

impl<'a> Inputs<'a> {
    /// Rows of `cols` values for products in float32, whatever the arithmetic of the processor.
    ///
    /// # Panics
    /// When there is no whole number of rows.
    pub fn exact(x: &'a [f32], cols: usize) -> Self {
        let rows = x.len() / cols;
        assert_eq!(x.len(), rows * cols, "inputs: a whole number of rows of {cols}");
        Self { rows, cols, form: Form::Floats(x) }
    }

    /// Whether they have the form that these products want, or the exact one, which any can read.
    pub(crate) fn fits(&self, products: Products) -> bool {
        match self.form {
            Form::Floats(_) => true,
            #[cfg(target_arch = "x86_64")]
            Form::Lines(_) => products == Products::Dots,
            #[cfg(target_arch = "x86_64")]
            Form::Packed(_) => products == Products::Tiles,
        }
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

/// Room for input rows, kept between operations.
#[derive(Default)]
pub struct InputBuffer {
    floats: Vec<f32>,
    lines: Vec<Line>,
}

/// Rows that a task writes: those that lie together in every form.
const BLOCK_ROWS: usize = 16;

impl InputBuffer {
    /// The rows of `x`, of `cols` values each, for products in the arithmetic of `cpu`.
    ///
    /// # Panics
    /// When there is no whole number of rows.
    pub fn inputs<'a>(&'a mut self, cpu: &Cpu, x: &'a [f32], cols: usize) -> Inputs<'a> {
        let exact = Inputs::exact(x, cols);
        let products = cpu.products();
        if products == Products::Float32 {
            return exact;
        }
        let out = DisjointMut::new(grown(&mut self.lines, Self::len(products, exact.rows, cols), Line::ZERO));
        let block_len = Self::len(products, BLOCK_ROWS, cols);
        let write = |_: &mut (), block: usize| {
            let first = block * BLOCK_ROWS;
            let rows = BLOCK_ROWS.min(exact.rows - first);
            // SAFETY: this task alone writes its rows.
            let out = unsafe { out.part(block * block_len, Self::len(products, rows, cols)) };
            write_lines(products, out, rows, cols, |row| &x[(first + row) * cols..][..cols]);
        };
        cpu.pool.run(exact.rows.div_ceil(BLOCK_ROWS), exact.rows * cols < 1 << 16, || (), write);
        self.view(products, 0, exact.rows, cols)
    }

    /// Places (floats or lines) that `rows` rows take.
    pub(crate) fn len(products: Products, rows: usize, cols: usize) -> usize {
        match products {
            Products::Float32 => rows * cols,
            #[cfg(target_arch = "x86_64")]
            Products::Dots => rows * cols.div_ceil(LINE),
            #[cfg(target_arch = "x86_64")]
            Products::Tiles => amx::packed_lines(rows, cols),
        }
    }

    /// Makes room for this many places.
    pub(crate) fn reserve(&mut self, products: Products, len: usize) {
        match products {
            Products::Float32 => _ = grown(&mut self.floats, len, 0.0),
            #[cfg(target_arch = "x86_64")]
            Products::Dots | Products::Tiles => _ = grown(&mut self.lines, len, Line::ZERO),
        }
    }

    /// Writes `rows` rows of `cols` values, from place `at` on.
    pub(crate) fn write<'x>(
        &mut self,
        products: Products,
        at: usize,
        rows: usize,
        cols: usize,
        row: impl Fn(usize) -> &'x [f32],
    ) {
        let len = Self::len(products, rows, cols);
        match products {
            Products::Float32 => {
                for (r, out) in self.floats[at..at + len].chunks_exact_mut(cols).enumerate() {
                    out.copy_from_slice(row(r));
                }
            }
            #[cfg(target_arch = "x86_64")]
            Products::Dots | Products::Tiles => write_lines(products, &mut self.lines[at..at + len], rows, cols, row),
        }
    }

    /// The `rows` rows that were written at place `at`.
    pub(crate) fn view(&self, products: Products, at: usize, rows: usize, cols: usize) -> Inputs<'_> {
        let len = Self::len(products, rows, cols);
        let form = match products {
            Products::Float32 => Form::Floats(&self.floats[at..at + len]),
            #[cfg(target_arch = "x86_64")]
            Products::Dots => Form::Lines(&self.lines[at..at + len]),
            #[cfg(target_arch = "x86_64")]
            Products::Tiles => Form::Packed(&self.lines[at..at + len]),
        };
        Inputs { rows, cols, form }
    }
}

fn write_lines<'x>(products: Products, out: &mut [Line], rows: usize, cols: usize, row: impl Fn(usize) -> &'x [f32]) {
    match products {
        Products::Float32 => unreachable!("float32 rows are not rounded"),
        #[cfg(target_arch = "x86_64")]
        Products::Dots => {
            for (r, out) in out.chunks_exact_mut(cols.div_ceil(LINE)).enumerate() {
                // SAFETY: a processor with these products has AVX-512 with BF16.
                unsafe { crate::products::bfloat16::round_row(row(r), out) }
            }
        }
        #[cfg(target_arch = "x86_64")]
        Products::Tiles => amx::pack(rows, cols, row, out),
    }
}

/// The first `len` of a buffer that grows when it must.
pub(crate) fn grown<T: Copy>(buffer: &mut Vec<T>, len: usize, blank: T) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, blank);
    }
    &mut buffer[..len]
}
