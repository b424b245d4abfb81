//! Flags that do nothing without another one: who gives them expects something, and is told.

use clap::ArgMatches;
use clap::parser::ValueSource;

/// A flag, the other one, and the values of that with which the flag does something.
const NEEDS: [(&str, &str, &[&str]); 7] = [
    ("moce_bonus", "route", &["cached"]),
    ("moce_keep", "route", &["cached"]),
    ("moce_mass", "route", &["cached"]),
    ("moce_slots", "route", &["cached"]),
    ("draft_max", "draft", &["lookup", "mtp", "auto"]),
    ("mtp", "draft", &["mtp", "auto"]),
    ("mtp_norm", "draft", &["mtp", "auto"]),
];

/// What to tell of the first flag of a command line that does nothing.
pub(super) fn problem(matches: &ArgMatches) -> Option<String> {
    let mut at = matches;
    while let Some((_, of_command)) = at.subcommand() {
        at = of_command;
    }
    NEEDS.iter().find_map(|(flag, other, values)| {
        let is_given = has(at, flag) && at.value_source(flag) == Some(ValueSource::CommandLine);
        if !is_given || is_one_of(at, other, values) || is_compared(at, other, values) {
            return None;
        }
        let dashed = |id: &str| id.replace('_', "-");
        Some(format!("--{} does nothing without --{} {}", dashed(flag), dashed(other), values.join("|")))
    })
}

/// Whether the command has such a flag, with a value.
fn has(matches: &ArgMatches, id: &str) -> bool {
    matches.try_contains_id(id).unwrap_or(false)
}

fn is_one_of(matches: &ArgMatches, id: &str, values: &[&str]) -> bool {
    let raw = if has(matches, id) { matches.get_raw(id) } else { None };
    raw.into_iter().flatten().any(|value| values.iter().any(|one| value == *one))
}

/// Whether a benchmark compares values of a flag, and one of these is among them.
fn is_compared(matches: &ArgMatches, id: &str, values: &[&str]) -> bool {
    if !has(matches, "compare") {
        return false;
    }
    let compared = matches.get_one::<String>("compare").and_then(|compare| compare.split_once('='));
    compared.is_some_and(|(key, of)| key == id && of.split(',').any(|value| values.contains(&value)))
}
