//! `strata bench decode`: tokens one by one.

use std::io::Write;

use serde_json::{Value, json};
use strata_engine::Engine;
use strata_engine::bench::{Decode, DecodeTiming, measure};

use super::{Side, fits_times, ids, sides};
use crate::error::CliError;
use crate::flags::DecodeFlags;
use crate::{input, interrupt, note, profile, setup, timeline};

pub(crate) fn decode(flags: &DecodeFlags) -> Result<(), CliError> {
    let (name, context_tokens, tokens, flags) = ("decode", flags.context_tokens, flags.tokens, &flags.timing);
    let recorder = timeline::recorder(flags.timeline.as_deref())?;
    let mut sides = sides(flags)?;
    sides.iter_mut().for_each(|side| side.options.model.timeline = recorder.clone());
    let text = flags.text.as_deref().map(input::text_file).transpose()?;
    interrupt::install()?;
    let path = setup::model_path(flags.model.model.as_deref())?;
    let open = |side: &Side| setup::open_telling(&path, &side.options);
    let run = |engines: &mut [Engine]| {
        let ids = ids(&engines[0], text.as_deref(), context_tokens.saturating_add(tokens))?;
        let (context, ids) = ids.split_at(context_tokens);
        let work = Decode { context: context.to_vec(), ids: ids.to_vec() };
        let timings = interrupt::stoppable(|stop| measure(engines, &work, flags.repeat, stop))?;
        let context = if context_tokens > 0 { format!(" after {context_tokens}") } else { String::new() };
        let title = format!("bench {name}, {tokens} tokens{context}");
        timeline::write(&recorder, flags.timeline.as_deref(), &title, &setup::describe(&engines[0]))?;
        if flags.compare.is_none() {
            setup::save_run(&engines[0], "bench decode", None, Some((tokens, timings[0].spread().median)));
        }
        let backends = engines.iter().map(|engine| engine.model().describe_backend());
        Ok::<Vec<_>, CliError>(backends.zip(timings).collect())
    };
    // Both sides at once, so that they can take turns; where memory does not suffice, one after the other.
    let fits = sides.len() == 1 || fits_times(&path, sides.len() as u64)?;
    let measured = if fits {
        run(&mut sides.iter().map(open).collect::<Result<Vec<_>, _>>()?)?
    } else {
        note::line("strata: two such models do not fit into memory: they are loaded and timed one after the other");
        let one = |side: &Side| Ok(run(&mut [open(side)?])?.remove(0));
        sides.iter().map(one).collect::<Result<Vec<_>, CliError>>()?
    };

    let mut out = std::io::stdout().lock();
    for (side, (backend, timing)) in sides.iter().zip(&measured) {
        if flags.json {
            writeln!(out, "{}", timing_json(name, context_tokens, side, backend, timing))?;
        } else {
            write_timing(&mut out, name, context_tokens, side, backend, timing)?;
        }
        if let Some(profile) = &timing.profile {
            let whose = if sides.len() > 1 { &side.name } else { backend };
            note::line(format_args!("{whose}, all timed runs"));
            note::part(profile::table(profile));
        }
    }
    if let ([a, b], [(_, of_a), (_, of_b)]) = (&sides[..], &measured[..]) {
        let ratio = of_a.ratio(of_b);
        if flags.json {
            let line = json!({
                "bench": name, "compare": [a.name, b.name], "seconds_ratio": ratio, "pairs": flags.repeat,
                "interleaved": fits,
            });
            writeln!(out, "{line}")?;
        } else {
            let pairs = if fits { "pairs in turns" } else { "pairs, one side after the other" };
            writeln!(
                out,
                "{} takes {ratio:.3} times as long as {} (median of {} {pairs})",
                a.name, b.name, flags.repeat
            )?;
        }
    }
    Ok(())
}

fn timing_json(name: &str, context_tokens: usize, side: &Side, backend: &str, timing: &DecodeTiming) -> Value {
    let (spread, rate) = (timing.spread(), timing.flops_per_second());
    let mut shown = json!({
        "bench": name,
        "backend": backend,
        "context_tokens": context_tokens,
        "tokens": timing.tokens,
        "runs": timing.seconds.len(),
        "seconds": spread.median,
        "seconds_min": spread.min,
        "seconds_max": spread.max,
        "tokens_per_second": timing.tokens as f64 / spread.median,
        "flops_per_token": timing.flops.total() as f64 / timing.tokens as f64,
        "flops_per_second": rate,
        "peak": timing.peak.name(),
        "peak_flops_per_second": timing.peak_flops_per_second,
        "fraction": rate / timing.peak_flops_per_second,
    });
    if !side.name.is_empty() {
        shown["setting"] = json!(side.name);
    }
    shown
}

fn write_timing(
    out: &mut impl Write,
    name: &str,
    context_tokens: usize,
    side: &Side,
    backend: &str,
    timing: &DecodeTiming,
) -> Result<(), CliError> {
    let (spread, tokens, rate) = (timing.spread(), timing.tokens as f64, timing.flops_per_second());
    let context = if context_tokens > 0 { format!(" after {context_tokens}") } else { String::new() };
    let setting = if side.name.is_empty() { String::new() } else { format!("{}: ", side.name) };
    let runs = timing.seconds.len();
    let many = if runs == 1 { "" } else { "s" };
    writeln!(out, "{setting}{name}, {} tokens{context}, {runs} run{many} on {backend}", timing.tokens)?;
    for (what, seconds) in [("median", spread.median), ("least", spread.min), ("most", spread.max)] {
        writeln!(out, "  {what:<8}{seconds:>9.4} s{:>10.1} tok/s", tokens / seconds)?;
    }
    writeln!(
        out,
        "  {:.3} GFLOP a token: {:.1} GFLOP/s, {:.0} % of this machine's {:.1} ({})",
        timing.flops.total() as f64 / tokens / 1e9,
        rate / 1e9,
        100.0 * rate / timing.peak_flops_per_second,
        timing.peak_flops_per_second / 1e9,
        timing.peak.name()
    )?;
    Ok(())
}
