//! Reads for the sake of their time, into memory that nobody looks at.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Done, FileRange, ReadQueue, ReaderKind, open};
use crate::{Area, PAGE_BYTES, StoreError};

/// A drive under a load of reads.
pub struct Load {
    queue: ReadQueue,
    /// After the queue, which may still write to it.
    area: Arc<Area>,
}

/// A read that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// When it was started, since the first one was.
    pub started: Duration,
    /// When it had ended.
    pub ended: Duration,
}

impl Load {
    /// Reads `files` by `kind`, at most `depth` at a time, and `memory_bytes` in all.
    ///
    /// # Errors
    /// As [`open`], and when there is no memory.
    ///
    /// # Panics
    /// When `depth` is out of range.
    pub fn open(
        kind: ReaderKind,
        files: &[(PathBuf, File)],
        depth: usize,
        memory_bytes: usize,
    ) -> Result<Self, StoreError> {
        let area = Arc::new(Area::allocate(memory_bytes).ok_or(StoreError::NoMemory { bytes: memory_bytes })?);
        let port = open(kind, files, std::slice::from_ref(&area), depth)?;
        let names = files.iter().map(|(path, _)| path.clone()).collect();
        Ok(Self { queue: ReadQueue::new(port, names), area })
    }

    /// How it reads, for people.
    pub fn describe(&self) -> String {
        self.queue.describe()
    }

    /// Reads what `next` says, always `depth` ranges at a time, until it says no more; gives the reads in the order in
    /// which they ended.
    ///
    /// # Errors
    /// When a read fails. Those that are under way still end.
    ///
    /// # Panics
    /// When `depth` is more than there is room for, or ranges are longer than their shares of the memory.
    pub fn run(
        &mut self,
        depth: usize,
        mut next: impl FnMut() -> Option<FileRange>,
    ) -> Result<Vec<Loaded>, StoreError> {
        let share_bytes = self.area.len_bytes() / depth / PAGE_BYTES * PAGE_BYTES;
        let begin = Instant::now();
        let mut started = vec![Duration::ZERO; depth];
        let mut free: Vec<usize> = (0..depth).rev().collect();
        let (mut loaded, mut done): (Vec<Loaded>, Vec<Done>) = (Vec::new(), Vec::new());
        let (mut failure, mut is_over) = (None, false);
        loop {
            while !is_over && let Some(share) = free.pop() {
                let Some(range) = next() else {
                    is_over = true;
                    break;
                };
                assert!(range.window_bytes() <= share_bytes, "{range:?} in {share_bytes} bytes");
                started[share] = begin.elapsed();
                // SAFETY: this share of the area is not another read's, since it was free. The area outlives the queue.
                unsafe { self.queue.start(share as u64, range, self.area.start().add(share * share_bytes)) };
            }
            self.queue.submit()?;
            if self.queue.under_way() == 0 {
                return failure.map_or(Ok(loaded), Err);
            }
            self.queue.take(true, &mut done)?;
            let ended = begin.elapsed();
            for Done { tag, result } in done.drain(..) {
                free.push(tag as usize);
                match result {
                    Ok(()) => loaded.push(Loaded { started: started[tag as usize], ended }),
                    Err(error) => (failure, is_over) = (Some(error), true),
                }
            }
        }
    }
}
