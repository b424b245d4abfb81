//! `strata chat`: turns, with the state kept between them; in a view of the whole terminal, or line by line.
//!
//! A host has the model, so that what it is doing can be seen while an answer is written.

mod input;
mod panel;
mod plain;
mod screen;
mod view;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use strata_engine::host::{Answer, Event, Host, HostOptions, Request};
use strata_engine::{Drafts, EngineOptions, Finish, GenerateOptions, Generated};

use crate::error::CliError;
use crate::flags::ChatFlags;
use crate::{interrupt, note, setup};

/// Kept of a conversation: the end of the system text, of the last prompt (for another answer to it), and of its answer.
const CHECKPOINTS: usize = 3;

pub(crate) fn chat(flags: &ChatFlags) -> Result<(), CliError> {
    setup::check_sampling(&flags.sampling)?;
    interrupt::install()?;
    let path = setup::model_path(flags.model.model.as_deref())?;
    let engine_options = EngineOptions {
        drafts: setup::drafts(&flags.drafts),
        sequences: 1,
        checkpoints: CHECKPOINTS,
        ..setup::engine_options(&flags.engine)
    };
    let engine = setup::open_telling(&path, &engine_options)?;
    // A file that cannot chat is told now, not after the first line was typed.
    engine.tokenizer()?;
    engine.template()?;
    let options = GenerateOptions {
        max_tokens: flags.sampling.tokens,
        sampling: setup::sampling(&flags.sampling, engine.sampling()?),
    };
    let (model, keeper) = (setup::describe(&engine), engine.run_keeper());
    let host_options = HostOptions { parallel: 1, queue: 1, checkpoints: CHECKPOINTS, ..HostOptions::default() };
    let host = Host::start(engine, host_options)?;
    let system: Vec<_> = flags.system.iter().map(|text| ("system".to_owned(), text.clone())).collect();
    let mut chat = Chat { host, model, options, messages: system.clone(), system, coming: None, last: None };
    let is_view = !flags.plain && std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let result = if is_view { screen::talk(&mut chat) } else { plain::talk(&mut chat) };
    // Who leaves does not wait for an answer.
    chat.coming = None;
    if let Some(generated) = &chat.last {
        setup::save_generated(&keeper, "chat", generated);
    }
    if let Err(error) = chat.host.close(Duration::ZERO) {
        note::line(format_args!("strata: warning: which experts were used is not kept: {error}"));
    }
    result
}

/// A conversation.
struct Chat {
    host: Host,
    /// The model and what computes it, in words.
    model: String,
    options: GenerateOptions,
    /// What the conversation begins with, also when it is begun anew.
    system: Vec<(String, String)>,
    /// Roles and texts.
    messages: Vec<(String, String)>,
    coming: Option<Coming>,
    /// What the last answer took.
    last: Option<Generated>,
}

/// An answer that is on its way.
struct Coming {
    answer: Answer,
    asked: Instant,
    /// When its first token came.
    began: Option<Instant>,
    is_stopped: bool,
    so_far: Generated,
}

/// What comes of a message: the first two any number of times, then one of the others.
#[derive(Debug)]
enum Heard {
    /// How much of the prompt is read, 0 to 1.
    Reading(f64),
    /// A piece of the answer.
    Text(String),
    /// The last piece, and what the answer took, which may be the beginning of one.
    Answered(String, Generated),
    /// It got no answer. A drive that failed may answer again; the conversation so far stays.
    Failed(String),
}

/// Whether something was answered, so that the conversation goes on from there.
fn has_answer(generated: &Generated) -> bool {
    generated.finish != Finish::Stopped || !generated.tokens.is_empty()
}

impl Chat {
    /// Asks. An error says why that cannot be asked; the conversation so far stays.
    fn say(&mut self, text: &str) -> Result<(), String> {
        self.messages.push(("user".to_owned(), text.to_owned()));
        let asked = self.ask();
        if asked.is_err() {
            self.messages.pop();
        }
        self.coming = Some(asked?);
        Ok(())
    }

    fn ask(&self) -> Result<Coming, String> {
        // The template may not like this message.
        let prompt = self.host.encode_chat(&self.messages).map_err(|error| match error.is_context_full() {
            true => format!("{error}: say less, /clear, or start with a larger --context"),
            false => error.to_string(),
        })?;
        let (prompt_tokens, context) = (prompt.len(), self.host.context_tokens());
        if prompt_tokens >= context {
            return Err(format!(
                "the conversation would have {prompt_tokens} tokens, but the context holds {context}: say less, /clear, or \
                 start with a larger --context"
            ));
        }
        let request = Request {
            prompt,
            max_tokens: self.options.max_tokens.min(context - prompt_tokens),
            sampling: self.options.sampling,
            bias: Vec::new(),
            constraint: None,
            stop: Vec::new(),
            top_logprobs: None,
        };
        let answer = self.host.submit(request).map_err(|failure| failure.message)?;
        let so_far = Generated {
            tokens: Vec::new(),
            finish: Finish::Stopped,
            prompt_tokens,
            reused_tokens: 0,
            prompt_time: Duration::ZERO,
            decode_time: Duration::ZERO,
            drafts: Drafts::default(),
            routes: None,
        };
        Ok(Coming { answer, asked: Instant::now(), began: None, is_stopped: false, so_far })
    }

    /// Stops the answer that is on its way: what has come of it is the answer.
    fn stop(&mut self) {
        self.coming.iter_mut().for_each(|coming| coming.is_stopped = true);
    }

    /// What has come next; `None`: nothing yet, or nothing is on its way.
    fn hear(&mut self) -> Option<Heard> {
        let coming = self.coming.as_mut()?;
        let so_far = &mut coming.so_far;
        match coming.answer.try_recv() {
            None if coming.is_stopped => {
                if let Some(began) = coming.began {
                    (so_far.prompt_time, so_far.decode_time) = (began - coming.asked, began.elapsed());
                }
                Some(self.answered(String::new()))
            }
            None => None,
            Some(Event::Reading { reused_tokens, progress, .. }) => {
                so_far.reused_tokens = reused_tokens;
                Some(Heard::Reading(progress))
            }
            Some(Event::Token(written)) => {
                coming.began.get_or_insert_with(Instant::now);
                so_far.tokens.push(written.token);
                Some(Heard::Text(written.text))
            }
            Some(Event::Done(outcome)) => {
                so_far.finish = match outcome.finish {
                    Finish::MaxTokens if so_far.tokens.len() < self.options.max_tokens => Finish::ContextFull,
                    finish => finish,
                };
                (so_far.prompt_time, so_far.decode_time) = (outcome.prompt_time, outcome.decode_time);
                (so_far.drafts, so_far.routes) = (outcome.drafts, outcome.routes);
                Some(self.answered(outcome.text))
            }
            Some(Event::Failed(failure)) => {
                self.coming = None;
                self.messages.pop();
                Some(Heard::Failed(failure.message))
            }
        }
    }

    /// The answer that was on its way is a part of the conversation.
    fn answered(&mut self, rest: String) -> Heard {
        let generated = self.coming.take().expect("an answer was on its way").so_far;
        if has_answer(&generated) {
            let answer = self.host.tokenizer().decode(&generated.tokens, true);
            self.messages.push(("assistant".to_owned(), answer));
        } else {
            self.messages.pop();
        }
        self.last = Some(generated.clone());
        Heard::Answered(rest, generated)
    }

    /// Takes the last answer and what it answered back, to ask anew; the next answer is chosen by another seed.
    fn take_back(&mut self) {
        self.options.sampling.seed = self.options.sampling.seed.wrapping_add(1);
        self.messages.truncate(self.messages.len().saturating_sub(2).max(self.system.len()));
    }

    /// Forgets the conversation.
    fn clear(&mut self) {
        self.messages.clone_from(&self.system);
    }
}
