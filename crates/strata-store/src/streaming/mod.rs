//! A store with fewer slots than the model has experts: records stream through it from the drive.
//!
//! Owns: the arena, the reads under way, and the [scheduler](crate::scheduler) that decides on them. Promises: reads go on
//! while others compute, without a thread of their own: every call of the pass looks what has arrived and starts what can
//! be started. Refuses: to decide anything that could change a result; what arrives when only changes in which order
//! experts are handed out.

mod arena;
mod between;
mod fake;
mod monitor;
mod pace;
mod usage;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arena::Arena;
use fake::Fake;
use pace::Pace;
pub use usage::Usage;

use crate::reads::{Done, ReadQueue};
use crate::scheduler::{Counts, Limits, Outcome, PassKind, PassNumber, Read, Scheduler};
use crate::timeline::{Lane, Timeline};
use crate::{Area, Demand, ExpertId, ExpertStore, Part, Records, Slot, StoreError};

/// What a store expects of a layer before its rows are routed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lookahead {
    /// Nothing.
    Off,
    /// The experts that earlier passes used most, at most [`StreamingStore::PROFILE_EXPERTS`] a layer.
    Profile,
    /// What the layer's router says of the input of the layer before; for layer 0, what earlier passes used.
    #[default]
    Router,
    /// The same; and for single rows, where the drive has time for more, what the router says of the input two layers
    /// before.
    Router2,
}

impl Lookahead {
    /// Whether what routers say is asked for at all.
    fn asks_routers(self) -> bool {
        matches!(self, Self::Router | Self::Router2)
    }
}

/// How records are streamed. Nothing here changes a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamingOptions {
    /// Most records on their way at a time.
    pub depth: u32,
    /// What is read before it is demanded.
    pub lookahead: Lookahead,
    /// Rows that must be expected to need an expert before it is read ahead.
    pub forecast_min: u32,
}

impl StreamingOptions {
    /// Records on their way at a time: enough to keep a drive of 2.5 GB/s busy through the longest operation between two
    /// looks at it.
    pub const DEPTH: u32 = 128;

    /// Records on their way at a time for an arena of so many slots: a quarter of what two tokens leave, so that any arena
    /// that can work at all does.
    pub fn depth_for(slots: usize, top_k: u32) -> u32 {
        let left = (slots as u32).saturating_sub(top_k.saturating_mul(2));
        (left / 4).clamp(1, Self::DEPTH)
    }
}

impl Default for StreamingOptions {
    fn default() -> Self {
        Self { depth: Self::DEPTH, lookahead: Lookahead::default(), forecast_min: 1 }
    }
}

/// The experts of a model, most of them on the drive.
pub struct StreamingStore {
    records: Records,
    scheduler: Scheduler,
    // Before the arena: dropping it waits until nothing writes there.
    queue: ReadQueue,
    arena: Arena,
    options: StreamingOptions,
    /// Layers that passes go through; those after them are only [skipped to](ExpertStore::skip_to).
    passed_layers: u32,
    /// What had been counted before the pass at hand, which does not count.
    uncounted: Option<Counts>,
    /// Of earlier runs: what the hot set and forecasts come from.
    profile: Usage,
    /// Of this and earlier runs.
    usage: Usage,
    /// By slot.
    filling: Vec<Filling>,
    /// The pass at hand, or the last one.
    pass: PassNumber,
    kind: PassKind,
    /// Records that could not be read in this pass or in one that was left.
    failures: Vec<Failure>,
    /// Why reading does not work at all, until somebody can be told.
    refused: Option<StoreError>,
    /// Experts that this pass had to read, in the order in which they were used, when somebody wants to know.
    needed: Option<Vec<ExpertId>>,
    exposed_wait: Duration,
    /// When the layer at hand began, and the wait up to then.
    layer_began: (Instant, Duration),
    pace: Pace,
    fake: Option<Fake>,
    timeline: Timeline,
    /// Places of reads under way, for the timeline.
    free_lanes: Vec<u16>,
    done: Vec<Done>,
    ranking: Vec<Demand>,
}

/// A record that could not be read for a pass.
struct Failure {
    pass: PassNumber,
    expert: ExpertId,
    error: StoreError,
}

/// What is being read into a slot.
struct Filling {
    read: Option<Read>,
    /// Parts of the record that are missing.
    parts: u8,
    error: Option<StoreError>,
    /// The pass in which the read was started.
    pass: PassNumber,
    since: Instant,
    lane: u16,
}

/// Rows of experts that are handed out at a time: a few tens of milliseconds of work for a processor, so that threads
/// seldom wait for each other, and the drive is still looked after in time.
const HANDED_OUT_ROWS: u32 = 1024;

impl StreamingStore {
    /// The most experts of a layer that [`Lookahead::Profile`] expects.
    pub const PROFILE_EXPERTS: usize = 256;

    /// Sizes of the areas that an arena of `slots` slots needs.
    pub fn area_bytes(records: &Records, slots: usize) -> Vec<usize> {
        arena::area_sizes(records, slots)
    }

    /// Parts of records that a queue must have room for, with so many records on their way at a time.
    pub fn queue_depth(depth: u32) -> usize {
        Part::ALL.len() * depth as usize
    }

    /// An empty arena in `areas`, of the sizes that [`area_bytes`](Self::area_bytes) said. The experts that `profile` says
    /// are used most are the hot set, which [`load_hot_set`](Self::load_hot_set) reads.
    ///
    /// # Errors
    /// When there are fewer slots than [`Limits::least_slots`] and than experts.
    ///
    /// # Panics
    /// When the queue has no room for the reads that the options allow.
    pub fn new(
        records: Records,
        areas: Vec<Arc<Area>>,
        queue: ReadQueue,
        options: StreamingOptions,
        profile: Usage,
    ) -> Result<Self, StoreError> {
        assert!(queue.room() >= Self::queue_depth(options.depth), "room for the parts of all records on their way");
        let arena = Arena::new(&records, areas);
        let scheduler = scheduler(&records, arena.slots(), options, &profile)?;
        let layers = records.layers.len();
        let since = Instant::now();
        let filling = || Filling { read: None, parts: 0, error: None, pass: PassNumber::default(), since, lane: 0 };
        Ok(Self {
            filling: std::iter::repeat_with(filling).take(arena.slots()).collect(),
            usage: profile.clone(),
            records,
            scheduler,
            queue,
            arena,
            options,
            passed_layers: layers as u32,
            uncounted: None,
            profile,
            pass: PassNumber::default(),
            kind: PassKind::Prompt,
            failures: Vec::new(),
            refused: None,
            needed: None,
            exposed_wait: Duration::ZERO,
            layer_began: (since, Duration::ZERO),
            pace: Pace::new(layers),
            fake: None,
            timeline: Timeline::off(),
            free_lanes: (0..options.depth as u16).rev().collect(),
            done: Vec::new(),
            ranking: Vec::new(),
        })
    }

    /// Records on `timeline` when records are read and waited for.
    pub fn recorded(self, timeline: Timeline) -> Self {
        Self { timeline, ..self }
    }

    /// Whether every expert has a slot.
    pub fn holds_all(&self) -> bool {
        self.slots() as u64 >= self.records.experts()
    }

    /// Slots of the arena.
    pub fn slots(&self) -> usize {
        self.scheduler.slots() as usize
    }

    /// Experts that are in memory.
    pub fn resident(&self) -> usize {
        self.scheduler.resident().count()
    }

    /// Whether an expert is in memory.
    pub fn holds(&self, expert: ExpertId) -> bool {
        self.scheduler.holds(expert)
    }

    /// How it reads, for people.
    pub fn describe_reader(&self) -> String {
        self.queue.describe()
    }

    /// What was counted so far.
    pub fn counts(&self) -> &Counts {
        self.scheduler.counts()
    }

    /// Time that passes have waited for records.
    pub fn exposed_wait(&self) -> Duration {
        self.exposed_wait
    }

    /// What was used so far.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// How records are streamed.
    pub fn options(&self) -> StreamingOptions {
        self.options
    }

    /// Changes what is expected of layers, from the next pass on.
    pub fn set_lookahead(&mut self, lookahead: Lookahead, forecast_min: u32) {
        self.options = StreamingOptions { lookahead, forecast_min, ..self.options };
        self.scheduler.set_forecast_min(forecast_min);
    }

    /// Looks what has arrived, and starts what can be started.
    fn pump(&mut self) {
        if self.refused.is_some() {
            return;
        }
        let collected = self.collect(false);
        self.look_at_pace();
        if let Err(error) = collected.and_then(|()| self.start_reads()) {
            self.refused = Some(error);
        }
    }

    /// Waits until a read has ended.
    fn wait(&mut self) -> Result<(), StoreError> {
        self.collect(true)
    }

    fn collect(&mut self, wait: bool) -> Result<(), StoreError> {
        let mut done = std::mem::take(&mut self.done);
        let result = self.queue.take(wait, &mut done);
        for Done { tag, result } in done.drain(..) {
            self.part_done(tag as u32, result);
        }
        self.done = done;
        result
    }

    fn start_reads(&mut self) -> Result<(), StoreError> {
        let mut any = false;
        while let Some(read) = self.scheduler.next_read() {
            let layer = &self.records.layers[read.expert.layer as usize];
            let reads = self.arena.reads(layer, read.expert.index, read.slot.index);
            self.filling[read.slot.index as usize] = Filling {
                read: Some(read),
                parts: reads.len() as u8,
                error: None,
                pass: self.pass,
                since: Instant::now(),
                lane: self.free_lanes.pop().unwrap_or(0),
            };
            for (range, memory) in reads {
                // SAFETY: the memory is a window in a slot that the scheduler has given to this record alone: it is in
                // nobody's hands, and will not be before the read is reported as done.
                unsafe { self.queue.start(u64::from(read.slot.index), range, memory) };
            }
            any = true;
        }
        if any { self.queue.submit() } else { Ok(()) }
    }

    /// One part of the record for a slot was read, or could not be.
    fn part_done(&mut self, slot: u32, result: Result<(), StoreError>) {
        let filling = &mut self.filling[slot as usize];
        filling.parts -= 1;
        if let Err(error) = result {
            filling.error.get_or_insert(error);
        }
        if filling.parts > 0 {
            return;
        }
        let read = filling.read.take().expect("a read of the slot is under way");
        let (lane, since, layer) = (filling.lane, filling.since, read.expert.layer);
        self.free_lanes.push(lane);
        let bytes = self.records.layers[layer as usize].record_bytes();
        self.timeline.read(lane, layer, read.class, bytes, since, Instant::now());
        match filling.error.take() {
            None => self.scheduler.read_done(read.slot),
            Some(error) => {
                // What failed for an earlier pass is read anew.
                if filling.pass == self.pass {
                    self.failures.push(Failure { pass: self.pass, expert: read.expert, error });
                }
                self.scheduler.read_failed(read.slot);
            }
        }
    }

    /// What is known of layer `layer` before anybody has looked at the text.
    fn forecast_by_profile(&mut self, layer: u32, most: usize) {
        let mut ranking = std::mem::take(&mut self.ranking);
        self.profile.ranking(layer, most, &mut ranking);
        self.scheduler.forecast(layer, &ranking);
        self.ranking = ranking;
    }

    fn slot(&mut self, expert: ExpertId, slot: crate::scheduler::SlotId) -> Slot {
        let layer = &self.records.layers[expert.layer as usize];
        let (area, parts) = self.arena.parts(layer, expert, slot.index);
        Slot { id: expert, slot, area, parts }
    }
}

fn scheduler(
    records: &Records,
    slots: usize,
    options: StreamingOptions,
    profile: &Usage,
) -> Result<Scheduler, StoreError> {
    let limits = Limits {
        record_bytes: records.layers.iter().map(crate::LayerRecords::record_bytes).collect(),
        experts: records.layers.iter().map(|layer| layer.experts).max().unwrap_or(0),
        top_k: records.top_k,
        slots: slots as u32,
        depth: options.depth,
    };
    let hot = profile.hottest(limits.hot_slots() as usize);
    let mut scheduler = Scheduler::new(limits, &hot)?;
    scheduler.set_forecast_min(options.forecast_min);
    Ok(scheduler)
}

impl ExpertStore for StreamingStore {
    fn begin_pass(&mut self, kind: PassKind) -> PassNumber {
        if self.fake.is_some() {
            return PassNumber::default();
        }
        self.scheduler.leave_pass();
        let pass = self.scheduler.begin_pass(kind);
        self.at_hand(pass);
        self.scheduler.set_forecast_min(self.options.forecast_min);
        match (self.options.lookahead, kind) {
            // One token uses too few experts for a profile to be of use.
            (Lookahead::Off, _) | (_, PassKind::Decode) => {}
            (Lookahead::Profile, _) => self.forecast_by_profile(0, Self::PROFILE_EXPERTS),
            (Lookahead::Router | Lookahead::Router2, _) => self.forecast_by_profile(0, usize::MAX),
        }
        self.pump();
        pass
    }

    fn resume(&mut self, pass: PassNumber) {
        if self.fake.is_none() && self.scheduler.pass() != Some(pass) {
            self.scheduler.leave_pass();
            self.scheduler.resume_pass(pass);
            self.at_hand(pass);
            self.pump();
        }
    }

    fn skip_to(&mut self, layer: u32) {
        if self.fake.is_none() {
            self.scheduler.skip_to(layer);
        }
    }

    fn demand(&mut self, layer: u32, experts: &[Demand]) -> Result<(), StoreError> {
        if let Some(fake) = &mut self.fake {
            fake.demand(experts);
            return Ok(());
        }
        let is_idle = self.queue.under_way() == 0;
        self.scheduler.demand(layer, experts)?;
        if self.kind == PassKind::Decode {
            self.pace.demanded(layer, self.scheduler.missing(), is_idle, Instant::now());
        }
        if self.uncounted.is_none() {
            self.usage.add(layer, experts);
        }
        self.pump();
        Ok(())
    }

    fn forecast(&mut self, layer: u32, experts: &[Demand]) {
        if self.fake.is_none() {
            self.scheduler.forecast(layer, experts);
            self.pump();
        }
    }

    fn forecast_ranked(&mut self, layer: u32, experts: &[u32]) {
        if self.fake.is_none() {
            self.scheduler.forecast_ranked(layer, experts);
            self.pump();
        }
    }

    fn wants_forecast(&self) -> bool {
        self.options.lookahead.asks_routers() && !self.holds_all()
    }

    fn wants_early_forecast(&self) -> bool {
        self.wants_forecast() && self.has_time_for_early()
    }

    fn close(&mut self, layer: u32) {
        if self.fake.is_some() {
            return;
        }
        self.scheduler.close(layer);
        let is_last = layer + 1 >= self.passed_layers;
        if self.options.lookahead == Lookahead::Profile && self.kind == PassKind::Prompt && !is_last {
            self.forecast_by_profile(layer + 1, Self::PROFILE_EXPERTS);
        }
        self.pump();
    }

    fn ready(&mut self, layer: u32, slots: &mut Vec<Slot>) -> Result<(), StoreError> {
        if let Some(fake) = &mut self.fake {
            fake.ready(&self.records, &self.arena, layer, slots);
            return Ok(());
        }
        let before = slots.len();
        loop {
            self.pump();
            let mut rows = 0;
            while rows < HANDED_OUT_ROWS {
                // A failure waits until what was handed out with it is back.
                if self.scheduler.is_failure_next() && slots.len() > before {
                    break;
                }
                match self.scheduler.next_outcome() {
                    Some(Outcome::Ready { expert, slot }) => {
                        let filled = &self.filling[slot.index as usize];
                        if let Some(needed) = self.needed.as_mut().filter(|_| filled.pass == self.pass) {
                            needed.push(expert);
                        }
                        rows += self.scheduler.tokens(expert);
                        let slot = self.slot(expert, slot);
                        slots.push(slot);
                    }
                    Some(Outcome::Failed { expert }) => return Err(self.failure(expert)),
                    None => break,
                }
            }
            if slots.len() > before {
                return Ok(());
            }
            if self.scheduler.outstanding() == 0 {
                self.scheduler.layer_done(layer);
                self.judge_forecasts();
                return Ok(());
            }
            if let Some(error) = self.refused.take() {
                return Err(error);
            }
            let start = Instant::now();
            let result = self.wait();
            let end = Instant::now();
            self.exposed_wait += end - start;
            self.timeline.span(Lane::Waits, "experts", Some(layer), start, end);
            self.pace.waited();
            result?;
        }
    }

    fn release(&mut self, slot: Slot) {
        match &mut self.fake {
            Some(fake) => fake.release(),
            None => {
                self.scheduler.release(slot.slot);
                self.retire();
            }
        }
    }

    fn poll(&mut self) {
        if self.fake.is_none() {
            self.pump();
        }
    }

    fn end_pass(&mut self) {
        if self.fake.is_none() {
            self.scheduler.end_pass();
            self.pump();
        }
    }

    fn abandon(&mut self, pass: PassNumber) {
        if let Some(fake) = &mut self.fake {
            fake.abandon();
        } else if self.scheduler.pass() == Some(pass) {
            self.scheduler.abandon();
            self.refused = None;
        } else {
            self.scheduler.forget_left(pass);
        }
    }

    fn as_streaming(&mut self) -> Option<&mut StreamingStore> {
        Some(self)
    }
}

impl StreamingStore {
    /// A pass begins or goes on.
    fn at_hand(&mut self, pass: PassNumber) {
        self.pass = pass;
        self.kind = self.scheduler.kind();
        self.layer_began = (Instant::now(), self.exposed_wait);
        self.pace.begin_pass();
        // What was refused for another pass may be granted now.
        self.refused = None;
        let scheduler = &self.scheduler;
        self.failures.retain(|failure| failure.pass == pass || scheduler.is_left(failure.pass));
    }

    /// Why a record could not be read in the pass at hand.
    fn failure(&mut self, expert: ExpertId) -> StoreError {
        let is_it = |failure: &Failure| failure.expert == expert && failure.pass == self.pass;
        let at = self.failures.iter().position(is_it).expect("a failed read has a reason");
        StoreError::Expert { expert, source: Box::new(self.failures.swap_remove(at).error) }
    }
}

#[cfg(test)]
mod tests;
