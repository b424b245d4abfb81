//! Drives a scheduler through passes in virtual time.

use strata_store::ExpertId;
use strata_store::scheduler::{Limits, Outcome, Read, Scheduler, SlotId};

use crate::mirror::Mirror;
use crate::trace::{Pass, Random};

/// A drive: reads share its bandwidth in the order in which they are started; each has a latency of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drive {
    pub(crate) latency_ns: u64,
    pub(crate) bytes_per_us: u64,
    /// Up to so much is added to each latency: reads arrive out of order.
    pub(crate) jitter_ns: u64,
    pub(crate) fail_per_mille: u64,
}

/// A backend: time of a strip's mixer and of an expert, and how many experts it takes at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compute {
    pub(crate) strip_ns: u64,
    pub(crate) expert_ns: u64,
    pub(crate) group: usize,
}

pub(crate) struct Simulator {
    pub(crate) scheduler: Scheduler,
    pub(crate) mirror: Mirror,
    limits: Limits,
    drive: Drive,
    compute: Compute,
    random: Random,
    pub(crate) now_ns: u64,
    drive_free_ns: u64,
    in_flight: Vec<(u64, Read)>,
    /// Slots that the backend has.
    out: Vec<(ExpertId, SlotId)>,
    /// Slots that were given up.
    pub(crate) retired: u32,
    pub(crate) reads: Vec<Read>,
    pub(crate) outcomes: Vec<Outcome>,
}

/// The pass was given up.
#[derive(Debug)]
pub(crate) struct Abandoned;

impl Simulator {
    pub(crate) fn new(limits: &Limits, hot: &[ExpertId], drive: Drive, compute: Compute, seed: u64) -> Self {
        Self {
            scheduler: Scheduler::new(limits.clone(), hot).unwrap(),
            mirror: Mirror::new(limits, hot),
            limits: limits.clone(),
            drive,
            compute,
            random: Random::new(seed),
            now_ns: 0,
            drive_free_ns: 0,
            in_flight: Vec::new(),
            out: Vec::new(),
            retired: 0,
            reads: Vec::new(),
            outcomes: Vec::new(),
        }
    }

    /// Runs one pass; gives it up with the chance `cancel_per_mille` before each step.
    pub(crate) fn pass(&mut self, pass: &Pass, cancel_per_mille: u64) -> Result<(), Abandoned> {
        self.scheduler.begin_pass(pass.kind);
        self.mirror.begin(pass.kind);
        self.forecast(0, &pass.profile);
        for (layer, strips) in (0..).zip(&pass.layers) {
            for strip in strips {
                self.maybe_cancel(cancel_per_mille)?;
                self.work(self.compute.strip_ns);
                self.scheduler.demand(layer, &strip.demand).unwrap();
                self.mirror.demand(&strip.demand);
                strip.forecasts.iter().for_each(|(to, experts)| self.forecast(*to, experts));
                for (to, experts) in &strip.ranked {
                    self.scheduler.forecast_ranked(*to, experts);
                    self.mirror.forecast_ranked(*to, experts);
                    self.pump();
                }
                self.pump();
                assert_eq!(self.scheduler.next_outcome(), None, "not before the layer is closed");
            }
            self.scheduler.close(layer);
            self.mirror.close();
            self.pump();
            while self.scheduler.outstanding() > 0 {
                self.maybe_cancel(cancel_per_mille)?;
                self.experts();
            }
            assert_eq!(self.scheduler.next_outcome(), None);
            self.scheduler.layer_done(layer);
            self.mirror.layer_done();
            self.mirror.check_hot_set(self.scheduler.hot_set());
        }
        self.scheduler.end_pass();
        self.mirror.end();
        self.check();
        Ok(())
    }

    fn forecast(&mut self, layer: u32, experts: &[strata_store::Demand]) {
        self.scheduler.forecast(layer, experts);
        self.mirror.forecast(layer, experts);
        self.pump();
    }

    fn maybe_cancel(&mut self, per_mille: u64) -> Result<(), Abandoned> {
        if !self.random.chance(per_mille) {
            return Ok(());
        }
        self.scheduler.abandon();
        self.mirror.end();
        assert_eq!((self.scheduler.outstanding(), self.scheduler.next_outcome()), (0, None));
        Err(Abandoned)
    }

    /// Takes some experts and computes them; waits for a read when there is none.
    fn experts(&mut self) {
        let mut taken = 0;
        while taken < self.compute.group
            && let Some(outcome) = self.scheduler.next_outcome()
        {
            self.mirror.outcome(&outcome);
            self.mirror.check_hot_set(self.scheduler.hot_set());
            self.outcomes.push(outcome);
            if let Outcome::Ready { expert, slot } = outcome {
                self.out.push((expert, slot));
            }
            taken += 1;
        }
        if taken > 0 {
            self.work(self.compute.expert_ns * taken as u64);
            // The backend gives slots back late, and in any order.
            while self.out.len() > self.random.below(self.compute.group as u64 + 1) as usize {
                self.release_one();
            }
        } else if let Some(next) = self.in_flight.iter().map(|(done_ns, _)| *done_ns).min() {
            self.work(next.saturating_sub(self.now_ns));
        } else {
            assert!(!self.out.is_empty(), "nothing to read, nothing to compute: no progress");
            while !self.out.is_empty() {
                self.release_one();
            }
        }
        self.pump();
    }

    fn release_one(&mut self) {
        let (expert, slot) = self.out.swap_remove(self.random.below(self.out.len() as u64) as usize);
        self.mirror.release(expert, slot);
        self.scheduler.release(slot);
    }

    /// Lets time pass; reads that are over are reported, and new ones are started.
    pub(crate) fn work(&mut self, ns: u64) {
        self.pump();
        let end_ns = self.now_ns + ns;
        loop {
            let next = (0..self.in_flight.len()).min_by_key(|i| (self.in_flight[*i].0, *i));
            let Some(next) = next.filter(|i| self.in_flight[*i].0 <= end_ns) else { break };
            let (done_ns, read) = self.in_flight.swap_remove(next);
            self.now_ns = self.now_ns.max(done_ns);
            if self.random.chance(self.drive.fail_per_mille) {
                self.scheduler.read_failed(read.slot);
                self.mirror.failed(read.slot);
            } else {
                self.scheduler.read_done(read.slot);
                self.mirror.done(read.slot);
            }
            self.pump();
        }
        self.now_ns = end_ns;
    }

    /// Starts all reads that can be started.
    fn pump(&mut self) {
        while let Some(slot) = self.scheduler.next_retired() {
            self.mirror.retire(slot);
            self.retired += 1;
        }
        self.mirror.check_retired(self.limits.slots);
        // The drive has more time or less, whatever it has done.
        self.mirror.idle_records = self.random.below(50) as f64 / 8.0;
        self.scheduler.expect_idle(self.mirror.idle_records);
        while let Some(read) = self.scheduler.next_read() {
            self.mirror.start(&read);
            self.reads.push(read);
            let transfer_ns = self.limits.record_bytes[read.expert.layer as usize] * 1000 / self.drive.bytes_per_us;
            self.drive_free_ns = self.drive_free_ns.max(self.now_ns) + transfer_ns;
            let latency_ns = self.drive.latency_ns + self.random.below(self.drive.jitter_ns + 1);
            self.in_flight.push((self.drive_free_ns + latency_ns, read));
        }
        self.mirror.check_hot_set(self.scheduler.hot_set());
    }

    /// The arena shrinks, whatever is out or under way.
    pub(crate) fn shrink(&mut self, slots: u32) {
        let before: Vec<_> = self.scheduler.hot_set().collect();
        self.scheduler.shrink(slots).unwrap();
        let after: Vec<_> = self.scheduler.hot_set().collect();
        self.mirror.shrink(slots, &before, &after);
        self.pump();
    }

    pub(crate) fn clear_ring(&mut self) {
        self.scheduler.clear_ring();
        self.mirror.clear_ring();
        self.pump();
    }

    /// Waits for all reads and takes all slots back.
    pub(crate) fn drain(&mut self) {
        while !self.out.is_empty() {
            self.release_one();
        }
        while let Some(next) = self.in_flight.iter().map(|(done_ns, _)| *done_ns).min() {
            self.work(next.saturating_sub(self.now_ns));
        }
        self.pump();
        self.check();
    }

    fn check(&self) {
        self.mirror.check_counts(self.scheduler.counts());
    }
}
