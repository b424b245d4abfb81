//! For measuring: handing out valid records that are in memory instead of those that are wanted, and reading records
//! without using them. The two give the least time that computing, and that reading, can take.

use std::time::{Duration, Instant};

use super::StreamingStore;
use super::arena::Arena;
use crate::reads::{Done, FileRange};
use crate::scheduler::SlotId;
use crate::{Demand, ExpertId, Part, Records, Slot, StoreError};

/// Hands out what is there.
pub(super) struct Fake {
    /// For each layer, slots with records of its kind.
    layers: Vec<Vec<(ExpertId, SlotId)>>,
    /// Counts what was handed out, so that it cycles through the arena.
    turn: usize,
    /// Experts demanded, once each, and their rows.
    wanted: Vec<Demand>,
    /// Slots that were handed out and are not back.
    out: usize,
}

impl Fake {
    pub(super) fn demand(&mut self, experts: &[Demand]) {
        for demand in experts {
            match self.wanted.iter_mut().find(|wanted| wanted.expert == demand.expert) {
                Some(wanted) => wanted.tokens += demand.tokens,
                None => self.wanted.push(*demand),
            }
        }
    }

    pub(super) fn ready(&mut self, records: &Records, arena: &Arena, layer: u32, slots: &mut Vec<Slot>) {
        let mut rows = 0;
        while rows < super::HANDED_OUT_ROWS {
            let Some(Demand { expert: index, tokens }) = self.wanted.pop() else { return };
            rows += tokens;
            let of_kind = &self.layers[layer as usize];
            let (held, slot) = of_kind[self.turn % of_kind.len()];
            self.turn += 1;
            let (area, parts) = arena.parts(&records.layers[held.layer as usize], held, slot.index);
            self.out += 1;
            slots.push(Slot { id: ExpertId { layer, index }, slot, area, parts });
        }
    }

    pub(super) fn release(&mut self) {
        self.out -= 1;
    }

    pub(super) fn abandon(&mut self) {
        self.wanted.clear();
    }
}

impl StreamingStore {
    /// From now on hands out any records of the right kind that are in memory, reading nothing; or ends that. `false` when
    /// a layer has no record of its kind in memory.
    ///
    /// # Panics
    /// When slots are out.
    pub fn set_fake(&mut self, is_fake: bool) -> bool {
        self.check_none_is_out();
        self.fake = None;
        if !is_fake {
            return true;
        }
        let kind = |layer: u32| self.records.layers[layer as usize].parts.each_ref().map(|part| part.len_bytes);
        let resident: Vec<_> = self.scheduler.resident().collect();
        let of_kind = |layer: u32| resident.iter().copied().filter(|(id, _)| kind(id.layer) == kind(layer)).collect();
        let layers: Vec<Vec<_>> = (0..self.records.layers.len() as u32).map(of_kind).collect();
        let has_all = layers.iter().all(|slots| !slots.is_empty());
        if has_all {
            self.fake = Some(Fake { layers, turn: 0, wanted: Vec::new(), out: 0 });
        }
        has_all
    }

    /// What slots hold that are out must not be overwritten: another scheduler would not know of them.
    pub(super) fn check_none_is_out(&self) {
        assert!(!self.scheduler.is_any_out(), "slots are out");
        self.check_no_fake_is_out();
    }

    /// The scheduler knows nothing of slots that stand for others.
    pub(super) fn check_no_fake_is_out(&self) {
        assert!(self.fake.as_ref().is_none_or(|fake| fake.out == 0), "slots are out");
    }

    /// Whether to remember which experts passes have to read, forgetting those known so far.
    pub fn keep_needed(&mut self, keep: bool) {
        self.needed = keep.then(Vec::new);
    }

    /// The experts that passes had to read since [`keep_needed`](Self::keep_needed).
    pub fn needed(&self) -> &[ExpertId] {
        self.needed.as_deref().unwrap_or_default()
    }

    /// Forgets what is in the arena besides the hot set.
    ///
    /// # Errors
    /// When reads under way do not end.
    pub fn clear_ring(&mut self) -> Result<(), StoreError> {
        self.settle()?;
        self.scheduler.clear_ring();
        Ok(())
    }

    /// Reads the records of `experts` in this order into slots of the ring, as fast as the reader can, and gives the time
    /// that it took. The ring is empty afterwards. When `is_stopped` says so, no more are read.
    ///
    /// # Errors
    /// When a record cannot be read.
    pub fn replay(&mut self, experts: &[ExpertId], is_stopped: &dyn Fn() -> bool) -> Result<Duration, StoreError> {
        self.clear_ring()?;
        let mut free: Vec<u32> = self.scheduler.free_slots().collect();
        free.truncate(self.options.depth as usize);
        let mut parts = vec![0_u8; self.arena.slots()];
        let mut waiting = experts.iter();
        let mut done = Vec::new();
        let start = Instant::now();
        loop {
            let mut any = false;
            while let Some(slot) = free.pop() {
                let Some(id) = waiting.next().filter(|_| !is_stopped()) else { break };
                any = true;
                let layer = &self.records.layers[id.layer as usize];
                let reads: [(FileRange, *mut u8); Part::ALL.len()] = self.arena.reads(layer, id.index, slot);
                parts[slot as usize] = reads.len() as u8;
                for (range, memory) in reads {
                    // SAFETY: the slot is free, and the scheduler gives it to nobody while this function runs.
                    unsafe { self.queue.start(u64::from(slot), range, memory) };
                }
            }
            if any {
                self.queue.submit()?;
            }
            if self.queue.under_way() == 0 {
                return Ok(start.elapsed());
            }
            let result = self.queue.take(true, &mut done);
            let mut failure = None;
            for Done { tag, result } in done.drain(..) {
                parts[tag as usize] -= 1;
                if parts[tag as usize] == 0 {
                    free.push(tag as u32);
                }
                failure = failure.or(result.err());
            }
            if let Some(error) = result.err().or(failure) {
                // Nothing may be left that writes into free slots.
                while self.queue.under_way() > 0 {
                    self.queue.take(true, &mut done)?;
                }
                return Err(error);
            }
        }
    }
}
