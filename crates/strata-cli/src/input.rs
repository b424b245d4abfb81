//! Texts and ids from arguments, files and standard input.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;

use strata_engine::Engine;

use crate::error::CliError;
use crate::flags::TextFlags;
use crate::note;

/// The text of an argument; without one, or with `-`, standard input.
pub(crate) fn argument_or_stdin(argument: Option<&str>, what: &str) -> Result<String, CliError> {
    match argument {
        Some("-") => stdin(),
        Some(text) => Ok(text.to_owned()),
        None if std::io::stdin().is_terminal() => Err(CliError::Usage(format!(
            "no {what}: give it as an argument, or pipe it in (`strata --help` shows how)"
        ))),
        None => stdin(),
    }
}

/// A text file; `-` is standard input.
pub(crate) fn text_file(path: &Path) -> Result<String, CliError> {
    if path == Path::new("-") {
        return stdin();
    }
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| CliError::Failed(format!("{name}: {error}")))?;
    text(file, &name)
}

fn stdin() -> Result<String, CliError> {
    text(std::io::stdin().lock(), "standard input")
}

/// The most bytes of a text: more than any context has room for. What never ends is told before memory does.
pub(crate) const MOST_TEXT_BYTES: u64 = 256 << 20;

pub(crate) fn too_long(name: &str) -> CliError {
    CliError::Failed(format!("{name}: it is too long: at most {} MiB of text are read", MOST_TEXT_BYTES >> 20))
}

fn text(input: impl Read, name: &str) -> Result<String, CliError> {
    let mut bytes = Vec::new();
    let read = input.take(MOST_TEXT_BYTES + 1).read_to_end(&mut bytes);
    match read.map_err(|error| CliError::Failed(format!("{name}: {error}")))? as u64 {
        0..=MOST_TEXT_BYTES => utf8(bytes, name),
        _ => Err(too_long(name)),
    }
}

fn utf8(bytes: Vec<u8>, name: &str) -> Result<String, CliError> {
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        CliError::Failed(format!("{name}: not UTF-8 text (the byte at offset {offset} is no character)"))
    })
}

impl TextFlags {
    /// The text that the user named. Asked for early, before time is spent on loading a model.
    pub(crate) fn named(&self) -> Result<NamedText<'_>, CliError> {
        match (&self.ids, &self.ids_file, &self.text) {
            (Some(ids), _, _) => Ok(NamedText::Ids(ids)),
            (_, Some(path), _) => Ok(NamedText::IdsFile(path)),
            (_, _, Some(path)) => Ok(NamedText::File(path)),
            _ => Err(CliError::Usage("no text: give --ids, --ids-file or --text".to_owned())),
        }
    }
}

/// Where a text comes from.
pub(crate) enum NamedText<'a> {
    Ids(&'a [u32]),
    IdsFile(&'a Path),
    File(&'a Path),
}

impl NamedText<'_> {
    /// Its ids, at most `limit` of them. Without a limit, a text that is longer than the context is cut, and the user told.
    pub(crate) fn read(&self, engine: &Engine, limit: Option<usize>) -> Result<Vec<u32>, CliError> {
        let mut ids = match self {
            Self::Ids(ids) => ids.to_vec(),
            Self::IdsFile(path) => parse_ids(&text_file(path)?, path)?,
            Self::File(path) => {
                let text = text_file(path)?;
                let mut ids = engine.tokenizer()?.encode(&text, false).map_err(strata_engine::EngineError::from)?;
                let context = engine.model().context_tokens();
                if limit.is_none() && ids.len() > context {
                    let (name, all) = (path.display(), ids.len());
                    note::line(format_args!(
                        "{name}: the first {context} of its {all} tokens are used (--limit, --context)"
                    ));
                    ids.truncate(context);
                }
                ids
            }
        };
        ids.truncate(limit.unwrap_or(usize::MAX));
        Ok(ids)
    }
}

fn parse_ids(text: &str, path: &Path) -> Result<Vec<u32>, CliError> {
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    words
        .map(|word| {
            let problem = format!("{}: `{word}` is no token id", path.display());
            word.parse().map_err(|_| CliError::Failed(problem))
        })
        .collect()
}
