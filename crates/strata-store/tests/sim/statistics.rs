//! Made-up routes behave as measured ones.

use strata_store::plan::touched_experts;
use strata_store::sim::{Habits, Ranking, Synthetic, Trace};

const HABITS: Habits = Habits { foreseen: 0.595, ranked: 0.65 };

fn synthetic(tokens: u32, strip_rows: u32) -> Synthetic {
    Synthetic { layers: 48, experts: 512, top_k: 10, tokens, strip_rows, habits: HABITS, seed: 7 }
}

/// Distinct experts of a layer in all strips, on average.
fn distinct(trace: &Trace) -> f64 {
    let mut sum = 0;
    for layer in 0..trace.layers as usize {
        let mut used = vec![false; trace.experts as usize];
        trace.strips.iter().flat_map(|strip| &strip.layers[layer].demand).for_each(|d| used[d.expert as usize] = true);
        sum += used.iter().filter(|used| **used).count();
    }
    sum as f64 / f64::from(trace.layers)
}

#[test]
fn rows_use_as_many_experts_as_measured() {
    for (tokens, strip_rows, measured) in [(1023, 1024, 410.0), (2047, 256, 470.0), (1023, 100, 410.0)] {
        let found = distinct(&synthetic(tokens, strip_rows).routes().0);
        assert!((found / measured - 1.0).abs() < 0.015, "{tokens} rows: {found}");
    }
    // Of few rows and many, of another shape.
    for tokens in [8, 64, 244, 8000] {
        let found = distinct(&synthetic(tokens, 64).routes().0);
        let expected = touched_experts(512, 10, u64::from(tokens));
        assert!((found / expected - 1.0).abs() < 0.03, "{tokens} rows: {found}, expected {expected}");
    }
    let small = Synthetic { experts: 96, top_k: 8, ..synthetic(300, 100) };
    let (found, expected) = (distinct(&small.routes().0), touched_experts(96, 8, 300));
    assert!((found / expected - 1.0).abs() < 0.03, "{found}, expected {expected}");
}

#[test]
fn every_row_chooses_as_many_as_it_must() {
    for (experts, top_k, tokens) in [(512, 10, 50), (96, 8, 30), (16, 16, 20), (5, 9, 11), (7, 1, 1), (512, 10, 1)] {
        let synthetic = Synthetic { experts, top_k, layers: 5, ..synthetic(tokens, 16) };
        let (trace, ranking) = synthetic.routes();
        assert_eq!((trace.tokens(), trace.top_k), (u64::from(tokens), top_k.min(experts)));
        for strip in &trace.strips {
            for (at, layer) in strip.layers.iter().enumerate() {
                let choices = |list: &[strata_store::Demand]| list.iter().map(|d| d.tokens).sum::<u32>();
                assert_eq!(choices(&layer.demand), strip.rows * trace.top_k);
                assert_eq!(choices(&layer.forecast), if at == 4 { 0 } else { strip.rows * trace.top_k });
                assert!(layer.demand.iter().chain(&layer.forecast).all(|d| d.tokens <= strip.rows));
            }
        }
        for mut layer in ranking.layers {
            layer.sort_unstable();
            assert!(layer.iter().copied().eq(0..experts), "a ranking has every expert once");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_routes() {
    let one = synthetic(100, 50);
    assert_eq!(one.routes(), one.routes());
    assert_ne!(one.routes(), Synthetic { seed: 8, ..one.clone() }.routes());
}

/// Share of the uses that a layer's first 64 experts of a ranking have.
fn share_of_the_first(trace: &Trace, ranking: &Ranking) -> f64 {
    let (mut first, mut all) = (0, 0);
    for strip in &trace.strips {
        for (layer, ranking) in strip.layers.iter().zip(&ranking.layers) {
            for demand in &layer.demand {
                all += demand.tokens;
                first += if ranking[..64].contains(&demand.expert) { demand.tokens } else { 0 };
            }
        }
    }
    f64::from(first) / f64::from(all)
}

#[test]
fn rankings_know_more_or_less() {
    let share = |ranked| {
        let habits = Habits { ranked, ..HABITS };
        let (trace, ranking) = Synthetic { habits, ..synthetic(256, 256) }.routes();
        (share_of_the_first(&trace, &ranking), share_of_the_first(&trace, &Ranking::of(&trace)))
    };
    let (nothing, best) = share(0.0);
    assert!((nothing - 64.0 / 512.0).abs() < 0.03, "{nothing}");
    let (some, all) = (share(0.65).0, share(1.0).0);
    assert!(nothing + 0.1 < some && some + 0.1 < all && all < best, "{nothing} {some} {all} {best}");
    assert!(best - all < 0.02, "{all} {best}");
}

#[test]
fn forecasts_foresee_as_much_as_they_should() {
    let foreseen = |foreseen| {
        let habits = Habits { foreseen, ..HABITS };
        let (trace, _) = Synthetic { habits, ..synthetic(1, 1) }.routes();
        let layers = &trace.strips[0].layers;
        let hits = layers.windows(2).map(|pair| pair[0].forecast.iter().filter(|d| pair[1].demand.contains(d)).count());
        hits.sum::<usize>() as f64 / 470.0
    };
    // Some of what is not foreseen is guessed.
    assert!((0.55..0.75).contains(&foreseen(0.595)), "{}", foreseen(0.595));
    assert!(foreseen(0.0) < 0.3 && foreseen(1.0) == 1.0);
}
