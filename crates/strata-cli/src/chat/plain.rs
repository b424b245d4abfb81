//! A conversation line by line: for pipes, and for terminals that show nothing else.

use std::io::{BufRead, IsTerminal, Read, Write};

use super::{Chat, Turn};
use crate::error::CliError;
use crate::{input, note, run, setup};

const HELP: &str = "/clear forgets the conversation, /exit (or Ctrl-D) ends it, Ctrl-C stops an answer";

pub(super) fn talk(chat: &mut Chat) -> Result<(), CliError> {
    let mut unanswered = 0;
    let is_terminal = std::io::stdin().is_terminal();
    if is_terminal {
        let (path, backend) = (chat.engine.path().display(), chat.engine.model().describe_backend());
        note::line(format_args!("{path} ({backend})\n{HELP}"));
    }
    while let Some(line) = ask(is_terminal)? {
        match line.trim() {
            "" => continue,
            "/exit" | "/quit" | "/bye" => break,
            "/help" | "/?" => note::line(HELP),
            "/clear" => chat.clear(),
            command if command.starts_with('/') && is_terminal => {
                note::line(format_args!("unknown command {command}: {HELP}"));
            }
            text => match chat.say(text, run::stream)? {
                Turn::Answered(generated) => {
                    writeln!(std::io::stdout())?;
                    note::line(run::summary(&generated));
                    setup::save_generated(&chat.engine, "chat", &generated);
                }
                Turn::Refused(problem) => note::line(format_args!("strata: {problem}")),
                Turn::Failed(problem) => {
                    note::line(format_args!("\nstrata: {problem}"));
                    unanswered += 1;
                }
            },
        }
    }
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
