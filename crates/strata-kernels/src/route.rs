//! The router's choice (spec 6.4).

use crate::Cpu;
use crate::math::exp;
use crate::pool::DisjointMut;

/// Rows that a thread takes at least.
const ROWS_GRAIN: usize = 4;

/// [`choose`] for each row of `logits`, which are `experts` wide; `ids` and `weights` are `[rows][top_k]`.
pub fn choose_rows(cpu: &Cpu, logits: &[f32], experts: usize, ids: &mut [u32], weights: &mut [f32]) {
    let rows = logits.len() / experts;
    let top_k = ids.len() / rows.max(1);
    let fits = logits.len() == rows * experts && ids.len() == rows * top_k && weights.len() == ids.len();
    assert!(fits, "route: shapes differ");
    let (ids, weights) = (DisjointMut::new(ids), DisjointMut::new(weights));
    cpu.for_ranges(rows, ROWS_GRAIN, |range| {
        for row in range {
            // SAFETY: row `row` of each is this range's alone.
            let (ids, weights) = unsafe { (ids.part(row * top_k, top_k), weights.part(row * top_k, top_k)) };
            choose(&logits[row * experts..][..experts], ids, weights);
        }
    });
}

/// The `ids.len()` largest of `logits` in descending order (the lower index first among equals), and their weights by
/// [`weigh`].
///
/// Not-a-number logits are never preferred to numbers; if all are, the choice is still `ids.len()` distinct experts.
pub fn choose(logits: &[f32], ids: &mut [u32], weights: &mut [f32]) {
    assert!(ids.len() == weights.len() && ids.len() <= logits.len(), "route: more choices than experts");
    if ids.is_empty() {
        return;
    }
    // Insertion into a short sorted list: top_k is about ten.
    let better = |a: u32, b: u32| {
        let (x, y) = (logits[a as usize], logits[b as usize]);
        x > y || (y.is_nan() && !x.is_nan())
    };
    let mut chosen = 0;
    for expert in 0..logits.len() as u32 {
        if chosen == ids.len() {
            if !better(expert, ids[chosen - 1]) {
                continue;
            }
            chosen -= 1;
        }
        let mut at = chosen;
        while at > 0 && better(expert, ids[at - 1]) {
            ids[at] = ids[at - 1];
            at -= 1;
        }
        ids[at] = expert;
        chosen += 1;
    }
    weigh(logits, ids, weights);
}

/// The softmax weights of the chosen `ids`, the one with the largest logit first: they equal the softmax over all logits
/// renormalised over the chosen.
///
/// # Panics
/// When nothing was chosen, an expert does not exist, or shapes differ.
pub fn weigh(logits: &[f32], ids: &[u32], weights: &mut [f32]) {
    assert!(ids.len() == weights.len(), "route: shapes differ");
    let best = ids[0];
    let mut sum = 0.0;
    for (weight, id) in weights.iter_mut().zip(ids.iter()) {
        *weight = exp(logits[*id as usize] - logits[best as usize]);
        sum += *weight;
    }
    weights.iter_mut().for_each(|w| *w /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_first_lower_index_among_equals() {
        let mut ids = [0; 3];
        let mut weights = [0.0; 3];
        choose(&[1.0, 3.0, 2.0, 3.0, 3.0, -1.0], &mut ids, &mut weights);
        assert_eq!(ids, [1, 3, 4]);
        assert_eq!(weights, [1.0 / 3.0; 3]);

        choose(&[0.0, 2.0f32.ln(), -50.0, 4.0f32.ln()], &mut ids, &mut weights);
        assert_eq!(ids, [3, 1, 0]);
        for (got, want) in weights.iter().zip([4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0]) {
            assert!((got - want).abs() < 1e-6);
        }
    }

    #[test]
    fn a_choice_is_always_distinct_experts() {
        let nan = f32::NAN;
        for logits in [[nan; 4], [nan, 1.0, nan, 2.0], [f32::NEG_INFINITY; 4], [f32::INFINITY; 4]] {
            let (mut ids, mut weights) = ([9; 3], [0.0; 3]);
            choose(&logits, &mut ids, &mut weights);
            let mut sorted = ids;
            sorted.sort_unstable();
            assert!(sorted[0] < sorted[1] && sorted[1] < sorted[2] && sorted[2] < 4, "{ids:?}");
        }
        let (mut ids, mut weights) = ([9; 3], [0.0; 3]);
        choose(&[nan, 1.0, nan, 2.0], &mut ids, &mut weights);
        assert_eq!(ids[..2], [3, 1]);
    }
}
