//! From text to text with a model: the public Rust API of Strata.
//!
//! Owns: opening a model file for use, sessions, tokenizer, chat template, the choice of tokens, the tools that show that
//! two runs computed the same, and those that measure speed.
//! Promises: the same prompt, parameters and seed give the same text, whatever the pieces, threads or earlier turns.
//! Refuses: to guess. A file without a tokenizer or chat template is not given another's.

pub mod bench;
mod calibration;
mod choose;
mod detokenizer;
mod drafts;
mod engine;
pub mod exact;
mod generate;
pub mod host;
mod inspect;
mod kept;
mod last_run;
mod machine;
mod memory;
mod place;
mod plan;
pub mod prefix;
mod prompt;
mod python_json;
mod random;
mod routes;
pub mod running;
mod speed;
mod synth;
mod template;
mod timeline;
mod tokenizer;
pub mod trace;
mod usage;

pub use calibration::{Calibration, SizeTiming};
pub use choose::{
    AnswerParser, AnswerRules, CallFormat, CallProblem, Chooser, Constraint, Effort, Form, FormError, Part, Sampler,
    SamplerParams, SamplingError, Tool, ToolChoice, ToolRules, Tools, Vocabulary, describe_tools, knows_thinking,
    knows_tools, opens_thinking,
};
pub use detokenizer::Detokenizer;
pub use drafts::{DraftKind, DraftOptions, Drafts, MOST_DRAFTS};
pub use engine::{Engine, EngineError, EngineOptions};
pub use generate::{Finish, GenerateOptions, Generated, MOST_EQUAL_TOKENS, Session, Stop};
pub use inspect::{Inspection, MetadataValue, TensorGroup, TensorLine, inspect, tokenizer_of};
pub use last_run::{LastRun, RunKeeper, Took};
pub use machine::{Conditions, Machine, Swap};
pub use memory::{Group, Memory};
pub use place::FilePlace;
pub use plan::{plan, plan_uncalibrated};
pub use prompt::ChatPrompt;
pub use routes::{MoceOptions, Route, RouteReceipt};
pub use speed::{Hits, Rates, Work};
pub use strata_backend::{GdnForm, Isa, KvType, Operation, Profile, Spent};
pub use strata_gguf::split_name;
pub use strata_kernels::peaks::Peak;
pub use strata_kernels::{Arithmetic, Cpu};
pub use strata_model::qwen4exp::{Lock, Moce, Options as ModelOptions, RouteCounts, RowsWhen, Streaming, StreamsNorm};
pub use strata_store::plan::{Limit, Plan, PlanError};
pub use strata_store::reads::ReaderKind;
pub use strata_store::sim;
pub use strata_store::system::{IoPriority, io_priority};
pub use strata_store::timeline::Timeline;
pub use strata_store::{ExpertId, Lookahead, StreamingOptions};
pub use synth::{Routing, Synth, SynthError, SynthOptions, SynthShape, SynthStatistics};
pub use template::{ChatOptions, ChatTemplate, TemplateError};
pub use timeline::{Busy, LaneTotal, LayerTotal, Segment, TimelineError, Totals, Trace, TraceSpan};
pub use tokenizer::{Tokenizer, TokenizerError};
