//! OpenAI's APIs: chat completions, completions, responses.

pub(crate) mod chat;
mod chat_request;
pub(crate) mod completions;
mod responses;
mod responses_request;

use serde_json::{Map, Value, json};
use strata_engine::{Form, Tokenizer, ToolChoice};

pub(crate) use self::responses::Responses;
pub(crate) use self::responses_request::read as read_responses;

use crate::answer::{End, Reason, Token};
use crate::chat::Tool;
use crate::fields::Fields;
use crate::problem::Problem;
use crate::sse::Events;

/// `usage` of completions.
fn usage(end: &End) -> Value {
    let outcome = &end.outcome;
    json!({
        "prompt_tokens": outcome.prompt_tokens,
        "completion_tokens": outcome.written_tokens,
        "total_tokens": outcome.prompt_tokens + outcome.written_tokens,
        "prompt_tokens_details": { "cached_tokens": outcome.reused_tokens },
        "completion_tokens_details": {
            "reasoning_tokens": end.thinking_tokens,
            "accepted_prediction_tokens": outcome.drafts.accepted,
            "rejected_prediction_tokens": outcome.drafts.proposed - outcome.drafts.accepted,
        },
    })
}

/// The end of a stream of chunks: one with the last choice, one with the usage where it was asked for, and the word that
/// ends it. `chunk` makes a chunk of choices.
fn end_chunks(
    end: &End,
    choice: &Value,
    chunk: impl Fn(&Value) -> Value,
    has_usage: bool,
    ignored: &[String],
    events: &mut Events,
) {
    let mut last = chunk(&json!([choice]));
    last["strata"] = end.receipt(ignored);
    events.data(&last);
    if has_usage {
        let mut chunk = chunk(&json!([]));
        chunk["usage"] = usage(end);
        events.data(&chunk);
    }
    events.word("[DONE]");
}

/// `finish_reason` of completions.
fn finish_reason(end: &End) -> &'static str {
    match end.reason() {
        Reason::Turn | Reason::Stop(_) => "stop",
        Reason::Length => "length",
        Reason::Calls => "tool_calls",
    }
}

/// `{"token", "logprob", "bytes"}`.
fn token_json(tokenizer: &Tokenizer, id: u32, logprob: f32) -> Value {
    let bytes = tokenizer.token_bytes(id);
    // JSON has no infinity.
    json!({ "token": String::from_utf8_lossy(bytes), "logprob": logprob.max(-9999.0), "bytes": bytes })
}

/// Tokens with their probabilities, as chat completions and responses have them.
fn logprobs(tokenizer: &Tokenizer, tokens: &[Token]) -> Value {
    let one = |token: &Token| {
        let mut json = token_json(tokenizer, token.id, token.choice.logprob);
        let top = token.choice.top.iter().map(|&(id, logprob)| token_json(tokenizer, id, logprob));
        json["top_logprobs"] = top.collect();
        json
    };
    tokens.iter().map(one).collect()
}

/// Takes `n`, of which there can be one only.
fn take_n(fields: &mut Fields) -> Result<(), Problem> {
    match fields.whole("n", 1..=u64::MAX)? {
        None | Some(1) => Ok(()),
        Some(n) => Err(fields.problem("n", &format!("must be 1: one answer is written for a request, not {n}"))),
    }
}

/// Takes `stream`, and whether its end tells the usage.
fn take_stream(fields: &mut Fields) -> Result<(bool, bool), Problem> {
    let is_streamed = fields.flag("stream")?.unwrap_or(false);
    let Some(mut options) = fields.object("stream_options")? else { return Ok((is_streamed, false)) };
    let has_usage = options.flag("include_usage")?.unwrap_or(false);
    if !is_streamed && has_usage {
        return Err(fields.problem("stream_options", "needs `stream` to be true"));
    }
    Ok((is_streamed, has_usage))
}

/// One tool, of its `{"name", "description", "parameters"}`.
fn tool(mut function: Fields) -> Result<Tool, Problem> {
    let name = function.text("name")?;
    let name = function.needed("name", name)?;
    let mut json = Map::from_iter([("name".to_owned(), Value::from(name.as_str()))]);
    if let Some(description) = function.text("description")? {
        json.insert("description".to_owned(), description.into());
    }
    if let Some(parameters) = function.map("parameters")? {
        json.insert("parameters".to_owned(), parameters.into());
    }
    function.flag("strict")?;
    Ok(Tool::new(name, json))
}

/// `"auto"`, `"none"`, `"required"`, or a tool by its name: `name_of` takes it from the object.
fn tool_choice(
    fields: &mut Fields,
    tools: &[Tool],
    name_of: impl FnOnce(&mut Fields) -> Result<String, Problem>,
) -> Result<ToolChoice, Problem> {
    let choice = match fields.value("tool_choice") {
        None => ToolChoice::Auto,
        Some(Value::String(word)) => match word.as_str() {
            "auto" => ToolChoice::Auto,
            "none" => ToolChoice::None,
            "required" => ToolChoice::Required,
            _ => {
                return Err(
                    fields.problem("tool_choice", "must be `auto`, `none`, `required` or a function by its name")
                );
            }
        },
        Some(object) => {
            let path = fields.path("tool_choice");
            let name = name_of(&mut Fields::of(path.clone(), object)?)?;
            if !tools.iter().any(|tool| tool.name == name) {
                return Err(Problem::field(&path, format!("`{path}` names a tool that is not among `tools`")));
            }
            ToolChoice::Named(name)
        }
    };
    if choice == ToolChoice::Required && tools.is_empty() {
        return Err(fields.problem("tool_choice", "is `required`, but there are no `tools`"));
    }
    Ok(choice)
}

/// `{"type": "text" | "json_object" | "json_schema"}`; `schema_of` takes the schema of the last.
fn form(
    format: Option<Fields>,
    schema_of: impl FnOnce(&mut Fields) -> Result<Value, Problem>,
) -> Result<Form, Problem> {
    let Some(mut format) = format else { return Ok(Form::Free) };
    let ty = format.word("type", &["text", "json_object", "json_schema"])?;
    Ok(match format.needed("type", ty)?.as_str() {
        "text" => Form::Free,
        "json_object" => Form::Json,
        _ => Form::JsonSchema(schema_of(&mut format)?),
    })
}

/// Takes a schema.
fn schema(fields: &mut Fields) -> Result<Value, Problem> {
    match fields.value("schema") {
        Some(schema @ (Value::Object(_) | Value::Bool(_))) => Ok(schema),
        Some(_) => Err(fields.problem("schema", "must be an object")),
        None => Err(fields.problem("schema", "is missing")),
    }
}

/// Words for how much is thought before an answer.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Arguments of a call that came as text: templates want them taken apart.
fn arguments(path: &str, text: &str) -> Result<Value, Problem> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    match serde_json::from_str(text) {
        Ok(object @ Value::Object(_)) => Ok(object),
        _ => Err(Problem::field(path, format!("`{path}` must be the text of a JSON object"))),
    }
}
