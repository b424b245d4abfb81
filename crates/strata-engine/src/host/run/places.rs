//! Who gets a place, where its prompt begins, and what is kept when it leaves.
//!
//! A place is a session of the host: see [`Prefixes`](crate::prefix::Prefixes). What a place has is only lost when another
//! prompt begins there.

use std::collections::VecDeque;

use strata_model::qwen4exp::{Sequence, Workspace};

use super::{Reader, Runner, Writer};
use crate::drafts::Writing;
use crate::host::Request;
use crate::host::text::Text;
use crate::prefix::Point;
use crate::{Drafts, EngineError, Session};

impl Runner {
    /// Frees what requests have that nobody waits for any more.
    pub(super) fn let_go(&mut self) {
        self.again.retain(|text| !text.line.is_over());
        while let Some(at) = self.reading.iter().position(|reader| reader.text.line.is_over()) {
            let reader = self.reading.remove(at);
            self.give_up(reader);
        }
        while let Some(at) = self.writing.iter().position(|writer| writer.text.line.is_over()) {
            let Writer { place, session, writing, .. } = self.writing.remove(at);
            self.rest(place, session, writing);
        }
    }

    /// Gives places and workspaces to those that wait, the first first; but whoever needs the large workspace while it is in
    /// use stops nobody who does not.
    pub(super) fn admit(&mut self) {
        while self.sessions.iter().any(Option::is_some) {
            let fits = |request: &Request| self.large.is_some() || (self.is_short(request) && !self.small.is_empty());
            let text = match self.again.iter().position(|text| fits(&text.request)) {
                Some(at) => self.again.remove(at).expect("it was found there"),
                None => {
                    let Some((line, request)) = self.desk.take(fits) else { return };
                    match Text::new(line.clone(), request, self.engine.route_receipt()) {
                        Ok(text) => text,
                        Err(error) => {
                            self.fail(&line, &error);
                            continue;
                        }
                    }
                }
            };
            let line = text.line.clone();
            if let Err(error) = self.begin(text) {
                self.fail(&line, &error);
            }
        }
    }

    /// Whether what must be read of a prompt is no more than a strip.
    fn is_short(&self, request: &Request) -> bool {
        let prompt_tokens = request.prompt.len();
        let reused_tokens = || self.prefixes.plan(&request.prompt).map_or(0, |start| start.reused_tokens);
        prompt_tokens <= self.strip_rows || prompt_tokens - reused_tokens() <= self.strip_rows
    }

    fn begin(&mut self, mut text: Text) -> Result<(), EngineError> {
        let prompt = &text.request.prompt;
        let start = self.prefixes.plan(prompt).expect("a free place");
        let place = start.place;
        let mut session = self.sessions[place].take().expect("a free place has its session");
        let (sessions, reading, writing) = (&self.sessions, &self.reading, &self.writing);
        let source = start.source().map(|place| sequence(sessions, reading, writing, place));
        let begun = self.prefixes.begin(&mut self.engine.model, prompt, &start, &mut session.sequence, source);
        let begun = match begun {
            Ok(begun) => begun,
            Err(error) => {
                session.tokens.clear();
                self.sessions[place] = Some(session);
                return Err(error);
            }
        };
        let reused_tokens = begun.reused_tokens;
        session.tokens.clear();
        session.tokens.extend_from_slice(&prompt[..reused_tokens]);
        self.totals.reused += reused_tokens as u64;
        self.totals.prompt += reused_tokens as u64;
        text.begin(reused_tokens);
        if let Some(logits) = begun.logits {
            text.tell_progress(1.0);
            self.begin_writing(text, place, session, logits);
            return Ok(());
        }
        let prompt = &text.request.prompt;
        let ids = prompt[reused_tokens..].to_vec();
        let mut stops: VecDeque<_> =
            self.prefixes.stops(place, prompt, reused_tokens, self.tokenizer.end_of_turn_ids()).into();
        // The end is kept when it is reached.
        stops.retain(|(position, _)| *position < prompt.len());
        let small = if ids.len() <= self.strip_rows { self.small.pop() } else { None };
        let is_large = small.is_none();
        let workspace = small.or_else(|| self.large.take()).expect("who fits has one");
        let rows = ids.len().min(self.engine.model.pass_tokens()) as u64;
        let Session { sequence, tokens, window_start } = session;
        let positions = stops.iter().map(|(position, _)| *position).collect();
        let reading = self.engine.model.begin_reading(sequence, ids, workspace, positions);
        let (tag, counted) = (self.served + rows, 0);
        self.reading.push(Reader { text, place, reading, is_large, rows, tag, counted, stops, tokens, window_start });
        Ok(())
    }

    /// Keeps the checkpoints of a prompt that are complete.
    pub(super) fn keep_stops(&mut self, at: usize) {
        let checkpoints = self.reading[at].reading.take_checkpoints();
        for checkpoint in checkpoints {
            let reader = &mut self.reading[at];
            let (position, point) = reader.stops.pop_front().expect("it was asked for");
            let text = &reader.text.request.prompt[..position];
            self.prefixes.hand_over(reader.place, checkpoint, text, point, None);
        }
    }

    /// With nothing else to do, writes a prefix that is worth it into a file. `false`: there is none.
    pub(super) fn save_prefix(&mut self) -> bool {
        let Some(unsaved) = self.prefixes.unsaved() else { return false };
        let Some(session) = &self.sessions[unsaved.place] else { return false };
        if let Err(error) = self.prefixes.save(&mut self.engine.model, unsaved, &session.sequence) {
            eprintln!("strata: a prefix cannot be kept for later: {error}");
        }
        true
    }

    pub(super) fn put_back(&mut self, workspace: Workspace, is_large: bool) {
        if is_large {
            self.large = Some(workspace);
        } else {
            self.small.push(workspace);
        }
    }

    /// A prompt is not read to its end.
    pub(super) fn give_up(&mut self, reader: Reader) {
        let Reader { place, reading, is_large, mut tokens, window_start, text, .. } = reader;
        let taken = tokens.len() + reading.tokens().1;
        tokens.extend_from_slice(&text.request.prompt[tokens.len()..taken]);
        let (sequence, workspace) = self.engine.model.give_up_reading(reading);
        self.put_back(workspace, is_large);
        self.leave(place, Session { sequence, tokens, window_start }, false);
    }

    /// A text is not written any further. Gives what became of its drafts.
    pub(super) fn rest(&mut self, place: usize, mut session: Session, mut writing: Writing) -> Drafts {
        // What it cannot take back it forgets.
        let is_settled = self.engine.settle(&mut session, &mut writing).is_ok();
        // What it wrote itself it may have routed in another way than a prompt would be.
        let is_whole = is_settled && self.engine.moce().is_none();
        if is_whole {
            let (sequence, tokens, model) = (&session.sequence, &session.tokens, &mut self.engine.model);
            // Without it, it is only read again.
            let _ = self.prefixes.keep(model, place, sequence, tokens, Point::Within, None);
        }
        self.leave(place, session, is_whole);
        self.totals.drafted += writing.drafts.proposed as u64;
        self.totals.accepted += writing.drafts.accepted as u64;
        writing.drafts
    }

    /// A place is free again. `is_whole`: its state is that after its last token, as a prompt would leave it.
    pub(super) fn leave(&mut self, place: usize, session: Session, is_whole: bool) {
        self.prefixes.end(place, &session.tokens, is_whole);
        self.sessions[place] = Some(session);
    }
}

/// The sequence of a place, whoever has it.
fn sequence<'a>(
    sessions: &'a [Option<Session>],
    reading: &'a [Reader],
    writing: &'a [Writer],
    place: usize,
) -> &'a Sequence {
    let reading = reading.iter().find(|reader| reader.place == place).map(|reader| reader.reading.sequence());
    let writing = writing.iter().find(|writer| writer.place == place).map(|writer| &writer.session.sequence);
    let free = sessions[place].as_ref().map(|session| &session.sequence);
    reading.or(writing).or(free).expect("every place has a sequence")
}
