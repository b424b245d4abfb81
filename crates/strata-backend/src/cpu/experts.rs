//! Routing, routed experts and the shared expert (spec 6.4).

use std::ops::Range;

use strata_kernels::math::{sigmoid, silu_times};
use strata_kernels::matmul::Matrix;
use strata_kernels::{Cpu, dot, experts as kernels, route};
use strata_store::{Part, Slot};

use super::Weights;
use super::pass::{Pass, Scratch};
use crate::{Choice, ExpertShape, GroupEntry, MatrixId, Routes, SharedExpert};

/// Choices by `router` for the rows' input; the logits stay in `s.a`.
pub(super) fn route(
    cpu: &Cpu,
    weights: &Weights,
    pass: &Pass,
    rows: Range<usize>,
    router: MatrixId,
    s: &mut Scratch,
) -> Routes {
    let (top_k, experts) = (pass.shape.top_k, pass.shape.experts);
    // Which experts are chosen decides more than any rounding: the logits are float32.
    weights.multiply_exactly(cpu, router, pass.mixed.rows(rows.clone()), &mut s.a);
    let mut routes = Routes { ids: vec![0; rows.len() * top_k], weights: vec![0.0; rows.len() * top_k] };
    let chosen = routes.ids.chunks_exact_mut(top_k).zip(routes.weights.chunks_exact_mut(top_k));
    for (logits, (ids, weights)) in s.a.chunks_exact(experts).zip(chosen) {
        route::choose(logits, ids, weights);
    }
    routes
}

/// Keeps what [`combine`] and lookers-on need of a route.
pub(super) fn keep_routes(pass: &mut Pass, rows: Range<usize>, routes: &Routes, s: &Scratch) {
    pass.route_weights.rows_mut(rows.clone()).copy_from_slice(&routes.weights);
    if pass.shape.keep_details {
        pass.router_logits.rows_mut(rows).copy_from_slice(&s.a);
    }
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

pub(super) fn combine(
    cpu: &Cpu,
    weights: &Weights,
    pass: &mut Pass,
    rows: Range<usize>,
    shared: &SharedExpert,
    s: &mut Scratch,
) {
    let (hidden, top_k) = (pass.shape.hidden, pass.shape.top_k);
    let input = pass.mixed.rows(rows.clone());
    let (gate, up, down) = (&mut s.a, &mut s.b, &mut s.c);
    weights.multiply(cpu, shared.gate, input, gate);
    weights.multiply(cpu, shared.up, input, up);
    silu_times(cpu.isa(), gate, up);
    weights.multiply(cpu, shared.down, gate, down);

    let gate_inp = weights.vector(shared.gate_inp);
    for (row, out) in input.chunks_exact(hidden).zip(pass.shared_gate.rows_mut(rows.clone())) {
        *out = sigmoid(dot(cpu.isa(), gate_inp, row));
    }
    let (shared, shared_gate) = (&*down, pass.shared_gate.rows(rows.clone()));
    let (route_weights, outputs) = (pass.route_weights.rows(rows.clone()), pass.expert_output.rows(rows.clone()));
    cpu.for_rows(pass.output.rows_mut(rows), hidden, |t, y| {
        let outputs = &outputs[t * top_k * hidden..][..top_k * hidden];
        kernels::combine(
            &route_weights[t * top_k..][..top_k],
            outputs,
            shared_gate[t],
            &shared[t * hidden..][..hidden],
            y,
        );
    });
}
