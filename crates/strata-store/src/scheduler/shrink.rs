//! Between passes: an arena that becomes smaller, and one that forgets.

use super::{ArenaTooSmall, Scheduler, SlotState, chain};

impl Scheduler {
    /// The slots to which the arena can shrink.
    pub fn least_slots(&self) -> u32 {
        self.limits.least_slots()
    }

    /// From now on the arena has only so many slots; with as many as there are, or more, nothing changes. Which slots are
    /// given up is told by [`next_retired`](Self::next_retired).
    ///
    /// The ring keeps its size, but has at least the smallest legal one, while the hot set has members to give: they leave
    /// it coldest first, those that are not in memory before all others, and are ordinary records from then on. While slots
    /// that are out or being filled are more than the ring may have, nothing is read.
    ///
    /// # Errors
    /// When these are fewer than [`Limits::least_slots`](super::Limits::least_slots). Then nothing changes.
    ///
    /// # Panics
    /// When a pass is under way.
    pub fn shrink(&mut self, slots: u32) -> Result<(), ArenaTooSmall> {
        assert!(!self.is_in_pass, "a pass is under way");
        let least_slots = self.limits.least_slots();
        if slots >= self.limits.slots {
            return Ok(());
        }
        if slots < least_slots {
            return Err(ArenaTooSmall { slots, least_slots });
        }
        let hot_slots = self.limits.slots - self.ring_slots;
        let given_up = self.limits.slots - slots;
        let left = hot_slots.saturating_sub(given_up).min(slots - least_slots);
        (left..hot_slots).for_each(|_| self.demote_coldest());
        // What was popped off the list need not be loaded.
        self.hot_loaded = self.hot_loaded.min(self.hot_list.len());
        self.limits.slots = slots;
        self.ring_slots = slots - left;
        self.surplus += given_up;
        self.retire();
        Ok(())
    }

    /// The coldest member of the hot set leaves it.
    fn demote_coldest(&mut self) {
        // Who became a member by use is in memory: whoever is not is in the list.
        while let Some(number) = self.hot_list.pop() {
            let expert = &mut self.experts[number as usize];
            let is_resident = expert.slot.is_some_and(|slot| self.slots[slot as usize].state == SlotState::Resident);
            if expert.is_hot && !is_resident {
                expert.is_hot = false;
                self.ring_used += u32::from(expert.slot.is_some());
                return;
            }
        }
        let slot = self.hot.first(0).expect("there are as many members as slots kept for them");
        self.hot.remove(slot);
        self.experts[self.slots[slot as usize].expert as usize].is_hot = false;
        self.ring_used += 1;
        if self.slots[slot as usize].pins == 0 {
            // It was worth more than what the ring holds.
            self.chains.push_last(chain::COLD, slot);
        }
    }

    /// Gives up slots that nobody needs, until there are no more than there may be.
    pub(super) fn retire(&mut self) {
        while self.surplus > 0 {
            let too_many = self.ring_used.saturating_sub(self.ring_slots);
            let slot = if self.surplus > too_many {
                self.chains.first(chain::FREE).expect("slots beyond the ring's and the hot set's are free")
            } else {
                let Some(slot) = self.chains.first(chain::COLD).or_else(|| self.chains.last(chain::AHEAD)) else {
                    return;
                };
                self.forget(slot);
                self.ring_used -= 1;
                slot
            };
            self.chains.push_last(chain::RETIRED, slot);
            self.surplus -= 1;
        }
    }

    /// The index of a slot that was given up and is never used again: its memory may be freed. Each is told once; slots
    /// that were out or being filled when the arena shrank are told after they came back.
    pub fn next_retired(&mut self) -> Option<u32> {
        let slot = self.chains.first(chain::RETIRED)?;
        self.chains.remove(slot);
        Some(slot)
    }

    /// Forgets all records but those of the hot set, those that are out, and those on their way.
    ///
    /// # Panics
    /// When a pass is under way.
    pub fn clear_ring(&mut self) {
        assert!(!self.is_in_pass, "a pass is under way");
        // Between passes nothing is needed: all of them are in this chain.
        while let Some(slot) = self.chains.first(chain::COLD) {
            self.forget(slot);
            self.chains.push_last(chain::FREE, slot);
            self.ring_used -= 1;
        }
    }
}
