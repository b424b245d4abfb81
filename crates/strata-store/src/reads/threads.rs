//! Reads by threads that each wait for one read at a time: where there is no `io_uring`, and to compare with.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::hand_over::HandOver;
use super::port::{Ended, Port, PortRead};

/// More threads than this wait for each other: what is above stays in the queue.
const MAX_THREADS: usize = 128;
/// A thread that reads needs little.
const STACK_BYTES: usize = 64 << 10;

/// What a thread reads from.
pub(super) enum Source {
    /// By `pread`.
    File(File),
    /// By copying from a mapping.
    #[cfg(target_os = "linux")]
    Map(File, memmap2::Mmap),
}

/// A port of threads.
pub(super) struct Threads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Reads not yet handed over.
    taken: Vec<PortRead>,
    under_way: usize,
    depth: usize,
    description: String,
}

struct Shared {
    hand_over: HandOver<PortRead, Ended>,
    sources: Vec<Source>,
}

impl Threads {
    /// As many threads as reads at a time.
    pub(super) fn start(sources: Vec<Source>, description: String, depth: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared { hand_over: HandOver::new(depth), sources });
        let threads = Vec::with_capacity(depth.min(MAX_THREADS));
        let mut port = Self { shared, threads, taken: Vec::with_capacity(depth), under_way: 0, depth, description };
        for _ in 0..depth.min(MAX_THREADS) {
            let shared = port.shared.clone();
            let thread = std::thread::Builder::new().name("strata-read".to_owned()).stack_size(STACK_BYTES);
            // When one does not start, dropping the port ends the others.
            port.threads.push(thread.spawn(move || shared.work())?);
        }
        Ok(port)
    }
}

impl Shared {
    fn work(&self) {
        while let Some(read) = self.hand_over.next() {
            // SAFETY: the memory is this read's until it was taken back, or the port is gone, which joins this thread.
            let result = unsafe { self.sources[read.file].read(&read) };
            self.hand_over.finish(Ended { id: read.id, result });
        }
    }
}

impl Source {
    /// The file, mapped.
    #[cfg(target_os = "linux")]
    pub(super) fn map(file: File) -> io::Result<Self> {
        // SAFETY: nothing is ever borrowed from the mapping; its bytes are copied by raw pointers, so that it does not
        // matter who writes to the file meanwhile.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self::Map(file, map))
    }

    /// Carries a read out.
    ///
    /// # Safety
    /// The read's memory is valid for writing, and nobody else touches it.
    unsafe fn read(&self, read: &PortRead) -> io::Result<usize> {
        match self {
            Self::File(file) => {
                let offset = libc::off_t::try_from(read.offset).map_err(|_| io::ErrorKind::InvalidInput)?;
                // SAFETY: this function's own contract.
                let n = unsafe { libc::pread(file.as_raw_fd(), read.memory.cast(), read.len_bytes, offset) };
                usize::try_from(n).map_err(|_| io::Error::last_os_error())
            }
            #[cfg(target_os = "linux")]
            Self::Map(file, map) => {
                // Beyond the file's end, pages of a mapping kill the process.
                let end = file.metadata()?.len().min(map.len() as u64);
                let len_bytes = end.saturating_sub(read.offset).min(read.len_bytes as u64) as usize;
                if len_bytes == 0 {
                    return Ok(0);
                }
                let start = read.offset as usize;
                // Brings the pages in, and says what is wrong where the copy would die of it. Kernels that do not know it
                // leave it to the copy.
                match map.advise_range(memmap2::Advice::PopulateRead, start, len_bytes) {
                    Err(error) if error.raw_os_error() != Some(libc::EINVAL) => return Err(error),
                    _ => {}
                }
                // SAFETY: inside of the mapping; the memory is as this function's contract says.
                unsafe { read.memory.copy_from_nonoverlapping(map.as_ptr().add(start), len_bytes) };
                Ok(len_bytes)
            }
        }
    }
}

impl Port for Threads {
    fn describe(&self) -> String {
        self.description.clone()
    }

    fn depth(&self) -> usize {
        self.depth
    }

    unsafe fn start(&mut self, read: PortRead) {
        self.taken.push(read);
        self.under_way += 1;
    }

    fn submit(&mut self) -> io::Result<()> {
        self.shared.hand_over.give(&mut self.taken);
        Ok(())
    }

    fn take(&mut self, wait: Duration, ended: &mut Vec<Ended>) -> io::Result<()> {
        self.submit()?;
        let wait = if self.under_way > 0 { wait } else { Duration::ZERO };
        let before = ended.len();
        self.shared.hand_over.collect(wait, ended);
        self.under_way -= ended.len() - before;
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.hand_over.close();
        for thread in self.threads.drain(..) {
            // A thread that panicked does not write any more either.
            let _ = thread.join();
        }
    }
}
