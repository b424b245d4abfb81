//! Writing a trace: Chrome's JSON of trace events, times in microseconds.

use std::io::{self, Write};

use serde_json::json;
use strata_store::timeline::Lane;

use super::{FORMAT, Totals, Trace, TraceSpan};

/// Number of a lane's thread. The drive is a thread of its own, which shows that any read is under way.
const DRIVE: u32 = 1;

fn thread(lane: Lane) -> u32 {
    match lane {
        Lane::Read(reader) => 100 + u32::from(reader),
        Lane::NgramRows => 10_000,
        Lane::Mixer => 10_001,
        Lane::Experts => 10_002,
        Lane::Head => 10_003,
        Lane::Waits => 10_004,
    }
}

impl Trace {
    /// Writes the trace with its totals, span by span.
    ///
    /// # Errors
    /// When `out` does not take it.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let totals = Totals::of(self);
        writeln!(out, "{{\"otherData\":{},\n\"displayTimeUnit\":\"ms\",\n\"traceEvents\":[", self.about(&totals))?;
        let process = json!({ "name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": { "name": "strata" } });
        write!(out, "{process}")?;
        if !totals.drive.merged.is_empty() {
            write_thread(out, DRIVE, "drive")?;
        }
        for (start_ns, end_ns) in &totals.drive.merged {
            write_times(out, DRIVE, *start_ns, *end_ns)?;
            write!(out, ",\"name\":\"busy\",\"args\":{{}}}}")?;
        }
        let names: Vec<_> = self.names.iter().map(|name| json!(name).to_string()).collect();
        for (lane, spans) in self.lanes() {
            write_thread(out, thread(lane), &lane.to_string())?;
            for span in spans {
                write_times(out, thread(lane), span.start_ns, span.end_ns)?;
                write!(out, ",\"name\":{},\"args\":{{", names[usize::from(span.name)])?;
                write_args(out, span)?;
                write!(out, "}}}}")?;
            }
        }
        writeln!(out, "\n]}}")
    }

    /// What the file is, and the totals, for programs.
    fn about(&self, totals: &Totals) -> serde_json::Value {
        let s = |ns: u64| ns as f64 / 1e9;
        let waits: serde_json::Map<_, _> =
            totals.waits.iter().map(|(name, ns)| (name.clone(), json!(s(*ns)))).collect();
        let bytes: serde_json::Map<_, _> =
            totals.classes.iter().map(|(class, _, bytes)| (class.name().to_owned(), json!(bytes))).collect();
        json!({
            "format": FORMAT,
            "title": self.title,
            "details": self.details,
            "wall_s": s(self.wall_ns),
            "spans": self.spans.len(),
            "dropped_spans": self.dropped_spans,
            "drive_busy_s": s(totals.drive.busy_ns),
            "drive_idle_s": s(totals.drive.idle_ns(self.wall_ns)),
            "compute_busy_s": s(totals.compute.busy_ns),
            "compute_waited_s": s(totals.waited_ns),
            "waits_s": waits,
            "read_bytes": totals.read_bytes,
            "record_bytes": bytes,
        })
    }
}

fn write_thread(out: &mut impl Write, thread: u32, name: &str) -> io::Result<()> {
    let event = |what: &str, args| json!({ "name": what, "ph": "M", "pid": 1, "tid": thread, "args": args });
    let (name, order) = (json!({ "name": name }), json!({ "sort_index": thread }));
    write!(out, ",\n{},\n{}", event("thread_name", name), event("thread_sort_index", order))
}

/// The beginning of a span's event.
fn write_times(out: &mut impl Write, thread: u32, start_ns: u64, end_ns: u64) -> io::Result<()> {
    let micros = |ns: u64| (ns / 1000, ns % 1000);
    let ((at, at_rest), (long, long_rest)) = (micros(start_ns), micros(end_ns - start_ns));
    write!(out, ",\n{{\"ph\":\"X\",\"pid\":1,\"tid\":{thread},\"ts\":{at}.{at_rest:03},\"dur\":{long}.{long_rest:03}")
}

fn write_args(out: &mut impl Write, span: &TraceSpan) -> io::Result<()> {
    let mut comma = "";
    if let Some(layer) = span.layer {
        write!(out, "\"layer\":{layer}")?;
        comma = ",";
    }
    if span.bytes > 0 {
        write!(out, "{comma}\"bytes\":{}", span.bytes)?;
        comma = ",";
    }
    if let Some(class) = span.class {
        write!(out, "{comma}\"class\":\"{}\"", class.name())?;
    }
    Ok(())
}
