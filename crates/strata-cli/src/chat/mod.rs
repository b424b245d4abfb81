//! `strata chat`: turns, with the state kept between them; in a view of the whole terminal, or line by line.

mod input;
mod plain;
mod screen;
mod view;

use std::io::IsTerminal;

use strata_engine::{Engine, EngineOptions, Finish, GenerateOptions, Generated, Session};

use crate::error::CliError;
use crate::flags::ChatFlags;
use crate::{interrupt, setup};

pub(crate) fn chat(flags: &ChatFlags) -> Result<(), CliError> {
    setup::check_sampling(&flags.sampling)?;
    interrupt::install()?;
    let path = setup::model_path(flags.model.model.as_deref())?;
    let engine_options = EngineOptions { drafts: setup::drafts(&flags.drafts), ..setup::engine_options(&flags.engine) };
    let mut engine = setup::open_telling(&path, &engine_options)?;
    // A file that cannot chat is told now, not after the first line was typed.
    engine.tokenizer()?;
    engine.template()?;
    let options = GenerateOptions {
        max_tokens: flags.sampling.tokens,
        sampling: setup::sampling(&flags.sampling, engine.sampling()?),
    };
    let session = engine.new_session()?;
    let system: Vec<_> = flags.system.iter().map(|text| ("system".to_owned(), text.clone())).collect();
    let mut chat = Chat { engine, session, options, messages: system.clone(), system };
    let is_view = !flags.plain && std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let result = if is_view { screen::talk(&mut chat) } else { plain::talk(&mut chat) };
    setup::save_usage(&mut chat.engine);
    result
}

/// A conversation.
struct Chat {
    engine: Engine,
    session: Session,
    options: GenerateOptions,
    /// What the conversation begins with, also when it is begun anew.
    system: Vec<(String, String)>,
    /// Roles and texts.
    messages: Vec<(String, String)>,
}

/// What became of a message.
enum Turn {
    /// The answer, which may be the beginning of one.
    Answered(Generated),
    /// It cannot be asked; the conversation so far stays.
    Refused(String),
    /// It got no answer. A drive that failed may answer again; the conversation so far stays.
    Failed(String),
}

/// Whether something was answered, so that the conversation goes on from there.
fn has_answer(generated: &Generated) -> bool {
    generated.finish != Finish::Stopped || !generated.tokens.is_empty()
}

impl Chat {
    /// Asks; `generate` makes the answer from ids.
    fn say(
        &mut self,
        text: &str,
        generate: impl FnOnce(&mut Engine, &mut Session, &[u32], &GenerateOptions) -> Result<Generated, CliError>,
    ) -> Result<Turn, CliError> {
        self.messages.push(("user".to_owned(), text.to_owned()));
        let ids = match self.engine.encode_chat(&self.messages) {
            Ok(ids) => ids,
            Err(error) => {
                // The template may not like this message.
                self.messages.pop();
                return Ok(Turn::Refused(error.to_string()));
            }
        };
        let context = self.engine.model().context_tokens();
        if ids.len() >= context {
            self.messages.pop();
            return Ok(Turn::Refused(format!(
                "the conversation would have {} tokens, but the context holds {context}: say less, /clear, or start with \
                 a larger --context",
                ids.len()
            )));
        }
        let generated = match generate(&mut self.engine, &mut self.session, &ids, &self.options) {
            Ok(generated) => generated,
            Err(CliError::Failed(problem)) => {
                self.messages.pop();
                return Ok(Turn::Failed(problem));
            }
            Err(error) => return Err(error),
        };
        if has_answer(&generated) {
            let answer = self.engine.tokenizer()?.decode(&generated.tokens, true);
            self.messages.push(("assistant".to_owned(), answer));
        } else {
            self.messages.pop();
        }
        Ok(Turn::Answered(generated))
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
