//! `strata sim`: a prompt in virtual time.

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::Path;

use serde_json::{Value, json};
use strata_engine::sim::{Habits, Lookahead, Machine, Policy, Ranking, Report, Synthetic, Trace, reference, simulate};

use crate::error::CliError;
use crate::flags::{HotFlag, LookaheadFlag, PleFlag, SimFlags, SimMachineFlags, SimPolicyFlags, SimTextFlags};

const GIB: f64 = (1u64 << 30) as f64;
/// Tokens that --mixer-ms and --ple-ms are times of.
const TIMED_TOKENS: f64 = 1024.0;

pub(crate) fn sim(flags: &SimFlags) -> Result<(), CliError> {
    if flags.asks_for_a_run() { one_run(flags) } else { table(flags.json) }
}

/// The reference as measured and as simulated, then what it could do.
fn table(is_json: bool) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    if !is_json {
        writeln!(
            out,
            "the reference engine, measured and simulated\n\n{:<8}{:>6}{:>7}{:>15}{:>9}{:>9}   {:<22}{:>7}{:>8}{:>8}{:>7}",
            "policy",
            "tokens",
            "chunk",
            "measured s",
            "sim s",
            "differs",
            "resident ahead missed",
            "wait s",
            "read",
            "wasted",
            "GB"
        )?;
    }
    for line in reference::table() {
        let report = line.simulate(0);
        let (policy, tokens) = (if line.is_after { "after" } else { "before" }, line.rows + 1);
        let middle_s = f64::midpoint(line.low_ms, line.high_ms) / 1e3;
        let differs = seconds(report.wall_ns) / middle_s - 1.0;
        if is_json {
            let mut shown = to_json(&report);
            shown["policy"] = policy.into();
            shown["chunk_tokens"] = line.chunk.into();
            shown["measured_s"] = json!([line.low_ms / 1e3, line.high_ms / 1e3]);
            writeln!(out, "{shown}")?;
            continue;
        }
        let measured = match line.high_ms > line.low_ms {
            true => format!("{:.3} - {:.3}", line.low_ms / 1e3, line.high_ms / 1e3),
            false => format!("{middle_s:.3}"),
        };
        let [resident, ahead, missed] = shares(&report);
        writeln!(
            out,
            "{policy:<8}{tokens:>6}{:>7}{measured:>15}{:>9.3}{:>+8.1}%   {resident:>7.1}%{ahead:>5.1}%{missed:>6.1}%{:>9.2}{:>8}{:>8}{:>7.1}",
            line.chunk,
            seconds(report.wall_ns),
            100.0 * differs,
            seconds(report.expert_wait_ns),
            records(report.read_bytes()),
            records(report.wasted_bytes()),
            report.read_bytes() as f64 / 1e9,
        )?;
    }
    passes(is_json, &mut out)
}

/// What longer passes and experts in order of arrival would give on the reference's machine.
fn passes(is_json: bool, out: &mut impl Write) -> Result<(), CliError> {
    const TOKENS: u32 = 8192;
    if !is_json {
        writeln!(
            out,
            "\nits machine, {TOKENS} tokens\n\n{:<8}{:>6}{:>9}{:>9}{:>8}{:>15}{:>17}{:>16}{:>15}",
            "policy",
            "pass",
            "sim s",
            "tok/s",
            "ratio",
            "drive floor s",
            "compute floor s",
            "expert wait s",
            "n-gram wait s"
        )?;
    }
    let hot = reference::any_experts(0, reference::LAYERS, reference::EXPERTS);
    for pass in [1024, 2048, 4096, 8192] {
        for (policy, strip) in [("after", pass), ("strata", 256)] {
            let (trace, ranking) = reference::text(TOKENS, strip, 0);
            let policies = if policy == "after" { reference::after(pass) } else { reference::strata(pass) };
            let report = simulate(&trace, &reference::machine(), &policies, &hot, Some(&ranking)).map_err(too_small)?;
            if is_json {
                let mut shown = to_json(&report);
                shown["policy"] = policy.into();
                shown["chunk_tokens"] = pass.into();
                writeln!(out, "{shown}")?;
                continue;
            }
            writeln!(
                out,
                "{policy:<8}{pass:>6}{:>9.3}{:>9.1}{:>8.3}{:>15.3}{:>17.3}{:>16.3}{:>15.3}",
                seconds(report.wall_ns),
                report.tokens as f64 / seconds(report.wall_ns),
                report.ratio(),
                seconds(report.drive_floor_ns),
                seconds(report.compute_floor_ns),
                seconds(report.expert_wait_ns),
                seconds(report.ple_wait_ns)
            )?;
        }
    }
    Ok(())
}

fn one_run(flags: &SimFlags) -> Result<(), CliError> {
    let (trace, ranking) = text(&flags.text)?;
    let machine = machine(&flags.machine, &trace);
    let policy = policy(&flags.policy);
    let needs_ranking =
        flags.machine.hot == Some(HotFlag::Ranking) || matches!(policy.lookahead, Lookahead::Profile { .. });
    if needs_ranking && ranking.is_none() {
        let text = "what is popular is not known: with --trace, give the routes of other text with --profile";
        return Err(CliError::Usage(text.to_owned()));
    }
    let hot = match (flags.machine.hot, &ranking) {
        (Some(HotFlag::Ranking), Some(ranking)) => ranking.hottest().collect(),
        _ => reference::any_experts(flags.text.seed.unwrap_or(0), trace.layers, trace.experts),
    };
    let report = simulate(&trace, &machine, &policy, &hot, ranking.as_ref()).map_err(too_small)?;
    let mut out = std::io::stdout().lock();
    match flags.json {
        true => writeln!(out, "{}", to_json(&report))?,
        false => write_report(&mut out, &report)?,
    }
    Ok(())
}

#[allow(clippy::needless_pass_by_value)] // as map_err gives it
fn too_small(error: impl std::fmt::Display) -> CliError {
    CliError::Failed(format!("{error}: use a larger --arena-share"))
}

fn text(flags: &SimTextFlags) -> Result<(Trace, Option<Ranking>), CliError> {
    if let Some(path) = &flags.trace {
        let trace = read_trace(path)?;
        let ranking = flags.profile.as_deref().map(|path| read_other(path, &trace)).transpose()?;
        return Ok((trace, ranking.as_ref().map(Ranking::of)));
    }
    let synthetic = Synthetic {
        layers: flags.layers.unwrap_or(reference::LAYERS),
        experts: flags.experts.unwrap_or(reference::EXPERTS),
        top_k: flags.top_k.unwrap_or(reference::TOP_K),
        tokens: flags.tokens.unwrap_or(1024),
        strip_rows: flags.strip.unwrap_or(256),
        habits: Habits {
            foreseen: flags.foreseen.unwrap_or(reference::FORESEEN),
            ranked: flags.ranked.unwrap_or(reference::RANKED),
        },
        seed: flags.seed.unwrap_or(0),
    };
    if most_routes(&synthetic) > MOST_ROUTES {
        let text = "routes of so many strips, layers and experts do not fit into memory: ask for fewer --tokens, --layers \
                    or --experts, or a longer --strip";
        return Err(CliError::Usage(text.to_owned()));
    }
    let (trace, ranking) = synthetic.routes();
    Ok((trace, Some(ranking)))
}

/// The most entries of made-up routes: 2 GiB.
const MOST_ROUTES: u64 = 1 << 28;

/// Entries that made-up routes may have: the experts that a strip uses in a layer, and those that are forecast.
fn most_routes(synthetic: &Synthetic) -> u64 {
    let Synthetic { layers, experts, top_k, tokens, strip_rows, .. } = *synthetic;
    let strips = u64::from(tokens.div_ceil(strip_rows));
    let of_strip = (u64::from(strip_rows.min(tokens)) * u64::from(top_k)).min(u64::from(experts));
    // Lists take something themselves.
    strips * u64::from(layers) * 2 * (of_strip + 8)
}

pub(crate) fn read_trace(path: &Path) -> Result<Trace, CliError> {
    let failed = |error: &dyn std::fmt::Display| CliError::Failed(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(|error| failed(&error))?;
    Trace::read(&mut BufReader::new(file)).map_err(|error| failed(&error))
}

/// Routes of other text by the same model.
pub(crate) fn read_other(path: &Path, trace: &Trace) -> Result<Trace, CliError> {
    let other = read_trace(path)?;
    if (other.layers, other.experts) == (trace.layers, trace.experts) {
        return Ok(other);
    }
    let text = format!(
        "{}: routes of {} layers of {} experts; those that it is to say something of have {} layers of {} experts",
        path.display(),
        other.layers,
        other.experts,
        trace.layers,
        trace.experts
    );
    Err(CliError::Failed(text))
}

fn machine(flags: &SimMachineFlags, trace: &Trace) -> Machine {
    let mut machine = reference::machine();
    let experts = f64::from(trace.layers) * f64::from(trace.experts);
    let all = f64::from(reference::LAYERS * reference::EXPERTS);
    let hot_share = flags.hot_share.unwrap_or(f64::from(machine.hot_slots) / f64::from(machine.slots));
    machine.slots = (flags.arena_share.unwrap_or(f64::from(machine.slots) / all) * experts).round() as u32;
    machine.hot_slots = (hot_share * f64::from(machine.slots)).round() as u32;
    machine.record_bytes = flags.record_bytes.unwrap_or(machine.record_bytes);
    let drive = &mut machine.drive;
    let set = |value: &mut f64, flag: Option<f64>, unit: f64| *value = flag.map_or(*value, |flag| flag * unit);
    set(&mut drive.bytes_per_second, flags.drive_gb_s, GIB);
    set(&mut drive.ple_token_ns, flags.ple_ms, 1e6 / TIMED_TOKENS);
    set(&mut drive.ple_share, flags.ple_share, 1.0);
    drive.latency_ns = flags.latency_us.map_or(drive.latency_ns, |us| (us * 1e3).round() as u64);
    drive.depth = flags.depth.unwrap_or(drive.depth);
    let compute = &mut machine.compute;
    set(&mut compute.mixer_row_ns, flags.mixer_ms, 1e6 / TIMED_TOKENS);
    set(&mut compute.layer_ns, flags.layer_ms, 1e6);
    set(&mut compute.expert_ns, flags.expert_us, 1e3);
    set(&mut compute.expert_row_ns, flags.expert_row_us, 1e3);
    set(&mut compute.prompt_ns, flags.prompt_ms, 1e6);
    machine
}

fn policy(flags: &SimPolicyFlags) -> Policy {
    let cap = flags.ahead_cap.unwrap_or(u32::MAX);
    Policy {
        pass_tokens: flags.pass.unwrap_or(1024),
        lookahead: match flags.lookahead {
            Some(LookaheadFlag::Off) => Lookahead::Off,
            Some(LookaheadFlag::Profile) => Lookahead::Profile { cap, late_layer: u32::MAX, late_cap: cap },
            // They differ in single tokens only; what is simulated is a prompt.
            Some(LookaheadFlag::Router | LookaheadFlag::Router2) | None => {
                Lookahead::Router { min_tokens: flags.forecast_min.unwrap_or(1) }
            }
        },
        queues_after_wait: flags.queue_late,
        finishes_ahead: flags.finish_ahead,
        waits_for_all: flags.wait_for_all,
        ple_first: flags.ple == Some(PleFlag::Sync),
    }
}

fn write_report(out: &mut impl Write, report: &Report) -> Result<(), CliError> {
    let [resident, ahead, missed] = shares(report);
    let gib = |bytes: u64| bytes as f64 / GIB;
    let passes = if report.passes == 1 { "pass" } else { "passes" };
    writeln!(out, "prompt         {} tokens in {} {passes}", report.tokens, report.passes)?;
    let rate = report.tokens as f64 / seconds(report.wall_ns);
    writeln!(out, "wall           {:.3} s, {rate:.1} tokens a second", seconds(report.wall_ns))?;
    writeln!(out, "drive floor    {:.3} s", seconds(report.drive_floor_ns))?;
    writeln!(out, "compute floor  {:.3} s", seconds(report.compute_floor_ns))?;
    writeln!(out, "wall / floor   {:.3}", report.ratio())?;
    writeln!(
        out,
        "waits          {:.3} s for experts, {:.3} s for n-gram rows",
        seconds(report.expert_wait_ns),
        seconds(report.ple_wait_ns)
    )?;
    let all = report.counts.resident.records + report.counts.ahead.records + report.counts.missed.records;
    writeln!(out, "look-ups       {all}: {resident:.1} % resident, {ahead:.1} % ahead, {missed:.1} % missed")?;
    writeln!(
        out,
        "experts        {:.3} GiB needed, {:.3} read, {:.3} of them wasted",
        gib(report.needed_bytes()),
        gib(report.read_bytes()),
        gib(report.wasted_bytes())
    )?;
    Ok(())
}

fn to_json(report: &Report) -> Value {
    json!({
        "tokens": report.tokens,
        "passes": report.passes,
        "wall_s": seconds(report.wall_ns),
        "drive_floor_s": seconds(report.drive_floor_ns),
        "compute_floor_s": seconds(report.compute_floor_ns),
        "ratio": report.ratio(),
        "expert_wait_s": seconds(report.expert_wait_ns),
        "ple_wait_s": seconds(report.ple_wait_ns),
        "lookups_resident": report.counts.resident.records,
        "lookups_ahead": report.counts.ahead.records,
        "lookups_missed": report.counts.missed.records,
        "needed_bytes": report.needed_bytes(),
        "read_bytes": report.read_bytes(),
        "wasted_bytes": report.wasted_bytes(),
    })
}

/// Look-ups in per cent: resident, ahead, missed.
fn shares(report: &Report) -> [f64; 3] {
    let counts = [report.counts.resident, report.counts.ahead, report.counts.missed].map(|tally| tally.records as f64);
    counts.map(|count| 100.0 * count / counts.iter().sum::<f64>().max(1.0))
}

fn records(bytes: u64) -> u64 {
    bytes / reference::RECORD_BYTES
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
