//! `strata bench decode`: tokens one by one, held against the least time that reading and computing them can take.

use std::io::Write;

use serde_json::{Value, json};
use strata_engine::bench::{Decode, DecodeRun, Spread};
use strata_engine::{Engine, Stop};

use super::turns::{Turns, Work, median_of, merged, streamed_json, take_turns, write_streamed, write_turns};
use super::{Side, sides};
use crate::error::CliError;
use crate::flags::DecodeFlags;
use crate::{input, interrupt, route, setup, timeline};

pub(crate) fn decode(flags: &DecodeFlags) -> Result<(), CliError> {
    let timing = &flags.timing;
    let recorder = timeline::recorder(timing.timeline.as_deref())?;
    let mut sides = sides(timing)?;
    sides.iter_mut().for_each(|side| side.options.model.timeline = recorder.clone());
    let text = timing.text.as_deref().map(input::text_file).transpose()?;
    interrupt::install()?;
    let path = setup::model_path(timing.model.model.as_deref())?;
    let tokens = Tokens { context: flags.context_tokens, tokens: flags.tokens, with_floors: !flags.no_floors };
    let flops = |engine: &Engine| engine.decode_flops(flags.context_tokens, flags.tokens).total();
    let turns = take_turns(&tokens, &path, &sides, timing, text.as_deref(), flops)?;

    write_turns::<Tokens>(&sides, &turns, timing.json)
}

struct Tokens {
    context: usize,
    tokens: usize,
    with_floors: bool,
}

impl Work for Tokens {
    const NAME: &str = "decode";
    type Run = DecodeRun;

    fn tokens(&self) -> usize {
        self.context.saturating_add(self.tokens)
    }

    fn run(&self, engine: &mut Engine, ids: &[u32], stop: &Stop) -> Result<DecodeRun, CliError> {
        let (context, ids) = ids.split_at(self.context);
        let work = Decode { context: context.to_vec(), ids: ids.to_vec() };
        Ok(engine.run_decode(&work, self.with_floors, stop)?)
    }

    fn tell(&self, run: &DecodeRun) -> String {
        let floors = run.floors.map(|f| format!("; floors: drive {:.2} s, compute {:.2} s", f.drive_s, f.compute_s));
        format!("{:.2} s{}", run.wall_s(), floors.unwrap_or_default())
    }

    fn title(&self) -> String {
        let context = if self.context > 0 { format!(" after {}", self.context) } else { String::new() };
        format!("bench decode, {} tokens{context}", self.tokens)
    }

    fn save(&self, engine: &Engine, runs: &[DecodeRun]) {
        let wall_s = Spread::of(runs.iter().map(DecodeRun::wall_s)).median;
        setup::save_run(&engine.run_keeper(), "bench decode", None, Some((self.tokens, wall_s)));
    }

    fn wall_s(run: &DecodeRun) -> f64 {
        run.wall_s()
    }

    fn run_json(run: &DecodeRun) -> Value {
        let (tokens, wall_s, streamed) = (run.token_s.len(), run.wall_s(), &run.streamed);
        let (first, steady) = run.first_and_steady().unzip();
        let value = json!({
            "context_tokens": run.context_tokens,
            "tokens": tokens,
            "wall_s": wall_s,
            "tok_s": tokens as f64 / wall_s,
            "first_64_tok_s": first,
            "steady_tok_s": steady,
            "drive_floor_s": run.floors.map(|floors| floors.drive_s),
            "compute_floor_s": run.floors.map(|floors| floors.compute_s),
            "memory_floor_s": run.floors.map(|floors| floors.memory_s),
            "ratio": run.ratio(),
            "hit_rate": streamed.hit_rate(),
            "bytes_missed": streamed.needed.bytes,
            "records_missed": streamed.needed.records,
            "forecast": { "precision": streamed.forecast.precision(), "recall": streamed.forecast.recall() },
            "early_forecast": {
                "precision": streamed.early_forecast.precision(),
                "recall": streamed.early_forecast.recall(),
            },
            "routes": run.routes.as_ref().map(route::json),
            "peak_flops_per_second": run.peak_flops_per_second,
            "peak_rss_bytes": run.peak_rss_bytes,
            "plan_bytes": run.plan_bytes,
        });
        merged(value, streamed_json(streamed))
    }

    fn runs_json(turns: &Turns<DecodeRun>) -> Value {
        let (runs, flops) = (&turns.runs[0], turns.flops as f64);
        let wall = Spread::of(runs.iter().map(DecodeRun::wall_s));
        let shown = median_of(&runs.iter().map(Self::run_json).collect::<Vec<_>>());
        let rate = flops / wall.median;
        let fraction = shown["peak_flops_per_second"].as_f64().map(|peak| rate / peak);
        let more = json!({
            "bench": Self::NAME,
            "backend": turns.backends[0],
            "runs": runs.len(),
            "seconds": wall.median,
            "seconds_min": wall.min,
            "seconds_max": wall.max,
            "tokens_per_second": runs[0].token_s.len() as f64 / wall.median,
            "flops_per_token": flops / runs[0].token_s.len() as f64,
            "flops_per_second": rate,
            "peak": runs[0].peak.name(),
            "fraction": fraction,
        });
        merged(shown, more)
    }

    fn write_runs(out: &mut impl Write, sides: &[Side], turns: &Turns<DecodeRun>) -> Result<(), CliError> {
        for (at, (side, runs)) in sides.iter().zip(&turns.runs).enumerate() {
            write_side(out, &side.name, &turns.backends[at], runs, turns.flops as f64)?;
        }
        Ok(())
    }
}

fn write_side(out: &mut impl Write, name: &str, backend: &str, runs: &[DecodeRun], flops: f64) -> Result<(), CliError> {
    const GB: f64 = 1e9;
    let median = |of: &dyn Fn(&DecodeRun) -> f64| Spread::of(runs.iter().map(of)).median;
    let first = &runs[0];
    let wall = Spread::of(runs.iter().map(DecodeRun::wall_s));
    let tokens = first.token_s.len() as f64;
    let context = if first.context_tokens > 0 { format!(" after {}", first.context_tokens) } else { String::new() };
    let setting = if name.is_empty() { String::new() } else { format!("{name}: ") };
    let many = if runs.len() == 1 { "" } else { "s" };
    writeln!(out, "{setting}decode, {tokens} tokens{context}, {} run{many} on {backend}", runs.len())?;
    for (what, seconds) in [("median", wall.median), ("least", wall.min), ("most", wall.max)] {
        writeln!(out, "  {what:<10}{seconds:>9.4} s{:>10.1} tok/s", tokens / seconds)?;
    }
    if let Some((_, steady)) = first.first_and_steady() {
        let of_first = median(&|run| run.first_and_steady().map_or(steady, |(first, _)| first));
        let of_rest = median(&|run| run.first_and_steady().map_or(steady, |(_, steady)| steady));
        writeln!(out, "  first 64  {of_first:>20.1} tok/s, {of_rest:.1} after them")?;
    }
    let rate = flops / wall.median;
    let peak = median(&|run| run.peak_flops_per_second.unwrap_or(f64::INFINITY));
    writeln!(
        out,
        "  {:.3} GFLOP a token: {:.1} GFLOP/s, {:.0} % of this machine's {:.1} ({})",
        flops / tokens / GB,
        rate / GB,
        100.0 * rate / peak,
        peak / GB,
        first.peak.name()
    )?;
    if first.floors.is_some() {
        let floor = |of: fn(&DecodeRun) -> f64| median(&of);
        writeln!(
            out,
            "  floors    drive {:.3} s, compute {:.3} s, memory {:.3} s; {:.3} times drive and compute",
            floor(|run| run.floors.map_or(0.0, |floors| floors.drive_s)),
            floor(|run| run.floors.map_or(0.0, |floors| floors.compute_s)),
            floor(|run| run.floors.map_or(0.0, |floors| floors.memory_s)),
            floor(|run| run.ratio().unwrap_or(0.0)),
        )?;
    }
    if let Some(routes) = first.routes.as_ref().and_then(route::summary) {
        writeln!(out, "  {routes}")?;
    }
    if first.streamed.needed.records == 0 {
        return Ok(());
    }
    write_streamed(out, &runs.iter().map(|run| &run.streamed).collect::<Vec<_>>(), wall.median)?;
    for (name, is_early) in [("forecast", false), ("early", true)] {
        let of = |run: &DecodeRun| if is_early { run.streamed.early_forecast } else { run.streamed.forecast };
        let forecasts = runs.iter().map(of).map(|forecast| forecast.precision().zip(forecast.recall()));
        if let Some(forecasts) = forecasts.collect::<Option<Vec<_>>>() {
            let median = |of: fn(&(f64, f64)) -> f64| 100.0 * Spread::of(forecasts.iter().map(of)).median;
            writeln!(
                out,
                "  {name:<10}{:.1} % right, {:.1} % of what was missing foreseen",
                median(|forecast| forecast.0),
                median(|forecast| forecast.1)
            )?;
        }
    }
    if let Some(peak_bytes) = runs.iter().filter_map(|run| run.peak_rss_bytes).max() {
        writeln!(
            out,
            "  memory    {:.3} GB at most, {:.3} GB planned",
            peak_bytes as f64 / GB,
            first.plan_bytes as f64 / GB
        )?;
    }
    Ok(())
}
