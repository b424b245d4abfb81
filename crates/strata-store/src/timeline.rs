//! What happened when: spans of reads, computation and waits of a run, for people to look at.
//!
//! Owns: the recorder. Promises: room is made once, so nothing is allocated while a run is recorded; what has no room is
//! counted; a timeline that is off costs a comparison a span.
//! Refuses: to judge, to add up, to write files. Whoever reads, computes or waits says when it did.
//!
//! A handle is cloned into whatever takes part in a run, and a span is one line:
//!
//! ```
//! use std::time::Instant;
//! use strata_store::scheduler::Class;
//! use strata_store::timeline::{Lane, Timeline};
//!
//! let timeline = Timeline::with_room(1000); // or Timeline::off()
//! timeline.begin();
//! let started = Instant::now();
//! // ... a reader reads a record of layer 7 into the third of its places ...
//! timeline.read(3, 7, Class::Demand, 1_474_560, started, Instant::now());
//! // ... the store waits until an expert of layer 7 is there ...
//! timeline.span(Lane::Waits, "experts", Some(7), started, Instant::now());
//! timeline.end();
//! assert_eq!(timeline.take().spans.len(), 2);
//! ```

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::scheduler::Class;

/// Whose time a span is. That the drive is busy follows from the reads of records and of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Reads of records: by one thread, or in one place of a queue. A lane has one read at a time.
    Read(u16),
    /// Reads of rows of the n-gram table.
    NgramRows,
    /// All of a layer's computation but its routed experts, and the embedding.
    Mixer,
    /// Routed experts.
    Experts,
    /// Logits.
    Head,
    /// Computation waits for what is not in memory yet; the span's name says for what.
    Waits,
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read(reader) => return write!(f, "read {reader}"),
            Self::NgramRows => "n-gram rows",
            Self::Mixer => "mixer",
            Self::Experts => "experts",
            Self::Head => "head",
            Self::Waits => "waits",
        })
    }
}

/// A piece of a run's time, in nanoseconds from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Whose time.
    pub lane: Lane,
    /// What was done; of a read of a record, its class by name.
    pub name: &'static str,
    /// The layer that it was done for.
    pub layer: Option<u32>,
    /// Beginning.
    pub start_ns: u64,
    /// End, not before the beginning.
    pub end_ns: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Why a record was read.
    pub class: Option<Class>,
}

/// A run that was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Time from beginning to end.
    pub wall_ns: u64,
    /// In the order in which they ended, nearly.
    pub spans: Vec<Span>,
    /// Spans for which there was no room.
    pub dropped: u64,
}

/// Records spans; clones record into the same run. See the [module](self).
#[derive(Clone, Debug, Default)]
pub struct Timeline(Option<Arc<Mutex<State>>>);

#[derive(Debug)]
struct State {
    /// The beginning of the run, while it is recorded.
    origin: Option<Instant>,
    room: usize,
    recording: Recording,
}

impl Timeline {
    /// Spans that a timeline should have room for where nothing else is known: some passes of a model of 48 layers with
    /// 512 experts.
    pub const DEFAULT_ROOM: usize = 1 << 20;

    /// One that records nothing.
    pub fn off() -> Self {
        Self(None)
    }

    /// One that records at most so many spans. It begins with [`begin`](Self::begin).
    pub fn with_room(spans: usize) -> Self {
        let recording = Recording { spans: Vec::with_capacity(spans), ..Recording::default() };
        Self(Some(Arc::new(Mutex::new(State { origin: None, room: spans, recording }))))
    }

    /// Whether there is anything that records.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A run begins now: what was recorded before is forgotten.
    pub fn begin(&self) {
        let Some(mut state) = self.state() else { return };
        state.recording.spans.clear();
        state.recording.dropped = 0;
        state.recording.wall_ns = 0;
        state.origin = Some(Instant::now());
    }

    /// The run ends now: what comes until the next one begins is not recorded.
    pub fn end(&self) {
        let Some(mut state) = self.state() else { return };
        if let Some(origin) = state.origin.take() {
            state.recording.wall_ns = ns_since(origin, Instant::now());
        }
    }

    /// Something was done on `lane` for `layer` from `start` to `end`. What was before the run is cut off.
    pub fn span(&self, lane: Lane, name: &'static str, layer: Option<u32>, start: Instant, end: Instant) {
        self.push(start, end, Span { lane, name, layer, start_ns: 0, end_ns: 0, bytes: 0, class: None });
    }

    /// A record of `layer` was read, on the lane [`Read(reader)`](Lane::Read).
    pub fn read(&self, reader: u16, layer: u32, class: Class, bytes: u64, start: Instant, end: Instant) {
        let (lane, name, layer, class) = (Lane::Read(reader), class.name(), Some(layer), Some(class));
        self.push(start, end, Span { lane, name, layer, start_ns: 0, end_ns: 0, bytes, class });
    }

    /// Rows of the n-gram table were read: `bytes` in all.
    pub fn read_rows(&self, layer: Option<u32>, bytes: u64, start: Instant, end: Instant) {
        let (lane, name) = (Lane::NgramRows, "n-gram rows");
        self.push(start, end, Span { lane, name, layer, start_ns: 0, end_ns: 0, bytes, class: None });
    }

    /// The last run, which must have ended. Its room goes with it: nothing more is recorded.
    pub fn take(&self) -> Recording {
        let Some(mut state) = self.state() else { return Recording::default() };
        state.room = 0;
        std::mem::take(&mut state.recording)
    }

    fn push(&self, start: Instant, end: Instant, span: Span) {
        let Some(mut state) = self.state() else { return };
        let Some(origin) = state.origin.filter(|origin| end >= *origin) else { return };
        if state.recording.spans.len() == state.room {
            state.recording.dropped += 1;
            return;
        }
        let (start_ns, end_ns) = (ns_since(origin, start), ns_since(origin, end.max(start)));
        state.recording.spans.push(Span { start_ns, end_ns, ..span });
    }

    fn state(&self) -> Option<MutexGuard<'_, State>> {
        Some(self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Nothing when `at` is before `origin`.
fn ns_since(origin: Instant, at: Instant) -> u64 {
    at.saturating_duration_since(origin).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_run_is_what_lies_between_begin_and_end() {
        let timeline = Timeline::with_room(8);
        let clone = timeline.clone();
        let before = Instant::now();
        timeline.span(Lane::Head, "before the run", None, before, before);
        timeline.begin();
        clone.span(Lane::Mixer, "begun before it", Some(1), before, Instant::now());
        let start = Instant::now();
        clone.read(2, 5, Class::ReadAhead, 77, start, start + Duration::from_nanos(1500));
        clone.read_rows(None, 9, start, start);
        timeline.end();
        timeline.span(Lane::Head, "after the run", None, start, Instant::now());
        let run = timeline.take();
        assert_eq!((run.spans.len(), run.dropped), (3, 0));
        assert!(run.wall_ns > 0);
        assert_eq!((run.spans[0].name, run.spans[0].start_ns, run.spans[0].layer), ("begun before it", 0, Some(1)));
        let read = run.spans[1];
        assert_eq!((read.lane, read.name, read.layer, read.bytes), (Lane::Read(2), "ahead", Some(5), 77));
        assert_eq!((read.class, read.end_ns - read.start_ns), (Some(Class::ReadAhead), 1500));
        assert_eq!((run.spans[2].lane, run.spans[2].bytes), (Lane::NgramRows, 9));
    }

    #[test]
    fn a_new_run_forgets_the_one_before() {
        let timeline = Timeline::with_room(2);
        for name in ["first", "second"] {
            timeline.begin();
            let now = Instant::now();
            (0..5).for_each(|_| timeline.span(Lane::Waits, name, None, now, now));
            timeline.end();
        }
        let run = timeline.take();
        assert_eq!((run.spans.len(), run.dropped, run.spans[0].name), (2, 3, "second"));
    }

    #[test]
    fn one_that_is_off_records_nothing() {
        let timeline = Timeline::off();
        assert!(!timeline.is_on() && Timeline::with_room(0).is_on());
        timeline.begin();
        timeline.span(Lane::Head, "head", None, Instant::now(), Instant::now());
        timeline.end();
        assert_eq!(timeline.take(), Recording::default());
    }
}
