//! `strata bench prefill`: a prompt, held against the least time that reading and that computing can take.

use std::io::Write;

use serde_json::{Value, json};
use strata_engine::bench::{PrefillRun, Spread};
use strata_engine::{Engine, Stop};

use super::turns::{Turns, Work, median_of, merged, streamed_json, take_turns, write_streamed, write_turns};
use super::{Side, sides};
use crate::error::CliError;
use crate::flags::PrefillFlags;
use crate::{input, interrupt, setup, timeline};

pub(crate) fn prefill(flags: &PrefillFlags) -> Result<(), CliError> {
    let timing = &flags.timing;
    let recorder = timeline::recorder(timing.timeline.as_deref())?;
    let mut sides = sides(timing)?;
    sides.iter_mut().for_each(|side| side.options.model.timeline = recorder.clone());
    let text = timing.text.as_deref().map(input::text_file).transpose()?;
    interrupt::install()?;
    let path = setup::model_path(timing.model.model.as_deref())?;
    let prompt = Prompt { tokens: flags.tokens, with_floors: !flags.no_floors, is_fake: flags.fake_stream };
    let flops = |engine: &Engine| engine.prompt_flops(flags.tokens);
    let turns = take_turns(&prompt, &path, &sides, timing, text.as_deref(), flops)?;

    write_turns::<Prompt>(&sides, &turns, timing.json)
}

struct Prompt {
    tokens: usize,
    with_floors: bool,
    is_fake: bool,
}

impl Work for Prompt {
    const NAME: &str = "prefill";
    type Run = PrefillRun;

    fn tokens(&self) -> usize {
        self.tokens
    }

    fn run(&self, engine: &mut Engine, ids: &[u32], stop: &Stop) -> Result<PrefillRun, CliError> {
        let mut run = engine.run_prefill(ids, self.with_floors || self.is_fake, stop)?;
        if let (true, Some(floors)) = (self.is_fake, run.floors) {
            run = run.only_computed(floors.compute_s);
        }
        Ok(run)
    }

    fn tell(&self, run: &PrefillRun) -> String {
        let floors = run.floors.map(|f| format!("; floors: drive {:.2} s, compute {:.2} s", f.drive_s, f.compute_s));
        format!("{:.2} s{}", run.wall_s, floors.unwrap_or_default())
    }

    fn title(&self) -> String {
        format!("bench prefill, {} tokens", self.tokens)
    }

    fn save(&self, engine: &Engine, runs: &[PrefillRun]) {
        if !self.is_fake {
            let wall_s = Spread::of(runs.iter().map(|run| run.wall_s)).median;
            setup::save_run(&engine.run_keeper(), "bench prefill", Some((self.tokens, wall_s)), None);
        }
    }

    fn wall_s(run: &PrefillRun) -> f64 {
        run.wall_s
    }

    fn run_json(run: &PrefillRun) -> Value {
        let value = json!({
            "tokens": run.tokens,
            "pass_tokens": run.pass_tokens,
            "wall_s": run.wall_s,
            "tok_s": run.tokens as f64 / run.wall_s,
            "drive_floor_s": run.floors.map(|floors| floors.drive_s),
            "compute_floor_s": run.floors.map(|floors| floors.compute_s),
            "ratio": run.ratio(),
            "drive_busy": run.drive_busy,
            "bytes_needed": run.streamed.needed.bytes,
            "records_needed": run.streamed.needed.records,
            "peak_rss_bytes": run.peak_rss_bytes,
            "plan_bytes": run.plan_bytes,
            "conditions": {
                "clock_mhz": run.conditions.clock_mhz,
                "temperature_c": run.conditions.temperature_c,
                "swapped_bytes": run.conditions.swapped_bytes,
            },
        });
        merged(value, streamed_json(&run.streamed))
    }

    fn runs_json(turns: &Turns<PrefillRun>) -> Value {
        let (runs, flops) = (&turns.runs[0], turns.flops as f64);
        let all: Vec<Value> = runs.iter().map(Self::run_json).collect();
        let mut shown = median_of(&all);
        shown["bench"] = json!(Self::NAME);
        shown["backend"] = json!(turns.backends[0]);
        shown["flops_per_token"] = json!(flops / runs[0].tokens as f64);
        shown["flops_per_second"] = json!(flops / shown["wall_s"].as_f64().unwrap_or(f64::NAN));
        shown["runs"] = json!(all);
        shown
    }

    fn write_runs(out: &mut impl Write, sides: &[Side], turns: &Turns<PrefillRun>) -> Result<(), CliError> {
        for (side, runs) in sides.iter().zip(&turns.runs) {
            write_side(out, &side.name, runs, turns)?;
        }
        Ok(())
    }
}

fn write_side(
    out: &mut impl Write,
    name: &str,
    runs: &[PrefillRun],
    turns: &Turns<PrefillRun>,
) -> Result<(), CliError> {
    const GB: f64 = 1e9;
    let median = |of: &dyn Fn(&PrefillRun) -> f64| Spread::of(runs.iter().map(of)).median;
    let first = &runs[0];
    let wall = Spread::of(runs.iter().map(|run| run.wall_s));
    let setting = if name.is_empty() { String::new() } else { format!("{name}: ") };
    let many = if runs.len() == 1 { "" } else { "s" };
    writeln!(
        out,
        "{setting}prefill, {} tokens in passes of {}, {} run{many} on {}",
        first.tokens,
        first.pass_tokens,
        runs.len(),
        turns.backends[0]
    )?;
    for (what, seconds) in [("median", wall.median), ("least", wall.min), ("most", wall.max)] {
        writeln!(out, "  {what:<10}{seconds:>9.3} s{:>10.1} tok/s", first.tokens as f64 / seconds)?;
    }
    writeln!(out, "  {:.1} GFLOP/s", turns.flops as f64 / wall.median / GB)?;
    if first.streamed.needed.records == 0 {
        return Ok(());
    }
    if first.floors.is_some() {
        let floor = |of: fn(&PrefillRun) -> f64| median(&of);
        writeln!(
            out,
            "  floors    drive {:.3} s, compute {:.3} s; {:.3} times the larger",
            floor(|run| run.floors.map_or(0.0, |floors| floors.drive_s)),
            floor(|run| run.floors.map_or(0.0, |floors| floors.compute_s)),
            floor(|run| run.ratio().unwrap_or(0.0)),
        )?;
    }
    if let Some(busy) = runs.iter().map(|run| run.drive_busy).collect::<Option<Vec<_>>>() {
        writeln!(out, "  drive     busy {:.1} %", 100.0 * Spread::of(busy).median)?;
    }
    write_streamed(out, &runs.iter().map(|run| &run.streamed).collect::<Vec<_>>(), wall.median)?;
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
