//! Work handed to threads that sleep until there is some, and what comes of it handed back.
//!
//! Promises: what was given is taken by one worker, once; what was finished is collected once; a worker that finds nothing
//! sleeps and is woken; after [`HandOver::close`] no work begins. It is checked under many interleavings of threads, with
//! the locks of a model checker in the place of the system's: they come from the module above.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::locks::{Condvar, Mutex, MutexGuard};

pub(super) struct HandOver<W, R> {
    state: Mutex<State<W, R>>,
    /// There is work, or there will never be any again.
    work: Condvar,
    /// There are results.
    result: Condvar,
}

struct State<W, R> {
    work: VecDeque<W>,
    results: Vec<R>,
    is_closed: bool,
}

impl<W, R> HandOver<W, R> {
    /// With room for so much work at a time before memory is asked for.
    pub(super) fn new(room: usize) -> Self {
        let state = State { work: VecDeque::with_capacity(room), results: Vec::with_capacity(room), is_closed: false };
        Self { state: Mutex::new(state), work: Condvar::new(), result: Condvar::new() }
    }

    /// Hands out work, in this order; `work` is empty then.
    pub(super) fn give(&self, work: &mut Vec<W>) {
        let count = work.len();
        self.lock().work.extend(work.drain(..));
        // Not all of them: most would find nothing.
        for _ in 0..count {
            self.work.notify_one();
        }
    }

    /// A worker's next piece of work; waits for it. `None`: there will be none.
    pub(super) fn next(&self) -> Option<W> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(work) = state.work.pop_front() {
                return Some(work);
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What came of a piece of work.
    pub(super) fn finish(&self, result: R) {
        self.lock().results.push(result);
        self.result.notify_one();
    }

    /// Appends results to `results`; when there are none, waits for one, at most for `wait`.
    pub(super) fn collect(&self, wait: Duration, results: &mut Vec<R>) {
        let mut state = self.lock();
        if state.results.is_empty() && !wait.is_zero() {
            let until = Instant::now() + wait;
            while state.results.is_empty() {
                let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                    break;
                };
                state = self.result.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        results.append(&mut state.results);
    }

    /// Sends the workers home. Work that nobody has begun is dropped.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.work.clear();
        drop(state);
        self.work.notify_all();
    }

    /// State is changed in single steps: what a thread that panicked left behind is whole.
    fn lock(&self) -> MutexGuard<'_, State<W, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
