//! The seam between the store and what the system offers for reading.

use std::io;
use std::time::Duration;

/// A read that a [`Port`] is to start.
#[derive(Clone, Copy, Debug)]
pub struct PortRead {
    /// Names the read until it has ended; below [`Port::depth`], and used by one read at a time.
    pub id: u32,
    /// Index of the file.
    pub file: usize,
    /// Bytes from the start of the file; a multiple of [`PAGE_BYTES`](crate::PAGE_BYTES).
    pub offset: u64,
    /// Where the bytes go; a multiple of [`PAGE_BYTES`](crate::PAGE_BYTES).
    pub memory: *mut u8,
    /// How many, at most; a multiple of [`PAGE_BYTES`](crate::PAGE_BYTES). At the end of a file there are fewer.
    pub len_bytes: usize,
}

// SAFETY: the memory is only written to by whoever carries the read out; see `Port::start`.
unsafe impl Send for PortRead {}

/// How a read has ended.
#[derive(Debug)]
pub struct Ended {
    /// The read.
    pub id: u32,
    /// Bytes that came, 0 at the end of the file; or what went wrong.
    pub result: io::Result<usize>,
}

/// Starts reads that go on beside computation, and says when they have ended: a thin layer over the system, which neither
/// repeats nor continues a read.
///
/// Dropping a port waits until none of its reads can write to memory any more.
pub trait Port: Send {
    /// What it is, for people: for example `io_uring, direct`.
    fn describe(&self) -> String;

    /// The most reads at a time.
    fn depth(&self) -> usize;

    /// Takes a read; it may begin now or at the next [`submit`](Self::submit) or [`take`](Self::take).
    ///
    /// # Safety
    /// The memory is valid for writing, and nobody else touches it, until the read was taken back or the port is gone.
    unsafe fn start(&mut self, read: PortRead);

    /// Begins all reads that were taken. Does not wait for any.
    ///
    /// # Errors
    /// When the system refuses altogether.
    fn submit(&mut self) -> io::Result<()>;

    /// Begins all reads that were taken, then appends those that have ended to `ended`. When there are none and some are
    /// under way, waits for one, at most for `wait` (zero: not at all).
    ///
    /// # Errors
    /// When the system refuses altogether.
    fn take(&mut self, wait: Duration, ended: &mut Vec<Ended>) -> io::Result<()>;

    /// Lets go of memory that it keeps for faster reads. No read is under way.
    fn forget_memory(&mut self) {}
}
