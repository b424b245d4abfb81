//! What the pass tells: layers, forecasts, demand.

use super::{Class, Need, PassKind, PassNumber, Scheduler, SlotState};
use crate::{Demand, ExpertId, StoreError};

impl Scheduler {
    /// A pass begins, with layer 0.
    ///
    /// Then for each layer, in order: [`demand`](Self::demand) for each strip that was routed, [`close`](Self::close),
    /// [`next_outcome`](Self::next_outcome) until nothing is [outstanding](Self::outstanding), and
    /// [`layer_done`](Self::layer_done). [`forecast`](Self::forecast) and the events of reads and slots may come at any
    /// time. At the end comes [`end_pass`](Self::end_pass), or anywhere [`abandon`](Self::abandon). Between two layers it can
    /// be [left](Self::leave_pass) for another.
    ///
    /// # Panics
    /// When a pass is under way. The other events of a pass panic when they come out of this order.
    pub fn begin_pass(&mut self, kind: PassKind) -> PassNumber {
        assert!(!self.is_in_pass, "a pass is under way");
        if self.passes == 0 {
            self.order_hot_set();
        }
        self.is_in_pass = true;
        self.kind = kind;
        self.passes += 1;
        self.pass = self.passes;
        self.age += 1;
        self.is_partial = false;
        self.layer = 0;
        self.strips = 0;
        self.is_closed = false;
        PassNumber(self.pass)
    }

    /// The pass leaves out the layers before this one: it is at hand.
    ///
    /// # Panics
    /// When no pass is under way, or the layer at hand was begun or lies behind this one.
    pub fn skip_to(&mut self, layer: u32) {
        let is_untouched = self.outstanding == 0 && !self.is_closed && self.layer <= layer;
        assert!(self.is_in_pass && is_untouched, "the pass is in layer {} and cannot skip to {layer}", self.layer);
        self.layer = layer;
        // A draft head's passes are no steps of the text: by them, nothing becomes older.
        if layer > 0 && !std::mem::replace(&mut self.is_partial, true) {
            self.age -= 1;
        }
    }

    /// A strip's rows are expected to be routed to these experts of a layer that is not closed: read-ahead, until the
    /// layer is closed. A hint: what comes too late or does not exist is ignored.
    pub fn forecast(&mut self, layer: u32, experts: &[Demand]) {
        if !self.is_in_pass || layer < self.layer || (layer == self.layer && self.is_closed) {
            return;
        }
        for Demand { expert, tokens } in experts {
            let Some(number) = self.number(ExpertId { layer, index: *expert }) else { continue };
            let expert = &mut self.experts[number as usize];
            match expert.need {
                Need::Forecast => expert.tokens = expert.tokens.saturating_add(*tokens),
                Need::Nothing | Need::Left if expert.failed_in_pass != Some(self.pass) => {
                    expert.need = Need::Forecast;
                    expert.tokens = *tokens;
                    expert.is_forecast = true;
                    match expert.slot {
                        None => self.unread_ahead[layer as usize] += 1,
                        Some(slot) => self.settle_if_resident(slot),
                    }
                }
                Need::Nothing | Need::Left | Need::Demand | Need::Served => {}
            }
            self.list(number);
        }
    }

    /// A strip's rows were routed to these experts of the layer at hand. Those in memory are kept from now on.
    ///
    /// # Errors
    /// When an expert does not exist. Then none of them counts.
    ///
    /// # Panics
    /// When this is not the layer at hand or it is closed.
    pub fn demand(&mut self, layer: u32, experts: &[Demand]) -> Result<(), StoreError> {
        assert!(self.is_in_pass && layer == self.layer && !self.is_closed, "layer {layer} is not open");
        let ids = || experts.iter().map(|demand| ExpertId { layer, index: demand.expert });
        if let Some(id) = ids().find(|id| self.number(*id).is_none()) {
            return Err(StoreError::NoSuchExpert(id));
        }
        let first = layer * self.limits.experts;
        self.strips += 1;
        for Demand { expert, tokens } in experts {
            let number = first + expert;
            let expert = &mut self.experts[number as usize];
            match expert.need {
                Need::Demand => expert.tokens = expert.tokens.saturating_add(*tokens),
                Need::Served => {}
                Need::Nothing | Need::Left | Need::Forecast => {
                    if expert.need == Need::Forecast && expert.slot.is_none() {
                        self.unread_ahead[layer as usize] -= 1;
                    }
                    // What too few rows were expected to need was not queued.
                    expert.is_forecast &= expert.tokens >= self.forecast_min;
                    let is_surprise = expert.slot.is_none() && !expert.is_forecast;
                    expert.surprise = is_surprise.then_some(self.strips);
                    self.outstanding += 1;
                    expert.need = Need::Demand;
                    expert.tokens = *tokens;
                    match expert.slot {
                        Some(slot) => self.settle_if_resident(slot),
                        None if expert.failed_in_pass == Some(self.pass) => {
                            expert.need = Need::Served;
                            self.failed.push_back(number);
                        }
                        None => self.unread_demand += 1,
                    }
                }
            }
            self.list(number);
        }
        if self.ahead.when(layer).is_some() {
            self.judge_choices(layer);
        }
        Ok(())
    }

    /// All rows of the layer at hand were routed: what was expected and is not in demand is dropped, and what is in
    /// demand can be handed out.
    ///
    /// # Panics
    /// When this is not the layer at hand or it is closed.
    pub fn close(&mut self, layer: u32) {
        assert!(self.is_in_pass && layer == self.layer && !self.is_closed, "layer {layer} is not open");
        self.is_closed = true;
        self.wanted[layer as usize].sort_unstable();
        for at in 0..self.wanted[layer as usize].len() {
            let number = self.wanted[layer as usize][at];
            match self.experts[number as usize].need {
                Need::Nothing | Need::Left => {}
                Need::Forecast => self.drop_need(number),
                Need::Demand | Need::Served => self.count_lookup(number),
            }
        }
        self.unread_ahead[layer as usize] = 0;
    }

    fn count_lookup(&mut self, number: u32) {
        let expert = &self.experts[number as usize];
        let record_bytes = self.record_bytes(number);
        let kind = match expert.slot {
            Some(slot) if self.is_resident(number) && !self.is_of_this_pass(slot) => {
                self.counts.resident += record_bytes;
                return;
            }
            // A few rows are routed at once: what they demand is never read before that.
            Some(slot) if self.kind == PassKind::Decode && self.slots[slot as usize].class == Class::Demand => {
                &mut self.counts.missed
            }
            // The last strip asked for it: its read, should it be under way, has only just been started.
            _ if expert.surprise == Some(self.strips) => &mut self.counts.missed,
            Some(_) => &mut self.counts.ahead,
            None if expert.is_forecast => &mut self.counts.ahead,
            None => &mut self.counts.missed,
        };
        *kind += record_bytes;
        if self.kind == PassKind::Decode {
            self.ahead.add_needed(record_bytes);
        }
    }

    /// All experts of the layer at hand were handed out: the next layer is at hand.
    ///
    /// # Panics
    /// When the layer is not at hand, not closed, or some of its experts are outstanding.
    pub fn layer_done(&mut self, layer: u32) {
        assert!(self.is_in_pass && layer == self.layer && self.is_closed, "layer {layer} is not closed");
        assert_eq!(self.outstanding, 0, "experts of layer {layer} that were not handed out");
        for at in 0..self.wanted[layer as usize].len() {
            let number = self.wanted[layer as usize][at];
            if self.experts[number as usize].need == Need::Served {
                self.used(number);
            }
        }
        self.drop_wanted(layer);
        self.layer += 1;
        self.strips = 0;
        self.is_closed = false;
    }

    /// The pass is complete.
    ///
    /// # Panics
    /// When no pass is under way or experts are outstanding.
    pub fn end_pass(&mut self) {
        assert!(self.is_in_pass && self.outstanding == 0, "the pass is not complete");
        self.abandon();
    }

    /// The pass, if there is one, is given up. Reads under way go on, and slots that are out must still be given back.
    pub fn abandon(&mut self) {
        for layer in 0..self.wanted.len() as u32 {
            self.wanted[layer as usize].sort_unstable();
            self.drop_wanted(layer);
        }
        self.ahead.end_pass(!self.is_partial);
        self.unread_ahead.fill(0);
        self.unread_demand = 0;
        self.outstanding = 0;
        self.failed.clear();
        self.is_in_pass = false;
        self.is_closed = false;
    }

    /// The pass needs no expert of a layer any more.
    fn drop_wanted(&mut self, layer: u32) {
        for at in 0..self.wanted[layer as usize].len() {
            let number = self.wanted[layer as usize][at];
            self.drop_need(number);
            self.experts[number as usize].is_listed = false;
        }
        self.wanted[layer as usize].clear();
    }

    /// The pass needs an expert no more.
    pub(super) fn drop_need(&mut self, number: u32) {
        let expert = &mut self.experts[number as usize];
        let was = std::mem::replace(&mut expert.need, Need::Nothing);
        expert.is_forecast = false;
        // What was served is where it belongs, or will be when it is given back.
        if let (Need::Left | Need::Forecast | Need::Demand, Some(slot)) = (was, expert.slot) {
            self.settle_if_resident(slot);
        }
    }

    pub(super) fn settle_if_resident(&mut self, slot: u32) {
        if self.slots[slot as usize].state == SlotState::Resident {
            self.settle(slot);
        }
    }
}
