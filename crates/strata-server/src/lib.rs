//! HTTP over an engine: the APIs that clients speak.
//!
//! Owns: the APIs of OpenAI (chat completions, completions, responses) and Anthropic (messages), what monitors read, the
//! web page's files, and who may ask. Promises: whatever is sent, an answer in the shape of the API that was asked, never a
//! panic; nothing of a request names a file or an address; a client that goes away gives its request up. Refuses: to know
//! how a text is written; that is [`strata_engine::host`]'s.

mod access;
mod answer;
mod anthropic;
mod body;
mod chat;
mod fields;
mod ids;
mod listen;
mod metrics;
mod model;
mod openai;
mod page;
mod problem;
mod record;
mod run;
mod server;
mod settings;
mod sse;
mod tokens;

pub use access::Access;
pub use listen::serve;
pub use model::{Events, Model, Writer};
pub use run::run;
pub use server::{ServerOptions, router};
