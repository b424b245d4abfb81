//! Sparse attention (spec 6.3): which blocks a token attends to, and attention over them. One row at a time, so that a
//! row's result never depends on its neighbours.

use std::ops::Range;

use crate::math::exp;
use crate::vector::{Lanes, add_product, dispatch, dots};

dispatch! {
    /// Scores of blocks for one query: `score_b = sum_h max(0, iq_h . ik_b)`.
    ///
    /// `queries` is `[heads][dim]`, `block_keys` `[blocks][dim]`, `scores` `[blocks]`.
    pub fn block_scores = block_scores_body(queries: &[f32], block_keys: &[f32], dim: usize, scores: &mut [f32])
}

#[inline(always)]
fn block_scores_body<V: Lanes, const FUSED: bool>(queries: &[f32], block_keys: &[f32], dim: usize, scores: &mut [f32]) {
    let whole = queries.len().is_multiple_of(dim) && block_keys.len() == scores.len() * dim;
    assert!(whole, "block scores: shapes differ");
    for (score, key) in scores.iter_mut().zip(block_keys.chunks_exact(dim)) {
        *score = 0.0;
        for query in queries.chunks_exact(dim) {
            // SAFETY: both are `dim` long; `dispatch` vouches for the instructions.
            let product = unsafe { dots::<V, FUSED, 1, 1>([query.as_ptr()], [key.as_ptr()], dim)[0][0] };
            *score += product.max(0.0);
        }
    }
}

/// The `budget` best blocks in ascending order, the lower block first among equal scores. `order` is scratch that ends
/// up holding the result in its first `budget` places.
pub fn best_blocks<'a>(scores: &[f32], budget: usize, order: &'a mut Vec<u32>) -> &'a [u32] {
    order.clear();
    order.extend(0..scores.len() as u32);
    if budget < scores.len() {
        order
            .select_nth_unstable_by(budget, |&a, &b| scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b)));
        order.truncate(budget);
        order.sort_unstable();
    }
    order
}

/// Keys and values of one key/value head, one row a token.
pub struct Cache<'a> {
    /// Rotated, normalised keys: token `t` of this head starts at `t * stride`.
    pub keys: &'a [f32],
    /// Values, laid out like the keys.
    pub values: &'a [f32],
    /// Values from one token to the next.
    pub stride: usize,
}

/// Appends the token ranges of `blocks` (ascending) of `block_tokens` tokens each, neighbours merged, then `tail`.
pub fn token_ranges(blocks: &[u32], block_tokens: usize, tail: Range<usize>, ranges: &mut Vec<Range<usize>>) {
    let blocks = blocks.iter().map(|b| *b as usize * block_tokens..(*b as usize + 1) * block_tokens);
    for range in blocks.chain(std::iter::once(tail)) {
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if range.is_empty() => {}
            _ => ranges.push(range),
        }
    }
}

dispatch! {
    /// `out = softmax_j(q . k_j / sqrt(dim)) v_j` over the tokens of `ranges`, in their order.
    ///
    /// `weights` is scratch for at least as many values as there are tokens.
    pub fn attend = attend_body(
        query: &[f32], cache: &Cache<'_>, ranges: &[Range<usize>], weights: &mut [f32], out: &mut [f32],
    )
}

#[inline(always)]
fn attend_body<V: Lanes, const FUSED: bool>(
    query: &[f32],
    cache: &Cache<'_>,
    ranges: &[Range<usize>],
    weights: &mut [f32],
    out: &mut [f32],
) {
    let dim = query.len();
    assert_eq!(out.len(), dim, "attend: lengths differ");
    let scale = 1.0 / (dim as f32).sqrt();
    let tokens = || ranges.iter().cloned().flatten();
    let weights = &mut weights[..ranges.iter().map(Range::len).sum()];
    let mut largest = f32::NEG_INFINITY;
    for (weight, token) in weights.iter_mut().zip(tokens()) {
        let key = &cache.keys[token * cache.stride..][..dim];
        // SAFETY: both are `dim` long; `dispatch` vouches for the instructions.
        *weight = unsafe { dots::<V, FUSED, 1, 1>([query.as_ptr()], [key.as_ptr()], dim)[0][0] } * scale;
        largest = largest.max(*weight);
    }
    let mut sum = 0.0;
    for weight in weights.iter_mut() {
        *weight = exp(*weight - largest);
        sum += *weight;
    }
    out.fill(0.0);
    for (weight, token) in weights.iter().zip(tokens()) {
        let value = &cache.values[token * cache.stride..][..dim];
        for (o, v) in out.iter_mut().zip(value) {
            *o = add_product::<FUSED>(*o, *weight, *v);
        }
    }
    let scale = 1.0 / sum;
    out.iter_mut().for_each(|o| *o *= scale);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_blocks_prefer_the_lower_index_among_equals() {
        let mut order = Vec::new();
        let scores = [0.0, 5.0, 0.0, 7.0, 0.0, 5.0];
        assert_eq!(best_blocks(&scores, 3, &mut order), [1, 3, 5]);
        assert_eq!(best_blocks(&scores, 4, &mut order), [0, 1, 3, 5]);
        assert_eq!(best_blocks(&scores, 1, &mut order), [3]);
        assert_eq!(best_blocks(&scores, 6, &mut order), [0, 1, 2, 3, 4, 5]);
        assert_eq!(best_blocks(&[], 3, &mut order), []);
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init)] // a list of ranges it is
    fn neighbouring_blocks_and_the_tail_become_one_range() {
        let ranges = |blocks: &[u32], tail| {
            let mut out = Vec::new();
            token_ranges(blocks, 4, tail, &mut out);
            out
        };
        assert_eq!(ranges(&[0, 1, 3], 20..22), [0..8, 12..16, 20..22]);
        assert_eq!(ranges(&[0, 4], 20..20), [0..4, 16..20]);
        assert_eq!(ranges(&[0, 4], 20..23), [0..4, 16..23]);
        assert_eq!(ranges(&[], 0..1), [0..1]);
    }
}
