//! What is kept of a request: one line for people, counts for monitors, and no texts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use strata_engine::host::Outcome;

use crate::metrics::Metrics;
use crate::problem::Problem;

/// A request from its arrival until the last byte of its response was handed over, or its client went away.
pub(crate) struct Record {
    /// From 1; the response has it, too.
    number: u64,
    method: String,
    /// As a pattern: strangers' words are not logged.
    path: String,
    start: Instant,
    metrics: Arc<Metrics>,
    is_logged: bool,
    written: AtomicU64,
    ending: Mutex<Ending>,
}

#[derive(Default)]
struct Ending {
    status: u16,
    /// Whether an answer was begun.
    has_answer: bool,
    outcome: Option<Outcome>,
    problem: Option<String>,
}

impl Record {
    pub(crate) fn new(number: u64, method: &str, path: &str, metrics: Arc<Metrics>, is_logged: bool) -> Arc<Self> {
        Arc::new(Self {
            number,
            method: method.to_owned(),
            path: path.to_owned(),
            start: Instant::now(),
            metrics,
            is_logged,
            written: AtomicU64::new(0),
            ending: Mutex::default(),
        })
    }

    fn ending(&self) -> std::sync::MutexGuard<'_, Ending> {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn responded(&self, status: u16) {
        self.ending().status = status;
    }

    pub(crate) fn began(&self) {
        self.ending().has_answer = true;
    }

    pub(crate) fn wrote(&self) {
        self.written.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn done(&self, outcome: &Outcome) {
        self.ending().outcome = Some(Outcome { text: String::new(), ..outcome.clone() });
    }

    /// What a client did wrong is told by its field: the message may have its words.
    pub(crate) fn failed(&self, problem: &Problem) {
        let field = problem.field.as_ref().map_or_else(String::new, |field| format!(" `{field}`"));
        self.ending().problem = Some(match problem.status().is_server_error() {
            true => problem.message.clone(),
            false => format!("{:?}{field}", problem.kind),
        });
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let elapsed = self.start.elapsed();
        let written = *self.written.get_mut();
        let ending = std::mem::take(self.ending.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.metrics.responded(&self.path, ending.status, elapsed);
        if let Some(outcome) = &ending.outcome {
            self.metrics.first_token(outcome.queue_time + outcome.prompt_time);
        }
        if !self.is_logged {
            return;
        }
        let said = match (&ending.outcome, &ending.problem) {
            (Some(outcome), _) => describe(outcome),
            (None, Some(problem)) => format!(", {problem}"),
            (None, None) if ending.has_answer || ending.status == 0 => format!(", given up after {written} tokens"),
            (None, None) => String::new(),
        };
        let Self { number, method, path, .. } = self;
        note(&format!("#{number} {method} {path} {} {:.3} s{said}", ending.status, elapsed.as_secs_f64()));
    }
}

fn describe(outcome: &Outcome) -> String {
    let seconds = |time: Duration| time.as_secs_f64();
    format!(
        ", prompt {} ({} known) {:.3} s, written {} {:.3} s, queue {:.3} s",
        outcome.prompt_tokens,
        outcome.reused_tokens,
        seconds(outcome.prompt_time),
        outcome.written_tokens,
        seconds(outcome.decode_time),
        seconds(outcome.queue_time),
    )
}

/// A line on standard error: never a reason to fail.
pub(crate) fn note(text: &str) {
    use std::io::Write;
    let visible: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(2_000).collect();
    let _ = writeln!(std::io::stderr(), "strata: {visible}");
}
