//! Threads, and the one way in which several of them write one output.
//!
//! A layer is a chain of dozens of short operations, so what counts is how fast all threads begin one and how fast the
//! caller knows that they ended it. Workers therefore wait in a short loop before they sleep, tasks are taken from a
//! counter, and the caller works like the others; it waits only for workers that are in the middle of a task.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Looks at the signal before a worker without work goes to sleep: some tens of microseconds, about as long as the
/// stretch of a layer that one thread does alone.
const LOOKS_BEFORE_SLEEP: usize = 2_000;

/// A fixed set of threads, the caller's among them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// What one job is, without its lifetime: work that every thread does until there is none left.
type Work = *const (dyn Fn() + Sync);

struct Shared {
    /// Counts jobs; a change is the signal to look for work.
    signal: AtomicUsize,
    /// Whether `work` may be entered.
    is_open: AtomicBool,
    /// Workers that are inside of `work`, or about to find out that it is closed.
    inside: AtomicUsize,
    /// Written by the caller while it is closed, read by workers while it is open.
    work: WorkCell,
    /// Somebody runs a job. Another one then does its work alone.
    is_busy: AtomicBool,
    is_over: AtomicBool,
    /// By worker: it sleeps or is about to.
    is_asleep: Vec<AtomicBool>,
    has_panicked: AtomicBool,
    /// The first panic of a worker, to be passed on by the caller.
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

struct WorkCell(UnsafeCell<Option<Work>>);

// SAFETY: the work it points to is `Sync`. It is written only while the job is closed and by its only caller, and read only
// by workers that are inside and have seen it open; closing waits until they are out.
unsafe impl Send for WorkCell {}
// SAFETY: as above.
unsafe impl Sync for WorkCell {}

impl Pool {
    /// `threads` = 0 takes the number of processors this process may use. Where the system refuses a thread, there are
    /// fewer: that is no reason to stop.
    pub(crate) fn new(threads: usize) -> Self {
        let threads = match threads {
            0 => thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        let shared = Arc::new(Shared {
            signal: AtomicUsize::new(0),
            is_open: AtomicBool::new(false),
            inside: AtomicUsize::new(0),
            work: WorkCell(UnsafeCell::new(None)),
            is_busy: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            is_asleep: (1..threads).map(|_| AtomicBool::new(false)).collect(),
            has_panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let spawn = |index: usize| {
            let shared = shared.clone();
            thread::Builder::new()
                .name(format!("compute-{}", index + 1))
                .spawn(move || shared.work_until_over(index))
                .ok()
        };
        let workers = (0..threads - 1).map_while(spawn).collect();
        Self { shared, workers }
    }

    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(0) .. task(tasks - 1)`, in any order, and waits for all of them. Each thread takes the next task when
    /// it has done one; `init` makes what it keeps between them, at most once a thread. When `small`, the caller's thread
    /// does it all: waking others would cost more.
    ///
    /// # Panics
    /// When a task does.
    pub(crate) fn run<S>(
        &self,
        tasks: usize,
        small: bool,
        init: impl Fn() -> S + Sync,
        task: impl Fn(&mut S, usize) + Sync,
    ) {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut kept = None;
            loop {
                let i = next.fetch_add(1, SeqCst);
                if i >= tasks {
                    return;
                }
                task(kept.get_or_insert_with(&init), i);
            }
        };
        // A job inside of a job, or beside another one: the other threads are taken.
        if self.workers.is_empty() || tasks < 2 || small || self.shared.is_busy.swap(true, SeqCst) {
            return work();
        }
        let job = OpenJob::open(self, &work);
        work();
        drop(job);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.is_over.store(true, SeqCst);
        self.shared.signal.fetch_add(1, SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // Panics of tasks were passed on; a worker itself has nothing to fail at.
            let _ = worker.join();
        }
    }
}

/// A job that workers may enter. Closing it, also when the caller's own work panics, waits until none is inside; then it
/// passes on a worker's panic, unless there is the caller's.
struct OpenJob<'a>(&'a Shared);

impl<'a> OpenJob<'a> {
    fn open(pool: &'a Pool, work: &'a (dyn Fn() + Sync)) -> Self {
        let shared = &*pool.shared;
        // SAFETY: this only forgets the lifetime. The job is closed and left by all workers before `work` ends: that is
        // what dropping this value does, and `run` drops it on every path.
        let work: Work = unsafe { std::mem::transmute::<&'a (dyn Fn() + Sync), &'static (dyn Fn() + Sync)>(work) };
        // SAFETY: the job is closed, and `is_busy` makes this thread its only caller.
        unsafe { *shared.work.0.get() = Some(work) };
        shared.is_open.store(true, SeqCst);
        shared.signal.fetch_add(1, SeqCst);
        for (worker, is_asleep) in pool.workers.iter().zip(&shared.is_asleep) {
            if is_asleep.load(SeqCst) {
                worker.thread().unpark();
            }
        }
        Self(shared)
    }
}

impl Drop for OpenJob<'_> {
    fn drop(&mut self) {
        self.0.is_open.store(false, SeqCst);
        let mut looks = 0;
        while self.0.inside.load(SeqCst) != 0 {
            std::hint::spin_loop();
            looks += 1;
            if looks > LOOKS_BEFORE_SLEEP {
                // More threads than processors: the one that is waited for may need this one.
                thread::yield_now();
            }
        }
        // SAFETY: the job is closed and nobody is inside; who comes in now finds it closed.
        unsafe { *self.0.work.0.get() = None };
        // Taken while no other job can begin: the next one's caller must not find it.
        let panic = self.0.take_panic();
        self.0.is_busy.store(false, SeqCst);
        if let Some(panic) = panic
            && !thread::panicking()
        {
            resume_unwind(panic);
        }
    }
}

impl Shared {
    fn take_panic(&self) -> Option<Box<dyn std::any::Any + Send>> {
        if !self.has_panicked.swap(false, SeqCst) {
            return None;
        }
        self.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn work_until_over(&self, index: usize) {
        let mut seen = 0;
        while !self.is_over.load(SeqCst) {
            seen = self.wait_for_signal(index, seen);
            // Either the caller sees this worker inside and waits, or this worker sees that the job is closed: both
            // sides write before they read, in one order for all threads.
            self.inside.fetch_add(1, SeqCst);
            if self.is_open.load(SeqCst) {
                // SAFETY: the job is open and this worker is inside: nobody writes it.
                let work = unsafe { *self.work.0.get() };
                if let Some(work) = work {
                    // SAFETY: for the same reason the caller keeps `work` alive.
                    let work = unsafe { &*work };
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
                        self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
                        self.has_panicked.store(true, SeqCst);
                    }
                }
            }
            self.inside.fetch_sub(1, SeqCst);
        }
    }

    /// Waits until the signal is not `seen` any more, and returns it.
    fn wait_for_signal(&self, index: usize, seen: usize) -> usize {
        for _ in 0..LOOKS_BEFORE_SLEEP {
            let signal = self.signal.load(SeqCst);
            if signal != seen {
                return signal;
            }
            std::hint::spin_loop();
        }
        // Told before the last look, so that a signal after the look is followed by a wake-up.
        self.is_asleep[index].store(true, SeqCst);
        let signal = loop {
            let signal = self.signal.load(SeqCst);
            if signal != seen {
                break signal;
            }
            thread::park();
        };
        self.is_asleep[index].store(false, SeqCst);
        signal
    }
}

/// A mutable slice that several threads write, each its own ranges.
pub(crate) struct DisjointMut<'a, T> {
    start: *mut T,
    len: usize,
    _slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` whose parts go to several threads; `T: Send` lets the parts move.
unsafe impl<T: Send> Sync for DisjointMut<'_, T> {}

impl<'a, T> DisjointMut<'a, T> {
    /// Takes the slice for as long as parts of it may be written.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), _slice: PhantomData }
    }

    /// The part `at .. at + len`.
    ///
    /// # Panics
    /// When the part is not inside the slice.
    ///
    /// # Safety
    /// No two parts that are alive at one time may overlap.
    #[allow(clippy::mut_from_ref)] // that is its purpose; the caller keeps the parts apart
    pub(crate) unsafe fn part(&self, at: usize, len: usize) -> &mut [T] {
        assert!(at <= self.len && len <= self.len - at, "part {at}+{len} of a slice of {}", self.len);
        // SAFETY: in bounds by the assertion; not aliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_whatever_the_threads() {
        for threads in [1, 2, 5] {
            for small in [false, true] {
                let pool = Pool::new(threads);
                let mut out = vec![0u32; 1000];
                let parts = DisjointMut::new(&mut out);
                pool.run(
                    100,
                    small,
                    || (),
                    |(), i| {
                        // SAFETY: task i alone writes part i.
                        unsafe { parts.part(i * 10, 10) }.iter_mut().for_each(|v| *v += i as u32 + 1);
                    },
                );
                assert!(out.iter().enumerate().all(|(at, v)| *v == at as u32 / 10 + 1));
            }
        }
    }

    #[test]
    fn jobs_follow_each_other_without_pause_or_loss() {
        // Several pools at once, so that threads are also interrupted in the middle of things.
        let (jobs, tasks) = if cfg!(miri) { (20, 3) } else { (20_000, 7) };
        std::thread::scope(|scope| {
            for threads in [2, 3, 8] {
                scope.spawn(move || {
                    let pool = Pool::new(threads);
                    let mut sums = vec![0usize; tasks];
                    for job in 0..jobs {
                        let parts = DisjointMut::new(&mut sums);
                        // SAFETY: task i alone writes part i.
                        pool.run(tasks, false, || (), |(), i| unsafe { parts.part(i, 1) }[0] += job);
                        if job % (jobs / 4) == 0 {
                            // Long enough for the workers to fall asleep.
                            std::thread::sleep(std::time::Duration::from_millis(2));
                        }
                    }
                    assert_eq!(sums, vec![jobs * (jobs - 1) / 2; tasks]);
                });
            }
        });
    }

    #[test]
    fn a_job_inside_or_beside_another_is_done_all_the_same() {
        let pool = Pool::new(3);
        let count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    pool.run(
                        4,
                        false,
                        || (),
                        |(), _| {
                            pool.run(
                                5,
                                false,
                                || (),
                                |(), _| {
                                    count.fetch_add(1, SeqCst);
                                },
                            );
                        },
                    );
                });
            }
        });
        assert_eq!(count.into_inner(), 40);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3);
        for bad in 0..6 {
            let job = || pool.run(6, false, || (), |(), i| assert_ne!(i, bad, "task {bad}"));
            let panic = catch_unwind(AssertUnwindSafe(job)).unwrap_err();
            assert!(panic.downcast_ref::<String>().unwrap().contains(&format!("task {bad}")));
            let count = AtomicUsize::new(0);
            pool.run(
                50,
                false,
                || (),
                |(), _| {
                    count.fetch_add(1, SeqCst);
                },
            );
            assert_eq!(count.into_inner(), 50);
        }
    }

    #[test]
    fn a_panic_reaches_its_own_caller_when_others_wait_for_the_pool() {
        let pool = Pool::new(3);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    pool.run(2, false, || (), |(), _| ());
                }
            });
            let caller = thread::current().id();
            for _ in 0..if cfg!(miri) { 5 } else { 500 } {
                let has_failed = AtomicBool::new(false);
                let task = |(): &mut (), _| {
                    if thread::current().id() != caller {
                        has_failed.store(true, SeqCst);
                        resume_unwind(Box::new("failed"));
                    }
                    thread::yield_now();
                };
                let result = catch_unwind(AssertUnwindSafe(|| pool.run(6, false, || (), task)));
                if result.is_err() != has_failed.load(SeqCst) {
                    is_over.store(true, SeqCst);
                    panic!("a panic was lost");
                }
            }
            is_over.store(true, SeqCst);
        });
    }

    #[test]
    fn parts_may_be_written_by_several_threads_at_once() {
        let mut out = vec![0u32; 30];
        let parts = DisjointMut::new(&mut out);
        std::thread::scope(|scope| {
            for first in 0..3 {
                let parts = &parts;
                // SAFETY: thread `first` alone writes the values `first`, `first + 3`, ...
                scope.spawn(move || (first..30).step_by(3).for_each(|i| unsafe { parts.part(i, 1) }[0] = i as u32));
            }
        });
        assert!(out.iter().copied().eq(0..30));
    }

    #[test]
    #[should_panic(expected = "part 5+6 of a slice of 10")]
    fn a_part_outside_of_the_slice_is_refused() {
        let mut out = [0u8; 10];
        // SAFETY: one part only.
        unsafe { DisjointMut::new(&mut out).part(5, 6) };
    }
}
