//! Tables of totals, and the chart of where the time of each layer went.

use std::fmt::{self, Write};

use super::text::{bytes, percent, time};
use crate::timeline::Totals;

/// Height of the tallest bar, and room of a bar with its gap, in units of the drawing.
const CHART_HEIGHT: f64 = 150.0;
const BAR_ROOM: f64 = 24.0;

/// A bar for each layer: what its time was spent on.
pub(super) fn write_layer_chart(totals: &Totals, out: &mut String) -> fmt::Result {
    let longest_ns = totals.layers.iter().map(|layer| layer.wall_ns).max().unwrap_or(0).max(1);
    let width = BAR_ROOM * totals.layers.len() as f64;
    write!(
        out,
        "<section>\n<h2>Where the time of each layer went</h2>\n<p class=\"muted\">Full height: {}. \
         <span class=\"key fill-mixer\"></span>mixer <span class=\"key fill-experts\"></span>routed experts \
         <span class=\"key fill-waits\"></span>waits <span class=\"key fill-rest\"></span>the rest</p>\n\
         <svg class=\"layers\" viewBox=\"0 0 {width} {}\" role=\"img\" aria-label=\"Time of each layer by what it was spent \
         on\">\n",
        time(longest_ns),
        CHART_HEIGHT + 18.0
    )?;
    for (x, layer) in totals.layers.iter().enumerate().map(|(i, layer)| (BAR_ROOM * i as f64, layer)) {
        let known_ns = layer.mixer_ns + layer.experts_ns + layer.waits_ns;
        let rest_ns = layer.wall_ns.saturating_sub(known_ns);
        write!(
            out,
            "<g><title>layer {}: {} in all; mixer {}, experts {}, waits {}, the rest {}; {} reads, {}; no read under way \
             for {}</title>",
            layer.layer,
            time(layer.wall_ns),
            time(layer.mixer_ns),
            time(layer.experts_ns),
            time(layer.waits_ns),
            time(rest_ns),
            layer.reads,
            bytes(layer.read_bytes),
            time(layer.drive_idle_ns)
        )?;
        let mut y = CHART_HEIGHT;
        let parts =
            [("mixer", layer.mixer_ns), ("experts", layer.experts_ns), ("waits", layer.waits_ns), ("rest", rest_ns)];
        for (color, ns) in parts {
            let height = (ns as f64 / longest_ns as f64 * CHART_HEIGHT).min(y);
            y -= height;
            write!(
                out,
                "<rect class=\"fill-{color}\" x=\"{:.1}\" y=\"{y:.2}\" width=\"{:.1}\" height=\"{height:.2}\"/>",
                x + 2.0,
                BAR_ROOM - 4.0
            )?;
        }
        let (middle, base) = (x + BAR_ROOM / 2.0, CHART_HEIGHT + 13.0);
        writeln!(out, "<text x=\"{middle:.1}\" y=\"{base:.1}\">{}</text></g>", layer.layer)?;
    }
    writeln!(out, "</svg>\n</section>")
}

pub(super) fn write_lane_table(wall_ns: u64, totals: &Totals, out: &mut String) -> fmt::Result {
    let head = ["Lane", "Spans", "Busy", "Of the run", "Read", "While busy"];
    table_head("By lane", &head, out)?;
    let mut row = |name: &str, spans: u64, busy_ns: u64, read: u64| {
        let rate =
            if read == 0 || busy_ns == 0 { String::new() } else { format!("{:.2} GB/s", read as f64 / busy_ns as f64) };
        let read = if read == 0 { String::new() } else { bytes(read) };
        let cells = [spans.to_string(), time(busy_ns), percent(busy_ns, wall_ns), read, rate];
        table_row(name, &cells, out)
    };
    let reads = || totals.lanes.iter().filter(|total| total.bytes > 0);
    row("drive: any read", reads().map(|total| total.spans).sum(), totals.drive.busy_ns, totals.read_bytes)?;
    for total in &totals.lanes {
        row(&total.lane.to_string(), total.spans, total.busy_ns, total.bytes)?;
    }
    out.push_str("</tbody></table></div>\n");
    if totals.classes.iter().any(|(_, reads, _)| *reads > 0) {
        let classes = totals.classes.iter().filter(|(_, reads, _)| *reads > 0);
        let classes: Vec<_> = classes
            .map(|(class, reads, read)| format!("{reads} of class {}, {}", class.name(), bytes(*read)))
            .collect();
        writeln!(out, "<p class=\"muted\">Reads of records: {}.</p>", classes.join("; "))?;
    }
    writeln!(out, "</section>")
}

/// A line for each layer.
pub(super) fn write_layer_table(totals: &Totals, out: &mut String) -> fmt::Result {
    if totals.layers.is_empty() {
        return Ok(());
    }
    let head = ["Layer", "Time", "Mixer", "Routed experts", "Waits", "No read under way", "Reads", "Read"];
    table_head("By layer", &head, out)?;
    for layer in &totals.layers {
        let times = [layer.wall_ns, layer.mixer_ns, layer.experts_ns, layer.waits_ns, layer.drive_idle_ns].map(time);
        let reads = [layer.reads.to_string(), bytes(layer.read_bytes)];
        table_row(&layer.layer.to_string(), &[&times[..], &reads].concat(), out)?;
    }
    writeln!(out, "</tbody></table></div>\n</section>")
}

fn table_head(title: &str, columns: &[&str], out: &mut String) -> fmt::Result {
    write!(out, "<section>\n<h2>{title}</h2>\n<div class=\"table\"><table><thead><tr>")?;
    columns.iter().try_for_each(|column| write!(out, "<th scope=\"col\">{column}</th>"))?;
    writeln!(out, "</tr></thead><tbody>")
}

fn table_row(name: &str, cells: &[String], out: &mut String) -> fmt::Result {
    write!(out, "<tr><th scope=\"row\">{name}</th>")?;
    cells.iter().try_for_each(|cell| write!(out, "<td>{cell}</td>"))?;
    writeln!(out, "</tr>")
}
