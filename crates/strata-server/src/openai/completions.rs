//! `/v1/completions`: plain texts that go on.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use strata_engine::{SamplerParams, Tokenizer};

use super::{end_chunks, finish_reason, take_n, take_stream, usage};
use crate::answer::{End, Part, Token, Whole};
use crate::fields::{Fields, wrong};
use crate::ids::{Id, now};
use crate::problem::{Family, Problem};
use crate::settings::{Settings, tokens};
use crate::sse::{Events, Shape};

/// Tokens that are written where a request does not say.
const DEFAULT_TOKENS: usize = 16;

/// What is to go on.
#[derive(Debug)]
pub(crate) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// A request.
#[derive(Debug)]
pub(crate) struct CompletionRequest {
    pub(crate) prompt: Prompt,
    pub(crate) settings: Settings,
    pub(crate) model: Option<String>,
    pub(crate) is_streamed: bool,
    has_usage: bool,
    ignored: Vec<String>,
}

/// Reads one.
pub(crate) fn read(mut fields: Fields, recommended: SamplerParams) -> Result<CompletionRequest, Problem> {
    let model = fields.text("model")?;
    let path = fields.path("prompt");
    let prompt = fields.value("prompt");
    let prompt = prompt_of(&path, fields.needed("prompt", prompt)?)?;
    take_n(&mut fields)?;
    if fields.whole("best_of", 0..=u64::MAX)?.is_some_and(|best_of| best_of > 1) {
        return Err(fields.problem("best_of", "must be 1: one answer is written for a request"));
    }
    if fields.flag("echo")?.unwrap_or(false) {
        return Err(fields.problem("echo", "must be false: prompts are not sent back"));
    }
    if fields.text("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(fields.problem("suffix", "must be empty: this model does not fill in"));
    }
    let (is_streamed, has_usage) = take_stream(&mut fields)?;
    let mut settings = Settings::take(&mut fields, recommended)?;
    settings.take_logprobs_number(&mut fields, "logprobs")?;
    settings.max_tokens = Some(tokens(&mut fields, "max_tokens")?.unwrap_or(DEFAULT_TOKENS));
    Ok(CompletionRequest { prompt, settings, model, is_streamed, has_usage, ignored: fields.left() })
}

/// A text, ids, or a list of one of these.
fn prompt_of(path: &str, value: Value) -> Result<Prompt, Problem> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(mut list) => match list.first() {
            Some(Value::String(_) | Value::Array(_)) if list.len() == 1 => prompt_of(path, list.remove(0)),
            Some(Value::String(_) | Value::Array(_)) => {
                Err(Problem::field(path, format!("`{path}` must be one prompt: one answer is written for a request")))
            }
            Some(_) => {
                let ids: Option<Vec<u32>> = list.iter().map(id).collect();
                ids.map(Prompt::Ids)
                    .ok_or_else(|| Problem::field(path, format!("`{path}` must be a text or ids of tokens")))
            }
            None => Err(Problem::field(path, format!("`{path}` must not be empty"))),
        },
        other => Err(wrong(path, "a string or a list of ids", &other)),
    }
}

/// What all chunks of an answer have in common.
pub(crate) struct Completion {
    id: Id,
    created: u64,
    model: String,
    tokenizer: Arc<Tokenizer>,
    has_usage: bool,
    has_logprobs: bool,
    ignored: Vec<String>,
    /// Characters so far.
    offset: usize,
}

impl Completion {
    pub(crate) fn new(request: &CompletionRequest, model: String, tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            id: Id::new(),
            created: now(),
            model,
            tokenizer,
            has_usage: request.has_usage,
            has_logprobs: request.settings.top_logprobs.is_some(),
            ignored: request.ignored.clone(),
            offset: 0,
        }
    }

    fn chunk(&self, choices: &Value) -> Value {
        json!({
            "id": self.id.with("cmpl-"),
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    fn logprobs(&mut self, tokens: &[Token]) -> Value {
        if !self.has_logprobs {
            return Value::Null;
        }
        let name = |id| String::from_utf8_lossy(self.tokenizer.token_bytes(id)).into_owned();
        let mut offsets = Vec::new();
        for token in tokens {
            offsets.push(self.offset);
            self.offset += name(token.id).chars().count();
        }
        let top = |token: &Token| {
            let pair = |&(id, logprob): &(u32, f32)| (name(id), logprob.max(-9999.0).into());
            token.choice.top.iter().map(pair).collect::<Map<_, Value>>()
        };
        json!({
            "tokens": tokens.iter().map(|token| name(token.id)).collect::<Vec<_>>(),
            "token_logprobs": tokens.iter().map(|token| token.choice.logprob.max(-9999.0)).collect::<Vec<_>>(),
            "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
            "text_offset": offsets,
        })
    }
}

impl Shape for Completion {
    fn whole(&mut self, whole: Whole) -> Value {
        let logprobs = self.logprobs(&whole.tokens);
        let mut json = self.chunk(&json!([{
            "index": 0,
            "text": whole.text,
            "logprobs": logprobs,
            "finish_reason": finish_reason(&whole.end),
        }]));
        json["usage"] = usage(&whole.end);
        json["strata"] = whole.end.receipt(&self.ignored);
        json
    }

    fn begin(&mut self, _: &mut Events) {}

    fn part(&mut self, part: Part, events: &mut Events) {
        let Part::Text(text, tokens) = part else { return };
        let logprobs = self.logprobs(&tokens);
        events.data(&self.chunk(&json!([{ "index": 0, "text": text, "logprobs": logprobs, "finish_reason": null }])));
    }

    fn end(&mut self, end: End, events: &mut Events) {
        let choice = json!({ "index": 0, "text": "", "logprobs": null, "finish_reason": finish_reason(&end) });
        end_chunks(&end, &choice, |choices| self.chunk(choices), self.has_usage, &self.ignored, events);
    }

    fn failed(&mut self, problem: &Problem, events: &mut Events) {
        events.data(&problem.json(Family::OpenAi));
    }
}
