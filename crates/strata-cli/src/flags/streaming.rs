//! Flags of models that are larger than memory.

use clap::{Args, ValueEnum};
use strata_engine::ReaderKind;

use super::plan::gib;

/// How memory is divided, and how experts come from the drive. None of these but --kv can change a result.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Memory and drive")]
pub(crate) struct StreamingFlags {
    /// The most memory of the whole process, in GiB [default: what the machine can spare].
    #[arg(long, value_name = "GIB", value_parser = gib)]
    pub(crate) memory_gb: Option<u64>,
    /// What keys and values of attention are kept in: 34 bytes for 32 values in q8_0 [default: bf16, or f32 with
    /// --precise and where products are in float32].
    #[arg(long, value_enum)]
    pub(crate) kv: Option<KvFlag>,
    /// The most memory of the arena of experts, in GiB [default: what is left].
    #[arg(long, value_name = "GIB", value_parser = gib)]
    pub(crate) arena_gb: Option<u64>,
    /// What is read before it is needed: nothing, what earlier prompts used most, or what the next layer's router says;
    /// for single tokens also the router after it, where the drive has time.
    #[arg(long, value_enum, default_value_t = LookaheadFlag::Router)]
    pub(crate) lookahead: LookaheadFlag,
    /// Read only experts ahead that at least N tokens are expected to need.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) forecast_min: u32,
    /// When rows of the n-gram table are read: before the first layer, or beside it.
    #[arg(long, value_enum, default_value_t = PleFlag::Async)]
    pub(crate) ple: PleFlag,
    /// How files are read: auto, uring, threads (both past the page cache), buffered or mmap (through it).
    #[arg(long, value_name = "READER", default_value_t = ReaderKind::Auto)]
    pub(crate) io: ReaderKind,
    /// Experts on their way from the drive at a time [default: as many as the arena allows, at most 128].
    #[arg(long, value_name = "N", value_parser = io_depth)]
    pub(crate) io_depth: Option<u32>,
    /// Lock the arena in memory, so that it is never swapped out; auto = where this user may lock so much.
    #[arg(long, value_enum, default_value_t = LockFlag::Auto)]
    pub(crate) lock: LockFlag,
}

/// The most experts on their way at a time: as many as reads can be queued for.
const MAX_IO_DEPTH: u32 = 1024;

/// Reads a number of experts on their way at a time.
pub(crate) fn io_depth(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(n @ 1..=MAX_IO_DEPTH) => Ok(n),
        _ => Err(format!("expected a whole number from 1 to {MAX_IO_DEPTH}")),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvFlag {
    /// Float32, and attention computes in it.
    F32,
    /// Bfloat16.
    Bf16,
    /// Eight bits, and a scale for each 32 values.
    #[value(name = "q8_0")]
    Q8_0,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LockFlag {
    Auto,
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LookaheadFlag {
    /// Nothing.
    Off,
    /// The 256 experts of a layer that earlier prompts used most.
    Profile,
    /// What the next layer's router says of this layer's input.
    Router,
    /// The same, and for single tokens what the router after it says, where the drive has time for more.
    Router2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PleFlag {
    /// Before the first layer, which waits for them.
    Sync,
    /// Beside computation.
    Async,
}
