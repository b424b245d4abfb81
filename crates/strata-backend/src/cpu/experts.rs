//! Routing, routed experts and the shared expert (spec 6.4).

use std::ops::Range;

use strata_kernels::math::{sigmoid, silu_times};
use strata_kernels::matmul::Matrix;
use strata_kernels::{Cpu, dot, experts as kernels, route};
use strata_store::{Part, Slot};

use super::Weights;
use super::pass::{Pass, Scratch};
use crate::{Choice, ExpertShape, GroupEntry, MatrixId, Routes, SharedExpert};

/// How a router's logits are computed.
#[derive(Clone, Copy)]
pub(super) enum Logits {
    /// In float32: which experts are chosen decides more than any rounding.
    Exact,
    /// As fast as can be: a forecast may be wrong.
    Fast,
}

/// How a router chooses.
#[derive(Clone, Copy)]
pub(super) struct Choosing {
    pub(super) logits: Logits,
    /// Experts of a row.
    pub(super) choices: usize,
}

/// Choices by `router` for the rows' input, into `routes`; the logits stay in `s.a`.
#[allow(clippy::too_many_arguments)] // two callers, which take them all from the backend
pub(super) fn route(
    cpu: &Cpu,
    weights: &Weights,
    pass: &Pass,
    rows: Range<usize>,
    router: MatrixId,
    choosing: Choosing,
    s: &mut Scratch,
    routes: &mut Routes,
) {
    let (choices, experts) = (choosing.choices, pass.shape.experts);
    let input = pass.mixed.rows(rows.clone());
    match choosing.logits {
        Logits::Exact => weights.multiply_exactly(cpu, router, input, &mut s.a),
        Logits::Fast => weights.multiply(cpu, router, input, &mut s.a),
    }
    routes.ids.resize(rows.len() * choices, 0);
    routes.weights.resize(rows.len() * choices, 0.0);
    route::choose_rows(cpu, &s.a, experts, &mut routes.ids, &mut routes.weights);
}

/// Router logits of the rows' input, by which [`route`] chooses too.
pub(super) fn router_logits(
    cpu: &Cpu,
    weights: &Weights,
    pass: &mut Pass,
    rows: Range<usize>,
    router: MatrixId,
) -> Vec<f32> {
    let mut logits = Vec::new();
    weights.multiply_exactly(cpu, router, pass.mixed.rows(rows.clone()), &mut logits);
    keep_logits(pass, rows, &logits);
    logits
}

/// Keeps what lookers-on want to know of a route.
pub(super) fn keep_logits(pass: &mut Pass, rows: Range<usize>, logits: &[f32]) {
    if pass.shape.keep_details {
        pass.router_logits.rows_mut(rows).copy_from_slice(logits);
    }
}

/// Keeps what [`combine`] needs of a route.
pub(super) fn keep_routes(pass: &mut Pass, rows: Range<usize>, routes: &Routes) {
    pass.route_weights.rows_mut(rows).copy_from_slice(&routes.weights);
}

pub(super) fn experts(
    cpu: &Cpu,
    pass: &mut Pass,
    shape: &ExpertShape,
    slots: &[Slot],
    group: &[GroupEntry],
    choices: &[Choice],
) {
    let &ExpertShape { gate, up, down, hidden, ff } = shape;
    let group: Vec<_> = group
        .iter()
        .map(|entry| {
            let slot = &slots[entry.slot];
            kernels::Expert {
                gate: Matrix::new(gate, ff, hidden, entry.scales[0], slot.part(Part::Gate)),
                up: Matrix::new(up, ff, hidden, entry.scales[1], slot.part(Part::Up)),
                down: Matrix::new(down, hidden, ff, entry.scales[2], slot.part(Part::Down)),
                choices: &choices[entry.choices.clone()],
            }
        })
        .collect();
    let mut outputs = kernels::Outputs {
        out: pass.expert_output.all_mut(),
        hidden: pass.shape.keep_details.then_some(pass.expert_hidden.all_mut()),
        top_k: pass.shape.top_k,
    };
    kernels::experts(cpu, &group, pass.mixed.all(), &mut outputs);
}

/// The shared expert's output is the rows' output until [`combine`] adds the others.
pub(super) fn shared_expert(
    cpu: &Cpu,
    weights: &Weights,
    pass: &mut Pass,
    rows: Range<usize>,
    shared: &SharedExpert,
    s: &mut Scratch,
) {
    let hidden = pass.shape.hidden;
    let input = pass.mixed.rows(rows.clone());
    let (gate, up) = (&mut s.a, &mut s.b);
    let inputs = s.inputs.inputs(cpu, input, hidden);
    weights.multiply_of(cpu, shared.gate, &inputs, gate);
    weights.multiply_of(cpu, shared.up, &inputs, up);
    let (ff, up) = (gate.len() / rows.len(), &*up);
    cpu.for_rows(gate, ff, |t, gate| silu_times(cpu.isa(), gate, &up[t * ff..][..ff]));
    weights.multiply_into(cpu, shared.down, gate, pass.output.rows_mut(rows.clone()));

    let gate_inp = weights.vector(shared.gate_inp);
    cpu.for_rows(pass.shared_gate.rows_mut(rows), 1, |t, out| {
        out[0] = sigmoid(dot(cpu.isa(), gate_inp, &input[t * hidden..][..hidden]));
    });
}

pub(super) fn combine(cpu: &Cpu, pass: &mut Pass, rows: Range<usize>, s: &mut Scratch) {
    // Out of the way of the sums.
    let shared = &mut s.a;
    shared.clear();
    shared.extend_from_slice(pass.output.rows(rows.clone()));
    let combined = kernels::Combined {
        weights: pass.route_weights.rows(rows.clone()),
        outputs: pass.expert_output.rows(rows.clone()),
        shared_gate: pass.shared_gate.rows(rows.clone()),
        shared,
    };
    kernels::combine(cpu, &combined, pass.output.rows_mut(rows));
}
