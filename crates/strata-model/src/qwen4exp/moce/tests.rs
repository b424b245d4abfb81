//! The choice against its definition on random logits, and logical residency against the history of a sequence.

use super::*;

/// Numbers by chance.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit
    }

    /// From -4 to 4, in steps of `1 / steps`: coarse steps make equals.
    fn logit(&mut self, steps: usize) -> f32 {
        self.below(8 * steps + 1) as f32 / steps as f32 - 4.0
    }
}

/// A layer's logits, what is resident, and how to choose.
struct Case {
    moce: Moce,
    logits: Vec<f32>,
    recent: Vec<u32>,
    top_k: usize,
}

fn cases() -> impl Iterator<Item = Case> {
    let mut random = Random(0x1234_5678_9abc_def1);
    (0..20_000).map(move |i| {
        let experts = 2 + random.below(30);
        let top_k = 1 + random.below(experts - 1);
        let slots = 1 + random.below(experts - 1);
        let steps = [2, 1000][i % 2];
        let logits = (0..experts).map(|_| random.logit(steps)).collect();
        let mut recent: Vec<u32> = (0..experts as u32).collect();
        (0..experts).for_each(|at| recent.swap(at, random.below(experts)));
        recent.truncate(random.below(slots + 1));
        let bonus = [0.25, 0.5, 1.0, 3.0, 100.0][random.below(5)];
        let mass = [0.0, 0.05, 0.2, 0.5, 1.5][random.below(5)];
        Case { moce: Moce { slots, bonus, keep: random.below(top_k + 1), mass }, logits, recent, top_k }
    })
}

impl Case {
    fn select(&self, moce: &Moce) -> (Vec<u32>, Vec<f32>, Swaps) {
        let (mut ids, mut weights) = (vec![0; self.top_k], vec![0.0; self.top_k]);
        let swaps = select(moce, &self.logits, &self.recent, &mut Vec::new(), &mut ids, &mut weights);
        (ids, weights, swaps)
    }

    fn exact(&self) -> (Vec<u32>, Vec<f32>) {
        let (mut ids, mut weights) = (vec![0; self.top_k], vec![0.0; self.top_k]);
        choose(&self.logits, &mut ids, &mut weights);
        (ids, weights)
    }

    /// The definition by scores: the `keep` largest logits, then the largest scores, of equal ones the larger logit, then
    /// the lower index.
    fn by_scores(&self) -> Vec<u32> {
        let score = |id: &u32| {
            let bonus = if self.recent.contains(id) { self.moce.bonus } else { 0.0 };
            self.logits[*id as usize] + bonus
        };
        let (exact, _) = self.exact();
        let kept = &exact[..self.moce.keep];
        let mut rest: Vec<u32> = (0..self.logits.len() as u32).filter(|id| !kept.contains(id)).collect();
        rest.sort_by(|a, b| {
            let logits = self.logits[*b as usize].total_cmp(&self.logits[*a as usize]);
            score(b).total_cmp(&score(a)).then(logits).then(a.cmp(b))
        });
        [kept, &rest[..self.top_k - self.moce.keep]].concat()
    }
}

fn sorted(ids: &[u32]) -> Vec<u32> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids
}

#[test]
fn without_a_cap_the_largest_scores_are_chosen() {
    let mut changed = 0;
    for case in cases() {
        let (ids, _, swaps) = case.select(&Moce { mass: f32::INFINITY, ..case.moce });
        assert_eq!(sorted(&ids), sorted(&case.by_scores()));
        changed += u32::from(swaps.count > 0);
    }
    assert!(changed > 4_000, "{changed} cases with another choice than the router's");
}

#[test]
fn a_choice_keeps_its_promises() {
    let mut capped = 0;
    for case in cases() {
        let (exact, exact_weights) = case.exact();
        let (ids, weights, swaps) = case.select(&case.moce);
        // As many distinct experts as ever, the largest logit first.
        assert!(sorted(&ids).windows(2).all(|pair| pair[0] < pair[1]) && ids.len() == case.top_k);
        assert!(ids.iter().all(|id| (*id as usize) < case.logits.len()));
        assert!(ids.windows(2).all(|pair| case.logits[pair[0] as usize] >= case.logits[pair[1] as usize]));
        // The best stay; only what is not resident gives way, and only to what is.
        assert!(exact[..case.moce.keep].iter().all(|id| ids.contains(id)));
        let gone: Vec<usize> = (0..case.top_k).filter(|place| !ids.contains(&exact[*place])).collect();
        let new: Vec<&u32> = ids.iter().filter(|id| !exact.contains(id)).collect();
        assert!(gone.iter().all(|place| !case.recent.contains(&exact[*place])));
        assert!(new.iter().all(|id| case.recent.contains(id)));
        assert_eq!((gone.len(), new.len()), (swaps.count as usize, swaps.count as usize));
        // The mass that gave way is what it says, and no more than it may be.
        let mass: f64 = gone.iter().map(|place| f64::from(exact_weights[*place])).sum();
        assert!((mass - f64::from(swaps.mass)).abs() < 1e-6 && swaps.mass <= case.moce.mass);
        // Weights are the softmax of the logits over what was chosen.
        let sum: f64 = ids.iter().map(|id| f64::from(case.logits[*id as usize]).exp()).sum();
        for (id, weight) in ids.iter().zip(&weights) {
            assert!((f64::from(case.logits[*id as usize]).exp() / sum - f64::from(*weight)).abs() < 1e-6);
        }
        // The cap alone ends it: what would give way next, would pass it.
        let free = case.select(&Moce { mass: f32::INFINITY, ..case.moce }).2;
        if free.count > swaps.count {
            capped += 1;
            let one_more = (0..case.top_k).rev().filter(|place| !case.recent.contains(&exact[*place]));
            let one_more: f64 = one_more.take(swaps.count as usize + 1).map(|at| f64::from(exact_weights[at])).sum();
            assert!(one_more > f64::from(case.moce.mass) - 1e-6);
        }
    }
    assert!(capped > 1_000, "{capped} cases in which the cap counted");
}

#[test]
fn more_bonus_more_mass_and_less_kept_never_change_less() {
    for case in cases() {
        let moce = case.moce;
        let count = |moce| case.select(&moce).2.count;
        let base = count(moce);
        assert!(count(Moce { bonus: moce.bonus * 1.5, ..moce }) >= base);
        assert!(count(Moce { mass: moce.mass + 0.1, ..moce }) >= base);
        assert!(count(Moce { keep: moce.keep.saturating_sub(1), ..moce }) >= base);
    }
}

#[test]
fn the_router_alone_chooses_without_a_bonus_without_mass_and_where_all_are_resident() {
    for case in cases() {
        let (ids, weights) = case.exact();
        let bits = |weights: &[f32]| weights.iter().map(|weight| weight.to_bits()).collect::<Vec<_>>();
        let all = Moce { slots: case.logits.len(), ..case.moce };
        let kept = Moce { keep: case.top_k, ..case.moce };
        for moce in [Moce { bonus: 0.0, ..case.moce }, Moce { mass: 0.0, ..case.moce }, kept, all] {
            let (got, got_weights, swaps) = case.select(&moce);
            assert_eq!((got, bits(&got_weights), swaps), (ids.clone(), bits(&weights), Swaps::default()));
        }
    }
}

#[test]
fn what_is_no_number_is_never_preferred() {
    let (nan, moce) = (f32::NAN, Moce { slots: 3, bonus: 10.0, keep: 0, mass: 1.0 });
    for logits in [[nan; 4], [nan, 1.0, nan, 2.0], [f32::NEG_INFINITY; 4], [f32::INFINITY; 4]] {
        let case = Case { moce, logits: logits.to_vec(), recent: vec![3, 2], top_k: 2 };
        let (ids, _, _) = case.select(&moce);
        assert!(ids[0] != ids[1] && ids.iter().all(|id| *id < 4), "{ids:?}");
        if logits[1] == 1.0 {
            assert_eq!(sorted(&ids), [1, 3]);
        }
    }
}

#[test]
fn residency_is_the_last_distinct_experts_of_the_history() {
    let mut random = Random(0xfeed_beef_1234_5677);
    for slots in [0, 1, 3, 7, 20] {
        let (mut recent, mut history) = (Recent::default(), Vec::new());
        for _ in 0..500 {
            let mut row: Vec<u32> = (0..20).collect();
            (0..20).for_each(|at| row.swap(at, random.below(20)));
            row.truncate(4);
            recent.touch(&row, slots);
            // The largest weight of a row counts as the last use.
            history.extend(row.iter().rev().copied());
            let mut last: Vec<u32> = Vec::new();
            for id in history.iter().rev() {
                if last.len() < slots && !last.contains(id) {
                    last.push(*id);
                }
            }
            assert_eq!(recent.0, last);
        }
    }
}
