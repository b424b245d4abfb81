//! A conversation, whichever API it came by, and the prompt that it is made into.
//!
//! Owns: messages and tools in one form; the template; what an answer must look like. Promises: one prompt for one
//! conversation. Refuses: pictures, sounds and files; to chat with a model that has no template.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use strata_engine::host::Request;
use strata_engine::{
    AnswerParser, AnswerRules, CallFormat, ChatOptions, ChatPrompt, ChatTemplate, Constraint, Effort, EngineError,
    Form, FormError, TemplateError, TokenizerError, ToolChoice, ToolRules, Tools, describe_tools, knows_tools,
    opens_thinking,
};

use crate::model::Model;
use crate::openai::completions::Prompt;
use crate::problem::{Kind, Problem};
use crate::settings::Settings;

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    System(String),
    User(String),
    Assistant(Said),
    /// What a tool gave.
    Tool {
        id: Option<String>,
        name: Option<String>,
        text: String,
    },
}

/// What the model said.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Said {
    pub(crate) thinking: Option<String>,
    pub(crate) text: String,
    pub(crate) calls: Vec<Called>,
}

/// A tool that the model called.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Called {
    pub(crate) id: String,
    pub(crate) name: String,
    /// An object.
    pub(crate) arguments: Value,
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tool {
    pub(crate) name: String,
    /// In the form of chat completions, which templates know.
    json: Value,
}

impl Tool {
    /// `function`: name, description and the schema of its parameters.
    pub(crate) fn new(name: String, function: Map<String, Value>) -> Self {
        let json = [("type".to_owned(), "function".into()), ("function".to_owned(), Value::Object(function))];
        Self { name, json: Value::Object(Map::from_iter(json)) }
    }

    /// A field of its function.
    pub(crate) fn function(&self, name: &str) -> &Value {
        &self.json["function"][name]
    }
}

/// All that a prompt is made of.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    pub(crate) tools: Vec<Tool>,
    pub(crate) choice: ToolChoice,
    /// Whether an answer may call several tools.
    pub(crate) is_parallel: bool,
    /// What the text of the answer must look like.
    pub(crate) form: Form,
    pub(crate) enable_thinking: Option<bool>,
    /// The most tokens of thinking.
    pub(crate) thinking_tokens: Option<usize>,
    /// How much is thought before an answer, in the words of APIs.
    pub(crate) effort: Option<String>,
    /// Variables of the template.
    pub(crate) variables: Map<String, Value>,
}

/// A request that can be asked.
pub(crate) struct Prepared {
    pub(crate) request: Request,
    /// What takes its answer apart; `None`: it is text.
    pub(crate) parser: Option<AnswerParser>,
    /// The most tokens of the answer, where they are fewer than were asked for.
    pub(crate) fitted: Option<usize>,
}

/// Makes a conversation ready. `fits`: an answer that the context has no room for may have what is left of it.
pub(crate) fn prepare(
    model: &Model,
    conversation: &Conversation,
    settings: &Settings,
    fits: bool,
) -> Result<Prepared, Problem> {
    let ChatPrompt { text, ids: prompt } = render(model, conversation)?;
    let rules = rules(template(model)?, conversation, &text)?;
    let parser = Some(rules.parser());
    let is_free = rules.form == Form::Free
        && !rules.tools.as_ref().is_some_and(|rules| rules.choice != ToolChoice::None)
        && !(rules.is_thinking && rules.thinking_tokens.is_some());
    let constraint = match is_free {
        true => None,
        false => model
            .vocabulary()
            .and_then(|vocabulary| rules.constraint(&vocabulary))
            .map_err(|error| form_problem(&error))?,
    };
    prepared(model, prompt, settings, fits, constraint, parser)
}

/// Makes a plain text ready.
pub(crate) fn prepare_text(
    model: &Model,
    prompt: &Prompt,
    settings: &Settings,
    fits: bool,
) -> Result<Prepared, Problem> {
    let prompt = match prompt {
        Prompt::Text(text) => encode(model, text)?,
        Prompt::Ids(ids) => ids.clone(),
    };
    if prompt.is_empty() {
        return Err(Problem::field("prompt", "`prompt` must not be empty: there is nothing to continue"));
    }
    prepared(model, prompt, settings, fits, None, None)
}

/// Tokens of a conversation's prompt.
pub(crate) fn prompt(model: &Model, conversation: &Conversation) -> Result<Vec<u32>, Problem> {
    Ok(render(model, conversation)?.ids)
}

fn template(model: &Model) -> Result<&ChatTemplate, Problem> {
    model.template.as_deref().map_err(|problem| Problem::invalid(problem.clone()))
}

fn encode(model: &Model, text: &str) -> Result<Vec<u32>, Problem> {
    let ids = model.tokenizer.encode_at_most(text, true, model.context_tokens);
    ids.map_err(|error| encode_problem(&error))
}

fn encode_problem(error: &TokenizerError) -> Problem {
    match error {
        TokenizerError::TooLong { tokens, most_tokens } => Problem::new(
            Kind::TooLong,
            format!(
                "the prompt has more than {tokens} tokens, but the context of this model holds {most_tokens}: shorten the \
                 prompt, or start the server with a larger --context"
            ),
        ),
        error => Problem::invalid(error.to_string()),
    }
}

/// What is asked of the host: the answer may have what is left of the context where nothing is said.
fn prepared(
    model: &Model,
    prompt: Vec<u32>,
    settings: &Settings,
    fits: bool,
    constraint: Option<Constraint>,
    parser: Option<AnswerParser>,
) -> Result<Prepared, Problem> {
    let (most, prompt_tokens) = (model.context_tokens, prompt.len());
    let left = most.saturating_sub(prompt_tokens);
    let asked = settings.max_tokens.unwrap_or(left).max(1);
    let fitted = (asked > left && fits && left > 0).then_some(left);
    if asked > left && fitted.is_none() {
        let text = format!(
            "the prompt has {prompt_tokens} tokens and {asked} are to be written, together {}, but the context of this \
             model holds {most}: shorten the prompt, ask for less, or start the server with a larger --context or with --fit-answers",
            prompt_tokens.saturating_add(asked)
        );
        return Err(Problem::new(Kind::TooLong, text));
    }
    let request = Request {
        prompt,
        max_tokens: fitted.unwrap_or(asked),
        sampling: settings.sampling,
        bias: settings.bias.clone(),
        constraint,
        stop: settings.stop.clone(),
        top_logprobs: settings.top_logprobs,
    };
    Ok(Prepared { request, parser, fitted })
}

/// The prompt.
fn render(model: &Model, conversation: &Conversation) -> Result<ChatPrompt, Problem> {
    let template = template(model)?;
    let tools: Vec<Value> = match conversation.choice {
        ToolChoice::None => Vec::new(),
        _ => conversation.tools.iter().map(|tool| tool.json.clone()).collect(),
    };
    let is_told = knows_tools(template.source());
    let mut messages = with_one_system(&conversation.messages);
    if !is_told {
        messages = without_tools(messages, &tools)?;
    }
    let mut options = ChatOptions {
        tools: if is_told { tools } else { Vec::new() },
        variables: conversation.variables.clone(),
        ..ChatOptions::default()
    };
    if let Some(effort) = &conversation.effort {
        options.variables.entry("reasoning_effort").or_insert_with(|| effort.as_str().into());
        effort_of(effort).apply(&mut options);
    }
    options.enable_thinking = conversation.enable_thinking.or(options.enable_thinking);
    let messages: Vec<_> = messages.iter().map(Message::json).collect();
    ChatPrompt::new(template, &model.tokenizer, messages, options, model.context_tokens).map_err(|error| match error {
        EngineError::Tokenizer(error) => encode_problem(&error),
        EngineError::Template(TemplateError::NoThread(_)) => Problem::new(Kind::Internal, error.to_string()),
        error => Problem::field("messages", error.to_string()),
    })
}

/// Words that only some APIs have are the nearest of those that all have.
fn effort_of(word: &str) -> Effort {
    word.parse().unwrap_or(Effort::High)
}

impl Message {
    /// As templates know it.
    fn json(&self) -> Value {
        match self {
            Self::System(text) => json!({ "role": "system", "content": text }),
            Self::User(text) => json!({ "role": "user", "content": text }),
            Self::Assistant(Said { thinking, text, calls }) => {
                let mut message = json!({ "role": "assistant", "content": text });
                if let Some(thinking) = thinking {
                    message["reasoning_content"] = thinking.as_str().into();
                }
                if !calls.is_empty() {
                    message["tool_calls"] = calls.iter().map(Called::json).collect();
                }
                message
            }
            Self::Tool { id, name, text } => {
                let mut message = json!({ "role": "tool", "content": text });
                if let Some(id) = id {
                    message["tool_call_id"] = id.as_str().into();
                }
                if let Some(name) = name {
                    message["name"] = name.as_str().into();
                }
                message
            }
        }
    }
}

impl Called {
    fn json(&self) -> Value {
        json!({
            "id": self.id,
            "type": "function",
            "function": { "name": self.name, "arguments": self.arguments },
        })
    }
}

/// System messages at the beginning as one: templates know one.
fn with_one_system(messages: &[Message]) -> Vec<Message> {
    let mut joined: Vec<Message> = Vec::new();
    for message in messages {
        match (joined.as_mut_slice(), message) {
            ([Message::System(first)], Message::System(more)) => {
                first.push_str("\n\n");
                first.push_str(more);
            }
            _ => joined.push(message.clone()),
        }
    }
    joined
}

/// Messages for a template that knows no tools: they are described, and calls and results written, as text.
fn without_tools(messages: Vec<Message>, tools: &[Value]) -> Result<Vec<Message>, Problem> {
    let mut plain: Vec<Message> = Vec::new();
    if !tools.is_empty() {
        let words = describe_tools(tools).map_err(|error| Problem::field("tools", error.to_string()))?;
        plain.push(Message::System(words));
    }
    for message in messages {
        match (message, plain.as_mut_slice()) {
            (Message::System(text), [Message::System(words)]) => *words = format!("{text}\n\n{words}"),
            (Message::Tool { text, .. }, before) => {
                let response = format!("<tool_response>\n{text}\n</tool_response>");
                match before.last_mut() {
                    // Results of one turn are one message.
                    Some(Message::User(user)) if user.ends_with("</tool_response>") => {
                        user.push('\n');
                        user.push_str(&response);
                    }
                    _ => plain.push(Message::User(response)),
                }
            }
            (Message::Assistant(said), _) => {
                let mut text = said.text;
                for Called { name, arguments, .. } in &said.calls {
                    let gap = if text.is_empty() { "" } else { "\n" };
                    let name = Value::from(name.as_str());
                    text +=
                        &format!("{gap}<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>");
                }
                plain.push(Message::Assistant(Said { thinking: None, text, calls: Vec::new() }));
            }
            (message, _) => plain.push(message),
        }
    }
    Ok(plain)
}

/// What the answer to a prompt must look like.
fn rules(template: &ChatTemplate, conversation: &Conversation, prompt: &str) -> Result<AnswerRules, Problem> {
    let tools: Vec<Value> = conversation.tools.iter().map(|tool| tool.json.clone()).collect();
    let tools = Tools::read(&tools).map_err(|error| form_problem(&error))?;
    let budget = conversation.effort.as_deref().and_then(|effort| effort_of(effort).thinking_tokens());
    Ok(AnswerRules {
        form: conversation.form.clone(),
        tools: (!conversation.tools.is_empty()).then(|| ToolRules {
            tools: Arc::new(tools),
            choice: conversation.choice.clone(),
            format: CallFormat::of_template(template.source()),
            is_parallel: conversation.is_parallel,
        }),
        is_thinking: opens_thinking(prompt),
        thinking_tokens: conversation.thinking_tokens.or(budget),
    })
}

fn form_problem(error: &FormError) -> Problem {
    let field = match error {
        FormError::BadTool { index, .. } => format!("tools[{index}]"),
        FormError::BadChoice { .. } => "tool_choice".to_owned(),
        FormError::TooLong { what, .. } | FormError::TooDeep { what } | FormError::Refused { what, .. } => {
            match *what {
                "the schema of a tool" => "tools".to_owned(),
                _ => "response_format".to_owned(),
            }
        }
        FormError::Vocabulary { .. } => return Problem::invalid(error.to_string()),
    };
    Problem::field(&field, error.to_string())
}
