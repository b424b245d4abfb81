//! One call of a tool in an answer's text, letter by letter.
//!
//! Owns: both notations of calls. Promises: a letter that cannot be a part of a call is told at once, so that text which
//! only looks like a call is held back no longer than it does; arguments are the bytes that the model wrote (JSON), or JSON
//! made of them by the tool's schema (XML). Refuses: calls of tools that there are not.

use std::sync::Arc;

use serde_json::Value;
use thiserror::Error;

use super::json_text::JsonText;
use super::tools::Kind;
use super::{CallFormat, Tools};

/// What opens and ends a call in both notations.
pub(super) const CALL: &str = "<tool_call>";
pub(super) const CALL_END: &str = "</tool_call>";
const PARAMETER_END: &str = "</parameter>";

/// Longest tag: longer ones are none.
const MOST_TAG_BYTES: usize = 256;

/// Why something that began as a call is none.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CallProblem {
    /// The answer ended inside.
    #[error("the answer ended inside a tool call")]
    Unterminated,
    /// It is not written as a call must be.
    #[error("the tool call is malformed: expected {expected}")]
    Malformed {
        /// What should have come instead of what came.
        expected: &'static str,
    },
    /// There is no such tool.
    #[error("the answer calls `{name}`, which is none of the tools")]
    UnknownTool {
        /// The name called.
        name: String,
    },
}

/// A complete call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: String,
    /// A JSON object.
    pub(super) arguments: String,
}

#[derive(Clone, Debug)]
enum Body {
    Json(JsonText),
    Xml { name: Option<String>, parameters: Vec<(String, String)>, is_closed: bool, value: Option<String> },
}

/// A call of which [`CALL`] and perhaps more has come.
#[derive(Clone, Debug)]
pub(super) struct CallText {
    /// All of it, with [`CALL`].
    pub(super) raw: String,
    body: Body,
    /// A tag that has begun.
    tag: String,
    is_complete: bool,
    tools: Arc<Tools>,
}

impl CallText {
    pub(super) fn new(format: CallFormat, tools: Arc<Tools>) -> CallText {
        let body = match format {
            CallFormat::Json => Body::Json(JsonText::new()),
            CallFormat::Xml => Body::Xml { name: None, parameters: Vec::new(), is_closed: false, value: None },
        };
        CallText { raw: CALL.to_owned(), body, tag: String::new(), is_complete: false, tools }
    }

    /// Whether its end has come.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Goes on by a letter; gives the call when it is complete.
    ///
    /// # Errors
    /// When it is no call. The letter is then no part of it, unless it made it [complete](Self::is_complete).
    pub(super) fn push(&mut self, c: char) -> Result<Option<Call>, CallProblem> {
        let malformed = |expected| CallProblem::Malformed { expected };
        let is_in_body = match &mut self.body {
            Body::Json(json) if !json.is_complete() => {
                json.push(c).map_err(malformed)?;
                true
            }
            Body::Xml { parameters, value: value @ Some(_), .. } => {
                let text = value.get_or_insert_default();
                text.push(c);
                if let Some(text) = text.strip_suffix(PARAMETER_END) {
                    let text = text.strip_prefix('\n').unwrap_or(text);
                    let text = text.strip_suffix('\n').unwrap_or(text).to_owned();
                    parameters.last_mut().expect("its tag began the value").1 = text;
                    *value = None;
                }
                true
            }
            _ => false,
        };
        let is_space = matches!(c, ' ' | '\n' | '\r' | '\t');
        if is_in_body || (self.tag.is_empty() && is_space) {
            self.raw.push(c);
            return Ok(None);
        }
        self.tag.push(c);
        if let Err(expected) = self.tag() {
            self.tag.pop();
            return Err(malformed(expected));
        }
        self.raw.push(c);
        if self.is_complete { self.call().map(Some) } else { Ok(None) }
    }

    /// Whether the tag that has begun can be one, and what it does when it is complete.
    fn tag(&mut self) -> Result<(), &'static str> {
        let tag = &self.tag;
        let begins = |whole: &str| whole.starts_with(tag.as_str());
        let named = |open: &str| {
            let name = tag.strip_prefix(open)?;
            let is_name = name.len() <= MOST_TAG_BYTES && !name.contains(['<', '\n']);
            is_name.then(|| name.strip_suffix('>').filter(|name| !name.is_empty()))
        };
        let mut is_complete = false;
        match &mut self.body {
            Body::Json(_) | Body::Xml { is_closed: true, .. } if begins(CALL_END) => self.is_complete = tag == CALL_END,
            Body::Json(_) | Body::Xml { is_closed: true, .. } => return Err(CALL_END),
            Body::Xml { name: name @ None, .. } => match named("<function=") {
                Some(Some(function)) => (*name, is_complete) = (Some(function.to_owned()), true),
                Some(None) => {}
                None if begins("<function=") => {}
                None => return Err("<function=...>"),
            },
            Body::Xml { parameters, is_closed, value, .. } => match named("<parameter=") {
                Some(Some(key)) if parameters.iter().any(|(other, _)| other == key) => {
                    return Err("no parameter twice");
                }
                Some(Some(key)) => {
                    parameters.push((key.to_owned(), String::new()));
                    (*value, is_complete) = (Some(String::new()), true);
                }
                Some(None) => {}
                None if tag == "</function>" => (*is_closed, is_complete) = (true, true),
                None if begins("<parameter=") || begins("</function>") => {}
                None => return Err("<parameter=...> or </function>"),
            },
        }
        if is_complete {
            self.tag.clear();
        }
        Ok(())
    }

    fn call(&self) -> Result<Call, CallProblem> {
        let malformed = |expected| CallProblem::Malformed { expected };
        match &self.body {
            Body::Json(json) => {
                let name = json.member("name").and_then(|text| serde_json::from_str::<String>(text).ok());
                let name = name.ok_or(malformed("a `name` that is a string"))?;
                let arguments = json.member("arguments").filter(|text| text.starts_with('{'));
                let arguments = arguments.ok_or(malformed("`arguments` that are an object"))?.to_owned();
                self.tools.named(&name).ok_or_else(|| CallProblem::UnknownTool { name: name.clone() })?;
                Ok(Call { name, arguments })
            }
            Body::Xml { name, parameters, .. } => {
                let name = name.clone().unwrap_or_default();
                let tool = self.tools.named(&name).ok_or_else(|| CallProblem::UnknownTool { name: name.clone() })?;
                let member = |(key, text): &(String, String)| {
                    let kind = tool.kind_of(key);
                    format!("{}: {}", Value::from(key.as_str()), json_of(text, kind))
                };
                let members: Vec<_> = parameters.iter().map(member).collect();
                Ok(Call { name, arguments: format!("{{{}}}", members.join(", ")) })
            }
        }
    }
}

/// A parameter's text as JSON. What is not the JSON that it should be stays a string: the tool may know better.
fn json_of(text: &str, kind: Kind) -> String {
    let string = || Value::from(text).to_string();
    let word = match text.trim() {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        word => word,
    };
    match serde_json::from_str::<Value>(word) {
        _ if kind == Kind::Text => string(),
        // A string that may be one is not quoted in this notation.
        Ok(Value::String(_)) if kind == Kind::Either => string(),
        Ok(_) => word.to_owned(),
        Err(_) => string(),
    }
}
