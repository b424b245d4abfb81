//! `strata trace`: which experts a text uses, and what caches would have of them.

use std::fs::File;
use std::io::Write;

use serde_json::{Value, json};
use strata_engine::sim::replay::{self, Arena, Lookups, Replay};
use strata_engine::sim::{Eviction, Trace};
use strata_engine::trace::{self as routes, Then};
use strata_engine::{ExpertId, StreamingOptions};

use crate::error::CliError;
use crate::flags::{TraceRecordFlags, TraceReplayFlags};
use crate::interrupt::stoppable;
use crate::{bench, exact, interrupt, note, setup, sim};

/// Tokens that are recorded when no text was named.
const TOKENS: usize = 1024;
/// Tokens at the beginning that are shown apart: the arena may not know yet what the text uses.
const FIRST: usize = 64;

pub(crate) fn record(flags: &TraceRecordFlags) -> Result<(), CliError> {
    interrupt::install()?;
    exact::check_output(&flags.output)?;
    let path = setup::model_path(flags.model.model.as_deref())?;
    let mut engine = setup::open(&path, &setup::engine_options(&flags.engine))?;
    let ids = match flags.text.named() {
        Ok(text) => text.read(&engine, flags.limit)?,
        Err(_) => bench::ids(&engine, None, flags.limit.unwrap_or(TOKENS))?,
    };
    let decode = flags.decode.unwrap_or(0);
    if decode > 0 && decode >= ids.len() {
        let text = format!("--decode {decode}: the text has {} tokens, and the first is not taken alone", ids.len());
        return Err(CliError::Usage(text));
    }
    let (ids, given) = ids.split_at(ids.len() - decode);
    let then = match flags.write {
        Some(tokens) => Then::Written { tokens, sampling: engine.sampling()? },
        None => Then::Given(given),
    };
    let trace = stoppable(|stop| routes::record(&mut engine, ids, then, stop))?;
    let failed = |error: &dyn std::fmt::Display| CliError::Failed(format!("{}: {error}", flags.output.display()));
    let mut file = File::create(&flags.output).map_err(|error| failed(&error))?;
    trace.write(&mut file).map_err(|error| failed(&error))?;
    let (name, tokens, after) = (flags.output.display(), trace.tokens(), trace.decode.len());
    let after = if after > 0 { format!(" and {after} after them") } else { String::new() };
    note::line(format_args!("{name}: routes of {tokens} tokens{after} in {} layers", trace.layers));
    Ok(())
}

pub(crate) fn replay(flags: &TraceReplayFlags) -> Result<(), CliError> {
    let trace = sim::read_trace(&flags.trace)?;
    if trace.decode.is_empty() {
        let text = "nothing was recorded token by token: use `strata trace record` with --decode or --write";
        return Err(CliError::Failed(format!("{}: {text}", flags.trace.display())));
    }
    let other = flags.profile.as_deref().map(|path| sim::read_other(path, &trace)).transpose()?;
    let experts = u64::from(trace.layers) * u64::from(trace.experts);
    let share = flags.share.unwrap_or(0.3);
    let slots = flags.slots.unwrap_or((share * experts as f64).round() as u32);
    // Of a text without routes, none is known to be used.
    let usage = other.unwrap_or(Trace { strips: Vec::new(), decode: Vec::new(), ..trace.clone() }).usage();
    let replays = replays(&trace, slots, flags.pass, &usage.hottest(slots as usize))?;
    let mut out = std::io::stdout().lock();
    if flags.json {
        for (policy, replay) in &replays {
            writeln!(out, "{}", to_json(policy, replay, &replays[0].1, slots))?;
        }
        return Ok(());
    }
    writeln!(
        out,
        "{slots} of {experts} experts ({:.1} %) in memory; {} tokens after a text of {}\n",
        100.0 * f64::from(slots) / experts as f64,
        trace.decode.len(),
        trace.tokens()
    )?;
    let first = format!("first {FIRST} %");
    writeln!(out, "{:<41}{:>8}{:>10}{:>11}{first:>12}{:>8}", "", "hits %", "misses", "of best %", "rest %")?;
    for (policy, replay) in &replays {
        let (all, first) = (replay.all(), replay.first_passes(FIRST));
        let rest = Lookups { hits: all.hits - first.hits, misses: all.misses - first.misses };
        writeln!(
            out,
            "{policy:<41}{:>8.1}{:>10}{:>11.1}{:>12.1}{:>8.1}",
            100.0 * all.hit_rate(),
            all.misses,
            100.0 * part_of(all, &replays[0].1),
            100.0 * first.hit_rate(),
            100.0 * rest.hit_rate()
        )?;
    }
    if flags.layers {
        writeln!(out, "\nhits in each layer, %")?;
        for (policy, replay) in &replays {
            let layers: String =
                replay.layers().iter().map(|layer| format!("{:>5.1}", 100.0 * layer.hit_rate())).collect();
            writeln!(out, "{policy:<41}{layers}")?;
        }
    }
    Ok(())
}

/// What each policy does, the best of all first, then the arena's own.
fn replays(
    trace: &Trace,
    slots: u32,
    pass_tokens: u32,
    hot: &[ExpertId],
) -> Result<Vec<(&'static str, Replay)>, CliError> {
    let depth = StreamingOptions::depth_for(slots as usize, trace.top_k);
    let arena = Arena { slots, depth, pass_tokens, hot };
    let own = replay::arena(trace, &arena)
        .map_err(|error| CliError::Failed(format!("{error}: use a larger --slots or --share")))?;
    let cache = |eviction| replay::cache(trace, eviction, slots, hot);
    let frequency = |tokens| Eviction::Frequency { half_life_groups: tokens * trace.layers };
    let segmented = |part: u32| Eviction::Segmented { protected_slots: (slots * part / 100) as usize };
    Ok(vec![
        ("the best, which knows what comes", replay::best(trace, slots)),
        ("the arena", own),
        ("used longest ago (LRU)", cache(Eviction::Recency)),
        ("the same, half of them protected", cache(segmented(50))),
        ("the same, 85 % of them protected", cache(segmented(85))),
        ("used least, halved in 16 tokens", cache(frequency(16))),
        ("used least, halved in 128 tokens", cache(frequency(128))),
        ("used least, halved in 1024 tokens", cache(frequency(1024))),
        ("in the order in which they came (CLOCK)", cache(Eviction::Clock)),
    ])
}

/// Hits for each of the best.
fn part_of(all: Lookups, best: &Replay) -> f64 {
    all.hits as f64 / best.all().hits.max(1) as f64
}

fn to_json(policy: &str, replay: &Replay, best: &Replay, slots: u32) -> Value {
    let shown = |lookups: Lookups| json!({ "hits": lookups.hits, "misses": lookups.misses });
    let all = replay.all();
    json!({
        "policy": policy,
        "slots": slots,
        "hits": all.hits,
        "misses": all.misses,
        "hit_rate": all.hit_rate(),
        "of_best": part_of(all, best),
        "first": shown(replay.first_passes(FIRST)),
        "layers": replay.layers().into_iter().map(shown).collect::<Vec<_>>(),
    })
}
