//! What monitors see: the loop leaves a copy of its counts now and then, rates are made of them when somebody asks.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use strata_store::plan::Plan;

use super::desk::{Ended, lock};
use super::{MemoryStatus, RequestStatus, Status};
use crate::Memory;

/// Rates are those of so much time.
const WINDOW: Duration = Duration::from_secs(5);
/// Copies are no more frequent.
const PAUSE: Duration = Duration::from_millis(100);

/// Counts whose rates are told, at one moment.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) prompt_tokens: u64,
    pub(super) written_tokens: u64,
    pub(super) read_bytes: u64,
    pub(super) busy: Duration,
}

struct State {
    status: Status,
    /// Requests at work, and when they were asked.
    active: Vec<(Instant, RequestStatus)>,
    /// Of the last seconds, the oldest of them or older first.
    samples: VecDeque<Sample>,
}

pub(super) struct Monitor {
    began: Instant,
    state: Mutex<State>,
}

impl Monitor {
    /// `status` has what does not change.
    pub(super) fn new(status: Status) -> Self {
        let state = State { status, active: Vec::new(), samples: VecDeque::new() };
        Self { began: Instant::now(), state: Mutex::new(state) }
    }

    /// Whether it is time for a new copy.
    pub(super) fn is_due(&self) -> bool {
        lock(&self.state).samples.back().is_none_or(|last| last.at.elapsed() >= PAUSE)
    }

    /// Memory is divided in another way.
    pub(super) fn replan(&self, plan: &Plan) {
        lock(&self.state).status.memory = memory_status(plan);
    }

    /// Leaves a copy of what changed.
    pub(super) fn leave(
        &self,
        sample: Sample,
        active: Vec<(Instant, RequestStatus)>,
        change: impl FnOnce(&mut Status),
    ) {
        let mut state = lock(&self.state);
        change(&mut state.status);
        state.active = active;
        while state.samples.get(1).is_some_and(|second| second.at + WINDOW < sample.at) {
            state.samples.pop_front();
        }
        state.samples.push_back(sample);
    }

    /// The state now.
    pub(super) fn status(&self, queued: usize, ended: Ended) -> Status {
        let state = lock(&self.state);
        let (mut status, now) = (state.status.clone(), Instant::now());
        status.uptime_s = (now - self.began).as_secs_f64();
        status.queued = queued;
        (status.done, status.cancelled, status.failed) = (ended.done, ended.cancelled, ended.failed);
        let with_age = |(asked, request): &(Instant, RequestStatus)| RequestStatus {
            age_s: now.saturating_duration_since(*asked).as_secs_f64(),
            ..request.clone()
        };
        status.active = state.active.iter().map(with_age).collect();
        let rate = |of: fn(&Sample) -> f64| rate(&state.samples, now, of);
        status.prompt_tok_s = rate(|sample| sample.prompt_tokens as f64);
        status.decode_tok_s = rate(|sample| sample.written_tokens as f64);
        status.drive.bytes_s = rate(|sample| sample.read_bytes as f64);
        status.drive.busy = rate(|sample| sample.busy.as_secs_f64()).min(1.0);
        drop(state);
        status.memory.rss_bytes = Memory::rss_bytes().unwrap_or(0);
        status.memory.peak_rss_bytes = Memory::peak_rss_bytes().unwrap_or(0);
        status
    }
}

/// By how much a count grew a second: since the last sample that is older than the window, or the first one; but what began later
/// has the rate since it began.
fn rate(samples: &VecDeque<Sample>, now: Instant, of: fn(&Sample) -> f64) -> f64 {
    let is_old = |sample: &Sample| now.saturating_duration_since(sample.at) >= WINDOW;
    let Some(last) = samples.back() else { return 0.0 };
    let mut first = samples.iter().rposition(is_old).unwrap_or(0);
    let before = of(&samples[first]);
    while samples.get(first + 1).is_some_and(|next| of(next) == before) {
        first += 1;
    }
    let time = now.saturating_duration_since(samples[first].at).max(PAUSE);
    (of(last) - before) / time.as_secs_f64()
}

/// What a plan promises, by part, largest first.
pub(super) fn memory_status(plan: &Plan) -> MemoryStatus {
    let mut parts = vec![
        ("dense weights", plan.dense_bytes),
        ("state", plan.state_bytes),
        ("cache", plan.cache_bytes),
        ("workspace", plan.workspace_bytes),
        ("n-gram rows", plan.ple_bytes),
        ("other prompts", plan.side_bytes),
        ("steps", plan.step_bytes),
        ("checkpoints", plan.checkpoint_bytes),
        ("reserve", plan.reserve_bytes),
        ("arena", plan.arena_bytes),
    ];
    parts.retain(|(_, bytes)| *bytes > 0);
    parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let plan_bytes = plan.total_bytes();
    let plan = parts.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect();
    MemoryStatus { plan, plan_bytes, rss_bytes: 0, peak_rss_bytes: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_last_seconds() {
        let now = Instant::now();
        let monitor = Monitor::new(Status::default());
        let leave = |seconds_ago: u64, tokens: u64| {
            let at = now.checked_sub(Duration::from_secs(seconds_ago)).unwrap();
            let busy = Duration::from_secs(tokens / 20);
            let sample = Sample { at, prompt_tokens: 0, written_tokens: tokens, read_bytes: 7 * tokens, busy };
            monitor.leave(sample, Vec::new(), |status| status.written_tokens = tokens);
        };
        leave(100, 0);
        leave(20, 1000);
        leave(5, 1000);
        leave(2, 1040);
        let status = monitor.status(3, Ended { done: 1, cancelled: 2, failed: 4 });
        // 40 tokens in 5 seconds.
        assert!((status.decode_tok_s - 8.0).abs() < 0.1 && (status.drive.bytes_s - 56.0).abs() < 1.0, "{status:?}");
        assert!(status.prompt_tok_s == 0.0 && (status.drive.busy - 0.4).abs() < 0.01);
        assert_eq!((status.queued, status.done, status.cancelled, status.failed), (3, 1, 2, 4));
        assert_eq!((status.written_tokens, lock(&monitor.state).samples.len()), (1040, 3));
    }

    #[test]
    fn what_has_just_begun_has_the_rate_since_then() {
        let now = Instant::now();
        let monitor = Monitor::new(Status::default());
        // After a long rest two seconds of reading, then two of writing.
        for (seconds_ago, prompt_tokens, written_tokens) in
            [(60, 0, 0), (4, 0, 0), (2, 100, 0), (1, 100, 7), (0, 100, 14)]
        {
            let at = now.checked_sub(Duration::from_secs(seconds_ago)).unwrap();
            monitor.leave(
                Sample { at, prompt_tokens, written_tokens, read_bytes: 0, busy: Duration::ZERO },
                Vec::new(),
                |_| (),
            );
        }
        let status = monitor.status(0, Ended::default());
        assert!((status.decode_tok_s - 7.0).abs() < 0.5 && (status.prompt_tok_s - 25.0).abs() < 1.0, "{status:?}");
    }

    #[test]
    fn a_host_that_rests_has_no_rates() {
        let now = Instant::now();
        let monitor = Monitor::new(Status::default());
        for (seconds_ago, tokens) in [(12, 0), (11, 50)] {
            let at = now.checked_sub(Duration::from_secs(seconds_ago)).unwrap();
            let sample = Sample { at, prompt_tokens: tokens, written_tokens: 0, read_bytes: 0, busy: Duration::ZERO };
            monitor.leave(sample, Vec::new(), |_| ());
        }
        assert_eq!(monitor.status(0, Ended::default()).prompt_tok_s, 0.0);
    }
}
