//! A port that lets drives fail or be slow, for tests.
//!
//! Promises: the same seed, rules and reads give the same faults, but for the order and time in which reads end, which
//! depend on the port below. What is reported as read is what that port read. Faults can change while a port reads.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::port::{Ended, Port, PortRead};
use crate::PAGE_BYTES;

/// What becomes of a part of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An error of the drive (`EIO`), without reading.
    Error,
    /// Fewer bytes than were asked for, by chance; at least a page, so that there is progress.
    Short,
    /// No bytes, as if the file ended.
    Zero,
    /// Nothing is heard of it, until the faults change or the port is dropped.
    Stuck,
    /// It comes late, by chance up to so much.
    Late(Duration),
}

/// Which reads a fault strikes.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Index of the file.
    pub file: usize,
    /// Parts that touch these bytes of it.
    pub bytes: Range<u64>,
    /// One in so many of them, by chance; 1 = each.
    pub one_in: u32,
    /// How many times at most; `u32::MAX` = always.
    pub times: u32,
    /// What happens.
    pub fault: Fault,
}

/// What goes wrong in all ports that were made with it, or with a clone of it.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    rules: Vec<Rule>,
    /// Whether the system refuses to read at all.
    refuses: bool,
    /// Bytes a second of a slow drive, which carries out one read after the other.
    bytes_per_second: Option<f64>,
    /// When that drive has done all that it was given.
    idle_from: Option<Instant>,
    /// Counts how often the rules were changed.
    changes: u64,
}

impl Faults {
    /// From now on these: of the rules that fit a part of a read, the first strikes. Reads that were stuck go on.
    pub fn set(&self, rules: Vec<Rule>) {
        let mut state = self.state();
        state.rules = rules;
        state.changes += 1;
    }

    /// From now on the system refuses to read at all, or does so no more.
    pub fn refuse(&self, refuses: bool) {
        self.state().refuses = refuses;
    }

    /// From now on all reads together bring no more than so many bytes a second, as if from one drive that carries out one
    /// after the other; `None`: as many as there are.
    pub fn slow_down(&self, bytes_per_second: Option<f64>) {
        let mut state = self.state();
        (state.bytes_per_second, state.idle_from) = (bytes_per_second, None);
    }

    /// When the slow drive, if it is one, has done a read that is started now.
    fn done_at(&self, len_bytes: usize) -> Option<Instant> {
        let mut state = self.state();
        let seconds = len_bytes as f64 / state.bytes_per_second?;
        let now = Instant::now();
        let begin = state.idle_from.map_or(now, |idle_from| idle_from.max(now));
        state.idle_from = Some(begin + Duration::from_secs_f64(seconds));
        state.idle_from
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> io::Result<()> {
        if self.state().refuses { Err(io::Error::from_raw_os_error(libc::ENXIO)) } else { Ok(()) }
    }
}

/// A port with faults. Reads that end at about the same time are reported in an order by chance.
pub struct Faulty {
    inner: Box<dyn Port>,
    faults: Faults,
    random: u64,
    /// Of each read under way, what it is to become; by id.
    planned: Vec<Option<Fault>>,
    /// Of each read under way, when it may end at the earliest; by id.
    not_before: Vec<Option<Instant>>,
    /// Ends that are held back.
    late: Vec<(Instant, Ended)>,
    /// Reads under way in the port below.
    inside: usize,
    /// Reads that nothing is heard of, since the rules were changed for so many times.
    stuck: Vec<PortRead>,
    changes: u64,
}

impl Faulty {
    /// `inner` with these faults.
    pub fn new(inner: Box<dyn Port>, seed: u64, faults: &Faults) -> Self {
        let planned = vec![None; inner.depth()];
        let not_before = vec![None; inner.depth()];
        // Small seeds begin with small numbers: they are spread.
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let (faults, changes) = (faults.clone(), faults.state().changes);
        Self { inner, faults, random, planned, not_before, late: Vec::new(), inside: 0, stuck: Vec::new(), changes }
    }

    /// A number below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % limit.max(1)
    }

    fn fault(&mut self, read: &PortRead) -> Option<Fault> {
        let end = read.offset + read.len_bytes as u64;
        let faults = self.faults.clone();
        for rule in &mut faults.state().rules {
            let touches = rule.file == read.file && rule.bytes.start < end && read.offset < rule.bytes.end;
            if touches && rule.times > 0 && self.below(rule.one_in.into()) == 0 {
                rule.times = if rule.times == u32::MAX { u32::MAX } else { rule.times - 1 };
                return Some(rule.fault);
            }
        }
        None
    }

    /// What was stuck goes on when the faults have changed.
    fn release(&mut self) {
        let changes = self.faults.state().changes;
        if changes != self.changes {
            self.changes = changes;
            for read in std::mem::take(&mut self.stuck) {
                self.inside += 1;
                // SAFETY: the read was taken and has not been reported: its memory is still its own.
                unsafe { self.inner.start(read) };
            }
        }
    }

    /// Appends what is late no longer.
    fn take_late(&mut self, ended: &mut Vec<Ended>) {
        let now = Instant::now();
        while let Some(at) = self.late.iter().position(|(due, _)| *due <= now) {
            ended.push(self.late.swap_remove(at).1);
        }
    }

    /// A read of the port below has ended.
    fn end(&mut self, end: Ended) {
        let Ended { id, mut result } = end;
        let now = Instant::now();
        let due = match self.planned[id as usize].take() {
            Some(Fault::Short) => {
                result = result.map(|n| match n.checked_sub(PAGE_BYTES) {
                    Some(more) => PAGE_BYTES + self.below(more as u64) as usize,
                    None => n,
                });
                now
            }
            Some(Fault::Late(most)) => now + Duration::from_nanos(self.below(most.as_nanos() as u64)),
            _ => now,
        };
        let due = self.not_before[id as usize].take().map_or(due, |not_before| due.max(not_before));
        self.late.push((due, Ended { id, result }));
    }
}

impl Port for Faulty {
    fn describe(&self) -> String {
        format!("{}, with faults", self.inner.describe())
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    unsafe fn start(&mut self, read: PortRead) {
        let now = Instant::now();
        let id = read.id;
        match self.fault(&read) {
            Some(Fault::Error) => {
                let error = io::Error::from_raw_os_error(libc::EIO);
                self.late.push((now, Ended { id, result: Err(error) }));
            }
            Some(Fault::Zero) => self.late.push((now, Ended { id, result: Ok(0) })),
            Some(Fault::Stuck) => self.stuck.push(read),
            fault => {
                self.planned[id as usize] = fault;
                self.not_before[id as usize] = self.faults.done_at(read.len_bytes);
                self.inside += 1;
                // SAFETY: this function's own contract.
                unsafe { self.inner.start(read) };
            }
        }
    }

    fn submit(&mut self) -> io::Result<()> {
        self.faults.check()?;
        self.inner.submit()
    }

    fn take(&mut self, wait: Duration, ended: &mut Vec<Ended>) -> io::Result<()> {
        self.faults.check()?;
        self.release();
        let (before, until) = (ended.len(), Instant::now() + wait);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let next_due = self.late.iter().map(|(due, _)| due.saturating_duration_since(Instant::now())).min();
            let nap = left.min(next_due.unwrap_or(left));
            let mut inner_ended = Vec::new();
            self.inner.take(nap, &mut inner_ended)?;
            if self.inside == 0 && inner_ended.is_empty() && self.late.len() + self.stuck.len() > 0 {
                // The port below has nothing to wait for.
                std::thread::sleep(nap);
            }
            self.inside -= inner_ended.len();
            inner_ended.into_iter().for_each(|end| self.end(end));
            self.take_late(ended);
            let is_idle = self.inside + self.late.len() + self.stuck.len() == 0;
            if ended.len() > before || is_idle || Instant::now() >= until {
                break;
            }
        }
        // By chance, not by age.
        for i in (before + 1..ended.len()).rev() {
            let other = before + self.below((i - before + 1) as u64) as usize;
            ended.swap(i, other);
        }
        Ok(())
    }
    fn forget_memory(&mut self) {
        self.inner.forget_memory();
    }
}
