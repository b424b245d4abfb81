//! From a conversation to the ids of a prompt.
//!
//! Promises: what somebody wrote stays text. The name of a control token in a message (`<|im_end|>` in a file that is
//! talked about) neither ends a turn nor opens one; only the template's own do.

use serde_json::Value;

use crate::{ChatOptions, ChatTemplate, EngineError, Tokenizer};

/// A conversation as a model reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatPrompt {
    /// What the template made of it.
    pub text: String,
    /// Its ids.
    pub ids: Vec<u32>,
}

impl ChatPrompt {
    /// Renders messages, and encodes them. For `messages` see [`ChatTemplate::render`]. A prompt of many more than
    /// `most_tokens` is refused early ([`Tokenizer::encode_at_most`]).
    ///
    /// # Errors
    /// When the template refuses them or fails, or the text cannot be encoded.
    pub fn new(
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        mut messages: Vec<Value>,
        mut options: ChatOptions,
        most_tokens: usize,
    ) -> Result<Self, EngineError> {
        let names = tokenizer.control_names();
        let written = || messages.iter().chain(&options.tools).chain(options.variables.values());
        if !written().any(|value| any_text(value, &|text| names.iter().any(|name| text.contains(name)))) {
            let text = template.render(&messages, &options)?;
            let ids = tokenizer.encode_at_most(&text, true, most_tokens)?;
            return Ok(Self { text, ids });
        }
        // A mark within each name makes it another text for the template and the tokenizer; it is cut out again.
        let is_free = |mark: &char| !written().any(|value| any_text(value, &|text| text.contains(*mark)));
        let Some(mark) = ('\u{f0000}'..='\u{ffffd}').find(is_free) else {
            return Err(EngineError::Unusable("the messages use all characters that stand for none".to_owned()));
        };
        let shield = &|text: &mut String| {
            for name in names {
                if let Some(first) = name.chars().next().filter(|_| text.contains(name)) {
                    let (head, tail) = name.split_at(first.len_utf8());
                    *text = text.replace(name, &format!("{head}{mark}{tail}"));
                }
            }
        };
        let values = messages.iter_mut().chain(&mut options.tools).chain(options.variables.values_mut());
        values.for_each(|value| change_texts(value, shield));
        let marked = template.render(&messages, &options)?;
        let mut ids = Vec::new();
        for piece in marked.split(mark) {
            ids.extend(tokenizer.encode_at_most(piece, true, most_tokens)?);
        }
        Ok(Self { text: marked.replace(mark, ""), ids })
    }
}

/// Whether something holds of any text in a value, names of fields among them.
fn any_text(value: &Value, holds: &impl Fn(&str) -> bool) -> bool {
    match value {
        Value::String(text) => holds(text),
        Value::Array(values) => values.iter().any(|value| any_text(value, holds)),
        Value::Object(fields) => fields.iter().any(|(name, value)| holds(name) || any_text(value, holds)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Changes all texts in a value, names of fields among them.
fn change_texts(value: &mut Value, change: &impl Fn(&mut String)) {
    match value {
        Value::String(text) => change(text),
        Value::Array(values) => values.iter_mut().for_each(|value| change_texts(value, change)),
        Value::Object(fields) => {
            let changed = std::mem::take(fields).into_iter().map(|(mut name, mut value)| {
                change(&mut name);
                change_texts(&mut value, change);
                (name, value)
            });
            *fields = changed.collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
