//! One setting or two, run after run: in turns, so that a machine that is slow for some seconds is slow for both.

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use strata_engine::bench::{Spread, Streamed};
use strata_engine::{Engine, EngineOptions, Stop};

use super::{Side, fits_times, ids};
use crate::error::CliError;
use crate::flags::TimingFlags;
use crate::{interrupt, note, profile, setup, timeline};

/// Tokens of another text that are read before anything is timed.
const WARM_UP_TOKENS: usize = 1024;

/// What is timed.
pub(super) trait Work {
    /// What the benchmark is called.
    const NAME: &str;
    type Run;

    /// Tokens that a run needs room for.
    fn tokens(&self) -> usize;

    /// One run, of these tokens.
    fn run(&self, engine: &mut Engine, ids: &[u32], stop: &Stop) -> Result<Self::Run, CliError>;

    /// Seconds of a run, for people, and what else there is to say of it.
    fn tell(&self, run: &Self::Run) -> String;

    /// What the timeline of a run is called.
    fn title(&self) -> String;

    /// Keeps what runs with one setting took.
    fn save(&self, engine: &Engine, runs: &[Self::Run]);

    /// Seconds of a run.
    fn wall_s(run: &Self::Run) -> f64;

    /// One run as an object.
    fn run_json(run: &Self::Run) -> Value;

    /// All runs of the one side as an object: of every number the median.
    fn runs_json(turns: &Turns<Self::Run>) -> Value;

    /// All runs of each side, for people.
    fn write_runs(out: &mut impl Write, sides: &[Side], turns: &Turns<Self::Run>) -> Result<(), CliError>;
}

/// What was measured.
pub(super) struct Turns<R> {
    /// Of each side in turn.
    pub(super) runs: Vec<Vec<R>>,
    /// What computed, by side.
    pub(super) backends: Vec<String>,
    /// Operations of a run, as `flops` counts them.
    pub(super) flops: u64,
}

/// Runs `work` on all sides in turns, after a run of another text on each that is not timed.
pub(super) fn take_turns<W: Work>(
    work: &W,
    path: &Path,
    sides: &[Side],
    timing: &TimingFlags,
    text: Option<&str>,
    flops: impl Fn(&Engine) -> u64,
) -> Result<Turns<W::Run>, CliError> {
    let open = |options: &EngineOptions| setup::open_telling(path, options);
    let none = || sides.iter().map(|_| Vec::new()).collect();
    let mut turns = Turns { runs: none(), backends: vec![String::new(); sides.len()], flops: 0 };
    let run = |engine: &mut Engine, side: usize, turn: usize, runs: &mut Vec<Vec<W::Run>>| {
        let ids = ids(engine, text, work.tokens())?;
        let run = interrupt::stoppable(|stop| work.run(engine, &ids, stop))?;
        let setting = if sides[side].name.is_empty() { String::new() } else { format!("{}, ", sides[side].name) };
        note::line(format_args!("{setting}run {} of {}: {}", turn + 1, timing.repeat, work.tell(&run)));
        runs[side].push(run);
        Ok::<(), CliError>(())
    };
    // Sides that differ in what an open engine can change share one.
    let shared = shared_options(sides);
    if shared.is_some() || sides.len() == 1 || fits_times(path, sides.len() as u64)? {
        let mut engines = match &shared {
            Some(options) => vec![open(options)?],
            None => sides.iter().map(|side| open(&side.options)).collect::<Result<_, _>>()?,
        };
        engines.iter_mut().try_for_each(|engine| warm_up(engine, work.tokens(), text))?;
        for turn in 0..timing.repeat {
            for at in in_turn(sides.len(), turn) {
                let engine = if shared.is_some() { &mut engines[0] } else { &mut engines[at] };
                engine.set_streaming(&sides[at].options);
                run(engine, at, turn, &mut turns.runs)?;
            }
        }
        for at in 0..sides.len() {
            let engine = if shared.is_some() { &mut engines[0] } else { &mut engines[at] };
            let whose = if shared.is_some() { "all timed runs" } else { &sides[at].name };
            turns.end(work, engine, timing, (at, whose), &flops)?;
        }
    } else {
        note::line("strata: two such models do not fit into memory: one is opened anew for each run");
        for turn in 0..timing.repeat {
            for at in in_turn(sides.len(), turn) {
                let mut engine = open(&sides[at].options)?;
                warm_up(&mut engine, work.tokens(), text)?;
                run(&mut engine, at, turn, &mut turns.runs)?;
                if turn + 1 == timing.repeat {
                    turns.end(work, &mut engine, timing, (at, &sides[at].name), &flops)?;
                }
            }
        }
    }
    Ok(turns)
}

impl<R> Turns<R> {
    /// The last run of a side is done, on this engine.
    fn end(
        &mut self,
        work: &impl Work<Run = R>,
        engine: &mut Engine,
        timing: &TimingFlags,
        (side, whose): (usize, &str),
        flops: impl Fn(&Engine) -> u64,
    ) -> Result<(), CliError> {
        self.flops = flops(engine);
        if timing.compare.is_none() {
            work.save(engine, &self.runs[side]);
        }
        self.backends[side] = engine.model().describe_backend();
        timeline::write(engine.timeline(), timing.timeline.as_deref(), &work.title(), &setup::describe(engine))?;
        if let Some(profile) = engine.take_profile().filter(|profile| profile.layers > 0) {
            note::line(whose);
            note::part(profile::table(&profile));
        }
        Ok(())
    }
}

/// Reads another text than the one that is timed, as far as the context allows to ask for it.
fn warm_up(engine: &mut Engine, tokens: usize, text: Option<&str>) -> Result<(), CliError> {
    // Told before anything is read.
    ids(engine, text, tokens)?;
    let warm_up_tokens = tokens.min(WARM_UP_TOKENS);
    let skipped = tokens.min(engine.model().context_tokens() - warm_up_tokens);
    let ids = ids(engine, text, skipped + warm_up_tokens)?;
    Ok(interrupt::stoppable(|stop: &Stop| engine.warm_up(&ids[skipped..], stop))?)
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

/// Writes what was measured: for people or as one object, and of two sides the ratio of their times.
pub(super) fn write_turns<W: Work>(sides: &[Side], turns: &Turns<W::Run>, as_json: bool) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    if !as_json {
        W::write_runs(&mut out, sides, turns)?;
    }
    match sides {
        [a, b] => write_compared::<W>(&mut out, [a, b], turns, as_json),
        _ if as_json => Ok(writeln!(out, "{}", W::runs_json(turns))?),
        _ => Ok(()),
    }
}

/// Writes the ratio of the sides' times, the median over their runs: as one object with all runs, or as a line.
fn write_compared<W: Work>(
    out: &mut impl Write,
    [a, b]: [&Side; 2],
    turns: &Turns<W::Run>,
    as_json: bool,
) -> Result<(), CliError> {
    let [of_a, of_b] = &turns.runs[..] else { unreachable!("two sides have two lists of runs") };
    let ratio = Spread::of(of_a.iter().zip(of_b).map(|(a, b)| W::wall_s(b) / W::wall_s(a))).median;
    let pairs = of_a.len();
    if as_json {
        let list = |runs: &[W::Run]| runs.iter().map(W::run_json).collect::<Vec<_>>();
        let line = json!({
            "bench": W::NAME, "backend": turns.backends[0], "compare": [a.name, b.name],
            "a": list(of_a), "b": list(of_b), "b_over_a": ratio, "pairs": pairs, "interleaved": true,
        });
        writeln!(out, "{line}")?;
    } else {
        writeln!(out, "{} takes {ratio:.3} times as long as {} (median of {pairs} pairs in turns)", b.name, a.name)?;
    }
    Ok(())
}

/// The median of every number at the same place; what is no number in all of them, as in the first.
pub(super) fn median_of(values: &[Value]) -> Value {
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

/// What all benchmarks of a model that streams say of a run.
pub(super) fn streamed_json(streamed: &Streamed) -> Value {
    json!({
        "bytes_read": streamed.read.bytes,
        "bytes_wasted": streamed.wasted.bytes,
        "records_read": streamed.read.records,
        "records_wasted": streamed.wasted.records,
        "lookups": { "resident": streamed.resident, "ahead": streamed.ahead, "missed": streamed.missed },
        "exposed_wait_s": streamed.exposed_wait_s,
        "ngram_wait_s": streamed.rows_wait_s,
        "ngram_bytes_read": streamed.rows_read_bytes,
    })
}

/// `value` with the keys of `more`.
pub(super) fn merged(mut value: Value, more: Value) -> Value {
    if let (Some(object), Value::Object(more)) = (value.as_object_mut(), more) {
        object.extend(more);
    }
    value
}

/// For people: bytes, look-ups and waits, medians of the runs.
pub(super) fn write_streamed(out: &mut impl Write, runs: &[&Streamed], wall_s: f64) -> Result<(), CliError> {
    const GB: f64 = 1e9;
    let median = |of: fn(&Streamed) -> f64| Spread::of(runs.iter().map(|run| of(run))).median;
    let read = median(|run| run.read.bytes as f64);
    writeln!(
        out,
        "  bytes     {:.2} GB needed, {:.2} GB read, {:.2} GB of them not used: {:.2} GB/s",
        median(|run| run.needed.bytes as f64) / GB,
        read / GB,
        median(|run| run.wasted.bytes as f64) / GB,
        read / wall_s / GB,
    )?;
    let (resident, ahead, missed) =
        (median(|run| run.resident as f64), median(|run| run.ahead as f64), median(|run| run.missed as f64));
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
        median(|run| run.exposed_wait_s),
        median(|run| run.rows_wait_s)
    )?;
    Ok(())
}
