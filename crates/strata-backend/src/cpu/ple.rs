//! The n-gram module (spec 8).

use std::ops::Range;

use strata_kernels::conv::Window;
use strata_kernels::matmul::Matrix;
use strata_kernels::{Cpu, ple};

use super::Weights;
use super::kept::Kept;
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
    kept: &mut Kept,
    table_rows: &[u8],
    s: &mut Scratch,
) {
    let wide = pass.streams.width;
    let count = rows.len();
    let embedded_wide = weights.matrix(layer.key).cols();
    let (embedded, key, value) = (&mut s.a, &mut s.b, &mut s.c);
    embedded.resize(count * embedded_wide, 0.0);
    let table_rows = Matrix::new(layer.row_type, count, embedded_wide, 1.0, table_rows);
    cpu.for_rows(embedded, embedded_wide, |t, row| table_rows.decode(cpu.isa(), t, row));
    let input = s.inputs.inputs(cpu, embedded, embedded_wide);
    weights.multiply_of(cpu, layer.key, &input, key);
    weights.multiply_of(cpu, layer.value, &input, value);

    // Gates, and what goes into the convolution.
    let (gates, new) = (&mut s.d, &mut s.e);
    gates.resize(count * pass.shape.streams, 0.0);
    new.resize(count * wide, 0.0);
    let [key_norm, query_norm, conv_norm] =
        [layer.norm_key, layer.norm_query, layer.norm_conv].map(|v| weights.vector(v));
    let gammas = ple::Gammas { key: key_norm, query: query_norm, conv: conv_norm };
    let residual = pass.streams.rows(rows.clone());
    ple::gates(cpu, &gammas, layer.eps, key, residual, value, gates, new);

    // Convolution, and both onto the streams.
    let taps = weights.vector(layer.conv);
    let (old, rows_in) = (&*history, &*new);
    let window = |t| Window::new(taps.len() / wide, |tap| old.row(rows_in, t, tap * layer.dilation));
    ple::add(cpu, taps, window, gates, value, pass.streams.rows_mut(rows));
    new.chunks_exact(wide).take(kept.wanted(count)).for_each(|row| kept.push([row]));
    history.push(new);
}
