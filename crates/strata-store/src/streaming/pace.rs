//! How drive and computation keep pace: for how many records the drive has time before somebody waits for it.
//!
//! Owns: the time that a record takes, and the time in which the drive has nothing that is demanded to read, measured for
//! each layer. Refuses: to decide what is read: it tells the scheduler what it expects.

use std::time::{Duration, Instant};

use super::{Lookahead, StreamingStore};
use crate::PassKind;

/// While computation waits for nothing, experts that fewer rows of a prompt are expected to need are not read ahead: a third
/// of the guesses that rest on one row are wrong, a fifth of those on two (docs/streaming.md), and those that are right are
/// still in time when they are demanded.
const SURE_TOKENS: u32 = 3;
/// The part of a layer's time from which on computation counts as waiting.
const WAITING_PART: f64 = 0.01;
/// A new measurement's share of a mean.
const NEW_SHARE: f64 = 0.125;

/// A mean to which newer values count more; nothing before the first.
#[derive(Clone, Copy, Default)]
struct Mean(Option<f64>);

impl Mean {
    fn add(&mut self, value: f64) {
        self.0 = Some(self.0.map_or(value, |mean| mean + NEW_SHARE * (value - mean)));
    }
}

/// What the layer at hand waits for.
#[derive(Clone, Copy)]
enum State {
    /// No layer is at hand.
    Nothing,
    /// Some of its records, so many at first, since it was demanded.
    Missing {
        since: Instant,
        records: u32,
        /// Nothing else was being read when it was demanded.
        is_alone: bool,
    },
    /// Nothing any more since then.
    Idle { since: Instant },
}

/// The measurements, of passes of single tokens.
pub(super) struct Pace {
    /// Seconds that a record takes while others are read with it.
    record_s: Mean,
    /// Seconds from when a layer had all that it demanded to the next one's demand, by layer.
    idle_s: Vec<Mean>,
    layer: u32,
    state: State,
    /// The pass has just waited for records: what has come has come just now.
    is_on_time: bool,
}

impl Pace {
    pub(super) fn new(layers: usize) -> Self {
        Self {
            record_s: Mean::default(),
            idle_s: vec![Mean::default(); layers],
            layer: 0,
            state: State::Nothing,
            is_on_time: false,
        }
    }

    pub(super) fn begin_pass(&mut self) {
        self.state = State::Nothing;
    }

    /// A layer was demanded, and so many of its records are missing; `is_idle`: nothing was being read before.
    pub(super) fn demanded(&mut self, layer: u32, missing: u32, is_idle: bool, now: Instant) {
        if let State::Idle { since } = self.state
            && layer == self.layer + 1
        {
            self.idle_s[self.layer as usize].add((now - since).as_secs_f64());
        }
        self.layer = layer;
        self.state = match missing {
            0 => State::Idle { since: now },
            records => State::Missing { since: now, records, is_alone: is_idle },
        };
    }

    /// The pass has waited until a record came.
    pub(super) fn waited(&mut self) {
        self.is_on_time = true;
    }

    /// So many records of the layer at hand are missing now: for how many others the drive has time before the next layer
    /// is demanded, those under way among them.
    fn idle_records(&mut self, missing: u32, now: Instant) -> f64 {
        let is_on_time = std::mem::take(&mut self.is_on_time);
        if let (State::Missing { since, records, is_alone }, 0) = (self.state, missing) {
            if is_alone && is_on_time {
                self.record_s.add((now - since).as_secs_f64() / f64::from(records));
            }
            self.state = State::Idle { since: now };
        }
        if missing > 0 { 0.0 } else { self.expected_records(now) }
    }

    /// For how many records the drive has, or will have, time between what is missing of the layer at hand and the next
    /// layer's demand.
    fn expected_records(&self, now: Instant) -> f64 {
        let gone_s = match self.state {
            State::Nothing => return 0.0,
            State::Missing { .. } => 0.0,
            State::Idle { since } => (now - since).as_secs_f64(),
        };
        let Some(record_s) = self.record_s.0 else { return 0.0 };
        let left_s = self.idle_s[self.layer as usize].0.unwrap_or(0.0) - gone_s;
        left_s.max(0.0) / record_s.max(1e-9)
    }
}

impl StreamingStore {
    /// In single tokens: tells the scheduler for how many records the drive has time.
    pub(super) fn look_at_pace(&mut self) {
        if self.kind == PassKind::Decode && self.options.lookahead.asks_routers() {
            let records = self.pace.idle_records(self.scheduler.missing(), Instant::now());
            self.scheduler.expect_idle(records);
        }
    }

    /// Whether, of a single row, the router after the next one is to be asked.
    pub(super) fn has_time_for_early(&self) -> bool {
        let is_wanted = self.kind == PassKind::Decode && self.options.lookahead == Lookahead::Router2;
        is_wanted && self.scheduler.has_time_for_early(self.pace.expected_records(Instant::now()))
    }

    /// A layer of a prompt is done: whether it waited says whether the drive has time for guesses that are less sure.
    pub(super) fn judge_forecasts(&mut self) {
        let (began, waited): (Instant, Duration) = self.layer_began;
        let now = Instant::now();
        self.layer_began = (now, self.exposed_wait);
        let waits = (self.exposed_wait - waited).as_secs_f64() > WAITING_PART * (now - began).as_secs_f64();
        let is_prompt = self.kind == PassKind::Prompt;
        let least = if is_prompt && !waits { SURE_TOKENS } else { 1 };
        self.scheduler.set_forecast_min(self.options.forecast_min.max(least));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_what_is_left_of_the_layers_own_in_records() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut pace = Pace::new(3);
        pace.begin_pass();
        pace.demanded(0, 4, true, at(0));
        assert_eq!(pace.idle_records(1, at(5)), 0.0);
        pace.waited();
        // Four records in 8 ms; how long the drive is idle then is not known yet.
        assert_eq!(pace.idle_records(0, at(8)), 0.0);
        // Others were being read, and it was not waited for: neither says what a record takes.
        pace.demanded(1, 1, false, at(18));
        pace.waited();
        assert_eq!(pace.idle_records(0, at(30)), 0.0);
        pace.demanded(2, 1, true, at(34));
        assert_eq!(pace.idle_records(0, at(60)), 0.0);
        // The next token: 10 ms after layer 0, 4 after layer 1.
        pace.begin_pass();
        assert_eq!(pace.idle_records(0, at(70)), 0.0);
        pace.demanded(0, 0, true, at(70));
        assert!((pace.idle_records(0, at(70)) - 5.0).abs() < 1e-9);
        assert!((pace.idle_records(0, at(77)) - 1.5).abs() < 1e-9);
        assert!((pace.expected_records(at(77)) - 1.5).abs() < 1e-9);
        assert_eq!(pace.idle_records(0, at(90)), 0.0, "later than ever");
        pace.demanded(1, 2, true, at(90));
        assert_eq!(pace.idle_records(2, at(91)), 0.0);
        // None now, but two, as long as the drive is idle after this layer, once all is there.
        assert!((pace.expected_records(at(91)) - 2.0).abs() < 1e-9);
        pace.waited();
        // Two in 10 ms: an eighth of the way from 2 to 5 ms a record.
        assert!((pace.idle_records(0, at(100)) - 4.0 / 2.375).abs() < 1e-9);
    }
}
