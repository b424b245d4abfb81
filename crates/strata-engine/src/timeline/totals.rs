//! What a trace adds up to. Times are those of the clock: what happened twice at a time counts once.

use strata_store::scheduler::Class;
use strata_store::timeline::Lane;

use super::{Trace, TraceSpan};

/// When something was busy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Busy {
    /// Beginnings and ends, ascending, that do not touch.
    pub merged: Vec<(u64, u64)>,
    /// Their time.
    pub busy_ns: u64,
}

impl Busy {
    /// Of spans by beginning.
    fn of(spans: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (start, end) in spans.into_iter().filter(|(start, end)| start < end) {
            match merged.last_mut().filter(|last| start <= last.1) {
                Some(last) => last.1 = last.1.max(end),
                None => merged.push((start, end)),
            }
        }
        let busy_ns = merged.iter().map(|(start, end)| end - start).sum();
        Self { merged, busy_ns }
    }

    /// Time of a run of `wall_ns` that is left.
    pub fn idle_ns(&self, wall_ns: u64) -> u64 {
        wall_ns - self.busy_ns
    }

    /// The times of a run of `wall_ns` between.
    pub fn gaps(&self, wall_ns: u64) -> Vec<(u64, u64)> {
        let starts = self.merged.iter().map(|(start, _)| *start).chain([wall_ns]);
        let ends = [0].into_iter().chain(self.merged.iter().map(|(_, end)| *end));
        ends.zip(starts).filter(|(start, end)| start < end).collect()
    }
}

/// A lane as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneTotal {
    /// The lane.
    pub lane: Lane,
    /// Its spans.
    pub spans: u64,
    /// The time that they cover.
    pub busy_ns: u64,
    /// Bytes read.
    pub bytes: u64,
}

/// A time in which computation was in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The layer.
    pub layer: u32,
    /// Beginning.
    pub start_ns: u64,
    /// End.
    pub end_ns: u64,
}

/// A layer as a whole. Times are of its segments, but what was read for it may have been read before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerTotal {
    /// The layer.
    pub layer: u32,
    /// Its segments.
    pub wall_ns: u64,
    /// Of these, all computation but routed experts.
    pub mixer_ns: u64,
    /// Routed experts.
    pub experts_ns: u64,
    /// Waits.
    pub waits_ns: u64,
    /// No read was under way.
    pub drive_idle_ns: u64,
    /// Records read for it.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
}

/// What a trace adds up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Any read is under way.
    pub drive: Busy,
    /// Anything is computed.
    pub compute: Busy,
    /// Time in which computation waited.
    pub waited_ns: u64,
    /// Of what, by name, the longest first.
    pub waits: Vec<(String, u64)>,
    /// Bytes of all reads.
    pub read_bytes: u64,
    /// Reads of records and their bytes, by class.
    pub classes: Vec<(Class, u64, u64)>,
    /// Lanes that have spans.
    pub lanes: Vec<LaneTotal>,
    /// In order of time.
    pub segments: Vec<Segment>,
    /// Layers that have segments or reads, ascending.
    pub layers: Vec<LayerTotal>,
}

impl Totals {
    /// Of a trace.
    pub fn of(trace: &Trace) -> Self {
        let lanes = trace.lanes().map(|(lane, spans)| LaneTotal {
            lane,
            spans: spans.len() as u64,
            busy_ns: Busy::of(times(spans)).busy_ns,
            bytes: spans.iter().map(|span| u64::from(span.bytes)).sum(),
        });
        let lanes: Vec<_> = lanes.collect();
        let drive = busy(trace, |span| matches!(span.lane, Lane::Read(_) | Lane::NgramRows));
        let mixer = busy(trace, |span| span.lane == Lane::Mixer);
        let experts = busy(trace, |span| span.lane == Lane::Experts);
        let waits = busy(trace, |span| span.lane == Lane::Waits);
        let names = (0u16..).zip(&trace.names);
        let mut waits_by_name: Vec<_> = names
            .map(|(number, name)| {
                let of_name = busy(trace, |span| span.lane == Lane::Waits && span.name == number);
                (name.clone(), of_name.busy_ns)
            })
            .filter(|(_, ns)| *ns > 0)
            .collect();
        waits_by_name.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
        let segments = segments(trace);
        let mut layers = LayerTotals::default();
        for segment in &segments {
            layers.of(segment.layer).wall_ns += segment.end_ns - segment.start_ns;
        }
        layers.share(&segments, &mixer.merged, |layer, ns| layer.mixer_ns += ns);
        layers.share(&segments, &experts.merged, |layer, ns| layer.experts_ns += ns);
        layers.share(&segments, &waits.merged, |layer, ns| layer.waits_ns += ns);
        layers.share(&segments, &drive.gaps(trace.wall_ns), |layer, ns| layer.drive_idle_ns += ns);
        let mut classes: Vec<_> = Class::ALL.iter().map(|class| (*class, 0, 0)).collect();
        for span in &trace.spans {
            let (Some(class), Some(layer)) = (span.class, span.layer) else { continue };
            let (layer, (_, reads, bytes)) = (layers.of(layer), &mut classes[class as usize]);
            layer.reads += 1;
            layer.read_bytes += u64::from(span.bytes);
            *reads += 1;
            *bytes += u64::from(span.bytes);
        }
        Self {
            compute: busy(trace, |span| matches!(span.lane, Lane::Mixer | Lane::Experts | Lane::Head)),
            waited_ns: waits.busy_ns,
            waits: waits_by_name,
            read_bytes: lanes.iter().map(|lane| lane.bytes).sum(),
            drive,
            classes,
            lanes,
            segments,
            layers: layers.0.into_iter().filter(|layer| layer.wall_ns > 0 || layer.reads > 0).collect(),
        }
    }
}

fn times(spans: &[TraceSpan]) -> impl Iterator<Item = (u64, u64)> {
    spans.iter().map(|span| (span.start_ns, span.end_ns))
}

/// The time that some of the spans cover.
fn busy(trace: &Trace, is_wanted: impl Fn(&TraceSpan) -> bool) -> Busy {
    let mut wanted: Vec<_> = trace.spans.iter().filter(|span| is_wanted(span)).collect();
    wanted.sort_unstable_by_key(|span| span.start_ns);
    Busy::of(wanted.into_iter().map(|span| (span.start_ns, span.end_ns)))
}

/// A segment ends with the last computation for its layer. It begins where the layer before ended, since what is between is
/// a wait for it; the first of a pass begins with its computation, and what is for no layer is part of none.
fn segments(trace: &Trace) -> Vec<Segment> {
    let is_compute = |span: &&TraceSpan| matches!(span.lane, Lane::Mixer | Lane::Experts | Lane::Head);
    let mut spans: Vec<_> = trace.spans.iter().filter(is_compute).collect();
    spans.sort_by_key(|span| span.start_ns);
    let mut segments: Vec<Segment> = Vec::new();
    let mut layer_before = None;
    for TraceSpan { layer, start_ns, end_ns, .. } in spans.into_iter().copied() {
        let last = segments.last_mut().filter(|_| layer_before.is_some());
        match (layer, last) {
            (Some(layer), Some(last)) if last.layer == layer => last.end_ns = last.end_ns.max(end_ns),
            (Some(layer), last) => {
                let start_ns = last.map_or(start_ns, |last| last.end_ns);
                segments.push(Segment { layer, start_ns, end_ns: end_ns.max(start_ns) });
            }
            (None, Some(last)) => last.end_ns = last.end_ns.min(start_ns).max(last.start_ns),
            (None, None) => {}
        }
        layer_before = layer;
    }
    segments
}

/// By layer.
#[derive(Default)]
struct LayerTotals(Vec<LayerTotal>);

impl LayerTotals {
    fn of(&mut self, layer: u32) -> &mut LayerTotal {
        for layer in self.0.len() as u32..=layer {
            self.0.push(LayerTotal { layer, ..LayerTotal::default() });
        }
        &mut self.0[layer as usize]
    }

    /// Gives each layer what its segments have of `times`; both ascend and do not overlap among themselves.
    fn share(&mut self, segments: &[Segment], times: &[(u64, u64)], add: impl Fn(&mut LayerTotal, u64)) {
        let mut at = 0;
        for segment in segments {
            while times.get(at).is_some_and(|(_, end)| *end <= segment.start_ns) {
                at += 1;
            }
            for (start, end) in &times[at..] {
                if *start >= segment.end_ns {
                    break;
                }
                add(self.of(segment.layer), *end.min(&segment.end_ns) - *start.max(&segment.start_ns));
            }
        }
    }
}
