//! Passes that are left between two layers for others, and go on.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use strata_store::scheduler::{Class, Limits, Outcome, PassKind, PassNumber, Read, Scheduler, SlotId};
use strata_store::{Demand, ExpertId};

use crate::scenarios::{demands, finish, id, layer, order, reads, scheduler, serve};
use crate::trace::{self, Pass, Random, Style};

/// The pass of a token, which has begun: it uses these experts of layers 0 to 3.
fn token(s: &mut Scheduler, experts: [[u32; 2]; 4]) {
    for (at, experts) in (0..).zip(experts) {
        layer(s, at, &experts);
    }
    s.end_pass();
}

#[test]
fn what_a_pass_expects_waits_for_it() {
    use Class::ReadAhead as A;
    let mut s = scheduler(40, 4, &[]);
    let pass = s.begin_pass(PassKind::Prompt);
    layer(&mut s, 0, &[0, 1]);
    s.forecast(1, &demands(&[(4, 5), (5, 4), (6, 3)]));
    s.forecast(2, &demands(&[(3, 2), (7, 1)]));
    let ahead = reads(&mut s);
    assert_eq!(order(&ahead), [(A, 1, 4), (A, 1, 5), (A, 1, 6), (A, 2, 3)]);
    s.read_done(ahead[0].slot);
    s.leave_pass();
    assert!(s.is_left(pass) && s.pass().is_none());
    // One of its reads ends, and another fails: neither is a loss or a failure yet, and no other is begun.
    s.begin_pass(PassKind::Decode);
    s.read_done(ahead[1].slot);
    s.read_failed(ahead[2].slot);
    assert!(s.next_read().is_none());
    token(&mut s, [[8, 9], [4, 9], [8, 9], [8, 9]]);
    assert_eq!(s.counts().wasted[A].records, 0);
    s.resume_pass(pass);
    assert_eq!((s.pass(), s.kind()), (Some(pass), PassKind::Prompt));
    assert_eq!(order(&reads(&mut s)), [(A, 1, 6), (A, 2, 7)], "what failed is read anew");
    s.read_done(ahead[3].slot);
    let before = *s.counts();
    s.demand(1, &demands(&[(4, 1), (5, 1), (6, 1)])).unwrap();
    s.close(1);
    let counts = *s.counts();
    // All three were read or queued for this pass before they were demanded, though one was used by another since.
    assert_eq!((counts.ahead - before.ahead).records, 3);
    assert_eq!((counts.missed, counts.resident), (before.missed, before.resident));
}

#[test]
fn what_a_pass_that_was_left_expects_gives_way_last() {
    let mut s = scheduler(12, 4, &[]);
    let pass = s.begin_pass(PassKind::Prompt);
    layer(&mut s, 0, &[0, 1, 2, 3, 4, 5]);
    s.forecast(1, &demands(&[(7, 1), (8, 1)]));
    let ahead = reads(&mut s);
    finish(&mut s, &ahead);
    s.leave_pass();
    // Four free slots and the six of what the pass has used go to others before those two.
    s.begin_pass(PassKind::Decode);
    token(&mut s, [[6, 7], [5, 6], [6, 7], [6, 7]]);
    s.begin_pass(PassKind::Decode);
    layer(&mut s, 0, &[8, 9]);
    assert!(s.holds(id(1, 7)) && s.holds(id(1, 8)));
    assert_eq!((0..6).filter(|index| s.holds(id(0, *index))).count(), 0);
    s.abandon();
    s.resume_pass(pass);
    assert!(s.next_read().is_none(), "both are there");
}

#[test]
fn a_pass_that_is_given_up_while_it_waits_needs_nothing_more() {
    let mut s = scheduler(40, 4, &[]);
    let pass = s.begin_pass(PassKind::Prompt);
    layer(&mut s, 0, &[0, 1]);
    s.forecast(1, &demands(&[(4, 5), (5, 4)]));
    let ahead = reads(&mut s);
    s.read_done(ahead[0].slot);
    let other = s.begin_other(PassKind::Decode);
    s.forget_left(pass);
    assert!(!s.is_left(pass));
    assert_eq!(s.counts().wasted[Class::ReadAhead].records, 1);
    s.read_done(ahead[1].slot);
    assert_eq!(s.counts().wasted[Class::ReadAhead].records, 2);
    // The one at hand goes on, and forgetting what is not there changes nothing.
    s.forget_left(pass);
    s.forget_left(other);
    assert_eq!(layer(&mut s, 0, &[1, 2]), [1, 2]);
}

#[test]
#[should_panic(expected = "a pass within layer 0")]
fn a_pass_cannot_be_left_within_a_layer() {
    let mut s = scheduler(40, 4, &[]);
    s.begin_pass(PassKind::Prompt);
    s.demand(0, &demands(&[(1, 1)])).unwrap();
    s.leave_pass();
}

#[test]
#[should_panic(expected = "a pass that was left")]
fn only_a_pass_that_was_left_goes_on() {
    let mut s = scheduler(40, 4, &[]);
    let pass = s.begin_pass(PassKind::Prompt);
    s.abandon();
    s.resume_pass(pass);
}

/// A second pass begins while one is at hand.
trait BeginOther {
    fn begin_other(&mut self, kind: PassKind) -> PassNumber;
}

impl BeginOther for Scheduler {
    fn begin_other(&mut self, kind: PassKind) -> PassNumber {
        self.leave_pass();
        self.begin_pass(kind)
    }
}

/// What is known from outside: which slot holds what, and which slots are being read.
#[derive(Default)]
struct Books {
    held: BTreeMap<u32, ExpertId>,
    under_way: Vec<Read>,
    started: u64,
    fresh: BTreeSet<SlotId>,
    used: u64,
}

impl Books {
    /// Starts what can be started, and ends one read by chance.
    fn read(&mut self, s: &mut Scheduler, random: &mut Random) {
        while let Some(read) = s.next_read() {
            self.started += u64::from(read.class != Class::HotSet);
            assert_eq!(self.held.remove(&read.slot.index), read.evicted);
            let is_there = self.held.values().any(|expert| *expert == read.expert);
            let is_coming = self.under_way.iter().any(|other| other.expert == read.expert);
            assert!(!is_there && !is_coming, "{read:?} is there or on its way");
            self.under_way.push(read);
        }
        if !self.under_way.is_empty() {
            let read = self.under_way.swap_remove(random.below(self.under_way.len() as u64) as usize);
            s.read_done(read.slot);
            self.held.insert(read.slot.index, read.expert);
            if read.class != Class::HotSet {
                self.fresh.insert(read.slot);
            }
        }
    }

    /// One layer of a pass; all that it demands is handed out once.
    fn layer(&mut self, s: &mut Scheduler, layer: u32, pass: &Pass, random: &mut Random) {
        let mut wanted = BTreeSet::new();
        for strip in &pass.layers[layer as usize] {
            s.demand(layer, &strip.demand).unwrap();
            wanted.extend(strip.demand.iter().map(|demand| ExpertId { layer, index: demand.expert }));
            strip.forecasts.iter().for_each(|(layer, experts)| s.forecast(*layer, experts));
            for (layer, experts) in &strip.ranked {
                s.expect_idle(2.0);
                s.forecast_ranked(*layer, experts);
            }
            self.read(s, random);
        }
        s.close(layer);
        while s.outstanding() > 0 {
            self.read(s, random);
            while let Some(outcome) = s.next_outcome() {
                let Outcome::Ready { expert, slot } = outcome else { panic!("nothing fails") };
                assert_eq!(self.held.get(&slot.index), Some(&expert));
                assert!(wanted.remove(&expert), "{expert} was handed out twice, or not demanded");
                self.used += u64::from(self.fresh.remove(&slot));
                s.release(slot);
            }
        }
        assert!(wanted.is_empty());
        s.layer_done(layer);
    }
}

fn styles() -> impl Strategy<Value = Style> {
    (1..=6_u32, 4..=24_u32, 1..=4_u32, 1..=3_u32, 1..=12_u32, 0..=2_u32, 0..600_u64).prop_map(
        |(layers, experts, top_k, strips, rows, lookahead, wrong_per_mille)| Style {
            layers,
            experts,
            top_k,
            skew: 2,
            strips,
            rows,
            lookahead,
            wrong_per_mille,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Several passes at a time, layer by layer in an order by chance, some given up: each gets what it demands, and in the
    /// end every record that was read was used, or counts as wasted.
    #[test]
    fn passes_that_alternate_all_get_what_they_demand(
        style in styles(), more_slots in 0..60_u32, depth in 1..=6_u32, kinds in prop::collection::vec(any::<bool>(), 2..6),
        seed in any::<u64>(),
    ) {
        let mut limits =
            Limits { record_bytes: vec![1000; style.layers as usize], experts: style.experts, top_k: style.top_k, slots: 0, depth };
        limits.slots = limits.least_slots() + more_slots;
        let mut random = Random::new(seed);
        let hot: Vec<_> = (0..10).map(|index| ExpertId { layer: index % style.layers, index }).collect();
        let mut s = Scheduler::new(limits, &hot).unwrap();
        let mut books = Books::default();
        let mut passes: Vec<(Pass, Option<PassNumber>, u32)> = kinds
            .iter()
            .map(|is_prompt| if *is_prompt { PassKind::Prompt } else { PassKind::Decode })
            .map(|kind| (trace::pass(&style, kind, &mut random), None, 0))
            .collect();
        while !passes.is_empty() {
            let at = random.below(passes.len() as u64) as usize;
            let (pass, number, layer) = &mut passes[at];
            match *number {
                None => {
                    *number = Some(s.begin_other(pass.kind));
                    s.forecast(0, &pass.profile);
                }
                Some(number) if s.pass() != Some(number) => {
                    if random.chance(50) {
                        s.forget_left(number);
                        passes.swap_remove(at);
                        continue;
                    }
                    s.leave_pass();
                    s.resume_pass(number);
                }
                Some(_) => {}
            }
            books.layer(&mut s, *layer, pass, &mut random);
            *layer += 1;
            if *layer == style.layers {
                s.end_pass();
                passes.swap_remove(at);
            }
        }
        s.abandon();
        while !books.under_way.is_empty() {
            books.read(&mut s, &mut random);
        }
        let counts = s.counts();
        let wasted: u64 = [Class::Demand, Class::ReadAhead].iter().map(|class| counts.wasted[*class].records).sum();
        // What was wasted by the pass that it was read for may have been used by another.
        prop_assert!(wasted <= books.started && books.started <= books.used + wasted);
        prop_assert_eq!(counts.wasted[Class::Demand].records, 0);
    }
}

#[test]
fn a_layer_that_another_pass_closed_is_still_served() {
    // The other pass goes through the very layer that the first expects next, and drops all it does not need there.
    let mut s = scheduler(40, 4, &[]);
    let pass = s.begin_pass(PassKind::Prompt);
    layer(&mut s, 0, &[0, 1]);
    let all: Vec<Demand> = (0..6).map(|expert| Demand { expert, tokens: 1 }).collect();
    s.forecast(1, &all);
    s.begin_other(PassKind::Prompt);
    layer(&mut s, 0, &[2, 3]);
    s.forecast(1, &all[4..]);
    layer(&mut s, 1, &[5, 9]);
    s.leave_pass();
    s.resume_pass(pass);
    s.demand(1, &all).unwrap();
    s.close(1);
    let mut served = serve(&mut s, 1);
    served.sort_unstable();
    assert_eq!(served, [0, 1, 2, 3, 4, 5]);
}
