//! The model behind the server, as far as the server sees it.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use futures_util::Stream;
use strata_engine::host::{Answer, Event, Failure, Host, Request, Status};
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
    /// The model of a host.
    pub fn of(host: &Arc<Host>) -> Self {
        Self {
            writer: Arc::<Host>::clone(host),
            name: host.model().to_owned(),
            context_tokens: host.context_tokens(),
            tokenizer: Arc::clone(host.tokenizer()),
            template: host.template().cloned().map_err(|problem| problem.to_string()),
            sampling: host.sampling(),
            vocabulary: OnceLock::new(),
        }
    }

    /// The vocabulary made ready for answers of a form.
    pub(crate) fn vocabulary(&self) -> Result<Arc<Vocabulary>, FormError> {
        self.vocabulary.get_or_init(|| Vocabulary::new(&self.tokenizer)).clone()
    }
}

impl Writer for Host {
    fn submit(&self, request: Request) -> Result<Events, Failure> {
        let answer = Host::submit(self, request)?;
        let next = |mut answer: Answer| async { answer.recv().await.map(|event| (event, answer)) };
        Ok(Box::pin(futures_util::stream::unfold(answer, next)))
    }

    fn status(&self) -> Status {
        Host::status(self)
    }
}
