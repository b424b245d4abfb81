//! A plain model of the arena and of what the pass needs, kept beside the scheduler by maps and sets. It is told all events
//! and checks all answers.

use std::collections::{BTreeMap, BTreeSet};

use strata_store::scheduler::{Class, Counts, Forecasts, Limits, Outcome, PassKind, Read, SlotId};
use strata_store::{Demand, ExpertId};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    Filling,
    Filled,
}

/// What a slot holds, what it is pinned by, and where that came from.
#[derive(Clone, Copy, Debug)]
struct Held {
    generation: u32,
    expert: ExpertId,
    content: Content,
    pins: u32,
    class: Class,
    read_in_pass: u32,
}

pub(crate) struct Mirror {
    limits: Limits,
    /// Members that the hot set may have.
    hot_slots: u32,
    /// Slots that were given up.
    retired: BTreeSet<u32>,
    slots: BTreeMap<u32, Held>,
    generations: BTreeMap<u32, u32>,
    in_flight: u32,
    pass: u32,
    kind: PassKind,
    layer: u32,
    is_closed: bool,
    demanded: BTreeMap<u32, u32>,
    /// Of these, what the last strip was the first to ask for, and was neither expected nor in a slot.
    surprises: BTreeSet<u32>,
    served: BTreeSet<u32>,
    forecast: BTreeMap<ExpertId, u32>,
    /// What was expected in this pass before it was demanded, and has not given way since.
    was_forecast: BTreeSet<ExpertId>,
    /// What the only row is expected to need, of layers that were not demanded.
    ranked: BTreeSet<ExpertId>,
    /// Records that the drive is said to have time for.
    pub(crate) idle_records: f64,
    /// Of forecasts for single rows, by layer and whether they are early: experts that were not in memory before the pass.
    named: BTreeMap<(u32, bool), BTreeSet<u32>>,
    /// Of those of the next layer and of early ones: experts that were named, those that were demanded, and what was missing
    /// of the layers that they were for.
    forecasts: [[u64; 3]; 2],
    /// Experts that failed in this pass, and reads in it.
    failed: BTreeSet<ExpertId>,
    reads_in_pass: BTreeMap<ExpertId, u32>,
    hot: BTreeSet<ExpertId>,
    /// Most times that an expert was read in one pass.
    pub(crate) most_reads: u32,
    /// Look-ups: resident, ahead, missed.
    lookups: [u64; 3],
    pub(crate) evictions: u64,
    /// Records by class: read, failed, and used in the pass that they were read for.
    pub(crate) read: [u64; 3],
    pub(crate) failures: [u64; 3],
    pub(crate) used: [u64; 3],
}

impl Mirror {
    pub(crate) fn new(limits: &Limits, hot: &[ExpertId]) -> Self {
        let exists = |id: &&ExpertId| (id.layer as usize) < limits.record_bytes.len() && id.index < limits.experts;
        let all = limits.record_bytes.len() as u32 * limits.experts;
        let least_slots = if limits.slots >= all { 0 } else { limits.least_slots() };
        let members = hot.iter().filter(exists).collect::<BTreeSet<_>>().len() as u32;
        Self {
            limits: limits.clone(),
            hot_slots: members.min(limits.slots - least_slots),
            retired: BTreeSet::new(),
            slots: BTreeMap::new(),
            generations: BTreeMap::new(),
            in_flight: 0,
            pass: 0,
            kind: PassKind::Prompt,
            layer: 0,
            is_closed: false,
            demanded: BTreeMap::new(),
            surprises: BTreeSet::new(),
            served: BTreeSet::new(),
            forecast: BTreeMap::new(),
            was_forecast: BTreeSet::new(),
            ranked: BTreeSet::new(),
            idle_records: 0.0,
            named: BTreeMap::new(),
            forecasts: [[0; 3]; 2],
            failed: BTreeSet::new(),
            reads_in_pass: BTreeMap::new(),
            hot: BTreeSet::new(),
            most_reads: 0,
            lookups: [0; 3],
            evictions: 0,
            read: [0; 3],
            failures: [0; 3],
            used: [0; 3],
        }
    }

    pub(crate) fn begin(&mut self, kind: PassKind) {
        self.pass += 1;
        self.kind = kind;
        self.start_layer(0);
        self.failed.clear();
        self.reads_in_pass.clear();
    }

    fn start_layer(&mut self, layer: u32) {
        self.layer = layer;
        self.is_closed = false;
        self.demanded.clear();
        self.surprises.clear();
        self.served.clear();
    }

    pub(crate) fn forecast(&mut self, layer: u32, experts: &[Demand]) {
        for Demand { expert, tokens } in experts.iter().filter(|d| d.expert < self.limits.experts) {
            let id = ExpertId { layer, index: *expert };
            let is_demanded = layer == self.layer && self.demanded.contains_key(expert);
            if !self.failed.contains(&id) && !is_demanded {
                *self.forecast.entry(id).or_insert(0) += tokens;
                self.was_forecast.insert(id);
            }
        }
    }

    pub(crate) fn forecast_ranked(&mut self, layer: u32, experts: &[u32]) {
        // Of what was named earlier, what is in memory or on its way stays.
        let mut ranked = std::mem::take(&mut self.ranked);
        ranked.retain(|id| id.layer != layer || self.holder(*id).is_some());
        let ids = experts.iter().map(|index| ExpertId { layer, index: *index });
        let ids: Vec<_> = ids.filter(|id| id.index < self.limits.experts && !self.failed.contains(id)).collect();
        let is_of_this_pass = |id: &&ExpertId| {
            self.holder(**id).is_none_or(|held| held.read_in_pass == self.pass && held.class != Class::HotSet)
        };
        let named = ids.iter().filter(is_of_this_pass).map(|id| id.index).collect();
        self.named.insert((layer, layer == self.layer + 2), named);
        ranked.extend(ids);
        self.ranked = ranked;
    }

    /// A single row's demand is whole: what else was expected of the layer is not any more.
    fn judge(&mut self) {
        let ids = self.demanded.keys().map(|index| ExpertId { layer: self.layer, index: *index });
        let demanded: BTreeSet<_> = ids.collect();
        let is_missing = |id: &&ExpertId| match self.holder(**id) {
            Some(held) if held.content == Content::Filled => {
                held.read_in_pass == self.pass && held.class != Class::HotSet
            }
            _ => !self.failed.contains(id),
        };
        let missing = demanded.iter().filter(is_missing).count();
        for is_early in [false, true] {
            let Some(named) = self.named.remove(&(self.layer, is_early)) else { continue };
            let index = |id: &ExpertId| id.index;
            let right = demanded.difference(&self.failed).map(index).filter(|index| named.contains(index)).count();
            let counts = [named.len(), right, missing];
            let all = &mut self.forecasts[usize::from(is_early)];
            all.iter_mut().zip(counts).for_each(|(all, more)| *all += more as u64);
        }
        self.ranked.retain(|id| id.layer != self.layer);
    }

    pub(crate) fn demand(&mut self, experts: &[Demand]) {
        let is_surprise = |index: &u32| {
            let id = ExpertId { layer: self.layer, index: *index };
            !self.demanded.contains_key(index) && !self.was_forecast.contains(&id) && self.holder(id).is_none()
        };
        self.surprises = experts.iter().map(|demand| demand.expert).filter(is_surprise).collect();
        for Demand { expert, tokens } in experts {
            *self.demanded.entry(*expert).or_insert(0) += tokens;
            self.forecast.remove(&ExpertId { layer: self.layer, index: *expert });
        }
        if self.named.keys().any(|(layer, _)| *layer == self.layer) {
            self.judge();
        }
    }

    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        for index in self.demanded.keys() {
            let id = ExpertId { layer: self.layer, index: *index };
            let kind = match self.holder(id) {
                Some(held) if held.content == Content::Filled && held.read_in_pass != self.pass => 0,
                Some(held) if held.content == Content::Filled && held.class == Class::HotSet => 0,
                Some(held) if held.class == Class::Demand && self.kind == PassKind::Decode => 2,
                _ if self.surprises.contains(index) => 2,
                Some(_) => 1,
                None if self.was_forecast.contains(&id) => 1,
                None => 2,
            };
            self.lookups[kind] += 1;
        }
        self.forecast.retain(|id, _| id.layer != self.layer);
    }

    fn holder(&self, expert: ExpertId) -> Option<&Held> {
        self.slots.values().find(|held| held.expert == expert)
    }

    /// Demanded experts that are neither served nor in memory nor on their way, as (tokens, expert).
    fn unread_demand(&self) -> impl Iterator<Item = (u32, ExpertId)> {
        let id = |index: &u32| ExpertId { layer: self.layer, index: *index };
        let all = self.demanded.iter().map(move |(index, tokens)| (*tokens, id(index)));
        all.filter(|(_, id)| {
            !self.served.contains(&id.index) && !self.failed.contains(id) && self.holder(*id).is_none()
        })
    }

    pub(crate) fn start(&mut self, read: &Read) {
        self.in_flight += 1;
        assert!(self.in_flight <= self.limits.depth, "too many reads at a time");
        assert!(!self.retired.contains(&read.slot.index), "{read:?} goes where no slot is any more");
        assert!(self.holder(read.expert).is_none(), "{read:?} is in memory or on its way");
        let best = |all: &mut dyn Iterator<Item = (u32, ExpertId)>| {
            all.max_by_key(|(tokens, id)| (*tokens, std::cmp::Reverse(id.index))).map(|(_, id)| id)
        };
        let demand = best(&mut self.unread_demand());
        let forecast = |layer| self.forecast.iter().filter(move |(id, _)| id.layer == layer);
        let mut unread = (self.layer..).take(3).map(|layer| {
            best(&mut forecast(layer).map(|(id, tokens)| (*tokens, *id)).filter(|(_, id)| self.holder(*id).is_none()))
        });
        match read.class {
            Class::Demand => assert_eq!(demand, Some(read.expert), "demand with most tokens first"),
            Class::ReadAhead if self.ranked.contains(&read.expert) && !self.forecast.contains_key(&read.expert) => {
                let is_missing = |index: &&u32| {
                    let held = self.holder(ExpertId { layer: self.layer, index: **index });
                    !self.served.contains(*index) && held.is_none_or(|held| held.content == Content::Filling)
                };
                let missing = self.demanded.keys().filter(is_missing);
                let failed = |index: &&u32| self.failed.contains(&ExpertId { layer: self.layer, index: **index });
                assert_eq!(missing.filter(|index| !failed(index)).count(), 0, "a guess while demand is missing");
                assert!(f64::from(self.in_flight - 1) < self.idle_records, "a guess for which there is no time");
            }
            Class::ReadAhead => {
                assert_eq!(demand, None, "demand goes first");
                assert_eq!(unread.find_map(|best| best), Some(read.expert), "the nearest layer, most tokens first");
            }
            Class::HotSet => assert_eq!(demand, None, "demand goes first"),
        }
        if read.class != Class::HotSet {
            *self.reads_in_pass.entry(read.expert).or_insert(0) += 1;
            self.most_reads = self.most_reads.max(self.reads_in_pass[&read.expert]);
        }

        let before = self.slots.remove(&read.slot.index);
        assert_eq!(before.map(|held| held.expert), read.evicted, "what was in the slot is evicted");
        if let Some(held) = before {
            self.evictions += 1;
            assert_eq!((held.content, held.pins), (Content::Filled, 0), "a slot that is out or being filled stays");
            assert!(!self.hot.contains(&held.expert), "the hot set stays");
            let is_wanted = held.expert.layer == self.layer
                && self.demanded.contains_key(&held.expert.index)
                && !self.served.contains(&held.expert.index);
            assert!(!is_wanted, "what the layer needs stays");
            let is_forecast = self.forget(held.expert);
            assert!(!is_forecast || read.class == Class::Demand, "only demand takes what is expected");
        }
        let old = self.generations.insert(read.slot.index, read.slot.generation);
        assert_ne!(old, Some(read.slot.generation), "a new filling is a new generation");
        let held = Held {
            generation: read.slot.generation,
            expert: read.expert,
            content: Content::Filling,
            pins: 0,
            class: read.class,
            read_in_pass: self.pass,
        };
        self.slots.insert(read.slot.index, held);
        assert!(self.slots.len() <= self.limits.slots as usize, "more slots than there are");
    }

    pub(crate) fn done(&mut self, slot: SlotId) {
        self.in_flight -= 1;
        let held = self.slots.get_mut(&slot.index).unwrap();
        held.content = Content::Filled;
        self.read[held.class as usize] += 1;
    }

    pub(crate) fn failed(&mut self, slot: SlotId) {
        self.in_flight -= 1;
        let held = self.slots.remove(&slot.index).unwrap();
        self.failures[held.class as usize] += 1;
        // What failed for an earlier pass is read anew.
        if held.read_in_pass == self.pass {
            self.failed.insert(held.expert);
            self.forecast.remove(&held.expert);
            self.ranked.remove(&held.expert);
        }
    }

    pub(crate) fn outcome(&mut self, outcome: &Outcome) {
        assert!(self.is_closed, "rows are complete before experts are handed out");
        let expert = match *outcome {
            Outcome::Ready { expert, slot } => {
                let held = self.slots.get_mut(&slot.index).unwrap();
                assert_eq!((held.expert, held.generation), (expert, slot.generation));
                assert_eq!(held.content, Content::Filled, "a slot is read after it is filled");
                held.pins += 1;
                if held.read_in_pass == self.pass && held.class != Class::HotSet {
                    self.used[held.class as usize] += 1;
                }
                expert
            }
            Outcome::Failed { expert } => {
                assert!(self.failed.contains(&expert), "only what failed is reported as failed");
                expert
            }
        };
        assert_eq!(expert.layer, self.layer);
        assert!(self.demanded.contains_key(&expert.index), "only what was demanded is handed out");
        assert!(self.served.insert(expert.index), "each expert is handed out once");
    }

    /// The slot still holds what was handed out.
    pub(crate) fn release(&mut self, expert: ExpertId, slot: SlotId) {
        let held = self.slots.get_mut(&slot.index).unwrap();
        assert_eq!((held.expert, held.generation, held.content), (expert, slot.generation, Content::Filled));
        held.pins -= 1;
    }

    pub(crate) fn layer_done(&mut self) {
        assert!(self.demanded.keys().eq(self.served.iter()), "all that was demanded was handed out");
        self.start_layer(self.layer + 1);
    }

    pub(crate) fn end(&mut self) {
        self.start_layer(0);
        self.forecast.clear();
        self.was_forecast.clear();
        self.ranked.clear();
        self.named.clear();
    }

    /// The arena shrank: the hottest members that there is room for are left.
    pub(crate) fn shrink(&mut self, slots: u32, before: &[ExpertId], after: &[ExpertId]) {
        let given_up = self.limits.slots.saturating_sub(slots);
        self.limits.slots -= given_up;
        if given_up > 0 {
            self.hot_slots = self.hot_slots.saturating_sub(given_up).min(slots - self.limits.least_slots());
        }
        assert_eq!(after, &before[..before.len().min(self.hot_slots as usize)], "the coldest leave");
        self.hot = after.iter().copied().collect();
    }

    pub(crate) fn retire(&mut self, slot: u32) {
        assert!(self.retired.insert(slot), "a slot is given up once");
        if let Some(held) = self.slots.remove(&slot) {
            assert_eq!((held.content, held.pins), (Content::Filled, 0), "a slot that is out or being filled stays");
            assert!(!self.hot.contains(&held.expert), "the hot set stays");
            self.forget(held.expert);
        }
    }

    /// All slots that could be given up were.
    pub(crate) fn check_retired(&self, slots: u32) {
        let left = slots - self.retired.len() as u32;
        assert!(left >= self.limits.slots);
        if left > self.limits.slots {
            let is_busy = |held: &&Held| {
                let is_wanted = self.demanded.contains_key(&held.expert.index) && held.expert.layer == self.layer;
                held.content == Content::Filling || held.pins > 0 || is_wanted || self.hot.contains(&held.expert)
            };
            assert!(self.slots.values().all(|held| is_busy(&held)), "what nobody needs is given up");
        }
    }

    pub(crate) fn clear_ring(&mut self) {
        let hot = &self.hot;
        self.slots.retain(|_, held| held.content == Content::Filling || held.pins > 0 || hot.contains(&held.expert));
    }

    /// What was expected and has given way is expected no more.
    fn forget(&mut self, expert: ExpertId) -> bool {
        self.was_forecast.remove(&expert);
        let was_ranked = self.ranked.remove(&expert);
        self.forecast.remove(&expert).is_some() || was_ranked
    }

    /// The hot set after any event: a prompt never changes it, decode only exchanges members.
    pub(crate) fn check_hot_set(&mut self, hot: impl Iterator<Item = ExpertId>) {
        let now: BTreeSet<_> = hot.collect();
        assert!(now.len() >= self.hot.len(), "the hot set does not shrink");
        assert!(now.len() <= self.hot_slots as usize);
        if self.kind == PassKind::Prompt {
            assert!(now.is_superset(&self.hot), "a prompt does not touch the hot set");
        }
        assert!(now.iter().all(|id| self.holder(*id).is_some_and(|held| held.content == Content::Filled)));
        self.hot = now;
    }

    /// The counts that are known here, exactly.
    pub(crate) fn check_counts(&self, counts: &Counts) {
        assert_eq!([counts.resident, counts.ahead, counts.missed].map(|tally| tally.records), self.lookups);
        assert_eq!(counts.evictions, self.evictions);
        let forecasts = |of: Forecasts| [of.named, of.right, of.missing];
        assert_eq!([counts.forecast, counts.early_forecast].map(forecasts), self.forecasts);
        for class in [Class::Demand, Class::ReadAhead, Class::HotSet] {
            assert_eq!(counts.read[class].records, self.read[class as usize]);
            assert_eq!(counts.failed[class].records, self.failures[class as usize]);
            assert!(counts.wasted[class].records <= counts.read[class].records);
        }
        assert_eq!(counts.wasted[Class::HotSet].records, 0);
    }
}
