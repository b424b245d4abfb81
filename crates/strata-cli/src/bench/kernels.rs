//! `strata bench kernels`: each kernel alone, held against the machine's limits.

use std::io::Write;

use serde_json::{Value, json};
use strata_engine::bench::{KernelBench, KernelCase, KernelRate};
use strata_engine::{Cpu, EngineOptions, Memory};

use crate::error::CliError;
use crate::flags::KernelsFlags;
use crate::{interrupt, note, setup};

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
