//! `/tokenize` and `/detokenize`, as llama.cpp's server has them.

use serde_json::{Value, json};
use strata_engine::Tokenizer;

use crate::fields::{Fields, wrong};
use crate::problem::Problem;

/// `{"content", "parse_special", "with_pieces"}` to `{"tokens"}`.
pub(crate) fn tokenize(mut fields: Fields, tokenizer: &Tokenizer) -> Result<Value, Problem> {
    let content = fields.text("content")?;
    let content = fields.needed("content", content)?;
    let is_special = fields.flag("parse_special")?.unwrap_or(true);
    let has_pieces = fields.flag("with_pieces")?.unwrap_or(false);
    let ids = tokenizer.encode(&content, is_special).map_err(|error| Problem::field("content", error.to_string()))?;
    let piece = |&id: &u32| {
        let bytes = tokenizer.token_bytes(id);
        // A piece that is no text is told by its bytes.
        let piece = std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), |text| json!(text));
        json!({ "id": id, "piece": piece })
    };
    Ok(match has_pieces {
        true => json!({ "tokens": ids.iter().map(piece).collect::<Vec<_>>() }),
        false => json!({ "tokens": ids }),
    })
}

/// `{"tokens"}` to `{"content"}`.
pub(crate) fn detokenize(mut fields: Fields, tokenizer: &Tokenizer) -> Result<Value, Problem> {
    let list = fields.list("tokens")?;
    let list = fields.needed("tokens", list)?;
    let id = |(path, value): (String, Value)| {
        let Some(id) = value.as_u64() else { return Err(wrong(&path, "the id of a token", &value)) };
        let known = u32::try_from(id).ok().filter(|id| (*id as usize) < tokenizer.vocab_len());
        known.ok_or_else(|| {
            Problem::field(&path, format!("`{path}` is {id}, but this model has {} tokens", tokenizer.vocab_len()))
        })
    };
    let ids = list.into_iter().map(id).collect::<Result<Vec<_>, _>>()?;
    Ok(json!({ "content": tokenizer.decode(&ids, false) }))
}
