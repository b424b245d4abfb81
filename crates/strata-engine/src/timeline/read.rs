//! Reading a trace file, which may be anyone's: event by event, within fixed limits, and refused at the first thing that a
//! timeline of Strata does not have.

use std::collections::HashMap;
use std::fmt;
use std::io::Read;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};
use strata_store::scheduler::Class;
use strata_store::timeline::Lane;

use super::{
    FORMAT, MAX_FILE_BYTES, MAX_LAYERS, MAX_NAMES, MAX_READERS, MAX_SPANS, MAX_TEXT_BYTES, MAX_WALL_NS, Names,
    TimelineError, Trace, TraceSpan, in_order,
};

impl Trace {
    /// Reads a trace file of `len_bytes`. Totals and the lane of the drive are not read, since they follow from the rest.
    ///
    /// # Errors
    /// When the file is too large or not of the form that [`Trace::write`] gives it.
    pub fn read(file: impl Read, len_bytes: u64) -> Result<Self, TimelineError> {
        if len_bytes > MAX_FILE_BYTES {
            return Err(TimelineError::TooLarge { bytes: len_bytes });
        }
        // What grows while it is read ends where it ended before.
        let input = std::io::BufReader::new(file.take(len_bytes));
        let file: File = serde_json::from_reader(input).map_err(|error| TimelineError::Form(error.to_string()))?;
        file.into_trace().map_err(TimelineError::Form)
    }
}

/// The file. What else it has, programs that show it may want.
#[derive(Deserialize)]
struct File {
    #[serde(rename = "otherData")]
    about: About,
    #[serde(rename = "traceEvents")]
    events: Events,
}

#[derive(Deserialize)]
struct About {
    format: String,
    title: String,
    details: String,
    wall_s: f64,
    dropped_spans: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Event {
    name: String,
    ph: Phase,
    #[serde(rename = "pid")]
    _process: IgnoredAny,
    tid: u32,
    ts: Option<f64>,
    dur: Option<f64>,
    args: Args,
}

#[derive(Deserialize)]
enum Phase {
    /// A span.
    X,
    /// A name.
    M,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Args {
    layer: Option<u32>,
    bytes: Option<u32>,
    class: Option<String>,
    name: Option<String>,
    #[serde(rename = "sort_index")]
    _order: Option<IgnoredAny>,
}

/// All events, as they are needed.
#[derive(Default)]
struct Events {
    names: Names,
    /// Lanes by thread; `None`: the drive, which follows from the others.
    lanes: HashMap<u32, Option<Lane>>,
    /// Threads of spans, and spans that do not have their lanes yet.
    spans: Vec<(u32, TraceSpan)>,
}

impl<'de> Deserialize<'de> for Events {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Each;

        impl<'de> Visitor<'de> for Each {
            type Value = Events;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of trace events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Events, A::Error> {
                let mut events = Events::default();
                while let Some(event) = list.next_element::<Event>()? {
                    events.add(&event).map_err(A::Error::custom)?;
                }
                Ok(events)
            }
        }

        deserializer.deserialize_seq(Each)
    }
}

impl Events {
    fn add(&mut self, event: &Event) -> Result<(), String> {
        match event.ph {
            Phase::X => self.add_span(event),
            Phase::M if event.name == "thread_name" => {
                let name = event.args.name.as_deref().unwrap_or_default();
                let lane = lane(name).ok_or_else(|| format!("`{}` is no lane", shown(name)))?;
                if self.lanes.len() > usize::from(MAX_READERS) + 8 {
                    return Err("too many threads".to_owned());
                }
                match self.lanes.insert(event.tid, lane) {
                    None => Ok(()),
                    Some(_) => Err(format!("thread {} has two names", event.tid)),
                }
            }
            Phase::M => Ok(()),
        }
    }

    fn add_span(&mut self, event: &Event) -> Result<(), String> {
        let Event { name, ts: Some(ts), dur: Some(dur), args, .. } = event else {
            return Err("a span without `ts` or `dur`".to_owned());
        };
        let most_us = MAX_WALL_NS as f64 / 1000.0;
        if !(0.0..=most_us).contains(ts) || !(0.0..=most_us).contains(dur) {
            return Err(format!("a span from {ts} us of {dur} us"));
        }
        if self.spans.len() == MAX_SPANS {
            return Err(format!("more than {MAX_SPANS} spans"));
        }
        check_text("a name", name)?;
        let name = self.names.number(name).ok_or_else(|| format!("more than {MAX_NAMES} different names"))?;
        if let Some(layer) = args.layer.filter(|layer| *layer >= MAX_LAYERS) {
            return Err(format!("layer {layer}: at most {MAX_LAYERS} layers are shown"));
        }
        let class = args.class.as_deref().map(|name| {
            let found = Class::ALL.into_iter().find(|class| class.name() == name);
            found.ok_or_else(|| format!("`{}` is no class of reads", shown(name)))
        });
        let (start_ns, len_ns) = ((ts * 1000.0).round() as u64, (dur * 1000.0).round() as u64);
        let span = TraceSpan {
            lane: Lane::Waits,
            name,
            layer: args.layer,
            start_ns,
            end_ns: start_ns + len_ns,
            bytes: args.bytes.unwrap_or(0),
            class: class.transpose()?,
        };
        self.spans.push((event.tid, span));
        Ok(())
    }
}

impl File {
    fn into_trace(self) -> Result<Trace, String> {
        let Self { about: About { format, title, details, wall_s, dropped_spans }, events } = self;
        if format != FORMAT {
            return Err(format!("the format is `{}`, not `{FORMAT}`", shown(&format)));
        }
        check_text("the title", &title)?;
        check_text("the details", &details)?;
        if !(0.0..=MAX_WALL_NS as f64 / 1e9).contains(&wall_s) {
            return Err(format!("a run of {wall_s} s"));
        }
        let wall_ns = (wall_s * 1e9).round() as u64;
        let mut spans = Vec::with_capacity(events.spans.len());
        for (thread, span) in events.spans {
            let lane = events.lanes.get(&thread).ok_or_else(|| format!("thread {thread} has no name"))?;
            let Some(lane) = *lane else { continue };
            if span.end_ns > wall_ns {
                return Err(format!("a span of `{lane}` ends at {} ns, after the run", span.end_ns));
            }
            if matches!(lane, Lane::Read(_)) != span.class.is_some() {
                return Err(format!("a span of `{lane}`: reads of records have a class, and nothing else has"));
            }
            spans.push(TraceSpan { lane, ..span });
        }
        let (names, spans) = in_order(&events.names.texts, spans);
        Ok(Trace { title, details, wall_ns, dropped_spans, names, spans })
    }
}

/// The lane of a name; the inner `None` is the drive.
fn lane(name: &str) -> Option<Option<Lane>> {
    if name == "drive" {
        return Some(None);
    }
    let lane = match name.strip_prefix("read ") {
        Some(reader) => Lane::Read(reader.parse().ok().filter(|reader| *reader < MAX_READERS)?),
        None => [Lane::NgramRows, Lane::Mixer, Lane::Experts, Lane::Head, Lane::Waits]
            .into_iter()
            .find(|lane| lane.to_string() == name)?,
    };
    Some(Some(lane))
}

fn check_text(what: &str, text: &str) -> Result<(), String> {
    match text.len() {
        0..=MAX_TEXT_BYTES => Ok(()),
        bytes => Err(format!("{what} has {bytes} bytes, of at most {MAX_TEXT_BYTES}")),
    }
}

/// The beginning of a text, for an error.
fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}
