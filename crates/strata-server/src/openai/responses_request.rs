//! Requests of `/v1/responses`. Nothing is stored: a request holds its whole conversation.

use serde_json::{Value, json};
use strata_engine::{SamplerParams, ToolChoice};

use super::{EFFORTS, arguments, form, schema, take_stream, tool, tool_choice};
use crate::chat::{Called, Conversation, Message, Said, Tool};
use crate::fields::{Fields, wrong};
use crate::problem::Problem;
use crate::settings::{Settings, tokens};

/// A request.
#[derive(Debug)]
pub(crate) struct ResponsesRequest {
    pub(crate) conversation: Conversation,
    pub(crate) settings: Settings,
    pub(crate) model: Option<String>,
    pub(crate) is_streamed: bool,
    /// What a response says of its request.
    pub(crate) echo: Value,
    pub(crate) ignored: Vec<String>,
}

/// Reads one.
pub(crate) fn read(mut fields: Fields, recommended: SamplerParams) -> Result<ResponsesRequest, Problem> {
    for name in ["previous_response_id", "conversation", "prompt"] {
        if fields.value(name).is_some() {
            return Err(fields.problem(name, "cannot be used: this server stores nothing, send the whole `input`"));
        }
    }
    if fields.flag("background")?.unwrap_or(false) {
        return Err(fields.problem("background", "must be false: this server stores nothing"));
    }
    let model = fields.text("model")?;
    let instructions = fields.text("instructions")?;
    let mut messages: Vec<Message> = instructions.iter().cloned().map(Message::System).collect();
    let path = fields.path("input");
    let input = fields.value("input");
    match fields.needed("input", input)? {
        Value::String(text) => messages.push(Message::User(text)),
        Value::Array(items) if items.is_empty() => return Err(fields.problem("input", "must not be empty")),
        Value::Array(items) => {
            for (at, value) in items.into_iter().enumerate() {
                item(Fields::of(format!("{path}[{at}]"), value)?, &mut messages)?;
            }
        }
        other => return Err(wrong(&path, "a string or a list of items", &other)),
    }

    let (is_streamed, _) = take_stream(&mut fields)?;
    let mut settings = Settings::take(&mut fields, recommended)?;
    settings.max_tokens = tokens(&mut fields, "max_output_tokens")?;
    let include = fields.texts("include")?.unwrap_or_default();
    settings.take_logprobs_number(&mut fields, "top_logprobs")?;
    if include.iter().any(|name| name == "message.output_text.logprobs") {
        settings.top_logprobs = settings.top_logprobs.or(Some(0));
    } else {
        settings.top_logprobs = settings.top_logprobs.filter(|top| *top > 0);
    }
    let tools = fields.list("tools")?.unwrap_or_default();
    let tools =
        tools.into_iter().map(|(path, value)| function(Fields::of(path, value)?)).collect::<Result<Vec<_>, _>>()?;
    let choice = tool_choice(&mut fields, &tools, |choice| {
        choice.word("type", &["function"])?;
        let name = choice.text("name")?;
        choice.needed("name", name)
    })?;
    let text = fields.object("text")?;
    let text_format = text.map(|mut text| text.object("format")).transpose()?.flatten();
    let form = form(text_format, schema)?;
    let effort = match fields.object("reasoning")? {
        Some(mut reasoning) => reasoning.word("effort", &EFFORTS)?,
        None => None,
    };
    let enable_thinking = fields.flag("enable_thinking")?;
    let variables = fields.map("chat_template_kwargs")?.unwrap_or_default();
    let is_parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let metadata = fields.map("metadata")?.unwrap_or_default();
    let echo = json!({
        "instructions": instructions,
        "max_output_tokens": settings.max_tokens,
        "metadata": metadata,
        "parallel_tool_calls": is_parallel,
        "temperature": settings.sampling.temperature,
        "top_p": settings.sampling.top_p,
        "tool_choice": match &choice {
            ToolChoice::Auto => json!("auto"),
            ToolChoice::None => json!("none"),
            ToolChoice::Required => json!("required"),
            ToolChoice::Named(name) => json!({ "type": "function", "name": name }),
        },
        "tools": tools.iter().map(echoed).collect::<Vec<_>>(),
        "reasoning": { "effort": effort, "summary": null },
        "previous_response_id": null,
        "store": false,
        "truncation": "disabled",
        "background": false,
    });
    let conversation = Conversation {
        messages,
        tools,
        choice,
        is_parallel,
        form,
        enable_thinking,
        thinking_tokens: None,
        effort,
        variables,
    };
    Ok(ResponsesRequest { conversation, settings, model, is_streamed, echo, ignored: fields.left() })
}

fn echoed(tool: &Tool) -> Value {
    json!({
        "type": "function",
        "name": tool.name,
        "description": tool.function("description"),
        "parameters": tool.function("parameters"),
        "strict": false,
    })
}

fn function(mut fields: Fields) -> Result<Tool, Problem> {
    let ty = fields.text("type")?;
    match fields.needed("type", ty)?.as_str() {
        "function" => tool(fields),
        _ => Err(fields.problem("type", "must be `function`: this server has no tools of its own")),
    }
}

/// Adds what an item of the input says.
fn item(mut fields: Fields, messages: &mut Vec<Message>) -> Result<(), Problem> {
    let ty = fields.text("type")?;
    match ty.as_deref() {
        None | Some("message") => {
            let role = fields.word("role", &["system", "developer", "user", "assistant"])?;
            let role = fields.needed("role", role)?;
            let text = parts(&mut fields, "content")?;
            match role.as_str() {
                "user" => messages.push(Message::User(text)),
                "assistant" => {
                    let said = said(messages);
                    said.text.push_str(&text);
                }
                _ => messages.push(Message::System(text)),
            }
        }
        Some("function_call") => {
            let id = fields.text("call_id")?;
            let id = fields.needed("call_id", id)?;
            let name = fields.text("name")?;
            let name = fields.needed("name", name)?;
            let path = fields.path("arguments");
            let text = fields.text("arguments")?;
            let arguments = arguments(&path, &fields.needed("arguments", text)?)?;
            said(messages).calls.push(Called { id, name, arguments });
        }
        Some("function_call_output") => {
            let id = fields.text("call_id")?;
            let id = fields.needed("call_id", id)?;
            let text = parts(&mut fields, "output")?;
            messages.push(Message::Tool { id: Some(id), name: None, text });
        }
        Some("reasoning") => {
            let mut thinking = String::new();
            for (path, part) in fields.list("content")?.unwrap_or_default() {
                let mut part = Fields::of(path, part)?;
                let text = part.text("text")?;
                thinking.push_str(&part.needed("text", text)?);
            }
            if !thinking.is_empty() {
                messages.push(Message::Assistant(Said { thinking: Some(thinking), ..Said::default() }));
            }
        }
        Some(_) => {
            let known = "must be `message`, `function_call`, `function_call_output` or `reasoning`";
            return Err(fields.problem("type", known));
        }
    }
    Ok(())
}

/// The assistant's turn at the end: its thinking, text and calls come as items of their own.
fn said(messages: &mut Vec<Message>) -> &mut Said {
    if !matches!(messages.last(), Some(Message::Assistant(_))) {
        messages.push(Message::Assistant(Said::default()));
    }
    match messages.last_mut() {
        Some(Message::Assistant(said)) => said,
        _ => unreachable!("it was pushed"),
    }
}

/// A text, or parts that are texts.
fn parts(fields: &mut Fields, name: &str) -> Result<String, Problem> {
    let path = fields.path(name);
    let value = fields.value(name);
    match fields.needed(name, value)? {
        Value::String(text) => Ok(text),
        Value::Array(parts) => {
            let mut whole = String::new();
            for (at, part) in parts.into_iter().enumerate() {
                let mut part = Fields::of(format!("{path}[{at}]"), part)?;
                part.word("type", &["input_text", "output_text", "text", "refusal"])?;
                let text = part.text("text")?.or(part.text("refusal")?);
                whole.push_str(&part.needed("text", text)?);
            }
            Ok(whole)
        }
        other => Err(wrong(&path, "a string or a list of parts", &other)),
    }
}
