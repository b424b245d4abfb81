//! The store over files in memory: what it hands out, whatever is read meanwhile and in which order.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::{Lookahead, StreamingOptions, StreamingStore, Usage};
use crate::reads::memory::{Files, POISON};
use crate::scheduler::{Class, Counts};
use crate::{
    Area, Demand, ExpertId, ExpertStore, LayerRecords, PAGE_BYTES, Part, PartRange, PassKind, Records, Slot, StoreError,
};

/// How the parts of a layer lie in its file.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// Three matrices of all experts, one after the other.
    Apart,
    /// Gate and up of an expert beside each other in one matrix.
    Fused,
    /// All three of an expert beside each other: they share pages.
    Together,
}

/// A layer whose parts have these lengths, from `offset` of a file on; and where it ends.
fn layer(layout: Layout, file: usize, offset: u64, experts: u32, lens: [u64; 3]) -> (LayerRecords, u64) {
    let count = u64::from(experts);
    let part = |offset, stride_bytes, len_bytes| PartRange { file, offset, stride_bytes, len_bytes };
    let [gate, up, down] = lens;
    let parts = match layout {
        Layout::Apart => [
            part(offset, gate, gate),
            part(offset + count * gate, up, up),
            part(offset + count * (gate + up), down, down),
        ],
        Layout::Fused => [
            part(offset, gate + up, gate),
            part(offset + gate, gate + up, up),
            part(offset + count * (gate + up), down, down),
        ],
        Layout::Together => {
            let stride = gate + up + down;
            [part(offset, stride, gate), part(offset + gate, stride, up), part(offset + gate + up, stride, down)]
        }
    };
    (LayerRecords { experts, parts }, offset + count * (gate + up + down))
}

/// A store over poisoned memory, and its files.
struct Bed {
    store: StreamingStore,
    records: Records,
    files: Files,
}

impl Bed {
    fn new(records: Records, lens: &[usize], slots: usize, depth: u32, seed: u64) -> Self {
        let files = Files::of_lens(lens);
        let poisoned = |len_bytes: usize| {
            let mut area = Area::allocate(len_bytes).unwrap();
            // SAFETY: nobody else has it.
            unsafe { area.bytes_mut(0..len_bytes) }.fill(POISON);
            Arc::new(area)
        };
        let areas = StreamingStore::area_bytes(&records, slots).into_iter().map(poisoned).collect();
        let queue = files.queue(StreamingStore::queue_depth(depth), seed);
        let options = StreamingOptions { depth, ..StreamingOptions::default() };
        let usage = Usage::new(&records);
        let store = StreamingStore::new(records.clone(), areas, queue, options, usage).unwrap();
        Self { store, records, files }
    }

    /// Four layers of ten experts of two kinds, of which a token uses two; room for so many.
    fn usual(slots: usize) -> Self {
        let (a, end) = layer(Layout::Apart, 0, 33, 10, [5000, 3000, 8000]);
        let (b, end) = layer(Layout::Fused, 0, end + 7, 10, [700, 700, 4096]);
        let (c, end) = layer(Layout::Together, 0, end, 10, [5000, 3000, 8000]);
        let (d, end) = layer(Layout::Apart, 0, end, 10, [700, 700, 4096]);
        Self::new(Records { layers: vec![a, b, c, d], top_k: 2 }, &[end as usize], slots, 3, 5)
    }

    /// Whether a slot holds the bytes that the record of `held` has in the files.
    fn holds(&self, slot: &Slot, held: ExpertId) -> bool {
        Part::ALL.into_iter().all(|part| {
            let range = self.records.layers[held.layer as usize].parts[part as usize].range(held.index);
            let from = range.offset as usize;
            slot.part(part) == self.files.bytes(range.file, from..from + range.len_bytes)
        })
    }

    /// A layer's demand; all of its experts are handed out once, right, and given back. The experts in that order.
    fn serve(&mut self, layer: u32, experts: &[u32]) -> Result<Vec<u32>, StoreError> {
        let demands: Vec<_> = experts.iter().map(|expert| Demand { expert: *expert, tokens: 1 }).collect();
        self.store.demand(layer, &demands)?;
        self.store.close(layer);
        let mut served = Vec::new();
        loop {
            let mut slots = Vec::new();
            self.store.ready(layer, &mut slots)?;
            if slots.is_empty() {
                let mut sorted = served.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, experts, "each once");
                return Ok(served);
            }
            // While they are out, others are read.
            self.store.poll();
            for slot in &slots {
                assert!(slot.id().layer == layer && self.holds(slot, slot.id()), "{} holds other bytes", slot.id());
                served.push(slot.id().index);
            }
            slots.into_iter().for_each(|slot| self.store.release(slot));
            assert!(self.store.resident() <= self.store.slots());
        }
    }

    /// A pass in which every layer uses these experts.
    fn pass(&mut self, kind: PassKind, experts: &[u32]) -> Result<(), StoreError> {
        let pass = self.store.begin_pass(kind);
        for layer in 0..self.records.layers.len() as u32 {
            if let Err(error) = self.serve(layer, experts) {
                self.store.abandon(pass);
                return Err(error);
            }
        }
        self.store.end_pass();
        Ok(())
    }
}

const EVERY: [u32; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];

fn layouts() -> impl Strategy<Value = Layout> {
    prop_oneof![Just(Layout::Apart), Just(Layout::Fused), Just(Layout::Together)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 60 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn slots_hold_exactly_the_bytes_of_their_records(
        layers in prop::collection::vec((layouts(), 0u64..9000, [1u64..20_000, 1u64..9000, 1u64..5000], 0usize..2), 1..4),
        experts in 4u32..9,
        more_slots in 0usize..12,
        depth in 1u32..5,
        seed in any::<u64>(),
        passes in prop::collection::vec((any::<u16>(), any::<bool>()), 1..6),
    ) {
        // Two files; their last record ends where they end.
        let mut lens = [0; 2];
        let make = |(layout, gap, part_lens, file): (Layout, u64, [u64; 3], usize)| {
            let (layer, end) = layer(layout, file, lens[file] as u64 + gap, experts, part_lens);
            lens[file] = end as usize;
            layer
        };
        let layers: Vec<_> = layers.into_iter().map(make).collect();
        let slots = 2 * 2 + depth as usize + more_slots;
        let mut bed = Bed::new(Records { layers, top_k: 2 }, &lens, slots, depth, seed);
        let mut lookups = 0;
        for (chosen, is_prompt) in passes {
            let chosen: Vec<u32> = (0..experts).filter(|expert| chosen >> expert & 1 == 1).collect();
            let kind = if is_prompt { PassKind::Prompt } else { PassKind::Decode };
            bed.pass(kind, &chosen).unwrap();
            lookups += chosen.len() * bed.records.layers.len();
        }
        let counts = bed.store.counts();
        prop_assert_eq!((counts.resident.records + counts.ahead.records + counts.missed.records) as usize, lookups);
        // Three reads a record, of nothing but records.
        let reads: u64 = Class::ALL.iter().map(|class| counts.read[*class].records).sum();
        let under_way = bed.store.queue.under_way() as u64;
        prop_assert!(bed.files.take_reads().len() as u64 >= 3 * reads);
        prop_assert!(under_way <= 3 * u64::from(depth));
    }
}

#[test]
fn field_report_17_18_all_that_is_missing_is_on_its_way_at_once_and_in_whole_parts() {
    let mut bed = Bed::usual(12);
    bed.store.load_hot_set(&mut |_, _| true).unwrap();
    bed.files.take_reads();
    bed.files.hold(true);
    let pass = bed.store.begin_pass(PassKind::Prompt);
    // As many as may be on their way: nobody has waited for any yet.
    bed.store.demand(0, &[7, 2, 5].map(|expert| Demand { expert, tokens: 1 })).unwrap();
    let reads: Vec<_> = bed.files.take_reads().into_iter().map(|(_, range)| range).collect();
    let window =
        |offset: usize, len: usize| offset / PAGE_BYTES * PAGE_BYTES..(offset + len).next_multiple_of(PAGE_BYTES);
    // Most tokens first, and of as many the lower index.
    let expected: Vec<_> = [2, 5, 7]
        .into_iter()
        .flat_map(|e| [window(33 + e * 5000, 5000), window(50_033 + e * 3000, 3000), window(80_033 + e * 8000, 8000)])
        .collect();
    assert_eq!(reads, expected);
    bed.store.abandon(pass);
}

#[test]
fn what_a_token_misses_is_on_its_way_at_once_before_any_guess() {
    let mut bed = Bed::usual(12);
    // Passes from which the pace is learned.
    (0..3).for_each(|_| bed.pass(PassKind::Decode, &[0, 1]).unwrap());
    bed.store.settle().unwrap();
    bed.store.clear_ring().unwrap();
    bed.files.hold(true);
    bed.files.take_reads();
    bed.store.begin_pass(PassKind::Decode);
    bed.store.demand(0, &[7, 5].map(|expert| Demand { expert, tokens: 1 })).unwrap();
    let parts = |expert: u32| bed.records.layers[0].parts.each_ref().map(|part| part.range(expert).offset as usize);
    let pages = |offset: usize| offset / PAGE_BYTES * PAGE_BYTES;
    let expected: Vec<_> = [parts(5), parts(7)].concat().into_iter().map(pages).collect();
    let started: Vec<_> = bed.files.take_reads().into_iter().map(|(_, range)| range.start).collect();
    assert_eq!(started, expected);
    bed.store.forecast_ranked(1, &[3, 4]);
    bed.store.close(0);
    bed.store.poll();
    assert_eq!(bed.files.take_reads(), [], "there is room for a third record, but two are missing");
    bed.files.hold(false);
    let mut slots = Vec::new();
    while bed.store.scheduler.outstanding() > 0 {
        bed.store.ready(0, &mut slots).unwrap();
    }
    slots.drain(..).for_each(|slot| bed.store.release(slot));
    bed.store.ready(0, &mut slots).unwrap();
    assert!(slots.is_empty());
    // Whether there was time for a guess or not, what is demanded comes.
    assert_eq!(bed.serve(1, &[3, 9]).unwrap().len(), 2);
    bed.store.end_pass();
    let forecast = bed.store.counts().forecast;
    assert_eq!((forecast.named, forecast.right, forecast.missing), (2, 1, 2));
}

/// A profile says what the next layer of a prompt needs. A draft head's layer is none of a prompt's, and a single token uses
/// too few experts for a profile.
#[test]
fn a_profile_is_for_prompts_and_the_layers_that_they_go_through() {
    let read_ahead = |kind, left_out: usize| {
        let Bed { store, records, files } = Bed::usual(7);
        let mut bed = Bed { store: store.with_left_out(left_out), records, files };
        bed.pass(PassKind::Prompt, &EVERY).unwrap();
        bed.store.start_over().unwrap();
        bed.store.set_lookahead(Lookahead::Profile, 1);
        bed.store.begin_pass(kind);
        for layer in 0..4 - left_out as u32 {
            bed.serve(layer, &[0, 1]).unwrap();
        }
        bed.store.poll();
        let held = (0..10).filter(|index| bed.store.holds(ExpertId { layer: 3, index: *index })).count();
        bed.store.end_pass();
        (bed.store.counts().read[Class::ReadAhead].records > 0, held > 0)
    };
    assert_eq!(read_ahead(PassKind::Prompt, 0), (true, true));
    assert_eq!(read_ahead(PassKind::Prompt, 1), (true, false), "the layer after those that are passed");
    assert_eq!(read_ahead(PassKind::Decode, 0), (false, true));
}

#[test]
fn what_is_forgotten_comes_back_as_the_profile_says() {
    let mut bed = Bed::usual(12);
    (0..4).for_each(|_| bed.pass(PassKind::Decode, &[6, 9]).unwrap());
    bed.store.start_over().unwrap();
    bed.store.load_hot_set(&mut |_, _| true).unwrap();
    let hot_set = |bed: &Bed| bed.store.scheduler.hot_set().collect::<std::collections::BTreeSet<_>>();
    let hot = hot_set(&bed);
    // Other experts take their places, and what is used changes.
    (0..4).for_each(|_| bed.pass(PassKind::Decode, &[1, 2]).unwrap());
    assert_ne!(hot_set(&bed), hot);
    bed.store.forget_all().unwrap();
    assert_eq!(bed.store.resident(), 0);
    bed.store.load_hot_set(&mut |_, _| true).unwrap();
    assert_eq!(hot_set(&bed), hot);
    // All that was ever written to is there to be looked at.
    let bytes: usize = bed.store.memory().unwrap().map(<[u8]>::len).sum();
    assert_eq!(bytes, StreamingStore::area_bytes(&bed.records, 12).iter().sum::<usize>());
}

#[test]
fn a_slot_is_not_what_it_was_when_it_holds_another_record() {
    let mut bed = Bed::usual(8);
    // By slot, the record that was in it last, and the generation.
    let mut last: BTreeMap<u32, (ExpertId, u32)> = BTreeMap::new();
    for _ in 0..3 {
        bed.store.begin_pass(PassKind::Prompt);
        for layer in 0..4 {
            let demands = EVERY.map(|expert| Demand { expert, tokens: 1 });
            bed.store.demand(layer, &demands).unwrap();
            bed.store.close(layer);
            loop {
                let mut slots = Vec::new();
                bed.store.ready(layer, &mut slots).unwrap();
                if slots.is_empty() {
                    break;
                }
                for slot in slots {
                    let now = (slot.id(), slot.slot.generation);
                    if let Some(before) = last.insert(slot.slot.index, now) {
                        assert_eq!(before.0 == now.0, before.1 == now.1, "{before:?} {now:?}");
                        assert!(now.1 >= before.1);
                    }
                    bed.store.release(slot);
                }
            }
        }
        bed.store.end_pass();
    }
    // One slot is the hot set's.
    assert!(last.values().filter(|(_, generation)| *generation > 3).count() == 7, "{last:?}");
}

#[test]
fn records_that_fail_are_named_and_the_store_goes_on() {
    let mut bed = Bed::usual(12);
    // A byte of the down matrix of expert 4 of layer 0.
    let bad = 33 + 10 * 8000 + 4 * 8000 + 4000;
    bed.files.spoil(Some(bad..bad + 1));
    for _ in 0..2 {
        let error = bed.pass(PassKind::Prompt, &EVERY).unwrap_err();
        let StoreError::Expert { expert, source } = error else { panic!("{error}") };
        assert_eq!(expert, ExpertId { layer: 0, index: 4 });
        assert!(matches!(*source, StoreError::Read { offset: 112_033, wanted_bytes: 8000, .. }), "{source}");
        // Others are not concerned.
        bed.pass(PassKind::Prompt, &[0, 1, 2, 3, 5, 6, 7, 8, 9]).unwrap();
    }
    // What failed in a pass is no failure of what is loaded afterwards.
    bed.store.begin_pass(PassKind::Prompt);
    bed.store.forecast(0, &[Demand { expert: 4, tokens: 9 }]);
    (0..4).for_each(|layer| assert_eq!(bed.serve(layer, &[1]).unwrap(), [1]));
    bed.store.end_pass();
    bed.store.settle().unwrap();
    assert_eq!(bed.store.failures.len(), 1);
    bed.store.load_hot_set(&mut |_, _| true).unwrap();
    bed.files.spoil(None);
    bed.pass(PassKind::Prompt, &EVERY).unwrap();
}

#[test]
fn a_pass_that_is_given_up_anywhere_leaves_the_store_usable() {
    let mut bed = Bed::usual(12);
    for at in 0..8 {
        let pass = bed.store.begin_pass(PassKind::Prompt);
        for layer in 0..at / 2 {
            bed.serve(layer, &EVERY).unwrap();
        }
        let layer = at / 2;
        bed.store.demand(layer, &EVERY.map(|expert| Demand { expert, tokens: 1 })).unwrap();
        let mut slots = Vec::new();
        if at % 2 == 1 {
            bed.store.close(layer);
            bed.store.ready(layer, &mut slots).unwrap();
        }
        bed.files.hold(true);
        bed.store.poll();
        bed.store.abandon(pass);
        // Given back late, when the pass is over.
        slots.into_iter().for_each(|slot| bed.store.release(slot));
        bed.files.hold(false);
        bed.pass(PassKind::Decode, &[1, 3, 8]).unwrap();
    }
}

#[test]
fn a_replay_reads_what_a_pass_needed_and_nothing_else() {
    let mut bed = Bed::usual(12);
    bed.store.set_lookahead(Lookahead::Off, 1);
    bed.store.load_hot_set(&mut |_, _| true).unwrap();
    bed.store.clear_ring().unwrap();
    bed.store.keep_needed(true);
    let before = *bed.store.counts();
    bed.pass(PassKind::Prompt, &EVERY).unwrap();
    let counts = *bed.store.counts();
    let needed = bed.store.needed().to_vec();
    let read = |counts: &Counts| counts.ahead.records + counts.missed.records;
    assert_eq!(needed.len() as u64, read(&counts) - read(&before));
    assert_eq!(needed.len() as u64 + counts.resident.records - before.resident.records, 40);
    bed.store.settle().unwrap();
    bed.files.take_reads();
    bed.store.replay(&needed, &|| false).unwrap();
    let mut read: Vec<_> = bed.files.take_reads().into_iter().map(|(_, range)| range.start).collect();
    let parts = needed.iter().flat_map(|id| {
        bed.records.layers[id.layer as usize].parts.iter().map(|part| part.range(id.index).offset as usize)
    });
    let mut expected: Vec<_> = parts.map(|offset| offset - offset % PAGE_BYTES).collect();
    read.sort_unstable();
    expected.sort_unstable();
    assert_eq!(read, expected);

    // One that is stopped reads no more, and leaves nothing under way.
    let looks = std::cell::Cell::new(0);
    let is_stopped = || looks.replace(looks.get() + 1) >= 4;
    bed.store.replay(&needed, &is_stopped).unwrap();
    assert_eq!((bed.files.take_reads().len(), bed.store.queue.under_way()), (4 * 3, 0));

    // A replay that fails leaves nothing under way; the hot set is as it was.
    let bad = 33 + 10 * 8000 + 4 * 8000 + 4000;
    bed.files.spoil(Some(bad..bad + 1));
    let error = bed.store.replay(&[ExpertId { layer: 0, index: 4 }], &|| false).unwrap_err();
    assert!(matches!(error, StoreError::Read { offset: 112_033, .. }), "{error}");
    assert_eq!(bed.store.queue.under_way(), 0);
    bed.files.spoil(None);
    bed.pass(PassKind::Prompt, &EVERY).unwrap();
}

#[test]
fn fakes_are_valid_records_of_the_right_kind_and_cost_no_read() {
    let mut bed = Bed::usual(12);
    assert!(!bed.store.set_fake(true), "nothing is in memory");
    bed.pass(PassKind::Prompt, &EVERY).unwrap();
    bed.pass(PassKind::Prompt, &[7]).unwrap();
    bed.store.settle().unwrap();
    bed.files.take_reads();
    let (counts, resident) = (*bed.store.counts(), bed.store.scheduler.resident().collect::<Vec<_>>());
    assert!(bed.store.set_fake(true));
    bed.store.begin_pass(PassKind::Prompt);
    for layer in 0..4 {
        for _ in 0..2 {
            bed.store.demand(layer, &EVERY.map(|expert| Demand { expert, tokens: 1 })).unwrap();
        }
        bed.store.close(layer);
        let mut slots = Vec::new();
        bed.store.ready(layer, &mut slots).unwrap();
        let mut served: Vec<_> = slots.iter().map(|slot| slot.id().index).collect();
        served.sort_unstable();
        assert_eq!(served, EVERY, "each once, under its own name");
        for slot in slots {
            let held = resident.iter().find(|(_, id)| id.index == slot.slot.index).unwrap().0;
            assert_eq!(held.layer % 2, layer % 2, "of the same kind");
            assert!(bed.holds(&slot, held));
            bed.store.release(slot);
        }
        let mut slots = Vec::new();
        bed.store.ready(layer, &mut slots).unwrap();
        assert!(slots.is_empty());
    }
    bed.store.end_pass();
    assert_eq!((bed.files.take_reads().len(), *bed.store.counts()), (0, counts));
    assert!(bed.store.set_fake(false));
    bed.pass(PassKind::Prompt, &EVERY).unwrap();
}

/// A store that has handed a slot out: a real one, or one that stands for another.
fn with_one_out(is_fake: bool) -> (Bed, Vec<Slot>) {
    let mut bed = Bed::usual(12);
    bed.pass(PassKind::Prompt, &EVERY).unwrap();
    bed.pass(PassKind::Prompt, &[7]).unwrap();
    bed.store.settle().unwrap();
    assert!(bed.store.set_fake(is_fake));
    let pass = bed.store.begin_pass(PassKind::Prompt);
    bed.store.demand(0, &[Demand { expert: 1, tokens: 1 }]).unwrap();
    bed.store.close(0);
    let mut slots = Vec::new();
    bed.store.ready(0, &mut slots).unwrap();
    bed.store.abandon(pass);
    assert_eq!(slots.len(), 1);
    (bed, slots)
}

#[test]
#[should_panic(expected = "slots are out")]
fn a_store_does_not_start_over_while_a_slot_is_out() {
    let (mut bed, _slots) = with_one_out(false);
    let _ = bed.store.start_over();
}

#[test]
#[should_panic(expected = "slots are out")]
fn a_slot_that_stands_for_another_is_not_forgotten() {
    let (mut bed, _slots) = with_one_out(true);
    bed.store.set_fake(false);
}

#[test]
#[should_panic(expected = "slots are out")]
fn an_arena_does_not_shrink_under_a_slot_that_stands_for_another() {
    let (mut bed, _slots) = with_one_out(true);
    let _ = bed.store.shrink(9);
}

#[test]
fn slots_that_came_back_stand_in_nobodys_way() {
    for is_fake in [false, true] {
        let (mut bed, slots) = with_one_out(is_fake);
        slots.into_iter().for_each(|slot| bed.store.release(slot));
        assert!(bed.store.set_fake(false));
        bed.store.start_over().unwrap();
        bed.pass(PassKind::Prompt, &EVERY).unwrap();
    }
}

#[test]
fn a_store_that_starts_over_keeps_what_was_used() {
    let mut bed = Bed::usual(12);
    for _ in 0..4 {
        bed.pass(PassKind::Decode, &[6, 9]).unwrap();
    }
    bed.pass(PassKind::Prompt, &[2]).unwrap();
    bed.store.start_over().unwrap();
    assert_eq!(bed.store.resident(), 0);
    let mut told = Vec::new();
    bed.store
        .load_hot_set(&mut |read, all| {
            told.push((read, all));
            true
        })
        .unwrap();
    // Twelve slots less the ring, which is two tokens' experts and the reads at a time.
    let hot: Vec<_> = bed.store.scheduler.hot_set().collect();
    assert_eq!(hot.len(), 12 - (2 * 2 + 3));
    assert!(hot.iter().all(|id| [6, 9].contains(&id.index)), "{hot:?}");
    let bytes: u64 = hot.iter().map(|id| bed.records.layers[id.layer as usize].record_bytes()).sum();
    assert_eq!((told[0], *told.last().unwrap()), ((0, bytes), (bytes, bytes)));
    bed.pass(PassKind::Prompt, &EVERY).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no madvise")]
fn an_arena_that_became_smaller_goes_on_and_starts_over() {
    let mut bed = Bed::usual(40);
    bed.store.load_hot_set(&mut |_, _| true).unwrap();
    assert!((bed.store.resident(), bed.store.holds_all()) == (40, true));
    for slots in [20, 9, 7] {
        bed.files.hold(true);
        let pass = bed.store.begin_pass(PassKind::Prompt);
        bed.store.demand(0, &[Demand { expert: 0, tokens: 1 }]).unwrap();
        bed.store.abandon(pass);
        bed.files.hold(false);
        bed.store.shrink(slots).unwrap();
        assert_eq!((bed.store.slots(), bed.store.holds_all()), (slots, false));
        for kind in [PassKind::Prompt, PassKind::Decode, PassKind::Prompt] {
            bed.pass(kind, &EVERY).unwrap();
            assert!(bed.store.resident() <= slots);
        }
        bed.store.start_over().unwrap();
        assert_eq!(bed.store.arena.slots(), slots, "what was given back is not used again");
        bed.store.load_hot_set(&mut |_, _| true).unwrap();
        bed.pass(PassKind::Prompt, &EVERY).unwrap();
        assert!(bed.store.resident() <= slots);
    }
    assert!(matches!(bed.store.shrink(6), Err(StoreError::ArenaTooSmall(_))));
    bed.pass(PassKind::Prompt, &EVERY).unwrap();
}

#[test]
fn what_is_loaded_can_be_cut_off_and_comes_later() {
    let mut bed = Bed::usual(40);
    bed.store.load_hot_set(&mut |_, _| false).unwrap();
    assert!(bed.store.resident() < 40);
    bed.pass(PassKind::Prompt, &[3]).unwrap();
    bed.store.load_hot_set(&mut |_, _| true).unwrap();
    assert_eq!(bed.store.resident(), 40);
    bed.files.take_reads();
    bed.pass(PassKind::Prompt, &EVERY).unwrap();
    assert_eq!(bed.files.take_reads(), []);
}
