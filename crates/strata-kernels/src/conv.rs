//! Causal depthwise convolution with silu (spec 6.2 and 8), for a part of the channels of one row.

use crate::math::silu;
use crate::vector::{LANES, Lanes, add_product};

/// Most taps a convolution may have.
pub const MAX_TAPS: usize = 8;

/// The input rows that the taps of a convolution meet for one output row, oldest first.
pub struct Window<'a> {
    rows: [&'a [f32]; MAX_TAPS],
    taps: usize,
}

impl<'a> Window<'a> {
    /// `row(n)` is what the tap `n` taps before the last meets: the output row itself for 0.
    ///
    /// # Panics
    /// With more than [`MAX_TAPS`] taps.
    pub fn new(taps: usize, row: impl Fn(usize) -> &'a [f32]) -> Self {
        assert!(taps <= MAX_TAPS, "convolution with {taps} taps");
        let mut rows = [&[][..]; MAX_TAPS];
        for (tap, rows) in rows[..taps].iter_mut().enumerate() {
            *rows = row(taps - 1 - tap);
        }
        Self { rows, taps }
    }
}

/// `out[c] = silu(sum_k taps[k][c] * window[k][c])` for the channels from `first` on. `taps` is `[K][channels]`.
#[inline(always)]
pub(crate) fn convolve<V: Lanes, const FUSED: bool>(taps: &[f32], window: &Window<'_>, first: usize, out: &mut [f32]) {
    let rows = &window.rows[..window.taps];
    let channels = taps.len() / rows.len();
    assert!(taps.len() == rows.len() * channels && first + out.len() <= channels, "convolve: shapes differ");
    for row in rows {
        assert_eq!(row.len(), channels, "convolve: a row as wide as the taps");
    }
    let whole = out.len() / LANES * LANES;
    let mut at = 0;
    while at < whole {
        // SAFETY: `at + LANES <= out.len()`, and the channels from `first` on are in every row, by the assertions;
        // `dispatch` vouches for the instructions.
        unsafe {
            let mut sum = V::zero();
            for k in 0..rows.len() {
                let tap = V::load(taps.as_ptr().add(k * channels + first + at));
                sum = sum.add_product(tap, V::load(rows[k].as_ptr().add(first + at)));
            }
            sum.store(out.as_mut_ptr().add(at));
        }
        at += LANES;
    }
    for at in whole..out.len() {
        out[at] = 0.0;
        for k in 0..rows.len() {
            out[at] = add_product::<FUSED>(out[at], taps[k * channels + first + at], rows[k][first + at]);
        }
    }
    for v in out {
        *v = silu(*v);
    }
}
