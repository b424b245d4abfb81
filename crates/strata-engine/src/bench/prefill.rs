//! The speed of a prompt that streams, held against the least time that reading and that computing can take.
//!
//! Every run of a prompt may be followed by its two floors ([`streamed`](super::streamed)); all records of the drive floor
//! are read as fast as can be.

use std::time::Instant;

use strata_model::qwen4exp::{Observer, Rows};

use super::drive::Device;
use super::streamed::{Counted, RouteRecorder, Streamed};
use super::{check, is_set};
use crate::machine::Conditions;
use crate::{Engine, EngineError, EngineOptions, Memory, Stop};

/// A run of a prompt, and its floors.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefillRun {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Tokens of a pass.
    pub pass_tokens: usize,
    /// Seconds of the run.
    pub wall_s: f64,
    /// Its floors, unless they were not wanted.
    pub floors: Option<Floors>,
    /// Part of the time in which the drive had something to do, as its system counts it.
    pub drive_busy: Option<f64>,
    /// What it read.
    pub streamed: Streamed,
    /// The most memory that the process ever had.
    pub peak_rss_bytes: Option<u64>,
    /// What the plan allows it.
    pub plan_bytes: u64,
    /// The state of the machine at the end of the run, and what it wrote to swap during the run.
    pub conditions: Conditions,
}

/// The least time that a run could take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floors {
    /// Seconds to read what the run needed, each record once.
    pub drive_s: f64,
    /// Seconds to compute it with everything in memory.
    pub compute_s: f64,
}

impl Floors {
    /// The one that counts.
    pub fn most_s(&self) -> f64 {
        self.drive_s.max(self.compute_s)
    }
}

impl PrefillRun {
    /// Of this run nothing but its computation, which took so long: nothing was read or waited for.
    pub fn only_computed(self, compute_s: f64) -> Self {
        Self { wall_s: compute_s, floors: None, drive_busy: None, streamed: Streamed::default(), ..self }
    }

    /// How many times as long as its floor it took.
    pub fn ratio(&self) -> Option<f64> {
        self.floors.map(|floors| self.wall_s / floors.most_s())
    }
}

impl Engine {
    /// Makes ready for [`run_prefill`](Self::run_prefill): reads another text, so that memory, caches and the profile are
    /// those of an engine that has been at work, and then the hot set that follows from it.
    ///
    /// # Errors
    /// When a run fails or is stopped.
    pub fn warm_up(&mut self, ids: &[u32], stop: &Stop) -> Result<(), EngineError> {
        let mut session = self.new_session()?;
        let mut logits = Vec::with_capacity(self.model.vocabulary());
        let observer = &mut crate::generate::Stoppable(stop);
        let result = self.model.forward(&mut session.sequence, ids, Rows::Last, &mut logits, observer);
        self.free_session(session);
        result?;
        if let Some(store) = self.model.streaming().filter(|store| !store.holds_all()) {
            store.start_over().map_err(strata_model::ModelError::from)?;
        }
        self.load_experts(|_, _| !is_set(stop))?;
        self.take_profile();
        check(stop)
    }

    /// Changes what can be changed of an open engine: tokens of a pass, up to what the engine was opened with; what is read
    /// before it is needed.
    pub fn set_streaming(&mut self, options: &EngineOptions) {
        let pass_tokens = options.pass_tokens.unwrap_or(self.plan().pass_tokens as usize);
        self.model.set_streaming(pass_tokens, &options.model.streaming);
    }

    /// Times a prompt on a fresh sequence, with nothing in the arena but the hot set, and its floors if they are wanted.
    ///
    /// # Errors
    /// When a run fails or is stopped.
    pub fn run_prefill(&mut self, ids: &[u32], with_floors: bool, stop: &Stop) -> Result<PrefillRun, EngineError> {
        let before = self.begin_run()?;
        let mut routes = RouteRecorder::new(stop);
        let drive = Device::of(self.path());
        let busy_ms = drive.busy_ms();
        let timeline = self.options.model.timeline.clone();
        let conditions_before = Conditions::now();
        timeline.begin();
        let wall_s = self.time_prompt(ids, &mut routes)?;
        timeline.end();
        // The system's counter begins anew after some weeks.
        let drive_busy_ms = busy_ms.zip(drive.busy_ms()).and_then(|(before, after)| after.checked_sub(before));
        let drive_busy = drive_busy_ms.map(|ms| (ms as f64 / 1e3 / wall_s).min(1.0));
        let after = self.counted();
        let conditions = Conditions::now().since(&conditions_before);
        let floors = if with_floors { Some(self.floors(ids, wall_s, routes.layers, stop)?) } else { None };
        check(stop)?;
        Ok(PrefillRun {
            tokens: ids.len(),
            pass_tokens: self.model.pass_tokens().min(ids.len()),
            wall_s,
            floors,
            drive_busy,
            streamed: after.since(&before),
            peak_rss_bytes: Memory::peak_rss_bytes(),
            plan_bytes: self.plan().total_bytes(),
            conditions,
        })
    }

    /// Seconds of a prompt whose routes are known, computed with whatever records are in memory: nothing is read.
    ///
    /// # Errors
    /// When the run fails or is stopped, or the arena does not hold records of every kind.
    pub fn run_fake_prefill(&mut self, ids: &[u32], routes: Vec<Vec<u32>>, stop: &Stop) -> Result<f64, EngineError> {
        self.with_fake_stream(routes, |engine| engine.time_prompt(ids, &mut crate::generate::Stoppable(stop)))
    }

    fn floors(&mut self, ids: &[u32], wall_s: f64, routes: Vec<Vec<u32>>, stop: &Stop) -> Result<Floors, EngineError> {
        let Some(store) = self.model.streaming().filter(|store| !store.holds_all()) else {
            // Nothing is read: the run is its own floor.
            return Ok(Floors { drive_s: 0.0, compute_s: wall_s });
        };
        let needed = store.needed().to_vec();
        let replayed = store.replay(&needed, &|| is_set(stop)).map_err(strata_model::ModelError::from)?;
        check(stop)?;
        let compute_s = self.run_fake_prefill(ids, routes, stop)?;
        Ok(Floors { drive_s: replayed.as_secs_f64(), compute_s })
    }

    /// Empties the arena but for the hot set; gives the counts so far.
    fn begin_run(&mut self) -> Result<Counted, EngineError> {
        if let Some(store) = self.model.streaming().filter(|store| !store.holds_all()) {
            store.clear_ring().map_err(strata_model::ModelError::from)?;
            store.keep_needed(true);
        }
        Ok(self.counted())
    }

    /// Operations that a prompt of so many tokens asks for.
    pub fn prompt_flops(&self, tokens: usize) -> u64 {
        self.model.config().flops(0..tokens, 1, self.model.vocabulary()).total()
    }

    fn time_prompt(&mut self, ids: &[u32], observer: &mut dyn Observer) -> Result<f64, EngineError> {
        let mut session = self.new_session()?;
        let mut logits = Vec::with_capacity(self.model.vocabulary());
        let start = Instant::now();
        let result = self.model.forward(&mut session.sequence, ids, Rows::Last, &mut logits, observer);
        let wall_s = start.elapsed().as_secs_f64();
        self.free_session(session);
        result?;
        Ok(wall_s)
    }
}
