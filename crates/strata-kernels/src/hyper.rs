//! Hyper-connections between the residual streams and the layers (spec 6.1). The two products in the middle of a read
//! are ordinary matrix products; here is what surrounds them, for one row.

use crate::math::{sigmoid, silu};
use crate::vector::{Lanes, add_product, dispatch};

/// `a = silu(down / S)`, in place.
pub fn gate_activation(down: &mut [f32], streams: usize) {
    let scale = 1.0 / streams as f32;
    down.iter_mut().for_each(|v| *v = silu(*v * scale));
}

dispatch! {
    /// `m = (1/S) sum_s (sigma(up) .* normed)[s]`: `up` and `normed` are `[S][hidden]`, `mixed` is `[hidden]`.
    pub fn mix = mix_body(up: &[f32], normed: &[f32], mixed: &mut [f32])
}

#[inline(always)]
fn mix_body<V: Lanes, const FUSED: bool>(up: &[f32], normed: &[f32], mixed: &mut [f32]) {
    let width = mixed.len();
    let streams = normed.len() / width;
    assert!(normed.len() == streams * width && up.len() == normed.len(), "mix: shapes differ");
    mixed.fill(0.0);
    for (up, normed) in up.chunks_exact(width).zip(normed.chunks_exact(width)) {
        for ((m, u), n) in mixed.iter_mut().zip(up).zip(normed) {
            *m = add_product::<FUSED>(*m, sigmoid(*u), *n);
        }
    }
    let scale = 1.0 / streams as f32;
    mixed.iter_mut().for_each(|m| *m *= scale);
}

/// `b = 2 sigma(inject / S)`, in place.
pub fn inject_weights(inject: &mut [f32]) {
    let scale = 1.0 / inject.len() as f32;
    inject.iter_mut().for_each(|v| *v = 2.0 * sigmoid(*v * scale));
}

/// `X[s] <- X[s] + b[s] y`: `streams` is `[S][hidden]`, on the raw residual.
pub fn write(streams: &mut [f32], inject: &[f32], y: &[f32]) {
    assert_eq!(streams.len(), inject.len() * y.len(), "write: shapes differ");
    for (stream, b) in streams.chunks_exact_mut(y.len()).zip(inject) {
        for (x, y) in stream.iter_mut().zip(y) {
            *x += b * y;
        }
    }
}
