//! The timeline of a run: as a trace file that trace viewers show, as totals, and as a page for people.
//!
//! Owns: the form of the file (Chrome's trace events, with an object of Strata's own), what is added up, the page.
//! Promises: a trace that was written is read back equal; the page holds all it needs and nothing of a file can become
//! part of its code; a file of any content is read within fixed limits or refused with an error that says where.
//! Refuses: to record (`strata_store::timeline` does), and files of other programs.

mod page;
mod read;
mod totals;
mod write;

use std::collections::HashMap;

use strata_store::scheduler::Class;
use strata_store::timeline::{Lane, Recording};
use thiserror::Error;

pub use totals::{Busy, LaneTotal, LayerTotal, Segment, Totals};

/// What the object `otherData` of a file says it is.
const FORMAT: &str = "strata timeline 1";
/// The longest run, in nanoseconds: eleven days.
const MAX_WALL_NS: u64 = 1_000_000_000_000_000;
/// The most spans of a file.
const MAX_SPANS: usize = 2_000_000;
/// The largest file.
const MAX_FILE_BYTES: u64 = 512 << 20;
/// The most bytes of a text, and the most different names of spans.
const MAX_TEXT_BYTES: usize = 400;
const MAX_NAMES: usize = 1_000;
/// Layers and readers are below these.
const MAX_LAYERS: u32 = 1_000;
const MAX_READERS: u16 = 1_024;

/// Why a file is not read.
#[derive(Debug, Error)]
pub enum TimelineError {
    /// It is larger than any timeline.
    #[error("{bytes} bytes are too many for a timeline: at most {MAX_FILE_BYTES} are read")]
    TooLarge {
        /// Its size.
        bytes: u64,
    },
    /// It is not what [`Trace::write`] writes.
    #[error("not a timeline of strata: {0}")]
    Form(String),
}

/// A recorded run with what is to be said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// What ran, in a few words.
    pub title: String,
    /// On what.
    pub details: String,
    /// Time from beginning to end.
    pub wall_ns: u64,
    /// Spans that were not recorded, for want of room.
    pub dropped_spans: u64,
    /// Names of spans.
    pub names: Vec<String>,
    /// By lane, then by beginning.
    pub spans: Vec<TraceSpan>,
}

/// A span of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSpan {
    /// Whose time.
    pub lane: Lane,
    /// Index into the names.
    pub name: u16,
    /// The layer that it was for.
    pub layer: Option<u32>,
    /// Beginning.
    pub start_ns: u64,
    /// End, not before the beginning nor after the run's.
    pub end_ns: u64,
    /// Bytes read.
    pub bytes: u32,
    /// Why a record was read; of reads of records only.
    pub class: Option<Class>,
}

impl Trace {
    /// What was recorded, as a trace.
    pub fn new(title: &str, details: &str, recording: &Recording) -> Self {
        let mut names = Names::default();
        let spans = recording.spans.iter().map(|span| TraceSpan {
            lane: span.lane,
            name: names.number(span.name).unwrap_or_default(),
            layer: span.layer,
            start_ns: span.start_ns.min(recording.wall_ns),
            end_ns: span.end_ns.min(recording.wall_ns),
            bytes: u32::try_from(span.bytes).unwrap_or(u32::MAX),
            class: span.class,
        });
        let spans = spans.collect();
        let (names, spans) = in_order(&names.texts, spans);
        Self {
            title: cut(title),
            details: cut(details),
            wall_ns: recording.wall_ns,
            dropped_spans: recording.dropped,
            names,
            spans,
        }
    }

    /// The spans of each lane that has any.
    fn lanes(&self) -> impl Iterator<Item = (Lane, &[TraceSpan])> {
        self.spans.chunk_by(|a, b| a.lane == b.lane).map(|spans| (spans[0].lane, spans))
    }
}

/// The beginning of a text, as much as a file may have.
fn cut(text: &str) -> String {
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    text[..ends.take_while(|end| *end <= MAX_TEXT_BYTES).last().unwrap_or(0)].to_owned()
}

/// The spans by lane and time, and the names that they have, in order of appearance.
fn in_order(names: &[String], mut spans: Vec<TraceSpan>) -> (Vec<String>, Vec<TraceSpan>) {
    spans.sort_by_key(|span| (span.lane, span.start_ns, span.end_ns));
    let mut used = Names::default();
    for span in &mut spans {
        span.name = used.number(&names[usize::from(span.name)]).unwrap_or_default();
    }
    (used.texts, spans)
}

/// Numbers for names, in order of appearance.
#[derive(Default)]
struct Names {
    numbers: HashMap<String, u16>,
    texts: Vec<String>,
}

impl Names {
    /// `None`: there are too many.
    fn number(&mut self, name: &str) -> Option<u16> {
        if let Some(number) = self.numbers.get(name) {
            return Some(*number);
        }
        let number = u16::try_from(self.texts.len()).ok().filter(|number| usize::from(*number) < MAX_NAMES)?;
        self.numbers.insert(name.to_owned(), number);
        self.texts.push(name.to_owned());
        Some(number)
    }
}
