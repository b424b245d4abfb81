//! Every command and every flag: the one table from which parsing, help and shell completions are made.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

pub(crate) use self::bench::{BenchCommand, DecodeFlags, KernelsFlags, PrefillFlags, TimingFlags};
pub(crate) use self::doctor::{CalibrateFlags, DoctorFlags};
pub(crate) use self::drafts::{DraftFlag, DraftFlags, NormFlag};
pub(crate) use self::plan::{PlanFlags, gib};
pub(crate) use self::probe::ProbeFlags;
pub(crate) use self::pull::{ModelsFlags, PullFlags};
pub(crate) use self::report::ReportFlags;
pub(crate) use self::route::{RouteFlag, RouteFlags};
pub(crate) use self::serve::ServeFlags;
pub(crate) use self::sim::{
    HotFlag, SimFlags, SimMachineFlags, SimPolicyFlags, SimTextFlags, TraceCommand, TraceRecordFlags, TraceReplayFlags,
};
pub(crate) use self::streaming::{KvFlag, LockFlag, LookaheadFlag, PleFlag, StreamingFlags, io_depth};

mod bench;
mod doctor;
mod drafts;
mod idle;
mod plan;
mod probe;
mod pull;
mod report;
mod route;
mod serve;
mod sim;
mod streaming;

/// Runs Mixture-of-Experts language models that are larger than memory.
///
/// Without -m, the small model that comes with Strata is used.
#[derive(Debug, Parser)]
#[command(name = "strata", version, max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The command line of this process.
    ///
    /// # Errors
    /// When it makes no sense, or asks for help; also when a flag on it would do nothing.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches()?;
        match idle::problem(&matches) {
            Some(problem) => Err(Self::command().error(ErrorKind::ArgumentConflict, problem)),
            None => Self::from_arg_matches(&matches),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one prompt and exit.
    Run(RunFlags),
    /// Talk with the model; it remembers what was said.
    Chat(ChatFlags),
    /// Answer requests of programs: OpenAI's and Anthropic's APIs, and a web page.
    Serve(ServeFlags),
    /// Get a model from a hub (huggingface.co or a mirror).
    Pull(PullFlags),
    /// List the models that are here, and how they fit this machine.
    Models(ModelsFlags),
    /// Show what a model file holds.
    Inspect(InspectFlags),
    /// Show how memory would be divided, and what prompts may expect of the drive.
    Plan(PlanFlags),
    /// Measure how fast a drive reads.
    Probe(ProbeFlags),
    /// Simulate prompts that stream experts from a drive; without flags, the reference that was measured.
    Sim(SimFlags),
    /// Record what the simulator can replay.
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Show the tokens of a text.
    Tokenize(TokenizeFlags),
    /// Write the logits of every position of a text.
    Logits(LogitsFlags),
    /// Write everything that a run computes, layer by layer.
    Dump(DumpFlags),
    /// Compare two dumps, or two ways to run one text, byte for byte. Exits with 1 when they differ.
    Parity(ParityFlags),
    /// Measure how far predictions are from recorded ones.
    Kld(KldFlags),
    /// Evaluate a model on a text.
    #[command(subcommand)]
    Eval(EvalCommand),
    /// Write a model of random weights with the shape, types and routing of a real one.
    Synth(SynthFlags),
    /// Measure how fast a model or the kernels are.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Make a page from a timeline: what the drive and the processor did when.
    Report(ReportFlags),
    /// Check this machine and a model, and say what speed to expect.
    Doctor(DoctorFlags),
    /// Find the fastest size of the arena of experts, and keep it for later runs.
    Calibrate(CalibrateFlags),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// The model of a command.
#[derive(Args, Clone, Debug)]
pub(crate) struct ModelFlags {
    /// Model file (GGUF), any one of several; or OWNER/REPO[:FILE] of a model that was pulled.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
}

/// How a model is run. None of these but --gdn, --qsa-block and --route can change a result on one machine, and --isa,
/// --precise and --kv only by rounding.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Running")]
pub(crate) struct EngineFlags {
    /// Threads; 0 = as many as the machine has.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = thread_count)]
    pub(crate) threads: usize,
    /// Instruction set of the kernels.
    #[arg(long, value_enum, default_value_t = IsaFlag::Auto)]
    pub(crate) isa: IsaFlag,
    /// Compute in float32 where products would be rounded to bfloat16 (amx, and avx512 on most processors).
    #[arg(long)]
    pub(crate) precise: bool,
    /// Tokens a text may have [default: the smaller of the model's own and 32768].
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    pub(crate) context: Option<usize>,
    /// Tokens of a prompt that go through the layers together [default: as memory allows, at most 8192].
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    pub(crate) pass: Option<usize>,
    /// Tokens of a pass that one operation handles.
    #[arg(long, value_name = "TOKENS", default_value_t = 256, value_parser = at_least_one)]
    pub(crate) strip: usize,
    /// Form of the DeltaNet recurrence. `chunked` rounds differently, depending on where a prompt was cut.
    #[arg(long, value_enum, default_value_t = GdnFlag::Recurrent)]
    pub(crate) gdn: GdnFlag,
    /// Tokens of an attention block, whatever the file says; 0 = attend to everything.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) qsa_block: Option<usize>,
    #[command(flatten)]
    pub(crate) streaming: StreamingFlags,
    #[command(flatten)]
    pub(crate) route: RouteFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IsaFlag {
    /// The best this machine has.
    Auto,
    Amx,
    Avx512,
    Avx2,
    Portable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GdnFlag {
    /// Token by token.
    Recurrent,
    /// In products over 64 tokens.
    Chunked,
}

/// How tokens are chosen. What is not given comes from the model file, or is temp 0.8, top-k 40, top-p 0.95, min-p 0.05.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingFlags {
    /// The most tokens to write (of each answer).
    #[arg(short = 'n', long, value_name = "N", default_value_t = 512, value_parser = at_least_one)]
    pub(crate) tokens: usize,
    /// Temperature; 0 = always the most probable token.
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temp: Option<f32>,
    /// Choose among the K most probable tokens; 0 = among all.
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,
    /// Choose among the most probable tokens that together reach probability P; 1 = among all.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Choose among tokens at least P times as probable as the most probable one; 0 = among all.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Seed of the choice. The same seed and prompt give the same text.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}

#[derive(Args, Debug)]
pub(crate) struct RunFlags {
    /// The prompt. Without it (or with `-`) the prompt is read from standard input.
    pub(crate) prompt: Option<String>,
    /// Text to append to the prompt, from a file; `-` = standard input.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Continue the prompt as plain text, without the chat template.
    #[arg(long)]
    pub(crate) raw: bool,
    /// What the model is told before the prompt.
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,
    /// Show where the time goes, on standard error.
    #[arg(long)]
    pub(crate) profile: bool,
    /// Write what happened when to this file, as JSON: `strata report` makes a page of it.
    #[arg(long, value_name = "FILE")]
    pub(crate) timeline: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    #[command(flatten)]
    pub(crate) sampling: SamplingFlags,
    #[command(flatten)]
    pub(crate) drafts: DraftFlags,
    #[command(flatten)]
    pub(crate) engine: EngineFlags,
}

#[derive(Args, Debug)]
pub(crate) struct ChatFlags {
    /// Lines only, as for a pipe: no view of the whole terminal.
    #[arg(long)]
    pub(crate) plain: bool,
    /// What the model is told before the conversation.
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    #[command(flatten)]
    pub(crate) sampling: SamplingFlags,
    #[command(flatten)]
    pub(crate) drafts: DraftFlags,
    #[command(flatten)]
    pub(crate) engine: EngineFlags,
}

#[derive(Args, Debug)]
pub(crate) struct InspectFlags {
    /// Model file (GGUF). Of a model in several files, any one of them. Without it, the model that comes with Strata.
    pub(crate) file: Option<PathBuf>,
    /// List every tensor.
    #[arg(long)]
    pub(crate) tensors: bool,
    /// Print one JSON object, sizes in bytes.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct TokenizeFlags {
    /// The text. Without it (or with `-`) it is read from standard input.
    pub(crate) text: Option<String>,
    /// Read the names of special tokens as those tokens, not as text.
    #[arg(long)]
    pub(crate) special: bool,
    /// Print the ids only, separated by commas (as --ids takes them).
    #[arg(long, conflicts_with = "json")]
    pub(crate) ids: bool,
    /// Print one JSON object. Parts of characters are shown as U+FFFD in its `tokens`.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
}

/// How a text is given to the model.
#[derive(Args, Clone, Debug)]
pub(crate) struct PieceFlags {
    /// Use only the first N tokens.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) limit: Option<usize>,
    /// Give the text in pieces of these numbers of tokens; what is left over is one more piece.
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', value_parser = at_least_one)]
    pub(crate) pieces: Vec<usize>,
}

#[derive(Args, Debug)]
pub(crate) struct LogitsFlags {
    #[command(flatten)]
    pub(crate) text: TextFlags,
    #[command(flatten)]
    pub(crate) pieces: PieceFlags,
    /// File to write: float32 `logits` [tokens, vocabulary] (safetensors).
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    #[command(flatten)]
    pub(crate) engine: EngineFlags,
}

#[derive(Args, Debug)]
pub(crate) struct DumpFlags {
    #[command(flatten)]
    pub(crate) text: TextFlags,
    #[command(flatten)]
    pub(crate) pieces: PieceFlags,
    /// Directory to write: one safetensors file a layer and pass.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    #[command(flatten)]
    pub(crate) engine: EngineFlags,
}

#[derive(Args, Debug)]
pub(crate) struct ParityFlags {
    /// A dump's directory, or a way to run the text: settings `key=value`, separated by commas, of the keys model,
    /// threads, isa, precise, kv, context, pass, strip, gdn, qsa-block, pieces (as in pieces=7:1:20), memory-gb, arena-gb,
    /// lookahead, forecast-min, ple, io and io-depth; `default` = none.
    pub(crate) a: String,
    /// The other.
    pub(crate) b: String,
    #[command(flatten)]
    pub(crate) text: TextFlags,
    /// Use only the first N tokens.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) limit: Option<usize>,
    /// Print one JSON object a layer, then one for the whole.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
}

/// The text of an exactness tool. Ids work with files that have no tokenizer.
#[derive(Args, Clone, Debug)]
#[group(required = false, multiple = false)]
pub(crate) struct TextFlags {
    /// Token ids, separated by commas.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token_id)]
    pub(crate) ids: Option<Vec<u32>>,
    /// File with token ids, separated by commas or white space.
    #[arg(long, value_name = "FILE")]
    pub(crate) ids_file: Option<PathBuf>,
    /// File with text.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct KldFlags {
    #[command(flatten)]
    pub(crate) what: KldWhat,
    #[command(flatten)]
    pub(crate) text: TextFlags,
    /// Use only the first N tokens.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) limit: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    #[command(flatten)]
    pub(crate) engine: EngineFlags,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct KldWhat {
    /// Record the logits of a text in this file (safetensors).
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// Compare with the logits recorded in this file, on its text.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ids", "ids_file", "text", "limit"])]
    pub(crate) against: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// Perplexity of a text, in windows that each start anew.
    Ppl(PplFlags),
}

#[derive(Args, Debug)]
pub(crate) struct PplFlags {
    /// Model file (GGUF). Without it, the model that comes with Strata.
    pub(crate) file: Option<PathBuf>,
    /// File with the text.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: PathBuf,
    /// Tokens of a window.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(4..))]
    pub(crate) window: u32,
    /// Use only the first N tokens of the text.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub(crate) limit: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) engine: EngineFlags,
}

#[derive(Args, Debug)]
pub(crate) struct SynthFlags {
    /// File to write (GGUF). It must not exist yet.
    pub(crate) output: PathBuf,
    /// Shape of the model.
    #[arg(long, value_enum)]
    pub(crate) shape: ShapeFlag,
    /// Only the first N layers.
    #[arg(long, value_name = "N")]
    pub(crate) layers: Option<usize>,
    /// Only N experts a layer.
    #[arg(long, value_name = "N")]
    pub(crate) experts: Option<usize>,
    /// About N rows in the n-gram table; 320000000 gives flash-next-iq2 the published table of 29 GB
    /// [default: 8000000 of flash-next-iq2, 8192 of small].
    #[arg(long, value_name = "N", conflicts_with = "no_table")]
    pub(crate) table_rows: Option<u64>,
    /// No n-gram table, and no module that uses it.
    #[arg(long)]
    pub(crate) no_table: bool,
    /// Put the n-gram table into a file of its own: FILE-00001-of-00002.gguf and FILE-00002-of-00002.gguf.
    #[arg(long)]
    pub(crate) split: bool,
    /// Seed of all that is random. The same flags and seed give the same bytes.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Write the ids of the prompt to this file, separated by commas (as --ids-file takes them).
    #[arg(long, value_name = "FILE")]
    pub(crate) save_ids: Option<PathBuf>,
    /// Print one JSON object, sizes in bytes.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) routing: RoutingFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShapeFlag {
    /// Qwen3.8-Flash-Next, types of its IQ2_XS file: 40 GB.
    FlashNextIq2,
    /// The same architecture in a few MB.
    Small,
}

/// How the routing behaves. Without these, nearly as on real text.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Routing")]
pub(crate) struct RoutingFlags {
    /// Share of routing that all tokens have in common: with more, some experts are used by every text.
    #[arg(long, value_name = "SHARE")]
    pub(crate) skew: Option<f32>,
    /// Share that the documents of a domain have in common: with more, a text uses fewer experts.
    #[arg(long, value_name = "SHARE")]
    pub(crate) domain: Option<f32>,
    /// Share that the tokens of a topic have in common: with more, a cache hits more often.
    #[arg(long, value_name = "SHARE")]
    pub(crate) topic: Option<f32>,
    /// Tokens for which the prompt stays with a topic, on average.
    #[arg(long, value_name = "N")]
    pub(crate) topic_tokens: Option<u32>,
    /// How much layers differ in what they read: with more, forecasts are worse.
    #[arg(long, value_name = "X")]
    pub(crate) drift: Option<f32>,
    /// How much what a layer reads depends on the token: with more, forecasts are worse, one token at a time.
    #[arg(long, value_name = "X")]
    pub(crate) gate: Option<f32>,
}

/// The most threads: more than any machine has, few enough to start.
const MAX_THREADS: usize = 1024;

/// Reads a number of threads.
pub(crate) fn thread_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 0..=MAX_THREADS) => Ok(n),
        _ => Err(format!("expected a whole number of at most {MAX_THREADS}")),
    }
}

fn token_id(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| "expected token ids: whole numbers, separated by commas".to_owned())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("expected at least 1".to_owned()),
        Ok(n) => Ok(n),
        Err(_) => Err("expected a whole number of at least 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_table_of_flags_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
