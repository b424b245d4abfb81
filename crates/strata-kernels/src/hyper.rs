//! Hyper-connections between the residual streams and the layers (spec 6.1). The products in the middle of a read are
//! ordinary matrix products, and its norm is [`grouped_rms`](crate::norm::grouped_rms); here is what surrounds them.

use crate::Cpu;
use crate::math::{sigmoid, silu};
use crate::pool::DisjointMut;
use crate::vector::{Lanes, add_product, dispatch};

/// Values of an elementwise operation that a thread takes at least: about a microsecond's work.
const VALUES_GRAIN: usize = 2048;

/// `a = silu(down / S)`, in place.
pub fn gate_activation(cpu: &Cpu, down: &mut [f32], streams: usize) {
    let scale = 1.0 / streams as f32;
    let (len, down) = (down.len(), DisjointMut::new(down));
    cpu.for_ranges(len, VALUES_GRAIN, |range| {
        // SAFETY: the ranges do not overlap.
        silu_scaled(cpu.isa(), unsafe { down.part(range.start, range.len()) }, scale);
    });
}

dispatch! {
    fn silu_scaled = silu_scaled_body(values: &mut [f32], scale: f32)
}

#[inline(always)]
fn silu_scaled_body<V: Lanes, const FUSED: bool>(values: &mut [f32], scale: f32) {
    for v in values {
        *v = silu(*v * scale);
    }
}

/// `m = (1/S) sum_s (sigma(up) .* normed)[s]` for each row: `up` and `normed` are `[rows][S][hidden]`, `mixed` is
/// `[rows][hidden]`.
pub fn mix(cpu: &Cpu, up: &[f32], normed: &[f32], hidden: usize, mixed: &mut [f32]) {
    let rows = mixed.len() / hidden;
    let wide = normed.len() / rows.max(1);
    let fits = mixed.len() == rows * hidden && normed.len() == rows * wide && up.len() == normed.len();
    assert!(fits && wide.is_multiple_of(hidden), "mix: shapes differ");
    let parts = cpu.parts_of_rows(rows, hidden);
    let columns = hidden.div_ceil(parts);
    let mixed = DisjointMut::new(mixed);
    cpu.for_ranges(rows * parts, 1, |units| {
        for unit in units {
            let (t, first) = (unit / parts, unit % parts * columns);
            let len = columns.min(hidden - first);
            // SAFETY: these columns of row `t` are this unit's alone.
            let mixed = unsafe { mixed.part(t * hidden + first, len) };
            mix_columns(cpu.isa(), &up[t * wide..][..wide], &normed[t * wide..][..wide], hidden, first, mixed);
        }
    });
}

dispatch! {
    fn mix_columns = mix_columns_body(up: &[f32], normed: &[f32], hidden: usize, first: usize, mixed: &mut [f32])
}

#[inline(always)]
fn mix_columns_body<V: Lanes, const FUSED: bool>(
    up: &[f32],
    normed: &[f32],
    hidden: usize,
    first: usize,
    mixed: &mut [f32],
) {
    mixed.fill(0.0);
    for (up, normed) in up.chunks_exact(hidden).zip(normed.chunks_exact(hidden)) {
        for ((m, u), n) in mixed.iter_mut().zip(&up[first..]).zip(&normed[first..]) {
            *m = add_product::<FUSED>(*m, sigmoid(*u), *n);
        }
    }
    let scale = 1.0 / (up.len() / hidden) as f32;
    for m in mixed {
        *m *= scale;
    }
}

/// `b = 2 sigma(inject / S)` for each row of `streams` values, in place.
pub fn inject_weights(isa: crate::Isa, inject: &mut [f32], streams: usize) {
    inject_weights_scaled(isa, inject, 1.0 / streams as f32);
}

dispatch! {
    fn inject_weights_scaled = inject_weights_body(inject: &mut [f32], scale: f32)
}

#[inline(always)]
fn inject_weights_body<V: Lanes, const FUSED: bool>(inject: &mut [f32], scale: f32) {
    for v in inject {
        *v = 2.0 * sigmoid(*v * scale);
    }
}

/// Streams of a row that a thread takes at least.
const WRITE_GRAIN: usize = 2;

/// `X[s] <- X[s] + b[s] y` for each row, on the raw residual: `streams` is `[rows][S][hidden]`, `inject` `[rows][S]`, `y`
/// `[rows][hidden]`.
pub fn write(cpu: &Cpu, streams: &mut [f32], inject: &[f32], y: &[f32], hidden: usize) {
    let rows = y.len() / hidden;
    let count = inject.len() / rows.max(1);
    let fits = y.len() == rows * hidden && inject.len() == rows * count && streams.len() == rows * count * hidden;
    assert!(fits, "write: shapes differ");
    let streams = DisjointMut::new(streams);
    cpu.for_ranges(rows * count, WRITE_GRAIN, |units| {
        for unit in units {
            // SAFETY: this stream of this row is this unit's alone.
            let stream = unsafe { streams.part(unit * hidden, hidden) };
            add_scaled(cpu.isa(), stream, inject[unit], &y[unit / count * hidden..][..hidden]);
        }
    });
}

dispatch! {
    /// `x <- x + b y`.
    pub(crate) fn add_scaled = add_scaled_body(x: &mut [f32], b: f32, y: &[f32])
}

#[inline(always)]
fn add_scaled_body<V: Lanes, const FUSED: bool>(x: &mut [f32], b: f32, y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x = add_product::<FUSED>(*x, b, *y);
    }
}
