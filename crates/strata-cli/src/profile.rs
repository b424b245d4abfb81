//! Where the time of passes went, as a table.

use std::fmt::Write;

use strata_engine::{Operation, Profile};

/// A line for each operation that took time, most time first, and one for all.
pub(crate) fn table(profile: &Profile) -> String {
    let total = profile.total().as_secs_f64();
    let mut lines: Vec<_> = Operation::ALL.into_iter().map(|operation| (operation, profile.of(operation))).collect();
    lines.retain(|(_, spent)| spent.calls > 0);
    lines.sort_by_key(|(_, spent)| std::cmp::Reverse(spent.time));
    let mut text = String::new();
    let mut line = |name: &str, calls: Option<u64>, seconds: f64| {
        let calls = calls.map_or(String::new(), |calls| calls.to_string());
        let (share, per_layer) = (100.0 * seconds / total, 1e6 * seconds / profile.layers.max(1) as f64);
        let _ = writeln!(text, "{name:<22}{calls:>9}{seconds:>11.4} s{share:>8.1} %{per_layer:>12.1} us");
    };
    for (operation, spent) in lines {
        line(operation.name(), Some(spent.calls), spent.time.as_secs_f64());
    }
    line("all", None, total);
    format!("{:<22}{:>9}{:>13}{:>10}{:>15}\n{text}", "operation", "calls", "time", "share", "a layer")
}
