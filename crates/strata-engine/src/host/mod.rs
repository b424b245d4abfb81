//! Many requests on one model.
//!
//! Owns: the thread that runs the model, the queue before it, which request's pass is next, and where prefixes of texts
//! are kept. Promises: a text is the same bytes alone or in company, read anew or from a kept prefix; a request that was
//! given up frees its sequence within one layer; every request ends with exactly one [`Event::Done`] or
//! [`Event::Failed`]. Refuses: to know HTTP, or what an answer means.

mod desk;
mod monitor;
mod request;
mod run;
mod status;
mod stop;
mod text;
mod watch;

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub use desk::Answer;
pub use request::{Choice, Event, Failure, FailureKind, Outcome, Request, Written};
pub use status::{ArenaStatus, DriveStatus, LookupStatus, MemoryStatus, RequestStatus, SequencePhase, Status};

use self::desk::{Desk, lock};
use self::monitor::{Monitor, memory_status};
use self::run::Runner;
use self::watch::{Now, watch};
use crate::engine::encode_chat;
use crate::prefix::DiskOptions;
use crate::{ChatTemplate, Chooser, Engine, EngineError, SamplerParams, Tokenizer};

/// How a host serves.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// Requests at work at a time, at least one and no more than [`EngineOptions::sequences`](crate::EngineOptions).
    pub parallel: usize,
    /// Requests that may wait.
    pub queue: usize,
    /// A request without progress for so long is ended.
    pub stall_after: Duration,
    /// Prefixes of texts that are kept in memory, no more than [`EngineOptions::checkpoints`](crate::EngineOptions).
    pub checkpoints: usize,
    /// In a long prompt, one is kept at least for each so many tokens.
    pub checkpoint_every_tokens: usize,
    /// Where they are kept for later runs, if anywhere.
    pub disk: Option<DiskOptions>,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            parallel: 4,
            queue: 64,
            stall_after: Duration::from_secs(600),
            checkpoints: 6,
            checkpoint_every_tokens: 2048,
            disk: None,
        }
    }
}

/// How long after the end of all requests the model's thread may take to end: as long as the drive may be stuck, and longer.
const CLOSING_PATIENCE: Duration = Duration::from_secs(40);

/// A model that serves many requests. Dropping it closes it without grace.
pub struct Host {
    desk: Arc<Desk>,
    monitor: Arc<Monitor>,
    options: HostOptions,
    tokenizer: Arc<Tokenizer>,
    template: Result<Arc<ChatTemplate>, String>,
    sampling: SamplerParams,
    model: String,
    context_tokens: usize,
    vocabulary: usize,
    thread: Mutex<Option<JoinHandle<Result<(), EngineError>>>>,
}

impl Host {
    /// Takes an engine to serve requests with.
    ///
    /// # Errors
    /// When its file has no usable tokenizer or recommendations, its [plan](Engine::plan) does not count what so many requests
    /// and checkpoints need ([`EngineOptions`](crate::EngineOptions)), or memory does not suffice for it.
    pub fn start(mut engine: Engine, options: HostOptions) -> Result<Self, EngineError> {
        let (parallel, checkpoints) = (engine.options.sequences, engine.options.checkpoints);
        if options.parallel == 0 || options.parallel > parallel || options.checkpoints > checkpoints {
            return Err(EngineError::Unusable(format!(
                "a host of {} requests at a time with {} checkpoints needs an engine that was opened for as many: this one's \
                 plan counts {parallel} and {checkpoints}",
                options.parallel, options.checkpoints
            )));
        }
        let tokenizer = engine.tokenizer()?.clone();
        let template = engine.template().cloned().map_err(|error| error.to_string());
        let sampling = engine.sampling()?;
        let model = engine.path().file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (context_tokens, vocabulary) = (engine.model().context_tokens(), engine.model().vocabulary());
        let (desk, now) = (Arc::new(Desk::new()), Arc::new(Now::new(engine.reads_gauge())));
        let monitor = Arc::new(Monitor::new(Status {
            model: model.clone(),
            queue_limit: options.queue,
            parallel: options.parallel,
            context_tokens,
            memory: memory_status(engine.plan()),
            ..Status::default()
        }));
        let (shared, told) = (desk.clone(), monitor.clone());
        let mut runner = Runner::new(engine, tokenizer.clone(), shared, now.clone(), told, &options)?;
        let spawn = |name: &str| thread::Builder::new().name(name.to_owned());
        let no_thread = |error| EngineError::Unusable(format!("no thread can be started: {error}"));
        let ending = Ending(desk.clone());
        let thread = spawn("strata-model").spawn(move || {
            let ending = ending;
            runner.run();
            let result = runner.finish();
            drop(ending);
            result
        });
        let thread = Mutex::new(Some(thread.map_err(no_thread)?));
        let host = Self {
            desk: desk.clone(),
            monitor,
            options,
            tokenizer,
            template,
            sampling,
            model,
            context_tokens,
            vocabulary,
            thread,
        };
        let stall_after = host.options.stall_after;
        spawn("strata-watch").spawn(move || watch(&desk, &now, stall_after)).map_err(no_thread)?;
        Ok(host)
    }

    /// Asks for a text.
    ///
    /// # Errors
    /// At once, when the request cannot be served: see [`FailureKind`].
    pub fn submit(&self, request: Request) -> Result<Answer, Failure> {
        let invalid = |message: String| Err(Failure { kind: FailureKind::Invalid, message });
        let (prompt_tokens, max_tokens, most) = (request.prompt.len(), request.max_tokens, self.context_tokens);
        if prompt_tokens == 0 {
            return invalid("the prompt is empty: there is nothing to continue".to_owned());
        }
        if max_tokens == 0 {
            return invalid("`max_tokens` is 0: nothing would be written".to_owned());
        }
        if let Some(id) = request.prompt.iter().find(|id| **id as usize >= self.vocabulary) {
            return invalid(format!("the prompt has token {id}, but the model knows only {} tokens", self.vocabulary));
        }
        if prompt_tokens.saturating_add(max_tokens) > most {
            return invalid(format!(
                "the prompt has {prompt_tokens} tokens and {max_tokens} more are asked for, but the context has room for {most}"
            ));
        }
        if let Err(error) = Chooser::new(request.sampling, request.bias.clone(), None, request.top_logprobs) {
            return invalid(error.to_string());
        }
        if let Some((id, _)) = request.bias.iter().find(|(id, _)| *id as usize >= self.vocabulary) {
            return invalid(format!("a bias is for token {id}, but the model knows only {} tokens", self.vocabulary));
        }
        self.desk.ask(request, self.options.queue)
    }

    /// What it is doing.
    pub fn status(&self) -> Status {
        let (queued, ended) = self.desk.counts();
        self.monitor.status(queued, ended)
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The model's chat template.
    ///
    /// # Errors
    /// When its file has none, or one that cannot be used.
    pub fn template(&self) -> Result<&Arc<ChatTemplate>, EngineError> {
        self.template.as_ref().map_err(|problem| EngineError::Unusable(problem.clone()))
    }

    /// Ids of a conversation, ready for the assistant's answer. Messages are `(role, content)`.
    ///
    /// # Errors
    /// When the file has no usable template, or that refuses these messages.
    pub fn encode_chat(&self, messages: &[(String, String)]) -> Result<Vec<u32>, EngineError> {
        encode_chat(self.template()?, &self.tokenizer, messages, self.context_tokens())
    }

    /// How the model's makers say to sample.
    pub fn sampling(&self) -> SamplerParams {
        self.sampling
    }

    /// The model's name: that of its file, without the ending.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Tokens that a prompt and its answer may have together.
    pub fn context_tokens(&self) -> usize {
        self.context_tokens
    }

    /// Ends the host: takes no more requests, ends those that wait, lets those at work go on for at most `grace`, and keeps
    /// what was learned of the use of experts. Closing it again does nothing.
    ///
    /// # Errors
    /// When something could not be kept, or the drive does not answer, so that the model's thread goes on.
    pub fn close(&self, grace: Duration) -> Result<(), EngineError> {
        let is_gone = self.desk.close(grace, CLOSING_PATIENCE);
        let Some(thread) = lock(&self.thread).take() else { return Ok(()) };
        if !is_gone {
            let problem = "the model's thread does not end: it waits for the drive".to_owned();
            return Err(EngineError::Unusable(problem));
        }
        let fault =
            || EngineError::Unusable("the thread that runs the model has ended by a fault of this program".to_owned());
        thread.join().map_err(|_| fault())?
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = self.close(Duration::ZERO);
    }
}

/// Says that the model's thread has ended, however it does.
struct Ending(Arc<Desk>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.gone();
    }
}

#[cfg(test)]
mod tests;
