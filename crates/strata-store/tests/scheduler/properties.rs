//! Properties that hold for all traces, orders of arrival, failures and cancellations.

use proptest::prelude::*;
use strata_store::scheduler::{Class, Limits, Outcome, PassKind, Scheduler};
use strata_store::{Demand, ExpertId};

use crate::simulator::{Compute, Drive, Simulator};
use crate::trace::{self, Pass, Random, Style};

#[derive(Clone, Debug)]
struct Case {
    style: Style,
    limits: Limits,
    hot: Vec<ExpertId>,
    drive: Drive,
    compute: Compute,
    kinds: Vec<PassKind>,
    seed: u64,
}

impl Case {
    fn passes(&self) -> Vec<Pass> {
        let mut random = Random::new(self.seed);
        self.kinds.iter().map(|kind| trace::pass(&self.style, *kind, &mut random)).collect()
    }

    fn simulator(&self, arrival_seed: u64) -> Simulator {
        Simulator::new(&self.limits, &self.hot, self.drive, self.compute, arrival_seed)
    }
}

fn style() -> impl Strategy<Value = Style> {
    (1..=8_u32, 1..=24_u32, 1..=4_u32, 1..=4_u32, 1..=3_u32, 1..=12_u32, 0..=2_u32, 0..600_u64).prop_map(
        |(layers, experts, top_k, skew, strips, rows, lookahead, wrong_per_mille)| Style {
            layers,
            experts,
            top_k,
            skew,
            strips,
            rows,
            lookahead,
            wrong_per_mille,
        },
    )
}

/// Cases whose arena has so many more slots than the smallest legal one.
fn cases(more_slots: impl Strategy<Value = u32>) -> impl Strategy<Value = Case> {
    let drive = (0..5_000_u64, 1..50_u64, 0..20_000_u64);
    let compute = (0..20_000_u64, 0..5_000_u64, 1..6_usize);
    let kind = prop::bool::ANY.prop_map(|prompt| if prompt { PassKind::Prompt } else { PassKind::Decode });
    let hot = prop::collection::vec((0..9_u32, 0..26_u32), 0..40);
    let kinds = prop::collection::vec(kind, 1..6);
    (style(), more_slots, 1..=8_u32, hot, drive, compute, kinds, any::<u64>()).prop_map(
        |(style, more_slots, depth, hot, drive, compute, kinds, seed)| {
            let mut limits = Limits {
                record_bytes: (0..u64::from(style.layers)).map(|layer| 1000 + layer * 100).collect(),
                experts: style.experts,
                top_k: style.top_k,
                slots: 0,
                depth,
            };
            limits.slots = limits.least_slots() + more_slots;
            Case {
                style,
                limits,
                hot: hot.into_iter().map(|(layer, index)| ExpertId { layer, index }).collect(),
                drive: Drive { latency_ns: drive.0, bytes_per_us: drive.1, jitter_ns: drive.2, fail_per_mille: 0 },
                compute: Compute { strip_ns: compute.0, expert_ns: compute.1, group: compute.2 },
                kinds,
                seed,
            }
        },
    )
}

fn computed(outcomes: &[Outcome]) -> Vec<ExpertId> {
    let ready = |outcome: &Outcome| match outcome {
        Outcome::Ready { expert, .. } => *expert,
        Outcome::Failed { expert } => panic!("{expert} failed"),
    };
    let mut all: Vec<_> = outcomes.iter().map(ready).collect();
    all.sort_unstable();
    all
}

/// What passes leave, and what they found, when reads end in an order by chance, some before others are started, and slots come back at once.
fn left(case: &Case, passes: &[Pass], seed: u64) -> Vec<(Vec<ExpertId>, Vec<ExpertId>, u64)> {
    let mut random = Random::new(seed);
    let mut scheduler = Scheduler::new(case.limits.clone(), &case.hot).unwrap();
    let mut under_way = Vec::new();
    let mut read = |scheduler: &mut Scheduler, random: &mut Random| {
        under_way.extend(std::iter::from_fn(|| scheduler.next_read()));
        let any = !under_way.is_empty();
        if any {
            let read = under_way.swap_remove(random.below(under_way.len() as u64) as usize);
            scheduler.read_done(read.slot);
        }
        any
    };
    while read(&mut scheduler, &mut random) {}
    let leave = |pass: &Pass| {
        scheduler.begin_pass(pass.kind);
        for (layer, strips) in (0..).zip(&pass.layers) {
            strips.iter().for_each(|strip| scheduler.demand(layer, &strip.demand).unwrap());
            if random.chance(500) {
                read(&mut scheduler, &mut random);
            }
            scheduler.close(layer);
            while scheduler.outstanding() > 0 {
                read(&mut scheduler, &mut random);
                if random.chance(500)
                    && let Some(Outcome::Ready { slot, .. }) = scheduler.next_outcome()
                {
                    scheduler.release(slot);
                }
            }
            scheduler.layer_done(layer);
        }
        scheduler.end_pass();
        let mut resident: Vec<_> = scheduler.resident().map(|(id, _)| id).collect();
        resident.sort_unstable();
        (resident, scheduler.hot_set().collect(), scheduler.counts().resident.records)
    };
    passes.iter().map(leave).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The mirror checks each step; here the books are closed.
    #[test]
    fn every_step_is_legal_and_the_counts_add_up(case in cases(0..80_u32)) {
        let mut simulator = case.simulator(case.seed ^ 1);
        for pass in case.passes() {
            simulator.pass(&pass, 0).unwrap();
            simulator.drain();
            let counts = simulator.scheduler.counts();
            for class in [Class::Demand, Class::ReadAhead] {
                let used = simulator.mirror.used[class as usize];
                prop_assert_eq!(counts.read[class].records, used + counts.wasted[class].records);
            }
            // Demand is always used, and what was needed was read for this pass, unless the hot set's load brought it.
            prop_assert_eq!(counts.wasted[Class::Demand].records, 0);
            let needed = counts.ahead.records + counts.missed.records;
            let used: u64 = simulator.mirror.used.iter().sum();
            prop_assert!(used <= needed && needed <= used + counts.read[Class::HotSet].records);
        }
    }

    #[test]
    fn the_smallest_arena_makes_progress(case in cases(Just(0))) {
        let mut simulator = case.simulator(case.seed ^ 2);
        for pass in case.passes() {
            simulator.pass(&pass, 0).unwrap();
        }
        simulator.drain();
    }

    #[test]
    fn failures_and_cancellations_leave_it_usable(
        case in cases(0..60_u32), fail_per_mille in 0..300_u64, cancel_per_mille in 0..150_u64,
    ) {
        let case = Case { drive: Drive { fail_per_mille, ..case.drive }, ..case };
        let mut simulator = case.simulator(case.seed ^ 3);
        for pass in case.passes() {
            // Slots that were out and reads that were under way go over into the next pass.
            let _ = simulator.pass(&pass, cancel_per_mille);
        }
        simulator.drain();
        let used: u64 = simulator.mirror.used.iter().sum();
        let counts = *simulator.scheduler.counts();
        let kept = |class| counts.read[class].records - counts.wasted[class].records;
        prop_assert!(used <= counts.ahead.records + counts.missed.records);
        if cancel_per_mille == 0 && case.kinds.len() == 1 {
            prop_assert_eq!(kept(Class::Demand) + kept(Class::ReadAhead), used);
        }
    }

    /// Slots may be out and reads under way when the arena shrinks or forgets; the mirror checks who gives way.
    #[test]
    fn a_smaller_arena_keeps_its_limits(
        case in cases(0..80_u32), smaller in prop::collection::vec(0..100_u32, 6), cancel_per_mille in 0..150_u64,
        fail_per_mille in 0..100_u64,
    ) {
        let case = Case { drive: Drive { fail_per_mille, ..case.drive }, ..case };
        let mut simulator = case.simulator(case.seed ^ 5);
        let mut slots = case.limits.slots;
        for (pass, smaller) in case.passes().iter().zip(smaller) {
            let _ = simulator.pass(pass, cancel_per_mille);
            if smaller % 3 == 0 {
                simulator.clear_ring();
            }
            // Sometimes it is asked for more than there is, which changes nothing.
            let least_slots = case.limits.least_slots();
            let asked = least_slots + (slots + 5 - least_slots) * smaller / 100;
            simulator.shrink(asked);
            slots = slots.min(asked);
        }
        simulator.drain();
        prop_assert_eq!(simulator.retired, case.limits.slots - slots);
    }

    /// With room for a layer, those that are expected, and the reads under way, each expert is read once a pass.
    #[test]
    fn nothing_is_read_twice_in_a_pass_when_there_is_room(case in cases(Just(0))) {
        let mut case = case;
        let ring = (1 + case.style.lookahead) * case.style.experts + case.limits.depth + 8;
        case.hot.clear();
        case.limits.slots = case.limits.slots.max(ring);
        let mut simulator = case.simulator(case.seed ^ 4);
        for pass in case.passes() {
            simulator.pass(&pass, 0).unwrap();
        }
        prop_assert!(simulator.mirror.most_reads <= 1);
    }

    #[test]
    fn the_order_of_arrival_does_not_change_what_is_computed(case in cases(0..40_u32), other in any::<u64>()) {
        let (mut one, mut two) = (case.simulator(case.seed), case.simulator(other));
        for pass in case.passes() {
            one.pass(&pass, 0).unwrap();
            two.pass(&pass, 0).unwrap();
            prop_assert_eq!(computed(&one.outcomes), computed(&two.outcomes));
        }
    }

    /// Of single tokens without read-ahead: nothing else than what they used decides what is in memory afterwards.
    #[test]
    fn the_order_of_arrival_does_not_change_what_single_tokens_leave(case in cases(0..40_u32), other in any::<u64>()) {
        let style = Style { lookahead: 0, strips: 1, rows: 1, ..case.style };
        let mut random = Random::new(case.seed);
        let passes: Vec<_> = (0..20).map(|_| trace::pass(&style, PassKind::Decode, &mut random)).collect();
        prop_assert_eq!(left(&case, &passes, case.seed), left(&case, &passes, other));
    }

    /// A prompt that uses every expert of every layer leaves the decode set as it was.
    #[test]
    fn a_sweep_of_all_experts_leaves_the_hot_set_alone(case in cases(0..80_u32)) {
        let mut simulator = case.simulator(case.seed);
        for pass in case.passes() {
            simulator.pass(&Pass { kind: PassKind::Decode, ..pass }, 0).unwrap();
        }
        // What is left of the hot set is loaded.
        simulator.drain();
        simulator.drain();
        let hot: Vec<_> = simulator.scheduler.hot_set().collect();
        let all = (0..case.style.experts).map(|expert| Demand { expert, tokens: 9 }).collect();
        let strip = trace::Strip { demand: all, ..trace::Strip::default() };
        let layers = vec![vec![strip]; case.style.layers as usize];
        let sweep = Pass { kind: PassKind::Prompt, profile: Vec::new(), layers };
        for _ in 0..2 {
            simulator.pass(&sweep, 0).unwrap();
            prop_assert_eq!(&simulator.scheduler.hot_set().collect::<Vec<_>>(), &hot);
            let resident: Vec<_> = simulator.scheduler.resident().map(|(id, _)| id).collect();
            prop_assert!(hot.iter().all(|id| resident.contains(id)));
        }
    }

    #[test]
    fn the_same_events_give_the_same_answers(case in cases(0..40_u32), cancel_per_mille in 0..100_u64) {
        let case = Case { drive: Drive { fail_per_mille: 50, ..case.drive }, ..case };
        let (mut one, mut two) = (case.simulator(case.seed), case.simulator(case.seed));
        for pass in case.passes() {
            let ended = (one.pass(&pass, cancel_per_mille).is_ok(), two.pass(&pass, cancel_per_mille).is_ok());
            prop_assert_eq!(ended.0, ended.1);
        }
        prop_assert_eq!(&one.reads, &two.reads);
        prop_assert_eq!(&one.outcomes, &two.outcomes);
        prop_assert_eq!(one.scheduler.counts(), two.scheduler.counts());
    }
}
