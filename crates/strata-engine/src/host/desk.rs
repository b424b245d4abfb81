//! What those who ask, the model's thread and the watchdog share: the queue, and a line to everyone who asked.
//!
//! Promises: a line ends once, whoever ends it: with an answer, with a failure, or because nobody listens any more.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{Event, Failure, FailureKind, Request};

/// A way to tell who asked.
pub(super) struct Line {
    /// Number of the request, from 1.
    pub(super) id: u64,
    /// When it was asked.
    pub(super) asked: Instant,
    is_over: AtomicBool,
    state: Mutex<LineState>,
}

struct LineState {
    /// `None`: it is over.
    events: Option<UnboundedSender<Event>>,
    /// When there was progress last.
    moved: Instant,
}

impl Line {
    /// Whether nobody waits for anything more.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// There was progress.
    pub(super) fn moves(&self) {
        lock(&self.state).moved = Instant::now();
    }

    /// There was progress, and it is told.
    pub(super) fn tell(&self, event: Event) {
        let mut state = lock(&self.state);
        state.moved = Instant::now();
        if let Some(events) = &state.events {
            // Who dropped the receiver says so.
            let _ = events.send(event);
        }
    }

    pub(super) fn still_since(&self) -> Instant {
        lock(&self.state).moved
    }

    /// Ends it; `false`: it was over already.
    fn end(&self, last: Option<Event>) -> bool {
        self.is_over.store(true, Ordering::Relaxed);
        match (lock(&self.state).events.take(), last) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(events), Some(last)) => {
                let _ = events.send(last);
                true
            }
        }
    }
}

/// What a host tells of one request. Who drops it gives the request up.
pub struct Answer {
    desk: Arc<Desk>,
    line: Arc<Line>,
    events: UnboundedReceiver<Event>,
}

impl Answer {
    /// Number of the request, from 1.
    pub fn id(&self) -> u64 {
        self.line.id
    }

    /// The next event; `None` after the last one.
    pub async fn recv(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// The next event, if it has come already.
    pub fn try_recv(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// [`recv`](Self::recv) for threads that may wait.
    ///
    /// # Panics
    /// Inside of an asynchronous runtime.
    pub fn recv_blocking(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.desk.end(&self.line, None);
    }
}

/// A request and the line to who asked it.
pub(super) type Asked = (Arc<Line>, Request);

/// How requests ended.
#[derive(Clone, Copy, Default)]
pub(super) struct Ended {
    pub(super) done: u64,
    pub(super) cancelled: u64,
    pub(super) failed: u64,
}

struct State {
    waiting: VecDeque<Asked>,
    /// Lines that are not over, of requests that wait no more.
    at_work: Vec<Arc<Line>>,
    asked: u64,
    ended: Ended,
    /// No more requests are taken.
    is_closing: bool,
    /// The model's thread has ended.
    is_gone: bool,
}

pub(super) struct Desk {
    state: Mutex<State>,
    /// Something was asked, ended or closed.
    changed: Condvar,
}

impl Desk {
    pub(super) fn new() -> Self {
        let state = State {
            waiting: VecDeque::new(),
            at_work: Vec::new(),
            asked: 0,
            ended: Ended::default(),
            is_closing: false,
            is_gone: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Puts a request into the queue, where at most `most` wait.
    pub(super) fn ask(self: &Arc<Self>, request: Request, most: usize) -> Result<Answer, Failure> {
        let mut state = lock(&self.state);
        if state.is_closing {
            return Err(closing());
        }
        if state.waiting.len() >= most {
            let message = format!("{most} requests wait already, which is the most: try again later");
            return Err(Failure { kind: FailureKind::Busy, message });
        }
        state.asked += 1;
        let (sender, events) = unbounded_channel();
        let asked = Instant::now();
        let line = LineState { events: Some(sender), moved: asked };
        let line = Arc::new(Line { id: state.asked, asked, is_over: AtomicBool::new(false), state: Mutex::new(line) });
        state.waiting.push_back((line.clone(), request));
        self.changed.notify_all();
        Ok(Answer { desk: self.clone(), line, events })
    }

    /// The first that waits and of which `fits` is true: it is at work from now on.
    pub(super) fn take(&self, mut fits: impl FnMut(&Request) -> bool) -> Option<Asked> {
        let mut state = lock(&self.state);
        let at = state.waiting.iter().position(|(_, request)| fits(request))?;
        let asked = state.waiting.remove(at)?;
        asked.0.moves();
        state.at_work.push(asked.0.clone());
        Some(asked)
    }

    /// Waits until something is asked. `false`: nothing will be.
    pub(super) fn wait(&self) -> bool {
        let mut state = lock(&self.state);
        while state.waiting.is_empty() {
            if state.is_closing {
                return false;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// Ends a line with its last event; `None`: who asked has given up.
    pub(super) fn end(&self, line: &Arc<Line>, last: Option<Event>) {
        self.end_in(&mut lock(&self.state), line, last);
    }

    fn end_in(&self, state: &mut State, line: &Arc<Line>, last: Option<Event>) {
        let kind = match last {
            None => |ended: &mut Ended| ended.cancelled += 1,
            Some(Event::Failed(_)) => |ended: &mut Ended| ended.failed += 1,
            Some(_) => |ended: &mut Ended| ended.done += 1,
        };
        if line.end(last) {
            kind(&mut state.ended);
            state.waiting.retain(|(other, _)| !Arc::ptr_eq(other, line));
            state.at_work.retain(|other| !Arc::ptr_eq(other, line));
            self.changed.notify_all();
        }
    }

    /// Ends all lines: those that wait, and those at work if `at_work` is set.
    fn end_all(&self, state: &mut State, at_work: bool, why: &Failure) {
        let mut lines: Vec<_> = state.waiting.iter().map(|(line, _)| line.clone()).collect();
        lines.extend(state.at_work.iter().filter(|_| at_work).cloned());
        lines.iter().for_each(|line| self.end_in(state, line, Some(Event::Failed(why.clone()))));
    }

    /// Lines of requests at work and of those that wait, which are not over.
    pub(super) fn lines(&self) -> (Vec<Arc<Line>>, Vec<Arc<Line>>) {
        let state = lock(&self.state);
        (state.at_work.clone(), state.waiting.iter().map(|(line, _)| line.clone()).collect())
    }

    /// Requests that wait, and how others ended.
    pub(super) fn counts(&self) -> (usize, Ended) {
        let state = lock(&self.state);
        (state.waiting.len(), state.ended)
    }

    /// Takes no more requests, and ends those that wait. Those at work may go on for so long; then they end, too. `false`: even
    /// then the model's thread did not end for as long as `patience`.
    pub(super) fn close(&self, grace: Duration, patience: Duration) -> bool {
        let mut state = lock(&self.state);
        state.is_closing = true;
        self.changed.notify_all();
        self.end_all(&mut state, false, &closing());
        let until = Instant::now() + grace;
        state = self.wait_until(state, until, |state| state.is_gone || state.at_work.is_empty());
        let message =
            format!("the server is shutting down, and the {:.0} s for answers under way are over", grace.as_secs_f64());
        self.end_all(&mut state, true, &Failure { kind: FailureKind::Closing, message });
        self.wait_until(state, until.max(Instant::now()) + patience, |state| state.is_gone).is_gone
    }

    fn wait_until<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        until: Instant,
        is_enough: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        while !is_enough(&state) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    /// The model's thread has ended: by itself, or by a fault in the program.
    pub(super) fn gone(&self) {
        let mut state = lock(&self.state);
        let message = "the thread that runs the model has ended by a fault of this program".to_owned();
        self.end_all(&mut state, true, &Failure { kind: FailureKind::Internal, message });
        (state.is_closing, state.is_gone) = (true, true);
        self.changed.notify_all();
    }

    /// Waits for so long; `false`: the model's thread has ended.
    pub(super) fn nap(&self, time: Duration) -> bool {
        !self.wait_until(lock(&self.state), Instant::now() + time, |state| state.is_gone).is_gone
    }
}

fn closing() -> Failure {
    let message = "the server is shutting down: it takes no more requests".to_owned();
    Failure { kind: FailureKind::Closing, message }
}

/// Whoever panicked did not leave anything half done here.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
