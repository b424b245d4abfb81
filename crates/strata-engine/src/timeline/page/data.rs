//! The spans, as the script of the page takes them.

use std::fmt::{self, Write};

use serde_json::{Value, json};
use strata_store::timeline::Lane;

use super::text::{percent, time};
use crate::timeline::{Busy, LaneTotal, Totals, Trace};

/// What the script draws: spans in columns of little-endian numbers, in base64, times in ticks.
pub(super) fn write(trace: &Trace, totals: &Totals, out: &mut String) -> fmt::Result {
    let tick_ns = trace.wall_ns / u64::from(u32::MAX - 1) + 1;
    let mut columns = Columns { tick_ns, ..Columns::default() };
    let mut lanes = Vec::new();
    for (lane, spans) in trace.lanes() {
        let first = columns.start.len() / 4;
        for span in spans {
            let (layer, class) = (span.layer.unwrap_or(u32::from(u16::MAX)), span.class.map_or(255, |c| c as u8));
            columns.push(span.start_ns, span.end_ns, span.name, layer, span.bytes, class);
        }
        lanes.push(json!({ "label": lane.to_string(), "color": color(lane), "first": first, "count": spans.len() }));
    }
    let mut more = |color: &str, spans: &mut dyn Iterator<Item = (u64, u64, u32)>| {
        let first = columns.start.len() / 4;
        for (start, end, layer) in spans {
            columns.push(start, end, 0, layer, 0, 255);
        }
        lanes.push(json!({
            "label": color, "color": color, "first": first, "count": columns.start.len() / 4 - first,
        }));
        lanes.len() - 1
    };
    let none = u32::from(u16::MAX);
    let layers = more("layers", &mut totals.segments.iter().map(|s| (s.start_ns, s.end_ns, s.layer)));
    let drive = more("drive", &mut totals.drive.merged.iter().map(|(start, end)| (*start, *end, none)));
    let busy = more("compute", &mut totals.compute.merged.iter().map(|(start, end)| (*start, *end, none)));

    let data = json!({
        "wall_ns": trace.wall_ns, "tick_ns": tick_ns, "names": trace.names, "lanes": lanes, "layers": layers,
        "rows": rows(trace.wall_ns, totals, [layers, drive, busy]),
    });
    writeln!(out, "<script type=\"application/json\" id=\"data\">{}</script>", script_json(&data))?;
    columns.write(out)
}

/// The rows of the chart, from the top: layers, the drive and its reads, computation and its parts. Rows in which idle time
/// is marked name the lane that has everything else.
fn rows(wall_ns: u64, totals: &Totals, [layers, drive, busy]: [usize; 3]) -> Vec<Value> {
    let summed = |of: &Busy| {
        let (idle, gaps) = (time(of.idle_ns(wall_ns)), of.gaps(wall_ns).len());
        format!("{} busy\nidle {idle}, {gaps} gaps", percent(of.busy_ns, wall_ns))
    };
    let mut rows = vec![row("layer", "", 18, &[layers], None)];
    if !totals.drive.merged.is_empty() {
        rows.push(row("drive", &summed(&totals.drive), 34, &[drive], Some(drive)));
    }
    let reads = totals.lanes.iter().filter(|total| matches!(total.lane, Lane::Read(_))).count();
    let (mut of_compute, mut compute) = (Vec::new(), Vec::new());
    for (number, LaneTotal { lane, busy_ns, .. }) in totals.lanes.iter().enumerate() {
        let (label, note) = (lane.to_string(), format!("{} of the run", percent(*busy_ns, wall_ns)));
        match lane {
            Lane::Read(_) => rows.push(row(&label, "", if reads > 12 { 5 } else { 9 }, &[number], None)),
            Lane::NgramRows => rows.push(row(&label, &note, 14, &[number], None)),
            Lane::Mixer | Lane::Experts | Lane::Head | Lane::Waits => {
                compute.push(number);
                of_compute.push(row(&label, &note, 18, &[number], None));
            }
        }
    }
    rows.push(row("compute", &summed(&totals.compute), 34, &compute, Some(busy)));
    rows.append(&mut of_compute);
    rows
}

fn row(label: &str, note: &str, height: u32, lanes: &[usize], idle: Option<usize>) -> Value {
    json!({ "label": label, "note": note, "height": height, "lanes": lanes, "idle": idle })
}

/// Columns of spans, as bytes.
#[derive(Default)]
struct Columns {
    tick_ns: u64,
    start: Vec<u8>,
    length: Vec<u8>,
    name: Vec<u8>,
    layer: Vec<u8>,
    bytes: Vec<u8>,
    class: Vec<u8>,
}

impl Columns {
    fn push(&mut self, start_ns: u64, end_ns: u64, name: u16, layer: u32, bytes: u32, class: u8) {
        let (start, end) = (start_ns / self.tick_ns, end_ns / self.tick_ns);
        self.start.extend((start as u32).to_le_bytes());
        self.length.extend(((end - start) as u32).to_le_bytes());
        self.name.extend(name.to_le_bytes());
        self.layer.extend((layer as u16).to_le_bytes());
        self.bytes.extend(bytes.to_le_bytes());
        self.class.push(class);
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let Self { start, length, name, layer, bytes, class, .. } = self;
        let columns = [("start", start), ("length", length), ("name", name), ("layer", layer), ("bytes", bytes)];
        for (id, column) in columns.into_iter().chain([("class", class)]) {
            write!(out, "<script type=\"text/plain\" id=\"{id}\">")?;
            push_base64(column, out);
            writeln!(out, "</script>")?;
        }
        Ok(())
    }
}

/// The name of a lane's color.
fn color(lane: Lane) -> &'static str {
    match lane {
        Lane::Read(_) => "class",
        Lane::NgramRows => "rows",
        Lane::Mixer => "mixer",
        Lane::Experts => "experts",
        Lane::Head => "head",
        Lane::Waits => "waits",
    }
}

/// JSON that cannot end the element it is in.
fn script_json(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c")
}

fn push_base64(bytes: &[u8], out: &mut String) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    out.reserve(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for digit in 0..4 {
            let value = bits >> (18 - 6 * digit) & 63;
            out.push(if digit <= group.len() { char::from(DIGITS[value as usize]) } else { '=' });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4648, section 10.
    #[test]
    fn base64_is_as_the_standard_says() {
        for (bytes, expected) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            let mut out = String::new();
            push_base64(bytes.as_bytes(), &mut out);
            assert_eq!(out, expected);
        }
        let mut out = String::new();
        push_base64(&[0xfb, 0xff, 0xfe], &mut out);
        assert_eq!(out, "+//+");
    }

    #[test]
    fn json_does_not_end_its_element() {
        let text = script_json(&json!(["</script><script>alert(1)", "<!--"]));
        assert!(!text.contains('<'), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()[1], "<!--");
    }
}
