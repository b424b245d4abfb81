//! The answer to one request: from logits to what its line is told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::desk::{Desk, Line};
use super::stop::Stops;
use super::{Event, Outcome, Request, Written};
use crate::generate::end_of;
use crate::{Chooser, Detokenizer, Drafts, EngineError, Finish, RouteReceipt, Tokenizer};

/// What comes after a token.
pub(super) enum Next {
    /// This one, and so many more at most.
    Token(u32, usize),
    /// Nothing.
    End(Ending),
}

/// How an answer ended.
pub(super) struct Ending {
    /// Text that was held back.
    text: String,
    finish: Finish,
    stop: Option<String>,
}

/// A request at work.
pub(super) struct Text {
    pub(super) line: Arc<Line>,
    pub(super) request: Request,
    /// Tokens of the prompt whose state was kept from before.
    pub(super) reused_tokens: usize,
    pub(super) written: Vec<u32>,
    /// Of these, those that the model has been given: fewer only while a text is taken up again.
    given: usize,
    /// A step failed that it had a part in: until it has written more than so many tokens it goes alone, so that only one text fails.
    alone_until: usize,
    chooser: Chooser,
    detokenizer: Detokenizer,
    stops: Stops,
    began: Instant,
    wrote: Option<Instant>,
    /// What routing had done before.
    pub(super) routed: Option<RouteReceipt>,
}

impl Text {
    pub(super) fn new(line: Arc<Line>, request: Request, routed: Option<RouteReceipt>) -> Result<Self, EngineError> {
        let Request { sampling, bias, constraint, top_logprobs, .. } = &request;
        let mut chooser = Chooser::new(*sampling, bias.clone(), constraint.clone(), *top_logprobs)?;
        chooser.read(&request.prompt);
        Ok(Self {
            line,
            reused_tokens: 0,
            written: Vec::new(),
            given: 0,
            alone_until: 0,
            chooser,
            detokenizer: Detokenizer::new(true),
            stops: Stops::new(request.stop.clone()),
            request,
            began: Instant::now(),
            wrote: None,
            routed,
        })
    }

    /// The model has forgotten what it was given: the prompt will be read again, and what was written given to it again.
    pub(super) fn take_up_again(&mut self) {
        self.given = 0;
        self.alone_until = self.written.len();
    }

    /// Whether its passes are its own and have no drafts, because it is not known whether they can be done.
    pub(super) fn goes_alone(&self) -> bool {
        self.given <= self.alone_until && self.alone_until > 0
    }

    /// Reading begins, after tokens that were kept.
    pub(super) fn begin(&mut self, reused_tokens: usize) {
        if self.wrote.is_none() {
            self.reused_tokens = reused_tokens;
        }
    }

    /// Tells how much of what had to be read of the prompt is read, 0 to 1.
    pub(super) fn tell_progress(&self, progress: f64) {
        // Who has seen tokens knows that the prompt was read.
        if self.wrote.is_some() {
            return self.line.moves();
        }
        let prompt_tokens = self.request.prompt.len();
        self.line.tell(Event::Reading { prompt_tokens, reused_tokens: self.reused_tokens, progress });
    }

    /// The prompt is read.
    pub(super) fn begin_writing(&mut self) {
        self.wrote.get_or_insert_with(Instant::now);
    }

    /// The token after which `logits` are next, where the session has room for `room` more tokens.
    pub(super) fn next(&mut self, logits: &[f32], tokenizer: &Tokenizer, room: usize) -> Result<Next, EngineError> {
        let left = |written: usize| self.request.max_tokens - written;
        if let Some(token) = self.written.get(self.given) {
            self.given += 1;
            return Ok(Next::Token(*token, left(self.given)));
        }
        let (token, choice) = self.chooser.choose(logits)?;
        self.written.push(token);
        self.given = self.written.len();
        let (ends, is_finished) = (tokenizer.end_of_turn_ids(), self.chooser.is_finished());
        let end = end_of(&self.written, ends, is_finished, self.request.max_tokens, room);
        if let Some(finish) = end.filter(|_| ends.contains(&token)) {
            return Ok(Next::End(self.finish(finish)));
        }
        let (text, stop) = self.stops.push(self.detokenizer.push(tokenizer, token));
        self.line.tell(Event::Token(Written { token, text, choice }));
        Ok(match (stop, end) {
            (Some(stop), _) => Next::End(Ending { text: String::new(), finish: Finish::EndOfTurn, stop: Some(stop) }),
            (None, Some(finish)) => Next::End(self.finish(finish)),
            (None, None) => Next::Token(token, left(self.written.len())),
        })
    }

    /// No more text comes from the model.
    fn finish(&mut self, finish: Finish) -> Ending {
        let (mut text, stop) = self.stops.push(self.detokenizer.finish());
        if stop.is_none() {
            text.push_str(&self.stops.finish());
        }
        Ending { text, finish, stop }
    }

    /// Tells the end.
    pub(super) fn end(self, desk: &Desk, ending: Ending, drafts: Drafts, routes: Option<RouteReceipt>) {
        let wrote = self.wrote.unwrap_or_else(Instant::now);
        let since = |later: Instant, earlier: Instant| -> Duration { later.saturating_duration_since(earlier) };
        let outcome = Outcome {
            text: ending.text,
            finish: if ending.stop.is_some() { Finish::EndOfTurn } else { ending.finish },
            stop: ending.stop,
            prompt_tokens: self.request.prompt.len(),
            reused_tokens: self.reused_tokens,
            written_tokens: self.written.len(),
            queue_time: since(self.began, self.line.asked),
            prompt_time: since(wrote, self.began),
            decode_time: wrote.elapsed(),
            drafts,
            routes,
        };
        desk.end(&self.line, Some(Event::Done(outcome)));
    }
}
