//! Answers of `/v1/chat/completions`.

use std::sync::Arc;

use serde_json::{Value, json};
use strata_engine::Tokenizer;

pub(crate) use super::chat_request::{ChatRequest, read};
use super::{end_chunks, finish_reason, logprobs, usage};
use crate::answer::{Call, End, Part, Token, Whole};
use crate::ids::{Id, now};
use crate::problem::{Family, Problem};
use crate::sse::{Events, Shape};

/// What all chunks of an answer have in common.
pub(crate) struct Chat {
    id: Id,
    created: u64,
    model: String,
    tokenizer: Arc<Tokenizer>,
    has_usage: bool,
    has_logprobs: bool,
    ignored: Vec<String>,
}

impl Chat {
    pub(crate) fn new(request: &ChatRequest, model: String, tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            id: Id::new(),
            created: now(),
            model,
            tokenizer,
            has_usage: request.has_usage,
            has_logprobs: request.settings.top_logprobs.is_some(),
            ignored: request.ignored.clone(),
        }
    }

    fn logprobs(&self, tokens: &[Token]) -> Value {
        if self.has_logprobs { json!({ "content": logprobs(&self.tokenizer, tokens) }) } else { Value::Null }
    }

    fn chunk(&self, choices: &Value) -> Value {
        json!({
            "id": self.id.with("chatcmpl-"),
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    fn delta(&self, delta: &Value, tokens: &[Token]) -> Value {
        let logprobs = if tokens.is_empty() { Value::Null } else { self.logprobs(tokens) };
        self.chunk(&json!([{ "index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": null }]))
    }
}

impl Shape for Chat {
    fn whole(&mut self, whole: Whole) -> Value {
        let Whole { thinking, text, calls, tokens, end } = whole;
        let call = |(index, call): (usize, &Call)| {
            json!({
                "id": self.id.call(index),
                "type": "function",
                "function": { "name": call.name, "arguments": call.arguments },
            })
        };
        let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { text.into() };
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if !thinking.is_empty() {
            message["reasoning_content"] = thinking.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.iter().enumerate().map(call).collect();
        }
        json!({
            "id": self.id.with("chatcmpl-"),
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [{
                "index": 0,
                "message": message,
                "logprobs": self.logprobs(&tokens),
                "finish_reason": finish_reason(&end),
            }],
            "usage": usage(&end),
            "strata": end.receipt(&self.ignored),
        })
    }

    fn begin(&mut self, events: &mut Events) {
        events.data(&self.delta(&json!({ "role": "assistant", "content": "" }), &[]));
    }

    fn part(&mut self, part: Part, events: &mut Events) {
        let delta = match part {
            Part::Thinking(text) => json!({ "reasoning_content": text }),
            Part::Text(text, tokens) => return events.data(&self.delta(&json!({ "content": text }), &tokens)),
            Part::CallBegin { index, name } => json!({ "tool_calls": [{
                "index": index,
                "id": self.id.call(index),
                "type": "function",
                "function": { "name": name, "arguments": "" },
            }] }),
            Part::CallArguments { index, json } => {
                json!({ "tool_calls": [{ "index": index, "function": { "arguments": json } }] })
            }
            Part::CallEnd { .. } => return,
        };
        events.data(&self.delta(&delta, &[]));
    }

    fn end(&mut self, end: End, events: &mut Events) {
        let choice = json!({ "index": 0, "delta": {}, "logprobs": null, "finish_reason": finish_reason(&end) });
        end_chunks(&end, &choice, |choices| self.chunk(choices), self.has_usage, &self.ignored, events);
    }

    fn failed(&mut self, problem: &Problem, events: &mut Events) {
        events.data(&problem.json(Family::OpenAi));
    }
}
