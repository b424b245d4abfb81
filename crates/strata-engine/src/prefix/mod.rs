//! What is kept of texts, so that prompts that begin like them need not read that again.
//!
//! Owns: checkpoints of the host's sequences under a budget, and the choice of where a prompt begins: from the end of a
//! sequence, back at a checkpoint, as a fork of another sequence, or anew. Promises: never more checkpoints than the budget;
//! an answer is the same bytes wherever its prompt begins; a prompt that was read to its end before needs no token read
//! again. Refuses: to own sequences, and to keep anything without a sequence that has the rows of its caches.
//!
//! For each prompt a host [plans](Prefixes::plan) and [begins](Prefixes::begin), reads on with checkpoints at each of the
//! [stops](Prefixes::stops), which it [hands over](Prefixes::hand_over), writes the answer, [keeps](Prefixes::keep) its end, and
//! [ends](Prefixes::end).

mod book;
mod disk;
mod stops;
mod worth;

use std::collections::BTreeMap;

use strata_model::ModelError;
use strata_model::qwen4exp::{Checkpoint, Model, Sequence};

use self::book::{Book, How, Mark};
pub use self::book::{Point, Start};
pub use self::disk::{Disk, DiskOptions};
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

/// So many tokens, and such a part of those that are in files, are not worth another file: a long conversation would be
/// written again and again.
const LEAST_SAVED_TOKENS: usize = 128;
const LEAST_SAVED_PART: usize = 4;

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

/// What is worth a file and has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsaved {
    mark: u64,
    /// The place whose sequence has the rows.
    pub place: usize,
}

/// Checkpoints of the sequences of a host, which numbers these from 0: their *places*.
pub struct Prefixes {
    options: PrefixOptions,
    book: Book,
    kept: BTreeMap<u64, Kept>,
    /// Memory of those that were dropped.
    spare: Vec<Kept>,
    disk: Option<Disk>,
    /// Marks that the disk did not take.
    refused: Vec<u64>,
}

impl Prefixes {
    /// For so many sequences, all of them empty.
    pub fn new(places: usize, options: PrefixOptions) -> Self {
        let book = Book::new(places, options.checkpoints);
        Self { options, book, kept: BTreeMap::new(), spare: Vec::new(), disk: None, refused: Vec::new() }
    }

    /// With [files](Engine::prefix_disk) for later runs.
    #[must_use]
    pub fn with_disk(mut self, disk: Disk) -> Self {
        self.disk = Some(disk);
        self
    }

    /// Where a prompt begins best. `None`: all places are busy.
    pub fn plan(&self, prompt: &[u32]) -> Option<Start> {
        let found = self.disk.as_ref().and_then(|disk| disk.find(prompt));
        self.book.choose(prompt, found)
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
        let mut loaded = None;
        let stale = ModelError::StaleCheckpoint { tokens: start.reused_tokens };
        let done = match start.how {
            How::Return { mark } => self.checkpoint(mark, start).and_then(|kept| model.restore(sequence, kept)),
            How::Fork { mark, .. } => {
                let source = source.expect("the sequence to be copied from");
                self.checkpoint(mark, start).and_then(|kept| model.fork(source, kept, sequence))
            }
            How::Load { file } => {
                let text = &prompt[..start.reused_tokens];
                loaded = self.disk.as_mut().and_then(|disk| disk.load(file, text, model, sequence));
                if loaded.is_some() { Ok(()) } else { Err(stale) }
            }
            How::GoOn if sequence.tokens() == start.reused_tokens => Ok(()),
            How::GoOn | How::Cold => Err(stale),
        };
        let mut begun = start.clone();
        if let Err(error) = done {
            model.reset(sequence);
            if !matches!(error, ModelError::StaleCheckpoint { .. }) {
                self.end(start.place, &[], true);
                return Err(error.into());
            }
            begun = Start { reused_tokens: 0, how: How::Cold, ..begun };
        }
        let dropped = self.book.begin(&begun, prompt);
        self.drop_kept(&dropped);
        let text = &prompt[..begun.reused_tokens];
        if let Some((checkpoint, logits)) = loaded {
            let added = self.book.add(start.place, text, Point::Within, !logits.is_empty());
            self.drop_kept(&added.dropped);
            if let Some(id) = added.id {
                self.kept.insert(id, Kept { checkpoint, logits: logits.clone() });
            }
            self.trim();
            let is_all = text.len() == prompt.len();
            return Ok(Begun { reused_tokens: text.len(), logits: is_all.then_some(logits) });
        }
        let logits = match begun.how {
            How::Return { mark } | How::Fork { mark, .. } if text.len() == prompt.len() => {
                self.kept.get(&mark).map(|kept| kept.logits.clone())
            }
            _ => None,
        };
        Ok(Begun { reused_tokens: text.len(), logits })
    }

    fn checkpoint(&self, mark: u64, start: &Start) -> Result<&Checkpoint, ModelError> {
        let kept = self.kept.get(&mark).map(|kept| &kept.checkpoint);
        kept.ok_or(ModelError::StaleCheckpoint { tokens: start.reused_tokens })
    }

    /// Points of a prompt after its first `from` tokens where a checkpoint is worth it, ascending; its end is the last one.
    /// A turn ends after each of `turn_ends`. Others are dropped so that there is memory for these: all of them are then
    /// [kept](Self::keep) or [handed over](Self::hand_over), or the place ends. There are none where nothing is to be kept.
    pub fn stops(&mut self, place: usize, prompt: &[u32], from: usize, turn_ends: &[u32]) -> Vec<(usize, Point)> {
        let every_tokens = self.options.every_tokens;
        // One text does not cost all others theirs.
        let most = self.book.budget() - self.book.budget() / 3;
        let wanted = stops::stops(prompt, from, turn_ends, every_tokens, most);
        let (room, dropped) = self.book.expect(place, wanted.len());
        self.drop_kept(&dropped);
        self.trim();
        if room < wanted.len() { stops::stops(prompt, from, turn_ends, every_tokens, room) } else { wanted }
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

    /// [`keep`](Self::keep) of a checkpoint that was taken on the way through a pass.
    ///
    /// # Panics
    /// When it is of another number of tokens, or of none.
    pub fn hand_over(
        &mut self,
        place: usize,
        checkpoint: Checkpoint,
        text: &[u32],
        point: Point,
        logits: Option<&[f32]>,
    ) {
        assert!(!text.is_empty() && checkpoint.tokens() == text.len(), "the text is that of the checkpoint");
        let added = self.book.add(place, text, point, logits.is_some());
        self.drop_kept(&added.dropped);
        if let Some(id) = added.id.filter(|_| !added.is_there) {
            self.kept.insert(id, Kept { checkpoint, logits: logits.unwrap_or_default().to_vec() });
        }
        self.trim();
    }

    /// A place is free again; its sequence stays as it is. `text` is what it has taken, and `is_whole` whether its state is
    /// that after the last of these tokens: not when it was stopped within a pass, nor when what it wrote was
    /// [routed in another way](crate::Route::Cached) than a prompt would be. A sequence that was emptied has taken nothing.
    pub fn end(&mut self, place: usize, text: &[u32], is_whole: bool) {
        let dropped = self.book.end(place, text, is_whole);
        self.drop_kept(&dropped);
    }

    /// What is worth a file most and has none: roots, and the last prompt of each place. For when there is nothing else to
    /// do, and before the program ends.
    pub fn unsaved(&self) -> Option<Unsaved> {
        let disk = self.disk.as_ref()?;
        let is_worth_it = |mark: &&Mark| {
            let saved_tokens = disk.saved_tokens(&mark.text);
            let least_tokens = LEAST_SAVED_TOKENS.max(saved_tokens / LEAST_SAVED_PART);
            let is_new = mark.text.len() >= saved_tokens + least_tokens;
            is_new && mark.point != Point::Within && !self.refused.contains(&mark.id)
        };
        let marks = self.book.marks.iter().filter(is_worth_it);
        let of_place = |mark: &Mark| {
            let is_last = |place: &usize| self.book.places[*place].prompt_tokens == mark.text.len();
            let place = match mark.point {
                Point::Root => mark.holders.first(),
                _ => mark.holders.iter().find(|place| is_last(place)),
            };
            place.map(|place| (mark.point == Point::Root, self.book.places[*place].used, mark.id, *place))
        };
        let (_, _, mark, place) = marks.filter_map(of_place).max()?;
        Some(Unsaved { mark, place })
    }

    /// Writes a file, if all files may take so many bytes, and today's: else nothing is done. `sequence` is that of
    /// [`Unsaved::place`].
    ///
    /// # Errors
    /// When it cannot be written: it will not be tried again.
    pub fn save(&mut self, model: &mut Model, unsaved: Unsaved, sequence: &Sequence) -> Result<(), EngineError> {
        let mark = self.book.marks.iter().find(|mark| mark.id == unsaved.mark);
        let (Some(disk), Some(mark), Some(kept)) = (&mut self.disk, mark, self.kept.get(&unsaved.mark)) else {
            return Ok(());
        };
        let saved = disk.save(model, sequence, &kept.checkpoint, &mark.text, &kept.logits);
        if !matches!(saved, Ok(true)) {
            self.refused.push(unsaved.mark);
        }
        saved.map(|_| ())
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

    /// Checkpoints that came with memory of their own take the place of dropped ones.
    fn trim(&mut self) {
        let most = self.book.budget().saturating_sub(self.kept.len() + self.book.coming());
        self.spare.truncate(most);
    }

    fn drop_kept(&mut self, dropped: &[u64]) {
        self.spare.extend(dropped.iter().filter_map(|id| self.kept.remove(id)));
        self.refused.retain(|id| self.kept.contains_key(id));
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
