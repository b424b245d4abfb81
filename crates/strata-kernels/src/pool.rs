//! Threads, and the one way in which several of them write one output.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A fixed set of threads.
pub(crate) struct Pool {
    /// `None`: everything runs on the caller's thread.
    workers: Option<rayon::ThreadPool>,
}

impl Pool {
    /// `threads` = 0 takes the number of processors this process may use.
    pub(crate) fn new(threads: usize) -> Self {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        // Without workers the kernels still work, on one thread: a system that refuses threads is no reason to stop.
        let workers = (threads > 1)
            .then(|| {
                rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("compute-{i}")).build()
            })
            .and_then(Result::ok);
        Self { workers }
    }

    pub(crate) fn threads(&self) -> usize {
        self.workers.as_ref().map_or(1, rayon::ThreadPool::current_num_threads)
    }

    /// Runs `task(0) .. task(tasks - 1)`, in any order, and waits for all of them. Each thread takes the next task when
    /// it has done one; `init` makes what it keeps between them. When `small`, the caller's thread does it all: waking others would cost more.
    pub(crate) fn run<S>(
        &self,
        tasks: usize,
        small: bool,
        init: impl Fn() -> S + Sync,
        task: impl Fn(&mut S, usize) + Sync,
    ) {
        match &self.workers {
            Some(workers) if tasks > 1 && !small => {
                let next = AtomicUsize::new(0);
                let take_tasks = || {
                    let mut kept = None;
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        if i >= tasks {
                            return;
                        }
                        task(kept.get_or_insert_with(&init), i);
                    }
                };
                workers.scope(|scope| {
                    (0..self.threads().min(tasks)).for_each(|_| scope.spawn(|_| take_tasks()));
                });
            }
            _ => {
                let mut kept = init();
                (0..tasks).for_each(|i| task(&mut kept, i));
            }
        }
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
        // Miri finds fault with the memory reclamation of the library behind the threads.
        let counts: &[usize] = if cfg!(miri) { &[1] } else { &[1, 2, 5] };
        for &threads in counts {
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
