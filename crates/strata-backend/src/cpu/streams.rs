//! Reads and writes of the residual streams (spec 6.1).

use std::ops::Range;

use strata_kernels::{Cpu, hyper, norm};

use super::Weights;
use super::pass::{Pass, Scratch};
use crate::HyperRead;

pub(super) fn read(
    cpu: &Cpu,
    weights: &Weights,
    pass: &mut Pass,
    rows: Range<usize>,
    layer: &HyperRead,
    s: &mut Scratch,
) {
    let hidden = pass.shape.hidden;
    let wide = pass.streams.width;
    let (normed, down, up) = (&mut s.a, &mut s.b, &mut s.c);

    normed.resize(rows.len() * wide, 0.0);
    let (streams, gamma) = (pass.streams.rows(rows.clone()), weights.vector(layer.norm));
    cpu.for_rows(normed, wide, |t, out| {
        norm::grouped_rms(&streams[t * wide..][..wide], gamma, hidden, layer.eps, out);
    });

    weights.multiply(cpu, layer.down, normed, down);
    hyper::gate_activation(down, pass.shape.streams);
    weights.multiply(cpu, layer.up, down, up);
    let (normed, up) = (&*normed, &*up);
    cpu.for_rows(pass.mixed.rows_mut(rows.clone()), hidden, |t, mixed| {
        hyper::mix(cpu.isa(), &up[t * wide..][..wide], &normed[t * wide..][..wide], mixed);
    });

    if let Some(inject) = layer.inject {
        weights.multiply(cpu, inject, normed, down);
        let out = pass.inject.rows_mut(rows);
        out.copy_from_slice(down);
        out.chunks_exact_mut(pass.shape.streams).for_each(hyper::inject_weights);
    }
}

pub(super) fn write(cpu: &Cpu, pass: &mut Pass, rows: Range<usize>) {
    let (wide, hidden, count) = (pass.streams.width, pass.shape.hidden, pass.shape.streams);
    let (inject, output) = (pass.inject.rows(rows.clone()), pass.output.rows(rows.clone()));
    cpu.for_rows(pass.streams.rows_mut(rows), wide, |t, streams| {
        hyper::write(streams, &inject[t * count..][..count], &output[t * hidden..][..hidden]);
    });
}
