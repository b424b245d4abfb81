//! `strata doctor`: what this machine can do.

use std::io::Write;

use serde_json::{Value, json};
use strata_engine::{Isa, Machine};

use crate::error::CliError;
use crate::flags::DoctorFlags;

pub(crate) fn doctor(flags: &DoctorFlags) -> Result<(), CliError> {
    let machine = Machine::detect();
    let mut out = std::io::stdout().lock();
    if flags.json {
        writeln!(out, "{}", to_json(&machine, flags.isa))?;
        return Ok(());
    }
    let unknown = || "unknown".to_owned();
    let processor = machine.processor.clone().unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let cores = machine.cores.map_or_else(unknown, |cores| cores.to_string());
    writeln!(out, "processor   {processor}")?;
    writeln!(out, "cores       {cores}, threads usable: {}", machine.threads)?;
    if !flags.isa {
        let memory = machine.memory.spare_bytes().map_or_else(unknown, |bytes| format!("{:.1} GB", bytes as f64 / 1e9));
        writeln!(out, "memory      {memory} available")?;
    }
    writeln!(out, "instructions")?;
    for isa in Isa::ALL {
        let state = match isa.is_available() {
            true => format!("available, products in {}", isa.fastest_arithmetic()),
            false => format!("not available: this machine lacks {}", isa.missing().join(", ")),
        };
        let chosen = if isa == Isa::best() { "; chosen by `auto`" } else { "" };
        writeln!(out, "  {isa:<10}{state}{chosen}")?;
    }
    Ok(())
}

fn to_json(machine: &Machine, only_isa: bool) -> Value {
    let isa = |isa: Isa| {
        json!({
            "name": isa.name(),
            "available": isa.is_available(),
            "missing": isa.missing(),
            "arithmetic": isa.is_available().then(|| isa.fastest_arithmetic().to_string()),
        })
    };
    let mut shown = json!({
        "processor": machine.processor,
        "cores": machine.cores,
        "threads": machine.threads,
        "isas": Isa::ALL.map(isa),
        "auto": Isa::best().name(),
    });
    if !only_isa {
        shown["memory_available_bytes"] = json!(machine.memory.spare_bytes());
    }
    shown
}
