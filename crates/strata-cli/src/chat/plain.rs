//! A conversation line by line: for pipes, and for terminals that show nothing else.

use std::io::{BufRead, IsTerminal, Read, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Chat, Heard};
use crate::error::CliError;
use crate::{input, interrupt, note, run, setup};

/// How soon text is shown.
const TICK: Duration = Duration::from_millis(2);

const HELP: &str = "/clear forgets the conversation, /exit (or Ctrl-D) ends it, Ctrl-C stops an answer";

pub(super) fn talk(chat: &mut Chat) -> Result<(), CliError> {
    let mut unanswered = 0;
    let is_terminal = std::io::stdin().is_terminal();
    if is_terminal {
        note::line(format_args!("{}\n{HELP}", chat.model));
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
            text => {
                if let Err(problem) = chat.say(text) {
                    note::line(format_args!("strata: {problem}"));
                } else if let Err(problem) = stream(chat)? {
                    note::line(format_args!("\nstrata: {problem}"));
                    unanswered += 1;
                }
            }
        }
    }
    // Who typed the messages has seen it.
    if unanswered > 0 && !is_terminal {
        return Err(CliError::Failed(format!("messages that got no answer: {unanswered}")));
    }
    Ok(())
}

/// Prints the answer as it comes. Ctrl-C ends it; so does a reader that goes away. The inner error says why there is none.
fn stream(chat: &mut Chat) -> Result<Result<(), String>, CliError> {
    let mut stdout = std::io::stdout();
    let mut bar = setup::prompt_bar();
    interrupt::stoppable(|stop| {
        loop {
            if stop.load(Ordering::Relaxed) {
                chat.stop();
            }
            match chat.hear() {
                None => std::thread::sleep(TICK),
                Some(Heard::Reading(done)) => bar(done),
                Some(Heard::Text(text)) => stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())?,
                Some(Heard::Answered(rest, generated)) => {
                    bar(1.0);
                    writeln!(stdout, "{rest}")?;
                    note::line(run::summary(&generated));
                    return Ok(Ok(()));
                }
                Some(Heard::Failed(problem)) => {
                    bar(1.0);
                    return Ok(Err(problem));
                }
            }
        }
    })
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
