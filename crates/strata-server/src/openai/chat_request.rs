//! Requests of `/v1/chat/completions`.

use serde_json::Value;

use super::{EFFORTS, arguments, form, schema, take_n, take_stream, tool, tool_choice};
use crate::chat::{Called, Conversation, Message, Said, Tool};
use crate::fields::{Fields, text_at, wrong};
use crate::problem::Problem;
use crate::settings::{Settings, tokens};
use strata_engine::SamplerParams;

/// A request.
#[derive(Debug)]
pub(crate) struct ChatRequest {
    pub(crate) conversation: Conversation,
    pub(crate) settings: Settings,
    pub(crate) model: Option<String>,
    pub(crate) is_streamed: bool,
    /// Whether a stream ends with the usage.
    pub(crate) has_usage: bool,
    /// Fields that say nothing here.
    pub(crate) ignored: Vec<String>,
}

/// Reads one.
pub(crate) fn read(mut fields: Fields, recommended: SamplerParams) -> Result<ChatRequest, Problem> {
    let model = fields.text("model")?;
    let messages = fields.list("messages")?;
    let messages = fields.needed("messages", messages)?;
    if messages.is_empty() {
        return Err(fields.problem("messages", "must not be empty"));
    }
    let messages =
        messages.into_iter().map(|(path, value)| message(Fields::of(path, value)?)).collect::<Result<_, _>>()?;

    take_n(&mut fields)?;
    let (is_streamed, has_usage) = take_stream(&mut fields)?;
    let mut settings = Settings::take(&mut fields, recommended)?;
    settings.take_logprobs(&mut fields)?;
    let max_tokens = tokens(&mut fields, "max_tokens")?;
    settings.max_tokens = tokens(&mut fields, "max_completion_tokens")?.or(max_tokens);

    for name in ["functions", "function_call"] {
        if fields.value(name).is_some() {
            return Err(fields.problem(name, "is no longer supported: use `tools` and `tool_choice`"));
        }
    }
    if let Some(modalities) = fields.texts("modalities")?
        && modalities.iter().any(|modality| modality != "text")
    {
        return Err(fields.problem("modalities", "must be `text`: this model makes no other output"));
    }
    let tools = fields.list("tools")?.unwrap_or_default();
    let tools =
        tools.into_iter().map(|(path, value)| chat_tool(Fields::of(path, value)?)).collect::<Result<Vec<_>, _>>()?;
    let choice = tool_choice(&mut fields, &tools, |choice| {
        choice.word("type", &["function"])?;
        let function = choice.object("function")?;
        let mut function = choice.needed("function", function)?;
        let name = function.text("name")?;
        function.needed("name", name)
    })?;
    let response_format = fields.object("response_format")?;
    let form = form(response_format, |format| {
        let inner = format.object("json_schema")?;
        schema(&mut format.needed("json_schema", inner)?)
    })?;
    let effort = fields.word("reasoning_effort", &EFFORTS)?;
    let enable_thinking = fields.flag("enable_thinking")?;
    let variables = fields.map("chat_template_kwargs")?.unwrap_or_default();
    let is_parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
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
    Ok(ChatRequest { conversation, settings, model, is_streamed, has_usage, ignored: fields.left() })
}

fn chat_tool(mut fields: Fields) -> Result<Tool, Problem> {
    let ty = fields.word("type", &["function"])?;
    fields.needed("type", ty)?;
    let function = fields.object("function")?;
    tool(fields.needed("function", function)?)
}

fn message(mut fields: Fields) -> Result<Message, Problem> {
    let role = fields.word("role", &["system", "developer", "user", "assistant", "tool"])?;
    let role = fields.needed("role", role)?;
    let content = content(&mut fields)?;
    if role == "assistant" {
        let thinking = fields.text("reasoning_content")?.or(fields.text("reasoning")?);
        let calls = fields.list("tool_calls")?.unwrap_or_default();
        let calls =
            calls.into_iter().map(|(path, value)| call(Fields::of(path, value)?)).collect::<Result<Vec<_>, _>>()?;
        if content.is_none() && calls.is_empty() && thinking.is_none() {
            return Err(fields.problem("content", "is missing"));
        }
        return Ok(Message::Assistant(Said { thinking, text: content.unwrap_or_default(), calls }));
    }
    let text = fields.needed("content", content)?;
    Ok(match role.as_str() {
        "user" => Message::User(text),
        "tool" => Message::Tool { id: fields.text("tool_call_id")?, name: fields.text("name")?, text },
        _ => Message::System(text),
    })
}

/// A text, or a list of parts that are texts.
fn content(fields: &mut Fields) -> Result<Option<String>, Problem> {
    let path = fields.path("content");
    match fields.value("content") {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Array(parts)) => {
            let mut text = String::new();
            for (at, part) in parts.into_iter().enumerate() {
                text.push_str(&part_text(Fields::of(format!("{path}[{at}]"), part)?)?);
            }
            Ok(Some(text))
        }
        Some(other) => Err(wrong(&path, "a string or a list of parts", &other)),
    }
}

fn part_text(mut part: Fields) -> Result<String, Problem> {
    let ty = part.text("type")?;
    match part.needed("type", ty)?.as_str() {
        "text" => {
            let text = part.text("text")?;
            part.needed("text", text)
        }
        "refusal" => {
            let text = part.text("refusal")?;
            part.needed("refusal", text)
        }
        "image_url" | "input_audio" | "file" | "video_url" => {
            Err(part.problem("type", "must be `text`: this server takes no images, sounds or files"))
        }
        _ => Err(part.problem("type", "must be `text`")),
    }
}

fn call(mut fields: Fields) -> Result<Called, Problem> {
    fields.word("type", &["function"])?;
    let id = fields.text("id")?.unwrap_or_default();
    let function = fields.object("function")?;
    let mut function = fields.needed("function", function)?;
    let name = function.text("name")?;
    let name = function.needed("name", name)?;
    let path = function.path("arguments");
    let arguments = match function.value("arguments") {
        None => Value::Object(serde_json::Map::new()),
        // Some clients send them taken apart.
        Some(object @ Value::Object(_)) => object,
        Some(value) => arguments(&path, &text_at(&path, value)?)?,
    };
    Ok(Called { id, name, arguments })
}
