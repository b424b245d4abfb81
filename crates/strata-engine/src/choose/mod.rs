//! What is written: the choice of tokens, what an answer must look like, and what its text means.
//!
//! Owns: sampling, penalties, biases and probabilities ([`Chooser`]); grammars and tool calls ([`Constraint`], [`Form`]);
//! the parts of an answer ([`AnswerParser`]): thinking, text, calls. Promises: the same logits and settings give the same
//! tokens on every platform; text cut anywhere gives the same parts; what a client sent cannot make it panic, and no
//! grammar takes more than its limits. Refuses: to repair. A call that is not complete and well formed is no call.

mod answer;
mod call;
mod chooser;
mod constraint;
mod effort;
mod form;
mod json_text;
mod sampler;
mod tools;
mod vocabulary;

pub use answer::{AnswerParser, Part, opens_thinking};
pub use call::CallProblem;
pub use chooser::Chooser;
pub use constraint::Constraint;
pub use effort::Effort;
pub use form::{AnswerRules, Form, FormError, ToolRules};
pub use sampler::{Sampler, SamplerParams, SamplingError};
pub use tools::{CallFormat, Tool, ToolChoice, Tools, describe_tools, knows_thinking, knows_tools};
pub use vocabulary::Vocabulary;
