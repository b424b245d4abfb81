//! The page: one HTML file with everything in it.
//!
//! Texts of a trace reach the page in two ways only: escaped, between tags; and as JSON without `<`, which the script shows as
//! text. The page's policy forbids it to load anything.

mod data;
mod tables;
mod text;

use std::fmt::{self, Write};

use strata_store::timeline::Lane;

use self::tables::{write_lane_table, write_layer_chart, write_layer_table};
use self::text::{Escaped, bytes, percent, time};
use super::{Totals, Trace};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Where the script draws.
const CHART: &str = include_str!("chart.html");
/// Idle gaps that are listed.
const SHOWN_GAPS: usize = 6;

impl Trace {
    /// The page.
    pub fn page(&self) -> String {
        let totals = Totals::of(self);
        let mut page = String::with_capacity(65_536 + self.spans.len() * 24);
        let written = self.write_page(&totals, &mut page);
        written.expect("a string takes everything");
        page
    }

    fn write_page(&self, totals: &Totals, out: &mut String) -> fmt::Result {
        let title = Escaped(&self.title);
        write!(
            out,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
             script-src 'unsafe-inline'\">\n<title>{title} - strata timeline</title>\n<style>\n{STYLE}</style>\n</head>\n\
             <body>\n<header>\n<p class=\"eyebrow\">Strata timeline: {title}</p>\n<h1>{}</h1>\n<p>{}</p>\n\
             <p class=\"muted\">{}</p>\n",
            self.headline(totals),
            self.details_of(totals),
            Escaped(&self.details)
        )?;
        if self.dropped_spans > 0 {
            writeln!(
                out,
                "<p class=\"warning\">{} spans were not recorded, for want of room: the end of the run is not complete, and \
                 its totals are too small.</p>",
                self.dropped_spans
            )?;
        }
        writeln!(out, "</header>")?;
        self.write_budget(totals, out)?;
        out.push_str(CHART);
        write!(out, "<section class=\"columns\">\n<div>\n<h2>Longest times without a read</h2>\n")?;
        self.write_gaps(totals, "drive", &totals.drive.gaps(self.wall_ns), out)?;
        write!(out, "</div>\n<div>\n<h2>Longest times without computation</h2>\n")?;
        self.write_gaps(totals, "compute", &totals.compute.gaps(self.wall_ns), out)?;
        write!(out, "</div>\n</section>\n")?;
        if !totals.layers.is_empty() {
            write_layer_chart(totals, out)?;
        }
        write_lane_table(self.wall_ns, totals, out)?;
        write_layer_table(totals, out)?;
        data::write(self, totals, out)?;
        write!(out, "<script>\n{SCRIPT}</script>\n</body>\n</html>\n")
    }

    /// The run in one sentence.
    fn headline(&self, totals: &Totals) -> String {
        let wall = time(self.wall_ns);
        let waited = time(totals.waited_ns);
        if totals.drive.merged.is_empty() {
            let busy = percent(totals.compute.busy_ns, self.wall_ns);
            return format!("Nothing was read; compute was busy {busy} of {wall} and waited {waited}.");
        }
        let busy = percent(totals.drive.busy_ns, self.wall_ns);
        format!("The drive was busy {busy} of {wall}; compute waited {waited}.")
    }

    /// What the headline leaves open.
    fn details_of(&self, totals: &Totals) -> String {
        let mut text = String::new();
        if !totals.drive.merged.is_empty() {
            let rate = totals.read_bytes as f64 / totals.drive.busy_ns.max(1) as f64;
            text += &format!("{} were read, {rate:.2} GB/s while the drive was busy. ", bytes(totals.read_bytes));
        }
        text += &format!("Compute was busy {}", percent(totals.compute.busy_ns, self.wall_ns));
        if totals.waits.is_empty() {
            return text + ".";
        }
        let waits: Vec<_> =
            totals.waits.iter().map(|(name, ns)| format!("{} for {}", time(*ns), Escaped(name))).collect();
        text + "; it waited " + &waits.join(", ") + "."
    }

    /// Two bars: what the time of the drive and of computation was.
    fn write_budget(&self, totals: &Totals, out: &mut String) -> fmt::Result {
        let rest_ns = self.wall_ns.saturating_sub(totals.compute.busy_ns + totals.waited_ns);
        let busy_of = |lane| totals.lanes.iter().find(|total| total.lane == lane).map_or(0, |total| total.busy_ns);
        let compute = [
            ("mixer", "mixer", busy_of(Lane::Mixer)),
            ("experts", "routed experts", busy_of(Lane::Experts)),
            ("head", "logits", busy_of(Lane::Head)),
            ("waits", "waits", totals.waited_ns),
            ("rest", "the rest", rest_ns),
        ];
        let drive = [("drive", "busy", totals.drive.busy_ns), ("idle", "idle", totals.drive.idle_ns(self.wall_ns))];
        writeln!(out, "<section class=\"budget\">")?;
        for (name, parts) in [("Drive", &drive[..]), ("Compute", &compute[..])] {
            write!(out, "<div class=\"bar-name\">{name}</div><div class=\"bar\">")?;
            for (color, what, ns) in parts.iter().filter(|(_, _, ns)| *ns > 0) {
                let (share, text) = (percent(*ns, self.wall_ns), format!("{what} {}", time(*ns)));
                let width = 100.0 * *ns as f64 / self.wall_ns.max(1) as f64;
                // Words only where there is room for them.
                let shown = if width > 6.0 { &text } else { "" };
                write!(
                    out,
                    "<span class=\"fill-{color}\" style=\"flex-grow:{width:.4}\" title=\"{text}, {share}\">{shown}</span>"
                )?;
            }
            writeln!(out, "</div>")?;
        }
        writeln!(out, "</section>")
    }

    fn write_gaps(&self, totals: &Totals, row: &str, gaps: &[(u64, u64)], out: &mut String) -> fmt::Result {
        let all_ns: u64 = gaps.iter().map(|(start, end)| end - start).sum();
        let mut longest = gaps.to_vec();
        longest.sort_by_key(|(start, end)| (std::cmp::Reverse(end - start), *start));
        longest.truncate(SHOWN_GAPS);
        let many = if gaps.len() == 1 { "gap" } else { "gaps" };
        writeln!(out, "<p class=\"muted\">{} in {} {many}</p>\n<ol class=\"gaps\">", time(all_ns), gaps.len())?;
        for (start, end) in longest {
            let before = totals.segments.partition_point(|segment| segment.start_ns <= start);
            let layer = before.checked_sub(1).map(|i| totals.segments[i]).filter(|segment| start < segment.end_ns);
            let layer =
                layer.map_or_else(|| "outside of layers".to_owned(), |segment| format!("layer {}", segment.layer));
            writeln!(
                out,
                "<li><button type=\"button\" data-row=\"{row}\" data-start=\"{start}\" data-end=\"{end}\">{}</button> at {}, \
                 {layer}</li>",
                time(end - start),
                time(start)
            )?;
        }
        writeln!(out, "</ol>")
    }
}
