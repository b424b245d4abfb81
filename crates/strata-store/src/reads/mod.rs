//! Reads that go on beside computation.
//!
//! Owns: what is under way, and how far each read has come. Promises: memory that a read was started into is filled with
//! the wanted range before the read is reported as done; short reads go on, one error of a read is forgiven, the second is
//! reported with file, offset, wanted and got; when no read ends any more, the watchdog reports the oldest.
//! Refuses: to know what is read, or to decide what is read next.

#[cfg(any(test, feature = "faulty-reads"))]
pub mod faulty;
mod files;
mod hand_over;
mod kind;
mod load;
#[cfg(test)]
pub(crate) mod memory;
mod port;
mod threads;
#[cfg(target_os = "linux")]
mod uring;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
pub(crate) use files::reopen_buffered;
pub use kind::{MAX_DEPTH, ReaderKind, open};
pub use load::{Load, Loaded};
pub use port::{Ended, Port, PortRead};

use crate::{PAGE_BYTES, StoreError};

/// The locks of [`hand_over`].
mod locks {
    pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
}

/// A range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// Index of the file.
    pub file: usize,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes of the range.
    pub len_bytes: usize,
}

impl FileRange {
    /// The most bytes of memory that a read of so many bytes needs, wherever in a file they begin.
    pub fn most_window_bytes(len_bytes: usize) -> usize {
        len_bytes.next_multiple_of(PAGE_BYTES) + PAGE_BYTES
    }

    /// Bytes of memory that a read of it needs: the whole pages around it.
    pub fn window_bytes(&self) -> usize {
        (self.shift() + self.len_bytes).next_multiple_of(PAGE_BYTES)
    }

    /// Where in that memory the range begins.
    pub fn shift(&self) -> usize {
        (self.offset % PAGE_BYTES as u64) as usize
    }
}

/// A read that has ended.
#[derive(Debug)]
pub struct Done {
    /// What the caller called it.
    pub tag: u64,
    /// Whether its bytes are there.
    pub result: Result<(), StoreError>,
}

/// Reads under way.
pub struct ReadQueue {
    port: Box<dyn Port>,
    /// Names of the files, for errors.
    files: Vec<PathBuf>,
    /// When nothing has come for so long, the oldest read is reported.
    stuck_after: Duration,
    /// When a read was started or a part of one ended last: a slow drive that still answers is not stuck, however many reads
    /// wait for it.
    moved: Instant,
    /// Since when reads are under way, if any are, and how long there were any before.
    busy_since: Option<Instant>,
    busy: Duration,
    /// Reads under way, for others to look at.
    gauge: Arc<AtomicUsize>,
    reads: Vec<Option<UnderWay>>,
    free: Vec<u32>,
    ended: Vec<Ended>,
}

struct UnderWay {
    tag: u64,
    range: FileRange,
    memory: *mut u8,
    /// Bytes of the window that are there.
    got_bytes: usize,
    /// Where in the window the part that is under way begins.
    part_start: usize,
    retried: bool,
    /// When that part was started.
    since: Instant,
}

// SAFETY: the memory is only written to by the port; see `ReadQueue::start`.
unsafe impl Send for ReadQueue {}

impl ReadQueue {
    /// How long a drive may give nothing before it is reported as stuck.
    pub const STUCK_AFTER: Duration = Duration::from_secs(30);

    /// Reads through `port`, whose files have these names.
    pub fn new(port: Box<dyn Port>, files: Vec<PathBuf>) -> Self {
        let depth = port.depth();
        Self {
            files,
            stuck_after: Self::STUCK_AFTER,
            moved: Instant::now(),
            busy_since: None,
            busy: Duration::ZERO,
            gauge: Arc::default(),
            reads: std::iter::repeat_with(|| None).take(depth).collect(),
            free: (0..depth as u32).rev().collect(),
            ended: Vec::with_capacity(depth),
            port,
        }
    }

    /// The same with another patience than [`STUCK_AFTER`](Self::STUCK_AFTER).
    pub fn with_patience(self, stuck_after: Duration) -> Self {
        Self { stuck_after, ..self }
    }

    /// How it reads, for people.
    pub fn describe(&self) -> String {
        self.port.describe()
    }

    /// Reads that can be started now.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Reads under way.
    pub fn under_way(&self) -> usize {
        self.reads.len() - self.free.len()
    }

    /// Counts the reads under way, for whoever may look while the queue is at work.
    pub fn gauge(&self) -> Arc<AtomicUsize> {
        self.gauge.clone()
    }

    /// Time in which reads were under way.
    pub fn busy(&self) -> Duration {
        self.busy + self.busy_since.map(|since| since.elapsed()).unwrap_or_default()
    }

    /// Starts a read. Of the pages at `memory`, as many as [`FileRange::window_bytes`] says are overwritten; the range
    /// begins at [`FileRange::shift`].
    ///
    /// # Safety
    /// The memory is page-aligned and valid for writing, and nobody else touches it, until the read is done or the queue is
    /// gone.
    ///
    /// # Panics
    /// When there is no [room](Self::room).
    pub unsafe fn start(&mut self, tag: u64, range: FileRange, memory: *mut u8) {
        let id = self.free.pop().expect("room for one more read");
        let since = Instant::now();
        self.busy_since.get_or_insert(since);
        self.gauge.store(self.under_way(), Ordering::Relaxed);
        let read = UnderWay { tag, range, memory, got_bytes: 0, part_start: 0, retried: false, since };
        self.reads[id as usize] = Some(read);
        // SAFETY: this function's own contract.
        unsafe { self.start_rest(id) };
    }

    /// Starts the part of a read that is missing.
    ///
    /// # Safety
    /// As [`start`](Self::start).
    unsafe fn start_rest(&mut self, id: u32) {
        let read = self.reads[id as usize].as_mut().expect("a read under way");
        // Direct reads begin at a page: a part of one that has come is read again.
        read.part_start = read.got_bytes - read.got_bytes % PAGE_BYTES;
        read.since = Instant::now();
        self.moved = read.since;
        let FileRange { file, offset, .. } = read.range;
        let port_read = PortRead {
            id,
            file,
            offset: offset - read.range.shift() as u64 + read.part_start as u64,
            // SAFETY: inside of the window, which the caller has given to this read.
            memory: unsafe { read.memory.add(read.part_start) },
            len_bytes: read.range.window_bytes() - read.part_start,
        };
        // SAFETY: this function's own contract.
        unsafe { self.port.start(port_read) };
    }

    /// Begins all reads that were started, at the latest.
    ///
    /// # Errors
    /// When the system refuses altogether.
    pub fn submit(&mut self) -> Result<(), StoreError> {
        self.port.submit().map_err(|source| self.refused(source))
    }

    /// Appends reads that have ended to `done`; when there are none and `wait` is set, waits for one.
    ///
    /// # Errors
    /// When the system refuses altogether, or no read ends for as long as patience lasts. They go on, then, and their memory
    /// still belongs to them.
    pub fn take(&mut self, wait: bool, done: &mut Vec<Done>) -> Result<(), StoreError> {
        let before = done.len();
        loop {
            let patience = if wait { self.patience() } else { Duration::ZERO };
            let mut ended = std::mem::take(&mut self.ended);
            let result = self.port.take(patience, &mut ended);
            if !ended.is_empty() {
                self.moved = Instant::now();
            }
            for Ended { id, result } in ended.drain(..) {
                if let Some(result) = self.end(id, result) {
                    done.push(result);
                }
            }
            self.ended = ended;
            result.map_err(|source| self.refused(source))?;
            if !wait || done.len() > before || self.under_way() == 0 {
                // What was short goes on.
                return self.submit();
            }
            // Only now: a read may have ended long ago, with nobody looking, and what was short has just been started anew.
            if patience.is_zero() && self.patience().is_zero() {
                return Err(self.stuck());
            }
        }
    }

    /// How long to wait for the next part of a read to end.
    fn patience(&self) -> Duration {
        self.stuck_after.saturating_sub(self.moved.elapsed())
    }

    fn stuck(&self) -> StoreError {
        let oldest = self.reads.iter().flatten().min_by_key(|read| read.since).expect("a read under way");
        StoreError::Stuck {
            file: self.files[oldest.range.file].clone(),
            offset: oldest.range.offset,
            wanted_bytes: oldest.range.len_bytes,
            got_bytes: oldest.got(),
            waited_s: oldest.since.elapsed().as_secs_f64(),
        }
    }

    /// Lets go of memory that is registered for faster reads, for good: it can be given back then.
    ///
    /// # Panics
    /// When a read is under way.
    pub fn forget_memory(&mut self) {
        assert_eq!(self.under_way(), 0, "reads under way");
        self.port.forget_memory();
    }

    /// A part of a read has ended: gives the read's end, or starts what is missing.
    fn end(&mut self, id: u32, result: io::Result<usize>) -> Option<Done> {
        let read = self.reads[id as usize].as_mut().expect("a read under way");
        let wanted_bytes = read.range.shift() + read.range.len_bytes;
        let goes_on = match result {
            Ok(n) => {
                let reached = read.part_start + n;
                // Nothing new came: the end of the file, if it is still so when asked once more. What was asked for began
                // at a page, so that even a read that was cut short may give only what was there before.
                let is_end = n == 0 || reached <= read.got_bytes && std::mem::replace(&mut read.retried, true);
                read.got_bytes = read.got_bytes.max(reached);
                !is_end && read.got_bytes < wanted_bytes
            }
            Err(ref error) if error.kind() == io::ErrorKind::Interrupted => true,
            Err(_) => !std::mem::replace(&mut read.retried, true),
        };
        if goes_on {
            // SAFETY: the read is not done, so that its memory still belongs to it.
            unsafe { self.start_rest(id) };
            return None;
        }
        let read = self.reads[id as usize].take().expect("a read under way");
        self.free.push(id);
        self.gauge.store(self.under_way(), Ordering::Relaxed);
        if self.under_way() == 0 {
            self.busy += self.busy_since.take().map(|since| since.elapsed()).unwrap_or_default();
        }
        let FileRange { file, offset, len_bytes } = read.range;
        let file = || self.files[file].clone();
        let result = match result {
            _ if read.got_bytes >= wanted_bytes => Ok(()),
            Ok(_) => {
                Err(StoreError::EndOfFile { file: file(), offset, wanted_bytes: len_bytes, got_bytes: read.got() })
            }
            Err(source) => {
                Err(StoreError::Read { file: file(), offset, wanted_bytes: len_bytes, got_bytes: read.got(), source })
            }
        };
        Some(Done { tag: read.tag, result })
    }

    fn refused(&self, source: io::Error) -> StoreError {
        StoreError::Port { port: self.port.describe(), source }
    }
}

impl UnderWay {
    /// Bytes of the range that are there.
    fn got(&self) -> usize {
        self.got_bytes.saturating_sub(self.range.shift()).min(self.range.len_bytes)
    }
}

#[cfg(test)]
mod tests;
