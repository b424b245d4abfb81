//! Small stories with their exact answers.

use strata_store::scheduler::{
    ArenaTooSmall, Class, Forecasts, Limits, Outcome, PassKind, Read, Scheduler, SlotId, Tally,
};
use strata_store::{Demand, ExpertId, StoreError};

use crate::simulator::{Compute, Drive, Simulator};
use crate::trace::{self, Random, Style};

const RECORD_BYTES: u64 = 1000;

fn limits(layers: usize, slots: u32, depth: u32) -> Limits {
    Limits { record_bytes: vec![RECORD_BYTES; layers], experts: 10, top_k: 2, slots, depth }
}

pub(crate) fn scheduler(slots: u32, depth: u32, hot: &[(u32, u32)]) -> Scheduler {
    let hot: Vec<_> = hot.iter().map(|(layer, index)| id(*layer, *index)).collect();
    Scheduler::new(limits(4, slots, depth), &hot).unwrap()
}

pub(crate) fn id(layer: u32, index: u32) -> ExpertId {
    ExpertId { layer, index }
}

pub(crate) fn demands(all: &[(u32, u32)]) -> Vec<Demand> {
    all.iter().map(|(expert, tokens)| Demand { expert: *expert, tokens: *tokens }).collect()
}

/// All reads that can be started, not yet done.
pub(crate) fn reads(scheduler: &mut Scheduler) -> Vec<Read> {
    std::iter::from_fn(|| scheduler.next_read()).collect()
}

pub(crate) fn order(reads: &[Read]) -> Vec<(Class, u32, u32)> {
    reads.iter().map(|read| (read.class, read.expert.layer, read.expert.index)).collect()
}

pub(crate) fn finish(scheduler: &mut Scheduler, reads: &[Read]) {
    reads.iter().for_each(|read| scheduler.read_done(read.slot));
}

/// Reads and hands out all of the closed layer, gives it back; the experts in that order.
pub(crate) fn serve(scheduler: &mut Scheduler, layer: u32) -> Vec<u32> {
    let mut served = Vec::new();
    while scheduler.outstanding() > 0 {
        let started = reads(scheduler);
        finish(scheduler, &started);
        let before = served.len();
        while let Some(Outcome::Ready { expert, slot }) = scheduler.next_outcome() {
            served.push(expert.index);
            scheduler.release(slot);
        }
        assert!(!started.is_empty() || served.len() > before, "no progress");
    }
    scheduler.layer_done(layer);
    served
}

/// One layer from demand to the end.
pub(crate) fn layer(scheduler: &mut Scheduler, layer: u32, experts: &[u32]) -> Vec<u32> {
    let all: Vec<_> = experts.iter().map(|expert| (*expert, 1)).collect();
    scheduler.demand(layer, &demands(&all)).unwrap();
    scheduler.close(layer);
    serve(scheduler, layer)
}

#[test]
fn a_pass_may_begin_with_a_later_layer() {
    let mut scheduler = scheduler(8, 2, &[]);
    for experts in [[3, 4], [4, 5]] {
        scheduler.begin_pass(PassKind::Decode);
        scheduler.skip_to(3);
        assert_eq!(layer(&mut scheduler, 3, &experts), experts);
        scheduler.end_pass();
    }
    // The second time, one of them was there.
    assert_eq!(scheduler.counts().resident.records, 1);
    assert_eq!(scheduler.counts().missed.records, 3);
}

#[test]
fn the_smallest_arena_is_two_routes_and_the_reads_under_way() {
    assert_eq!(limits(4, 0, 3).least_slots(), 7);
    assert!(Scheduler::new(limits(4, 7, 3), &[]).is_ok());
    let error = Scheduler::new(limits(4, 6, 3), &[]).err().unwrap();
    assert_eq!(error, ArenaTooSmall { slots: 6, least_slots: 7 });
    assert!(error.to_string().starts_with("the arena has 6 slots; at least 7 are needed"), "{error}");
}

#[test]
fn demand_overtakes_read_ahead_and_most_tokens_go_first() {
    use Class::{Demand as D, ReadAhead as A};
    let mut s = scheduler(30, 4, &[]);
    s.begin_pass(PassKind::Prompt);
    s.forecast(2, &demands(&[(0, 99)]));
    s.forecast(1, &demands(&[(5, 1), (4, 3), (6, 3)]));
    // Tokens of strips add up.
    s.forecast(1, &demands(&[(5, 1)]));
    assert_eq!(order(&[s.next_read().unwrap(), s.next_read().unwrap()]), [(A, 1, 4), (A, 1, 6)]);
    s.demand(0, &demands(&[(9, 1), (2, 2)])).unwrap();
    s.demand(0, &demands(&[(9, 2), (1, 2)])).unwrap();
    let more = reads(&mut s);
    assert_eq!(order(&more), [(D, 0, 9), (D, 0, 1)], "four at a time");
    finish(&mut s, &more);
    assert_eq!(order(&reads(&mut s)), [(D, 0, 2), (A, 1, 5)]);
}

#[test]
fn guesses_that_are_not_sure_keep_no_other_layer_waiting() {
    use Class::ReadAhead as A;
    let mut s = scheduler(30, 4, &[]);
    s.set_forecast_min(3);
    s.begin_pass(PassKind::Prompt);
    s.forecast(0, &demands(&[(1, 2), (2, 3)]));
    s.forecast(1, &demands(&[(5, 9), (6, 1)]));
    assert_eq!(order(&reads(&mut s)), [(A, 0, 2), (A, 1, 5)]);
    // They are read when they are sure enough, the nearer layer first.
    s.forecast(1, &demands(&[(6, 2)]));
    s.set_forecast_min(1);
    assert_eq!(order(&reads(&mut s)), [(A, 0, 1), (A, 1, 6)]);
}

#[test]
fn read_ahead_becomes_demand_or_is_dropped() {
    let mut s = scheduler(30, 3, &[]);
    s.begin_pass(PassKind::Prompt);
    s.forecast(0, &demands(&[(1, 9), (2, 8), (3, 7), (4, 6), (5, 5)]));
    let started = reads(&mut s);
    assert_eq!(order(&started).iter().map(|r| r.2).collect::<Vec<_>>(), [1, 2, 3]);
    s.read_done(started[0].slot);
    // In memory, on its way, and queued; 3 is on its way for nothing, 5 is dropped; 7 nobody expected.
    let restarted = reads(&mut s);
    assert_eq!(order(&restarted), [(Class::ReadAhead, 0, 4)]);
    s.forecast(0, &demands(&[(6, 1)]));
    s.demand(0, &demands(&[(1, 1), (2, 1), (6, 1), (7, 1)])).unwrap();
    s.close(0);
    assert_eq!(s.counts().ahead, Tally { records: 3, bytes: 3 * RECORD_BYTES });
    assert_eq!(s.counts().missed, Tally { records: 1, bytes: RECORD_BYTES });
    finish(&mut s, &started[1..]);
    finish(&mut s, &restarted);
    assert_eq!(serve(&mut s, 0), [1, 2, 6, 7]);
    s.end_pass();
    assert_eq!(s.counts().wasted[Class::ReadAhead].records, 2);
    assert_eq!(s.counts().read[Class::ReadAhead].records, 4);
    assert_eq!(s.counts().read[Class::Demand].records, 2);
    // What was read for nothing is there all the same.
    s.begin_pass(PassKind::Prompt);
    s.demand(0, &demands(&[(3, 1), (4, 1)])).unwrap();
    assert_eq!(s.next_read(), None);
    s.close(0);
    assert_eq!(s.counts().resident.records, 2);
}

#[test]
fn what_the_last_strip_is_the_first_to_ask_for_is_missed_although_its_read_has_begun() {
    let mut s = scheduler(30, 8, &[]);
    s.begin_pass(PassKind::Prompt);
    s.forecast(0, &demands(&[(1, 1)]));
    // Two strips: 2 is read beside the second one, 3 and 4 nobody expected before it.
    s.demand(0, &demands(&[(1, 1), (2, 1)])).unwrap();
    assert_eq!(reads(&mut s).len(), 2);
    s.demand(0, &demands(&[(2, 1), (3, 1), (4, 1)])).unwrap();
    let started = reads(&mut s);
    assert_eq!(order(&started).iter().map(|r| r.2).collect::<Vec<_>>(), [3, 4]);
    // However fast the drive is.
    s.read_done(started[0].slot);
    s.close(0);
    let records = |s: &Scheduler| [s.counts().resident, s.counts().ahead, s.counts().missed].map(|tally| tally.records);
    assert_eq!(records(&s), [0, 2, 2]);
}

/// 0 and 1 were used twice, 2 to 5 once and later. Forty steps of the text make the two uses less than one, forty passes of
/// a draft head do not.
#[test]
fn passes_that_leave_out_layers_make_nothing_older() {
    for (first_layer, evicted) in [(0, [0, 1]), (3, [2, 3])] {
        let mut s = scheduler(6, 2, &[]);
        let step = |s: &mut Scheduler, experts: &[u32]| {
            s.begin_pass(PassKind::Decode);
            layer(s, 0, experts);
            s.end_pass();
        };
        step(&mut s, &[0, 1]);
        step(&mut s, &[0, 1]);
        for _ in 0..40 {
            s.begin_pass(PassKind::Decode);
            s.skip_to(first_layer);
            s.end_pass();
        }
        step(&mut s, &[2, 3]);
        step(&mut s, &[4, 5]);
        s.begin_pass(PassKind::Decode);
        s.demand(0, &demands(&[(8, 2), (9, 1)])).unwrap();
        let given_way: Vec<_> = reads(&mut s).iter().map(|read| read.evicted.unwrap().index).collect();
        assert_eq!(given_way, evicted);
    }
}

#[test]
fn a_routes_hits_are_kept_from_its_misses() {
    let mut s = scheduler(6, 2, &[]);
    s.begin_pass(PassKind::Decode);
    layer(&mut s, 0, &[0, 1, 2, 3, 4, 5]);
    s.end_pass();
    s.begin_pass(PassKind::Decode);
    // 0 was used longest ago, and is hit: 1 and 2 give way.
    s.demand(0, &demands(&[(8, 9), (9, 9), (0, 1)])).unwrap();
    let evicted: Vec<_> = reads(&mut s).iter().map(|read| read.evicted.unwrap().index).collect();
    assert_eq!(evicted, [1, 2]);
}

#[test]
fn sweeps_evict_what_they_used_and_decode_what_was_used_longest_ago() {
    for (kind, evicted) in [(PassKind::Prompt, 5), (PassKind::Decode, 0)] {
        let mut s = scheduler(6, 2, &[]);
        s.begin_pass(kind);
        layer(&mut s, 0, &[0, 1, 2, 3, 4, 5]);
        s.demand(1, &demands(&[(0, 1)])).unwrap();
        assert_eq!(s.next_read().unwrap().evicted, Some(id(0, evicted)), "{kind:?}");
    }
}

#[test]
fn read_ahead_takes_only_what_nobody_needs_but_demand_takes_read_ahead() {
    let mut s = scheduler(6, 2, &[]);
    s.begin_pass(PassKind::Prompt);
    s.forecast(1, &demands(&[(0, 9), (1, 8), (2, 7), (3, 6), (4, 5), (5, 4), (6, 3), (7, 2)]));
    for _ in 0..3 {
        let started = reads(&mut s);
        finish(&mut s, &started);
    }
    assert_eq!(s.next_read(), None, "the arena is full of what is expected");
    s.demand(0, &demands(&[(0, 1)])).unwrap();
    let read = s.next_read().unwrap();
    assert_eq!((read.expert, read.evicted), (id(0, 0), Some(id(1, 5))), "the least expected gives way");
    assert_eq!(s.counts().wasted[Class::ReadAhead].records, 1);
    s.read_done(read.slot);
    assert_eq!(s.next_read(), None);
    s.close(0);
    assert_eq!(serve(&mut s, 0), [0]);
    // What gave way is not expected any more; the next ones are.
    assert_eq!(s.next_read().unwrap().expert, id(1, 6));
}

#[test]
fn the_hot_set_is_loaded_kept_in_prompts_and_exchanged_in_decode() {
    // 4 of the 10 slots can be hot: what is not there, what comes twice and what is too much is skipped.
    let mut s = scheduler(10, 2, &[(0, 0), (7, 0), (0, 0), (0, 1), (0, 10), (1, 2), (1, 3), (1, 4)]);
    for _ in 0..2 {
        let started = reads(&mut s);
        assert!(started.iter().all(|read| read.class == Class::HotSet));
        finish(&mut s, &started);
    }
    let hot = [id(0, 0), id(0, 1), id(1, 2), id(1, 3)];
    assert_eq!(s.hot_set().collect::<Vec<_>>(), hot);
    assert_eq!(s.next_read(), None);
    s.begin_pass(PassKind::Prompt);
    layer(&mut s, 0, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    layer(&mut s, 1, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    s.end_pass();
    assert_eq!(s.hot_set().collect::<Vec<_>>(), hot);
    assert_eq!(s.counts().resident.records, 4);
    // A use in decode makes the hottest; if it was not hot, the coldest one gives up its place.
    for (used, hot) in [
        (2, [id(1, 2), id(0, 0), id(0, 1), id(1, 3)]),
        (3, [id(2, 3), id(1, 2), id(0, 0), id(0, 1)]),
        (2, [id(1, 2), id(2, 3), id(0, 0), id(0, 1)]),
    ] {
        s.begin_pass(PassKind::Decode);
        layer(&mut s, 0, &[]);
        layer(&mut s, 1, if used == 2 { &[2] } else { &[] });
        layer(&mut s, 2, if used == 3 { &[3] } else { &[] });
        s.end_pass();
        assert_eq!(s.hot_set().collect::<Vec<_>>(), hot);
    }
}

/// In decode, those that left the hot set wait for their turn; the one of them that was used least gives way, and of as many
/// uses the one that waits longest.
#[test]
fn what_was_used_least_gives_way_in_decode() {
    // One slot is the hot set's.
    let mut s = scheduler(7, 2, &[(3, 9)]);
    let started = reads(&mut s);
    finish(&mut s, &started);
    // (3, 9) was never used, and 0 twice before all others: it waits longer than 1, which goes.
    let passes: [(&[u32], &[ExpertId]); 6] =
        [(&[0], &[]), (&[0], &[]), (&[1, 2], &[]), (&[3, 4], &[]), (&[5, 6], &[id(3, 9)]), (&[7], &[id(0, 1)])];
    for (experts, evicted) in passes {
        s.begin_pass(PassKind::Decode);
        let all: Vec<_> = experts.iter().map(|expert| (*expert, 1)).collect();
        s.demand(0, &demands(&all)).unwrap();
        let started = reads(&mut s);
        assert_eq!(started.iter().filter_map(|read| read.evicted).collect::<Vec<_>>(), evicted, "{experts:?}");
        finish(&mut s, &started);
        s.close(0);
        serve(&mut s, 0);
        (1..4).for_each(|index| assert!(layer(&mut s, index, &[]).is_empty()));
        s.end_pass();
    }
    assert_eq!(s.hot_set().collect::<Vec<_>>(), [id(0, 7)]);
}

#[test]
fn a_layer_larger_than_the_arena_goes_in_parts() {
    let mut s = scheduler(6, 2, &[]);
    s.begin_pass(PassKind::Prompt);
    assert_eq!(layer(&mut s, 0, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    s.end_pass();
    assert_eq!(s.counts().read[Class::Demand].records, 10);
    assert_eq!(s.counts().evictions, 4);
}

#[test]
fn a_failed_read_is_told_once_and_tried_in_the_next_pass() {
    let mut s = scheduler(6, 2, &[]);
    s.begin_pass(PassKind::Prompt);
    s.demand(0, &demands(&[(0, 1), (1, 1)])).unwrap();
    let started = reads(&mut s);
    s.read_failed(started[0].slot);
    s.read_done(started[1].slot);
    // More rows want it, but it is not tried again.
    s.demand(0, &demands(&[(0, 1)])).unwrap();
    assert_eq!(s.next_read(), None);
    s.close(0);
    assert_eq!(s.next_outcome(), Some(Outcome::Failed { expert: id(0, 0) }));
    assert!(matches!(s.next_outcome(), Some(Outcome::Ready { expert, .. }) if expert == id(0, 1)));
    assert_eq!((s.next_outcome(), s.outstanding()), (None, 0));
    s.abandon();
    s.begin_pass(PassKind::Prompt);
    assert_eq!(layer(&mut s, 0, &[0]), [0]);
}

#[test]
fn slots_that_are_out_survive_the_pass_and_keep_their_record() {
    let mut s = scheduler(6, 2, &[]);
    s.begin_pass(PassKind::Prompt);
    s.demand(0, &demands(&[(0, 1)])).unwrap();
    let started = reads(&mut s);
    finish(&mut s, &started);
    s.close(0);
    let Some(Outcome::Ready { slot, .. }) = s.next_outcome() else { panic!("it was read") };
    s.abandon();
    s.begin_pass(PassKind::Decode);
    // Nine others through five slots; then the one that is out is wanted and handed out once more.
    assert_eq!(layer(&mut s, 0, &[1, 2, 3, 4, 5, 6, 7, 8, 9]).len(), 9);
    s.end_pass();
    s.begin_pass(PassKind::Decode);
    s.demand(0, &demands(&[(0, 1)])).unwrap();
    s.close(0);
    assert_eq!(s.next_outcome(), Some(Outcome::Ready { expert: id(0, 0), slot }));
    s.release(slot);
    s.release(slot);
    s.layer_done(0);
    s.end_pass();
}

#[test]
#[should_panic(expected = "is under way")]
fn a_read_of_an_older_generation_is_not_believed() {
    let mut s = scheduler(6, 2, &[]);
    s.begin_pass(PassKind::Prompt);
    s.demand(0, &demands(&[(0, 1)])).unwrap();
    let SlotId { index, generation } = s.next_read().unwrap().slot;
    s.read_done(SlotId { index, generation: generation - 1 });
}

/// Once a request failed for what a request before it, given up, had found unreadable.
#[test]
fn a_read_that_an_earlier_pass_started_and_that_fails_is_done_anew() {
    let mut s = scheduler(6, 2, &[]);
    s.begin_pass(PassKind::Prompt);
    s.demand(0, &demands(&[(0, 1)])).unwrap();
    s.forecast(1, &demands(&[(3, 1)]));
    let old = [s.next_read().unwrap(), s.next_read().unwrap()];
    s.abandon();

    s.begin_pass(PassKind::Prompt);
    s.demand(0, &demands(&[(0, 1)])).unwrap();
    s.forecast(1, &demands(&[(3, 1)]));
    s.close(0);
    assert_eq!(s.next_read(), None, "both are on their way");
    old.iter().for_each(|read| s.read_failed(read.slot));
    assert_eq!(s.next_outcome(), None, "nothing has failed in this pass");
    let again = [s.next_read().unwrap(), s.next_read().unwrap()];
    assert_eq!(again.map(|read| read.expert), old.map(|read| read.expert));
    s.read_done(again[0].slot);
    assert!(matches!(s.next_outcome(), Some(Outcome::Ready { .. })));
    // A read of this pass that fails is a failure of this pass.
    s.read_failed(again[1].slot);
    s.layer_done(0);
    s.demand(1, &demands(&[(3, 1)])).unwrap();
    s.close(1);
    assert_eq!(s.next_outcome(), Some(Outcome::Failed { expert: again[1].expert }));
}

/// A slot that was read and handed out.
fn one_out() -> (Scheduler, SlotId) {
    let mut s = scheduler(6, 2, &[]);
    s.begin_pass(PassKind::Prompt);
    s.demand(0, &demands(&[(0, 1)])).unwrap();
    let started = reads(&mut s);
    finish(&mut s, &started);
    s.close(0);
    let Some(Outcome::Ready { slot, .. }) = s.next_outcome() else { panic!("it was read") };
    (s, slot)
}

#[test]
#[should_panic(expected = "is not out")]
fn a_slot_is_given_back_once() {
    let (mut s, slot) = one_out();
    s.release(slot);
    s.release(slot);
}

#[test]
#[should_panic(expected = "is not out")]
fn a_slot_of_an_older_generation_is_not_taken_back() {
    let (mut s, SlotId { index, generation }) = one_out();
    s.release(SlotId { index, generation: generation - 1 });
}

#[test]
fn experts_that_do_not_exist_are_refused_whole() {
    let mut s = scheduler(6, 2, &[]);
    s.begin_pass(PassKind::Prompt);
    let error = s.demand(0, &demands(&[(0, 1), (10, 1)])).unwrap_err();
    assert!(matches!(error, StoreError::NoSuchExpert(expert) if expert == id(0, 10)));
    // As hints they are ignored, like those that come too late.
    s.forecast(0, &demands(&[(10, 1)]));
    s.forecast(4, &demands(&[(0, 1)]));
    assert_eq!((s.outstanding(), s.next_read()), (0, None));
    s.close(0);
    s.forecast(0, &demands(&[(1, 1)]));
    assert_eq!(s.next_read(), None);
}

#[test]
fn an_arena_that_held_everything_gets_a_ring_when_it_shrinks() {
    // Four layers of ten experts, all of which stay: there is no ring.
    let all: Vec<_> = (0..4).flat_map(|layer| (0..10).map(move |index| (layer, index))).collect();
    let mut s = scheduler(40, 2, &all);
    loop {
        let started = reads(&mut s);
        if started.is_empty() {
            break;
        }
        finish(&mut s, &started);
    }
    assert_eq!(s.resident().count(), 40);
    // Fewer than the smallest legal arena are refused, more than there are change nothing.
    assert_eq!(s.shrink(5), Err(ArenaTooSmall { slots: 5, least_slots: 6 }));
    s.shrink(40).unwrap();
    s.shrink(8).unwrap();
    assert_eq!((s.slots(), s.resident().count(), s.hot_set().count()), (8, 8, 2));
    assert_eq!(std::iter::from_fn(|| s.next_retired()).count(), 32);
    for layer_index in 0..4 {
        if layer_index == 0 {
            s.begin_pass(PassKind::Prompt);
        }
        let mut served = layer(&mut s, layer_index, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        served.sort_unstable();
        assert_eq!(served, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert!(s.resident().count() <= 8);
    }
    s.end_pass();
}

#[test]
fn a_smaller_arena_gives_up_its_coldest() {
    // Eight slots for the ring, four for the hot set.
    let hot = [(0, 0), (0, 1), (1, 2), (1, 3)];
    let mut s = scheduler(12, 2, &hot);
    for _ in 0..2 {
        let started = reads(&mut s);
        finish(&mut s, &started);
    }
    s.begin_pass(PassKind::Prompt);
    layer(&mut s, 0, &[5, 6, 7, 8]);
    s.end_pass();
    s.begin_pass(PassKind::Decode);
    layer(&mut s, 0, &[1]);
    s.end_pass();
    // Hottest first: (0, 1) by use, then (0, 0), (1, 2), (1, 3). The ring has room for 8 and holds 4.
    assert_eq!(s.shrink(5), Err(ArenaTooSmall { slots: 5, least_slots: 6 }));
    s.shrink(12).unwrap();
    s.shrink(20).unwrap();
    assert_eq!(s.next_retired(), None);
    s.shrink(9).unwrap();
    assert_eq!(s.hot_set().collect::<Vec<_>>(), [id(0, 1)], "three of the hot set leave, the ring stays");
    // Those that were empty are given up; what was hot is still there.
    let retired: Vec<_> = std::iter::from_fn(|| s.next_retired()).collect();
    assert_eq!(retired, [8, 9, 10]);
    s.begin_pass(PassKind::Decode);
    s.demand(0, &demands(&[(0, 1)])).unwrap();
    assert_eq!(s.next_read(), None);
    s.close(0);
    let Some(Outcome::Ready { slot, .. }) = s.next_outcome() else { panic!("it is there") };
    s.abandon();
    // Down to the smallest, while one is out: it stays, and what the sweep used last goes.
    s.shrink(6).unwrap();
    assert_eq!(s.hot_set().count(), 0);
    assert_eq!(std::iter::from_fn(|| s.next_retired()).collect::<Vec<_>>(), [11, 7, 6]);
    s.release(slot);
    assert_eq!((s.next_retired(), s.counts().evictions), (None, 0));
    s.begin_pass(PassKind::Decode);
    assert_eq!(layer(&mut s, 0, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]).len(), 10);
    s.end_pass();
}

#[test]
fn an_arena_that_had_room_for_all_gets_a_ring() {
    let all: Vec<_> = (0..4).flat_map(|layer| (0..10).map(move |index| id(layer, index))).collect();
    let mut s = Scheduler::new(limits(4, 40, 2), &all).unwrap();
    for _ in 0..15 {
        let started = reads(&mut s);
        finish(&mut s, &started);
    }
    // The ring of none becomes the smallest legal one: 6 and 1 leave, among them the 10 that are not there.
    s.shrink(39).unwrap();
    assert_eq!(s.hot_set().count() + s.hot_to_load().count(), 39 - 6);
    assert_eq!((s.hot_set().count(), s.next_retired(), s.next_retired()), (30, Some(30), None));
    s.begin_pass(PassKind::Prompt);
    assert_eq!(layer(&mut s, 0, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]).len(), 10);
    layer(&mut s, 1, &[]);
    layer(&mut s, 2, &[]);
    assert_eq!(layer(&mut s, 3, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]).len(), 10);
    s.end_pass();
    // Few experts of a model that would not fill the smallest legal arena: all of them, or an error.
    let small = Limits { experts: 3, top_k: 3, ..limits(2, 6, 2) };
    let mut s = Scheduler::new(small, &[]).unwrap();
    s.shrink(6).unwrap();
    assert!(s.shrink(5).is_err());
}

#[test]
fn nothing_is_read_before_slots_that_are_too_many_come_back() {
    let mut s = scheduler(9, 2, &[]);
    s.begin_pass(PassKind::Prompt);
    s.demand(0, &demands(&[(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1)])).unwrap();
    s.close(0);
    for _ in 0..4 {
        let started = reads(&mut s);
        finish(&mut s, &started);
    }
    let out: Vec<_> = std::iter::from_fn(|| s.next_outcome()).collect();
    assert_eq!(out.len(), 8);
    s.abandon();
    s.shrink(6).unwrap();
    assert_eq!((s.next_retired(), s.next_retired()), (Some(8), None), "one was empty, the others are out");
    s.begin_pass(PassKind::Prompt);
    s.demand(0, &demands(&[(9, 1)])).unwrap();
    for (released, outcome) in out.iter().enumerate() {
        // With the third one, the ring has room again.
        assert_eq!(s.next_read().is_some(), released == 3, "{released}");
        let Outcome::Ready { slot, .. } = outcome else { panic!("{outcome:?}") };
        s.release(*slot);
    }
    assert_eq!(std::iter::from_fn(|| s.next_retired()).count(), 2);
}

/// Begins a pass in which layer 0 has these experts out and layer 1 is about to demand; gives the slots.
fn hold(s: &mut Scheduler, experts: &[u32]) -> Vec<SlotId> {
    s.begin_pass(PassKind::Prompt);
    let all: Vec<_> = experts.iter().map(|expert| (*expert, 1)).collect();
    s.demand(0, &demands(&all)).unwrap();
    for _ in experts {
        let read = s.next_read().unwrap();
        s.read_done(read.slot);
    }
    s.close(0);
    let outcomes: Vec<_> = std::iter::from_fn(|| s.next_outcome()).collect();
    s.layer_done(0);
    let slot = |outcome| if let Outcome::Ready { slot, .. } = outcome { slot } else { panic!("{outcome:?}") };
    outcomes.into_iter().map(slot).collect()
}

#[test]
fn what_is_expected_gives_way_when_the_arena_has_shrunk() {
    let mut s = scheduler(7, 2, &[]);
    hold(&mut s, &[0, 1, 2, 3, 4]);
    s.demand(1, &demands(&[(0, 1), (1, 1)])).unwrap();
    let started = reads(&mut s);
    s.abandon();
    s.shrink(6).unwrap();
    s.begin_pass(PassKind::Prompt);
    s.forecast(1, &demands(&[(0, 2), (1, 1)]));
    assert_eq!(s.next_retired(), None, "all are out or being filled");
    finish(&mut s, &started);
    assert_eq!((s.next_retired(), s.next_retired()), (Some(started[0].slot.index), None));
    // The other one would wait for its layer for ever.
    s.demand(0, &demands(&[(9, 1)])).unwrap();
    assert_eq!(s.next_read().unwrap().evicted, Some(id(1, 1)));
}

#[test]
fn the_hot_set_waits_for_slots_that_are_too_many() {
    let mut s = scheduler(10, 2, &[(1, 0), (1, 1), (1, 2), (1, 3)]);
    let out = hold(&mut s, &[0, 1, 2, 3, 4, 5]);
    s.demand(1, &demands(&[(3, 1)])).unwrap();
    let read = s.next_read().unwrap();
    assert_eq!((read.expert, read.class), (id(1, 3), Class::Demand));
    s.abandon();
    // The coldest member leaves the hot set while it is being read: with six that are out, the ring has one too many.
    s.shrink(9).unwrap();
    assert_eq!(s.next_read(), None);
    s.release(out[0]);
    assert_eq!(std::iter::from_fn(|| s.next_retired()).count(), 1);
    assert_eq!(order(&reads(&mut s)), [(Class::HotSet, 1, 0)]);
    s.read_done(read.slot);
    assert_eq!(order(&reads(&mut s)), [(Class::HotSet, 1, 1)]);
}

#[test]
fn a_cleared_ring_holds_the_hot_set_and_what_is_out() {
    let mut s = scheduler(12, 2, &[(1, 0), (1, 1)]);
    let started = reads(&mut s);
    finish(&mut s, &started);
    s.begin_pass(PassKind::Prompt);
    s.demand(0, &demands(&[(0, 1), (1, 2)])).unwrap();
    let started = reads(&mut s);
    finish(&mut s, &started);
    s.close(0);
    let Some(Outcome::Ready { slot, .. }) = s.next_outcome() else { panic!("it was read") };
    s.abandon();
    s.clear_ring();
    s.begin_pass(PassKind::Prompt);
    s.demand(0, &demands(&[(0, 1), (1, 1)])).unwrap();
    assert_eq!(order(&reads(&mut s)), [(Class::Demand, 0, 0)], "1 is out, 0 is gone");
    s.close(0);
    assert_eq!(s.counts().resident.records, 1);
    assert_eq!(s.hot_set().collect::<Vec<_>>(), [id(1, 0), id(1, 1)]);
    assert_eq!(s.counts().evictions, 0);
    s.release(slot);
}

#[test]
#[should_panic(expected = "a pass is under way")]
fn an_arena_does_not_shrink_in_a_pass() {
    let mut s = scheduler(9, 2, &[]);
    s.begin_pass(PassKind::Prompt);
    let _ = s.shrink(8);
}

/// A sweep of eight layers whose forecasts are right keeps the drive busy all the time; without forecasts it idles while
/// the mixer runs. The floor is known: bytes over bandwidth.
#[test]
fn right_forecasts_reach_the_drives_floor() {
    let style =
        Style { layers: 8, experts: 64, top_k: 4, skew: 2, strips: 4, rows: 64, lookahead: 0, wrong_per_mille: 0 };
    let limits = Limits { record_bytes: vec![RECORD_BYTES; 8], experts: 64, top_k: 4, slots: 160, depth: 8 };
    let drive = Drive { latency_ns: 5_000, bytes_per_us: 1, jitter_ns: 5_000, fail_per_mille: 0 };
    // A layer's reads take 64 ms; its mixer 40 ms, its experts 6 ms.
    let compute = Compute { strip_ns: 10_000_000, expert_ns: 100_000, group: 1 };
    let wall_and_floor = |lookahead| {
        let pass = trace::pass(&Style { lookahead, ..style }, PassKind::Prompt, &mut Random::new(5));
        let mut simulator = Simulator::new(&limits, &[], drive, compute, 6);
        simulator.pass(&pass, 0).unwrap();
        let counts = simulator.scheduler.counts();
        let needed_bytes = counts.ahead.bytes + counts.missed.bytes;
        let floor_ns = needed_bytes * 1000 / drive.bytes_per_us;
        (simulator.now_ns as f64 / floor_ns as f64, counts.wasted[Class::ReadAhead].records)
    };
    let (ratio, wasted) = wall_and_floor(1);
    assert_eq!(wasted, 0);
    assert!((1.0..1.02).contains(&ratio), "{ratio}");
    let (without, _) = wall_and_floor(0);
    assert!(without > 1.1, "{without}");
}

/// Passes of single tokens in which layer 0 demands nothing, and these are forecast and demanded of layer 1.
fn single(s: &mut Scheduler, idle_records: f64, forecast: &[u32], demand: &[u32]) -> Vec<u32> {
    s.begin_pass(PassKind::Decode);
    layer_with(s, 0, &[], |s| s.forecast_ranked(1, forecast));
    s.expect_idle(idle_records);
    let started = reads(s);
    let ahead = started.iter().map(|read| read.expert.index).collect();
    finish(s, &started);
    layer(s, 1, demand);
    s.end_pass();
    ahead
}

/// One layer from demand to the end, told something before it is closed.
pub(crate) fn layer_with(s: &mut Scheduler, layer: u32, experts: &[u32], tell: impl FnOnce(&mut Scheduler)) {
    let all: Vec<_> = experts.iter().map(|expert| (*expert, 1)).collect();
    s.demand(layer, &demands(&all)).unwrap();
    tell(s);
    s.close(layer);
    serve(s, layer);
}

#[test]
fn guesses_of_a_single_token_are_read_by_rank_while_the_drive_has_time() {
    let mut s = scheduler(30, 8, &[]);
    // A half of them is believed to be right, and less when they were not: read when there is time for the other part.
    assert_eq!(single(&mut s, 0.4, &[7, 3, 5], &[]), []);
    assert_eq!(single(&mut s, 0.7, &[7, 3, 5], &[]), [7]);
    assert_eq!(
        single(&mut s, 2.4, &[6, 2, 4], &[]),
        [6, 2],
        "time for two of them, and for less than a half of a third"
    );
    let counts = s.counts();
    assert_eq!(counts.forecast, Forecasts { named: 9, right: 0, missing: 0 });
    assert_eq!((counts.read[Class::ReadAhead].records, counts.wasted[Class::ReadAhead].records), (3, 3));
    assert_eq!(counts.forecast.precision(), Some(0.0));
    assert_eq!(counts.forecast.recall(), None);
}

#[test]
fn what_a_token_misses_is_read_before_any_guess() {
    use Class::{Demand as D, ReadAhead as A};
    let mut s = scheduler(30, 8, &[]);
    s.begin_pass(PassKind::Decode);
    s.expect_idle(9.0);
    s.demand(0, &demands(&[(1, 1), (2, 1)])).unwrap();
    s.forecast_ranked(1, &[4, 5]);
    s.close(0);
    let started = reads(&mut s);
    assert_eq!(order(&started), [(D, 0, 1), (D, 0, 2)], "all that is missing at once, and nothing else");
    s.read_done(started[1].slot);
    assert_eq!((s.missing(), s.next_read()), (1, None));
    s.read_done(started[0].slot);
    let ahead = reads(&mut s);
    assert_eq!((order(&ahead), s.missing()), (vec![(A, 1, 4), (A, 1, 5)], 0));
    serve(&mut s, 0);
    // One is on its way when it is demanded, the other for nothing; a third nobody had expected.
    s.demand(1, &demands(&[(5, 1), (6, 1)])).unwrap();
    s.forecast_ranked(2, &[8]);
    s.close(1);
    assert_eq!(order(&reads(&mut s)), [(D, 1, 6)]);
    let counts = *s.counts();
    assert_eq!((counts.ahead.records, counts.missed.records), (1, 3));
    assert_eq!(counts.forecast, Forecasts { named: 2, right: 1, missing: 2 });
    assert_eq!((counts.forecast.precision(), counts.forecast.recall()), (Some(0.5), Some(0.5)));
}

#[test]
fn guesses_that_turn_out_wrong_are_made_no_more() {
    let mut s = scheduler(30, 8, &[]);
    // The first rank is always right, the second never; those of layer 1 come from memory soon.
    let mut ahead = Vec::new();
    for token in 0..40 {
        let (right, wrong) = (token % 5, 5 + token % 5);
        s.begin_pass(PassKind::Decode);
        layer_with(&mut s, 0, &[], |s| s.forecast_ranked(1, &[right, wrong]));
        s.expect_idle(9.0);
        let started = reads(&mut s);
        ahead.push(started.iter().map(|read| read.expert.index).collect::<Vec<_>>());
        finish(&mut s, &started);
        layer(&mut s, 1, &[right]);
        s.end_pass();
        s.clear_ring();
    }
    assert_eq!(ahead[0], [0, 5]);
    assert!(ahead[30..].iter().all(|read| read.len() == 1 && read[0] < 5), "{ahead:?}");
    // What one scheduler has learned, the next one knows.
    let mut next = scheduler(30, 8, &[]);
    next.learn_from(s);
    assert_eq!(single(&mut next, 9.0, &[8, 9], &[8]), [8]);
}
