//! What an answer must look like, as a grammar.
//!
//! Owns: the making of grammars from what clients send: schemas, regular expressions, Lark grammars, tools. Promises: a
//! constraint that can be followed from its first token, or an error that says what was not understood; hostile input
//! costs no more than the limits here and in `vocabulary.rs`. Refuses: keywords of JSON schema that the grammar library
//! does not know: an answer that only looks as if it obeyed them would be worse.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, mpsc};
use std::time::Duration;

use llguidance::Matcher;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};
use thiserror::Error;

use super::call::{CALL, CALL_END};
use super::constraint::Phase;
use super::tools::Kind;
use super::{AnswerParser, CallFormat, Constraint, Tool, ToolChoice, Tools, Vocabulary};
use crate::Detokenizer;

/// Longest text of a schema or grammar, and of all schemas of a request's tools together. Known large ones have 100 KB.
const MOST_GRAMMAR_BYTES: usize = 256 << 10;
/// Longest regular expression.
const MOST_REGEX_BYTES: usize = 16 << 10;
/// Deepest nesting in a schema, a grammar or a regular expression: the library walks them recursively.
const MOST_LEVELS: usize = 100;
/// The most parts that all `allOf` (of more than one) and `patternProperties` of a schema with patterns may have: automata
/// that must hold at once multiply, and the library does not count that work (measured: 8 take milliseconds, 50 more than 8 minutes).
const MOST_JOINED: usize = 8;
/// Longest that a grammar may take to be made ready. Real ones take milliseconds; the library's own limits do not
/// reach all of its work.
const LONGEST_WORK: Duration = Duration::from_secs(10);
/// Grammars that were given up may still be worked on: a thread cannot be ended from outside. With so many, no others begin.
const MOST_GIVEN_UP: usize = 2;
/// Stack for the library's recursion.
const STACK_BYTES: usize = 64 << 20;
/// White space inside of JSON: one blank, or a line break and what indents. More would only let a model that has nothing
/// to say go on with blanks.
const JSON_SPACE: &str = r"\x20|\x0D?\x0A(\x20{0,40}|\x09{0,10})";
/// White space between thinking and a form.
const GAP: &str = r"GAP: /[ \n]{1,4}/";

/// Why a form cannot be followed. All but [`Vocabulary`](Self::Vocabulary) are faults of who asked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FormError {
    /// It is too long.
    #[error("{what} has {len_bytes} bytes, the most is {most}")]
    TooLong {
        /// The schema, grammar or expression.
        what: &'static str,
        /// Its length.
        len_bytes: usize,
        /// The limit.
        most: usize,
    },
    /// It is nested too deeply.
    #[error("{what} is nested more than {MOST_LEVELS} levels deep")]
    TooDeep {
        /// The schema, grammar or expression.
        what: &'static str,
    },
    /// It is not valid, not supported, or too much work.
    #[error("{what} cannot be used: {reason}")]
    Refused {
        /// The schema, grammar or expression.
        what: &'static str,
        /// The library's words.
        reason: String,
    },
    /// A tool is not described as it must be.
    #[error("tools[{index}]: {reason}")]
    BadTool {
        /// Its place in the list.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A call is demanded that cannot be made.
    #[error("tool_choice: {reason}")]
    BadChoice {
        /// Why not.
        reason: String,
    },
    /// The model's vocabulary is not fit for grammars.
    #[error("answers of this model cannot be bound to a form: its vocabulary has {reason}")]
    Vocabulary {
        /// Why not.
        reason: String,
    },
}

/// The form of an answer's text.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Form {
    /// Any text.
    #[default]
    Free,
    /// Any JSON object.
    Json,
    /// JSON of a schema.
    JsonSchema(Value),
    /// Text that a regular expression matches as a whole.
    Regex(String),
    /// Text of a Lark grammar, in the variant of the `llguidance` library.
    Lark(String),
}

/// The tools that an answer may call.
#[derive(Clone, Debug)]
pub struct ToolRules {
    /// The tools.
    pub tools: Arc<Tools>,
    /// Whether they must, may or must not be called.
    pub choice: ToolChoice,
    /// How the model writes calls.
    pub format: CallFormat,
    /// Whether there may be more than one call.
    pub is_parallel: bool,
}

/// All that is asked of an answer's text.
#[derive(Clone, Debug, Default)]
pub struct AnswerRules {
    /// The form of its text.
    pub form: Form,
    /// The tools it may call.
    pub tools: Option<ToolRules>,
    /// Whether the prompt has opened the thinking already, see [`opens_thinking`](super::opens_thinking). The form begins
    /// after it.
    pub is_thinking: bool,
    /// The most tokens of thinking; then it is ended. Heeded when the prompt has opened it.
    pub thinking_tokens: Option<usize>,
}

impl AnswerRules {
    /// What takes the answer apart.
    pub fn parser(&self) -> AnswerParser {
        AnswerParser::new(self.is_thinking, self.tools().map(|rules| (rules.format, Arc::clone(&rules.tools))))
    }

    /// What holds the answer to its form; `None` when all is free.
    ///
    /// # Errors
    /// When the form is not understood, or a limit is passed.
    pub fn constraint(&self, vocabulary: &Arc<Vocabulary>) -> Result<Option<Constraint>, FormError> {
        let (answer, call) = match (self.tools(), &self.form) {
            (None, Form::Free) => (None, None),
            (Some(rules), Form::Free) if rules.choice == ToolChoice::Auto => {
                let mut calls = Calls::new(rules)?;
                // A token may end the call and the line.
                let end = if rules.is_parallel { " LINES?\nLINES: /\\n{1,2}/\n" } else { "\n" };
                calls.rules.insert_str(0, &format!("start: call_body{end}"));
                (None, Some(calls.compile("the schema of a tool", vocabulary)?))
            }
            (Some(rules), form) => (Some(self.with_calls(rules, form)?.compile("the schema", vocabulary)?), None),
            (None, form) => {
                let what = form.what();
                let rules = format!("start: {}@answer\n", self.gap());
                let grammars = vec![form.grammar()?];
                (Some(Calls { rules: self.with_gap(rules), grammars }.compile(what, vocabulary)?), None)
            }
        };
        let has_budget = self.is_thinking && self.thinking_tokens.is_some();
        if answer.is_none() && call.is_none() && !has_budget {
            return Ok(None);
        }
        let phase = match (self.is_thinking, &answer) {
            (true, _) => Phase::Thinking(Box::new((self.parser(), Detokenizer::new(true)))),
            (false, Some(answer)) => Phase::Bound { grammar: Box::new(answer.clone()), is_call: false },
            (false, None) => Phase::Free(0),
        };
        Ok(Some(Constraint {
            vocabulary: Arc::clone(vocabulary),
            phase,
            answer,
            call,
            is_parallel: self.tools().is_some_and(|rules| rules.is_parallel),
            thinking_tokens: self.thinking_tokens,
            forced: VecDeque::new(),
        }))
    }

    /// The tools that may be called.
    fn tools(&self) -> Option<&ToolRules> {
        self.tools.as_ref().filter(|rules| rules.choice != ToolChoice::None)
    }

    /// Calls, or an answer in the form where calls are not demanded.
    fn with_calls(&self, rules: &ToolRules, form: &Form) -> Result<Calls, FormError> {
        let mut calls = Calls::new(rules)?;
        let more = if rules.is_parallel { r#" ("\n" call)*"# } else { "" };
        let or_answer = match (form, &rules.choice) {
            (Form::Free, _) | (_, ToolChoice::Required | ToolChoice::Named(_)) => "",
            (form, _) => {
                calls.grammars.push(form.grammar()?);
                " | @answer"
            }
        };
        let open = quoted(CALL);
        let gap = self.gap();
        let start =
            format!("start: {gap}answer\nanswer: calls{or_answer}\ncalls: call{more}\ncall: {open} call_body\n");
        calls.rules.insert_str(0, &start);
        calls.rules = self.with_gap(calls.rules);
        Ok(calls)
    }

    fn gap(&self) -> &'static str {
        if self.is_thinking { "GAP? " } else { "" }
    }

    fn with_gap(&self, rules: String) -> String {
        if self.is_thinking { format!("{rules}{GAP}\n") } else { rules }
    }
}

impl Form {
    fn what(&self) -> &'static str {
        match self {
            Form::Free => "free text",
            Form::Json | Form::JsonSchema(_) => "the JSON schema",
            Form::Regex(_) => "the regular expression",
            Form::Lark(_) => "the Lark grammar",
        }
    }

    /// The grammar, under the name `answer`.
    fn grammar(&self) -> Result<GrammarWithLexer, FormError> {
        let what = self.what();
        let mut grammar = match self {
            Form::Free => GrammarWithLexer::from_regex("(?s:.*)"),
            Form::Json => json_grammar(json!({ "type": "object" })),
            Form::JsonSchema(schema) => {
                check_schema(what, schema, MOST_GRAMMAR_BYTES)?;
                json_grammar(schema.clone())
            }
            Form::Regex(regex) => {
                check_text(what, regex, MOST_REGEX_BYTES)?;
                GrammarWithLexer::from_regex(regex)
            }
            Form::Lark(lark) => {
                check_text(what, lark, MOST_GRAMMAR_BYTES)?;
                GrammarWithLexer::from_lark(lark.clone())
            }
        };
        grammar.name = Some("answer".to_owned());
        Ok(grammar)
    }
}

/// Rules in Lark's notation, and the grammars that they name.
struct Calls {
    rules: String,
    grammars: Vec<GrammarWithLexer>,
}

impl Calls {
    /// `call_body`: what follows `<tool_call>`, of any tool that may be called.
    fn new(rules: &ToolRules) -> Result<Calls, FormError> {
        let tools: Vec<_> = match &rules.choice {
            ToolChoice::Named(name) => rules.tools.list().iter().filter(|tool| tool.name == *name).collect(),
            _ => rules.tools.list().iter().collect(),
        };
        if tools.is_empty() {
            let reason = match &rules.choice {
                ToolChoice::Named(name) => format!("there is no tool named `{name}`"),
                _ => "there are no tools to choose from".to_owned(),
            };
            return Err(FormError::BadChoice { reason });
        }
        let mut left_bytes = MOST_GRAMMAR_BYTES;
        for tool in &tools {
            left_bytes = check_schema("the schema of a tool", &tool.parameters, left_bytes)?;
        }
        let mut calls = Calls { rules: String::new(), grammars: Vec::new() };
        let names: Vec<_> = (0..tools.len()).map(|index| format!("call_{index}")).collect();
        calls.rules += &format!("call_body: {}\n", names.join(" | "));
        for (index, tool) in tools.iter().enumerate() {
            match rules.format {
                CallFormat::Json => {
                    let open = quoted(&format!("\n{{\"name\": \"{}\", \"arguments\": ", tool.name));
                    let close = quoted(&format!("}}\n{CALL_END}"));
                    calls.rules += &format!("call_{index}: {open} @args_{index} {close}\n");
                    calls.add(format!("args_{index}"), tool.parameters.clone());
                }
                CallFormat::Xml => calls.add_xml(index, tool)?,
            }
        }
        Ok(calls)
    }

    fn add(&mut self, name: String, schema: Value) {
        self.grammars.push(GrammarWithLexer { name: Some(name), ..json_grammar(schema) });
    }

    /// `<function=name>` with its parameters in the order of the schema.
    fn add_xml(&mut self, index: usize, tool: &Tool) -> Result<(), FormError> {
        let (name, schema) = (&tool.name, &tool.parameters);
        let mut parameters = Vec::new();
        let required =
            |key: &str| schema["required"].as_array().is_some_and(|keys| keys.iter().any(|required| required == key));
        for (at, (key, value)) in schema["properties"].as_object().into_iter().flatten().enumerate() {
            if key.is_empty() || key.contains(['<', '>', '\n']) {
                let reason = format!("the parameter {key:?} cannot be written in this model's calls");
                return Err(FormError::BadTool { index, reason });
            }
            let rule = format!("p_{index}_{at}");
            let open = quoted(&format!("<parameter={key}>\n"));
            let end = quoted("\n</parameter>\n");
            let body = match (tool.kind_of(key), &value["enum"]) {
                (Kind::Text, Value::Array(values)) => {
                    let texts: Vec<_> = values.iter().filter_map(Value::as_str).map(quoted).collect();
                    format!("({}) {end}", texts.join(" | "))
                }
                (Kind::Text | Kind::Either, _) => "text_end".to_owned(),
                (Kind::Json, _) => {
                    self.add(format!("v_{index}_{at}"), with_definitions(value, schema));
                    format!("@v_{index}_{at} {end}")
                }
            };
            self.rules += &format!("{rule}: {open} {body}\n");
            parameters.push(if required(key) { rule } else { format!("{rule}?") });
        }
        if parameters.is_empty() && schema["additionalProperties"] != json!(false) {
            parameters.push("any_parameter*".to_owned());
        }
        let open = quoted(&format!("\n<function={name}>\n"));
        let close = quoted(&format!("</function>\n{CALL_END}"));
        self.rules += &format!("call_{index}: {open} {} {close}\n", parameters.join(" "));
        if index == 0 {
            // A value of text goes up to the first end of a parameter.
            self.rules += "text_end[lazy]: /(.|\\n)*\\n<\\/parameter>\\n/\n";
            self.rules += "any_parameter: \"<parameter=\" KEY \">\\n\" text_end\nKEY: /[^<>\\n]{1,64}/\n";
        }
        Ok(())
    }

    fn compile(self, what: &'static str, vocabulary: &Arc<Vocabulary>) -> Result<Matcher, FormError> {
        let refused = |reason: String| FormError::Refused { what, reason: shortened(&reason) };
        let mut grammars = vec![GrammarWithLexer::from_lark(self.rules)];
        grammars.extend(self.grammars);
        let grammar = TopLevelGrammar { grammars, max_tokens: None };
        let given_up = || vocabulary.given_up.lock().unwrap_or_else(PoisonError::into_inner);
        given_up().retain(|at_work| at_work.strong_count() > 0);
        if given_up().len() >= MOST_GIVEN_UP {
            return Err(refused(
                "others were too much work and are not yet out of the way: try again later".to_owned(),
            ));
        }
        let (sender, receiver) = mpsc::channel();
        let at_work = Arc::new(());
        let its_end = Arc::downgrade(&at_work);
        let worker = Arc::clone(vocabulary);
        let work = move || {
            // Nobody listens to what was given up.
            let _ = sender.send(ready(&worker, grammar));
            drop(at_work);
        };
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(work);
        thread.map_err(|error| refused(format!("no thread to work on it: {error}")))?;
        receiver.recv_timeout(LONGEST_WORK).map_or_else(
            |_| {
                given_up().push(its_end);
                Err(refused("it takes too long to be made ready".to_owned()))
            },
            |matcher| matcher.map_err(refused),
        )
    }
}

fn ready(vocabulary: &Vocabulary, grammar: TopLevelGrammar) -> Result<Matcher, String> {
    let mut matcher = Matcher::new(vocabulary.parsers.create_parser(grammar));
    // What cannot even begin is told now, not in the middle of an answer.
    let first = matcher.compute_mask().map_err(|error| format!("{error:#}"))?;
    if first.is_zero() { Err("nothing can match it".to_owned()) } else { Ok(matcher) }
}

fn json_grammar(mut schema: Value) -> GrammarWithLexer {
    if let Value::Object(keys) = &mut schema
        && !keys.contains_key("x-guidance")
    {
        keys.insert("x-guidance".to_owned(), json!({ "whitespace_pattern": JSON_SPACE }));
    }
    GrammarWithLexer::from_json_schema(schema)
}

/// A part of a schema with the definitions that it may refer to.
fn with_definitions(part: &Value, whole: &Value) -> Value {
    let mut part = part.clone();
    if let Value::Object(keys) = &mut part {
        for name in ["$defs", "definitions"] {
            if let (Some(definitions), None) = (whole.get(name), keys.get(name)) {
                keys.insert(name.to_owned(), definitions.clone());
            }
        }
    }
    part
}

/// Bytes that are left of `most`.
fn check_schema(what: &'static str, schema: &Value, most: usize) -> Result<usize, FormError> {
    if !is_within(schema, MOST_LEVELS) {
        return Err(FormError::TooDeep { what });
    }
    let (mut joined, mut has_patterns) = (0, false);
    count_joined(schema, &mut joined, &mut has_patterns);
    if has_patterns && joined > MOST_JOINED {
        let reason =
            format!("`allOf` and `patternProperties` join {joined} parts, with patterns the most is {MOST_JOINED}");
        return Err(FormError::Refused { what, reason });
    }
    let len_bytes = schema.to_string().len();
    most.checked_sub(len_bytes).ok_or(FormError::TooLong { what, len_bytes, most })
}

/// Adds up what a schema joins, and looks for patterns.
fn count_joined(schema: &Value, joined: &mut usize, has_patterns: &mut bool) {
    match schema {
        Value::Array(parts) => parts.iter().for_each(|part| count_joined(part, joined, has_patterns)),
        Value::Object(keys) => {
            for (key, value) in keys {
                match (key.as_str(), value) {
                    ("allOf", Value::Array(parts)) if parts.len() > 1 => *joined += parts.len(),
                    ("patternProperties", Value::Object(parts)) => {
                        *joined += parts.len();
                        *has_patterns = true;
                    }
                    ("pattern", Value::String(_)) => *has_patterns = true,
                    _ => {}
                }
                count_joined(value, joined, has_patterns);
            }
        }
        _ => {}
    }
}

fn is_within(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(values) => levels > 0 && values.iter().all(|value| is_within(value, levels - 1)),
        Value::Object(values) => levels > 0 && values.values().all(|value| is_within(value, levels - 1)),
        _ => true,
    }
}

fn check_text(what: &'static str, text: &str, most: usize) -> Result<(), FormError> {
    if text.len() > most {
        return Err(FormError::TooLong { what, len_bytes: text.len(), most });
    }
    // Brackets in quotes count too: nobody nests those so deeply either.
    let mut level = 0usize;
    for c in text.chars() {
        match c {
            '(' | '[' | '{' => level += 1,
            ')' | ']' | '}' => level = level.saturating_sub(1),
            _ => {}
        }
        if level > MOST_LEVELS {
            return Err(FormError::TooDeep { what });
        }
    }
    Ok(())
}

/// A literal in Lark's notation, which quotes as JSON does.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The first lines of a message that may be very long.
pub(super) fn shortened(message: &str) -> String {
    const MOST_CHARS: usize = 400;
    let message = message.split("<backtrace>").next().unwrap_or_default().trim();
    match message.char_indices().nth(MOST_CHARS) {
        Some((end, _)) => format!("{} ...", &message[..end]),
        None => message.to_owned(),
    }
}
