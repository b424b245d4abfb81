//! From text to text with a model: the public Rust API of Strata.
//!
//! Owns: opening a model file for use, sessions, tokenizer, chat template, the choice of tokens, and the tools that show
//! that two runs computed the same.
//! Promises: the same prompt, parameters and seed give the same text, whatever the pieces, threads or earlier turns.
//! Refuses: to guess. A file without a tokenizer or chat template is not given another's.

mod detokenizer;
mod engine;
pub mod exact;
mod generate;
mod inspect;
mod python_json;
mod random;
mod sampling;
mod synth;
mod template;
mod tokenizer;

pub use detokenizer::Detokenizer;
pub use engine::{Engine, EngineError, EngineOptions};
pub use generate::{Finish, GenerateOptions, Generated, Session, Stop};
pub use inspect::{Inspection, MetadataValue, TensorGroup, TensorLine, inspect, tokenizer_of};
pub use sampling::{Sampler, SamplerParams, SamplingError};
pub use strata_backend::{GdnForm, Isa};
pub use strata_model::qwen4exp::Options as ModelOptions;
pub use synth::{Routing, Synth, SynthError, SynthOptions, SynthShape, SynthStatistics};
pub use template::{ChatOptions, ChatTemplate, TemplateError};
pub use tokenizer::{Tokenizer, TokenizerError};
