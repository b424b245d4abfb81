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
    let (wide, count) = (pass.streams.width, pass.shape.streams);
    let (normed, down, up) = (&mut s.a, &mut s.b, &mut s.c);

    normed.resize(rows.len() * wide, 0.0);
    let (streams, gamma) = (pass.streams.rows(rows.clone()), weights.vector(layer.norm));
    norm::grouped_rms(cpu, streams, gamma, hidden, layer.eps, normed);

    let input = s.inputs.inputs(cpu, normed, wide);
    weights.multiply_of(cpu, layer.down, &input, down);
    hyper::gate_activation(cpu, down, count);
    weights.multiply(cpu, layer.up, down, up);
    hyper::mix(cpu, up, normed, hidden, pass.mixed.rows_mut(rows.clone()));

    if let Some(inject) = layer.inject {
        weights.multiply_of(cpu, inject, &input, down);
        let out = pass.inject.rows_mut(rows);
        out.copy_from_slice(down);
        hyper::inject_weights(cpu.isa(), out, count);
    }
}

pub(super) fn write(cpu: &Cpu, pass: &mut Pass, rows: Range<usize>) {
    let (inject, output) = (pass.inject.rows(rows.clone()), pass.output.rows(rows.clone()));
    hyper::write(cpu, pass.streams.rows_mut(rows), inject, output, pass.shape.hidden);
}
