//! What is kept of texts, so that prompts that begin like them need not read that again.
//!
//! Owns: checkpoints of the host's sequences under a budget, and the choice of where a prompt begins: from the end of a
//! sequence, back at a checkpoint, as a fork of another sequence, or anew. Promises: never more checkpoints than the budget;
//! an answer is the same bytes wherever its prompt begins; a prompt that was read to its end before needs no token read
//! again. Refuses: to own sequences, and to keep anything without a sequence that has the rows of its caches.
//!
//! For each prompt a host [plans](Prefixes::plan) and [begins](Prefixes::begin), reads on to each of the
//! [stops](Prefixes::stops) and [keeps](Prefixes::keep) what it has there, writes the answer, and [ends](Prefixes::end).

mod book;
mod stops;
mod worth;

use std::collections::BTreeMap;

use strata_model::ModelError;
use strata_model::qwen4exp::{Checkpoint, Model, Sequence};

use self::book::{Book, How};
pub use self::book::{Point, Start};
use crate::{Engine, EngineError};

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixOptions {
    /// Checkpoints of all sequences together; each takes [`strata_model::qwen4exp::checkpoint_bytes`].
    pub checkpoints: usize,
    /// Within a prompt, so many tokens before its end is the first checkpoint for its own sake.
    pub every_tokens: usize,
}

impl Default for PrefixOptions {
    fn default() -> Self {
        Self { checkpoints: 6, every_tokens: 2048 }
    }
}

/// A point of a text, and what is needed to go on from there.
#[derive(Default)]
struct Kept {
    checkpoint: Checkpoint,
    /// What the last token gave; empty: not known.
    logits: Vec<f32>,
}

/// How a prompt began.
#[derive(Clone, Debug, PartialEq)]
pub struct Begun {
    /// Tokens that are not read again.
    pub reused_tokens: usize,
    /// Logits after the last token of the prompt: there is nothing to read.
    pub logits: Option<Vec<f32>>,
}

/// Checkpoints of the sequences of a host, which numbers these from 0: their *places*.
pub struct Prefixes {
    options: PrefixOptions,
    book: Book,
    kept: BTreeMap<u64, Kept>,
    /// Memory of those that were dropped.
    spare: Vec<Kept>,
}

impl Prefixes {
    /// For so many sequences, all of them empty.
    pub fn new(places: usize, options: PrefixOptions) -> Self {
        let book = Book::new(places, options.checkpoints);
        Self { options, book, kept: BTreeMap::new(), spare: Vec::new() }
    }

    /// Where a prompt begins best. `None`: all places are busy.
    pub fn plan(&self, prompt: &[u32]) -> Option<Start> {
        self.book.choose(prompt)
    }

    /// Begins a prompt as [planned](Self::plan), with nothing begun, kept or ended since. `sequence` is that of
    /// [`Start::place`], and `source` that of [`Start::source`]. The place is busy until it [ends](Self::end).
    ///
    /// # Errors
    /// When memory does not suffice: the sequence is empty then, and its place free.
    ///
    /// # Panics
    /// When the source is missing.
    pub fn begin(
        &mut self,
        model: &mut Model,
        prompt: &[u32],
        start: &Start,
        sequence: &mut Sequence,
        source: Option<&Sequence>,
    ) -> Result<Begun, EngineError> {
        let mut reused_tokens = start.reused_tokens;
        let done = match start.how {
            How::Return { mark } => self.checkpoint(mark, start).and_then(|kept| model.restore(sequence, kept)),
            How::Fork { mark, .. } => {
                let source = source.expect("the sequence to be copied from");
                self.checkpoint(mark, start).and_then(|kept| model.fork(source, kept, sequence))
            }
            How::GoOn if sequence.tokens() == reused_tokens => Ok(()),
            How::GoOn | How::Cold => Err(ModelError::StaleCheckpoint { tokens: reused_tokens }),
        };
        let logits = match (done, start.how) {
            (Ok(()), How::Return { mark } | How::Fork { mark, .. }) if reused_tokens == prompt.len() => {
                self.kept.get(&mark).map(|kept| kept.logits.clone())
            }
            (Ok(()), _) => None,
            (Err(error), _) => {
                model.reset(sequence);
                if !matches!(error, ModelError::StaleCheckpoint { .. }) {
                    self.end(start.place, &[], true);
                    return Err(error.into());
                }
                reused_tokens = 0;
                None
            }
        };
        let how = if reused_tokens == 0 { How::Cold } else { start.how };
        let dropped = self.book.begin(&Start { place: start.place, reused_tokens, how }, prompt);
        self.drop_kept(&dropped);
        Ok(Begun { reused_tokens, logits })
    }

    fn checkpoint(&self, mark: u64, start: &Start) -> Result<&Checkpoint, ModelError> {
        let kept = self.kept.get(&mark).map(|kept| &kept.checkpoint);
        kept.ok_or(ModelError::StaleCheckpoint { tokens: start.reused_tokens })
    }

    /// Points of a prompt after its first `from` tokens where a checkpoint is worth it, ascending; its end is the last one.
    /// A turn ends after each of `turn_ends`.
    pub fn stops(&self, prompt: &[u32], from: usize, turn_ends: &[u32]) -> Vec<(usize, Point)> {
        stops::stops(prompt, from, turn_ends, self.options.every_tokens)
    }

    /// Keeps where the sequence of a place is, after the tokens of `text`; and the logits that the last one gave, so that a
    /// prompt that ends here needs no token read again. What is worth least of all is dropped, which may be this.
    ///
    /// # Errors
    /// When memory does not suffice.
    ///
    /// # Panics
    /// When the sequence has another number of tokens, or none.
    pub fn keep(
        &mut self,
        model: &mut Model,
        place: usize,
        sequence: &Sequence,
        text: &[u32],
        point: Point,
        logits: Option<&[f32]>,
    ) -> Result<(), EngineError> {
        assert!(!text.is_empty() && sequence.tokens() == text.len(), "the text is that of the sequence");
        let added = self.book.add(place, text, point, logits.is_some());
        self.drop_kept(&added.dropped);
        let Some(id) = added.id.filter(|_| !added.is_there) else { return Ok(()) };
        let mut kept = self.kept.remove(&id).or_else(|| self.spare.pop()).unwrap_or_default();
        if let Err(error) = model.checkpoint_into(sequence, &mut kept.checkpoint) {
            self.book.remove(id);
            return Err(error.into());
        }
        kept.logits.clear();
        kept.logits.extend_from_slice(logits.unwrap_or_default());
        self.kept.insert(id, kept);
        Ok(())
    }

    /// [`keep`](Self::keep) with a checkpoint that was taken within a pass, after the tokens of `text`.
    pub fn keep_taken(&mut self, place: usize, text: &[u32], point: Point, checkpoint: Checkpoint) {
        let added = self.book.add(place, text, point, false);
        self.drop_kept(&added.dropped);
        if let Some(id) = added.id.filter(|_| !added.is_there) {
            self.kept.insert(id, Kept { checkpoint, logits: Vec::new() });
        }
    }

    /// A place is free again; its sequence stays as it is. `text` is what it has taken, and `is_whole` whether its state is
    /// that after the last of these tokens: not when it was stopped within a pass, nor when what it wrote was
    /// [routed in another way](crate::Route::Cached) than a prompt would be. A sequence that was emptied has taken nothing.
    pub fn end(&mut self, place: usize, text: &[u32], is_whole: bool) {
        let dropped = self.book.end(place, text, is_whole);
        self.drop_kept(&dropped);
    }

    /// Checkpoints.
    pub fn checkpoints(&self) -> usize {
        self.kept.len()
    }

    /// Memory of all checkpoints, and of dropped ones that is to be used again.
    pub fn bytes(&self) -> usize {
        let bytes = |kept: &Kept| kept.checkpoint.bytes() + kept.logits.capacity() * size_of::<f32>();
        self.kept.values().chain(&self.spare).map(bytes).sum()
    }

    /// Keeps at most so many checkpoints from now on, and gives the memory of others back.
    pub fn shrink(&mut self, checkpoints: usize) {
        let dropped = self.book.set_budget(checkpoints.min(self.options.checkpoints));
        dropped.iter().for_each(|id| _ = self.kept.remove(id));
        self.spare.clear();
    }

    fn drop_kept(&mut self, dropped: &[u64]) {
        self.spare.extend(dropped.iter().filter_map(|id| self.kept.remove(id)));
    }
}

impl Engine {
    /// Gives so many bytes of memory back to the system, when other programs need some: of the arena as long as it is larger than it
    /// must be, since what it loses is read again when it is needed; and only then of checkpoints, those that are worth
    /// least, since they save reading whole prompts again.
    ///
    /// # Errors
    /// When reads under way do not end.
    pub fn relieve(&mut self, prefixes: &mut Prefixes, bytes: u64) -> Result<(), EngineError> {
        let (slot_bytes, slots) = (self.plan().slot_bytes, self.plan().slots);
        let least = self.model.streaming().map_or(slots, |store| store.least_slots() as u64);
        let arena_bytes = bytes.div_ceil(slot_bytes).min(slots.saturating_sub(least)) * slot_bytes;
        self.shrink(slots * slot_bytes - arena_bytes)?;
        let rest_bytes = bytes.saturating_sub(arena_bytes) as usize;
        let count = prefixes.checkpoints();
        if let Some(each_bytes) = prefixes.bytes().checked_div(count).filter(|each| *each > 0 && rest_bytes > 0) {
            prefixes.shrink(count.saturating_sub(rest_bytes.div_ceil(each_bytes)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
