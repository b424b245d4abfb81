//! An answer's form, followed token by token.
//!
//! Owns: where in the answer a text is: thinking, free text, inside a grammar, or at its end. Promises: thinking and text
//! outside of calls are free; what a grammar allows is decided by bytes, so that it does not matter how a tokenizer cuts
//! a tag; a step takes no more than the grammar's limits, else it is an error.
//! Refuses: to end an answer inside its grammar. Only a caller's limit of tokens does that.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use llguidance::Matcher;

use super::call::CALL;
use super::{AnswerParser, Part, SamplingError, Vocabulary};
use crate::Detokenizer;

/// What an answer must look like from here on. Made by [`AnswerRules::constraint`](super::AnswerRules::constraint).
#[derive(Clone)]
pub struct Constraint {
    pub(super) vocabulary: Arc<Vocabulary>,
    pub(super) phase: Phase,
    /// Follows thinking; `None`: free text.
    pub(super) answer: Option<Matcher>,
    /// Follows `<tool_call>` in free text; `None`: it is text as any other.
    pub(super) call: Option<Matcher>,
    /// Whether another call may follow one.
    pub(super) is_parallel: bool,
    /// Tokens that thinking may still take.
    pub(super) thinking_tokens: Option<usize>,
    /// Tokens that come next, whatever the model says.
    pub(super) forced: VecDeque<u32>,
}

#[derive(Clone)]
pub(super) enum Phase {
    /// Until the parser says that thinking has ended.
    Thinking(Box<(AnswerParser, Detokenizer)>),
    /// Free text, and how many bytes of `<tool_call>` it ends with.
    Free(usize),
    /// Bound to a grammar; `is_call`: one call in free text.
    Bound { grammar: Box<Matcher>, is_call: bool },
    /// Only the end may follow.
    Ended,
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match &self.phase {
            Phase::Thinking(_) => "thinking",
            Phase::Free(_) => "free",
            Phase::Bound { .. } => "bound",
            Phase::Ended => "ended",
        };
        f.debug_struct("Constraint").field("phase", &phase).finish_non_exhaustive()
    }
}

impl Constraint {
    /// Whether only the end may follow.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// The next token where there is no choice; it counts as taken.
    pub(super) fn forced(&mut self) -> Option<u32> {
        if self.thinking_tokens == Some(0) && matches!(self.phase, Phase::Thinking(_)) {
            self.thinking_tokens = None;
            self.forced = self.vocabulary.close_thinking_ids.iter().copied().collect();
        }
        // A grammar that does not let blank lines follow thinking gets none.
        while let Some(id) = self.forced.pop_front() {
            if self.take(id).unwrap_or(false) {
                return Some(id);
            }
        }
        None
    }

    /// Makes the logits of all tokens that may not follow -inf.
    pub(super) fn mask(&mut self, logits: &mut [f32]) -> Result<(), SamplingError> {
        match &mut self.phase {
            // An answer in a form cannot end before it began.
            Phase::Thinking(_) if self.answer.is_some() => {
                for id in self.vocabulary.end_ids() {
                    if let Some(logit) = logits.get_mut(*id as usize) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
            Phase::Thinking(_) | Phase::Free(_) => {}
            Phase::Bound { grammar, .. } => {
                let allowed = grammar.compute_mask_or_eos().map_err(failed)?;
                for (id, logit) in logits.iter_mut().enumerate() {
                    if id >= allowed.len() || !allowed.get(id) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
            Phase::Ended => {
                for (id, logit) in logits.iter_mut().enumerate() {
                    if !self.vocabulary.end_ids().contains(&(id as u32)) {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
        Ok(())
    }

    /// Goes on by a token that the mask allowed; `false`, and nothing has changed, when it may not follow all the same:
    /// a token can end a tag and begin what comes after it.
    pub(super) fn take(&mut self, id: u32) -> Result<bool, SamplingError> {
        if self.vocabulary.end_ids().contains(&id) {
            self.phase = Phase::Ended;
            return Ok(true);
        }
        match &mut self.phase {
            Phase::Bound { grammar, .. } => {
                grammar.consume_token(id).map_err(failed)?;
                self.after_grammar()?;
                Ok(true)
            }
            Phase::Ended => Ok(true),
            Phase::Thinking(_) | Phase::Free(_) => {
                let (phase, left) = (self.phase.clone(), self.thinking_tokens);
                if matches!(phase, Phase::Thinking(_)) {
                    self.thinking_tokens = left.map(|left| left.saturating_sub(1));
                }
                let vocabulary = Arc::clone(&self.vocabulary);
                let is_taken = self.take_bytes(vocabulary.seen_bytes(id))?;
                if !is_taken {
                    (self.phase, self.thinking_tokens) = (phase, left);
                }
                Ok(is_taken)
            }
        }
    }

    fn take_bytes(&mut self, bytes: &[u8]) -> Result<bool, SamplingError> {
        for (at, byte) in bytes.iter().enumerate() {
            match &mut self.phase {
                Phase::Thinking(parts) => {
                    let (parser, detokenizer) = &mut **parts;
                    let has_called = parser
                        .push(detokenizer.push_bytes(&[*byte]))
                        .iter()
                        .any(|part| matches!(part, Part::CallEnd { .. }));
                    if !parser.is_thinking() {
                        self.phase = match (&self.answer, has_called) {
                            // The call was the answer.
                            (Some(_), true) => Phase::Ended,
                            (None, true) if !self.is_parallel => Phase::Ended,
                            (Some(answer), false) => Phase::Bound { grammar: Box::new(answer.clone()), is_call: false },
                            (None, _) => Phase::Free(0),
                        };
                    }
                }
                Phase::Free(matched) => {
                    let Some(call) = &self.call else { return Ok(true) };
                    let tag = CALL.as_bytes();
                    *matched = match (*byte == tag[*matched], *byte == tag[0]) {
                        (true, _) => *matched + 1,
                        (false, true) => 1,
                        (false, false) => 0,
                    };
                    if *matched == tag.len() {
                        self.phase = Phase::Bound { grammar: Box::new(call.clone()), is_call: true };
                    }
                }
                Phase::Bound { grammar, .. } => {
                    let rest = self.vocabulary.byte_tokens(&bytes[at..]);
                    if grammar.validate_tokens(&rest).map_err(failed)? < rest.len() {
                        return Ok(false);
                    }
                    grammar.consume_tokens(&rest).map_err(failed)?;
                    self.after_grammar()?;
                    return Ok(true);
                }
                // Something after the last call.
                Phase::Ended => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Leaves a grammar that is complete.
    fn after_grammar(&mut self) -> Result<(), SamplingError> {
        let Phase::Bound { grammar, is_call } = &mut self.phase else { return Ok(()) };
        if !grammar.stop_reason().is_ok() {
            return Err(SamplingError::Grammar(format!("it stopped with {}", grammar.stop_reason())));
        }
        // After a call in free text comes free text again, as soon as it can.
        if grammar.is_stopped() || (*is_call && grammar.is_accepting().map_err(failed)?) {
            self.phase = if *is_call && self.is_parallel { Phase::Free(0) } else { Phase::Ended };
        }
        Ok(())
    }
}

/// The library's words, which may be long.
fn failed(error: impl fmt::Display) -> SamplingError {
    SamplingError::Grammar(super::form::shortened(&error.to_string()))
}
