//! The n-gram module (spec 8).

use std::ops::Range;

use strata_kernels::{Cpu, dot, gdn, norm, ple};
use strata_quant::decode_row;

use super::Weights;
use super::pass::{Pass, Scratch};
use super::states::History;
use crate::Ple;

#[allow(clippy::too_many_arguments)] // one caller, which takes them all from the backend
pub(super) fn add_ngrams(
    cpu: &Cpu,
    weights: &Weights,
    pass: &mut Pass,
    rows: Range<usize>,
    layer: &Ple,
    history: &mut History,
    table_rows: &[u8],
    s: &mut Scratch,
) {
    let (hidden, wide, streams) = (pass.shape.hidden, pass.streams.width, pass.shape.streams);
    let count = rows.len();
    let embedded_wide = weights.matrix(layer.key).cols();
    let (embedded, key, value) = (&mut s.a, &mut s.b, &mut s.c);
    embedded.resize(count * embedded_wide, 0.0);
    decode_row(layer.row_type, table_rows, embedded);
    weights.multiply(cpu, layer.key, embedded, key);
    weights.multiply(cpu, layer.value, embedded, value);

    // Gates, and what goes into the convolution.
    let (gates, into_conv) = (&mut s.d, &mut s.e);
    gates.resize(count * streams, 0.0);
    into_conv.resize(count * wide, 0.0);
    let (residual, key, value) = (pass.streams.rows(rows.clone()), &*key, &*value);
    let [norm_key, norm_query, norm_conv] =
        [layer.norm_key, layer.norm_query, layer.norm_conv].map(|v| weights.vector(v));
    cpu.for_row_pairs((gates, streams), (into_conv, wide), |t, gates, into_conv| {
        let (mut k, mut q) = (vec![0.0; hidden], vec![0.0; hidden]);
        for (stream, (gate, out)) in gates.iter_mut().zip(into_conv.chunks_exact_mut(hidden)).enumerate() {
            let (from, at) = (stream * hidden, t * wide + stream * hidden);
            norm::rms(&key[at..at + hidden], &norm_key[from..from + hidden], layer.eps, &mut k);
            norm::rms(&residual[at..at + hidden], &norm_query[from..from + hidden], layer.eps, &mut q);
            *gate = ple::gate(dot(cpu.isa(), &k, &q), hidden);
            for (o, v) in k.iter_mut().zip(&value[t * hidden..]) {
                *o = *gate * v;
            }
            norm::rms(&k, &norm_conv[from..from + hidden], layer.eps, out);
        }
    });

    // Convolution, and both onto the streams.
    let taps = weights.vector(layer.conv);
    let reach = taps.len() / wide - 1;
    let (gates, new, old) = (&*gates, &*into_conv, &*history);
    cpu.for_rows_with(
        pass.streams.rows_mut(rows),
        wide,
        || vec![0.0; wide],
        |convolved, t, residual| {
            let window: Vec<&[f32]> = (0..=reach).rev().map(|tap| old.row(new, t, tap * layer.dilation)).collect();
            gdn::convolve(cpu.isa(), taps, &window, convolved);
            for (stream, (x, c)) in residual.chunks_exact_mut(hidden).zip(convolved.chunks_exact(hidden)).enumerate() {
                let gate = gates[t * streams + stream];
                for ((x, c), v) in x.iter_mut().zip(c).zip(&value[t * hidden..]) {
                    *x = (*x + gate * v) + c;
                }
            }
        },
    );
    history.push(into_conv);
}
