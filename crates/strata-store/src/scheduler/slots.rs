//! Slots: which read is next, where it goes, what gives way to it, and what happens to a slot that nobody needs any more.

use super::ahead::When;
use super::{Class, Expert, ExpertId, Need, Outcome, PassKind, Read, Scheduler, Slot, SlotId, SlotState, chain};

/// Passes after which a use counts half, and slots of which the one used least gives way in decode: with these, the arena
/// is within two points of hits of the best policy that does not know what comes (docs/policies.md).
const HALF_LIFE_PASSES: f64 = 16.0;
const LEAST_USED_OF: usize = 64;

impl Scheduler {
    /// The next read, which the driver starts at once; `None` when there is nothing to read, as many reads are under way
    /// as may be, or no slot can be had until one is released.
    ///
    /// Demand goes first, then read-ahead, nearer layers first, then the hot set. In a class, the expert with most tokens
    /// goes first, the lower index among equals.
    pub fn next_read(&mut self) -> Option<Read> {
        if self.in_flight == self.limits.depth || self.ring_used > self.ring_slots {
            return None;
        }
        if let Some(expert) = self.next_demand() {
            // Read-ahead may take less than demand may: what finds no slot here must not be overtaken there.
            return self.start(expert, Class::Demand);
        }
        if let Some(read) = self.next_ahead().and_then(|expert| self.start(expert, Class::ReadAhead)) {
            return Some(read);
        }
        let expert = self.next_hot()?;
        self.start(expert, Class::HotSet)
    }

    fn next_demand(&self) -> Option<u32> {
        if self.unread_demand == 0 { None } else { self.most_wanted(self.layer, Need::Demand, 0) }
    }

    fn next_ahead(&self) -> Option<u32> {
        // Guesses of a layer that are not sure enough to be read keep no other layer waiting.
        let mut layers = (0..).zip(&self.unread_ahead).filter(|(_, unread)| **unread > 0).map(|(layer, _)| layer);
        layers.find_map(|layer| match self.ahead.when(layer) {
            Some(when) => self.next_choice(when, layer),
            None => self.most_wanted(layer, Need::Forecast, self.forecast_min),
        })
    }

    /// The member of the hot set to be loaded next.
    fn next_hot(&mut self) -> Option<u32> {
        while let Some(&number) = self.hot_list.get(self.hot_loaded) {
            let expert = &self.experts[number as usize];
            if expert.is_hot && expert.slot.is_none() {
                self.hot_loaded += 1;
                return Some(number);
            }
            self.hot_loaded += 1;
        }
        None
    }

    /// Of the layer's experts with this need and no slot, the one that most tokens wait for, at least so many; the lower
    /// index among equals.
    fn most_wanted(&self, layer: u32, need: Need, least_tokens: u32) -> Option<u32> {
        let experts = self.wanted[layer as usize].iter().map(|number| (*number, &self.experts[*number as usize]));
        let candidates =
            experts.filter(|(_, expert)| expert.need == need && expert.slot.is_none() && expert.tokens >= least_tokens);
        candidates.max_by_key(|(number, expert)| (expert.tokens, std::cmp::Reverse(*number))).map(|(number, _)| number)
    }

    /// Gives a slot to the expert's record, if one can be had.
    fn start(&mut self, number: u32, class: Class) -> Option<Read> {
        let is_hot = self.experts[number as usize].is_hot;
        let index = if is_hot || self.ring_used < self.ring_slots {
            self.chains.first(chain::FREE)
        } else if let Some(cold) = self.coldest() {
            Some(cold)
        } else if class == Class::Demand {
            // Read-ahead comes in order of use: what came last is missed least.
            self.chains.last(chain::AHEAD)
        } else {
            None
        }?;
        let evicted = self.evict(index);
        if evicted.is_none() && !is_hot {
            self.ring_used += 1;
        }
        let id = self.id(number);
        let expert = &mut self.experts[number as usize];
        expert.slot = Some(index);
        match expert.need {
            Need::Demand => self.unread_demand -= 1,
            Need::Forecast => self.unread_ahead[id.layer as usize] -= 1,
            Need::Nothing | Need::Left | Need::Served => {}
        }
        self.chains.remove(index);
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.state = SlotState::Reading;
        slot.expert = number;
        slot.class = class;
        slot.read_in_pass = self.pass;
        slot.kind = self.kind;
        slot.is_unused = class != Class::HotSet;
        slot.ahead = (class == Class::ReadAhead).then(|| self.ahead.when(id.layer).unwrap_or(When::Next));
        self.in_flight += 1;
        Some(Read { slot: SlotId { index, generation: slot.generation }, expert: id, class, evicted })
    }

    /// The slot that gives way first: in decode, of those whose turn it is, the one whose expert was used least; what the
    /// layer at hand has used only when there is nothing else.
    fn coldest(&self) -> Option<u32> {
        let turn = self.chains.forwards(chain::COLD).take(match self.kind {
            PassKind::Prompt => 1,
            PassKind::Decode => LEAST_USED_OF,
        });
        let expert = |slot: &u32| &self.experts[self.slots[*slot as usize].expert as usize];
        turn.min_by(|a, b| {
            let [a, b] = [a, b].map(expert);
            let is_served = |expert: &Expert| expert.need == Need::Served;
            is_served(a).cmp(&is_served(b)).then(a.log_uses.total_cmp(&b.log_uses))
        })
    }

    /// Makes room for another record; gives the expert whose record was there.
    fn evict(&mut self, index: u32) -> Option<ExpertId> {
        let slot = self.slots[index as usize];
        if slot.state == SlotState::Free {
            return None;
        }
        self.forget(index);
        self.counts.evictions += 1;
        Some(self.id(slot.expert))
    }

    /// Forgets the record in a slot.
    pub(super) fn forget(&mut self, index: u32) {
        let slot = self.slots[index as usize];
        assert!(slot.state == SlotState::Resident && slot.pins == 0, "what is being read or out stays");
        self.waste(index);
        self.slots[index as usize].state = SlotState::Free;
        let expert = &mut self.experts[slot.expert as usize];
        // What was expected and had to give way is read again only on demand.
        expert.need = Need::Nothing;
        expert.is_forecast = false;
        expert.slot = None;
    }

    /// The hot set that was loaded is in the order of its list, whatever the order in which its records arrived.
    pub(super) fn order_hot_set(&mut self) {
        for at in 0..self.hot_loaded {
            let expert = &self.experts[self.hot_list[at] as usize];
            if let Some(slot) = expert.slot.filter(|_| expert.is_hot)
                && self.slots[slot as usize].state == SlotState::Resident
            {
                self.hot.push_first(0, slot);
            }
        }
    }

    /// The record of a read is in its slot.
    ///
    /// # Panics
    /// When no such read is under way.
    pub fn read_done(&mut self, slot: SlotId) {
        let number = self.finish(slot);
        let index = slot.index;
        let class = self.slots[index as usize].class;
        let record_bytes = self.record_bytes(number);
        self.counts.read[class] += record_bytes;
        self.slots[index as usize].state = SlotState::Resident;
        if self.experts[number as usize].is_hot {
            // They come in the order of the list, the hottest first.
            self.hot.push_first(0, index);
        }
        self.settle(index);
    }

    /// A record could not be read. The expert fails for this pass, or, when the read was started for an earlier one, is to
    /// be read anew if it is needed; its slot is free.
    ///
    /// # Panics
    /// When no such read is under way.
    pub fn read_failed(&mut self, slot: SlotId) {
        let number = self.finish(slot);
        let index = slot.index;
        let Slot { class, read_in_pass, .. } = self.slots[index as usize];
        let (record_bytes, layer) = (self.record_bytes(number), self.id(number).layer as usize);
        self.counts.failed[class] += record_bytes;
        self.slots[index as usize].state = SlotState::Free;
        self.chains.push_last(chain::FREE, index);
        let expert = &mut self.experts[number as usize];
        expert.slot = None;
        if !expert.is_hot {
            self.ring_used -= 1;
        }
        let is_of_this_pass = read_in_pass == self.pass;
        if is_of_this_pass {
            expert.failed_in_pass = Some(self.pass);
        }
        match expert.need {
            Need::Demand if is_of_this_pass => {
                expert.need = Need::Served;
                self.failed.push_back(number);
            }
            Need::Demand => self.unread_demand += 1,
            Need::Forecast if is_of_this_pass => expert.need = Need::Nothing,
            Need::Forecast => self.unread_ahead[layer] += 1,
            Need::Nothing | Need::Left | Need::Served => {}
        }
        self.retire();
    }

    /// Checks that a read is under way and counts it out; gives its expert's number.
    fn finish(&mut self, id: SlotId) -> u32 {
        let slot = &self.slots[id.index as usize];
        let is_under_way = slot.state == SlotState::Reading && slot.generation == id.generation;
        assert!(is_under_way, "no read into {id:?} is under way");
        self.in_flight -= 1;
        slot.expert
    }

    /// Whether the next outcome is a failure.
    pub fn is_failure_next(&self) -> bool {
        self.is_closed && !self.failed.is_empty()
    }

    /// Hands out one expert of the closed layer: failures first, then in order of arrival. `None` before the layer is
    /// closed, when all were handed out, or when the next one is still being read.
    pub fn next_outcome(&mut self) -> Option<Outcome> {
        if !self.is_closed {
            return None;
        }
        if let Some(number) = self.failed.pop_front() {
            self.outstanding -= 1;
            return Some(Outcome::Failed { expert: self.id(number) });
        }
        let index = self.chains.first(chain::READY)?;
        self.chains.remove(index);
        self.outstanding -= 1;
        let slot = &mut self.slots[index as usize];
        slot.pins += 1;
        slot.is_unused = false;
        let (number, id) = (slot.expert, SlotId { index, generation: slot.generation });
        let expert = &mut self.experts[number as usize];
        expert.need = Need::Served;
        if self.kind == PassKind::Decode {
            // log2(2^a + 2^b), with neither power taken.
            let use_now = self.age as f64 / HALF_LIFE_PASSES;
            let rest = (-(use_now - expert.log_uses).abs()).exp2().ln_1p() / std::f64::consts::LN_2;
            expert.log_uses = use_now.max(expert.log_uses) + rest;
        }
        Some(Outcome::Ready { expert: self.id(number), slot: id })
    }

    /// A layer has used an expert. Told of all of a layer in the order of their indices: what stays in memory depends on
    /// what was used, not on the order in which it arrived.
    pub(super) fn used(&mut self, number: u32) {
        // It may have given way to another of its layer, or have failed.
        let Some(index) = self.experts[number as usize].slot else { return };
        if self.slots[index as usize].state != SlotState::Resident {
            return;
        }
        if self.kind == PassKind::Decode {
            self.warm(index);
        }
        if self.slots[index as usize].pins == 0 {
            self.settle(index);
        }
    }

    /// A use in decode: it becomes the hottest of the hot set. One that was not in it changes places with the coldest.
    fn warm(&mut self, index: u32) {
        let number = self.slots[index as usize].expert as usize;
        if !self.experts[number].is_hot {
            let Some(coldest) = self.hot.first(0) else { return };
            self.hot.remove(coldest);
            self.experts[self.slots[coldest as usize].expert as usize].is_hot = false;
            self.settle(coldest);
            self.experts[number].is_hot = true;
        }
        self.hot.push_last(0, index);
    }

    /// Takes back a slot that [`next_outcome`](Self::next_outcome) handed out, also after the layer or the pass.
    ///
    /// # Panics
    /// When the slot is not out.
    pub fn release(&mut self, id: SlotId) {
        let slot = &mut self.slots[id.index as usize];
        assert!(slot.pins > 0 && slot.generation == id.generation, "{id:?} is not out");
        slot.pins -= 1;
        if slot.pins == 0 {
            self.settle(id.index);
        }
    }

    /// Puts a resident slot into the chain that it belongs to now.
    pub(super) fn settle(&mut self, index: u32) {
        let slot = self.slots[index as usize];
        let expert = self.experts[slot.expert as usize];
        if !matches!(expert.need, Need::Left | Need::Demand | Need::Forecast) {
            self.waste(index);
        }
        match expert.need {
            Need::Demand => self.chains.push_last(chain::READY, index),
            _ if slot.pins > 0 || expert.is_hot => self.chains.remove(index),
            Need::Forecast => self.chains.push_last(chain::AHEAD, index),
            // Behind all that nobody needs.
            Need::Left => self.chains.push_last(chain::COLD, index),
            Need::Nothing | Need::Served => match self.kind {
                PassKind::Prompt => self.chains.push_first(chain::COLD, index),
                PassKind::Decode => self.chains.push_last(chain::COLD, index),
            },
        }
        self.retire();
    }

    /// Counts a record that was read and not used, once.
    fn waste(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        if std::mem::take(&mut slot.is_unused) {
            let Slot { expert: number, kind, class, ahead, .. } = *slot;
            let record_bytes = self.record_bytes(number);
            self.counts.wasted[class] += record_bytes;
            if let (PassKind::Decode, Some(when)) = (kind, ahead) {
                self.ahead.add_wasted(when, record_bytes);
            }
        }
    }
}
