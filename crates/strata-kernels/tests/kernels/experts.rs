//! Routing, routed experts, and the sum of their outputs.

use proptest::prelude::*;
use strata_gguf::TensorType;
use strata_kernels::experts::{Choice, Combined, Expert, Outputs, combine, experts};
use strata_kernels::math::silu_times;
use strata_kernels::matmul::{Matrix, matmul};
use strata_kernels::{Cpu, Isa, route};

use crate::reference::{Random, Weights, assert_close, bits, cpus, doubles, fast_cpus, poison, same_bits, silu};

/// Weights of a few experts, inputs, and the choices of each expert.
struct Case {
    hidden: usize,
    ff: usize,
    top_k: usize,
    rows: usize,
    weights: Vec<[Weights; 3]>,
    choices: Vec<Vec<Choice>>,
    x: Vec<f32>,
}

/// More experts are chosen among than are in the group: the choices of the others are not to be computed.
const GROUP: usize = 5;
const OTHERS: usize = 2;

impl Case {
    fn random(seed: u64, rows: usize, top_k: usize, quantised: bool) -> Self {
        let random = &mut Random::new(seed);
        let (hidden, ff) = match quantised {
            true => (96, 64),
            false if cfg!(miri) => (19, 5),
            false => (33, 19),
        };
        let types = match quantised {
            true => [TensorType::Q4_0, TensorType::IQ4_NL, TensorType::Q8_0],
            false => [TensorType::F32, TensorType::F16, TensorType::BF16],
        };
        let weights = (0..GROUP)
            .map(|_| {
                let shapes = [(ff, hidden, 0.5), (ff, hidden, 1.0), (hidden, ff, 1.25)];
                let mut parts =
                    types.iter().zip(shapes).map(|(ty, (r, c, scale))| Weights::random(random, *ty, r, c, scale));
                std::array::from_fn(|_| parts.next().unwrap())
            })
            .collect();
        let mut choices = vec![Vec::new(); GROUP + OTHERS];
        for row in 0..rows as u32 {
            // Expert 0 takes every row of some cases, and expert 4 none.
            let mut free: Vec<usize> = (0..GROUP + OTHERS).filter(|e| *e != 4).collect();
            for k in 0..top_k as u32 {
                let at = if k == 0 && seed.is_multiple_of(2) { 0 } else { random.below(free.len()) };
                choices[free.swap_remove(at)].push(Choice { row, k });
            }
        }
        choices.truncate(GROUP);
        let x = random.floats(rows * hidden);
        Self { hidden, ff, top_k, rows, weights, choices, x }
    }

    fn group(&self) -> Vec<Expert<'_>> {
        let pairs = self.weights.iter().zip(&self.choices);
        pairs
            .map(|([gate, up, down], choices)| Expert {
                gate: gate.matrix(),
                up: up.matrix(),
                down: down.matrix(),
                choices,
            })
            .collect()
    }

    /// Outputs and hidden values of a group, into poisoned memory.
    fn run(&self, cpu: &Cpu, group: &[Expert<'_>]) -> (Vec<f32>, Vec<f32>) {
        let places = self.rows * self.top_k;
        let (mut out, mut hidden) = (poison(places * self.hidden), poison(places * self.ff));
        experts(cpu, group, &self.x, &mut Outputs { out: &mut out, hidden: Some(&mut hidden), top_k: self.top_k });
        (out, hidden)
    }

    /// What [`run`](Self::run) should give, to the bit: each choice computed alone, and poison where there is none.
    fn one_by_one(&self, cpu: &Cpu) -> (Vec<f32>, Vec<f32>) {
        let places = self.rows * self.top_k;
        let (mut out, mut hidden) = (poison(places * self.hidden), poison(places * self.ff));
        for ([gate, up, down], choices) in self.weights.iter().zip(&self.choices) {
            for choice in choices {
                let at = choice.row as usize * self.top_k + choice.k as usize;
                let x = &self.x[choice.row as usize * self.hidden..][..self.hidden];
                let g = &mut hidden[at * self.ff..][..self.ff];
                let mut u = vec![0.0; self.ff];
                matmul(cpu, &gate.matrix(), x, g);
                matmul(cpu, &up.matrix(), x, &mut u);
                silu_times(cpu.isa(), g, &u);
                matmul(cpu, &down.matrix(), g, &mut out[at * self.hidden..][..self.hidden]);
            }
        }
        (out, hidden)
    }
}

fn cases() -> Vec<Case> {
    if cfg!(miri) {
        return vec![Case::random(2, 3, 2, false)];
    }
    let shapes = [(1, 1, true), (2, 3, false), (7, 2, true), (33, 4, false), (530, 2, true), (64, 6, false)];
    let seeds = 10..;
    shapes.into_iter().cycle().zip(seeds).take(12).map(|((r, k, q), seed)| Case::random(seed, r, k, q)).collect()
}

#[test]
fn every_choice_has_the_bytes_it_has_alone_and_nothing_else_is_written() {
    for case in cases() {
        for cpu in cpus().chain(fast_cpus()) {
            let what = format!("{} rows, {} {}, {} threads", case.rows, cpu.isa(), cpu.arithmetic(), cpu.threads());
            let (want_out, want_hidden) = case.one_by_one(&cpu);
            let mut group = case.group();
            let (out, hidden) = case.run(&cpu, &group);
            assert_eq!(bits(&out), bits(&want_out), "outputs, {what}");
            assert_eq!(bits(&hidden), bits(&want_hidden), "hidden, {what}");

            // In another order, in two groups, and without looking at hidden values.
            group.reverse();
            let mut out = poison(out.len());
            for part in group.chunks(3) {
                experts(&cpu, part, &case.x, &mut Outputs { out: &mut out, hidden: None, top_k: case.top_k });
            }
            assert_eq!(bits(&out), bits(&want_out), "outputs of two groups, {what}");
        }
    }
}

#[test]
fn experts_match_the_double_reference() {
    for case in cases() {
        for cpu in cpus() {
            let (out, hidden) = case.run(&cpu, &case.group());
            for ([gate, up, down], choices) in case.weights.iter().zip(&case.choices) {
                for choice in choices {
                    let at = choice.row as usize * case.top_k + choice.k as usize;
                    let x = doubles(&case.x[choice.row as usize * case.hidden..][..case.hidden]);
                    let h: Vec<f64> = gate.times(&x).iter().zip(up.times(&x)).map(|(g, u)| silu(*g) * u).collect();
                    let out = &out[at * case.hidden..][..case.hidden];
                    assert_near(out, &down.times(&h), "outputs");
                    assert_near(&hidden[at * case.ff..][..case.ff], &h, "hidden");
                }
            }
        }
    }
}

/// Close in relation to the largest value of the row.
#[track_caller]
fn assert_near(got: &[f32], want: &[f64], what: &str) {
    let largest = want.iter().fold(0.0, |a: f64, v| a.max(v.abs()));
    assert_close(got, want, 4e-6 * largest, what);
}

#[test]
fn a_group_of_none_writes_nothing() {
    let mut out = poison(4);
    experts(
        &Cpu::precise(Isa::Portable, 1).unwrap(),
        &[],
        &[0.0; 4],
        &mut Outputs { out: &mut out, hidden: None, top_k: 1 },
    );
    assert_eq!(bits(&out), bits(&poison(4)));
}

/// Threads would write one place at the same time: in a release build, too, that must not happen.
#[test]
fn choices_that_share_a_place_or_have_none_are_refused() {
    let one = 1f32.to_le_bytes();
    let weights = || Matrix::new(TensorType::F32, 1, 1, 1.0, &one);
    let run = |first: &[(u32, u32)], second: &[(u32, u32)]| {
        let choices = [first, second].map(|c| c.iter().map(|&(row, k)| Choice { row, k }).collect::<Vec<_>>());
        let expert = |choices| Expert { gate: weights(), up: weights(), down: weights(), choices };
        let group = choices.each_ref().map(|c| expert(c));
        let cpu = Cpu::precise(Isa::Portable, 1).unwrap();
        let mut out = [0.0; 6];
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            experts(&cpu, &group, &[1.0; 3], &mut Outputs { out: &mut out, hidden: None, top_k: 2 });
        }))
        .is_ok()
    };
    assert!(run(&[(0, 0), (1, 0)], &[(0, 1), (2, 1)]));
    assert!(!run(&[(1, 0)], &[(0, 0), (1, 0)]), "a choice of two experts");
    assert!(!run(&[(1, 0), (1, 0)], &[]), "a choice twice");
    assert!(!run(&[(0, 2)], &[]), "a third choice of two lies in the next row");
    assert!(!run(&[(3, 0)], &[]), "a row that is not there");
    assert!(!run(&[(u32::MAX, 1)], &[]), "a row far away");
}

#[test]
fn combine_adds_in_the_order_of_choices() {
    // 1e8 + 1 is 1e8: any other order gives 1, or the 1 of the shared expert is lost.
    let outputs = [1e8, 1.0, -1e8, 1e8, -1e8, 1.0];
    let rows = Combined { weights: &[1.0; 6], outputs: &outputs, shared_gate: &[0.5; 2], shared: &[2.0; 2] };
    for (_, y) in same_bits(|cpu| {
        let mut y = poison(2);
        combine(cpu, &rows, &mut y);
        y
    }) {
        assert_eq!(y, [1.0, 2.0]);
    }
}

#[test]
fn combine_matches_the_double_reference() {
    let mut random = Random::new(5);
    for (rows, top_k, width) in
        [(1, 1, 1), (3, 2, 37), (1, if cfg!(miri) { 1 } else { 3 }, 600), (if cfg!(miri) { 1 } else { 7 }, 10, 65)]
    {
        let (weights, outputs) = (random.floats(rows * top_k), random.floats(rows * top_k * width));
        let (shared_gate, shared) = (random.floats(rows), random.floats(rows * width));
        let want = |at: usize| -> f64 {
            let (t, i) = (at / width, at % width);
            let choices =
                (t * top_k..(t + 1) * top_k).map(|k| f64::from(weights[k]) * f64::from(outputs[k * width + i]));
            choices.sum::<f64>() + f64::from(shared_gate[t]) * f64::from(shared[at])
        };
        let want: Vec<f64> = (0..rows * width).map(want).collect();
        let all = |from: usize, count: usize| Combined {
            weights: &weights[from * top_k..][..count * top_k],
            outputs: &outputs[from * top_k * width..][..count * top_k * width],
            shared_gate: &shared_gate[from..][..count],
            shared: &shared[from * width..][..count * width],
        };
        let results = same_bits(|cpu| {
            let mut y = poison(rows * width);
            combine(cpu, &all(0, rows), &mut y);
            // Each row by itself has the same bytes.
            for (t, row) in y.chunks_exact(width).enumerate() {
                let mut alone = poison(width);
                combine(cpu, &all(t, 1), &mut alone);
                assert_eq!(bits(&alone), bits(row), "row {t}");
            }
            y
        });
        results.iter().for_each(|(isa, y)| assert_close(y, &want, 1e-6 * (top_k as f64 + 1.0), &format!("{isa}")));
    }
}

#[test]
fn rows_are_routed_as_they_are_alone() {
    let mut random = Random::new(6);
    let (rows, experts, top_k) = (23, 40, 5);
    let logits = random.floats(rows * experts);
    let (mut want_ids, mut want) = (vec![u32::MAX; rows * top_k], poison(rows * top_k));
    let chosen = want_ids.chunks_exact_mut(top_k).zip(want.chunks_exact_mut(top_k));
    for (logits, (ids, weights)) in logits.chunks_exact(experts).zip(chosen) {
        route::choose(logits, ids, weights);
    }
    for (_, weights) in same_bits(|cpu| {
        let (mut ids, mut weights) = (vec![u32::MAX; rows * top_k], poison(rows * top_k));
        route::choose_rows(cpu, &logits, experts, &mut ids, &mut weights);
        assert_eq!(ids, want_ids);
        weights
    }) {
        assert_eq!(bits(&weights), bits(&want));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Few distinct values, so that there are equals.
    #[test]
    #[cfg_attr(miri, ignore = "plain Rust, and slow there")]
    fn a_route_is_the_start_of_the_sorted_logits(
        logits in prop::collection::vec(prop_oneof![(-4i8..4).prop_map(f32::from), -30f32..30.0], 1..600),
        top_k in 0usize..20,
    ) {
        let top_k = top_k.min(logits.len());
        let (mut ids, mut weights) = (vec![u32::MAX; top_k], poison(top_k));
        route::choose(&logits, &mut ids, &mut weights);

        let mut sorted: Vec<u32> = (0..logits.len() as u32).collect();
        sorted.sort_by(|a, b| logits[*b as usize].partial_cmp(&logits[*a as usize]).unwrap()); // stable
        prop_assert_eq!(&ids, &sorted[..top_k]);

        // Softmax over all, renormalised over the chosen.
        let all: Vec<f64> = logits.iter().map(|l| f64::from(*l).exp()).collect();
        let chosen: f64 = ids.iter().map(|id| all[*id as usize]).sum();
        let want: Vec<f64> = ids.iter().map(|id| all[*id as usize] / chosen).collect();
        assert_close(&weights, &want, 1e-6, "weights");
    }
}

#[test]
fn experts_of_different_shapes_are_refused() {
    let cpu = Cpu::precise(Isa::best(), 1).unwrap();
    let bytes = [0; 4 * 64 * 8];
    let matrix = |rows: usize, cols: usize| Matrix::new(TensorType::F32, rows, cols, 1.0, &bytes[..4 * rows * cols]);
    let right = [(5, 8), (5, 8), (8, 5)];
    // A second expert that would read or write beyond the room that the first one asks for.
    for (part, shape) in [(0, (64, 8)), (1, (64, 8)), (0, (5, 4)), (2, (64, 5)), (2, (8, 4)), (2, (8, 5))] {
        let mut shapes = right;
        shapes[part] = shape;
        let choices = [[Choice { row: 0, k: 0 }], [Choice { row: 0, k: 1 }]];
        let expert = |shapes: [(usize, usize); 3], choices| {
            let [gate, up, down] = shapes.map(|(rows, cols)| matrix(rows, cols));
            Expert { gate, up, down, choices }
        };
        let group = [expert(right, &choices[0][..]), expert(shapes, &choices[1][..])];
        let mut out = [0.0; 2 * 8];
        let outputs = &mut Outputs { out: &mut out, hidden: None, top_k: 2 };
        let run = || experts(&cpu, &group, &[1.0; 8], outputs);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        assert_eq!(result.is_err(), shapes != right, "{shapes:?}");
    }
}
