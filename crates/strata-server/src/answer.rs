//! An answer as it comes, in parts.
//!
//! Owns: the way from a host's events to thinking, text and tool calls, and the receipt at the end. Promises: parts in the
//! order they were written, then exactly one `End` or `Failed`; whoever drops an answer gives its request up. Refuses: to
//! know how an API writes any of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use serde_json::{Value, json};
use strata_engine::host::{Choice, Event, Outcome, Written};
use strata_engine::{AnswerParser, CallProblem, Finish, RouteReceipt};
use tokio::time::Instant;

use crate::model::Events;
use crate::problem::{Kind, Problem};
use crate::record::Record;

/// Something of an answer.
#[derive(Debug)]
pub(crate) enum Piece {
    /// The prompt is being read: how much of it is done, 0 to 1.
    Reading(f64),
    /// A part.
    Part(Part),
    /// It is complete.
    End(Box<End>),
    /// It is not.
    Failed(Problem),
}

/// A part of an answer. Calls are numbered from 0.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    /// What is thought before the answer.
    Thinking(String),
    /// Text, and its tokens where their probabilities were asked for.
    Text(String, Vec<Token>),
    /// A tool call begins.
    CallBegin { index: usize, name: String },
    /// More of its arguments, as JSON.
    CallArguments { index: usize, json: String },
    /// It is complete.
    CallEnd { index: usize },
}

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) id: u32,
    pub(crate) choice: Choice,
}

/// How an answer ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) outcome: Outcome,
    /// Complete tool calls.
    pub(crate) calls: usize,
    /// Tokens of thinking.
    pub(crate) thinking_tokens: usize,
    /// What was wrong with calls that became text.
    pub(crate) problems: Vec<CallProblem>,
    /// The most tokens that it could have, where they were fewer than were asked for.
    pub(crate) fitted: Option<usize>,
}

/// An answer that is being written.
pub(crate) struct Answer {
    events: Events,
    /// `None`: it is text, whatever it looks like.
    parser: Option<AnswerParser>,
    fitted: Option<usize>,
    record: Arc<Record>,
    pieces: VecDeque<Piece>,
    /// Tokens since the last part.
    tokens: Vec<Token>,
    is_thinking: bool,
    calls: usize,
    thinking_tokens: usize,
    problems: Vec<CallProblem>,
    /// When it must be there.
    deadline: Option<(Instant, Duration)>,
    is_over: bool,
}

impl Answer {
    pub(crate) fn new(
        events: Events,
        parser: Option<AnswerParser>,
        fitted: Option<usize>,
        record: Arc<Record>,
        limit: Option<Duration>,
    ) -> Self {
        Self {
            events,
            parser,
            fitted,
            record,
            pieces: VecDeque::new(),
            tokens: Vec::new(),
            is_thinking: false,
            calls: 0,
            thinking_tokens: 0,
            problems: Vec::new(),
            deadline: limit.map(|limit| (Instant::now() + limit, limit)),
            is_over: false,
        }
    }

    /// The next piece; `None` after the end. Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Option<Piece> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Some(piece);
            }
            if self.is_over {
                return None;
            }
            let event = match self.deadline {
                None => Ok(self.events.next().await),
                Some((deadline, limit)) => {
                    tokio::time::timeout_at(deadline, self.events.next()).await.map_err(|_| limit)
                }
            };
            match event {
                Ok(Some(event)) => self.take(event),
                Ok(None) => self.fail(Problem::new(Kind::Internal, "the answer ended without a word")),
                Err(limit) => {
                    let text = format!(
                        "the answer was not complete within {} s, the time limit of this server",
                        limit.as_secs()
                    );
                    self.fail(Problem::new(Kind::Stalled, text));
                }
            }
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Reading { progress, .. } => self.pieces.push_back(Piece::Reading(progress)),
            Event::Token(Written { token, text, choice }) => {
                self.tokens.extend(choice.map(|choice| Token { id: token, choice }));
                self.record.wrote();
                self.push(&text);
                self.thinking_tokens += usize::from(self.is_thinking);
            }
            Event::Done(outcome) => {
                self.push(&outcome.text);
                if let Some(parser) = &mut self.parser {
                    for part in parser.finish() {
                        self.part(part);
                    }
                }
                self.record.done(&outcome);
                self.is_over = true;
                self.pieces.push_back(Piece::End(Box::new(End {
                    outcome,
                    calls: self.calls,
                    thinking_tokens: self.thinking_tokens,
                    problems: std::mem::take(&mut self.problems),
                    fitted: self.fitted,
                })));
            }
            Event::Failed(failure) => self.fail(failure.into()),
        }
    }

    fn push(&mut self, text: &str) {
        match &mut self.parser {
            None if text.is_empty() => {}
            None => self.part(strata_engine::Part::Text(text.to_owned())),
            Some(parser) => {
                for part in parser.push(text) {
                    self.part(part);
                }
            }
        }
    }

    fn part(&mut self, part: strata_engine::Part) {
        self.is_thinking = matches!(part, strata_engine::Part::Thinking(_));
        // Probabilities are told of the text that a client sees.
        let tokens = std::mem::take(&mut self.tokens);
        self.pieces.push_back(Piece::Part(match part {
            strata_engine::Part::Thinking(text) => Part::Thinking(text),
            strata_engine::Part::Text(text) => Part::Text(text, tokens),
            strata_engine::Part::CallBegin { index, name } => Part::CallBegin { index, name },
            strata_engine::Part::CallArguments { index, json_fragment } => {
                Part::CallArguments { index, json: json_fragment }
            }
            strata_engine::Part::CallEnd { index } => {
                self.calls += 1;
                Part::CallEnd { index }
            }
            strata_engine::Part::Broken { text, problem } => {
                self.problems.push(problem);
                Part::Text(text, tokens)
            }
        }));
    }

    fn fail(&mut self, problem: Problem) {
        self.record.failed(&problem);
        self.is_over = true;
        self.pieces.push_back(Piece::Failed(problem));
    }

    /// All of it.
    pub(crate) async fn whole(mut self) -> Result<Whole, Problem> {
        let (mut thinking, mut text, mut tokens) = (String::new(), String::new(), Vec::new());
        let mut calls: Vec<Call> = Vec::new();
        while let Some(piece) = self.next().await {
            match piece {
                Piece::Part(Part::Thinking(more)) => thinking.push_str(&more),
                Piece::Part(Part::Text(more, more_tokens)) => {
                    text.push_str(&more);
                    tokens.extend(more_tokens);
                }
                Piece::Part(Part::CallBegin { name, .. }) => calls.push(Call { name, arguments: String::new() }),
                Piece::Part(Part::CallArguments { index, json }) => {
                    if let Some(call) = calls.get_mut(index) {
                        call.arguments.push_str(&json);
                    }
                }
                Piece::Part(Part::CallEnd { .. }) | Piece::Reading(_) => {}
                Piece::End(end) => return Ok(Whole { thinking, text, calls, tokens, end: *end }),
                Piece::Failed(problem) => return Err(problem),
            }
        }
        Err(Problem::new(Kind::Internal, "the answer has no end"))
    }
}

/// A tool call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) name: String,
    /// As JSON.
    pub(crate) arguments: String,
}

/// All of an answer.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) thinking: String,
    pub(crate) text: String,
    pub(crate) calls: Vec<Call>,
    /// Of the text, where their probabilities were asked for.
    pub(crate) tokens: Vec<Token>,
    pub(crate) end: End,
}

/// Why an answer ended, as far as APIs tell it apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The model ended its turn.
    Turn,
    /// This text came.
    Stop(String),
    /// It was cut off.
    Length,
    /// The model wants tools to be called.
    Calls,
}

impl End {
    pub(crate) fn reason(&self) -> Reason {
        match (self.outcome.finish, &self.outcome.stop) {
            (_, Some(stop)) => Reason::Stop(stop.clone()),
            // An answer that repeats itself without end is no complete one.
            (Finish::MaxTokens | Finish::ContextFull | Finish::Stopped | Finish::Repeated, _) => Reason::Length,
            (Finish::EndOfTurn, _) if self.calls > 0 => Reason::Calls,
            (Finish::EndOfTurn, _) => Reason::Turn,
        }
    }

    /// What no other server tells: times, drafts, routes, and what was not as asked. `ignored`: fields of the request.
    pub(crate) fn receipt(&self, ignored: &[String]) -> Value {
        let outcome = &self.outcome;
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let mut receipt = json!({
            "finish": match outcome.finish {
                Finish::EndOfTurn => "end_of_turn",
                Finish::MaxTokens => "max_tokens",
                Finish::ContextFull => "context_full",
                Finish::Stopped => "stopped",
                Finish::Repeated => "repeated",
            },
            "queue_ms": ms(outcome.queue_time),
            "prompt_ms": ms(outcome.prompt_time),
            "decode_ms": ms(outcome.decode_time),
            "drafts": { "proposed": outcome.drafts.proposed, "accepted": outcome.drafts.accepted },
            "routes": outcome.routes.as_ref().map(routes),
        });
        let object = receipt.as_object_mut().expect("it is an object");
        if !self.problems.is_empty() {
            let problem = |problem: &CallProblem| {
                let code = match problem {
                    CallProblem::Unterminated => "unterminated_tool_call",
                    CallProblem::Malformed { .. } => "malformed_tool_call",
                    CallProblem::UnknownTool { .. } => "unknown_tool",
                };
                json!({ "type": "tool_call_error", "code": code, "message": problem.to_string() })
            };
            object.insert("problems".to_owned(), self.problems.iter().map(problem).collect());
        }
        if let Some(fitted) = self.fitted {
            object.insert("max_tokens".to_owned(), fitted.into());
        }
        if !ignored.is_empty() {
            object.insert("ignored_fields".to_owned(), json!(ignored));
        }
        receipt
    }
}

/// What cache-aware routing did.
fn routes(receipt: &RouteReceipt) -> Value {
    json!({
        "tokens": receipt.counts.rows,
        "agreement": receipt.agreement(),
        "substituted_mass": receipt.substituted_mass(),
        "mean_kl": receipt.mean_kl(),
        "kl_tokens": receipt.kl_tokens,
        "arena_hit_rate": receipt.arena_hit_rate(),
    })
}
