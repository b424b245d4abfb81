//! What a run reads from the drive, and what its floors are measured with.
//!
//! A run of a model that streams may be followed by floors, each measured with nothing else going on. The *compute floor*
//! computes the run's routes with valid records that are in memory. The *drive floor* reads the records that the run had to
//! read once more, through the same reader: in which batches is the run's own matter.

use std::sync::atomic::Ordering;

use strata_model::qwen4exp::{LayerView, Moment, Observer};
use strata_store::RowCounts;
use strata_store::scheduler::{Class, Counts, Forecasts, Tally};

use crate::{Engine, EngineError, Stop, Timeline};

/// What was counted of reads in some time. A look-up is one distinct expert of a layer of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Streamed {
    /// Records of look-ups that were not in memory.
    pub needed: Tally,
    /// Records that were read.
    pub read: Tally,
    /// Of these, records that no layer used.
    pub wasted: Tally,
    /// Look-ups of records that were in memory before.
    pub resident: u64,
    /// Look-ups of records that were read ahead, or queued.
    pub ahead: u64,
    /// All other look-ups.
    pub missed: u64,
    /// Forecasts for single tokens.
    pub forecast: Forecasts,
    /// Those that were made two layers before theirs.
    pub early_forecast: Forecasts,
    /// Seconds that computation waited for records.
    pub exposed_wait_s: f64,
    /// Seconds that it waited for rows of the n-gram table.
    pub rows_wait_s: f64,
    /// Bytes read of that table.
    pub rows_read_bytes: u64,
}

impl Streamed {
    /// The part of the look-ups that was in memory before; `None`: there were none.
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.resident + self.ahead + self.missed;
        (all > 0).then(|| self.resident as f64 / all as f64)
    }
}

/// What an engine has counted since it was opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    counts: Counts,
    exposed_wait_s: f64,
    rows: RowCounts,
}

impl Counted {
    /// What was counted after `before`.
    pub fn since(&self, before: &Self) -> Streamed {
        let between = |of: fn(&Counts) -> Tally| of(&self.counts) - of(&before.counts);
        let (ahead, missed) = (between(|counts| counts.ahead), between(|counts| counts.missed));
        Streamed {
            needed: ahead + missed,
            read: between(|counts| counts.read[Class::Demand] + counts.read[Class::ReadAhead]),
            wasted: between(|counts| counts.wasted[Class::Demand] + counts.wasted[Class::ReadAhead]),
            resident: between(|counts| counts.resident).records,
            ahead: ahead.records,
            missed: missed.records,
            forecast: self.counts.forecast - before.counts.forecast,
            early_forecast: self.counts.early_forecast - before.counts.early_forecast,
            exposed_wait_s: self.exposed_wait_s - before.exposed_wait_s,
            rows_wait_s: self.rows.exposed_wait.as_secs_f64() - before.rows.exposed_wait.as_secs_f64(),
            rows_read_bytes: self.rows.read_bytes - before.rows.read_bytes,
        }
    }
}

/// Records the experts of every layer of every pass.
pub(super) struct RouteRecorder<'a> {
    stop: &'a Stop,
    pub(super) layers: Vec<Vec<u32>>,
}

impl<'a> RouteRecorder<'a> {
    pub(super) fn new(stop: &'a Stop) -> Self {
        Self { stop, layers: Vec::new() }
    }
}

impl Observer for RouteRecorder<'_> {
    fn is_cancelled(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn at(&mut self, moment: Moment, view: &mut LayerView<'_>) {
        if moment == Moment::LayerDone {
            self.layers.push(view.routes.ids.clone());
        }
    }
}

impl Engine {
    /// What was counted of reads so far.
    pub fn counted(&mut self) -> Counted {
        let rows = self.model.row_counts();
        let (counts, exposed_wait_s) = match self.model.streaming() {
            Some(store) => (*store.counts(), store.exposed_wait().as_secs_f64()),
            None => (Counts::default(), 0.0),
        };
        Counted { counts, exposed_wait_s, rows }
    }

    /// Where it records what happens when; off where nobody wants to know.
    pub fn timeline(&self) -> &Timeline {
        &self.options.model.timeline
    }

    /// Whether some experts have no slot.
    pub fn streams(&mut self) -> bool {
        self.model.streaming().is_some_and(|store| !store.holds_all())
    }

    /// Does `work` while passes are sent to the experts of `routes`, with whatever records are in memory: nothing is read,
    /// and results mean nothing. What is profiled and recorded meanwhile is forgotten.
    pub(super) fn with_fake_stream<T>(
        &mut self,
        routes: Vec<Vec<u32>>,
        work: impl FnOnce(&mut Self) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        if !self.model.set_fake_stream(Some(routes)) {
            self.model.set_fake_stream(None);
            return Err(EngineError::Unusable(
                "the compute floor cannot be measured: the arena does not hold records of every kind".to_owned(),
            ));
        }
        // What a profile shows is the run itself.
        let profile = self.take_profile();
        let result = work(self);
        self.take_profile();
        self.put_profile(profile);
        self.model.set_fake_stream(None);
        result
    }
}
