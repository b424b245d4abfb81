//! The model behind the server, as far as the server sees it.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use strata_engine::host::{Event, Failure, Request, Status};
use strata_engine::{ChatTemplate, SamplerParams, Tokenizer};

/// What a host tells of a request, until its `Done` or `Failed`. Whoever drops it gives the request up.
pub type Events = Pin<Box<dyn Stream<Item = Event> + Send>>;

/// Writes texts.
pub trait Writer: Send + Sync {
    /// Asks for a text.
    ///
    /// # Errors
    /// When the request cannot be served as it is, or not now.
    fn submit(&self, request: Request) -> Result<Events, Failure>;

    /// What it is doing.
    fn status(&self) -> Status;
}

/// A model that is served.
#[derive(Clone)]
pub struct Model {
    /// Writes its texts.
    pub writer: Arc<dyn Writer>,
    /// The name that clients are told. They may ask for any.
    pub name: String,
    /// Tokens that a prompt and its answer may have together.
    pub context_tokens: usize,
    /// From texts to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// From messages to texts.
    pub template: Arc<ChatTemplate>,
    /// How tokens are chosen where a request does not say.
    pub sampling: SamplerParams,
}
