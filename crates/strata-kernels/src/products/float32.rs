//! Float32 products, in the sums of [`crate::vector`].

use super::Out;
use crate::Isa;
use crate::vector::{Lanes, dispatch, dots};

/// Multiplies `count` decoded weight rows with all input rows.
///
/// # Safety
/// The places of all outputs (input rows x weight rows) must be writable and nobody else's.
pub(crate) unsafe fn multiply(isa: Isa, panel: &[f32], count: usize, x: &[f32], out: Out<'_>) {
    vouched_for(isa, panel, count, x, out);
}

dispatch! {
    /// [`multiply`], for `dispatch`, which makes safe functions.
    fn vouched_for = multiply_body(panel: &[f32], count: usize, x: &[f32], out: Out<'_>)
}

#[inline(always)]
fn multiply_body<V: Lanes, const FUSED: bool>(panel: &[f32], count: usize, x: &[f32], out: Out<'_>) {
    // SAFETY: the promise of the caller of `multiply`; `dispatch` vouches for the instructions.
    unsafe {
        match V::REGISTERS {
            // Tiles that fill 32 registers, and 16.
            1 => multiply_in_tiles::<V, FUSED, 4, 6>(panel, count, x, out),
            _ => multiply_in_tiles::<V, FUSED, 2, 3>(panel, count, x, out),
        }
    }
}

/// # Safety
/// As [`multiply`]; the processor must have the instructions of `V`.
#[inline(always)]
unsafe fn multiply_in_tiles<V: Lanes, const FUSED: bool, const R: usize, const C: usize>(
    panel: &[f32],
    count: usize,
    x: &[f32],
    out: Out<'_>,
) {
    let cols = panel.len() / count;
    let rows = x.len() / cols;
    let (w, x) = (panel.as_ptr(), x.as_ptr());
    // SAFETY: every tile lies inside of the weight and input rows, whose outputs are the caller's.
    unsafe {
        let mut t = 0;
        while t + C <= rows {
            let mut n = 0;
            while n + R <= count {
                tile::<V, FUSED, R, C>(w.add(n * cols), x.add(t * cols), cols, out, t, n);
                n += R;
            }
            while n < count {
                tile::<V, FUSED, 1, C>(w.add(n * cols), x.add(t * cols), cols, out, t, n);
                n += 1;
            }
            t += C;
        }
        while t < rows {
            let mut n = 0;
            while n + R <= count {
                tile::<V, FUSED, R, 1>(w.add(n * cols), x.add(t * cols), cols, out, t, n);
                n += R;
            }
            while n < count {
                tile::<V, FUSED, 1, 1>(w.add(n * cols), x.add(t * cols), cols, out, t, n);
                n += 1;
            }
            t += 1;
        }
    }
}

/// `R` weight rows, from row `n` of the panel on, with `C` input rows from row `t` on.
///
/// # Safety
/// As [`multiply_in_tiles`], for these rows and outputs.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // in registers
unsafe fn tile<V: Lanes, const FUSED: bool, const R: usize, const C: usize>(
    w: *const f32,
    x: *const f32,
    cols: usize,
    out: Out<'_>,
    t: usize,
    n: usize,
) {
    // SAFETY: as above.
    unsafe {
        let mut ws = [w; R];
        for r in 0..R {
            ws[r] = w.add(r * cols);
        }
        let mut xs = [x; C];
        for c in 0..C {
            xs[c] = x.add(c * cols);
        }
        let values = dots::<V, FUSED, R, C>(ws, xs, cols);
        for c in 0..C {
            for r in 0..R {
                *out.at(t + c, n + r) = values[r][c] * out.scale();
            }
        }
    }
}
