//! A port over files in memory, for tests of what lies above it.
//!
//! Promises: reads end in an order by chance, as many at a time as chance says, and not while they are held; behind the
//! end of a file, and where a read failed, there is poison.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::{Ended, Port, PortRead, ReadQueue};

/// What memory holds before anything is read into it, and where a read brought nothing.
pub(crate) const POISON: u8 = 0xa5;

/// The files of a port, and what it is to do.
#[derive(Clone)]
pub(crate) struct Files(Arc<Mutex<State>>);

struct State {
    contents: Vec<Vec<u8>>,
    is_held: bool,
    /// Bytes of file 0 whose reads fail.
    bad: Option<Range<usize>>,
    /// File and bytes of every read, in the order in which they were started.
    reads: Vec<(usize, Range<usize>)>,
}

impl Files {
    pub(crate) fn new(contents: Vec<Vec<u8>>) -> Self {
        Self(Arc::new(Mutex::new(State { contents, is_held: false, bad: None, reads: Vec::new() })))
    }

    /// Files of these lengths, whose bytes tell where they are.
    pub(crate) fn of_lens(lens: &[usize]) -> Self {
        // Eight bytes at a time, for Miri's sake.
        let file = |(file, len): (u64, &usize)| {
            let mut bytes = Vec::with_capacity(len + 8);
            while bytes.len() < *len {
                let place = (bytes.len() as u64 + file).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                bytes.extend_from_slice(&place.to_le_bytes());
            }
            bytes.truncate(*len);
            bytes
        };
        Self::new((0..).zip(lens).map(file).collect())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn bytes(&self, file: usize, range: Range<usize>) -> Vec<u8> {
        self.state().contents[file][range].to_vec()
    }

    /// No read ends until this is taken back.
    pub(crate) fn hold(&self, is_held: bool) {
        self.state().is_held = is_held;
    }

    /// Reads of these bytes of file 0 fail.
    pub(crate) fn spoil(&self, bad: Option<Range<usize>>) {
        self.state().bad = bad;
    }

    /// The reads that were started since this was last asked.
    pub(crate) fn take_reads(&self) -> Vec<(usize, Range<usize>)> {
        std::mem::take(&mut self.state().reads)
    }

    /// Reads through a port of these files, so many at a time.
    pub(crate) fn queue(&self, depth: usize, seed: u64) -> ReadQueue {
        let names = (0..self.state().contents.len()).map(|file| PathBuf::from(format!("{file}.gguf"))).collect();
        let port = Memory { files: self.clone(), under_way: Vec::new(), depth, random: seed | 1 };
        let patience = if cfg!(miri) { Duration::from_secs(3600) } else { Duration::from_millis(200) };
        ReadQueue::new(Box::new(port), names).with_patience(patience)
    }
}

struct Memory {
    files: Files,
    under_way: Vec<PortRead>,
    depth: usize,
    random: u64,
}

impl Memory {
    fn below(&mut self, limit: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % limit
    }
}

/// Carries a read out.
fn read(state: &State, read: &PortRead) -> io::Result<usize> {
    let (from, to) = (read.offset as usize, read.offset as usize + read.len_bytes);
    // SAFETY: the memory is this read's until it is reported.
    let window = unsafe { std::slice::from_raw_parts_mut(read.memory, read.len_bytes) };
    window.fill(POISON);
    if let Some(bad) = state.bad.as_ref().filter(|bad| read.file == 0 && bad.start < to && from < bad.end) {
        return Err(io::Error::other(format!("bytes {bad:?} are bad")));
    }
    let content = &state.contents[read.file];
    let content = &content[content.len().min(from)..content.len().min(to)];
    window[..content.len()].copy_from_slice(content);
    Ok(content.len())
}

impl Port for Memory {
    fn describe(&self) -> String {
        "memory".to_owned()
    }

    fn depth(&self) -> usize {
        self.depth
    }

    unsafe fn start(&mut self, read: PortRead) {
        assert!(self.under_way.iter().all(|other| other.id != read.id));
        let range = read.offset as usize..read.offset as usize + read.len_bytes;
        self.files.state().reads.push((read.file, range));
        self.under_way.push(read);
    }

    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn take(&mut self, wait: Duration, ended: &mut Vec<Ended>) -> io::Result<()> {
        let files = self.files.clone();
        let state = files.state();
        if state.is_held {
            drop(state);
            std::thread::sleep(wait.min(Duration::from_millis(5)));
            return Ok(());
        }
        // With nobody waiting, there may be none.
        let least = usize::from(!wait.is_zero()).min(self.under_way.len());
        for _ in 0..least.max(self.below(4)).min(self.under_way.len()) {
            let at = self.below(self.under_way.len());
            let next = self.under_way.swap_remove(at);
            ended.push(Ended { id: next.id, result: read(&state, &next) });
        }
        Ok(())
    }
}
