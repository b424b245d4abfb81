//! Flags of the commands that measure.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{EngineFlags, IsaFlag, ModelFlags, at_least_one, thread_count};

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Time a prompt, and the least time that reading and that computing it can take.
    Prefill(PrefillFlags),
    /// Time tokens one by one after a prompt.
    Decode(DecodeFlags),
    /// Time each kernel alone and hold it against the machine's limits.
    Kernels(KernelsFlags),
}

#[derive(Args, Debug)]
pub(crate) struct PrefillFlags {
    /// Tokens of the prompt.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 512, value_parser = at_least_one)]
    pub(crate) tokens: usize,
    /// Do not measure floors: each takes about as long as a run.
    #[arg(long)]
    pub(crate) no_floors: bool,
    /// Time computation alone, with any records that are in memory: the compute floor.
    #[arg(long, conflicts_with = "no_floors")]
    pub(crate) fake_stream: bool,
    #[command(flatten)]
    pub(crate) timing: TimingFlags,
}

#[derive(Args, Debug)]
pub(crate) struct DecodeFlags {
    /// Tokens of a run.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 32, value_parser = at_least_one)]
    pub(crate) tokens: usize,
    /// Tokens of the prompt before them, which is not timed.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) context_tokens: usize,
    /// Do not measure floors, of which that of computation needs room for as many tokens again.
    #[arg(long)]
    pub(crate) no_floors: bool,
    #[command(flatten)]
    pub(crate) timing: TimingFlags,
}

/// How a model is timed.
#[derive(Args, Debug)]
pub(crate) struct TimingFlags {
    /// Runs that are timed, each of the same text anew; one more comes before them.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub(crate) repeat: usize,
    /// File with the text to read [default: the ids a synthetic file names, or the shipped text].
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Compare two values of a setting in turns: KEY=A,B, as in lookahead=off,router, with a key of arena-gb,
    /// forecast-min, io, io-depth, isa, kv, lookahead, memory-gb, pass, ple, precise, route, strip, threads.
    #[arg(long, value_name = "KEY=A,B")]
    pub(crate) compare: Option<String>,
    /// Show where the time goes, on standard error.
    #[arg(long)]
    pub(crate) profile: bool,
    /// Write what happened when in the last run to this file, as JSON: `strata report` makes a page of it.
    #[arg(long, value_name = "FILE", conflicts_with = "compare")]
    pub(crate) timeline: Option<PathBuf>,
    /// Print one JSON object a line, in bytes and seconds.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    #[command(flatten)]
    pub(crate) engine: EngineFlags,
}

#[derive(Args, Debug)]
pub(crate) struct KernelsFlags {
    /// Only kernels whose name has this in it, as in `grouped`, `IQ2_S` or `row Q8_0`.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) filter: String,
    /// Threads; 0 = as many as the machine has.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = thread_count)]
    pub(crate) threads: usize,
    /// Instruction set of the kernels.
    #[arg(long, value_enum, default_value_t = IsaFlag::Auto)]
    pub(crate) isa: IsaFlag,
    /// Compute in float32 where products would be rounded to bfloat16 (amx, and avx512 on most processors).
    #[arg(long)]
    pub(crate) precise: bool,
    /// Memory for weights, in GiB: it should be much more than the processor's caches hold.
    #[arg(long, value_name = "GIB", default_value_t = 2.0)]
    pub(crate) weights_gb: f64,
    /// Print one JSON object a kernel.
    #[arg(long)]
    pub(crate) json: bool,
}
