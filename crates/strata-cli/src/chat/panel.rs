//! The figures beside a conversation: what its host is doing, as on the page of `strata serve`.

use strata_engine::host::Status;

use crate::plan::gib;

/// Lines of the panel, of at most `columns`. Rates are those of the last seconds, look-ups those of all that was asked.
pub(super) fn figures(status: &Status, used_tokens: usize, columns: usize) -> Vec<String> {
    let Status { drive, lookups, memory, arena, .. } = status;
    let known = |is_known: bool, text: String| if is_known { text } else { "-".to_owned() };
    let tokens = |per_s: f64| known(per_s > 0.0, format!("{per_s:.1} tok/s"));
    let all = lookups.resident_bytes + lookups.ahead_bytes + lookups.missed_bytes;
    let share = |bytes: u64| known(all > 0, format!("{:.1} %", 100.0 * bytes as f64 / all as f64));
    let held = gauge(memory.rss_bytes as f64 / memory.plan_bytes as f64);
    let mut lines: Vec<String> = [
        ("written", tokens(status.decode_tok_s)),
        ("read", tokens(status.prompt_tok_s)),
        ("drive", known(drive.bytes_s > 0.0, format!("{:.2} GB/s", drive.bytes_s / 1e9))),
        ("busy", format!("{} {:.0} %", gauge(drive.busy), 100.0 * drive.busy)),
        ("resident", share(lookups.resident_bytes)),
        ("ahead", share(lookups.ahead_bytes)),
        ("missed", share(lookups.missed_bytes)),
        ("context", format!("{used_tokens} of {}", status.context_tokens)),
        ("plan", format!("{:.2} GiB", gib(memory.plan_bytes))),
        ("memory", format!("{held} {:.2} GiB", gib(memory.rss_bytes))),
    ]
    .iter()
    .map(|(name, value)| format!("{name:<9}{value}"))
    .collect();
    if !arena.resident_by_layer.is_empty() {
        lines.push(format!("arena    {} slots, {:.2} GiB", arena.slots, gib(arena.slots * arena.slot_bytes)));
        let part = |resident: &u32| f64::from(*resident) / arena.experts as f64;
        let blocks: Vec<char> = arena.resident_by_layer.iter().map(|resident| block(part(resident))).collect();
        lines.extend(blocks.chunks(columns.max(1)).map(|row| row.iter().collect::<String>()));
    }
    lines
}

/// A part of something, 0 to 1, as a block of that height. Something is not nothing.
fn block(part: f64) -> char {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    BLOCKS[((8.0 * part).ceil() as usize).min(8)]
}

/// A part of something, 0 to 1, as a bar.
fn gauge(part: f64) -> String {
    const COLUMNS: usize = 8;
    let full = ((COLUMNS as f64 * part).round() as usize).min(COLUMNS);
    "█".repeat(full) + &"░".repeat(COLUMNS - full)
}

#[cfg(test)]
pub(super) mod tests {
    use strata_engine::host::{ArenaStatus, DriveStatus, LookupStatus, MemoryStatus};

    use super::*;

    /// A host that writes, with an arena of three layers.
    pub(in super::super) fn at_work() -> Status {
        Status {
            context_tokens: 4096,
            prompt_tok_s: 250.04,
            decode_tok_s: 7.25,
            drive: DriveStatus { bytes_s: 1.234e9, busy: 0.63, ..DriveStatus::default() },
            lookups: LookupStatus { resident_bytes: 700, ahead_bytes: 200, missed_bytes: 100 },
            arena: ArenaStatus { slots: 23, slot_bytes: 1 << 27, experts: 16, resident_by_layer: vec![16, 0, 7] },
            memory: MemoryStatus { plan_bytes: 3 << 30, rss_bytes: 3 << 29, ..MemoryStatus::default() },
            ..Status::default()
        }
    }

    #[test]
    fn figures_are_those_of_the_host() {
        let lines = figures(&at_work(), 120, 28);
        let expected = [
            "written  7.2 tok/s",
            "read     250.0 tok/s",
            "drive    1.23 GB/s",
            "busy     █████░░░ 63 %",
            "resident 70.0 %",
            "ahead    20.0 %",
            "missed   10.0 %",
            "context  120 of 4096",
            "plan     3.00 GiB",
            "memory   ████░░░░ 1.50 GiB",
            "arena    23 slots, 2.88 GiB",
            "█ ▄",
        ];
        assert_eq!(lines, expected);
        assert_eq!(figures(&at_work(), 120, 2)[11..], ["█ ", "▄"]);
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        let lines = figures(&Status::default(), 0, 28);
        for (line, value) in [(0, "-"), (1, "-"), (2, "-"), (3, "░░░░░░░░ 0 %"), (4, "-"), (6, "-")] {
            assert_eq!(&lines[line][9..], value, "{lines:?}");
        }
        assert_eq!(lines.len(), 10, "no arena: all experts have their place");
    }

    #[test]
    fn blocks_tell_little_from_nothing_and_never_more_than_all() {
        let blocks: String = [0.0, 0.001, 0.125, 0.126, 0.5, 0.99, 1.0, 1.5, f64::NAN].into_iter().map(block).collect();
        assert_eq!(blocks, " ▁▁▂▄███ ");
        assert_eq!([0.0, 0.5, 2.0, f64::NAN].map(gauge), ["░░░░░░░░", "████░░░░", "████████", "░░░░░░░░"]);
    }
}
