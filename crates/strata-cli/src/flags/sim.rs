//! Flags of `strata sim` and `strata trace`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{EngineFlags, LookaheadFlag, ModelFlags, PleFlag, TextFlags, at_least_one};

#[derive(Args, Debug)]
pub(crate) struct SimFlags {
    #[command(flatten)]
    pub(crate) text: SimTextFlags,
    #[command(flatten)]
    pub(crate) machine: SimMachineFlags,
    #[command(flatten)]
    pub(crate) policy: SimPolicyFlags,
    /// Print one JSON object a line, in bytes and seconds.
    #[arg(long)]
    pub(crate) json: bool,
}

impl SimFlags {
    /// Whether a run of its own was asked for, and not the table.
    pub(crate) fn asks_for_a_run(&self) -> bool {
        self.text != SimTextFlags::default()
            || self.machine != SimMachineFlags::default()
            || self.policy != SimPolicyFlags::default()
    }
}

/// The routes: recorded, or made up.
#[derive(Args, Debug, Default, PartialEq)]
#[command(next_help_heading = "Text")]
pub(crate) struct SimTextFlags {
    /// Routes that `strata trace record` wrote; without it, routes are made up.
    #[arg(long, value_name = "FILE",
        conflicts_with_all = ["tokens", "layers", "experts", "top_k", "strip", "foreseen", "ranked"])]
    pub(crate) trace: Option<PathBuf>,
    /// Routes of other text, which say what is popular: for --lookahead profile and --hot ranking.
    #[arg(long, value_name = "FILE", requires = "trace")]
    pub(crate) profile: Option<PathBuf>,
    /// Tokens of the prompt [default: 1024].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) tokens: Option<u32>,
    /// Layers of the model [default: 48].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 10))]
    pub(crate) layers: Option<u32>,
    /// Experts of a layer [default: 512].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 12))]
    pub(crate) experts: Option<u32>,
    /// Experts that a token uses in a layer [default: 10].
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=1 << 8))]
    pub(crate) top_k: Option<u32>,
    /// Tokens of a strip [default: 256].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 14))]
    pub(crate) strip: Option<u32>,
    /// Share of a token's experts that the next router foresees [default: 0.595].
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) foreseen: Option<f64>,
    /// How much a static ranking knows of a text, 0 to 1 [default: 0.65].
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) ranked: Option<f64>,
    /// Seed of all that is made up [default: 0].
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

/// The machine. What is not given is the reference's.
#[derive(Args, Debug, Default, PartialEq)]
#[command(next_help_heading = "Machine")]
pub(crate) struct SimMachineFlags {
    /// What the drive reads in a second, in GiB [default: 7.45, which is 8.0e9 bytes].
    #[arg(long, value_name = "GIB", value_parser = above_zero)]
    pub(crate) drive_gb_s: Option<f64>,
    /// From the end of a read's transfer to its arrival [default: 53.6].
    #[arg(long, value_name = "US", value_parser = duration)]
    pub(crate) latency_us: Option<f64>,
    /// Records that are read at a time [default: 8].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 12))]
    pub(crate) depth: Option<u32>,
    /// Bytes of a record [default: 1474000].
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) record_bytes: Option<u64>,
    /// Share of all experts that the arena has slots for [default: 0.1794].
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) arena_share: Option<f64>,
    /// Share of the arena that the hot set has [default: 0.825].
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) hot_share: Option<f64>,
    /// Which experts are hot [default: any].
    #[arg(long, value_enum)]
    pub(crate) hot: Option<HotFlag>,
    /// Compute of a layer beside its experts, for 1024 tokens [default: 35.2].
    #[arg(long, value_name = "MS", value_parser = duration)]
    pub(crate) mixer_ms: Option<f64>,
    /// Compute of a layer of a pass, whatever its tokens [default: 0].
    #[arg(long, value_name = "MS", value_parser = duration)]
    pub(crate) layer_ms: Option<f64>,
    /// Compute of an expert, whatever its tokens [default: 0].
    #[arg(long, value_name = "US", value_parser = duration)]
    pub(crate) expert_us: Option<f64>,
    /// Compute of one token in one expert [default: 2.11].
    #[arg(long, value_name = "US", value_parser = duration)]
    pub(crate) expert_row_us: Option<f64>,
    /// Compute of the prompt beside its passes [default: 0].
    #[arg(long, value_name = "MS", value_parser = duration)]
    pub(crate) prompt_ms: Option<f64>,
    /// Reads of n-gram table rows for 1024 tokens, when nothing else is read [default: 150].
    #[arg(long, value_name = "MS", value_parser = duration)]
    pub(crate) ple_ms: Option<f64>,
    /// Share of the drive that these take while records are read beside, below 1 [default: 0.47].
    #[arg(long, value_name = "SHARE", value_parser = below_one)]
    pub(crate) ple_share: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HotFlag {
    /// Experts that are no more popular than others.
    Any,
    /// The first of the static ranking.
    Ranking,
}

/// What is read, and when.
#[derive(Args, Debug, Default, PartialEq)]
#[command(next_help_heading = "Policy")]
pub(crate) struct SimPolicyFlags {
    /// Tokens of a pass [default: 1024].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pass: Option<u32>,
    /// Where read-ahead comes from [default: router].
    #[arg(long, value_enum)]
    pub(crate) lookahead: Option<LookaheadFlag>,
    /// Most experts of a layer that a profile has read ahead [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) ahead_cap: Option<u32>,
    /// Read ahead only experts that so many tokens are forecast to use [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) forecast_min: Option<u32>,
    /// Queue read-ahead only when the last expert of the layer at hand has arrived.
    #[arg(long)]
    pub(crate) queue_late: bool,
    /// Read what was queued even when its layer turns out not to need it.
    #[arg(long)]
    pub(crate) finish_ahead: bool,
    /// Compute the experts of a layer when all have arrived, and not as they arrive.
    #[arg(long)]
    pub(crate) wait_for_all: bool,
    /// When rows of the n-gram table are read [default: async].
    #[arg(long, value_enum)]
    pub(crate) ple: Option<PleFlag>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Record which experts a text uses, and what was forecast.
    Record(Box<TraceRecordFlags>),
    /// Look up what was recorded token by token in the arena and in other caches, and count what is missing.
    Replay(TraceReplayFlags),
}

#[derive(Args, Debug)]
pub(crate) struct TraceRecordFlags {
    /// File to write.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) text: TextFlags,
    /// Use only the first N tokens [default without a text: 1024].
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) limit: Option<usize>,
    /// Of these, take the last N one by one, as if the model had written them.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) decode: Option<usize>,
    /// Let the model write at most N tokens after them, chosen as `strata run` does.
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with = "decode")]
    pub(crate) write: Option<usize>,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    #[command(flatten)]
    pub(crate) engine: EngineFlags,
}

#[derive(Args, Debug)]
pub(crate) struct TraceReplayFlags {
    /// Routes that `strata trace record` wrote with --decode or --write.
    pub(crate) trace: PathBuf,
    /// Slots of the arena.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 22))]
    pub(crate) slots: Option<u32>,
    /// Share of all experts that the arena has slots for [default: 0.3].
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "slots")]
    pub(crate) share: Option<f64>,
    /// Routes of other text, which say what is in the arena at the beginning [default: any experts].
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Tokens of a pass of the text before.
    #[arg(long, value_name = "TOKENS", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pass: u32,
    /// Show the hit rate of each layer, too.
    #[arg(long)]
    pub(crate) layers: bool,
    /// Print one JSON object a line, one for each policy.
    #[arg(long)]
    pub(crate) json: bool,
}

fn number(text: &str, is_good: impl Fn(f64) -> bool, expected: &str) -> Result<f64, String> {
    text.parse().ok().filter(|number| is_good(*number)).ok_or_else(|| format!("expected a number {expected}"))
}

fn share(text: &str) -> Result<f64, String> {
    number(text, |share| (0.0..=1.0).contains(&share), "of 0 to 1")
}

fn below_one(text: &str) -> Result<f64, String> {
    number(text, |share| (0.0..0.999).contains(&share), "of 0 to below 0.999")
}

fn above_zero(text: &str) -> Result<f64, String> {
    number(text, |gib| (1e-6..=1e6).contains(&gib), "above 0")
}

/// Reads a time of at most a million milliseconds: sums of them stay times.
fn duration(text: &str) -> Result<f64, String> {
    number(text, |time| (0.0..=1e6).contains(&time), "of 0 to 1000000")
}
