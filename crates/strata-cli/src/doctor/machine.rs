//! The machine: processor, instruction sets, memory, other processes.

use serde_json::{Value, json};
use strata_engine::running::{self, Other};
use strata_engine::{Conditions, IoPriority, Isa, Machine, io_priority};

use super::Report;
use crate::error::CliError;
use crate::plan::gib;

/// Swap that is in use from here on is more than what systems put there out of habit.
const MUCH_SWAP_BYTES: u64 = 256 << 20;
/// Processors lower their clocks at about this temperature.
const HOT_C: f64 = 90.0;

pub(super) fn check(report: &mut Report, only_isa: bool) -> Result<(), CliError> {
    let machine = Machine::detect();
    let unknown = || "unknown".to_owned();
    let processor = machine.processor.clone().unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    report.line("processor", &processor)?;
    let cores = machine.cores.map_or_else(unknown, |cores| cores.to_string());
    report.line("cores", &format!("{cores}, threads usable: {}", machine.threads))?;
    report.set("processor", machine.processor.clone());
    report.set("cores", machine.cores);
    report.set("threads", machine.threads);
    if !only_isa {
        memory(report, &machine)?;
    }
    instructions(report)?;
    if only_isa {
        return Ok(());
    }
    conditions(report, &machine)?;
    others(report)?;
    if machine.cores.is_some_and(|cores| machine.threads < cores) {
        let cores = machine.cores.unwrap_or(0);
        report.warn(
            format!("only {} threads may run at a time on {cores} cores", machine.threads),
            "a control group, `taskset` or a container limits this process: give it more processors",
        );
    }
    if cfg!(debug_assertions) {
        report.warn("this program was built for debugging: it is slower", "build it with `cargo build --release`");
    }
    Ok(())
}

fn instructions(report: &mut Report) -> Result<(), CliError> {
    report.line("instructions", "")?;
    for isa in Isa::ALL {
        let state = match isa.is_available() {
            true => format!("available, products in {}", isa.fastest_arithmetic()),
            false => format!("not available: this machine lacks {}", isa.missing().join(", ")),
        };
        let chosen = if isa == Isa::best() { "; chosen by `auto`: the fastest that is available" } else { "" };
        report.line(&format!("  {isa}"), &format!("{state}{chosen}"))?;
    }
    let isa = |isa: Isa| {
        json!({
            "name": isa.name(),
            "available": isa.is_available(),
            "missing": isa.missing(),
            "arithmetic": isa.is_available().then(|| isa.fastest_arithmetic().to_string()),
        })
    };
    let isas: Vec<Value> = Isa::ALL.map(isa).to_vec();
    report.set("isas", isas);
    report.set("auto", Isa::best().name());
    if Isa::best() == Isa::Portable {
        report.warn(
            "there are no vector instructions that the kernels know: prompts are several times slower",
            "on x86-64 a processor with AVX2 is needed; a virtual machine may hide it from its guests",
        );
    }
    Ok(())
}

fn memory(report: &mut Report, machine: &Machine) -> Result<(), CliError> {
    let memory = &machine.memory;
    let amount = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), |bytes| format!("{:.2}", gib(bytes)));
    let group = memory.group.map_or_else(String::new, |group| {
        let (limit, used) = (gib(group.limit_bytes), gib(group.used_bytes));
        format!("; a control group allows {limit:.2}, of which {used:.2} are used")
    });
    let swap = match machine.swap {
        None => "no swap".to_owned(),
        Some(swap) => format!("{:.2} of {:.2} of swap in use", gib(swap.used_bytes), gib(swap.total_bytes)),
    };
    let lock = match memory.lock_limit_bytes {
        None => String::new(),
        Some(u64::MAX) => "; all may be locked".to_owned(),
        Some(bytes) => format!("; {:.3} may be locked", gib(bytes)),
    };
    let (total, available) = (amount(memory.total_bytes), amount(memory.available_bytes));
    report.line("memory", &format!("{total} GiB, {available} available{group}; {swap}{lock}"))?;
    report.set("memory_available_bytes", memory.spare_bytes());
    report.set(
        "memory",
        json!({
            "total_bytes": memory.total_bytes,
            "available_bytes": memory.available_bytes,
            "group_limit_bytes": memory.group.map(|group| group.limit_bytes),
            "group_used_bytes": memory.group.map(|group| group.used_bytes),
            "swap_total_bytes": machine.swap.map_or(0, |swap| swap.total_bytes),
            "swap_used_bytes": machine.swap.map_or(0, |swap| swap.used_bytes),
            "lock_limit_bytes": memory.lock_limit_bytes,
        }),
    );
    if let Some(swap) = machine.swap.filter(|swap| swap.used_bytes > MUCH_SWAP_BYTES) {
        report.warn(
            format!("{:.2} GiB of memory are swapped out", gib(swap.used_bytes)),
            "memory is short, and what is swapped wears the drive and comes back slower than an expert does: close other \
             programs, or use a smaller --memory-gb",
        );
    }
    Ok(())
}

/// What makes two runs of the same work differ, and what this process is held back by.
fn conditions(report: &mut Report, machine: &Machine) -> Result<(), CliError> {
    let Conditions { clock_mhz, temperature_c, swapped_bytes } = Conditions::now();
    let mut parts = Vec::new();
    parts.extend(clock_mhz.map(|mhz| format!("clock {:.2} GHz", mhz / 1e3)));
    parts.extend(machine.load.map(|load| format!("load {load:.1}")));
    parts.extend(temperature_c.map(|celsius| format!("hottest part {celsius:.0} C")));
    parts.extend(swapped_bytes.map(|bytes| format!("{:.2} GiB written to swap since the start", gib(bytes))));
    if !parts.is_empty() {
        report.line("now", &parts.join(", "))?;
    }
    let priority = io_priority().map(|priority| match priority {
        IoPriority::RealTime => "real time".to_owned(),
        IoPriority::BestEffort(level) => format!("best effort {level}"),
        IoPriority::Idle => "idle".to_owned(),
    });
    report.set(
        "conditions",
        json!({
            "clock_mhz": clock_mhz, "temperature_c": temperature_c, "swapped_bytes": swapped_bytes,
            "load": machine.load, "io_priority": priority,
        }),
    );
    if let Some(load) = machine.load.filter(|load| *load > machine.threads as f64) {
        report.warn(
            format!("other programs were at work: a load of {load:.1} with {} threads", machine.threads),
            "what is measured now is less than the machine can do: end them, or try again later",
        );
    }
    if let Some(celsius) = temperature_c.filter(|celsius| *celsius > HOT_C) {
        report.warn(
            format!("the machine is hot: {celsius:.0} C"),
            "it lowers its clocks until it is cooler: what is measured now is less than it can do",
        );
    }
    Ok(())
}

fn others(report: &mut Report) -> Result<(), CliError> {
    let others = running::others();
    let json = |other: &Other| {
        json!({
            "pid": other.pid, "model": other.model, "plan_bytes": other.plan_bytes, "held_bytes": other.held_bytes,
        })
    };
    report.set("running", others.iter().map(json).collect::<Vec<Value>>());
    for other in &others {
        let (plan, held) = (gib(other.plan_bytes), gib(other.held_bytes));
        report.line(
            "running",
            &format!("process {} with {}: {plan:.2} GiB planned, {held:.2} in use", other.pid, other.model),
        )?;
    }
    if !others.is_empty() {
        report.warn(
            "other Strata processes run: plans leave them their memory, and what is measured now is less than the machine \
             can do",
            "end them to give this one all memory",
        );
    }
    Ok(())
}
