//! Ends requests without progress, and says what the model's thread waits for.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::desk::{Desk, lock};
use super::{Event, Failure, FailureKind};

/// What the model's thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// It waits for requests.
    Waiting,
    /// It reads a layer of a prompt.
    Reading {
        /// Number of the request.
        request: u64,
    },
    /// A step of all texts that are written.
    Writing {
        /// How many.
        texts: usize,
    },
    /// It makes itself ready for requests.
    Arranging,
}

#[derive(Clone, Copy)]
struct State {
    doing: Doing,
    /// The layer that it did last, in this pass.
    layer: Option<usize>,
    since: Instant,
}

/// The thread's own words on what it does.
pub(super) struct Now {
    state: Mutex<State>,
    /// Reads under way.
    reads: Arc<AtomicUsize>,
}

impl Now {
    /// Where somebody counts reads under way.
    pub(super) fn new(reads: Arc<AtomicUsize>) -> Self {
        Self { state: Mutex::new(State { doing: Doing::Waiting, layer: None, since: Instant::now() }), reads }
    }

    pub(super) fn is(&self, doing: Doing) {
        *lock(&self.state) = State { doing, layer: None, since: Instant::now() };
    }

    /// It did one more layer.
    pub(super) fn did(&self, layer: usize) {
        let mut state = lock(&self.state);
        (state.layer, state.since) = (Some(layer), Instant::now());
    }

    /// Since when it has made no progress; `None`: there is nothing to do.
    fn still_since(&self) -> Option<Instant> {
        let state = lock(&self.state);
        (state.doing != Doing::Waiting).then_some(state.since)
    }

    /// In words.
    fn describe(&self) -> String {
        let State { doing, layer, since } = *lock(&self.state);
        let what = match doing {
            Doing::Waiting => "waits for requests".to_owned(),
            Doing::Reading { request } => format!("reads the prompt of request {request}"),
            Doing::Writing { texts } => format!("writes the next token of {texts} texts"),
            Doing::Arranging => "makes room for requests".to_owned(),
        };
        let layer = layer.map(|layer| format!(", behind layer {layer}")).unwrap_or_default();
        let seconds = since.elapsed().as_secs_f64();
        let reads = self.reads.load(Ordering::Relaxed);
        format!("the model's thread {what}{layer}, since {seconds:.1} s; {reads} reads are under way")
    }
}

/// Looks after the lines until the model's thread has ended.
pub(super) fn watch(desk: &Arc<Desk>, now: &Now, stall_after: Duration) {
    let pause = (stall_after / 8).clamp(Duration::from_millis(5), Duration::from_secs(1));
    while desk.nap(pause) {
        let (at_work, waiting) = desk.lines();
        // Who waits in the queue waits for the others, unless nothing moves at all.
        let host_since = now.still_since().unwrap_or_else(Instant::now);
        let at_work = at_work.iter().map(|line| (line, line.still_since()));
        let waiting = waiting.iter().map(|line| (line, line.still_since().max(host_since)));
        for (line, since) in at_work.chain(waiting) {
            if since.elapsed() < stall_after {
                continue;
            }
            let doing = now.describe();
            eprintln!(
                "strata: request {} is ended: no progress for {:.1} s; {doing}",
                line.id,
                since.elapsed().as_secs_f64()
            );
            let message = format!(
                "no layer and no token was done for {:.1} s, so the request was ended: {doing}",
                since.elapsed().as_secs_f64()
            );
            desk.end(line, Some(Event::Failed(Failure { kind: FailureKind::Stalled, message })));
        }
    }
}
