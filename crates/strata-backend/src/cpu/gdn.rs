//! Gated DeltaNet (spec 6.2).

use strata_kernels::conv::Window;
use strata_kernels::{Cpu, gdn};

use super::kept::{Kept, keep_gdn};
use super::pass::{Pass, Scratch};
use super::states::{GdnState, State};
use super::{States, Weights, all_rows, part, part_mut, state, within};
use crate::{Gdn, GdnForm, Run, StateId};

fn own(states: &mut States, id: StateId) -> (&mut GdnState, &mut Kept) {
    match state(states, id) {
        (State::Gdn(state), kept) => (state, kept),
        _ => panic!("a mixer was given the state of another kind"),
    }
}

pub(super) fn mix(
    cpu: &Cpu,
    weights: &Weights,
    pass: &mut Pass,
    runs: &[Run],
    layer: &Gdn,
    states: &mut States,
    s: &mut Scratch,
) {
    let &Gdn { key_heads, value_heads, head_dim, eps, .. } = layer;
    let rows = all_rows(runs);
    let count = rows.len();
    let input = s.inputs.inputs(cpu, pass.mixed.rows(rows.clone()), pass.shape.hidden);
    let inner = value_heads * head_dim;

    // Projections of all rows.
    let (new, alpha, beta, by_head) = (&mut s.a, &mut s.c, &mut s.d, &mut s.e);
    weights.multiply_of(cpu, layer.qkv, &input, new);
    weights.multiply_of(cpu, layer.alpha, &input, alpha);
    weights.multiply_of(cpu, layer.beta, &input, beta);
    gdn::gates(cpu, weights.vector(layer.a), weights.vector(layer.dt_bias), alpha, beta);
    let taps = weights.vector(layer.conv);
    by_head.resize(count * inner, 0.0);
    for run in runs {
        let (state, kept) = own(states, run.state);
        let of_run = within(run, &rows);
        let new = part(new, count, of_run.clone());
        let (alpha, beta) = (part(alpha, count, of_run.clone()), part(beta, count, of_run.clone()));

        // Convolution, and normalised queries and keys.
        let convolved = &mut s.b;
        let (channels, count_of_run) = (state.history.width, of_run.len());
        convolved.resize(count_of_run * channels, 0.0);
        let history = &state.history;
        let window = |t| Window::new(taps.len() / channels, |back| history.row(new, t, back));
        let shape = gdn::HeadShape { key_heads, value_heads, dim: head_dim };
        gdn::convolve_heads(cpu, shape, taps, window, convolved);
        state.history.push(new);
        keep_gdn(kept, (new, channels), (convolved, head_dim), (alpha, beta), count_of_run);

        // The recurrence, outputs `[head][token][d]`.
        let (queries, rest) = convolved.split_at(count_of_run * key_heads * head_dim);
        let (keys, values) = rest.split_at(count_of_run * key_heads * head_dim);
        let strip = gdn::Strip { queries, keys, values, log_decay: alpha, beta, key_heads, value_heads };
        let by_head = part_mut(by_head, count, of_run);
        match layer.form {
            GdnForm::Recurrent => gdn::recurrent(cpu, &strip, &mut state.matrix, by_head),
            GdnForm::Chunked => gdn::chunked(cpu, &strip, &mut state.matrix, by_head),
        }
    }

    // Output norm, gate, projection.
    let (z, gated) = (&mut s.a, &mut s.b);
    weights.multiply_of(cpu, layer.gate, &input, z);
    gated.resize(count * inner, 0.0);
    for run in runs {
        let of_run = || within(run, &rows);
        let (by_head, z) = (part(by_head, count, of_run()), part(z, count, of_run()));
        let gated = part_mut(gated, count, of_run());
        gdn::norm_and_gate(cpu, by_head, value_heads, weights.vector(layer.norm), eps, z, gated);
    }
    let out = &mut s.c;
    weights.multiply(cpu, layer.out, gated, out);
    pass.output.rows_mut(rows).copy_from_slice(out);
}
