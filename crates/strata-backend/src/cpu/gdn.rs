//! Gated DeltaNet (spec 6.2).

use std::ops::Range;

use strata_kernels::conv::Window;
use strata_kernels::{Cpu, gdn};

use super::Weights;
use super::kept::{Kept, keep_gdn};
use super::pass::{Pass, Scratch};
use super::states::GdnState;
use crate::{Gdn, GdnForm};

pub(super) fn mix(
    cpu: &Cpu,
    weights: &Weights,
    pass: &mut Pass,
    rows: Range<usize>,
    layer: &Gdn,
    (state, kept): (&mut GdnState, &mut Kept),
    s: &mut Scratch,
) {
    let &Gdn { key_heads, value_heads, head_dim, eps, .. } = layer;
    let count = rows.len();
    let input = s.inputs.inputs(cpu, pass.mixed.rows(rows.clone()), pass.shape.hidden);
    let channels = state.history.width;
    let (keys_len, values_len) = (count * key_heads * head_dim, count * value_heads * head_dim);

    // Projections, convolution, and normalised queries and keys.
    let (new, convolved) = (&mut s.a, &mut s.b);
    weights.multiply_of(cpu, layer.qkv, &input, new);
    convolved.resize(count * channels, 0.0);
    let taps = weights.vector(layer.conv);
    let (history, rows_in) = (&state.history, &*new);
    let window = |t| Window::new(taps.len() / channels, |back| history.row(rows_in, t, back));
    let shape = gdn::HeadShape { key_heads, value_heads, dim: head_dim };
    gdn::convolve_heads(cpu, shape, taps, window, convolved);
    state.history.push(new);

    // The recurrence, outputs `[head][token][d]`.
    let (alpha, beta, by_head) = (&mut s.c, &mut s.d, &mut s.e);
    weights.multiply_of(cpu, layer.alpha, &input, alpha);
    weights.multiply_of(cpu, layer.beta, &input, beta);
    gdn::gates(cpu, weights.vector(layer.a), weights.vector(layer.dt_bias), alpha, beta);
    keep_gdn(kept, (new, channels), (convolved, head_dim), (alpha, beta), count);
    by_head.resize(values_len, 0.0);
    let (queries, rest) = convolved.split_at(keys_len);
    let (keys, values) = rest.split_at(keys_len);
    let strip = gdn::Strip { queries, keys, values, log_decay: alpha, beta, key_heads, value_heads };
    match layer.form {
        GdnForm::Recurrent => gdn::recurrent(cpu, &strip, &mut state.matrix, by_head),
        GdnForm::Chunked => gdn::chunked(cpu, &strip, &mut state.matrix, by_head),
    }

    // Output norm, gate, projection.
    let (z, gated) = (&mut s.a, &mut s.b);
    weights.multiply_of(cpu, layer.gate, &input, z);
    gated.resize(values_len, 0.0);
    gdn::norm_and_gate(cpu, by_head, value_heads, weights.vector(layer.norm), eps, z, gated);
    let out = &mut s.c;
    weights.multiply(cpu, layer.out, gated, out);
    pass.output.rows_mut(rows).copy_from_slice(out);
}
