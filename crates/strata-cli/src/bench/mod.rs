//! `strata bench`: how fast a model or the kernels are, for people and for programs.

mod decode;
mod kernels;
mod prefill;
mod turns;

use std::path::Path;

use strata_engine::{Engine, EngineOptions, Memory, inspect};

use crate::error::CliError;
use crate::flags::TimingFlags;
use crate::{input, setup};

pub(crate) use decode::decode;
pub(crate) use kernels::kernels;
pub(crate) use prefill::prefill;

/// One way to run a model, and what it is called.
struct Side {
    name: String,
    options: EngineOptions,
}

/// What --compare can compare.
const COMPARED: [&str; 14] = [
    "arena-gb",
    "forecast-min",
    "io",
    "io-depth",
    "isa",
    "kv",
    "lookahead",
    "memory-gb",
    "pass",
    "ple",
    "precise",
    "route",
    "strip",
    "threads",
];

/// The settings to time: one, or the two of --compare.
fn sides(flags: &TimingFlags) -> Result<Vec<Side>, CliError> {
    let options = EngineOptions { is_profiled: flags.profile, ..setup::engine_options(&flags.engine) };
    let Some(compare) = &flags.compare else {
        return Ok(vec![Side { name: String::new(), options }]);
    };
    let bad = || {
        let known = COMPARED.join(", ");
        CliError::Usage(format!("--compare {compare}: expected KEY=A,B with a key of {known}"))
    };
    let (key, values) = compare.split_once('=').ok_or_else(bad)?;
    if !COMPARED.contains(&key) || values.split(',').count() != 2 {
        return Err(bad());
    }
    let side = |value: &str| {
        let mut options = options.clone();
        setup::set_option(&mut options, key, value).ok_or_else(bad)?;
        Ok(Side { name: format!("{key}={value}"), options })
    };
    values.split(',').map(side).collect()
}

/// `count` ids to measure with: of the text that the user gave, of those that a synthetic file names, or of the shipped
/// text.
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
