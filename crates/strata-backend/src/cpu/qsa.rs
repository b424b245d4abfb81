//! Attention with block selection (spec 6.3).

use strata_kernels::rope::{Rope, rotate};
use strata_kernels::{Cpu, attention, norm};

use super::kept::Kept;
use super::pass::{Pass, Scratch};
use super::states::{QsaState, State};
use super::{States, Weights, all_rows, part, part_mut, state, within};
use crate::{BackendError, Indexer, Qsa, Run, StateId};

/// What is done with the rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// They join the cache.
    Extend,
    /// They join the cache, and attend.
    Mix,
}

fn own(states: &mut States, id: StateId) -> (&mut QsaState, &mut Kept) {
    match state(states, id) {
        (State::Qsa(state), kept) => (state, kept),
        _ => panic!("attention was given another state"),
    }
}

#[allow(clippy::too_many_arguments)] // two callers, which take them all from the backend
pub(super) fn mix(
    cpu: &Cpu,
    weights: &Weights,
    pass: &mut Pass,
    runs: &[Run],
    layer: &Qsa,
    states: &mut States,
    s: &mut Scratch,
    work: Work,
) -> Result<(), BackendError> {
    let &Qsa { heads, kv_heads, head_dim, eps, .. } = layer;
    let rows = all_rows(runs);
    let count = rows.len();
    let Scratch { inputs, rope, angles, block_angles, selections, .. } = s;
    let input = inputs.inputs(cpu, pass.mixed.rows(rows.clone()), pass.shape.hidden);
    rope.set(layer.rotated, layer.theta);
    let pairs = rope.pairs();
    angles.resize(count * pairs, (0.0, 0.0));
    for run in runs {
        let (state, _) = own(states, run.state);
        state.check_room(run.rows.len())?;
        let first = state.cache.tokens();
        cpu.for_rows(part_mut(angles, count, within(run, &rows)), pairs, |t, out| rope.angles(first + t, out));
    }
    let angles = |t: usize| &angles[t * pairs..][..pairs];
    let prepare = |t: usize, heads: &mut [f32], stride: usize, dim: usize, gamma: &[f32]| {
        for head in heads.chunks_exact_mut(stride) {
            norm::rms_in_place(&mut head[..dim], gamma, eps);
            rotate(&mut head[..dim], angles(t));
        }
    };

    // Keys and values join the caches.
    let (k, v) = (&mut s.a, &mut s.b);
    weights.multiply_of(cpu, layer.k, &input, k);
    weights.multiply_of(cpu, layer.v, &input, v);
    let gamma = weights.vector(layer.k_norm);
    cpu.for_rows(k, kv_heads * head_dim, |t, row| prepare(t, row, head_dim, head_dim, gamma));
    for run in runs {
        let of_run = || within(run, &rows);
        own(states, run.state).0.cache.append(part(k, count, of_run()), part(v, count, of_run()));
    }

    // The indexer's keys join its blocks.
    if let Some(indexer) = &layer.indexer {
        let &Indexer { heads, dim, .. } = indexer;
        weights.multiply_of(cpu, indexer.k, &input, k);
        block_angles.resize(pairs, (0.0, 0.0));
        for run in runs {
            let (state, kept) = own(states, run.state);
            let keys = part(k, count, within(run, &rows));
            keys.chunks_exact(dim).take(kept.wanted(run.rows.len())).for_each(|key| kept.push([key]));
            add_block_keys(keys, indexer, weights.vector(indexer.k_norm), eps, (rope, block_angles), state);
        }
        let queries = &mut s.c;
        weights.multiply_of(cpu, indexer.q, &input, queries);
        let gamma = weights.vector(indexer.q_norm);
        cpu.for_rows(queries, heads * dim, |t, row| prepare(t, row, dim, dim, gamma));
    }
    if work == Work::Extend {
        return Ok(());
    }

    // What each row attends to, and attention of each head.
    let (q, attended) = (&mut s.a, &mut s.b);
    weights.multiply_of(cpu, layer.q, &input, q);
    let gamma = weights.vector(layer.q_norm);
    cpu.for_rows(q, heads * 2 * head_dim, |t, row| prepare(t, row, 2 * head_dim, head_dim, gamma));
    attended.resize(count * heads * head_dim, 0.0);
    for run in runs {
        let of_run = || within(run, &rows);
        let (state, _) = own(states, run.state);
        // Its first row attends to what was there before, and to itself.
        let first_tokens = state.cache.tokens() - run.rows.len() + 1;
        if let Some(indexer) = &layer.indexer {
            let &Indexer { heads, dim, block_tokens, budget_blocks, .. } = indexer;
            let (queries, block_keys) = (part(&s.c, count, of_run()), &state.block_keys[..]);
            let index = attention::Index { heads, dim, block_tokens, budget_blocks, queries, block_keys };
            selections.choose(cpu, first_tokens, &index);
        } else {
            selections.set_everything(first_tokens, run.rows.len());
        }
        if pass.shape.keep_details {
            for (t, row) in run.rows.clone().enumerate() {
                pass.selected_blocks[row] = selections.row(t).blocks().map(<[u32]>::to_vec);
            }
        }
        let queries = attention::Queries { values: part(q, count, of_run()), heads, stride: 2 * head_dim };
        attention::attend(cpu, &state.cache, &queries, selections, part_mut(attended, count, of_run()));
    }

    // Gate, projection.
    cpu.for_rows(attended, heads * head_dim, |t, row| {
        attention::gate(cpu.isa(), row, &q[t * 2 * row.len()..][..2 * row.len()], head_dim);
    });
    let out = &mut s.d;
    weights.multiply(cpu, layer.out, attended, out);
    pass.output.rows_mut(rows).copy_from_slice(out);
    Ok(())
}

/// Block keys are made from the raw keys of a whole block: mean, norm, rotation at the block's first token.
fn add_block_keys(
    raw: &[f32],
    indexer: &Indexer,
    gamma: &[f32],
    eps: f32,
    (rope, angles): (&Rope, &mut [(f32, f32)]),
    state: &mut QsaState,
) {
    let &Indexer { dim, block_tokens, .. } = indexer;
    let QsaState { open_keys, block_keys, .. } = state;
    for key in raw.chunks_exact(dim) {
        open_keys.extend_from_slice(key);
        if open_keys.len() == block_tokens * dim {
            let at = block_keys.len();
            block_keys.resize(at + dim, 0.0);
            let mean = &mut block_keys[at..];
            for key in open_keys.chunks_exact(dim) {
                mean.iter_mut().zip(key).for_each(|(m, k)| *m += k);
            }
            mean.iter_mut().for_each(|m| *m /= block_tokens as f32);
            norm::rms_in_place(mean, gamma, eps);
            rope.angles(at / dim * block_tokens, angles);
            rotate(mean, angles);
            open_keys.clear();
        }
    }
}
