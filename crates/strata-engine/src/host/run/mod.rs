//! The thread that runs the model: which request's pass is next.
//!
//! In turns, all texts that are written go on by a step together, and prompts by a layer: a prompt that needs the large
//! workspace by one, short ones by as many as take the time of a step. Of the prompts, the one is next that has had the
//! fewest rows computed since it came (its *tag*, as fair queues of networks have it), so that a short one is done before
//! the next layer of a long one, and none waits for ever.

mod places;
pub(super) mod pressure;
mod told;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strata_model::qwen4exp::{Checkpoint, DECODE_ROWS, LayerView, Moment, Observer, Part, Reading, Workspace};

use self::pressure::Pressure;
use crate::drafts::Writing;
use crate::host::desk::{Desk, Line};
use crate::host::monitor::Monitor;
use crate::host::text::{Ending, Next, Text};
use crate::host::watch::{Doing, Now};
use crate::host::{Event, Failure, FailureKind, HostOptions};
use crate::prefix::{Point, PrefixOptions, Prefixes};
use crate::{Engine, EngineError, Session, Tokenizer};

/// A prompt being read.
struct Reader {
    text: Text,
    place: usize,
    reading: Reading,
    is_large: bool,
    /// Rows of its pass.
    rows: u64,
    /// When its next layer is due, in rows.
    tag: u64,
    /// Of its tokens, those that count as read.
    counted: u64,
    /// Where checkpoints will have been taken, the next first.
    stops: VecDeque<(usize, Point)>,
    /// What the session has besides its sequence.
    tokens: Vec<u32>,
    window_start: Option<Checkpoint>,
}

/// A text being written.
struct Writer {
    text: Text,
    place: usize,
    session: Session,
    writing: Writing,
}

/// Lets passes be given up when nobody waits for any of their texts, and tells who watches of each layer.
struct Watched<'a> {
    lines: Vec<Arc<Line>>,
    now: &'a Now,
}

impl Observer for Watched<'_> {
    fn is_cancelled(&self) -> bool {
        self.lines.iter().all(|line| line.is_over())
    }

    fn at(&mut self, moment: Moment, view: &mut LayerView<'_>) {
        if moment == Moment::LayerDone {
            self.now.did(view.layer);
            self.lines.iter().for_each(|line| line.moves());
        }
    }
}

/// Tokens so far.
#[derive(Clone, Copy, Default)]
struct Totals {
    prompt: u64,
    reused: u64,
    written: u64,
    drafted: u64,
    accepted: u64,
}

/// The model, and what every request has of it.
pub(super) struct Runner {
    engine: Engine,
    tokenizer: Arc<Tokenizer>,
    desk: Arc<Desk>,
    now: Arc<Now>,
    monitor: Arc<Monitor>,
    totals: Totals,
    strip_rows: usize,
    /// By place; `None`: a request has it.
    sessions: Vec<Option<Session>>,
    prefixes: Prefixes,
    large: Option<Workspace>,
    small: Vec<Workspace>,
    /// Texts that are to be taken up again.
    again: VecDeque<Text>,
    reading: Vec<Reader>,
    writing: Vec<Writer>,
    /// The tag of the layer that was done last.
    served: u64,
    /// Of all rows of a step.
    logits: Vec<f32>,
    pub(super) pressure: Pressure,
}

impl Runner {
    /// # Errors
    /// When there is not enough memory for so many sessions.
    pub(super) fn new(
        mut engine: Engine,
        tokenizer: Arc<Tokenizer>,
        desk: Arc<Desk>,
        now: Arc<Now>,
        monitor: Arc<Monitor>,
        options: &HostOptions,
    ) -> Result<Self, EngineError> {
        let parallel = options.parallel;
        let sessions = (0..parallel).map(|_| engine.new_session().map(Some)).collect::<Result<_, _>>()?;
        let (checkpoints, every_tokens) = (options.checkpoints, options.checkpoint_every_tokens);
        let mut prefixes = Prefixes::new(parallel, PrefixOptions { checkpoints, every_tokens });
        if let Some(disk) = &options.disk {
            prefixes = prefixes.with_disk(engine.prefix_disk(disk.clone())?);
        }
        let strip_rows = engine.options.model.strip_rows.min(engine.model.pass_tokens());
        // Steps, and what drafts and comparisons do for one text, are done in the model's own.
        let large = engine.model.take_workspace()?;
        let of_steps = engine.model.new_workspace(parallel * DECODE_ROWS)?;
        engine.model.put_workspace(of_steps);
        let small = (1..parallel).map(|_| engine.model.new_workspace(strip_rows)).collect::<Result<_, _>>()?;
        Ok(Self {
            strip_rows,
            engine,
            tokenizer,
            desk,
            now,
            monitor,
            totals: Totals::default(),
            sessions,
            prefixes,
            large: Some(large),
            small,
            again: VecDeque::new(),
            reading: Vec::new(),
            writing: Vec::new(),
            served: 0,
            logits: Vec::new(),
            pressure: Pressure::of_system(),
        })
    }

    /// Serves requests until no more will come.
    pub(super) fn run(&mut self) {
        while self.turn() || self.save_prefix() || self.desk.wait() {}
    }

    /// One turn. `false`: there was nothing to do.
    pub(super) fn turn(&mut self) -> bool {
        self.now.is(Doing::Arranging);
        self.give_back();
        self.let_go();
        let has_rested = self.in_use() == 0;
        self.admit();
        let is_at_work = self.in_use() > 0;
        if is_at_work {
            if has_rested {
                // Rates count from here.
                self.leave_copy();
            }
            let began = Instant::now();
            self.write();
            self.read(began.elapsed());
        } else {
            self.now.is(Doing::Waiting);
        }
        if !is_at_work || self.monitor.is_due() {
            self.leave_copy();
        }
        is_at_work
    }

    /// Memory that the system needs, as far as it can be spared.
    fn give_back(&mut self) {
        let bytes = self.pressure.wanted_bytes(Instant::now());
        if bytes > 0 {
            // A drive that does not answer ends the requests that wait for it; the next look tries again.
            let _ = self.engine.relieve(&mut self.prefixes, bytes);
            self.monitor.replan(self.engine.plan());
        }
    }

    /// Requests that have a session.
    pub(super) fn in_use(&self) -> usize {
        self.reading.len() + self.writing.len()
    }

    /// How memory is divided.
    #[cfg(test)]
    pub(super) fn plan(&self) -> &crate::Plan {
        self.engine.plan()
    }

    /// Ends the model's work: what was learned of its use is kept.
    pub(super) fn finish(mut self) -> Result<(), EngineError> {
        while self.save_prefix() {}
        self.engine.save_usage()
    }

    /// All texts go on by a step.
    fn write(&mut self) {
        let (mut company, mut alone) = (Vec::new(), Vec::new());
        for mut writer in std::mem::take(&mut self.writing) {
            let before = writer.text.written.len();
            let chosen = self.choose(&mut writer);
            self.totals.written += (writer.text.written.len() - before) as u64;
            match chosen {
                Ok(None) if writer.text.goes_alone() => alone.push(vec![writer]),
                Ok(None) => company.push(writer),
                Ok(Some(ending)) => self.end(writer, ending),
                Err(error) => self.fail_writer(writer, &error),
            }
        }
        std::iter::once(company).chain(alone).filter(|writers| !writers.is_empty()).for_each(|w| self.step(w));
    }

    /// Chooses tokens until one needs a pass, which is proposed, or ends the text.
    fn choose(&mut self, writer: &mut Writer) -> Result<Option<Ending>, EngineError> {
        let Writer { text, session, writing, .. } = writer;
        let (vocabulary, context_tokens) = (self.engine.model.vocabulary(), self.engine.model.context_tokens());
        loop {
            let room = context_tokens - session.tokens.len();
            let (token, left) = match text.next(writing.logits(vocabulary), &self.tokenizer, room)? {
                Next::End(ending) => return Ok(Some(ending)),
                Next::Token(token, left) => (token, left),
            };
            if !writing.agrees(session, token) {
                let observer = &mut Watched { lines: vec![text.line.clone()], now: &self.now };
                let left = if text.goes_alone() { 1 } else { left };
                self.engine.propose(session, writing, token, left, observer)?;
                return Ok(None);
            }
        }
    }

    /// One pass for what was proposed for these texts.
    fn step(&mut self, mut writers: Vec<Writer>) {
        self.now.is(Doing::Writing { texts: writers.len() });
        let lines = writers.iter().map(|writer| writer.text.line.clone()).collect();
        let observer = &mut Watched { lines, now: &self.now };
        let start = Instant::now();
        self.logits.clear();
        let mut parts = Vec::with_capacity(writers.len());
        for Writer { session, writing, .. } in &mut writers {
            parts.push(Part { sequence: &mut session.sequence, ids: writing.ids() });
        }
        let model = &mut self.engine.model;
        let result = model.take_workspace().and_then(|mut workspace| {
            let result = model.step(&mut workspace, &mut parts, &mut self.logits, observer);
            model.put_workspace(workspace);
            result
        });
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                let mut logits = &self.logits[..];
                for mut writer in writers {
                    let of_text = writer.writing.ids().len() * self.engine.model.vocabulary();
                    let (own, others) = logits.split_at(of_text);
                    logits = others;
                    writer.writing.window_logits().clear();
                    writer.writing.window_logits().extend_from_slice(own);
                    self.engine.passed(&mut writer.session, &mut writer.writing, seconds);
                    self.writing.push(writer);
                }
            }
            Err(error) => {
                let error = EngineError::from(error);
                // Drafts may need what their text does not.
                let is_alone = writers.len() == 1 && writers[0].writing.ids().len() == 1;
                if is_alone || error.is_cancelled() {
                    writers.into_iter().for_each(|writer| self.fail_writer(writer, &error));
                } else {
                    self.take_up_again(writers, &error);
                }
            }
        }
    }

    /// A pass failed. Whose fault it was shows when each text goes alone; the others are none the worse for it.
    fn take_up_again(&mut self, writers: Vec<Writer>, error: &EngineError) {
        let requests: Vec<_> = writers.iter().map(|writer| writer.text.line.id.to_string()).collect();
        eprintln!("strata: a pass failed, so requests {} are taken up again one by one: {error}", requests.join(", "));
        for Writer { mut text, place, session, .. } in writers {
            self.leave(place, session, false);
            text.take_up_again();
            self.again.push_back(text);
        }
    }

    /// Prompts go on by a layer of a large one, or by as many of short ones as take so long.
    fn read(&mut self, step_time: Duration) {
        let began = Instant::now();
        loop {
            let due = |at: &usize| (self.reading[*at].tag, self.reading[*at].text.line.id);
            let Some(at) = (0..self.reading.len()).min_by_key(due) else { return };
            let is_short = self.reading[at].rows <= self.strip_rows as u64;
            self.advance(at);
            if !is_short || began.elapsed() >= step_time {
                return;
            }
        }
    }

    /// One layer of a prompt.
    fn advance(&mut self, at: usize) {
        self.now.is(Doing::Reading { request: self.reading[at].text.line.id });
        let reader = &mut self.reading[at];
        let observer = &mut Watched { lines: vec![reader.text.line.clone()], now: &self.now };
        match self.engine.model.advance(&mut reader.reading, observer) {
            Ok(is_complete) => {
                self.served = reader.tag;
                reader.tag += reader.rows;
                let progress = reader.reading.progress();
                reader.text.tell_progress(progress);
                let left_tokens = reader.text.request.prompt.len() - reader.tokens.len();
                let read = (progress * left_tokens as f64).round() as u64;
                self.totals.prompt += read - reader.counted;
                reader.counted = read;
                self.keep_stops(at);
                if is_complete {
                    let reader = self.reading.remove(at);
                    self.finish_reading(reader);
                }
            }
            Err(error) => {
                let reader = self.reading.remove(at);
                let line = reader.text.line.clone();
                self.give_up(reader);
                self.fail(&line, &error.into());
            }
        }
    }

    /// A prompt is read.
    fn finish_reading(&mut self, reader: Reader) {
        let Reader { text, place, reading, is_large, window_start, mut tokens, .. } = reader;
        let (sequence, workspace, logits, _) = self.engine.model.finish_reading(reading);
        self.put_back(workspace, is_large);
        tokens.clone_from(&text.request.prompt);
        let session = Session { sequence, tokens, window_start };
        let (prompt, model) = (&text.request.prompt, &mut self.engine.model);
        match self.prefixes.keep(model, place, &session.sequence, prompt, Point::Prompt, Some(&logits)) {
            Ok(()) => self.begin_writing(text, place, session, logits),
            Err(error) => {
                self.leave(place, session, true);
                self.fail(&text.line, &error);
            }
        }
    }

    fn begin_writing(&mut self, mut text: Text, place: usize, session: Session, logits: Vec<f32>) {
        text.begin_writing();
        let writing = self.engine.begin_writing(&text.request.prompt, logits);
        self.writing.push(Writer { text, place, session, writing });
    }

    /// An answer is complete.
    fn end(&mut self, writer: Writer, ending: Ending) {
        let Writer { text, place, session, writing } = writer;
        let routes = self.engine.routed_since(text.routed);
        let drafts = self.rest(place, session, writing);
        text.end(&self.desk, ending, drafts, routes);
    }

    fn fail_writer(&mut self, writer: Writer, error: &EngineError) {
        let Writer { text, place, session, .. } = writer;
        self.leave(place, session, false);
        self.fail(&text.line, error);
    }

    /// Ends a line, unless it is over.
    fn fail(&self, line: &Arc<Line>, error: &EngineError) {
        let failure = Failure { kind: FailureKind::Internal, message: error.to_string() };
        self.desk.end(line, Some(Event::Failed(failure)));
    }
}
