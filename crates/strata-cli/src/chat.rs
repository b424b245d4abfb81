//! `strata chat`: turns, with the state kept between them.

use std::io::{BufRead, IsTerminal, Write};

use strata_engine::{Finish, GenerateOptions};

use crate::error::CliError;
use crate::flags::ChatFlags;
use crate::{interrupt, run, setup};

const HELP: &str = "/clear forgets the conversation, /exit (or Ctrl-D) ends it, Ctrl-C stops an answer";

pub(crate) fn chat(flags: &ChatFlags) -> Result<(), CliError> {
    interrupt::install()?;
    let path = setup::model_path(flags.model.model.as_deref())?;
    let mut engine = setup::open(&path, &setup::engine_options(&flags.engine))?;
    // A file that cannot chat is told now, not after the first line was typed.
    engine.template()?;
    engine.tokenizer()?;
    let options = GenerateOptions {
        max_tokens: flags.sampling.tokens,
        sampling: setup::sampling(&flags.sampling, engine.sampling()),
    };
    let mut session = engine.new_session()?;

    let system: Vec<_> = flags.system.iter().map(|text| ("system".to_owned(), text.clone())).collect();
    let mut messages = system.clone();
    let is_terminal = std::io::stdin().is_terminal();
    if is_terminal {
        eprintln!("{} ({})\n{HELP}", path.display(), engine.model().describe_backend());
    }
    while let Some(line) = ask(is_terminal)? {
        match line.trim() {
            "" => continue,
            "/exit" | "/quit" | "/bye" => break,
            "/help" | "/?" => eprintln!("{HELP}"),
            "/clear" => messages.clone_from(&system),
            command if command.starts_with('/') && is_terminal => eprintln!("unknown command {command}: {HELP}"),
            text => {
                messages.push(("user".to_owned(), text.to_owned()));
                let ids = engine.encode_chat(&messages)?;
                if ids.len() >= engine.model().context_tokens() {
                    let context = engine.model().context_tokens();
                    eprintln!(
                        "strata: the conversation has {} tokens, the context {context}: /clear to go on",
                        ids.len()
                    );
                    messages.pop();
                    continue;
                }
                let generated = run::stream(&mut engine, &mut session, &ids, &options)?;
                writeln!(std::io::stdout())?;
                eprintln!("{}", run::summary(&generated));
                if generated.finish == Finish::Stopped && generated.tokens.is_empty() {
                    messages.pop();
                    continue;
                }
                let answer = engine.tokenizer()?.decode(&generated.tokens, true);
                messages.push(("assistant".to_owned(), answer));
            }
        }
    }
    Ok(())
}

/// The user's next line; `None` at the end of the input.
fn ask(is_terminal: bool) -> Result<Option<String>, CliError> {
    if is_terminal {
        eprint!("\n> ");
        std::io::stderr().flush()?;
    }
    let mut line = Vec::new();
    let read = std::io::stdin().lock().read_until(b'\n', &mut line);
    match read.map_err(|error| CliError::Failed(format!("standard input: {error}")))? {
        0 => Ok(None),
        _ => Ok(Some(String::from_utf8_lossy(&line).into_owned())),
    }
}
