//! What a draft head begins with (spec 11).

use std::ops::Range;

use strata_kernels::{Cpu, norm};

use super::Weights;
use super::kept::Kept;
use super::pass::{Pass, Scratch};
use crate::{BackendError, DraftInput};

/// Keeps the last row's streams, and tells all of them to whoever keeps rows.
pub(super) fn keep(streams: &[f32], last: &mut [f32], kept: &mut Kept) {
    let rows = streams.chunks_exact(last.len());
    let wanted = kept.wanted(rows.len());
    rows.clone().take(wanted).for_each(|row| kept.push([row]));
    if let Some(row) = rows.last() {
        last.copy_from_slice(row);
    }
}

#[allow(clippy::too_many_arguments)] // one caller, which takes them all from the backend
pub(super) fn input(
    cpu: &Cpu,
    weights: &Weights,
    pass: &mut Pass,
    rows: Range<usize>,
    layer: &DraftInput,
    before: Option<(&mut Vec<f32>, &mut Kept)>,
    ids: &[u32],
    s: &mut Scratch,
) -> Result<(), BackendError> {
    let table = weights.matrix(layer.embedding);
    if let Some(&id) = ids.iter().find(|id| **id as usize >= table.rows()) {
        return Err(BackendError::NoSuchToken { id, rows: table.rows() });
    }
    let (hidden, wide, streams) = (pass.shape.hidden, pass.streams.width, pass.shape.streams);
    let (residual, normed, joined, embedded) = (&mut s.a, &mut s.b, &mut s.c, &mut s.d);
    residual.clear();
    match before {
        None => residual.extend_from_slice(pass.streams.rows(rows.clone())),
        Some((last, kept)) => {
            let streams = pass.streams.rows(rows.clone());
            residual.extend_from_slice(last);
            residual.extend_from_slice(&streams[..streams.len() - wide]);
            keep(streams, last, kept);
        }
    }
    normed.resize(residual.len(), 0.0);
    let group = if layer.is_grouped { hidden } else { wide };
    norm::grouped_rms(cpu, residual, weights.vector(layer.streams_norm), group, layer.eps, normed);

    embedded.resize(ids.len() * hidden, 0.0);
    cpu.for_rows(embedded, hidden, |row, out| table.decode(cpu.isa(), ids[row] as usize, out));
    let gamma = weights.vector(layer.embedding_norm);
    embedded.chunks_exact_mut(hidden).for_each(|row| norm::rms_in_place(row, gamma, layer.eps));

    joined.clear();
    for (row, embedding) in normed.chunks_exact(wide).zip(embedded.chunks_exact(hidden)) {
        for stream in row.chunks_exact(hidden) {
            joined.extend_from_slice(embedding);
            joined.extend_from_slice(stream);
        }
    }
    debug_assert_eq!(joined.len(), ids.len() * streams * 2 * hidden);
    weights.multiply(cpu, layer.join, joined, residual);
    pass.streams.rows_mut(rows).copy_from_slice(residual);
    Ok(())
}
