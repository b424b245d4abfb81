//! `strata calibrate`: the fastest arena of a model on this machine.

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use strata_engine::bench::Decode;
use strata_engine::{Calibration, EngineError, EngineOptions, Plan, SizeTiming, plan_uncalibrated};

use crate::error::CliError;
use crate::flags::CalibrateFlags;
use crate::plan::gib;
use crate::{bench, input, interrupt, note, setup};

/// Parts of the planned arena that are tried, in hundredths.
const SHARES: [u64; 3] = [60, 80, 100];

pub(crate) fn calibrate(flags: &CalibrateFlags) -> Result<(), CliError> {
    let streaming = &flags.engine.streaming;
    if streaming.arena_gb.is_some() || streaming.memory_gb.is_some() {
        return Err(CliError::Usage(
            "--arena-gb and --memory-gb: what was found is only used without them; --sizes says what to try".to_owned(),
        ));
    }
    let path = setup::model_path(flags.model.model.as_deref())?;
    if flags.forget {
        return forget(flags, &path);
    }
    interrupt::install()?;
    let options = setup::engine_options(&flags.engine);
    // What was found before is no limit of what is tried now.
    let plan = plan_uncalibrated(&path, &options).map_err(setup::plan_failed)?;
    let arenas = match flags.sizes.is_empty() {
        true if plan.slots == plan.experts => return nothing_to_find(flags, &plan),
        true => SHARES.iter().map(|share| plan.arena_bytes / 100 * share).collect(),
        false => flags.sizes.clone(),
    };
    let text = flags.text.as_deref().map(input::text_file).transpose()?;
    let mut sizes: Vec<SizeTiming> = Vec::new();
    for arena_bytes in arenas {
        // As the plan would cut it: whole slots, as many as are needed and no more than there are experts.
        let slots = (arena_bytes / plan.slot_bytes).clamp(plan.smallest_slots, plan.experts);
        let arena_bytes = slots * plan.slot_bytes;
        if sizes.iter().all(|size| size.arena_bytes != arena_bytes) {
            sizes.push(SizeTiming { arena_bytes, seconds: Vec::new() });
        }
    }
    for turn in 0..flags.repeat {
        // One goes first as often as the other.
        let order: Vec<usize> =
            if turn % 2 == 0 { (0..sizes.len()).collect() } else { (0..sizes.len()).rev().collect() };
        for at in order {
            let size = &mut sizes[at];
            let options = EngineOptions { arena_bytes: Some(size.arena_bytes), ..options.clone() };
            let seconds = time(flags, text.as_deref(), &path, &options)?;
            note::line(format_args!(
                "arena {:.2} GiB, run {} of {}: {:.2} tok/s",
                gib(size.arena_bytes),
                turn + 1,
                flags.repeat,
                flags.tokens as f64 / seconds
            ));
            size.seconds.push(seconds);
        }
    }
    let found = Calibration::choose(flags.tokens, sizes).expect("a size that was timed");
    // It took long: it is shown even if it cannot be kept.
    let saved = found.save(&path);
    tell(flags, &plan, &found, saved.is_ok())?;
    Ok(saved?)
}

/// Seconds of one run in an arena of its own, after a prompt of another text, so that memory and the hot set are those of a
/// model that has been at work.
fn time(flags: &CalibrateFlags, text: Option<&str>, path: &Path, options: &EngineOptions) -> Result<f64, CliError> {
    let mut engine = setup::open(path, options)?;
    let run_tokens = flags.context_tokens.saturating_add(flags.tokens);
    let ids = bench::ids(&engine, text, run_tokens.saturating_mul(2))?;
    let (other, timed) = ids.split_at(run_tokens);
    let (context, ids) = timed.split_at(flags.context_tokens);
    let work = Decode { context: context.to_vec(), ids: ids.to_vec() };
    Ok(interrupt::stoppable(|stop| {
        engine.warm_up(other, stop)?;
        Ok::<_, EngineError>(engine.run_decode(&work, false, stop)?.wall_s())
    })?)
}

fn forget(flags: &CalibrateFlags, path: &Path) -> Result<(), CliError> {
    let forgotten = Calibration::forget(path)?;
    let mut out = std::io::stdout().lock();
    match (flags.json, forgotten) {
        (true, _) => writeln!(out, "{}", json!({ "forgotten": forgotten }))?,
        (false, true) => writeln!(out, "what was found is forgotten")?,
        (false, false) => writeln!(out, "there was nothing to forget")?,
    }
    Ok(())
}

fn nothing_to_find(flags: &CalibrateFlags, plan: &Plan) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    match flags.json {
        true => writeln!(out, "{}", json!({ "arena_bytes": null, "sizes": [] }))?,
        false => writeln!(
            out,
            "all {} experts fit into memory: there is nothing to find (--sizes tries anyway)",
            plan.experts
        )?,
    }
    Ok(())
}

fn tell(flags: &CalibrateFlags, plan: &Plan, found: &Calibration, is_kept: bool) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    let tokens = flags.tokens as f64;
    if flags.json {
        let size = |size: &SizeTiming| -> Value {
            json!({
                "arena_bytes": size.arena_bytes,
                "slots": size.arena_bytes / plan.slot_bytes,
                "seconds": size.seconds,
                "tok_s": tokens / size.median(),
            })
        };
        let sizes: Vec<Value> = found.sizes.iter().map(size).collect();
        let shown = json!({
            "arena_bytes": found.arena_bytes, "date": found.date, "tokens": flags.tokens,
            "context_tokens": flags.context_tokens, "interleaved": true, "kept": is_kept, "sizes": sizes,
        });
        writeln!(out, "{shown}")?;
        return Ok(());
    }
    writeln!(out, "{:<12}{:>9}{:>10}{:>10}{:>10}", "arena GiB", "slots", "tok/s", "least", "most")?;
    for size in &found.sizes {
        let rates = || size.seconds.iter().map(|seconds| tokens / seconds);
        writeln!(
            out,
            "{:<12.3}{:>9}{:>10.2}{:>10.2}{:>10.2}{}",
            gib(size.arena_bytes),
            size.arena_bytes / plan.slot_bytes,
            tokens / size.median(),
            rates().fold(f64::INFINITY, f64::min),
            rates().fold(0.0, f64::max),
            match size.arena_bytes == found.arena_bytes {
                true if is_kept => "  kept",
                true => "  best",
                false => "",
            }
        )?;
    }
    if is_kept {
        writeln!(out, "runs of this model use the kept size, unless --arena-gb or --memory-gb is given")?;
    }
    Ok(())
}
