//! Sampling against hand-computed sets and exact probabilities.

use std::collections::BTreeSet;

use strata_engine::{Sampler, SamplerParams, SamplingError};

/// Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 at ids 3, 1, 4, 0, 2; id 5 is masked.
fn powers_of_two() -> Vec<f32> {
    let ln = |p: f32| p.ln();
    vec![ln(0.0625), ln(0.25), ln(0.0625), ln(0.5), ln(0.125), f32::NEG_INFINITY]
}

fn params() -> SamplerParams {
    SamplerParams { temperature: 1.0, seed: 7, ..SamplerParams::default() }
}

fn draws(params: SamplerParams, logits: &[f32], count: usize) -> Vec<u32> {
    let mut sampler = Sampler::new(params).unwrap();
    (0..count).map(|_| sampler.sample(logits).unwrap()).collect()
}

/// Ids seen in 2,000 draws: an id of probability 1/16 is missed with probability e^-129.
fn kept(params: SamplerParams, logits: &[f32]) -> Vec<u32> {
    draws(params, logits, 2000).into_iter().collect::<BTreeSet<u32>>().into_iter().collect()
}

/// Pearson's statistic of draws against probabilities.
fn chi_square(draws: &[u32], probabilities: &[f64]) -> f64 {
    let mut counts = vec![0.0; probabilities.len()];
    for &id in draws {
        counts[id as usize] += 1.0;
    }
    let terms = counts.iter().zip(probabilities).map(|(&count, &p)| {
        let expected = p * draws.len() as f64;
        if p == 0.0 {
            assert_eq!(count, 0.0, "an impossible token was drawn");
            return 0.0;
        }
        (count - expected) * (count - expected) / expected
    });
    terms.sum()
}

#[test]
fn greedy_takes_the_largest_and_the_lowest_id() {
    let logits = [1.0, 3.0, -1.0, 3.0, f32::NEG_INFINITY];
    for params in [
        SamplerParams::default(),
        SamplerParams { temperature: -1.0, ..params() },
        SamplerParams { top_k: 1, temperature: 5.0, ..params() },
    ] {
        assert_eq!(draws(params, &logits, 5), [1; 5]);
    }
    assert_eq!(draws(SamplerParams::default(), &[-0.0, 0.0], 1), [0]);
    assert_eq!(draws(SamplerParams::default(), &[f32::NEG_INFINITY, f32::MIN], 1), [1]);
}

#[test]
fn top_k_keeps_the_largest_and_the_lowest_ids_among_equals() {
    let logits = powers_of_two();
    assert_eq!(kept(SamplerParams { top_k: 2, ..params() }, &logits), [1, 3]);
    assert_eq!(kept(SamplerParams { top_k: 3, ..params() }, &logits), [1, 3, 4]);
    assert_eq!(kept(SamplerParams { top_k: 4, ..params() }, &logits), [0, 1, 3, 4]);
    assert_eq!(kept(SamplerParams { top_k: 0, ..params() }, &logits), [0, 1, 2, 3, 4]);
    assert_eq!(kept(SamplerParams { top_k: 1_000_000, ..params() }, &logits), [0, 1, 2, 3, 4]);
    assert_eq!(kept(SamplerParams { top_k: 2, ..params() }, &[0.0, -0.0, 0.0]), [0, 1]);
    // More equal logits than the pass over the vocabulary holds at once.
    assert_eq!(kept(SamplerParams { top_k: 3, ..params() }, &[2.0; 5000]), [0, 1, 2]);
}

#[test]
fn top_p_keeps_the_shortest_run_that_reaches_it() {
    let logits = powers_of_two();
    let kept = |top_p| kept(SamplerParams { top_p, ..params() }, &logits);
    assert_eq!(kept(0.0), [3]);
    assert_eq!(kept(0.49), [3]);
    assert_eq!(kept(0.51), [1, 3]);
    assert_eq!(kept(0.74), [1, 3]);
    assert_eq!(kept(0.76), [1, 3, 4]);
    assert_eq!(kept(0.93), [0, 1, 3, 4]);
    assert_eq!(kept(0.94), [0, 1, 2, 3, 4]);
    assert_eq!(kept(1.0), [0, 1, 2, 3, 4]);
}

#[test]
fn min_p_is_relative_to_the_most_probable() {
    let logits = powers_of_two();
    let kept = |min_p| kept(SamplerParams { min_p, ..params() }, &logits);
    assert_eq!(kept(1.0), [3]);
    assert_eq!(kept(0.51), [3]);
    assert_eq!(kept(0.49), [1, 3]);
    assert_eq!(kept(0.24), [1, 3, 4]);
    assert_eq!(kept(0.12), [0, 1, 2, 3, 4]);
}

/// top-p looks at the probabilities among the top-k (0.5 and 0.25 become 2/3 and 1/3), and neither looks at the
/// temperature.
#[test]
fn steps_come_in_the_documented_order() {
    let logits = powers_of_two();
    assert_eq!(kept(SamplerParams { top_k: 2, top_p: 0.6, ..params() }, &logits), [3]);
    assert_eq!(kept(SamplerParams { top_k: 2, top_p: 0.7, ..params() }, &logits), [1, 3]);
    assert_eq!(kept(SamplerParams { top_p: 0.76, temperature: 100.0, ..params() }, &logits), [1, 3, 4]);
    assert_eq!(kept(SamplerParams { min_p: 0.24, temperature: 100.0, ..params() }, &logits), [1, 3, 4]);
}

#[test]
fn draws_follow_the_probabilities() {
    const COUNT: usize = 100_000;
    let logits = powers_of_two();
    // 99.99 % quantiles of chi-square with 4, 4, 2 and 1 degrees of freedom: 23.5, 23.5, 18.4, 15.1.
    let exact = [0.0625, 0.25, 0.0625, 0.5, 0.125, 0.0];
    assert!(chi_square(&draws(params(), &logits, COUNT), &exact) < 23.5);
    // Temperature 1/2 squares the probabilities: 64 : 16 : 4 : 1 : 1 of 86.
    let squared = [1.0 / 86.0, 16.0 / 86.0, 1.0 / 86.0, 64.0 / 86.0, 4.0 / 86.0, 0.0];
    let cold = SamplerParams { temperature: 0.5, seed: 1, ..params() };
    assert!(chi_square(&draws(cold, &logits, COUNT), &squared) < 23.5);
    let three = SamplerParams { top_k: 3, seed: 2, ..params() };
    assert!(chi_square(&draws(three, &logits, COUNT), &[0.0, 2.0 / 7.0, 0.0, 4.0 / 7.0, 1.0 / 7.0, 0.0]) < 18.4);
    let two = SamplerParams { top_p: 0.7, seed: 3, ..params() };
    assert!(chi_square(&draws(two, &logits, COUNT), &[0.0, 1.0 / 3.0, 0.0, 2.0 / 3.0, 0.0, 0.0]) < 15.1);
    // The bound can be missed: draws at another temperature do.
    assert!(chi_square(&draws(cold, &logits, COUNT), &exact) > 1000.0);
}

/// The stream of random numbers is part of the results: these ids must never change. Computed in Python from the
/// published SplitMix64 and cumulative sums of 1/16, 1/4, 1/16, 1/2, 1/8 in order of id.
#[test]
fn draws_are_the_same_everywhere() {
    const RECORDED: [u32; 16] = [3, 1, 1, 2, 0, 3, 1, 3, 2, 3, 1, 3, 3, 3, 3, 1];
    assert_eq!(draws(SamplerParams { seed: 42, ..params() }, &powers_of_two(), 16), RECORDED);
    assert_ne!(draws(SamplerParams { seed: 43, ..params() }, &powers_of_two(), 16), RECORDED);
}

#[test]
fn extreme_logits_and_temperatures_are_fine() {
    assert_eq!(draws(SamplerParams { temperature: 1e-45, ..params() }, &[1.0, 1.0000001, 0.0], 50), [1; 50]);
    assert_eq!(draws(params(), &[f32::MAX, f32::MIN, f32::NEG_INFINITY], 50), [0; 50]);
    let flat = draws(SamplerParams { temperature: f32::MAX, ..params() }, &[3.0, -3.0], 10_000);
    assert!(chi_square(&flat, &[0.5, 0.5]) < 15.1);
}

#[test]
fn logits_that_are_no_numbers_are_errors() {
    for params in [SamplerParams::default(), params(), SamplerParams { top_k: 2, ..params() }] {
        let error = |logits: &[f32]| Sampler::new(params).unwrap().sample(logits).unwrap_err();
        assert!(
            matches!(error(&[1.0, f32::NAN, f32::NAN]), SamplingError::NotFinite { id: 1, value } if value.is_nan())
        );
        assert_eq!(error(&[0.0, 1.0, f32::INFINITY]), SamplingError::NotFinite { id: 2, value: f32::INFINITY });
        assert_eq!(error(&[f32::NEG_INFINITY; 3]), SamplingError::AllMasked { count: 3 });
        assert_eq!(error(&[]), SamplingError::NoLogits);
        let text = error(&[0.0, f32::NAN]).to_string();
        assert!(text.contains("token 1") && text.contains("NaN"), "{text}");
    }
}

#[test]
fn bad_parameters_are_errors() {
    let name = |params| match Sampler::new(params) {
        Err(SamplingError::BadParam { name, .. }) => name,
        other => panic!("{other:?}"),
    };
    for value in [-0.1, 1.1, f32::NAN, f32::INFINITY] {
        assert_eq!(name(SamplerParams { top_p: value, ..params() }), "top_p");
        assert_eq!(name(SamplerParams { min_p: value, ..params() }), "min_p");
    }
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert_eq!(name(SamplerParams { temperature: value, ..params() }), "temperature");
    }
}

/// A vocabulary of the published model's size. All sets are checked against a plain full sort.
#[test]
fn a_whole_vocabulary_is_truncated_as_a_full_sort_would() {
    const VOCAB: usize = 248_320;
    // Distinct enough to have ties too.
    let logits: Vec<f32> = (0..VOCAB).map(|id| ((id * 7919) % 100_003) as f32 / 5000.0).collect();
    let mut order: Vec<usize> = (0..VOCAB).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));

    let top: BTreeSet<u32> = order[..20].iter().map(|&id| id as u32).collect();
    let hot = SamplerParams { top_k: 20, temperature: 1e6, ..params() };
    assert_eq!(draws(hot, &logits, 500).into_iter().collect::<BTreeSet<u32>>(), top);

    let weight = |id: usize| f64::from(logits[id] - logits[order[0]]).exp();
    let total: f64 = order.iter().map(|&id| weight(id)).sum();
    let mut sum = 0.0;
    let run = 1 + order
        .iter()
        .position(|&id| {
            sum += weight(id);
            sum >= 0.9 * total
        })
        .unwrap();
    assert!(run > 10_000, "the run should need several prefixes: {run}");
    let nucleus: BTreeSet<u32> = order[..run].iter().map(|&id| id as u32).collect();
    let drawn = draws(SamplerParams { top_p: 0.9, temperature: 1e6, ..params() }, &logits, 100);
    assert!(drawn.iter().all(|id| nucleus.contains(id)));
    // Nearly flat at this temperature: about a tenth of the draws are from the last tenth of the run.
    let tail: BTreeSet<u32> = order[run * 9 / 10..run].iter().map(|&id| id as u32).collect();
    assert!((2..30).contains(&drawn.iter().filter(|id| tail.contains(id)).count()));

    let start = std::time::Instant::now();
    draws(SamplerParams { top_k: 20, top_p: 0.95, ..params() }, &logits, 100);
    assert!(start.elapsed().as_millis() < 1000, "100 draws took {:?}", start.elapsed());
}
