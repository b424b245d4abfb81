//! Answers of `/v1/messages`.

use serde_json::{Value, json};

use super::MessagesRequest;
use crate::answer::{End, Part, Reason, Whole};
use crate::ids::Id;
use crate::problem::{Family, Problem};
use crate::sse::{Events, Shape};

/// An answer in the making.
pub(crate) struct Messages {
    id: Id,
    model: String,
    prompt_tokens: usize,
    ignored: Vec<String>,
    /// Blocks so far, and what the open one holds.
    blocks: usize,
    open: Option<Block>,
}

#[derive(Clone, Copy, PartialEq)]
enum Block {
    Thinking,
    Text,
    Call(usize),
}

impl Messages {
    pub(crate) fn new(request: &MessagesRequest, model: String, prompt_tokens: usize) -> Self {
        Self { id: Id::new(), model, prompt_tokens, ignored: request.ignored.clone(), blocks: 0, open: None }
    }

    fn message(&self, content: &[Value]) -> Value {
        json!({
            "id": self.id.with("msg_"),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
        })
    }

    fn call_id(&self, index: usize) -> String {
        format!("toolu_{}", self.id.call(index))
    }

    fn open(&mut self, events: &mut Events, block: Block, json: &Value) {
        if self.open == Some(block) {
            return;
        }
        self.close(events);
        self.open = Some(block);
        let data = json!({ "type": "content_block_start", "index": self.blocks, "content_block": json });
        events.named("content_block_start", &data);
    }

    fn close(&mut self, events: &mut Events) {
        let Some(block) = self.open.take() else { return };
        if block == Block::Thinking {
            self.delta(events, &json!({ "type": "signature_delta", "signature": "" }));
        }
        events.named("content_block_stop", &json!({ "type": "content_block_stop", "index": self.blocks }));
        self.blocks += 1;
    }

    fn delta(&self, events: &mut Events, delta: &Value) {
        let data = json!({ "type": "content_block_delta", "index": self.blocks, "delta": delta });
        events.named("content_block_delta", &data);
    }
}

fn usage(end: &End) -> Value {
    let outcome = &end.outcome;
    json!({
        "input_tokens": outcome.prompt_tokens - outcome.reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": outcome.reused_tokens,
        "output_tokens": outcome.written_tokens,
    })
}

fn stop_reason(end: &End) -> &'static str {
    match end.reason() {
        Reason::Turn => "end_turn",
        Reason::Stop(_) => "stop_sequence",
        Reason::Length => "max_tokens",
        Reason::Calls => "tool_use",
    }
}

fn stop_sequence(end: &End) -> Value {
    match end.reason() {
        Reason::Stop(stop) => stop.into(),
        _ => Value::Null,
    }
}

impl Shape for Messages {
    fn whole(&mut self, whole: Whole) -> Value {
        let Whole { thinking, text, calls, end, .. } = whole;
        let mut content = Vec::new();
        if !thinking.is_empty() {
            content.push(json!({ "type": "thinking", "thinking": thinking, "signature": "" }));
        }
        if !text.is_empty() || calls.is_empty() {
            content.push(json!({ "type": "text", "text": text }));
        }
        for (index, call) in calls.iter().enumerate() {
            let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
            content.push(json!({ "type": "tool_use", "id": self.call_id(index), "name": call.name, "input": input }));
        }
        let mut message = self.message(&content);
        message["stop_reason"] = stop_reason(&end).into();
        message["stop_sequence"] = stop_sequence(&end);
        message["usage"] = usage(&end);
        message["strata"] = end.receipt(&self.ignored);
        message
    }

    fn begin(&mut self, events: &mut Events) {
        let mut message = self.message(&[]);
        // What of the prompt was known is told at the end.
        message["usage"] = json!({
            "input_tokens": self.prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        });
        events.named("message_start", &json!({ "type": "message_start", "message": message }));
        events.named("ping", &json!({ "type": "ping" }));
    }

    fn part(&mut self, part: Part, events: &mut Events) {
        match part {
            Part::Thinking(text) => {
                self.open(events, Block::Thinking, &json!({ "type": "thinking", "thinking": "", "signature": "" }));
                self.delta(events, &json!({ "type": "thinking_delta", "thinking": text }));
            }
            Part::Text(text, _) => {
                self.open(events, Block::Text, &json!({ "type": "text", "text": "" }));
                self.delta(events, &json!({ "type": "text_delta", "text": text }));
            }
            Part::CallBegin { index, name } => {
                let block = json!({ "type": "tool_use", "id": self.call_id(index), "name": name, "input": {} });
                self.open(events, Block::Call(index), &block);
            }
            Part::CallArguments { json, .. } => {
                self.delta(events, &json!({ "type": "input_json_delta", "partial_json": json }));
            }
            Part::CallEnd { .. } => self.close(events),
        }
    }

    fn end(&mut self, end: End, events: &mut Events) {
        self.close(events);
        let delta = json!({ "stop_reason": stop_reason(&end), "stop_sequence": stop_sequence(&end) });
        let strata = end.receipt(&self.ignored);
        let data = json!({ "type": "message_delta", "delta": delta, "usage": usage(&end), "strata": strata });
        events.named("message_delta", &data);
        events.named("message_stop", &json!({ "type": "message_stop" }));
    }

    fn failed(&mut self, problem: &Problem, events: &mut Events) {
        events.named("error", &problem.json(Family::Anthropic));
    }
}
