//! `strata tokenize`: ids and pieces of a text.

use std::io::Write;

use serde_json::json;
use strata_engine::tokenizer_of;

use crate::error::CliError;
use crate::flags::TokenizeFlags;
use crate::{input, setup};

pub(crate) fn tokenize(flags: &TokenizeFlags) -> Result<(), CliError> {
    let text = input::argument_or_stdin(flags.text.as_deref(), "text")?;
    let tokenizer = tokenizer_of(&setup::model_path(flags.model.model.as_deref())?)?;
    let ids = tokenizer.encode(&text, flags.special).map_err(strata_engine::EngineError::from)?;
    let mut out = std::io::stdout().lock();
    if flags.json {
        let tokens: Vec<_> = ids.iter().map(|id| String::from_utf8_lossy(tokenizer.token_bytes(*id))).collect();
        writeln!(out, "{}", json!({ "ids": ids, "tokens": tokens }))?;
    } else if flags.ids {
        let ids: Vec<_> = ids.iter().map(u32::to_string).collect();
        writeln!(out, "{}", ids.join(","))?;
    } else {
        for id in &ids {
            writeln!(out, "{id:>8}  {}", quoted(tokenizer.token_bytes(*id)))?;
        }
    }
    Ok(())
}

/// A token in quotes: as text, or as bytes where it is only a part of a character.
fn quoted(token: &[u8]) -> String {
    match std::str::from_utf8(token) {
        Ok(text) => format!("{text:?}"),
        Err(_) => format!("b\"{}\"", token.escape_ascii()),
    }
}
