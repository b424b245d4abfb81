//! Caches and the best of all of them: by hand, against brute force, and what holds for all routes.

use proptest::prelude::*;
use strata_store::scheduler::Limits;
use strata_store::sim::replay::{self, Arena, Lookups};
use strata_store::sim::{Cache, Eviction, Habits, LayerRoutes, Strip, Synthetic, Trace};
use strata_store::{Demand, ExpertId};

/// Passes of one layer that use these experts of ten.
fn decode(groups: &[Vec<u32>]) -> Trace {
    let strip = |group: &Vec<u32>| {
        let demand = group.iter().map(|expert| Demand { expert: *expert, tokens: 1 }).collect();
        Strip { rows: 1, layers: vec![LayerRoutes { demand, forecast: Vec::new() }] }
    };
    Trace { layers: 1, experts: 10, top_k: 1, strips: Vec::new(), decode: groups.iter().map(strip).collect() }
}

fn groups(experts: &[&[u32]]) -> Vec<Vec<u32>> {
    experts.iter().map(|group| group.to_vec()).collect()
}

const SEGMENTED: Eviction = Eviction::Segmented { protected_slots: 1 };
const FREQUENCY: Eviction = Eviction::Frequency { half_life_groups: 2 };

/// What each group finds, and who is left at the end.
fn run(eviction: Eviction, slots: usize, groups: &[Vec<u32>]) -> (Vec<usize>, Vec<u32>) {
    let mut cache = Cache::new(eviction, slots, 10);
    let hits = groups.iter().map(|group| cache.use_group(group)).collect();
    (hits, (0..10).filter(|expert| cache.holds(*expert)).collect())
}

#[test]
fn by_hand() {
    let one_by_one = groups(&[&[1], &[2], &[1], &[3], &[2], &[1]]);
    for (eviction, hits, left) in [
        // 3 takes the place of 2, 2 that of 1, 1 that of 3.
        (Eviction::Recency, [0, 0, 1, 0, 0, 0], [1, 2]),
        // 1 was used since it came in: 3 takes the place of 2, 2 that of 1, and 1 that of 3.
        (Eviction::Clock, [0, 0, 1, 0, 0, 0], [1, 2]),
        // 1 is protected.
        (SEGMENTED, [0, 0, 1, 0, 0, 1], [1, 2]),
        // 1 has 2^0.5 + 2^1.5 = 4.24 after three groups, 2 has 2: it gives way to 3, which comes in with 4 and is less than 1.
        (FREQUENCY, [0, 0, 1, 0, 0, 1], [1, 2]),
    ] {
        assert_eq!(run(eviction, 2, &one_by_one), (hits.to_vec(), left.to_vec()), "{eviction:?}");
    }
    // Of the best, which may begin with 1 and 2, only 3 is not there; 1 or 2 gives way to it, and is missing later.
    assert_eq!(replay::best(&decode(&one_by_one), 2).all(), Lookups { hits: 4, misses: 2 });
    assert_eq!(replay::best(&decode(&one_by_one), 3).all().misses, 0);
    assert_eq!(replay::best(&decode(&one_by_one), 1).all(), Lookups { hits: 1, misses: 5 });
}

#[test]
fn policies_differ_where_they_should() {
    // A sweep of four through three slots, after 1 was used twice.
    let sweep = groups(&[&[1], &[1], &[5], &[6], &[7], &[8], &[1]]);
    assert_eq!(run(Eviction::Recency, 3, &sweep).0.last(), Some(&0));
    // 1 is passed over once, when 7 comes; another one, and it would be gone.
    assert_eq!(run(Eviction::Clock, 3, &sweep), (vec![0, 1, 0, 0, 0, 0, 1], vec![1, 7, 8]));
    let longer = groups(&[&[1], &[1], &[5], &[6], &[7], &[8], &[9], &[1]]);
    assert_eq!(run(Eviction::Clock, 3, &longer).0.last(), Some(&0));
    assert_eq!(run(SEGMENTED, 3, &sweep).0.last(), Some(&1));
    // 1 has 2^0.5 + 2 = 3.41; 5, 6, 7 and 8 came in with 2.83, 4, 5.66 and 8: 5 gives way to 7, and 1 to 8.
    assert_eq!(run(FREQUENCY, 3, &sweep).0.last(), Some(&0));
    // A use counts half after 20 groups.
    assert_eq!(run(Eviction::Frequency { half_life_groups: 20 }, 3, &sweep).0.last(), Some(&1));
    // Uses are remembered out of the cache: 1 comes back and is worth more than 4, which came in later.
    let back = groups(&[&[1], &[1], &[1], &[2, 3], &[1], &[4], &[5], &[1]]);
    assert_eq!(run(Eviction::Frequency { half_life_groups: 20 }, 2, &back).0.last(), Some(&1));
    // The protected one used longest ago is as if it were used now, but not protected: 4 takes the place of 3.
    let demoted = groups(&[&[1], &[1], &[2], &[3], &[2], &[4], &[1]]);
    assert_eq!(run(SEGMENTED, 3, &demoted), (vec![0, 1, 0, 0, 1, 0, 1], vec![1, 2, 4]));
}

#[test]
fn a_group_is_kept_together() {
    // 1 was used longest ago, but is used again with two others: 2 and 3 give way.
    let together = groups(&[&[1], &[2, 3], &[1, 4, 5]]);
    for eviction in [Eviction::Recency, Eviction::Clock, SEGMENTED, FREQUENCY] {
        assert_eq!(run(eviction, 3, &together), (vec![0, 0, 1], vec![1, 4, 5]), "{eviction:?}");
        // Of a group larger than the cache, as many as fit.
        assert_eq!(run(eviction, 2, &groups(&[&[1], &[2, 3, 4]])), (vec![0, 0], vec![2, 3]), "{eviction:?}");
    }
}

/// Experts of the smallest cases.
const EXPERTS: u32 = 5;

/// The fewest misses: every set that a cache can begin with, and everyone of other groups who can give way.
fn fewest_misses(groups: &[Vec<u32>], slots: u32) -> u32 {
    let sets = || 0..1 << EXPERTS;
    // Least misses by the set that is held, as bits.
    let mut states: Vec<Option<u32>> = sets().map(|set: u32| (set.count_ones() <= slots).then_some(0)).collect();
    for group in groups {
        let group: u32 = group.iter().map(|expert| 1 << expert).sum();
        let mut after = vec![None; states.len()];
        for (set, misses) in sets().zip(&states).filter_map(|(set, misses)| Some((set, (*misses)?))) {
            let misses = misses + (group & !set).count_ones();
            let can_follow = |next: &u32| next & group == group && next & !(set | group) == 0;
            for next in sets().filter(can_follow).filter(|next| next.count_ones() <= slots) {
                let least = after[next as usize].get_or_insert(misses);
                *least = misses.min(*least);
            }
        }
        states = after;
    }
    states.into_iter().flatten().min().unwrap()
}

fn small_groups() -> impl Strategy<Value = Vec<Vec<u32>>> {
    let group = prop::collection::btree_set(0..EXPERTS, 1..4);
    prop::collection::vec(group.prop_map(|group| group.into_iter().collect()), 1..9)
}

fn texts() -> impl Strategy<Value = Trace> {
    (1..5_u32, 4..40_u32, 1..5_u32, 2..80_u32, any::<u64>()).prop_map(|(layers, experts, top_k, tokens, seed)| {
        let habits = Habits { foreseen: 0.6, ranked: 0.5 };
        let text = Synthetic { layers, experts, top_k, tokens, strip_rows: 1, habits, seed };
        let mut trace = text.routes().0;
        trace.decode = trace.strips.split_off(1 + seed as usize % trace.strips.len().min(20));
        trace
    })
}

fn evictions(trace: &Trace, slots: u32) -> [Eviction; 5] {
    [
        Eviction::Recency,
        Eviction::Clock,
        Eviction::Segmented { protected_slots: slots as usize / 2 },
        Eviction::Frequency { half_life_groups: trace.layers },
        Eviction::Frequency { half_life_groups: 50 * trace.layers },
    ]
}

fn lookups(trace: &Trace) -> u64 {
    trace.decode.iter().flat_map(|strip| &strip.layers).map(|routes| routes.demand.len() as u64).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_best_is_the_best(groups in small_groups(), slots in 3..5_u32) {
        let all = replay::best(&decode(&groups), slots).all();
        prop_assert_eq!(all.misses, u64::from(fewest_misses(&groups, slots)));
        prop_assert_eq!((all.hits + all.misses) as usize, groups.iter().map(Vec::len).sum::<usize>());
    }

    /// What is in a cache of least recently used experts is in every larger one (Mattson 1970).
    #[test]
    fn caches_by_recency_hold_what_smaller_ones_hold(groups in small_groups(), slots in 3..6_usize) {
        let mut caches = [slots, slots + 1].map(|slots| Cache::new(Eviction::Recency, slots, 10));
        for group in groups {
            let [less, more] = &mut caches;
            prop_assert!(less.use_group(&group) <= more.use_group(&group));
            prop_assert!((0..EXPERTS).all(|expert| !less.holds(expert) || more.holds(expert)));
            prop_assert!(group.iter().all(|expert| less.holds(*expert)));
        }
    }

    #[test]
    fn no_policy_beats_the_best(trace in texts(), more_slots in 0..60_u32, depth in 1..9_u32, pass_tokens in 1..30_u32) {
        let slots = 2 * trace.top_k + depth + more_slots;
        let best = replay::best(&trace, slots).all();
        prop_assert_eq!(best.hits + best.misses, lookups(&trace));
        let hot = trace.usage().hottest(slots as usize);
        for hot in [&hot[..], &[]] {
            for eviction in evictions(&trace, slots) {
                let replayed = replay::cache(&trace, eviction, slots, hot);
                let all = replayed.all();
                prop_assert_eq!(all.hits + all.misses, lookups(&trace));
                prop_assert!(all.hits <= best.hits, "{:?}: {:?}, the best has {:?}", eviction, all, best);
                prop_assert_eq!(replayed.layers().into_iter().sum::<Lookups>(), all);
            }
            let arena = Arena { slots, depth, pass_tokens, hot };
            let all = replay::arena(&trace, &arena).unwrap().all();
            prop_assert_eq!(all.hits + all.misses, lookups(&trace));
            prop_assert!(all.hits <= best.hits, "{:?}, the best has {:?}", all, best);
        }
    }

    /// Where every expert has a slot and is loaded, nothing is missing.
    #[test]
    fn what_stays_is_never_missing(trace in texts()) {
        let slots = (trace.layers * trace.experts).max(2 * trace.top_k + 1);
        let hot: Vec<_> = (0..trace.layers)
            .flat_map(|layer| (0..trace.experts).map(move |index| ExpertId { layer, index }))
            .collect();
        let arena = Arena { slots, depth: 1, pass_tokens: 1, hot: &hot };
        prop_assert_eq!(replay::arena(&trace, &arena).unwrap().all().misses, 0);
        for eviction in evictions(&trace, slots) {
            prop_assert_eq!(replay::cache(&trace, eviction, slots, &hot).all().misses, 0);
        }
    }
}

#[test]
fn an_arena_has_at_least_the_smallest_legal_size() {
    let trace = decode(&groups(&[&[1], &[2]]));
    let arena = Arena { slots: 3, depth: 2, pass_tokens: 1, hot: &[] };
    assert!(replay::arena(&trace, &arena).is_err());
    let limits = |slots| Limits { record_bytes: vec![1; 2], experts: 100, top_k: 4, slots, depth: 10 };
    assert_eq!([150, 20, 200, 300].map(|slots| limits(slots).hot_slots()), [150 - 18, 2, 200, 300]);
}
