//! Answers of `/v1/responses`.

use std::sync::Arc;

use serde_json::{Value, json};
use strata_engine::Tokenizer;

use super::logprobs;
use super::responses_request::ResponsesRequest;
use crate::answer::{End, Part, Reason, Token, Whole};
use crate::ids::{Id, now};
use crate::problem::Problem;
use crate::sse::{Events, Shape};

/// An answer in the making. A whole one is made of the same steps as a streamed one.
pub(crate) struct Responses {
    id: Id,
    created: u64,
    model: String,
    tokenizer: Arc<Tokenizer>,
    echo: Value,
    ignored: Vec<String>,
    has_logprobs: bool,
    /// Events so far.
    sequence: u64,
    /// Items that are complete.
    output: Vec<Value>,
    open: Option<Item>,
}

/// The item that is being written.
struct Item {
    kind: ItemKind,
    id: String,
    text: String,
    tokens: Vec<Token>,
}

#[derive(Clone, PartialEq)]
enum ItemKind {
    Reasoning,
    Message,
    Call { id: String, name: String },
}

impl Responses {
    pub(crate) fn new(request: &ResponsesRequest, model: String, tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            id: Id::new(),
            created: now(),
            model,
            tokenizer,
            echo: request.echo.clone(),
            ignored: request.ignored.clone(),
            has_logprobs: request.settings.top_logprobs.is_some(),
            sequence: 0,
            output: Vec::new(),
            open: None,
        }
    }

    fn response(&self, status: &str) -> Value {
        let mut response = json!({
            "id": self.id.with("resp_"),
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "model": self.model,
            "output": self.output,
            "usage": null,
        });
        if let (Some(response), Some(echo)) = (response.as_object_mut(), self.echo.as_object()) {
            response.extend(echo.clone());
        }
        response
    }

    fn ended(&self, end: &End) -> Value {
        let mut response = self.response(status(end));
        if end.reason() == Reason::Length {
            response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        let outcome = &end.outcome;
        response["usage"] = json!({
            "input_tokens": outcome.prompt_tokens,
            "input_tokens_details": { "cached_tokens": outcome.reused_tokens, "cache_write_tokens": 0 },
            "output_tokens": outcome.written_tokens,
            "output_tokens_details": { "reasoning_tokens": end.thinking_tokens },
            "total_tokens": outcome.prompt_tokens + outcome.written_tokens,
        });
        response["strata"] = end.receipt(&self.ignored);
        response
    }

    fn event(&mut self, events: &mut Events, ty: &str, mut data: Value) {
        data["type"] = ty.into();
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        events.named(ty, &data);
    }

    /// Makes sure that the open item is of this kind.
    fn open(&mut self, events: &mut Events, kind: &ItemKind) {
        if self.open.as_ref().is_some_and(|open| open.kind == *kind) {
            return;
        }
        self.close(events, "completed");
        let index = self.output.len();
        let prefix = match kind {
            ItemKind::Reasoning => "rs_",
            ItemKind::Message => "msg_",
            ItemKind::Call { .. } => "fc_",
        };
        let item = Item {
            kind: kind.clone(),
            id: format!("{}_{index}", self.id.with(prefix)),
            text: String::new(),
            tokens: Vec::new(),
        };
        let (id, mut json) = (item.id.clone(), self.item_json(&item, "in_progress"));
        if *kind == ItemKind::Message {
            json["content"] = json!([]);
        }
        self.open = Some(item);
        self.event(events, "response.output_item.added", json!({ "output_index": index, "item": json }));
        if *kind == ItemKind::Message {
            let part = json!({ "type": "output_text", "text": "", "annotations": [], "logprobs": [] });
            let place = json!({ "item_id": id, "output_index": index, "content_index": 0, "part": part });
            self.event(events, "response.content_part.added", place);
        }
    }

    /// Ends the open item.
    fn close(&mut self, events: &mut Events, status: &str) {
        let Some(item) = self.open.take() else { return };
        let index = self.output.len();
        let place = |rest: &[(&str, Value)]| {
            let mut place = json!({ "item_id": item.id, "output_index": index });
            rest.iter().for_each(|(name, value)| place[*name] = value.clone());
            place
        };
        let json = self.item_json(&item, status);
        match &item.kind {
            ItemKind::Reasoning => {
                let data = place(&[("content_index", 0.into()), ("text", item.text.as_str().into())]);
                self.event(events, "response.reasoning_text.done", data);
            }
            ItemKind::Message => {
                let part = json["content"][0].clone();
                let data = [
                    ("content_index", 0.into()),
                    ("text", item.text.as_str().into()),
                    ("logprobs", part["logprobs"].clone()),
                ];
                self.event(events, "response.output_text.done", place(&data));
                self.event(events, "response.content_part.done", place(&[("content_index", 0.into()), ("part", part)]));
            }
            ItemKind::Call { name, .. } => {
                let data = place(&[("name", name.as_str().into()), ("arguments", item.text.as_str().into())]);
                self.event(events, "response.function_call_arguments.done", data);
            }
        }
        self.event(events, "response.output_item.done", json!({ "output_index": index, "item": json }));
        self.output.push(json);
    }

    fn item_json(&self, item: &Item, status: &str) -> Value {
        match &item.kind {
            ItemKind::Reasoning => json!({
                "id": item.id,
                "type": "reasoning",
                "summary": [],
                "content": [{ "type": "reasoning_text", "text": item.text }],
                "status": status,
            }),
            ItemKind::Message => {
                let logprobs = if self.has_logprobs { logprobs(&self.tokenizer, &item.tokens) } else { json!([]) };
                let text = json!({ "type": "output_text", "text": item.text, "annotations": [], "logprobs": logprobs });
                json!({ "id": item.id, "type": "message", "status": status, "role": "assistant", "content": [text] })
            }
            ItemKind::Call { id, name } => json!({
                "id": item.id,
                "type": "function_call",
                "status": status,
                "call_id": id,
                "name": name,
                "arguments": item.text,
            }),
        }
    }

    /// Adds to the open item, and tells of it.
    fn add(&mut self, events: &mut Events, ty: &str, text: &str, tokens: Vec<Token>) {
        let index = self.output.len();
        let Some(item) = &mut self.open else { return };
        item.text.push_str(text);
        let mut data = json!({ "item_id": item.id, "output_index": index, "delta": text });
        match &item.kind {
            ItemKind::Call { .. } => {}
            ItemKind::Reasoning => data["content_index"] = 0.into(),
            ItemKind::Message => {
                data["content_index"] = 0.into();
                data["logprobs"] = logprobs(&self.tokenizer, &tokens);
                item.tokens.extend(tokens);
            }
        }
        self.event(events, ty, data);
    }
}

fn status(end: &End) -> &'static str {
    if end.reason() == Reason::Length { "incomplete" } else { "completed" }
}

impl Shape for Responses {
    fn whole(&mut self, whole: Whole) -> Value {
        let nobody = &mut Events::default();
        if !whole.thinking.is_empty() {
            self.part(Part::Thinking(whole.thinking), nobody);
        }
        if !whole.text.is_empty() || whole.calls.is_empty() {
            self.part(Part::Text(whole.text, whole.tokens), nobody);
        }
        for (index, call) in whole.calls.into_iter().enumerate() {
            self.part(Part::CallBegin { index, name: call.name }, nobody);
            self.part(Part::CallArguments { index, json: call.arguments }, nobody);
        }
        self.close(nobody, status(&whole.end));
        self.ended(&whole.end)
    }

    fn begin(&mut self, events: &mut Events) {
        for ty in ["response.created", "response.in_progress"] {
            let response = self.response("in_progress");
            self.event(events, ty, json!({ "response": response }));
        }
    }

    fn part(&mut self, part: Part, events: &mut Events) {
        match part {
            Part::Thinking(text) => {
                self.open(events, &ItemKind::Reasoning);
                self.add(events, "response.reasoning_text.delta", &text, Vec::new());
            }
            Part::Text(text, tokens) => {
                self.open(events, &ItemKind::Message);
                self.add(events, "response.output_text.delta", &text, tokens);
            }
            Part::CallBegin { index, name } => {
                self.open(events, &ItemKind::Call { id: self.id.call(index), name });
            }
            Part::CallArguments { json, .. } => {
                self.add(events, "response.function_call_arguments.delta", &json, Vec::new());
            }
            Part::CallEnd { .. } => self.close(events, "completed"),
        }
    }

    fn end(&mut self, end: End, events: &mut Events) {
        self.close(events, status(&end));
        let ty = if end.reason() == Reason::Length { "response.incomplete" } else { "response.completed" };
        let response = self.ended(&end);
        self.event(events, ty, json!({ "response": response }));
    }

    fn failed(&mut self, problem: &Problem, events: &mut Events) {
        let mut response = self.response("failed");
        response["error"] = json!({ "code": "server_error", "message": problem.message });
        self.event(events, "response.failed", json!({ "response": response }));
    }
}
