//! The model behind the server, as far as the server sees it.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use futures_util::Stream;
use strata_engine::host::{Event, Failure, Request, Status};
use strata_engine::{ChatTemplate, FormError, SamplerParams, Tokenizer, Vocabulary};

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
pub struct Model {
    /// Writes its texts.
    pub writer: Arc<dyn Writer>,
    /// The name that clients are told. They may ask for any.
    pub name: String,
    /// Tokens that a prompt and its answer may have together.
    pub context_tokens: usize,
    /// From texts to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// From messages to texts; or why the model's file has nothing that does this.
    pub template: Result<Arc<ChatTemplate>, String>,
    /// How tokens are chosen where a request does not say.
    pub sampling: SamplerParams,
    /// Made when an answer of a form is first asked for.
    pub vocabulary: OnceLock<Result<Arc<Vocabulary>, FormError>>,
}

impl Model {
    /// The vocabulary made ready for answers of a form.
    pub(crate) fn vocabulary(&self) -> Result<Arc<Vocabulary>, FormError> {
        self.vocabulary.get_or_init(|| Vocabulary::new(&self.tokenizer)).clone()
    }
}
