//! The parts of an answer as its text comes: thinking, text, calls.
//!
//! Owns: text that may yet become a tag, and calls that are not complete. Promises: the same parts however the text is cut
//! (neighbours of one kind put together); nothing is given that may be the start of a tag; nothing is lost: a call that is
//! broken comes back as text with its problem; a complete call ends the thinking. Refuses: calls in parts. A client can
//! only do the right thing with a call when it is whole.
//!
//! Line breaks that templates put around thinking and calls are no part of either, see
//! [`CallFormat::without_gap`](super::CallFormat).

use std::sync::Arc;

use super::call::{CALL, CallText};
use super::{CallFormat, CallProblem, Tools};

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Thinking.
    Thinking(String),
    /// Text.
    Text(String),
    /// A call begins. It is complete: its arguments and its end follow at once.
    CallBegin {
        /// Number of the call in the answer, from 0.
        index: usize,
        /// The tool.
        name: String,
    },
    /// Arguments of a call.
    CallArguments {
        /// Number of the call.
        index: usize,
        /// The next piece of the JSON object that they are.
        json_fragment: String,
    },
    /// A call is complete.
    CallEnd {
        /// Number of the call.
        index: usize,
    },
    /// Something that began as a call is none: it is text.
    Broken {
        /// The text.
        text: String,
        /// What is wrong with it as a call.
        problem: CallProblem,
    },
}

/// Whether a prompt ends inside of thinking, as templates end prompts for models that think.
pub fn opens_thinking(prompt: &str) -> bool {
    prompt.trim_end_matches('\n').ends_with(THINK)
}

/// Takes an answer apart.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    calls: Option<(CallFormat, Arc<Tools>)>,
    is_thinking: bool,
    /// Nothing but line breaks has come yet, so that thinking may still be opened.
    is_start: bool,
    /// Line breaks that come now are the template's.
    skips_newlines: bool,
    /// Line breaks and the start of a tag: what they are is not known yet.
    held: String,
    /// A call that is not complete.
    call: Option<CallText>,
    /// The answer is complete, and what looks like a call in its thinking is none.
    ignores_calls: bool,
    calls_made: usize,
    parts: Vec<Part>,
}

impl AnswerParser {
    /// `is_thinking`: the prompt has opened the thinking. Without `calls`, calls are text.
    pub fn new(is_thinking: bool, calls: Option<(CallFormat, Arc<Tools>)>) -> AnswerParser {
        AnswerParser {
            calls,
            is_thinking,
            is_start: !is_thinking,
            skips_newlines: is_thinking,
            held: String::new(),
            call: None,
            ignores_calls: false,
            calls_made: 0,
            parts: Vec::new(),
        }
    }

    /// Whether the text so far ends inside of thinking.
    pub fn is_thinking(&self) -> bool {
        self.is_thinking
    }

    /// How many calls were complete so far.
    pub fn calls_made(&self) -> usize {
        self.calls_made
    }

    /// Goes on by a piece of text; gives what is known now.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        text.chars().for_each(|c| self.push_char(c));
        std::mem::take(&mut self.parts)
    }

    /// The answer is complete; gives what was held back.
    pub fn finish(&mut self) -> Vec<Part> {
        if let Some(call) = self.call.take() {
            if self.is_thinking && call.raw.contains(THINK_END) {
                // The thinking only spoke of a call.
                self.ignores_calls = true;
                self.held.push_str(CALL);
                self.give_held();
                call.raw[CALL.len()..].chars().for_each(|c| self.push_char(c));
                return self.finish();
            }
            self.give_broken(call.raw, CallProblem::Unterminated);
        }
        if !self.skips_newlines || !self.held.bytes().all(|byte| byte == b'\n') {
            self.give_held();
        }
        std::mem::take(&mut self.parts)
    }

    fn push_char(&mut self, c: char) {
        let Some(call) = &mut self.call else {
            self.held.push(c);
            return self.look();
        };
        match call.push(c) {
            Ok(None) => {}
            Ok(Some(made)) => {
                self.call = None;
                let newlines = std::mem::take(&mut self.held);
                if let (false, Some((format, _))) = (self.is_thinking, &self.calls) {
                    let kept = format.without_gap(&newlines).to_owned();
                    self.give(&kept);
                }
                self.is_thinking = false;
                self.skips_newlines = true;
                let index = self.calls_made;
                self.calls_made += 1;
                self.parts.push(Part::CallBegin { index, name: made.name });
                self.parts.push(Part::CallArguments { index, json_fragment: made.arguments });
                self.parts.push(Part::CallEnd { index });
            }
            Err(problem) => {
                // The letter that was too much may be a part of the next tag.
                let was_taken = call.is_complete();
                let raw = std::mem::take(&mut call.raw);
                self.call = None;
                if self.is_thinking {
                    // Thinking may speak of calls, and end in what looked like one.
                    self.held.push_str(CALL);
                    self.give_held();
                    raw[CALL.len()..].chars().for_each(|c| self.push_char(c));
                } else {
                    self.give_broken(raw, problem);
                }
                if !was_taken {
                    self.push_char(c);
                }
            }
        }
    }

    /// Gives of what is held all that cannot be the start of a tag.
    fn look(&mut self) {
        loop {
            if self.skips_newlines {
                let newlines = self.held.len() - self.held.trim_start_matches('\n').len();
                self.held.drain(..newlines);
            }
            let newlines = self.held.len() - self.held.trim_start_matches('\n').len();
            let rest = &self.held[newlines..];
            if rest.is_empty() {
                return;
            }
            let has_calls = self.calls.is_some() && !(self.ignores_calls && self.is_thinking);
            let tags = [(THINK, self.is_start), (THINK_END, self.is_thinking), (CALL, has_calls)];
            let mut possible = tags.iter().filter(|(tag, may_come)| *may_come && tag.starts_with(rest));
            match possible.next() {
                Some((tag, _)) if *tag == rest => return self.tag(tag, newlines),
                Some(_) => return,
                None => {}
            }
            let end =
                rest.char_indices().skip(1).find(|(_, c)| matches!(c, '\n' | '<')).map_or(rest.len(), |(at, _)| at);
            let left = self.held.split_off(newlines + end);
            self.give_held();
            self.held = left;
        }
    }

    /// A tag is complete, after line breaks; both are held.
    fn tag(&mut self, tag: &str, newlines: usize) {
        self.is_start = false;
        if tag == CALL {
            // What becomes of the line breaks depends on what becomes of the call.
            self.held.truncate(newlines);
            self.call = self.calls.as_ref().map(|(format, tools)| CallText::new(*format, Arc::clone(tools)));
        } else {
            self.held.clear();
            self.is_thinking = tag == THINK;
            self.skips_newlines = true;
        }
    }

    fn give_broken(&mut self, text: String, problem: CallProblem) {
        self.give_held();
        self.skips_newlines = false;
        self.parts.push(Part::Broken { text, problem });
    }

    fn give_held(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.give(&held);
    }

    fn give(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.is_start &= text.bytes().all(|byte| byte == b'\n');
        self.skips_newlines = false;
        match (self.parts.last_mut(), self.is_thinking) {
            (Some(Part::Thinking(last)), true) | (Some(Part::Text(last)), false) => last.push_str(text),
            (_, true) => self.parts.push(Part::Thinking(text.to_owned())),
            (_, false) => self.parts.push(Part::Text(text.to_owned())),
        }
    }
}
