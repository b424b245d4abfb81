//! Between passes: loading what stays in memory, forgetting, becoming smaller.

use super::{Failure, StreamingStore, scheduler};
use crate::StoreError;
use crate::scheduler::Class;

impl StreamingStore {
    /// The same store, of whose layers passes leave out so many at the end: those of a draft head.
    #[must_use]
    pub fn with_left_out(mut self, layers: usize) -> Self {
        self.passed_layers = (self.records.layers.len() - layers) as u32;
        self
    }

    /// Whether passes count from now on, in [`counts`](Self::counts) and [`usage`](Self::usage). One that only looks at
    /// what would have been does not.
    pub fn set_counting(&mut self, is_counting: bool) {
        match (is_counting, self.uncounted.take()) {
            (true, None) => {}
            (true, Some(counts)) => self.scheduler.set_counts(counts),
            (false, before) => self.uncounted = Some(before.unwrap_or(*self.scheduler.counts())),
        }
    }

    /// Reads the hot set. `progress` is told bytes read and bytes in all, and ends it by `false`; what was not read then
    /// comes when the drive has nothing else to do.
    ///
    /// # Errors
    /// When a record could not be read.
    pub fn load_hot_set(&mut self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<(), StoreError> {
        let total: u64 =
            self.scheduler.hot_to_load().map(|id| self.records.layers[id.layer as usize].record_bytes()).sum();
        let before = self.counts().read[Class::HotSet].bytes;
        // What passes could not read is no concern of this.
        let scheduler = &self.scheduler;
        self.failures.retain(|failure| scheduler.is_left(failure.pass));
        self.refused = None;
        loop {
            self.pump();
            if let Some(error) = self.refused.take() {
                return Err(error);
            }
            if let Some(Failure { expert, .. }) = self.failures.iter().find(|failure| failure.pass == self.pass) {
                return Err(self.failure(*expert));
            }
            let loaded = self.counts().read[Class::HotSet].bytes - before;
            if !progress(loaded, total) || self.queue.under_way() == 0 {
                return Ok(());
            }
            self.wait()?;
        }
    }

    /// Forgets everything that is in the arena, and makes what was used so far the profile: the hot set is to be loaded
    /// anew.
    ///
    /// # Errors
    /// When reads under way do not end.
    ///
    /// # Panics
    /// When slots are out.
    pub fn start_over(&mut self) -> Result<(), StoreError> {
        self.check_none_is_out();
        self.profile = self.usage.clone();
        self.forget_all()
    }

    /// Forgets everything that is in the arena: the hot set that the profile says is to be loaded anew. What was learned
    /// of forecasts is kept. A pass that was left cannot go on afterwards.
    ///
    /// # Errors
    /// When reads under way do not end.
    ///
    /// # Panics
    /// When slots are out.
    pub fn forget_all(&mut self) -> Result<(), StoreError> {
        self.check_none_is_out();
        self.settle()?;
        let mut scheduler = scheduler(&self.records, self.slots(), self.options, &self.profile)?;
        std::mem::swap(&mut scheduler, &mut self.scheduler);
        self.scheduler.learn_from(scheduler);
        self.arena.renumber();
        Ok(())
    }

    /// The memory of all slots, once no read is under way: for measuring how fast memory can be read.
    ///
    /// # Errors
    /// When reads under way do not end.
    pub fn memory(&mut self) -> Result<impl Iterator<Item = &[u8]>, StoreError> {
        self.settle()?;
        // SAFETY: only reads write there. None is under way, and none is started while the store is borrowed.
        Ok(unsafe { self.arena.memory() })
    }

    /// The slots to which the arena can [shrink](Self::shrink).
    pub fn least_slots(&self) -> usize {
        self.scheduler.least_slots() as usize
    }

    /// From now on the arena has only so many slots; with as many as there are, or more, nothing changes. The coldest
    /// experts give way. The memory of the other slots goes back to the system page by page (elsewhere than on Linux, when
    /// the system needs it); what is left is not registered for direct reads any more, since registered memory cannot be
    /// given back.
    ///
    /// # Errors
    /// When there would be fewer slots than [`Limits::least_slots`](crate::scheduler::Limits::least_slots), or reads under way do not end. Nothing has changed then.
    ///
    /// # Panics
    /// When a pass is within a layer, or slots are out that stand for others ([`set_fake`](Self::set_fake)).
    pub fn shrink(&mut self, slots: usize) -> Result<(), StoreError> {
        if slots >= self.slots() {
            return Ok(());
        }
        self.check_no_fake_is_out();
        self.settle()?;
        self.scheduler.leave_pass();
        self.scheduler.shrink(slots as u32)?;
        self.fake = None;
        self.queue.forget_memory();
        self.retire();
        Ok(())
    }

    /// Gives back the memory of slots that the scheduler has given up.
    pub(super) fn retire(&mut self) {
        while let Some(slot) = self.scheduler.next_retired() {
            self.arena.retire(slot);
        }
    }

    /// Waits until no read is under way.
    pub(super) fn settle(&mut self) -> Result<(), StoreError> {
        while self.queue.under_way() > 0 {
            self.wait()?;
        }
        Ok(())
    }
}
