//! The loop: a prompt goes through the layers of its passes, as in the engine, and the scheduler's reads through the drive.

use super::drive::VirtualDrive;
use super::{Compute, Lookahead, Machine, Policy, Ranking, Report, Strip, Trace};
use crate::scheduler::{ArenaTooSmall, Limits, Outcome, PassKind, Scheduler, SlotId};
use crate::{Demand, ExpertId};

/// The layer that uses the n-gram table.
const PLE_LAYER: u32 = 1;

/// Simulates a prompt. `hot` are the candidates for the hot set, the hottest first; it is loaded before the clock starts.
/// Without a `ranking`, [`Lookahead::Profile`] reads nothing ahead.
///
/// # Errors
/// When the arena is smaller than the smallest legal one.
///
/// # Panics
/// When the drive's depth is 0.
pub fn simulate(
    trace: &Trace,
    machine: &Machine,
    policy: &Policy,
    hot: &[ExpertId],
    ranking: Option<&Ranking>,
) -> Result<Report, ArenaTooSmall> {
    let limits = Limits {
        record_bytes: vec![machine.record_bytes; trace.layers as usize],
        experts: trace.experts,
        top_k: trace.top_k,
        slots: machine.slots,
        depth: machine.drive.depth,
    };
    let hot = &hot[..hot.len().min(machine.hot_slots as usize)];
    let mut run = Run {
        scheduler: Scheduler::new(limits, hot)?,
        drive: VirtualDrive::new(machine.drive),
        machine,
        policy,
        profile: Vec::new(),
        tokens: vec![0; trace.experts as usize],
        now_ns: 0,
        compute_ns: 0,
        expert_wait_ns: 0,
        ple_wait_ns: 0,
    };
    if let Lookahead::Router { min_tokens } = policy.lookahead {
        run.scheduler.set_forecast_min(min_tokens);
    }
    run.load_hot_set();
    if let (Lookahead::Profile { cap, late_layer, late_cap }, Some(ranking)) = (policy.lookahead, ranking) {
        run.profile = profile(ranking, hot, |layer| if layer < late_layer { cap } else { late_cap });
    }
    let passes = trace.passes(policy.pass_tokens);
    for pass in &passes {
        run.pass(trace.layers, pass);
    }
    run.work(machine.compute.prompt_ns);
    let counts = *run.scheduler.counts();
    let needed_bytes = counts.ahead.bytes + counts.missed.bytes;
    Ok(Report {
        tokens: trace.tokens(),
        passes: passes.len() as u64,
        wall_ns: run.now_ns,
        drive_floor_ns: (needed_bytes as f64 / machine.drive.bytes_per_second * 1e9) as u64,
        compute_floor_ns: run.compute_ns,
        expert_wait_ns: run.expert_wait_ns,
        ple_wait_ns: run.ple_wait_ns,
        counts,
    })
}

/// What a static ranking has read ahead of each layer: what is not in the hot set.
fn profile(ranking: &Ranking, hot: &[ExpertId], cap: impl Fn(u32) -> u32) -> Vec<Vec<Demand>> {
    let hot: std::collections::HashSet<_> = hot.iter().collect();
    let layer = |(layer, experts): (u32, &Vec<u32>)| {
        let cold = experts.iter().filter(|index| !hot.contains(&ExpertId { layer, index: **index }));
        // In the order of the ranking: the first one as if most tokens used it.
        let ahead = cold.take(cap(layer) as usize).zip((1..=cap(layer)).rev());
        ahead.map(|(expert, tokens)| Demand { expert: *expert, tokens }).collect()
    };
    (0u32..).zip(&ranking.layers).map(layer).collect()
}

struct Run<'a> {
    scheduler: Scheduler,
    drive: VirtualDrive,
    machine: &'a Machine,
    policy: &'a Policy,
    /// What the static ranking has read ahead, by layer.
    profile: Vec<Vec<Demand>>,
    /// Rows of the pass for each expert of the layer at hand.
    tokens: Vec<u32>,
    now_ns: u64,
    compute_ns: u64,
    expert_wait_ns: u64,
    ple_wait_ns: u64,
}

impl Run<'_> {
    fn load_hot_set(&mut self) {
        self.pump();
        while let Some(next_ns) = self.drive.next_ns() {
            self.pass_time(next_ns);
        }
        self.drive = VirtualDrive::new(self.machine.drive);
        self.now_ns = 0;
    }

    fn pass(&mut self, layers: u32, strips: &[Strip]) {
        let rows = strips.iter().map(|strip| u64::from(strip.rows)).sum();
        self.scheduler.begin_pass(PassKind::Prompt);
        let rows_ns = self.drive.start_rows(self.now_ns, rows);
        if self.policy.ple_first {
            self.wait_for_rows(rows_ns);
        }
        self.queue_profile(0);
        self.pump();
        for layer in 0..layers {
            if layer == PLE_LAYER {
                self.wait_for_rows(rows_ns);
            }
            self.layer(layer, strips);
        }
        self.scheduler.end_pass();
    }

    fn wait_for_rows(&mut self, rows_ns: u64) {
        self.ple_wait_ns += rows_ns.saturating_sub(self.now_ns);
        self.pass_time(rows_ns);
    }

    fn layer(&mut self, layer: u32, strips: &[Strip]) {
        self.work(self.machine.compute.layer_ns);
        self.tokens.fill(0);
        for (at, strip) in strips.iter().enumerate() {
            self.work(self.machine.compute.mixer_row_ns * f64::from(strip.rows));
            while self.policy.finishes_ahead && self.scheduler.unread_ahead(layer) > 0 && self.wait() {}
            let demand = &strip.layers[layer as usize].demand;
            demand.iter().for_each(|demand| self.tokens[demand.expert as usize] += demand.tokens);
            self.scheduler.demand(layer, demand).expect("experts of a trace exist");
            if !self.policy.queues_after_wait {
                self.queue_forecast(layer, strip);
            }
            if at + 1 < strips.len() {
                self.pump();
            }
        }
        if !self.policy.queues_after_wait {
            self.queue_profile(layer + 1);
        }
        // Before a read is started: what nobody expected is missed.
        self.scheduler.close(layer);
        self.pump();
        if self.policy.waits_for_all {
            self.experts_together(layer, strips);
        } else {
            self.experts_by_arrival(layer, strips);
        }
        self.scheduler.layer_done(layer);
    }

    fn experts_by_arrival(&mut self, layer: u32, strips: &[Strip]) {
        loop {
            if let Some(outcome) = self.scheduler.next_outcome() {
                let (tokens, slot) = self.ready(outcome);
                if self.scheduler.outstanding() == 0 {
                    self.all_arrived(layer, strips);
                }
                self.compute(tokens, slot);
            } else if self.scheduler.outstanding() == 0 {
                return;
            } else {
                assert!(self.wait(), "the scheduler makes progress");
            }
        }
    }

    fn experts_together(&mut self, layer: u32, strips: &[Strip]) {
        let mut arrived = Vec::new();
        while self.scheduler.outstanding() > 0 {
            while let Some(outcome) = self.scheduler.next_outcome() {
                arrived.push(self.ready(outcome));
            }
            // An arena that has no room for all goes on with a part of them.
            if self.scheduler.outstanding() > 0 && !self.wait() {
                arrived.drain(..).for_each(|(tokens, slot)| self.compute(tokens, slot));
            }
        }
        self.all_arrived(layer, strips);
        arrived.into_iter().for_each(|(tokens, slot)| self.compute(tokens, slot));
    }

    fn ready(&self, outcome: Outcome) -> (u32, SlotId) {
        match outcome {
            Outcome::Ready { expert, slot } => (self.tokens[expert.index as usize], slot),
            Outcome::Failed { expert } => unreachable!("no read of this drive fails, not that of {expert}"),
        }
    }

    fn compute(&mut self, tokens: u32, slot: SlotId) {
        let Compute { expert_ns, expert_row_ns, .. } = self.machine.compute;
        self.work(expert_ns + expert_row_ns * f64::from(tokens));
        self.scheduler.release(slot);
        self.pump();
    }

    fn all_arrived(&mut self, layer: u32, strips: &[Strip]) {
        if self.policy.queues_after_wait {
            strips.iter().for_each(|strip| self.queue_forecast(layer, strip));
            self.queue_profile(layer + 1);
            self.pump();
        }
    }

    /// Queues what the static ranking says of a layer.
    fn queue_profile(&mut self, layer: u32) {
        if let Some(experts) = self.profile.get(layer as usize) {
            self.scheduler.forecast(layer, experts);
        }
    }

    /// Queues what a strip's rows say of the next layer.
    fn queue_forecast(&mut self, layer: u32, strip: &Strip) {
        if let Lookahead::Router { .. } = self.policy.lookahead {
            self.scheduler.forecast(layer + 1, &strip.layers[layer as usize].forecast);
        }
    }

    /// Computes for some time.
    fn work(&mut self, ns: f64) {
        let ns = ns.round() as u64;
        self.compute_ns = self.compute_ns.saturating_add(ns);
        self.pass_time(self.now_ns.saturating_add(ns));
    }

    /// Waits for the next record; `false` when none is under way.
    fn wait(&mut self) -> bool {
        let Some(next_ns) = self.drive.next_ns() else { return false };
        self.expert_wait_ns += next_ns.saturating_sub(self.now_ns);
        self.pass_time(next_ns);
        true
    }

    /// Lets time pass until then, if it is not over: reads arrive, and others are started.
    fn pass_time(&mut self, until_ns: u64) {
        let until_ns = until_ns.max(self.now_ns);
        while let Some((at_ns, read)) = self.drive.arrived(until_ns) {
            self.now_ns = self.now_ns.max(at_ns);
            self.scheduler.read_done(read.slot);
            self.pump();
        }
        self.now_ns = until_ns;
    }

    fn pump(&mut self) {
        while let Some(read) = self.scheduler.next_read() {
            self.drive.start(self.now_ns, read, self.machine.record_bytes);
        }
    }
}
