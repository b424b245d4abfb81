//! Gated DeltaNet (spec 6.2).

use std::ops::Range;

use strata_kernels::math::{sigmoid, softplus};
use strata_kernels::{Cpu, gdn, norm};

use super::Weights;
use super::pass::{Pass, Scratch};
use super::states::GdnState;
use crate::{Gdn, GdnForm};

pub(super) fn mix(
    cpu: &Cpu,
    weights: &Weights,
    pass: &mut Pass,
    rows: Range<usize>,
    layer: &Gdn,
    state: &mut GdnState,
    s: &mut Scratch,
) {
    let &Gdn { key_heads, value_heads, head_dim, eps, .. } = layer;
    let count = rows.len();
    let input = pass.mixed.rows(rows.clone());
    let (channels, values_wide) = (state.history.width, value_heads * head_dim);

    // Projections, convolution, and normalised queries and keys.
    let (u, c) = (&mut s.a, &mut s.b);
    weights.multiply(cpu, layer.qkv, input, u);
    c.resize(count * channels, 0.0);
    let taps = weights.vector(layer.conv);
    let reach = taps.len() / channels - 1;
    let query_scale = 1.0 / (head_dim as f32).sqrt();
    let (history, new) = (&state.history, &*u);
    cpu.for_rows(c, channels, |t, out| {
        let window: Vec<&[f32]> = (0..=reach).rev().map(|back| history.row(new, t, back)).collect();
        gdn::convolve(cpu.isa(), taps, &window, out);
        let (queries, rest) = out.split_at_mut(key_heads * head_dim);
        queries.chunks_exact_mut(head_dim).for_each(|q| norm::l2_in_place(q, query_scale));
        rest[..key_heads * head_dim].chunks_exact_mut(head_dim).for_each(|k| norm::l2_in_place(k, 1.0));
    });
    state.history.push(u);

    // Decay and write strength, by head.
    let (alpha, beta) = (&mut s.d, &mut s.e);
    weights.multiply(cpu, layer.alpha, input, alpha);
    weights.multiply(cpu, layer.beta, input, beta);
    let (a, dt_bias) = (weights.vector(layer.a), weights.vector(layer.dt_bias));
    let gates: Vec<(f32, f32)> = (0..value_heads * count)
        .map(|i| {
            let (h, at) = (i / count, i % count * value_heads + i / count);
            (a[h] * softplus(alpha[at] + dt_bias[h]), sigmoid(beta[at]))
        })
        .collect();

    // The recurrence of each head, outputs `[head][token][d]`.
    let by_head = &mut s.d;
    by_head.resize(count * values_wide, 0.0);
    let c = &*c;
    cpu.for_row_pairs((&mut state.matrix, head_dim * head_dim), (by_head, count * head_dim), |h, matrix, out| {
        let key_head = h % key_heads;
        let head = gdn::Head {
            rows: c,
            stride: channels,
            starts: [key_head * head_dim, (key_heads + key_head) * head_dim, (2 * key_heads + h) * head_dim],
            gates: &gates[h * count..][..count],
        };
        match layer.form {
            GdnForm::Recurrent => gdn::recurrent(cpu.isa(), &head, matrix, &mut vec![0.0; head_dim], out),
            GdnForm::Chunked => {
                let mut scratch = vec![0.0; gdn::chunked_scratch_len(head_dim, head_dim)];
                gdn::chunked(&head, matrix, &mut scratch, out);
            }
        }
    });

    // Output norm, gate, projection.
    let (z, gated) = (&mut s.a, &mut s.e);
    weights.multiply(cpu, layer.gate, input, z);
    gated.resize(count * values_wide, 0.0);
    let (z, by_head, gamma) = (&*z, &*by_head, weights.vector(layer.norm));
    cpu.for_rows(gated, values_wide, |t, row| {
        for (h, out) in row.chunks_exact_mut(head_dim).enumerate() {
            norm::rms(&by_head[(h * count + t) * head_dim..][..head_dim], gamma, eps, out);
        }
        for (o, z) in row.iter_mut().zip(&z[t * values_wide..]) {
            *o *= sigmoid(*z);
        }
    });
    let out = &mut s.f;
    weights.multiply(cpu, layer.out, gated, out);
    pass.output.rows_mut(rows).copy_from_slice(out);
}
