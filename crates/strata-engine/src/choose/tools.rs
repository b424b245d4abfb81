//! Tools as clients describe them, and as models are told of them.
//!
//! Owns: reading the OpenAI form of tools, which notation of calls a chat template uses, and words for templates that know
//! no tools. Promises: names that can be written in every notation. Refuses: to guess what a parameter is when its schema
//! does not say: it is JSON if it reads as JSON.

use serde_json::{Map, Value, json};

use super::FormError;
use crate::{ChatOptions, ChatTemplate, TemplateError};

/// How a model writes calls: as its chat template shows earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFormat {
    /// `<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>`
    Json,
    /// `<tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>`
    Xml,
}

impl CallFormat {
    /// The format that a template's text shows. One that shows none is told of tools by [`describe_tools`], which asks for
    /// [`Json`](Self::Json).
    pub fn of_template(source: &str) -> CallFormat {
        if source.contains("<function=") { CallFormat::Xml } else { CallFormat::Json }
    }

    /// Takes off the end of `newlines` those that templates put between text and a call.
    pub(super) fn without_gap(self, newlines: &str) -> &str {
        match self {
            CallFormat::Json => newlines.strip_suffix('\n').unwrap_or(newlines),
            // These templates trim the text.
            CallFormat::Xml => "",
        }
    }
}

/// Whether a template describes tools and writes calls by itself.
pub fn knows_tools(source: &str) -> bool {
    source.contains("tools") && source.contains("<tool_call>")
}

/// Whether a template knows of thinking.
pub fn knows_thinking(source: &str) -> bool {
    source.contains("<think>")
}

/// Whether an answer must call tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No calls.
    None,
    /// At least one call of any tool.
    Required,
    /// A call of this tool.
    Named(String),
}

/// A function that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name: letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// JSON schema of its arguments, an object.
    pub parameters: Value,
}

/// The tools of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tools {
    list: Vec<Tool>,
}

/// What a parameter is, as far as a notation without quotes must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A string, and nothing else.
    Text,
    /// Anything but a string.
    Json,
    /// It may be a string or something else.
    Either,
}

impl Tools {
    /// Reads tools in the OpenAI form: `{"type": "function", "function": {"name", "description", "parameters"}}`.
    ///
    /// # Errors
    /// When one is not in this form, or two have one name.
    pub fn read(tools: &[Value]) -> Result<Tools, FormError> {
        let mut list: Vec<Tool> = Vec::new();
        for (index, tool) in tools.iter().enumerate() {
            let bad = |reason: String| FormError::BadTool { index, reason };
            if tool["type"] != "function" {
                return Err(bad(format!("`type` must be \"function\", got {}", tool["type"])));
            }
            let name = tool["function"]["name"].as_str().unwrap_or_default();
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
            if name.is_empty() || name.len() > 128 || !name.chars().all(is_name) {
                let expected = "1 to 128 letters, digits, `_`, `-` or `.`";
                return Err(bad(format!("`function.name` must be {expected}, got {}", tool["function"]["name"])));
            }
            if list.iter().any(|other| other.name == name) {
                return Err(bad(format!("there are two tools named `{name}`")));
            }
            let parameters = match &tool["function"]["parameters"] {
                Value::Null => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
                Value::Object(schema) => object_schema(schema).ok_or_else(|| {
                    bad(format!(
                        "`function.parameters` must be the schema of an object, its type is {}",
                        schema["type"]
                    ))
                })?,
                other => return Err(bad(format!("`function.parameters` must be a JSON schema, got {other}"))),
            };
            list.push(Tool { name: name.to_owned(), parameters });
        }
        Ok(Tools { list })
    }

    /// The tools in their order.
    pub fn list(&self) -> &[Tool] {
        &self.list
    }

    /// The tool of a name.
    pub fn named(&self, name: &str) -> Option<&Tool> {
        self.list.iter().find(|tool| tool.name == name)
    }
}

impl Tool {
    /// What a parameter can be.
    pub(super) fn kind_of(&self, parameter: &str) -> Kind {
        kind_of(&self.parameters["properties"][parameter], &self.parameters, 8)
    }
}

/// What values of a schema can be; `root` has its definitions, followed so many `levels` deep.
fn kind_of(schema: &Value, root: &Value, levels: usize) -> Kind {
    if levels == 0 {
        return Kind::Either;
    }
    if let Some(definition) = schema["$ref"].as_str().and_then(|name| root.pointer(name.strip_prefix('#')?)) {
        return kind_of(definition, root, levels - 1);
    }
    let of_name = |name: &Value| if name == "string" { Kind::Text } else { Kind::Json };
    let of_value = |value: &Value| if value.is_string() { Kind::Text } else { Kind::Json };
    let kinds: Vec<Kind> = if let Value::Array(names) = &schema["type"] {
        names.iter().map(of_name).collect()
    } else if schema["type"].is_string() {
        vec![of_name(&schema["type"])]
    } else if let Value::Array(values) = &schema["enum"] {
        values.iter().map(of_value).collect()
    } else if let Value::Array(schemas) =
        [&schema["anyOf"], &schema["oneOf"]].into_iter().find(|s| s.is_array()).unwrap_or(&Value::Null)
    {
        schemas.iter().map(|schema| kind_of(schema, root, levels - 1)).collect()
    } else {
        Vec::new()
    };
    match kinds.split_first() {
        Some((first, rest)) if rest.iter().all(|kind| kind == first) => *first,
        _ => Kind::Either,
    }
}

/// A schema with the type `object`, if it can have it.
fn object_schema(schema: &Map<String, Value>) -> Option<Value> {
    let mut schema = schema.clone();
    match schema.get("type") {
        None => _ = schema.insert("type".to_owned(), json!("object")),
        Some(name) if name == "object" => {}
        Some(_) => return None,
    }
    Some(Value::Object(schema))
}

/// Words about tools for the system message, for models whose template knows none: those of the Hermes format, which asks
/// for [`CallFormat::Json`]. `tools` are in the OpenAI form, keys in the client's order.
///
/// # Errors
/// When the tools are so long that they are no chat.
pub fn describe_tools(tools: &[Value]) -> Result<String, TemplateError> {
    const WORDS: &str = "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n\
        You are provided with function signatures within <tools></tools> XML tags:\n<tools>\
        {%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{%- endfor %}{{ '\\n' }}</tools>\n\n\
        For each function call, return a json object with function name and arguments within <tool_call></tool_call> \
        XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>";
    let options = ChatOptions { tools: tools.to_vec(), ..ChatOptions::default() };
    ChatTemplate::from_source(WORDS)?.render(&[], &options)
}
