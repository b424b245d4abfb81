//! Requests of `/v1/messages` and `/v1/messages/count_tokens`.

use serde_json::{Map, Value};
use strata_engine::{Form, SamplerParams, ToolChoice};

use crate::chat::{Called, Conversation, Message, Said, Tool};
use crate::fields::{Fields, wrong};
use crate::problem::Problem;
use crate::settings::{Settings, stops, tokens};

/// A request.
#[derive(Debug)]
pub(crate) struct MessagesRequest {
    pub(crate) conversation: Conversation,
    pub(crate) settings: Settings,
    pub(crate) model: String,
    pub(crate) is_streamed: bool,
    pub(crate) ignored: Vec<String>,
}

/// Reads one. Where tokens are only counted, it need not say how many may be written.
pub(crate) fn read(
    mut fields: Fields,
    recommended: SamplerParams,
    is_counted: bool,
) -> Result<MessagesRequest, Problem> {
    let model = fields.text("model")?;
    let model = fields.needed("model", model)?;
    let mut messages: Vec<Message> = texts(&mut fields, "system")?.into_iter().map(Message::System).collect();
    let list = fields.list("messages")?;
    let list = fields.needed("messages", list)?;
    if list.is_empty() {
        return Err(fields.problem("messages", "must not be empty"));
    }
    for (path, value) in list {
        message(Fields::of(path, value)?, &mut messages)?;
    }

    let is_streamed = fields.flag("stream")?.unwrap_or(false);
    let max_tokens = tokens(&mut fields, "max_tokens")?;
    let max_tokens = if is_counted { max_tokens } else { Some(fields.needed("max_tokens", max_tokens)?) };
    let stop = stops(&mut fields, "stop_sequences")?;
    let settings = Settings { max_tokens, stop, ..Settings::take(&mut fields, recommended)? };

    let list = fields.list("tools")?.unwrap_or_default();
    let tools = list.into_iter().map(|(path, value)| tool(Fields::of(path, value)?)).collect::<Result<Vec<_>, _>>()?;
    let (choice, is_parallel) = tool_choice(&mut fields, &tools)?;
    let (mut enable_thinking, mut thinking_tokens) = (None, None);
    if let Some(mut thinking) = fields.object("thinking")? {
        let ty = thinking.word("type", &["enabled", "disabled", "adaptive", "between_tools"])?;
        enable_thinking = match thinking.needed("type", ty)?.as_str() {
            "disabled" => Some(false),
            "enabled" => Some(true),
            _ => None,
        };
        thinking_tokens = tokens(&mut thinking, "budget_tokens")?;
    }
    let (mut form, mut effort) = (Form::Free, None);
    if let Some(mut output) = fields.object("output_config")? {
        effort = output.word("effort", &["low", "medium", "high", "xhigh", "max"])?;
        form = output_format(output.object("format")?)?;
    }
    if let Some(output) = fields.object("output_format")? {
        form = output_format(Some(output))?;
    }
    let variables = fields.map("chat_template_kwargs")?.unwrap_or_default();
    let conversation = Conversation {
        messages,
        tools,
        choice,
        is_parallel,
        form,
        enable_thinking,
        thinking_tokens,
        effort,
        variables,
    };
    Ok(MessagesRequest { conversation, settings, model, is_streamed, ignored: fields.left() })
}

fn output_format(format: Option<Fields>) -> Result<Form, Problem> {
    let Some(mut format) = format else { return Ok(Form::Free) };
    let ty = format.word("type", &["json_schema"])?;
    format.needed("type", ty)?;
    match format.value("schema") {
        Some(schema @ Value::Object(_)) => Ok(Form::JsonSchema(schema)),
        Some(other) => Err(wrong(&format.path("schema"), "an object", &other)),
        None => Err(format.problem("schema", "is missing")),
    }
}

fn tool(mut fields: Fields) -> Result<Tool, Problem> {
    if fields.text("type")?.is_some_and(|ty| ty != "custom") {
        return Err(fields.problem("type", "must be `custom`: this server has no tools of its own"));
    }
    let name = fields.text("name")?;
    let name = fields.needed("name", name)?;
    let schema = fields.map("input_schema")?;
    let schema = fields.needed("input_schema", schema)?;
    let mut json = Map::from_iter([("name".to_owned(), Value::from(name.as_str()))]);
    if let Some(description) = fields.text("description")? {
        json.insert("description".to_owned(), description.into());
    }
    json.insert("parameters".to_owned(), schema.into());
    Ok(Tool::new(name, json))
}

/// What may be called, and whether several at once.
fn tool_choice(fields: &mut Fields, tools: &[Tool]) -> Result<(ToolChoice, bool), Problem> {
    let Some(mut choice) = fields.object("tool_choice")? else { return Ok((ToolChoice::Auto, true)) };
    let is_parallel = !choice.flag("disable_parallel_tool_use")?.unwrap_or(false);
    let ty = choice.word("type", &["auto", "any", "tool", "none"])?;
    let chosen = match choice.needed("type", ty)?.as_str() {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" if tools.is_empty() => return Err(choice.problem("type", "is `any`, but there are no `tools`")),
        "any" => ToolChoice::Required,
        _ => {
            let name = choice.text("name")?;
            let name = choice.needed("name", name)?;
            if !tools.iter().any(|tool| tool.name == name) {
                return Err(choice.problem("name", "is not the name of one of `tools`"));
            }
            ToolChoice::Named(name)
        }
    };
    Ok((chosen, is_parallel))
}

/// A text, or blocks of text.
fn texts(fields: &mut Fields, name: &str) -> Result<Option<String>, Problem> {
    let path = fields.path(name);
    match fields.value(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Array(blocks)) => {
            let mut texts = Vec::new();
            for (at, block) in blocks.into_iter().enumerate() {
                let mut block = Fields::of(format!("{path}[{at}]"), block)?;
                let ty = block.text("type")?;
                match block.needed("type", ty)?.as_str() {
                    "text" => {
                        let text = block.text("text")?;
                        texts.push(block.needed("text", text)?);
                    }
                    _ => return Err(no_such_block(&block)),
                }
            }
            Ok(Some(texts.join("\n\n")))
        }
        Some(other) => Err(wrong(&path, "a string or a list of blocks", &other)),
    }
}

fn no_such_block(block: &Fields) -> Problem {
    block.problem("type", "must be `text` here: this server takes no images, documents or results of other tools")
}

/// Adds what a message says: results of tools are messages of their own.
fn message(mut fields: Fields, messages: &mut Vec<Message>) -> Result<(), Problem> {
    let role = fields.word("role", &["user", "assistant", "system"])?;
    let role = fields.needed("role", role)?;
    let path = fields.path("content");
    let content = fields.value("content");
    let blocks = match fields.needed("content", content)? {
        Value::String(text) => {
            messages.push(match role.as_str() {
                "user" => Message::User(text),
                "system" => Message::System(text),
                _ => Message::Assistant(Said { text, ..Said::default() }),
            });
            return Ok(());
        }
        Value::Array(blocks) if blocks.is_empty() => return Err(fields.problem("content", "must not be empty")),
        Value::Array(blocks) => blocks,
        other => return Err(wrong(&path, "a string or a list of blocks", &other)),
    };
    let mut said = Said::default();
    let mut texts: Vec<String> = Vec::new();
    for (at, block) in blocks.into_iter().enumerate() {
        let mut block = Fields::of(format!("{path}[{at}]"), block)?;
        let ty = block.text("type")?;
        match (block.needed("type", ty)?.as_str(), role.as_str()) {
            ("text", _) => {
                let text = block.text("text")?;
                texts.push(block.needed("text", text)?);
            }
            ("thinking", "assistant") => {
                let text = block.text("thinking")?;
                said.thinking.get_or_insert_default().push_str(&block.needed("thinking", text)?);
            }
            ("redacted_thinking", "assistant") => {}
            ("tool_use", "assistant") => {
                let id = block.text("id")?;
                let id = block.needed("id", id)?;
                let name = block.text("name")?;
                let name = block.needed("name", name)?;
                let arguments = block.map("input")?;
                let arguments = Value::Object(block.needed("input", arguments)?);
                said.calls.push(Called { id, name, arguments });
            }
            ("tool_result", "user") => {
                let id = block.text("tool_use_id")?;
                let id = block.needed("tool_use_id", id)?;
                block.flag("is_error")?;
                let text = self::texts(&mut block, "content")?.unwrap_or_default();
                messages.push(Message::Tool { id: Some(id), name: None, text });
            }
            _ => return Err(no_such_block(&block)),
        }
    }
    let text = texts.join(if role == "assistant" { "" } else { "\n\n" });
    match role.as_str() {
        "assistant" => messages.push(Message::Assistant(Said { text, ..said })),
        "system" => messages.push(Message::System(text)),
        // It may have held results only.
        _ if texts.is_empty() => {}
        _ => messages.push(Message::User(text)),
    }
    Ok(())
}
