//! Flags of `strata doctor` and `strata calibrate`.

use std::path::PathBuf;

use clap::Args;

use super::plan::gib;
use super::{EngineFlags, ModelFlags, at_least_one};

#[derive(Args, Debug)]
pub(crate) struct DoctorFlags {
    /// Only the processor and its instruction sets.
    #[arg(long)]
    pub(crate) isa: bool,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// The most memory of a process, in GiB [default: what the machine can spare].
    #[arg(long, value_name = "GIB", value_parser = gib)]
    pub(crate) memory_gb: Option<u64>,
    /// The most memory of the arena of experts, in GiB [default: the calibrated one, or what is left].
    #[arg(long, value_name = "GIB", value_parser = gib)]
    pub(crate) arena_gb: Option<u64>,
    /// Tokens a text may have [default: the smaller of the model's own and 32768].
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    pub(crate) context: Option<usize>,
    /// Print one JSON object, in bytes and seconds.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct CalibrateFlags {
    /// Sizes of the arena to try, in GiB [default: 60, 80 and 100 % of what the plan gives].
    #[arg(long, value_name = "GIB,GIB,...", value_delimiter = ',', value_parser = gib)]
    pub(crate) sizes: Vec<u64>,
    /// Tokens that are timed in a run.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 32, value_parser = at_least_one)]
    pub(crate) tokens: usize,
    /// Tokens of the prompt before them, which is not timed.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = at_least_one)]
    pub(crate) context_tokens: usize,
    /// Runs with each size, in turns.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    pub(crate) repeat: usize,
    /// File with the text to read [default: the ids a synthetic file names, or the shipped text].
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Forget what was found for this model.
    #[arg(long, conflicts_with_all = ["sizes", "tokens", "context_tokens", "repeat", "text"])]
    pub(crate) forget: bool,
    /// Print one JSON object, in bytes and seconds.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    #[command(flatten)]
    pub(crate) engine: EngineFlags,
}
