//! A table of equal rows, of which a pass needs some: gathered beside computation, strip by strip.
//!
//! Owns: the reads of rows, and the rows gathered for passes at hand and for those that follow. Promises: rows come in the
//! order in which they were asked for, whatever the order of reads; reads follow the order of the file within a strip; pages
//! that rows share are read once a strip; what one pass gathers is untouched by others. Refuses: to know what rows mean.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::reads::{Done, FileRange, ReadQueue};
use crate::timeline::{Lane, Timeline};
use crate::{Area, StoreError};

/// Rows of a table in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablePlace {
    /// Index of the file.
    pub file: usize,
    /// Bytes from its start to row 0.
    pub offset: u64,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Rows.
    pub rows: u64,
}

impl TablePlace {
    fn range(&self, row: u64) -> FileRange {
        let offset = self.offset + row * self.row_bytes as u64;
        FileRange { file: self.file, offset, len_bytes: self.row_bytes }
    }
}

/// Counts of a table since it was opened; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// Rows asked for.
    pub rows: u64,
    /// Reads done.
    pub reads: u64,
    /// Bytes of the pages that they read.
    pub read_bytes: u64,
    /// Time that passes have waited for rows.
    pub exposed_wait: Duration,
}

/// Names the rows that are gathered for a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherId(u64);

/// A table whose rows are gathered by number, never loaded whole.
pub struct RowTable {
    place: TablePlace,
    // Before the windows: dropping it waits until nothing writes there.
    queue: ReadQueue,
    /// Where reads land, one window for each read at a time.
    windows: Area,
    free_windows: Vec<u32>,
    /// In the order in which they are read.
    gathers: VecDeque<Gather>,
    /// By window.
    reading: Vec<Option<Reading>>,
    /// Given to the next gather, to be told apart from reads for those that were given up.
    next_gather: u64,
    counts: RowCounts,
    timeline: Timeline,
    done: Vec<Done>,
}

/// Rows for one pass.
struct Gather {
    id: GatherId,
    ids: Vec<u64>,
    /// Places in `ids`: strips in order, rows of a strip in the order of the file.
    order: Vec<u32>,
    /// Rows of a strip.
    strip: usize,
    /// How many of `order` have been started.
    started: usize,
    /// Rows of each strip that are missing.
    missing: Vec<usize>,
    /// When the first of each strip was asked for.
    since: Vec<Option<Instant>>,
    bytes: Vec<u8>,
    error: Option<StoreError>,
}

/// A read, and which rows of which gather it brings.
struct Reading {
    gather: GatherId,
    /// Of the gather's order.
    rows: Range<usize>,
    range: FileRange,
}

impl RowTable {
    /// Reads at a time: rows are small, and their reads wait in the drive's queue among those of records.
    pub const READS: usize = 1024;

    /// A table that is read through `queue`; `None` when there is no memory for the reads.
    pub fn new(place: TablePlace, queue: ReadQueue) -> Option<Self> {
        let depth = queue.room();
        Some(Self {
            windows: Area::allocate(depth.checked_mul(FileRange::most_window_bytes(place.row_bytes))?)?,
            free_windows: (0..depth as u32).rev().collect(),
            gathers: VecDeque::new(),
            reading: std::iter::repeat_with(|| None).take(depth).collect(),
            next_gather: 0,
            counts: RowCounts::default(),
            timeline: Timeline::off(),
            done: Vec::with_capacity(depth),
            place,
            queue,
        })
    }

    /// Records on `timeline` when rows are read and waited for.
    pub fn recorded(self, timeline: Timeline) -> Self {
        Self { timeline, ..self }
    }

    /// Where the table lies.
    pub fn place(&self) -> TablePlace {
        self.place
    }

    /// What was counted so far.
    pub fn counts(&self) -> RowCounts {
        self.counts
    }

    /// Passes whose rows are being gathered or waited for.
    pub fn gathers(&self) -> usize {
        self.gathers.len()
    }

    /// Begins to gather the rows `ids` for a pass that needs them now, in strips of `strip_ids`: before all others.
    ///
    /// # Errors
    /// When a row does not exist, or reading does not work at all.
    pub fn begin(&mut self, ids: &[u64], strip_ids: usize) -> Result<GatherId, StoreError> {
        let gather = self.gather(ids, strip_ids)?;
        let id = gather.id;
        self.gathers.push_front(gather);
        self.poll_or_finish(id)
    }

    /// [`begin`](Self::begin) for a pass that comes later: after all others.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn begin_later(&mut self, ids: &[u64], strip_ids: usize) -> Result<GatherId, StoreError> {
        let gather = self.gather(ids, strip_ids)?;
        let id = gather.id;
        self.gathers.push_back(gather);
        self.poll_or_finish(id)
    }

    fn poll_or_finish(&mut self, id: GatherId) -> Result<GatherId, StoreError> {
        self.poll().inspect_err(|_| self.finish(id))?;
        Ok(id)
    }

    fn gather(&mut self, ids: &[u64], strip_ids: usize) -> Result<Gather, StoreError> {
        if let Some(&row) = ids.iter().find(|row| **row >= self.place.rows) {
            return Err(StoreError::NoSuchRow { row, rows: self.place.rows });
        }
        let strip = strip_ids.max(1);
        let mut order: Vec<u32> = (0..ids.len() as u32).collect();
        order.chunks_mut(strip).for_each(|places| places.sort_unstable_by_key(|place| ids[*place as usize]));
        let id = GatherId(self.next_gather);
        self.next_gather += 1;
        self.counts.rows += ids.len() as u64;
        Ok(Gather {
            id,
            order,
            strip,
            started: 0,
            missing: ids.chunks(strip).map(<[u64]>::len).collect(),
            since: vec![None; ids.len().div_ceil(strip)],
            bytes: vec![0; ids.len() * self.place.row_bytes],
            ids: ids.to_vec(),
            error: None,
        })
    }

    /// Looks what has arrived, and starts what can be started.
    ///
    /// # Errors
    /// When reading does not work at all.
    pub fn poll(&mut self) -> Result<(), StoreError> {
        self.collect(false)?;
        self.start_reads()
    }

    /// The rows that were asked for at these places, in that order; waits for the strips that they lie in.
    ///
    /// # Errors
    /// When one of the pass's rows could not be read.
    ///
    /// # Panics
    /// When they are not being gathered, or so many were not asked for.
    pub fn rows(&mut self, gather: GatherId, places: Range<usize>) -> Result<&[u8], StoreError> {
        self.poll()?;
        let at = self.gathers.iter().position(|waiting| waiting.id == gather).expect("rows that are being gathered");
        let strip = self.gathers[at].strip;
        let strips = places.start / strip..places.end.div_ceil(strip);
        while self.gathers[at].missing[strips.clone()].iter().any(|missing| *missing > 0) {
            if let Some(error) = self.gathers[at].error.take() {
                return Err(error);
            }
            let start = Instant::now();
            let result = self.collect(true);
            let end = Instant::now();
            self.counts.exposed_wait += end - start;
            self.timeline.span(Lane::Waits, "n-gram rows", None, start, end);
            result?;
            self.start_reads()?;
        }
        Ok(&self.gathers[at].bytes[places.start * self.place.row_bytes..places.end * self.place.row_bytes])
    }

    /// A pass needs its rows no more, or was given up.
    pub fn finish(&mut self, gather: GatherId) {
        self.gathers.retain(|waiting| waiting.id != gather);
    }

    fn start_reads(&mut self) -> Result<(), StoreError> {
        let mut any = false;
        while !self.free_windows.is_empty()
            && let Some((gather, rows)) = self.next_read()
        {
            let Some(window) = self.free_windows.pop() else { break };
            let first = self.gathers[gather].row(rows.start, self.place);
            let last = self.gathers[gather].row(rows.end - 1, self.place);
            let len_bytes = (last.offset - first.offset) as usize + last.len_bytes;
            let range = FileRange { len_bytes, ..first };
            let waiting = &mut self.gathers[gather];
            waiting.started = rows.end;
            waiting.since[rows.start / waiting.strip].get_or_insert_with(Instant::now);
            self.reading[window as usize] = Some(Reading { gather: self.gathers[gather].id, rows, range });
            // SAFETY: inside of the windows' memory: one of its windows.
            let memory = unsafe {
                self.windows.start().add(window as usize * FileRange::most_window_bytes(self.place.row_bytes))
            };
            // SAFETY: the window is this read's alone until it has ended.
            unsafe { self.queue.start(u64::from(window), range, memory) };
            any = true;
        }
        if any { self.queue.submit() } else { Ok(()) }
    }

    /// The rows to be read next, with the pass that needs them: the next row, and those after it that lie in its pages.
    fn next_read(&self) -> Option<(usize, Range<usize>)> {
        let gather = self.gathers.iter().position(|gather| gather.started < gather.order.len())?;
        let Gather { order, strip, started, .. } = &self.gathers[gather];
        let first = self.gathers[gather].row(*started, self.place);
        let pages_end = first.offset - first.shift() as u64 + first.window_bytes() as u64;
        let strip_end = order.len().min((started / strip + 1) * strip);
        let ends_inside = |at: &usize| {
            let row = self.gathers[gather].row(*at, self.place);
            row.offset + row.len_bytes as u64 <= pages_end
        };
        let more = (started + 1..strip_end).take_while(ends_inside).count();
        Some((gather, *started..started + 1 + more))
    }

    fn collect(&mut self, wait: bool) -> Result<(), StoreError> {
        let mut done = std::mem::take(&mut self.done);
        let result = self.queue.take(wait, &mut done);
        for Done { tag, result } in done.drain(..) {
            self.read_done(tag as u32, result);
        }
        self.done = done;
        result
    }

    fn read_done(&mut self, window: u32, result: Result<(), StoreError>) {
        let Reading { gather, rows, range } = self.reading[window as usize].take().expect("a read of the window");
        self.free_windows.push(window);
        self.counts.reads += 1;
        self.counts.read_bytes += range.window_bytes() as u64;
        let place = self.place;
        // What nobody needs any more is dropped.
        let Some(gather) = self.gathers.iter_mut().find(|waiting| waiting.id == gather) else { return };
        if let Err(error) = result {
            gather.error.get_or_insert(error);
            return;
        }
        let start = window as usize * FileRange::most_window_bytes(place.row_bytes) + range.shift();
        // SAFETY: the read has ended, and the window is not in use until the next one is started.
        let bytes = unsafe { self.windows.bytes(start..start + range.len_bytes) };
        for at in rows {
            let from = (gather.row(at, place).offset - range.offset) as usize;
            let to = gather.order[at] as usize;
            gather.bytes[to * place.row_bytes..][..place.row_bytes].copy_from_slice(&bytes[from..][..place.row_bytes]);
            let strip = to / gather.strip;
            gather.missing[strip] -= 1;
            if let (0, Some(since)) = (gather.missing[strip], gather.since[strip]) {
                // The last strip may be a shorter one.
                let rows = gather.strip.min(gather.ids.len() - strip * gather.strip);
                self.timeline.read_rows(None, (rows * place.row_bytes) as u64, since, Instant::now());
            }
        }
    }
}

impl Gather {
    /// Where the row lies that comes at this place of the order.
    fn row(&self, at: usize, place: TablePlace) -> FileRange {
        place.range(self.ids[self.order[at] as usize])
    }
}

#[cfg(test)]
mod tests;
