//! What speed to expect and why, and how far the last run was from that.

use serde_json::{Value, json};
use strata_engine::bench::Floors;
use strata_engine::{Engine, LastRun, Rates, Stop, Took, Work};

use super::Report;
use crate::error::CliError;
use crate::setup;

/// The prompt that is foretold.
const PROMPT_TOKENS: usize = 1024;
/// A run that takes so much longer than expected, relative to that, is worth a word.
const FAR_OFF: f64 = 0.5;
/// Shorter runs say little.
const LEAST_SECONDS: f64 = 1.0;

pub(super) fn check(
    report: &mut Report,
    engine: &mut Engine,
    work: &Work,
    drive_bytes_per_second: Option<f64>,
    stop: &Stop,
) -> Result<(), CliError> {
    let (rates, saved) = match engine.measure_rates(drive_bytes_per_second, stop) {
        Ok(measured) => measured,
        Err(error) if error.is_cancelled() => return Err(error.into()),
        Err(error) => {
            report.broken(format!("computation cannot be measured: {error}"), "");
            return Ok(());
        }
    };
    if let Err(error) = saved {
        report.warn(
            format!("nothing can be kept for later runs: {error}"),
            "make the cache folder writable, or name another one (XDG_CACHE_HOME)",
        );
    }
    report.line(
        "computing",
        &format!(
            "{}: prompts at {:.1} GFLOP/s, a token in {:.1} ms, with experts in memory",
            setup::describe(engine),
            rates.prompt_flops_per_second / 1e9,
            rates.token_s * 1e3
        ),
    )?;
    report.set(
        "rates",
        json!({
            "drive_bytes_per_second": rates.drive_bytes_per_second,
            "prompt_flops_per_second": rates.prompt_flops_per_second,
            "token_s": rates.token_s,
        }),
    );
    expected(report, work, &rates)?;
    last_run(report, engine, work, &rates)
}

fn expected(report: &mut Report, work: &Work, rates: &Rates) -> Result<(), CliError> {
    let tokens = PROMPT_TOKENS.min(work.plan().context_tokens as usize);
    let (prompt, token) = (work.prompt(tokens, rates), work.token(rates));
    let hits = work.hits();
    match &prompt {
        Some(floors) => report.line("prompt", &prompt_line(tokens, floors))?,
        None => report.line("prompt", "not foretold: the drive was not measured")?,
    }
    let from = match (hits.share, hits.is_counted) {
        (1.0.., _) => "all experts are in memory".to_owned(),
        (share, true) => format!("{:.0} % of experts are in memory, by what earlier runs used", 100.0 * share),
        (share, false) => {
            format!("{:.0} % of experts are assumed to be in memory, until runs have counted", 100.0 * share)
        }
    };
    let token_s = work.token_s(rates);
    match (&token, token_s) {
        (Some(Floors { drive_s, compute_s }), Some(seconds)) => report.line(
            "tokens",
            &format!(
                "{:.2} a second: {:.1} ms to compute one, {:.1} ms to read the {:.1} MB that it misses ({from})",
                1.0 / seconds,
                1e3 * compute_s,
                1e3 * drive_s,
                work.missed_token_bytes() / 1e6
            ),
        )?,
        _ => report.line("tokens", "not foretold: the drive was not measured")?,
    }
    let floors = |floors: Option<Floors>| {
        floors.map(|floors| json!({ "drive_s": floors.drive_s, "compute_s": floors.compute_s }))
    };
    report.set(
        "expected",
        json!({
            "prompt_tokens": tokens,
            "prompt_s": prompt.map(|floors| floors.most_s()),
            "prompt": floors(prompt),
            "token_s": token_s,
            "tok_s": token_s.map(|seconds| 1.0 / seconds),
            "token": floors(token),
            "missed_token_bytes": work.missed_token_bytes(),
            "hits": { "share": hits.share, "counted": hits.is_counted },
        }),
    );
    Ok(())
}

fn prompt_line(tokens: usize, floors: &Floors) -> String {
    let seconds = floors.most_s();
    let why = match floors.drive_s > floors.compute_s {
        true => format!("the drive is the limit; computing alone takes {:.2} s", floors.compute_s),
        false => format!("computing is the limit; the drive alone takes {:.2} s", floors.drive_s),
    };
    format!("{tokens} tokens in {seconds:.2} s, {:.1} a second: {why}", tokens as f64 / seconds)
}

fn last_run(report: &mut Report, engine: &Engine, work: &Work, rates: &Rates) -> Result<(), CliError> {
    let Some(mut run) = LastRun::of(engine.path())? else {
        report.set("last_run", Value::Null);
        return report.line("last run", "none yet: `run`, `chat` and `bench` keep what they took");
    };
    // A run that came before any measurement is held against the one of now.
    let is_new = run.prompt.iter().chain(&run.decode).any(|took| took.expected_seconds.is_none());
    if let Some(took) = &mut run.prompt {
        took.expected_seconds =
            took.expected_seconds.or_else(|| work.prompt(took.tokens, rates).map(|floors| floors.most_s()));
    }
    if let Some(took) = &mut run.decode {
        took.expected_seconds =
            took.expected_seconds.or_else(|| work.token_s(rates).map(|seconds| seconds * took.tokens as f64));
    }
    let parts = [("prompt", run.prompt), ("written", run.decode)];
    let told: Vec<_> = parts.iter().filter_map(|(name, took)| Some(took_line(name, &(*took)?))).collect();
    let by = if is_new { ", by what was measured now" } else { "" };
    report.line("last run", &format!("`{}` of {}{by}: {}", run.command, run.date, told.join("; ")))?;
    let part = |took: Option<Took>| {
        took.map(|took| {
            json!({
                "tokens": took.tokens, "seconds": took.seconds, "expected_seconds": took.expected_seconds,
                "off_percent": took.off().map(|off| 100.0 * off),
            })
        })
    };
    report.set(
        "last_run",
        json!({
            "command": run.command, "date": run.date, "arena_bytes": run.arena_bytes,
            "prompt": part(run.prompt), "decode": part(run.decode), "expected_before": !is_new,
        }),
    );
    for (name, took) in parts {
        let Some(took) = took.filter(|took| took.seconds > LEAST_SECONDS) else { continue };
        if let Some(off) = took.off().filter(|off| *off > FAR_OFF) {
            report.warn(
                format!("the last run ({name}) took {:.0} % longer than expected", 100.0 * off),
                "other programs, heat, or a drive that slows down: `--profile` and `--timeline` of `strata run` show where \
                 the time goes",
            );
        }
    }
    Ok(())
}

fn took_line(name: &str, took: &Took) -> String {
    let Took { tokens, seconds, .. } = took;
    let rate = *tokens as f64 / seconds;
    let off = match (took.expected_seconds, took.off()) {
        (Some(expected), Some(off)) => {
            let than = if off < 0.0 { "less" } else { "more" };
            format!("expected {expected:.2} s: {:.0} % {than}", 100.0 * off.abs())
        }
        _ => "not foretold".to_owned(),
    };
    format!("{name} {tokens} tokens in {seconds:.2} s ({rate:.1} a second), {off}")
}
