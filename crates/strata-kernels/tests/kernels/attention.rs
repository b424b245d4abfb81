//! Sparse attention: scores and choice of blocks, token ranges, and attention over them.

use std::ops::Range;

use proptest::prelude::*;
use strata_kernels::Isa;
use strata_kernels::attention::{Cache, attend, best_blocks, block_scores, token_ranges};

use crate::reference::{Random, assert_close, bits, dot_in_lanes, is_fused, isas, poison};

fn dot_in_doubles(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[test]
fn block_scores_match_the_double_reference() {
    let mut random = Random::new(1);
    let shapes = [(1, 1, 1), (2, 16, 0), (3, 19, 3), (4, 40, 33), (4, 128, 9)];
    for &(heads, dim, blocks) in if cfg!(miri) { &shapes[..3] } else { &shapes } {
        let (queries, keys) = (random.floats(heads * dim), random.floats(blocks * dim));
        let score = |key: &[f32]| -> f64 { queries.chunks(dim).map(|q| dot_in_doubles(q, key).max(0.0)).sum() };
        let want: Vec<f64> = keys.chunks(dim).map(score).collect();
        for isa in isas() {
            let mut scores = poison(blocks);
            block_scores(isa, &queries, &keys, dim, &mut scores);
            assert_close(&scores, &want, 2e-6 * (heads * dim) as f64, &format!("{heads} heads of {dim}, {isa}"));
            let in_lanes = |key| queries.chunks(dim).map(|q| dot_in_lanes(is_fused(isa), q, key).max(0.0)).sum();
            let want: Vec<f32> = keys.chunks(dim).map(in_lanes).collect();
            assert_eq!(scores, want, "{heads} heads of {dim}, {isa}");
        }
    }
}

/// A cache of several heads; every token and every head that is not to be read is poison.
struct Case {
    dim: usize,
    stride: usize,
    start: usize,
    ranges: Vec<Range<usize>>,
    query: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Case {
    fn random(random: &mut Random, dim: usize, ranges: &[Range<usize>], query_size: f32) -> Self {
        let (stride, start) = (3 * dim + 1, dim);
        let tokens = ranges.last().unwrap().end + 2;
        let (mut keys, mut values) = (poison(tokens * stride), poison(tokens * stride));
        for token in ranges.iter().cloned().flatten() {
            let at = token * stride + start..token * stride + start + dim;
            keys[at.clone()].copy_from_slice(&random.floats(dim));
            values[at].copy_from_slice(&random.floats(dim));
        }
        let query = random.floats(dim).into_iter().map(|v| v * query_size).collect();
        Self { dim, stride, start, ranges: ranges.to_vec(), query, keys, values }
    }

    fn attend(&self, isa: Isa) -> Vec<f32> {
        let cache = Cache { keys: &self.keys[self.start..], values: &self.values[self.start..], stride: self.stride };
        let tokens: usize = self.ranges.iter().map(Range::len).sum();
        let mut out = poison(self.dim);
        attend(isa, &self.query, &cache, &self.ranges, &mut poison(tokens + 3), &mut out);
        out
    }

    fn reference(&self) -> Vec<f64> {
        let row = |data: &[f32], token: usize| data[token * self.stride + self.start..][..self.dim].to_vec();
        let tokens: Vec<usize> = self.ranges.iter().cloned().flatten().collect();
        let root = (self.dim as f64).sqrt();
        let scores: Vec<f64> =
            tokens.iter().map(|t| dot_in_doubles(&self.query, &row(&self.keys, *t)) / root).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
        let mut out = vec![0.0; self.dim];
        for (score, token) in scores.iter().zip(tokens) {
            let weight = (score - largest).exp() / sum;
            out.iter_mut().zip(row(&self.values, token)).for_each(|(o, v)| *o += weight * f64::from(v));
        }
        out
    }
}

#[test]
fn attention_matches_the_double_softmax_and_reads_only_its_tokens() {
    let mut random = Random::new(2);
    let ranges: &[&[Range<usize>]] = &[&[0..1], &[3..4], &[0..7], &[0..4, 8..16, 20..22], &[5..6, 7..8, 100..130]];
    let (dims, ranges): (&[usize], _) =
        if cfg!(miri) { (&[7, 16], &ranges[3..4]) } else { (&[1, 7, 16, 40, 64], ranges) };
    for &dim in dims {
        for ranges in ranges {
            // Scores of every size: even weights, one token that takes it all, and what would overflow e^x.
            for (query_size, tolerance) in [(0.1, 1e-6), (3.0, 4e-6), (1000.0, 2e-3)] {
                let case = Case::random(&mut random, dim, ranges, query_size);
                let mut fused = Vec::new();
                for isa in isas() {
                    let out = case.attend(isa);
                    let what = format!("dim {dim}, {ranges:?}, queries up to {query_size}, {isa}");
                    assert_close(&out, &case.reference(), tolerance, &what);
                    if is_fused(isa) {
                        fused.push(bits(&out));
                    }
                }
                assert!(fused.iter().all(|bits| *bits == fused[0]), "dim {dim}, {ranges:?}");
            }
        }
    }
}

#[test]
fn cutting_a_range_in_two_does_not_change_a_byte() {
    let mut random = Random::new(3);
    let mut case = Case::random(&mut random, 24, &[2..30], 2.0);
    let whole: Vec<_> = isas().map(|isa| bits(&case.attend(isa))).collect();
    for cut in [3, 15, 29] {
        case.ranges = vec![2..cut, cut..30];
        assert_eq!(isas().map(|isa| bits(&case.attend(isa))).collect::<Vec<_>>(), whole);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Few distinct scores, so that there are equals.
    #[test]
    #[cfg_attr(miri, ignore = "plain Rust, and slow there")]
    fn the_best_blocks_are_those_of_a_full_sort(
        scores in prop::collection::vec(prop_oneof![(0u8..4).prop_map(f32::from), 0f32..5.0], 0..300),
        budget in 0usize..320,
        stale in prop::collection::vec(any::<u32>(), 0..5),
    ) {
        let mut sorted: Vec<u32> = (0..scores.len() as u32).collect();
        sorted.sort_by(|a, b| scores[*b as usize].partial_cmp(&scores[*a as usize]).unwrap()); // stable
        sorted.truncate(budget);
        sorted.sort_unstable();
        let mut order = stale;
        prop_assert_eq!(best_blocks(&scores, budget, &mut order), sorted);
    }

    #[test]
    #[cfg_attr(miri, ignore = "plain Rust, and slow there")]
    fn ranges_hold_exactly_the_tokens_of_blocks_and_tail(
        chosen in prop::collection::vec(any::<bool>(), 0..40),
        block_tokens in 1usize..6,
        tail_tokens in 0usize..6,
    ) {
        let blocks: Vec<u32> = (0..chosen.len() as u32).filter(|b| chosen[*b as usize]).collect();
        let complete = chosen.len() * block_tokens;
        let mut ranges = Vec::new();
        token_ranges(&blocks, block_tokens, complete..complete + tail_tokens, &mut ranges);

        let kept = |token: &usize| *token >= complete || chosen[token / block_tokens];
        let want: Vec<usize> = (0..complete + tail_tokens).filter(kept).collect();
        prop_assert_eq!(ranges.iter().cloned().flatten().collect::<Vec<_>>(), want);
        prop_assert!(ranges.iter().all(|r| !r.is_empty()));
        prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "neighbours not merged: {:?}", ranges);
    }
}
