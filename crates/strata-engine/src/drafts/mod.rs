//! Drafts: guessed tokens that go through the model together with the last one that was written.
//!
//! Owns: where drafts come from, the pass that checks them, and how far the text agrees with it. Promises: the text, the
//! random numbers it used and the way it ended are those without drafts: a token is written when the sampler draws it from
//! the model's own logits, and whatever was guessed beyond is taken back. Refuses: to let time decide anything but whether
//! there are drafts.

mod lookup;
mod worth;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use strata_gguf::Gguf;
use strata_model::qwen4exp::{DECODE_ROWS, DraftHead, Observer, Rows, StreamsNorm, has_draft_block};

use self::lookup::Lookup;
use self::worth::Worth;
use crate::generate::Stoppable;
use crate::{Engine, EngineError, GdnForm, Session, Stop};

/// The most drafts of a pass: with the token before them they are what counts as writing, not as a prompt.
pub const MOST_DRAFTS: usize = DECODE_ROWS - 1;

/// Where drafts come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftKind {
    /// There are none.
    #[default]
    Off,
    /// The text itself: what followed its last tokens before.
    Lookup,
    /// The model's draft head.
    Mtp,
    /// The draft head where there is one, else the text.
    Auto,
}

/// How tokens are drafted. Nothing here changes a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftOptions {
    /// Where drafts come from.
    pub kind: DraftKind,
    /// The most drafts of a pass; more than [`MOST_DRAFTS`] are as many.
    pub most: usize,
    /// The draft head's file; `None`: it is the last block of the model's own, if it has one.
    pub head: Option<PathBuf>,
    /// How the draft head normalises the streams.
    pub norm: StreamsNorm,
}

impl Default for DraftOptions {
    fn default() -> Self {
        Self { kind: DraftKind::Off, most: MOST_DRAFTS, head: None, norm: StreamsNorm::One }
    }
}

impl DraftOptions {
    /// The draft head that these options want of a model, if any.
    pub(crate) fn open_head(&self, gguf: &Gguf, gdn_form: GdnForm) -> Result<Option<DraftHead>, EngineError> {
        if self.kind != DraftKind::Off && gdn_form == GdnForm::Chunked {
            let problem = "drafts need the recurrent form of DeltaNet: the chunked one rounds by where a text is cut, so that they \
                           would change it";
            return Err(EngineError::Unusable(problem.to_owned()));
        }
        if matches!(self.kind, DraftKind::Off | DraftKind::Lookup) {
            return Ok(None);
        }
        let file = match &self.head {
            Some(path) => Some(Arc::new(Gguf::open(path)?)),
            None if has_draft_block(gguf) => None,
            None if self.kind == DraftKind::Auto => return Ok(None),
            None => {
                let problem = "the model's file has no draft head: name the head's own file, or draft by look-up";
                return Err(EngineError::Unusable(problem.to_owned()));
            }
        };
        Ok(Some(DraftHead { file, norm: self.norm }))
    }
}

/// What became of drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafts {
    /// Tokens that were drafted.
    pub proposed: usize,
    /// Of these, those that the text agreed with.
    pub accepted: usize,
}

/// The pass at hand: tokens that went through the model together, and how many of them the text has.
struct Window {
    /// Those of the last pass; the first was written before it.
    ids: Vec<u32>,
    /// How many of them are written, the first of which always is.
    agreed: usize,
    /// Of each row.
    logits: Vec<f32>,
    /// What it took, until it is told to [`Worth`].
    seconds: f64,
}

impl Window {
    /// Nothing is guessed any more.
    fn clear(&mut self) {
        self.ids.clear();
        self.agreed = 1;
    }
}

/// A text being written.
pub(crate) struct Writing {
    source: Option<Source>,
    /// The prompt and what was written.
    text: Vec<u32>,
    window: Window,
    worth: Worth,
    /// The most drafts of a pass, and how many there are at present.
    most: usize,
    count: usize,
    pub(crate) drafts: Drafts,
    /// The draft head's.
    head_logits: Vec<f32>,
    /// What exact routing said of the token at hand; empty: nobody looked.
    exact: Vec<f32>,
}

enum Source {
    Lookup(Lookup),
    Head,
}

impl Writing {
    /// What goes through the model next, or went last.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.window.ids
    }

    /// Room for the logits of each of these.
    pub(crate) fn window_logits(&mut self) -> &mut Vec<f32> {
        &mut self.window.logits
    }

    /// Takes a token that was written. `true`: it was drafted, and its logits are there.
    pub(crate) fn agrees(&mut self, session: &mut Session, token: u32) -> bool {
        self.text.push(token);
        let agrees = self.window.ids.get(self.window.agreed) == Some(&token);
        if agrees {
            self.window.agreed += 1;
            session.tokens.push(token);
        }
        agrees
    }

    /// The logits from which the next token is drawn.
    pub(crate) fn logits(&self, vocabulary: usize) -> &[f32] {
        &self.window.logits[(self.window.agreed - 1) * vocabulary..][..vocabulary]
    }
}

impl Engine {
    /// Begins to write after a prompt whose last logits are `logits`.
    pub(crate) fn begin_writing(&self, prompt: &[u32], logits: Vec<f32>) -> Writing {
        let options = &self.options.drafts;
        let source = match options.kind {
            DraftKind::Off => None,
            DraftKind::Mtp | DraftKind::Auto if self.model.has_draft_head() => Some(Source::Head),
            DraftKind::Lookup | DraftKind::Mtp | DraftKind::Auto => Some(Source::Lookup(Lookup::default())),
        };
        let most = options.most.min(MOST_DRAFTS);
        Writing {
            source: source.filter(|_| most > 0),
            text: prompt.to_vec(),
            window: Window { ids: Vec::new(), agreed: 1, logits, seconds: 0.0 },
            worth: Worth::new(),
            most,
            count: most.min(FIRST_COUNT),
            drafts: Drafts::default(),
            head_logits: Vec::new(),
            exact: Vec::new(),
        }
    }

    /// Takes a token that was written, after which at most `left` more may be. `false`: it was stopped, and the session is
    /// empty again.
    pub(crate) fn write(
        &mut self,
        session: &mut Session,
        writing: &mut Writing,
        token: u32,
        left: usize,
        stop: &Stop,
    ) -> Result<bool, EngineError> {
        if writing.agrees(session, token) {
            // What a pass would have noticed.
            let is_stopped = stop.load(Ordering::Relaxed);
            if is_stopped {
                writing.window.clear();
                self.reset(session);
            }
            return Ok(!is_stopped);
        }
        let start = Instant::now();
        let passed = self.propose(session, writing, token, left, &mut Stoppable(stop)).and_then(|()| {
            let (ids, logits, observer) = (&writing.window.ids, &mut writing.window.logits, &mut Stoppable(stop));
            logits.clear();
            Ok(self.model.decode(&mut session.sequence, ids, Rows::All, logits, observer)?)
        });
        let passed = self.or_reset(session, passed);
        if let Ok(Some(())) = passed {
            self.passed(session, writing, start.elapsed().as_secs_f64());
        } else {
            writing.window.clear();
        }
        Ok(passed?.is_some())
    }

    /// Ends the last window and says what goes through the model next, [`Writing::ids`]: `token`, after which at most `left`
    /// more may be written, and what is drafted after it. After an error the session must be reset.
    pub(crate) fn propose(
        &mut self,
        session: &mut Session,
        writing: &mut Writing,
        token: u32,
        left: usize,
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        self.settle(session, writing)?;
        self.kl_sampler.look(&mut self.model, &mut session.sequence, token, &mut writing.exact, observer)?;
        let mut ids = std::mem::take(&mut writing.window.ids);
        ids.push(token);
        let room = self.model.context_tokens() - session.tokens.len() - 1;
        // The last of all tokens is not taken.
        let most = writing.count.min(room).min(left.saturating_sub(1));
        if most > 0 && writing.worth.wants_drafts() {
            match &mut writing.source {
                None => {}
                Some(Source::Lookup(lookup)) => ids.extend(lookup.drafts(&writing.text, most)),
                Some(Source::Head) => {
                    writing.head_logits.clear();
                    let logits = &mut writing.head_logits;
                    ids.extend(self.model.draft(&mut session.sequence, token, most, logits, observer)?);
                }
            }
        }
        if ids.len() > 1 {
            let start = session.window_start.get_or_insert_default();
            self.model.checkpoint_window(&mut session.sequence, start, DECODE_ROWS)?;
        }
        writing.window.ids = ids;
        Ok(())
    }

    /// What was proposed went through the model, which took so long, and the window's logits are there.
    pub(crate) fn passed(&mut self, session: &mut Session, writing: &mut Writing, seconds: f64) {
        self.kl_sampler.compare(&writing.exact, &writing.window.logits);
        writing.window.agreed = 1;
        writing.window.seconds = seconds;
        session.tokens.push(writing.window.ids[0]);
    }

    /// Ends the window: takes back what the text does not have.
    pub(crate) fn settle(&mut self, session: &mut Session, writing: &mut Writing) -> Result<(), EngineError> {
        let Writing { window, worth, drafts, .. } = writing;
        match (window.ids.len(), window.agreed - 1) {
            (0, _) => {}
            (1, _) => worth.plain(window.seconds),
            (rows, accepted) => {
                let (start, proposed) = (Instant::now(), rows - 1);
                if accepted < proposed {
                    let checkpoint = session.window_start.as_ref().expect("every window has one");
                    let kept = &window.ids[..window.agreed];
                    let result = self.model.restore_window(&mut session.sequence, checkpoint, kept);
                    result.inspect_err(|_| self.reset(session))?;
                }
                worth.drafted(window.seconds + start.elapsed().as_secs_f64(), window.agreed);
                drafts.proposed += proposed;
                drafts.accepted += accepted;
                // Twice as many when all were right, else as many as were, and one more.
                let next = if accepted == proposed { 2 * writing.count } else { accepted + 1 };
                writing.count = next.min(writing.most);
            }
        }
        writing.window.clear();
        Ok(())
    }
}

/// Drafts of the first pass that has some.
const FIRST_COUNT: usize = 3;
