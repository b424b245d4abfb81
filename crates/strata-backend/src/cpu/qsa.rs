//! Attention with block selection (spec 6.3).

use std::ops::Range;

use strata_kernels::math::sigmoid;
use strata_kernels::rope::{Rope, rotate};
use strata_kernels::{Cpu, attention, norm};

use super::Weights;
use super::pass::{Pass, Scratch};
use super::states::QsaState;
use crate::{BackendError, Indexer, Qsa};

pub(super) fn mix(
    cpu: &Cpu,
    weights: &Weights,
    pass: &mut Pass,
    rows: Range<usize>,
    layer: &Qsa,
    state: &mut QsaState,
    s: &mut Scratch,
) -> Result<(), BackendError> {
    state.check_room(rows.len())?;
    let &Qsa { heads, kv_heads, head_dim, eps, .. } = layer;
    let first = state.tokens();
    let input = pass.mixed.rows(rows.clone());
    let rope = Rope::new(layer.rotated, layer.theta);
    let pairs = rope.pairs();
    let mut angles = vec![(0.0, 0.0); rows.len() * pairs];
    cpu.for_rows(&mut angles, pairs, |t, out| rope.angles(first + t, out));
    let angles = |t: usize| &angles[t * pairs..][..pairs];

    // Keys and values join the cache; the indexer's keys join its blocks.
    let (k, v) = (&mut s.a, &mut s.b);
    weights.multiply(cpu, layer.k, input, k);
    weights.multiply(cpu, layer.v, input, v);
    let gamma = weights.vector(layer.k_norm);
    cpu.for_rows(k, kv_heads * head_dim, |t, row| {
        for key in row.chunks_exact_mut(head_dim) {
            norm::rms_in_place(key, gamma, eps);
            rotate(key, angles(t));
        }
    });
    state.keys.extend_from_slice(k);
    state.values.extend_from_slice(v);
    let index_queries = &mut s.c;
    if let Some(indexer) = &layer.indexer {
        weights.multiply(cpu, indexer.k, input, k);
        add_block_keys(k, indexer, weights.vector(indexer.k_norm), eps, &rope, state);
        weights.multiply(cpu, indexer.q, input, index_queries);
        let gamma = weights.vector(indexer.q_norm);
        cpu.for_rows(index_queries, indexer.heads * indexer.dim, |t, row| {
            for query in row.chunks_exact_mut(indexer.dim) {
                norm::rms_in_place(query, gamma, eps);
                rotate(query, angles(t));
            }
        });
    }

    // What each row attends to.
    let (state, index_queries) = (&*state, &*index_queries);
    let mut selections = vec![Selection::default(); rows.len()];
    let scratch = || (Vec::new(), Vec::new());
    cpu.for_rows_with(&mut selections, 1, scratch, |(scores, order), t, out| {
        out[0] = select(
            cpu,
            first + t + 1,
            layer.indexer.as_ref(),
            |indexer| {
                let width = indexer.heads * indexer.dim;
                (&index_queries[t * width..][..width], &state.block_keys)
            },
            scores,
            order,
        );
    });
    if pass.shape.keep_details {
        for (row, selection) in rows.clone().zip(&selections) {
            pass.selected_blocks[row].clone_from(&selection.blocks);
        }
    }

    // Attention of each head, gate, projection.
    let (q, attended) = (&mut s.a, &mut s.b);
    weights.multiply(cpu, layer.q, input, q);
    attended.resize(rows.len() * heads * head_dim, 0.0);
    let (q, gamma) = (&*q, weights.vector(layer.q_norm));
    let scratch = || (vec![0.0; head_dim], Vec::new());
    cpu.for_rows_with(attended, head_dim, scratch, |(query, attention_weights), i, out| {
        let (t, h) = (i / heads, i % heads);
        let (projected, gate) = q[i * 2 * head_dim..][..2 * head_dim].split_at(head_dim);
        norm::rms(projected, gamma, eps, query);
        rotate(query, angles(t));
        let start = h / (heads / kv_heads) * head_dim;
        let cache =
            attention::Cache { keys: &state.keys[start..], values: &state.values[start..], stride: state.kv_width };
        attention_weights.resize(first + t + 1, 0.0);
        attention::attend(cpu.isa(), query, &cache, &selections[t].ranges, attention_weights, out);
        out.iter_mut().zip(gate).for_each(|(o, g)| *o *= sigmoid(*g));
    });
    let out = &mut s.d;
    weights.multiply(cpu, layer.out, attended, out);
    pass.output.rows_mut(rows).copy_from_slice(out);
    Ok(())
}

/// The tokens that one row attends to.
#[derive(Clone, Default)]
struct Selection {
    /// `None`: all.
    blocks: Option<Vec<u32>>,
    ranges: Vec<Range<usize>>,
}

/// Block keys are made from the raw keys of a whole block: mean, norm, rotation at the block's first token.
fn add_block_keys(raw: &[f32], indexer: &Indexer, gamma: &[f32], eps: f32, rope: &Rope, state: &mut QsaState) {
    let &Indexer { dim, block_tokens, .. } = indexer;
    let mut angles = vec![(0.0, 0.0); rope.pairs()];
    for key in raw.chunks_exact(dim) {
        state.open_keys.extend_from_slice(key);
        if state.open_keys.len() == block_tokens * dim {
            let block = state.block_keys.len() / dim;
            let mut mean = vec![0.0; dim];
            for key in state.open_keys.chunks_exact(dim) {
                mean.iter_mut().zip(key).for_each(|(m, k)| *m += k);
            }
            mean.iter_mut().for_each(|m| *m /= block_tokens as f32);
            norm::rms_in_place(&mut mean, gamma, eps);
            rope.angles(block * block_tokens, &mut angles);
            rotate(&mut mean, &angles);
            state.block_keys.extend_from_slice(&mean);
            state.open_keys.clear();
        }
    }
}

/// Selects for a row that sees `visible` tokens; `data` gives its index queries and all block keys.
fn select<'a>(
    cpu: &Cpu,
    visible: usize,
    indexer: Option<&'a Indexer>,
    data: impl FnOnce(&'a Indexer) -> (&'a [f32], &'a [f32]),
    scores: &mut Vec<f32>,
    order: &mut Vec<u32>,
) -> Selection {
    let everything = Selection { blocks: None, ranges: std::iter::once(0..visible).collect() };
    let Some(indexer) = indexer else { return everything };
    let blocks = visible / indexer.block_tokens;
    if blocks <= indexer.budget_blocks {
        return everything;
    }
    let (queries, block_keys) = data(indexer);
    scores.resize(blocks, 0.0);
    attention::block_scores(cpu.isa(), queries, &block_keys[..blocks * indexer.dim], indexer.dim, scores);
    let best = attention::best_blocks(scores, indexer.budget_blocks, order);
    let mut ranges = Vec::new();
    attention::token_ranges(best, indexer.block_tokens, blocks * indexer.block_tokens..visible, &mut ranges);
    Selection { blocks: Some(best.to_vec()), ranges }
}
