//! Sparse attention: scores and choice of blocks, the cache, and attention in both arithmetics.

use proptest::prelude::*;
use strata_gguf::TensorType;
use strata_kernels::attention::{Index, KvCache, KvType, Queries, Selections, attend, best_blocks, block_scores, gate};
use strata_kernels::bfloat16::{round, to_f32};
use strata_kernels::math::exp;
use strata_kernels::{Arithmetic, Cpu, Isa};
use strata_quant::{decode_row, encode_row};

use crate::reference::{Random, THREADS, assert_close, bits, cpus, dot_in_lanes, is_fused, isas, poison, sigmoid};

fn dot_in_doubles(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[test]
fn block_scores_match_the_double_reference() {
    let mut random = Random::new(1);
    let shapes = [(1, 1, 1, 1), (2, 2, 16, 0), (1, 3, 19, 3), (2, 5, 23, 6), (3, 4, 40, 33), (2, 4, 128, 9)];
    for &(rows, heads, dim, blocks) in if cfg!(miri) { &shapes[..4] } else { &shapes } {
        let (queries, keys) = (random.floats(rows * heads * dim), random.floats(blocks * dim));
        let each = || queries.chunks(heads * dim).flat_map(|row| keys.chunks(dim).map(move |key| (row, key)));
        let score = |(row, key): (&[f32], &[f32])| row.chunks(dim).map(|q| dot_in_doubles(q, key).max(0.0)).sum();
        let want: Vec<f64> = each().map(score).collect();
        for isa in isas() {
            let mut scores = poison(rows * blocks);
            block_scores(isa, &queries, &keys, heads * dim, dim, &mut scores);
            assert_close(&scores, &want, 2e-6 * (heads * dim) as f64, &format!("{heads} heads of {dim}, {isa}"));
            let in_lanes = |(row, key): (&[f32], &[f32])| {
                row.chunks(dim).map(|q| dot_in_lanes(is_fused(isa), q, key).max(0.0)).sum()
            };
            assert_eq!(scores, each().map(in_lanes).collect::<Vec<f32>>(), "{heads} heads of {dim}, {isa}");
        }
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
        scores in prop::collection::vec(
            prop_oneof![(0u8..4).prop_map(f32::from), 0f32..5.0, Just(1e-42), Just(f32::INFINITY)],
            0..300,
        ),
        budget in 0usize..300,
    ) {
        let budget = budget.min(scores.len());
        let mut sorted: Vec<u32> = (0..scores.len() as u32).collect();
        sorted.sort_by(|a, b| scores[*b as usize].partial_cmp(&scores[*a as usize]).unwrap()); // stable
        sorted.truncate(budget);
        sorted.sort_unstable();
        for isa in isas() {
            let mut best = vec![u32::MAX; budget];
            best_blocks(isa, &scores, &mut best);
            prop_assert_eq!(&best, &sorted);
        }
    }
}

#[test]
fn rows_choose_among_the_blocks_they_see_and_keep_the_tail() {
    let mut random = Random::new(2);
    let (heads, dim) = (3, 20);
    // More rows than are scored together, more blocks than one task scores; from within the budget to beyond it.
    for (block_tokens, budget, first_visible, rows) in [(4, 2, 1, 40), (1, 3, 2, 5), (3, 7, 300, 35), (8, 1, 16, 2)] {
        let blocks = (first_visible + rows) / block_tokens;
        let queries = random.floats(rows * heads * dim);
        let block_keys = random.floats(blocks * dim);
        for cpu in cpus() {
            let mut selections = Selections::default();
            let (queries, block_keys) = (&queries, &block_keys);
            let index = Index { heads, dim, block_tokens, budget_blocks: budget, queries, block_keys };
            selections.choose(&cpu, first_visible, &index);
            assert_eq!(selections.rows(), rows);
            for row in 0..rows {
                let visible = first_visible + row;
                let complete = visible / block_tokens;
                let mut order: Vec<u32> = (0..complete as u32).collect();
                if complete > budget {
                    let mut scores = poison(complete);
                    let query = &queries[row * heads * dim..][..heads * dim];
                    block_scores(cpu.isa(), query, &block_keys[..complete * dim], heads * dim, dim, &mut scores);
                    order.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
                    order.truncate(budget);
                    order.sort_unstable();
                    assert_eq!(selections.row(row).blocks(), Some(&order[..]));
                } else {
                    assert_eq!(selections.row(row).blocks(), None);
                }
                let of_blocks = order.iter().flat_map(|b| (0..block_tokens).map(|t| *b as usize * block_tokens + t));
                let want: Vec<usize> = of_blocks.chain(complete * block_tokens..visible).collect();
                assert_eq!(selections.row(row).ranges().flatten().collect::<Vec<_>>(), want);
                assert!(selections.row(row).ranges().all(|range| !range.is_empty()));
            }
        }
    }
}

/// A strip of rows over a cache.
struct Case {
    kv_heads: usize,
    heads: usize,
    dim: usize,
    first_visible: usize,
    rows: usize,
    block_tokens: usize,
    budget_blocks: usize,
    /// `[rows][heads][dim + 3]`.
    queries: Vec<f32>,
    index_queries: Vec<f32>,
    block_keys: Vec<f32>,
    /// `[tokens][kv_heads][dim]`; some more tokens than are seen.
    keys: Vec<f32>,
    values: Vec<f32>,
}

const INDEX_DIM: usize = 4;

impl Case {
    fn random(random: &mut Random, (kv_heads, group, dim): (usize, usize, usize), size: f32) -> Self {
        let (first_visible, rows) = (1 + random.below(300), [1, 2, 5, 17, 40][random.below(5)]);
        Self::new(random, (kv_heads, group, dim), size, first_visible, rows)
    }

    fn new(
        random: &mut Random,
        (kv_heads, group, dim): (usize, usize, usize),
        size: f32,
        first_visible: usize,
        rows: usize,
    ) -> Self {
        let tokens = first_visible + rows + random.below(9);
        let block_tokens = [4, 4, 4, 1, 2, 3, 6, 8][random.below(8)];
        let heads = kv_heads * group;
        Self {
            kv_heads,
            heads,
            dim,
            first_visible,
            rows,
            block_tokens,
            budget_blocks: 1 + random.below(first_visible / block_tokens + 4),
            queries: random.floats(rows * heads * (dim + 3)).iter().map(|q| q * size).collect(),
            index_queries: random.floats(rows * INDEX_DIM),
            block_keys: random.floats(tokens / block_tokens * INDEX_DIM),
            keys: random.floats(tokens * kv_heads * dim),
            values: random.floats(tokens * kv_heads * dim),
        }
    }

    fn query(&self, row: usize, head: usize) -> &[f32] {
        &self.queries[(row * self.heads + head) * (self.dim + 3)..][..self.dim]
    }

    fn key(&self, token: usize, head: usize) -> &[f32] {
        &self.keys[(token * self.kv_heads + head / (self.heads / self.kv_heads)) * self.dim..][..self.dim]
    }

    fn value(&self, token: usize, head: usize) -> &[f32] {
        &self.values[(token * self.kv_heads + head / (self.heads / self.kv_heads)) * self.dim..][..self.dim]
    }

    fn cache(&self, kv: KvType, keys: &[f32], values: &[f32], piece: usize) -> KvCache {
        let width = self.kv_heads * self.dim;
        let mut cache = KvCache::new(kv, self.kv_heads, self.dim, keys.len() / width).unwrap();
        for (keys, values) in keys.chunks(piece * width).zip(values.chunks(piece * width)) {
            cache.append(keys, values);
        }
        cache
    }

    fn selections(&self, cpu: &Cpu, first: usize, rows: usize) -> Selections {
        let index = Index {
            heads: 1,
            dim: INDEX_DIM,
            block_tokens: self.block_tokens,
            budget_blocks: self.budget_blocks,
            queries: &self.index_queries[first * INDEX_DIM..][..rows * INDEX_DIM],
            block_keys: &self.block_keys,
        };
        let mut selections = Selections::default();
        selections.choose(cpu, self.first_visible + first, &index);
        selections
    }

    fn attend(&self, cpu: &Cpu, cache: &KvCache, first: usize, rows: usize) -> Vec<f32> {
        let mut out = poison(rows * self.heads * self.dim);
        let width = self.heads * (self.dim + 3);
        let values = &self.queries[first * width..][..rows * width];
        let queries = Queries { values, heads: self.heads, stride: self.dim + 3 };
        attend(cpu, cache, &queries, &self.selections(cpu, first, rows), &mut out);
        out
    }

    fn tokens(&self, cpu: &Cpu, row: usize) -> Vec<usize> {
        self.selections(cpu, row, 1).row(0).ranges().flatten().collect()
    }

    /// All rows, and that each is what it is alone, over a cache in which all that it does not attend to is poison.
    fn attend_every_way(&self, cpu: &Cpu, kv: KvType) -> Vec<f32> {
        let all = self.attend(cpu, &self.cache(kv, &self.keys, &self.values, 7), 0, self.rows);
        let width = self.kv_heads * self.dim;
        for row in 0..self.rows {
            let (mut keys, mut values) = (vec![f32::NAN; self.keys.len()], vec![f32::NAN; self.keys.len()]);
            for token in self.tokens(cpu, row) {
                let at = token * width..(token + 1) * width;
                keys[at.clone()].copy_from_slice(&self.keys[at.clone()]);
                values[at.clone()].copy_from_slice(&self.values[at]);
            }
            let alone = self.attend(cpu, &self.cache(kv, &keys, &values, 100), row, 1);
            let of_all = &all[row * self.heads * self.dim..][..self.heads * self.dim];
            assert_eq!(bits(&alone), bits(of_all), "{self}, row {row} of {}", self.rows);
        }
        all
    }

    /// Softmax and weighted sum in double precision of values seen through `see`, and the sums of the magnitudes of the
    /// weighted values and the largest sum of magnitudes in a score.
    fn reference(&self, cpu: &Cpu, see: impl Fn(f32) -> f32) -> (Vec<f64>, Vec<f64>, f64) {
        let (mut out, mut magnitudes, mut largest_score) = (Vec::new(), Vec::new(), 0f64);
        let seen = |x: &[f32]| x.iter().map(|v| see(*v)).collect::<Vec<_>>();
        let root = (self.dim as f64).sqrt();
        for row in 0..self.rows {
            let tokens = self.tokens(cpu, row);
            for head in 0..self.heads {
                let query = seen(self.query(row, head));
                let scores: Vec<f64> =
                    tokens.iter().map(|t| dot_in_doubles(&query, &seen(self.key(*t, head))) / root).collect();
                for t in &tokens {
                    let products = query.iter().zip(seen(self.key(*t, head))).map(|(q, k)| f64::from((q * k).abs()));
                    largest_score = largest_score.max(products.sum::<f64>() / root);
                }
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
                let (mut sums, mut sizes) = (vec![0.0; self.dim], vec![0.0; self.dim]);
                for (score, token) in scores.iter().zip(&tokens) {
                    let weight = (score - largest).exp() / sum;
                    for (d, v) in seen(self.value(*token, head)).iter().enumerate() {
                        sums[d] += weight * f64::from(*v);
                        sizes[d] += weight * f64::from(v.abs());
                    }
                }
                out.extend(sums);
                magnitudes.extend(sizes);
            }
        }
        (out, magnitudes, largest_score)
    }

    /// What float32 attention promises, operation by operation.
    fn in_float32(&self, cpu: &Cpu) -> Vec<f32> {
        let fused = is_fused(cpu.isa());
        let mut out = Vec::new();
        for row in 0..self.rows {
            let tokens = self.tokens(cpu, row);
            for head in 0..self.heads {
                let scale = 1.0 / (self.dim as f32).sqrt();
                let score = |t: &usize| dot_in_lanes(fused, self.query(row, head), self.key(*t, head)) * scale;
                let scores: Vec<f32> = tokens.iter().map(score).collect();
                let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let weights: Vec<f32> = scores.iter().map(|s| exp(s - largest)).collect();
                let mut sums = vec![0.0f32; self.dim];
                for (weight, token) in weights.iter().zip(&tokens) {
                    for (sum, v) in sums.iter_mut().zip(self.value(*token, head)) {
                        *sum = if fused { weight.mul_add(*v, *sum) } else { *sum + weight * v };
                    }
                }
                let factor = 1.0 / weights.iter().fold(0.0, |a, b| a + b);
                out.extend(sums.iter().map(|sum| sum * factor));
            }
        }
        out
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kv_heads, heads, dim, block_tokens, budget_blocks, .. } = self;
        write!(f, "{heads}/{kv_heads} heads of {dim}, {budget_blocks} blocks of {block_tokens}")
    }
}

/// Key/value heads, query heads of each, width of a head.
const SHAPES: &[(usize, usize, usize)] = if cfg!(miri) {
    &[(2, 5, 18)]
} else {
    &[(1, 1, 1), (1, 2, 7), (2, 3, 16), (3, 1, 34), (1, 4, 64), (2, 5, 80), (1, 7, 32), (2, 12, 256), (1, 13, 128)]
};

/// Sizes of queries: even weights, one token that takes it all, and what would overflow `e^x`.
const SIZES: [f32; 3] = [0.1, 3.0, 1000.0];

#[test]
fn float32_attention_is_what_it_promises_bit_by_bit() {
    let mut random = Random::new(3);
    for &shape in SHAPES {
        for (size, tolerance) in SIZES.into_iter().zip([1e-6, 6e-6, 4e-3]) {
            let case = Case::random(&mut random, shape, size);
            for cpu in isas().map(|isa| Cpu::precise(isa, 1).unwrap()) {
                let got = case.attend_every_way(&cpu, KvType::Float32);
                let what = format!("{case}, queries up to {size}, {}", cpu.isa());
                assert_eq!(bits(&got), bits(&case.in_float32(&cpu)), "{what}");
                assert_close(&got, &case.reference(&cpu, |v| v).0, tolerance, &what);
            }
        }
    }
}

fn bfloat16_isas() -> impl Iterator<Item = Isa> {
    isas().filter(|isa| isa.fastest_arithmetic() == Arithmetic::Bfloat16)
}

#[test]
fn bfloat16_attention_is_as_near_to_the_double_softmax_as_its_roundings_allow() {
    let mut random = Random::new(4);
    for &shape in SHAPES {
        for size in SIZES {
            let case = Case::random(&mut random, shape, size);
            for cpu in bfloat16_isas().map(|isa| Cpu::fast(isa, 1).unwrap()) {
                let got = case.attend_every_way(&cpu, KvType::Bfloat16);
                let (want, magnitudes, largest_score) = case.reference(&cpu, |v| to_f32(round(v)));
                // Each weight is wrong by a factor of up to 1 + e: it is rounded to 8 bits, and its score is a float32
                // sum of `dim` products, scaled and reduced by the largest. A weighted mean with weights that are wrong
                // by e is wrong by up to 2 e of the mean magnitude; its own float32 sums are as long as there are tokens.
                let step = 2f64.powi(-24);
                let score_error = (case.dim + 4) as f64 * step * largest_score;
                let e = (score_error + 8.0 * step).exp() * (1.0 + 2f64.powi(-9)) - 1.0;
                let sums = (case.first_visible + case.rows + 100) as f64 * step;
                for (i, (got, want)) in got.iter().zip(want).enumerate() {
                    let bound = (2.0 * e / (1.0 - e).max(0.1) + 2.0 * sums) * magnitudes[i];
                    let error = (f64::from(*got) - want).abs();
                    let what = format!("{case}, queries up to {size}, {}", cpu.isa());
                    assert!(error <= bound, "{what}: value {i} is {got}, want {want} within {bound:e}");
                }
            }
        }
    }
}

/// What GGML's Q8_0 makes of a row, by the encoder and the decoder of files; a row is padded to whole blocks.
fn through_q8_0(rows: &[f32], dim: usize) -> Vec<f32> {
    let width = dim.next_multiple_of(32);
    let mut out = Vec::new();
    for row in rows.chunks_exact(dim) {
        let (mut padded, mut blocks) = (row.to_vec(), Vec::new());
        padded.resize(width, 0.0);
        encode_row(TensorType::Q8_0, &padded, &mut blocks).unwrap();
        decode_row(TensorType::Q8_0, &blocks, &mut padded);
        out.extend_from_slice(&padded[..dim]);
    }
    out
}

/// A cache in a smaller type is computed with as if its values had come rounded, in the arithmetic at hand.
#[test]
fn what_is_kept_is_what_is_computed_with() {
    let mut random = Random::new(11);
    for &shape in SHAPES {
        let case = Case::random(&mut random, shape, 3.0);
        let rounded = |rows: &[f32]| rows.iter().map(|v| to_f32(round(*v))).collect::<Vec<_>>();
        let [keys, values] = [&case.keys, &case.values];
        let bfloat16 = [rounded(keys), rounded(values)];
        let q8_0 = [through_q8_0(keys, case.dim), through_q8_0(values, case.dim)];
        assert_ne!(&q8_0[0], keys);
        let check = |cpu: &Cpu, kv, [keys, values]: &[Vec<f32>; 2], as_kv| {
            let want = case.attend(cpu, &case.cache(as_kv, keys, values, 5), 0, case.rows);
            assert!(want.iter().all(|v| v.is_finite()));
            let what = format!("{case}, {kv:?}, {} {}", cpu.isa(), cpu.arithmetic());
            assert_eq!(bits(&case.attend_every_way(cpu, kv)), bits(&want), "{what}");
        };
        for cpu in isas().map(|isa| Cpu::precise(isa, 1).unwrap()) {
            check(&cpu, KvType::Bfloat16, &bfloat16, KvType::Float32);
            check(&cpu, KvType::Q8_0, &q8_0, KvType::Float32);
        }
        for isa in bfloat16_isas() {
            let cpu = Cpu::fast(isa, 1).unwrap();
            check(&cpu, KvType::Q8_0, &q8_0, KvType::Bfloat16);
            // A cache in float32 is attended to in float32, whatever the processor has.
            let all = case.cache(KvType::Float32, keys, values, 5);
            let want = case.attend(&Cpu::precise(isa, 1).unwrap(), &all, 0, case.rows);
            assert_eq!(bits(&case.attend(&cpu, &all, 0, case.rows)), bits(&want), "{case}, {isa}");
        }
    }
}

#[test]
fn what_q8_0_cannot_hold_is_no_number() {
    let (dim, tokens) = (64, 5);
    for wrong in [f32::NAN, f32::INFINITY, 1e30] {
        let mut values = vec![1.0; tokens * dim];
        values[3 * dim + 40] = wrong;
        let mut cache = KvCache::new(KvType::Q8_0, 1, dim, tokens).unwrap();
        cache.append(&vec![0.5; tokens * dim], &values);
        for (i, value) in cache.values().iter().enumerate() {
            // The block of 32 that has it, and no other.
            let is_hit = (3 * dim + 32..4 * dim).contains(&i);
            assert_eq!(value.is_nan(), is_hit, "{wrong}: value {i} is {value}");
        }
    }
}

#[test]
fn rows_threads_and_pieces_do_not_show() {
    let mut random = Random::new(5);
    for shape in [(2, 12, 64), (1, 3, 20)] {
        let case = Case::new(&mut random, shape, 2.0, 70, if cfg!(miri) { 9 } else { 300 });
        let width = case.heads * case.dim;
        for (fast, kv) in [false, true].into_iter().flat_map(|fast| KvType::ALL.map(|kv| (fast, kv))) {
            for isa in isas() {
                let cpu = |threads| if fast { Cpu::fast(isa, threads) } else { Cpu::precise(isa, threads) }.unwrap();
                let cache = case.cache(kv, &case.keys, &case.values, 1);
                let all = case.attend(&cpu(1), &cache, 0, case.rows);
                for threads in THREADS {
                    for strip in [1, 2, 5, 17, case.rows] {
                        let cpu = cpu(*threads);
                        let first = random.below(case.rows.min(200) - strip.min(8) + 1).min(case.rows - strip);
                        let got = case.attend(&cpu, &cache, first, strip);
                        let what = format!("{case}, rows {first}+{strip}, {kv:?}, {isa}, {threads} threads");
                        assert_eq!(bits(&got), bits(&all[first * width..(first + strip) * width]), "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_may_attend_to_everything() {
    let mut random = Random::new(6);
    for fast in [false, true] {
        for isa in isas() {
            let cpu = if fast { Cpu::fast(isa, 2) } else { Cpu::precise(isa, 2) }.unwrap();
            let mut case = Case::new(&mut random, (2, 3, 24), 1.0, 61, 9);
            case.budget_blocks = 1000;
            let cache = case.cache(KvType::of(cpu.arithmetic()), &case.keys, &case.values, 4);
            let chosen = case.attend(&cpu, &cache, 0, case.rows);
            let mut selections = Selections::default();
            selections.set_everything(case.first_visible, case.rows);
            let mut out = poison(chosen.len());
            let queries = Queries { values: &case.queries, heads: case.heads, stride: case.dim + 3 };
            attend(&cpu, &cache, &queries, &selections, &mut out);
            assert_eq!(bits(&out), bits(&chosen));
        }
    }
}

#[test]
fn a_cache_gives_back_what_it_was_given_as_rounded() {
    let mut random = Random::new(7);
    for (heads, dim) in [(1, 1), (2, 5), (3, 16), (2, 100), (2, 256)] {
        let (keys, values) = (random.floats(11 * heads * dim), random.floats(11 * heads * dim));
        for kv in KvType::ALL {
            let mut cache = KvCache::new(kv, heads, dim, 11).unwrap();
            for _ in 0..2 {
                cache.clear();
                for piece in [0..3, 3..4, 4..4, 4..11] {
                    let at = piece.start * heads * dim..piece.end * heads * dim;
                    cache.append(&keys[at.clone()], &values[at]);
                    assert_eq!(cache.tokens(), piece.end);
                }
                let seen = |x: &[f32]| match kv {
                    KvType::Float32 => x.to_vec(),
                    KvType::Bfloat16 => x.iter().map(|v| to_f32(round(*v))).collect(),
                    KvType::Q8_0 => through_q8_0(x, dim),
                };
                assert_eq!((cache.keys(), cache.values()), (seen(&keys), seen(&values)));
            }
        }
    }
}

#[test]
fn an_absurd_cache_is_refused() {
    for kv in KvType::ALL {
        assert!(KvCache::new(kv, 2, 256, usize::MAX).is_none());
        assert_eq!(KvCache::bytes(kv, 2, 256, usize::MAX), usize::MAX);
    }
    assert_eq!(KvCache::bytes(KvType::Float32, 2, 256, 9), 2 * 9 * 2 * 256 * 4);
    assert_eq!(KvCache::bytes(KvType::Bfloat16, 2, 256, 9), 2 * 12 * 2 * 256 * 2);
    assert_eq!(KvCache::bytes(KvType::Q8_0, 2, 256, 9), 2 * 12 * 2 * 256 / 32 * 34);
}

#[test]
fn gates_match_the_double_reference() {
    let mut random = Random::new(8);
    for (heads, dim) in [(1, 1), (3, 21), (2, 64)] {
        let values = random.floats(heads * dim);
        let projected: Vec<f32> = random.floats(2 * heads * dim).iter().map(|v| v * 20.0).collect();
        let gated = |i: usize| f64::from(values[i]) * sigmoid(f64::from(projected[i / dim * 2 * dim + dim + i % dim]));
        let want: Vec<f64> = (0..heads * dim).map(gated).collect();
        for isa in isas() {
            let mut got = values.clone();
            gate(isa, &mut got, &projected, dim);
            assert_close(&got, &want, 5e-7, &format!("{heads} heads of {dim}, {isa}"));
        }
    }
}

#[test]
fn what_a_wider_head_left_behind_does_not_show() {
    let mut random = Random::new(9);
    for cpu in bfloat16_isas().map(|isa| Cpu::fast(isa, 1).unwrap()) {
        // Both pad their queries to 128 dimensions; those of the first are infinite where the second has none.
        let mut wide = Case::new(&mut random, (1, 1, 128), 1.0, 5, 1);
        let narrow = Case::new(&mut random, (1, 1, 80), 1.0, 5, 1);
        let before = narrow.attend_every_way(&cpu, KvType::Bfloat16);
        assert!(before.iter().all(|v| v.is_finite()));
        wide.queries.fill(f32::INFINITY);
        wide.attend(&cpu, &wide.cache(KvType::Bfloat16, &wide.keys, &wide.values, 7), 0, 1);
        assert_eq!(bits(&narrow.attend_every_way(&cpu, KvType::Bfloat16)), bits(&before), "{}", cpu.isa());
    }
}

#[test]
fn tokens_that_the_cache_lacks_are_refused() {
    let cpus = || cpus().chain(bfloat16_isas().map(|isa| Cpu::fast(isa, 1).unwrap()));
    for (kv, cpu) in KvType::ALL.into_iter().flat_map(|kv| cpus().map(move |cpu| (kv, cpu))) {
        let mut cache = KvCache::new(kv, 1, 16, 8).unwrap();
        cache.append(&[1.0; 5 * 16], &[1.0; 5 * 16]);
        let mut selections = Selections::default();
        for (visible, is_refused) in [(5, false), (6, true), (9, true)] {
            selections.set_everything(visible - 1, 2);
            let queries = Queries { values: &[1.0; 2 * 16], heads: 1, stride: 16 };
            let run = || attend(&cpu, &cache, &queries, &selections, &mut [0.0; 2 * 16]);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            assert_eq!(result.is_err(), is_refused, "{visible} of 5 tokens, {kv:?}, {}", cpu.isa());
        }
    }
}
