//! Writing text: a session takes a prompt and goes on from it, token by token.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use strata_model::qwen4exp::{Checkpoint, LayerView, Moment, Observer, Rows, Sequence};

use crate::drafts::Writing;
use crate::{Chooser, Detokenizer, Drafts, Engine, EngineError, RouteReceipt, SamplerParams};

/// A flag by which another thread, or Ctrl-C, stops what is running at the next strip or token.
pub type Stop = AtomicBool;

/// Lets a [`Stop`] end a forward pass.
pub(crate) struct Stoppable<'a>(pub(crate) &'a Stop);

impl Observer for Stoppable<'_> {
    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Told how much of a prompt is done, 0 to 1; 1 also when it is given up.
pub(crate) type OnProgress = Box<dyn FnMut(f64) + Send>;

/// A [`Stop`], and somebody who wants to know how far a prompt is.
struct Watched<'a> {
    stop: &'a Stop,
    on_progress: Option<&'a mut OnProgress>,
    /// Position of the first token, tokens, and layers that each goes through.
    first_position: usize,
    tokens: usize,
    layers: usize,
}

impl Observer for Watched<'_> {
    fn is_cancelled(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn at(&mut self, moment: Moment, view: &mut LayerView<'_>) {
        if let (Moment::LayerDone, Some(on_progress)) = (moment, &mut self.on_progress) {
            let before = (view.first_position - self.first_position) as f64;
            let of_pass = view.rows.len() as f64 * (view.layer + 1) as f64 / self.layers as f64;
            on_progress((before + of_pass) / self.tokens as f64);
        }
    }
}

/// One text and the model's state after it.
pub struct Session {
    pub(crate) sequence: Sequence,
    /// The tokens that the state has taken; while a text is written, without drafts that it may not agree with.
    pub(crate) tokens: Vec<u32>,
    /// Where the state was before the drafts.
    pub(crate) window_start: Option<Checkpoint>,
}

/// How to go on from a prompt.
#[derive(Clone, Copy, Debug)]
pub struct GenerateOptions {
    /// The most tokens to write.
    pub max_tokens: usize,
    /// How to choose tokens.
    pub sampling: SamplerParams,
}

/// Why writing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its turn.
    EndOfTurn,
    /// `max_tokens` were written.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// It was asked to stop.
    Stopped,
    /// The same token came [`MOST_EQUAL_TOKENS`] times in a row: nothing else will come.
    Repeated,
}

/// Equal tokens in a row that end a text.
pub const MOST_EQUAL_TOKENS: usize = 256;

/// Why a text ends with the last of the `written` tokens, if it does: because that ends a turn, its form is complete, or there
/// may be no more. A session has room for `room` more tokens than those before it.
pub(crate) fn end_of(
    written: &[u32],
    end_of_turn_ids: &[u32],
    is_finished: bool,
    max_tokens: usize,
    room: usize,
) -> Option<Finish> {
    match written.last() {
        Some(last) if is_finished || end_of_turn_ids.contains(last) => Some(Finish::EndOfTurn),
        _ if written.len() >= max_tokens => Some(Finish::MaxTokens),
        _ if repeats(written) => Some(Finish::Repeated),
        _ if room == 0 => Some(Finish::ContextFull),
        _ => None,
    }
}

/// Whether a text ends with the same token [`MOST_EQUAL_TOKENS`] times.
fn repeats(tokens: &[u32]) -> bool {
    match tokens.last_chunk::<MOST_EQUAL_TOKENS>() {
        Some(last) => last.iter().all(|token| *token == last[0]),
        None => false,
    }
}

/// What a generation did.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The tokens written, without the one that ended the turn.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt whose state was there from before.
    pub reused_tokens: usize,
    /// Time for the prompt, up to the first token's logits.
    pub prompt_time: Duration,
    /// Time from there to the end.
    pub decode_time: Duration,
    /// What became of drafts.
    pub drafts: Drafts,
    /// What cache-aware routing did; `None` without it.
    pub routes: Option<RouteReceipt>,
}

impl Engine {
    /// From now on tells `on_progress` after each layer how much of a prompt is done, 0 to 1; 1 also when it is given up.
    pub fn on_prompt_progress(&mut self, on_progress: impl FnMut(f64) + Send + 'static) {
        self.on_progress = Some(Box::new(on_progress));
    }

    /// An empty session.
    ///
    /// # Errors
    /// When there is not enough memory for its state.
    pub fn new_session(&mut self) -> Result<Session, EngineError> {
        Ok(Session { sequence: self.model.new_sequence()?, tokens: Vec::new(), window_start: None })
    }

    /// Gives a session's memory back.
    pub fn free_session(&mut self, session: Session) {
        self.model.free(session.sequence);
    }

    /// Reads `prompt` and writes on from it; each piece of text goes to `on_text` as soon as it is complete.
    ///
    /// Where `prompt` begins with all that the session has taken, only the rest is read; else the session starts anew.
    /// The bytes written do not depend on which, but with [`Route::Cached`](crate::Route::Cached): what the session wrote
    /// itself was routed so, and what comes as a part of a prompt is routed by the router alone.
    ///
    /// # Errors
    /// When the prompt is empty or longer than the context, or the model fails.
    pub fn generate(
        &mut self,
        session: &mut Session,
        prompt: &[u32],
        options: &GenerateOptions,
        stop: &Stop,
        on_text: impl FnMut(&str),
    ) -> Result<Generated, EngineError> {
        let chooser = Chooser::new(options.sampling, Vec::new(), None, None)?;
        self.generate_by(session, prompt, options.max_tokens, chooser, stop, on_text)
    }

    /// [`generate`](Self::generate) with a chooser for a text of which nothing is written yet.
    ///
    /// # Errors
    /// As [`generate`](Self::generate), and when the chooser's grammar cannot be followed any further.
    pub fn generate_by(
        &mut self,
        session: &mut Session,
        prompt: &[u32],
        max_tokens: usize,
        mut chooser: Chooser,
        stop: &Stop,
        on_text: impl FnMut(&str),
    ) -> Result<Generated, EngineError> {
        if prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        chooser.read(prompt);
        // At least the last token is read: its logits are needed.
        let reused_tokens = match prompt.strip_prefix(&session.tokens[..]) {
            Some([_, ..]) => session.tokens.len(),
            _ => {
                self.reset(session);
                0
            }
        };
        let mut generated = Generated {
            tokens: Vec::new(),
            finish: Finish::MaxTokens,
            prompt_tokens: prompt.len(),
            reused_tokens,
            prompt_time: Duration::ZERO,
            decode_time: Duration::ZERO,
            drafts: Drafts::default(),
            routes: None,
        };
        let routed = self.route_receipt();

        let start = Instant::now();
        let mut logits = Vec::with_capacity(self.model.vocabulary());
        if !self.take(session, &prompt[reused_tokens..], stop, &mut logits)? {
            generated.finish = Finish::Stopped;
            return Ok(generated);
        }
        generated.prompt_time = start.elapsed();
        let start = Instant::now();
        let mut writing = self.begin_writing(prompt, logits);
        let finish =
            self.write_on(session, &mut writing, &mut chooser, max_tokens, stop, &mut generated.tokens, on_text);
        // Whatever happened, the session has what was written.
        self.settle(session, &mut writing)?;
        generated.finish = finish?;
        generated.drafts = writing.drafts;
        generated.decode_time = start.elapsed();
        generated.routes = self.routed_since(routed);
        Ok(generated)
    }

    /// Writes token after token.
    #[allow(clippy::too_many_arguments)] // one caller, whose loop it is
    fn write_on(
        &mut self,
        session: &mut Session,
        writing: &mut Writing,
        chooser: &mut Chooser,
        max_tokens: usize,
        stop: &Stop,
        tokens: &mut Vec<u32>,
        mut on_text: impl FnMut(&str),
    ) -> Result<Finish, EngineError> {
        let mut detokenizer = Detokenizer::new(true);
        let mut finish = Finish::MaxTokens;
        while tokens.len() < max_tokens {
            let (token, _) = chooser.choose(writing.logits(self.model.vocabulary()))?;
            let tokenizer = self.tokenizer()?;
            tokens.push(token);
            let room = self.model.context_tokens() - session.tokens.len();
            let end = end_of(tokens, tokenizer.end_of_turn_ids(), chooser.is_finished(), max_tokens, room);
            if tokenizer.end_of_turn_ids().contains(&token) {
                tokens.pop();
            } else {
                on_text(detokenizer.push(tokenizer, token));
            }
            if let Some(end) = end {
                finish = end;
                break;
            }
            let left = max_tokens - tokens.len();
            if !self.write(session, writing, token, left, stop)? {
                finish = Finish::Stopped;
                break;
            }
        }
        on_text(detokenizer.finish());
        Ok(finish)
    }

    /// Takes a prompt into the session; `false`: it was stopped, and the session is empty again.
    fn take(
        &mut self,
        session: &mut Session,
        ids: &[u32],
        stop: &Stop,
        logits: &mut Vec<f32>,
    ) -> Result<bool, EngineError> {
        let observer = &mut Watched {
            stop,
            // Single tokens have no progress.
            on_progress: self.on_progress.as_mut().filter(|_| ids.len() > 1),
            first_position: session.sequence.tokens(),
            tokens: ids.len(),
            layers: self.model.config().layers,
        };
        let result = self.model.forward(&mut session.sequence, ids, Rows::Last, logits, observer);
        let is_taken = self.or_reset(session, result.map_err(EngineError::from))?.is_some();
        if is_taken {
            session.tokens.extend_from_slice(ids);
        }
        Ok(is_taken)
    }

    /// What a pass gave. `None`: it was stopped; then, and after an error, the session is empty again.
    pub(crate) fn or_reset<T>(
        &mut self,
        session: &mut Session,
        result: Result<T, EngineError>,
    ) -> Result<Option<T>, EngineError> {
        result.map(Some).or_else(|error| {
            // Whoever shows progress shows it no more.
            self.on_progress.iter_mut().for_each(|on_progress| on_progress(1.0));
            self.reset(session);
            if error.is_cancelled() { Ok(None) } else { Err(error) }
        })
    }

    pub(crate) fn reset(&mut self, session: &mut Session) {
        self.model.reset(&mut session.sequence);
        session.tokens.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_report_39_a_text_of_one_token_ends() {
        let many = vec![7; MOST_EQUAL_TOKENS];
        assert!(repeats(&many) && repeats(&[&[1, 2], &many[..]].concat()));
        assert!(!repeats(&many[1..]) && !repeats(&[]));
        assert!(!repeats(&[&many[..], &[8]].concat()) && !repeats(&[&many[1..], &[8, 7]].concat()));
    }

    #[test]
    fn every_token_that_ends_a_turn_ends_a_text() {
        let end =
            |written: &[u32], is_finished, max_tokens, room| end_of(written, &[3, 9], is_finished, max_tokens, room);
        for id in [3, 9] {
            assert_eq!(end(&[5, id], false, 2, 0), Some(Finish::EndOfTurn));
        }
        assert_eq!(end(&[3, 5], false, 3, 1), None);
        assert_eq!(end(&[3, 5], true, 3, 1), Some(Finish::EndOfTurn));
        assert_eq!(end(&[5, 5], false, 2, 0), Some(Finish::MaxTokens));
        assert_eq!(end(&[5, 5], false, 3, 0), Some(Finish::ContextFull));
        assert_eq!(end(&[5; MOST_EQUAL_TOKENS], false, 1000, 0), Some(Finish::Repeated));
        assert_eq!(end(&[], false, 1, 1), None);
    }
}
