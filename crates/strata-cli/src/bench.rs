//! `strata bench`: how fast a model or the kernels are, for people and for programs.

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};
use strata_engine::bench::{KernelBench, KernelCase, KernelRate, ModelTiming, Workload, measure};
use strata_engine::{Cpu, Engine, EngineOptions, Memory, inspect};

use crate::error::CliError;
use crate::flags::{DecodeFlags, KernelsFlags, PrefillFlags, TimingFlags};
use crate::{input, interrupt, note, profile, setup};

pub(crate) fn prefill(flags: &PrefillFlags) -> Result<(), CliError> {
    model(None, flags.tokens, &flags.timing)
}

pub(crate) fn decode(flags: &DecodeFlags) -> Result<(), CliError> {
    model(Some(flags.context_tokens), flags.tokens, &flags.timing)
}

/// One way to run a model, and what it is called.
struct Side {
    name: String,
    options: EngineOptions,
}

/// Times `tokens` tokens: one by one after so many others, or as a prompt.
fn model(decode_after: Option<usize>, tokens: usize, flags: &TimingFlags) -> Result<(), CliError> {
    let name = if decode_after.is_some() { "decode" } else { "prefill" };
    let context_tokens = decode_after.unwrap_or(0);
    let sides = sides(flags)?;
    let text = flags.text.as_deref().map(input::text_file).transpose()?;
    interrupt::install()?;
    let path = setup::model_path(flags.model.model.as_deref())?;
    let open = |side: &Side| setup::open(&path, &side.options);
    let run = |engines: &mut [Engine]| {
        let ids = ids(&engines[0], text.as_deref(), context_tokens.saturating_add(tokens))?;
        let work = match decode_after {
            None => Workload::Prefill { ids },
            Some(after) => Workload::Decode { context: ids[..after].to_vec(), ids: ids[after..].to_vec() },
        };
        let timings = interrupt::stoppable(|stop| measure(engines, &work, flags.repeat, stop))?;
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

/// The settings to time: one, or the two of --compare.
fn sides(flags: &TimingFlags) -> Result<Vec<Side>, CliError> {
    let options = EngineOptions { is_profiled: flags.profile, ..setup::engine_options(&flags.engine) };
    let Some(compare) = &flags.compare else {
        return Ok(vec![Side { name: String::new(), options }]);
    };
    let bad = || {
        CliError::Usage(format!(
            "--compare {compare}: expected KEY=A,B with a key of isa, threads, precise (true, false), pass, strip"
        ))
    };
    let (key, values) = compare.split_once('=').ok_or_else(bad)?;
    if !["isa", "threads", "precise", "pass", "strip"].contains(&key) || values.split(',').count() != 2 {
        return Err(bad());
    }
    let side = |value: &str| {
        let mut options = options.clone();
        setup::set_option(&mut options, key, value).ok_or_else(bad)?;
        Ok(Side { name: format!("{key}={value}"), options })
    };
    values.split(',').map(side).collect()
}

/// The first ids of a text; without one, of those that a synthetic file names, or of the shipped text.
pub(crate) fn ids(engine: &Engine, text: Option<&str>, count: usize) -> Result<Vec<u32>, CliError> {
    if text.is_some() || engine.named_ids().is_some() {
        return Ok(engine.ids_to_measure(text, count)?);
    }
    let text = input::text_file(&setup::text_path()?)?;
    Ok(engine.ids_to_measure(Some(&text), count)?)
}

/// Whether so many copies of a model fit into memory, as far as the system tells.
fn fits_times(path: &Path, copies: u64) -> Result<bool, CliError> {
    let inspection = inspect(path)?;
    let bytes = inspection.expert_bytes + inspection.dense_bytes;
    // A tenth more for states and what passes need.
    Ok(Memory::detect().spare_bytes().is_none_or(|available| copies * (bytes + bytes / 10) < available))
}

fn timing_json(name: &str, context_tokens: usize, side: &Side, backend: &str, timing: &ModelTiming) -> Value {
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
    timing: &ModelTiming,
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

/// Bytes of a GiB.
const GIB: f64 = (1u64 << 30) as f64;

pub(crate) fn kernels(flags: &KernelsFlags) -> Result<(), CliError> {
    let filter = flags.filter.to_lowercase();
    let cases: Vec<_> = KernelCase::all().into_iter().filter(|case| label(*case).contains(&filter)).collect();
    if cases.is_empty() {
        return Err(CliError::Usage(format!("--filter {}: there is no such kernel", flags.filter)));
    }
    interrupt::install()?;
    let options = EngineOptions {
        isa: setup::isa(flags.isa),
        threads: flags.threads,
        is_precise: flags.precise,
        ..EngineOptions::default()
    };
    let cpu = options.cpu().map_err(strata_engine::EngineError::from)?;
    let mut bench = kernel_bench(cpu, flags.weights_gb)?;
    let mut out = std::io::stdout().lock();
    if !flags.json {
        write_machine(&mut out, &bench)?;
    }
    for cases in cases.chunk_by(|a, b| a.ty == b.ty) {
        for rate in interrupt::stoppable(|stop| bench.measure(cases, stop))? {
            if flags.json {
                writeln!(out, "{}", rate_json(&rate, bench.cpu()))?;
            } else {
                write_rate(&mut out, &rate)?;
            }
        }
        out.flush()?;
    }
    Ok(())
}

/// Its name for the filter.
fn label(case: KernelCase) -> String {
    format!("{} {} {}", case.kind.name(), case.ty, case.rows).to_lowercase()
}

/// A bench with so much memory for weights, or as much as there is.
fn kernel_bench(cpu: Cpu, weights_gb: f64) -> Result<KernelBench, CliError> {
    let least = KernelBench::MIN_WEIGHT_BYTES;
    let wanted = (weights_gb * GIB) as usize;
    if wanted < least {
        let text = format!("--weights-gb {weights_gb}: expected at least {:.2}", least as f64 / GIB);
        return Err(CliError::Usage(text));
    }
    // Half of what can be had: inputs, outputs and other programs need some, too.
    let most = Memory::detect().spare_bytes().map_or(wanted, |bytes| (bytes / 2) as usize).max(least);
    if wanted > most {
        note::line(format_args!(
            "strata: memory is short: {:.2} GiB of weights instead of {weights_gb}; what the caches hold may show",
            most as f64 / GIB
        ));
    }
    KernelBench::new(cpu, wanted.min(most)).ok_or_else(|| {
        CliError::Failed(format!("there is no memory for {:.2} GiB of weights", wanted.min(most) as f64 / GIB))
    })
}

fn write_machine(out: &mut impl Write, bench: &KernelBench) -> Result<(), CliError> {
    let cpu = bench.cpu();
    let threads = cpu.threads();
    let many = if threads == 1 { "" } else { "s" };
    writeln!(out, "{} {}, {threads} thread{many}", cpu.isa(), cpu.arithmetic())?;
    writeln!(out, "most operations per second of all threads, measured:")?;
    for (peak, rate) in bench.peaks() {
        writeln!(out, "  {:<22}{:>9.1} G/s", peak.name(), rate / 1e9)?;
    }
    writeln!(
        out,
        "\n{:<9}{:<9}{:>5}{:>11}{:>10}{:>9}{:>10}{:>9}{:>9}",
        "kernel", "type", "rows", "Gweight/s", "GFLOP/s", "peak", "GB/s", "peak", "of limit"
    )?;
    Ok(())
}

fn write_rate(out: &mut impl Write, rate: &KernelRate) -> Result<(), CliError> {
    let KernelCase { kind, ty, rows } = rate.case;
    writeln!(
        out,
        "{:<9}{ty:<9}{rows:>5}{:>11.2}{:>10.1}{:>9.1}{:>10.2}{:>9.2}{:>7.0} %",
        kind.name(),
        rate.weights_per_second / 1e9,
        rate.flops_per_second / 1e9,
        rate.peak_flops_per_second / 1e9,
        rate.bytes_per_second / 1e9,
        rate.peak_bytes_per_second / 1e9,
        100.0 * rate.fraction()
    )?;
    Ok(())
}

fn rate_json(rate: &KernelRate, cpu: &Cpu) -> Value {
    json!({
        "kernel": rate.case.kind.name(),
        "type": rate.case.ty.name(),
        "rows": rate.case.rows,
        "isa": cpu.isa().name(),
        "threads": cpu.threads(),
        "gflops": rate.flops_per_second / 1e9,
        "gbytes_s": rate.bytes_per_second / 1e9,
        "gweights_s": rate.weights_per_second / 1e9,
        "peak_gflops": rate.peak_flops_per_second / 1e9,
        "peak_gbytes_s": rate.peak_bytes_per_second / 1e9,
        "fraction": rate.fraction(),
    })
}
