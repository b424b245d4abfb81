//! `strata bench prefill`: a prompt, held against the least time that reading and that computing can take.

use std::io::Write;

use serde_json::{Value, json};
use strata_engine::bench::{PrefillRun, Spread};
use strata_engine::{Engine, EngineOptions, Stop};

use super::{Side, fits_times, ids, sides};
use crate::error::CliError;
use crate::flags::PrefillFlags;
use crate::{input, interrupt, note, profile, setup, timeline};

/// Tokens of another text that are read before anything is timed.
const WARM_UP_TOKENS: usize = 1024;

pub(crate) fn prefill(flags: &PrefillFlags) -> Result<(), CliError> {
    let (tokens, timing) = (flags.tokens, &flags.timing);
    let recorder = timeline::recorder(timing.timeline.as_deref())?;
    let mut sides = sides(timing)?;
    sides.iter_mut().for_each(|side| side.options.model.timeline = recorder.clone());
    let text = timing.text.as_deref().map(input::text_file).transpose()?;
    interrupt::install()?;
    let path = setup::model_path(timing.model.model.as_deref())?;
    let open = |options: &EngineOptions| setup::open_telling(&path, options);
    let bench = Bench { tokens, with_floors: !flags.no_floors, is_fake: flags.fake_stream, text };

    // Sides that differ in what an open engine can change share one.
    let shared = shared_options(&sides);
    let fits = shared.is_some() || sides.len() == 1 || fits_times(&path, sides.len() as u64)?;
    let mut runs: Vec<Vec<PrefillRun>> = sides.iter().map(|_| Vec::new()).collect();
    let mut backends = Vec::new();
    let mut flops = 0;
    let mut note_end = |engine: &mut Engine| -> Result<(), CliError> {
        flops = engine.prompt_flops(tokens);
        backends.push(engine.model().describe_backend());
        let title = format!("bench prefill, {tokens} tokens");
        timeline::write(&recorder, timing.timeline.as_deref(), &title, &setup::describe(engine))?;
        if let Some(profile) = engine.take_profile() {
            note::line("all timed runs");
            note::part(profile::table(&profile));
        }
        Ok(())
    };
    if fits {
        let mut engines = match &shared {
            Some(options) => vec![open(options)?],
            None => sides.iter().map(|side| open(&side.options)).collect::<Result<_, _>>()?,
        };
        engines.iter_mut().try_for_each(|engine| bench.warm_up(engine))?;
        for turn in 0..timing.repeat {
            for at in in_turn(sides.len(), turn) {
                let engine = if shared.is_some() { &mut engines[0] } else { &mut engines[at] };
                engine.set_streaming(&sides[at].options);
                runs[at].push(bench.run(engine)?);
                bench.tell(&sides[at], turn, timing.repeat, &runs[at][turn]);
            }
        }
        if let ([_], false) = (&sides[..], flags.fake_stream) {
            let wall_s = Spread::of(runs[0].iter().map(|run| run.wall_s)).median;
            setup::save_run(&engines[0], "bench prefill", Some((tokens, wall_s)), None);
        }
        engines.iter_mut().try_for_each(&mut note_end)?;
    } else {
        note::line("strata: two such models do not fit into memory: one is opened anew for each run");
        for turn in 0..timing.repeat {
            for at in in_turn(sides.len(), turn) {
                let mut engine = open(&sides[at].options)?;
                bench.warm_up(&mut engine)?;
                runs[at].push(bench.run(&mut engine)?);
                bench.tell(&sides[at], turn, timing.repeat, &runs[at][turn]);
                if turn + 1 == timing.repeat {
                    note_end(&mut engine)?;
                }
            }
        }
    }
    let facts = Facts { backend: backends.remove(0), flops };
    let mut out = std::io::stdout().lock();
    match (&sides[..], &runs[..]) {
        ([a, b], [of_a, of_b]) => {
            let ratio = Spread::of(of_a.iter().zip(of_b).map(|(a, b)| b.wall_s / a.wall_s)).median;
            if timing.json {
                let list = |runs: &[PrefillRun]| runs.iter().map(run_json).collect::<Vec<_>>();
                let line = json!({
                    "bench": "prefill", "backend": facts.backend, "compare": [a.name, b.name],
                    "a": list(of_a), "b": list(of_b), "b_over_a": ratio, "pairs": of_a.len(), "interleaved": true,
                });
                writeln!(out, "{line}")?;
            } else {
                write_runs(&mut out, &a.name, of_a, &facts)?;
                write_runs(&mut out, &b.name, of_b, &facts)?;
                let pairs = of_a.len();
                writeln!(
                    out,
                    "{} takes {ratio:.3} times as long as {} (median of {pairs} pairs in turns)",
                    b.name, a.name
                )?;
            }
        }
        _ if timing.json => writeln!(out, "{}", runs_json(&runs[0], &facts))?,
        _ => write_runs(&mut out, "", &runs[0], &facts)?,
    }
    Ok(())
}

/// What is the same in all runs.
struct Facts {
    backend: String,
    /// Operations of a run.
    flops: u64,
}

/// The order of the sides in a turn: one goes first as often as the other.
fn in_turn(sides: usize, turn: usize) -> Vec<usize> {
    let order = 0..sides;
    if turn.is_multiple_of(2) { order.collect() } else { order.rev().collect() }
}

/// The options that one engine for all sides is opened with; `None`: they differ in more than it can change.
fn shared_options(sides: &[Side]) -> Option<EngineOptions> {
    let changed = |options: &EngineOptions| {
        let mut same = options.clone();
        same.pass_tokens = None;
        let streaming = &mut same.model.streaming;
        (streaming.lookahead, streaming.forecast_min, streaming.rows_when) = Default::default();
        format!("{same:?}")
    };
    let mut options = sides[0].options.clone();
    // Room for the largest pass; where one is not given, it is as large as memory allows.
    let passes: Option<Vec<_>> = sides.iter().map(|side| side.options.pass_tokens).collect();
    options.pass_tokens = passes.and_then(|passes| passes.into_iter().max());
    sides.iter().all(|side| changed(&side.options) == changed(&sides[0].options)).then_some(options)
}

struct Bench {
    tokens: usize,
    with_floors: bool,
    is_fake: bool,
    text: Option<String>,
}

impl Bench {
    /// The prompt, after `skipped` other tokens.
    fn ids(&self, engine: &Engine, skipped: usize, tokens: usize) -> Result<Vec<u32>, CliError> {
        let mut ids = ids(engine, self.text.as_deref(), skipped.saturating_add(tokens))?;
        Ok(ids.split_off(skipped))
    }

    fn warm_up(&self, engine: &mut Engine) -> Result<(), CliError> {
        // Told before anything is read.
        self.ids(engine, 0, self.tokens)?;
        // Another text than the one that is timed, as far as the context allows to ask for it.
        let tokens = self.tokens.min(WARM_UP_TOKENS);
        let skipped = self.tokens.min(engine.model().context_tokens() - tokens);
        let ids = self.ids(engine, skipped, tokens)?;
        Ok(interrupt::stoppable(|stop: &Stop| engine.warm_up(&ids, stop))?)
    }

    fn run(&self, engine: &mut Engine) -> Result<PrefillRun, CliError> {
        let ids = self.ids(engine, 0, self.tokens)?;
        let mut run = interrupt::stoppable(|stop| engine.run_prefill(&ids, self.with_floors || self.is_fake, stop))?;
        if let (true, Some(floors)) = (self.is_fake, run.floors) {
            run.wall_s = floors.compute_s;
        }
        Ok(run)
    }

    /// One line a run: runs of large models take minutes.
    fn tell(&self, side: &Side, turn: usize, turns: usize, run: &PrefillRun) {
        let setting = if side.name.is_empty() { String::new() } else { format!("{}, ", side.name) };
        let floors = run.floors.map(|f| format!("; floors: drive {:.2} s, compute {:.2} s", f.drive_s, f.compute_s));
        note::line(format_args!(
            "{setting}run {} of {turns}: {:.2} s{}",
            turn + 1,
            run.wall_s,
            floors.unwrap_or_default()
        ));
    }
}

fn run_json(run: &PrefillRun) -> Value {
    json!({
        "tokens": run.tokens,
        "pass_tokens": run.pass_tokens,
        "wall_s": run.wall_s,
        "tok_s": run.tokens as f64 / run.wall_s,
        "drive_floor_s": run.floors.map(|floors| floors.drive_s),
        "compute_floor_s": run.floors.map(|floors| floors.compute_s),
        "ratio": run.ratio(),
        "drive_busy": run.drive_busy,
        "bytes_needed": run.needed.bytes,
        "bytes_read": run.read.bytes,
        "bytes_wasted": run.wasted.bytes,
        "records_needed": run.needed.records,
        "records_read": run.read.records,
        "records_wasted": run.wasted.records,
        "lookups": { "resident": run.resident, "ahead": run.ahead, "missed": run.missed },
        "exposed_wait_s": run.exposed_wait_s,
        "ngram_wait_s": run.rows_wait_s,
        "ngram_bytes_read": run.rows_read_bytes,
        "peak_rss_bytes": run.peak_rss_bytes,
        "plan_bytes": run.plan_bytes,
        "conditions": {
            "clock_mhz": run.conditions.clock_mhz,
            "temperature_c": run.conditions.temperature_c,
            "swapped_bytes": run.conditions.swapped_bytes,
        },
    })
}

/// One object: of every number the median of the runs, and the runs themselves.
fn runs_json(runs: &[PrefillRun], facts: &Facts) -> Value {
    let all: Vec<Value> = runs.iter().map(run_json).collect();
    let mut shown = median_of(&all);
    shown["bench"] = json!("prefill");
    shown["backend"] = json!(facts.backend);
    shown["flops_per_token"] = json!(facts.flops as f64 / runs[0].tokens as f64);
    shown["flops_per_second"] = json!(facts.flops as f64 / shown["wall_s"].as_f64().unwrap_or(f64::NAN));
    shown["runs"] = json!(all);
    shown
}

/// The median of every number at the same place; what is no number in all of them, as in the first.
fn median_of(values: &[Value]) -> Value {
    if let Some(object) = values[0].as_object() {
        let median = |key: &String| median_of(&values.iter().map(|value| value[key].clone()).collect::<Vec<_>>());
        return object.keys().map(|key| (key.clone(), median(key))).collect::<serde_json::Map<_, _>>().into();
    }
    if let Some(whole) = values.iter().map(Value::as_u64).collect::<Option<Vec<_>>>() {
        return json!(Spread::of(whole.iter().map(|n| *n as f64)).median as u64);
    }
    match values.iter().map(Value::as_f64).collect::<Option<Vec<_>>>() {
        Some(numbers) => json!(Spread::of(numbers).median),
        None => values[0].clone(),
    }
}

fn write_runs(out: &mut impl Write, name: &str, runs: &[PrefillRun], facts: &Facts) -> Result<(), CliError> {
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
        facts.backend
    )?;
    for (what, seconds) in [("median", wall.median), ("least", wall.min), ("most", wall.max)] {
        writeln!(out, "  {what:<10}{seconds:>9.3} s{:>10.1} tok/s", first.tokens as f64 / seconds)?;
    }
    writeln!(out, "  {:.1} GFLOP/s", facts.flops as f64 / wall.median / GB)?;
    if first.needed.records == 0 {
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
    let busy = match runs.iter().map(|run| run.drive_busy).collect::<Option<Vec<_>>>() {
        Some(busy) => format!(", drive busy {:.1} %", 100.0 * Spread::of(busy).median),
        None => String::new(),
    };
    let read = median(&|run| run.read.bytes as f64);
    writeln!(out, "  drive     {:.2} GB/s{busy}", median(&|run| run.read.bytes as f64 / run.wall_s) / GB)?;
    writeln!(
        out,
        "  bytes     {:.2} GB needed, {:.2} GB read, {:.2} GB of them not used",
        median(&|run| run.needed.bytes as f64) / GB,
        read / GB,
        median(&|run| run.wasted.bytes as f64) / GB,
    )?;
    let (resident, ahead, missed) =
        (median(&|run| run.resident as f64), median(&|run| run.ahead as f64), median(&|run| run.missed as f64));
    let part = |n: f64| 100.0 * n / (resident + ahead + missed).max(1.0);
    writeln!(
        out,
        "  look-ups  {:.1} % resident, {:.1} % ahead, {:.1} % missed, of {:.0}",
        part(resident),
        part(ahead),
        part(missed),
        resident + ahead + missed
    )?;
    writeln!(
        out,
        "  waits     {:.3} s for experts, {:.3} s for n-gram rows",
        median(&|run| run.exposed_wait_s),
        median(&|run| run.rows_wait_s)
    )?;
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
