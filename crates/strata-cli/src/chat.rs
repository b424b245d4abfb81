//! `strata chat`: turns, with the state kept between them.

use std::io::{BufRead, IsTerminal, Read, Write};

use strata_engine::{EngineOptions, Finish, GenerateOptions};

use crate::error::CliError;
use crate::flags::ChatFlags;
use crate::{input, interrupt, note, run, setup};

const HELP: &str = "/clear forgets the conversation, /exit (or Ctrl-D) ends it, Ctrl-C stops an answer";

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
    let mut session = engine.new_session()?;

    let system: Vec<_> = flags.system.iter().map(|text| ("system".to_owned(), text.clone())).collect();
    let mut messages = system.clone();
    let mut unanswered = 0;
    let is_terminal = std::io::stdin().is_terminal();
    if is_terminal {
        note::line(format_args!("{} ({})\n{HELP}", path.display(), engine.model().describe_backend()));
    }
    while let Some(line) = ask(is_terminal)? {
        match line.trim() {
            "" => continue,
            "/exit" | "/quit" | "/bye" => break,
            "/help" | "/?" => note::line(HELP),
            "/clear" => messages.clone_from(&system),
            command if command.starts_with('/') && is_terminal => {
                note::line(format_args!("unknown command {command}: {HELP}"));
            }
            text => {
                messages.push(("user".to_owned(), text.to_owned()));
                let ids = match engine.encode_chat(&messages) {
                    Ok(ids) => ids,
                    Err(error) => {
                        // The template may not like this message; the conversation so far stays.
                        note::line(format_args!("strata: {error}"));
                        messages.pop();
                        continue;
                    }
                };
                if ids.len() >= engine.model().context_tokens() {
                    let context = engine.model().context_tokens();
                    note::line(format_args!(
                        "strata: the conversation would have {} tokens, but the context holds {context}: say less, /clear, \
                         or start with a larger --context",
                        ids.len()
                    ));
                    messages.pop();
                    continue;
                }
                let generated = match run::stream(&mut engine, &mut session, &ids, &options) {
                    // A drive that failed may answer again; the conversation so far stays.
                    Err(CliError::Failed(problem)) => {
                        note::line(format_args!("\nstrata: {problem}"));
                        messages.pop();
                        unanswered += 1;
                        continue;
                    }
                    generated => generated?,
                };
                writeln!(std::io::stdout())?;
                note::line(run::summary(&generated));
                setup::save_generated(&engine, "chat", &generated);
                if generated.finish == Finish::Stopped && generated.tokens.is_empty() {
                    messages.pop();
                    continue;
                }
                let answer = engine.tokenizer()?.decode(&generated.tokens, true);
                messages.push(("assistant".to_owned(), answer));
            }
        }
    }
    setup::save_usage(&mut engine);
    // Who typed the messages has seen it.
    if unanswered > 0 && !is_terminal {
        return Err(CliError::Failed(format!("messages that got no answer: {unanswered}")));
    }
    Ok(())
}

/// The user's next line; `None` at the end of the input.
fn ask(is_terminal: bool) -> Result<Option<String>, CliError> {
    if is_terminal {
        note::part("\n> ");
    }
    let mut line = Vec::new();
    let read = std::io::stdin().lock().take(input::MOST_TEXT_BYTES + 1).read_until(b'\n', &mut line);
    match read.map_err(|error| CliError::Failed(format!("standard input: {error}")))? as u64 {
        0 => Ok(None),
        input::MOST_TEXT_BYTES.. if !line.ends_with(b"\n") => Err(input::too_long("a line of standard input")),
        _ => Ok(Some(String::from_utf8_lossy(&line).into_owned())),
    }
}
