//! Chats as the text a model was trained on, by the chat template in its file.
//!
//! Owns: the Jinja dialect that published templates are written in, as transformers runs them: block tags take their
//! line with them, loops have `break` and `continue`, strings, lists and dictionaries have Python's methods, and
//! `raise_exception`, `strftime_now` and `tojson` exist.
//! Promises: the same text for the same messages, options and time; an end to loops, recursion and text without end;
//! errors that say what the template did not like.
//! Refuses: to guess. A file without a template cannot chat.
//!
//! A template is a program from the model file. The limits here stop the faulty and the careless ones, not one that was
//! made to harm: values that hold themselves or share their parts can still exhaust time, memory or stack in places
//! that the template library does not count.

use jiff::ZonedDateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use strata_gguf::{Metadata, MetadataError, Optional};
use thiserror::Error as ThisError;

use crate::python_json::tojson;

const TEMPLATE: &str = "tokenizer.chat_template";
const TOKENS: &str = "tokenizer.ggml.tokens";
/// What the engine calls the template; nobody sees it.
const NAME: &str = "chat";

/// Names under which templates see special tokens, and the keys of their ids.
const SPECIAL_TOKENS: [(&str, &str); 4] = [
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
];

/// Work that one rendering may do: about one unit per instruction and per 64 bytes made, so 128 MB at most.
const FUEL: u64 = 2_000_000;

/// Longest template that is compiled. Published ones have up to 30 KB; the time to compile a hostile one grows with the
/// square of its length (18 s at this one).
const MAX_TEMPLATE_BYTES: usize = 64 << 10;

/// Stack for compiling and rendering. Both recurse as deep as expressions and values are nested, which a hostile
/// template can drive far: measured, up to 700 bytes of stack per level, a level taking at least one byte of template
/// or seven units of fuel. Pages that are not touched cost nothing.
const STACK_BYTES: usize = 256 << 20;

/// Why a chat could not be rendered.
#[derive(Debug, ThisError)]
pub enum TemplateError {
    /// The file has no template.
    #[error(
        "this file has no chat template (metadata key `tokenizer.chat_template`), and guessing one would garble the \
         chat: use --raw to complete plain text, or a file that has one"
    )]
    Missing,
    /// A key the template needs has another type or value.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The template is not valid.
    #[error("the chat template is not valid: {reason}, line {line}")]
    Syntax {
        /// Line of the template, from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// The template is far longer than any real one.
    #[error("the chat template has {len_bytes} bytes, more than {MAX_TEMPLATE_BYTES}: the file is damaged")]
    TooLong {
        /// Length of the template.
        len_bytes: usize,
    },
    /// The template itself refused the messages (`raise_exception`).
    #[error("the chat template refuses these messages: {message}")]
    Refused {
        /// The template's own words.
        message: String,
    },
    /// The template failed on these messages.
    #[error("the chat template failed: {reason}, line {line}")]
    Failed {
        /// Line of the template, from 1; 0 if not known.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// The system gave no thread to work on.
    #[error("cannot start a thread with {STACK_BYTES} bytes of stack for the chat template: {0}")]
    NoThread(#[from] std::io::Error),
    /// The template would run for too long or make too much text.
    #[error("the chat template does too much work for one prompt (line {line}): it loops, or the chat is far too long")]
    TooMuchWork {
        /// Line of the template, from 1; 0 if not known.
        line: usize,
    },
}

/// What a template is told besides the messages.
#[derive(Clone, Debug)]
pub struct ChatOptions {
    /// End with the opening of the assistant's turn. True by default: an answer is wanted.
    pub add_generation_prompt: bool,
    /// The tools the model may call, each in the OpenAI form, its keys in the order the client gave.
    pub tools: Vec<serde_json::Value>,
    /// For models that think or not on request; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// Further variables (`chat_template_kwargs` of a request). They override the ones above.
    pub variables: serde_json::Map<String, serde_json::Value>,
    /// The time `strftime_now` tells; `None` is the time of rendering. A chat that keeps one time keeps its prefix.
    pub now: Option<ZonedDateTime>,
}

impl Default for ChatOptions {
    fn default() -> Self {
        ChatOptions {
            add_generation_prompt: true,
            tools: Vec::new(),
            enable_thinking: None,
            variables: serde_json::Map::new(),
            now: None,
        }
    }
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    /// Variable and text of each special token the file has.
    special_tokens: Vec<(&'static str, String)>,
}

impl ChatTemplate {
    /// The template of a model file, with the file's special tokens.
    pub fn from_metadata(metadata: &Metadata) -> Result<ChatTemplate, TemplateError> {
        let source = metadata.str(TEMPLATE).optional()?.ok_or(TemplateError::Missing)?;
        let mut template = ChatTemplate::from_source(source)?;
        for (name, key) in SPECIAL_TOKENS {
            let Some(id) = metadata.u32(key).optional()? else { continue };
            // An id past the end is the tokenizer's to report.
            if let Some(token) = metadata.str_array(TOKENS)?.get(id as usize) {
                template.special_tokens.push((name, token.clone()));
            }
        }
        Ok(template)
    }

    /// A template by its text. It knows no special tokens.
    pub fn from_source(source: &str) -> Result<ChatTemplate, TemplateError> {
        if source.len() > MAX_TEMPLATE_BYTES {
            return Err(TemplateError::TooLong { len_bytes: source.len() });
        }
        let environment = on_deep_stack(|| compile(source).map_err(|error| syntax_error(&error)))??;
        Ok(ChatTemplate { environment, source: source.to_owned(), special_tokens: Vec::new() })
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders messages. Each is an object with at least `role` and `content`, in the OpenAI form, except that the
    /// arguments of a tool call should be an object: most templates expect them parsed.
    pub fn render(&self, messages: &[serde_json::Value], options: &ChatOptions) -> Result<String, TemplateError> {
        let context = self.context(messages, options);
        let render = || self.environment.get_template(NAME)?.render(context);
        on_deep_stack(|| render().map_err(|error| render_error(&error)))?
    }

    /// The variables a template sees.
    fn context(&self, messages: &[serde_json::Value], options: &ChatOptions) -> Value {
        let mut variables: Vec<(&str, Value)> =
            self.special_tokens.iter().map(|(name, token)| (*name, Value::from(token))).collect();
        let now = options.now.clone().unwrap_or_else(ZonedDateTime::now);
        variables.push(("strftime_now", Value::from_function(move |format: &str| strftime(&now, format))));
        variables.push(("messages", Value::from(Serde(messages))));
        // Templates ask `if tools`, or `tools is not none`: the second needs none rather than an empty list.
        let tools = (!options.tools.is_empty()).then_some(&options.tools);
        variables.push(("tools", Value::from(Serde(tools))));
        variables.push(("documents", Value::from(())));
        variables.push(("add_generation_prompt", Value::from(options.add_generation_prompt)));
        if let Some(thinking) = options.enable_thinking {
            variables.push(("enable_thinking", Value::from(thinking)));
        }
        variables.extend(options.variables.iter().map(|(name, value)| (name.as_str(), Value::from(Serde(value)))));
        Value::from_pairs(variables)
    }
}

fn compile(source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.add_template_owned(NAME, source.to_owned())?;
    Ok(environment)
}

/// Runs `work` where it may recurse, see [`STACK_BYTES`].
fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, TemplateError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work)?;
        thread.join().map_or_else(|panic| std::panic::resume_unwind(panic), Ok)
    })
}

/// Marks an error as the template's own, so that its words can be told from the engine's.
#[derive(Debug, ThisError)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
}

fn strftime(now: &ZonedDateTime, format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, now).map_err(|error| {
        Error::new(ErrorKind::InvalidOperation, format!("strftime_now cannot use the format {format:?}: {error}"))
    })
}

fn syntax_error(error: &Error) -> TemplateError {
    TemplateError::Syntax { line: error.line().unwrap_or(0), reason: reason(error) }
}

fn render_error(error: &Error) -> TemplateError {
    let mut line = error.line().unwrap_or(0);
    let mut innermost = error;
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return TemplateError::Refused { message: message.clone() };
        }
        if let Some(cause) = cause.downcast_ref::<Error>() {
            line = cause.line().unwrap_or(line);
            innermost = cause;
        }
        source = cause.source();
    }
    match innermost.kind() {
        ErrorKind::OutOfFuel => TemplateError::TooMuchWork { line },
        _ => TemplateError::Failed { line, reason: reason(innermost) },
    }
}

fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
