//! Checkpoints: copies of where a sequence was, to which it can go back (spec 6.7).
//!
//! Of what grows with the text (keys and values of attention, keys of its blocks) a checkpoint keeps the length only: the
//! rows themselves stay in the sequence. Everything else is copied: DeltaNet matrices, inputs of convolutions, keys of the
//! open block, the tokens that the n-gram hash looks back at; 118 MB of the published model.
//! Promises: what follows a return is the same bytes as if the sequence had never left; a checkpoint whose rows are gone is
//! refused. Refuses: to bring rows back. Who returns to a checkpoint loses all later ones.
//!
//! After [`Model::checkpoint_window`] the next few rows are remembered as well, so that a sequence can go back to any of
//! them without computing again what lies between: drafts that were wrong are taken back this way.

use std::sync::atomic::{AtomicU64, Ordering};

use strata_backend::{Backend, SavedState, StateId};

use super::forward::look_back;
use super::moce::Residency;
use super::{Model, Sequence};
use crate::ModelError;

/// Where a sequence was. It may be kept as long as one likes, and filled again ([`Model::checkpoint_into`]).
#[derive(Debug, Default)]
pub struct Checkpoint {
    pub(super) tokens: usize,
    pub(super) window: Vec<u32>,
    pub(super) residency: Residency,
    /// Copies of all states.
    pub(super) states: Vec<SavedState>,
    /// The branch of the last token; `None`: the copy is not complete.
    pub(super) branch: Option<u64>,
}

impl Checkpoint {
    /// Tokens that the sequence had taken.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Memory of the copies.
    pub fn bytes(&self) -> usize {
        self.states.iter().map(SavedState::bytes).sum()
    }
}

/// A checkpoint that is taken in the middle of a pass: each layer gives its part when it has come so far.
pub(super) struct Mark {
    /// Rows of the pass before it.
    pub(super) row: usize,
    checkpoint: Checkpoint,
}

impl Mark {
    /// Behind `ids`, which a sequence takes in a pass that begins now. The n-gram hash looks back at `ngram_tokens`.
    pub(super) fn new(ngram_tokens: usize, sequence: &Sequence, ids: &[u32]) -> Self {
        let mut window = sequence.window.clone();
        look_back(ngram_tokens, &mut window, ids);
        let mut states = Vec::new();
        states.resize_with(sequence.all_states().count(), SavedState::default);
        let (tokens, residency) = (sequence.tokens + ids.len(), sequence.residency.clone());
        Self { row: ids.len(), checkpoint: Checkpoint { tokens, window, residency, states, branch: None } }
    }

    /// The rows before it have gone through a layer's mixer and router; `is_ngrams`: and through the n-gram module.
    pub(super) fn save_layer(
        &mut self,
        backend: &mut dyn Backend,
        sequence: &Sequence,
        layer: usize,
        is_ngrams: bool,
    ) -> Result<(), ModelError> {
        self.checkpoint.residency.copy_layer(&sequence.residency, layer);
        self.save(backend, sequence, sequence.states[layer])?;
        match sequence.ple_state.filter(|_| is_ngrams) {
            Some(state) => self.save(backend, sequence, state),
            None => Ok(()),
        }
    }

    /// Copies one of a sequence's states.
    pub(super) fn save(
        &mut self,
        backend: &mut dyn Backend,
        sequence: &Sequence,
        state: StateId,
    ) -> Result<(), ModelError> {
        let at = sequence.all_states().position(|own| own == state).expect("a state of the sequence");
        Ok(backend.save_state(state, &mut self.checkpoint.states[at])?)
    }

    /// The checkpoint, once the pass is complete.
    pub(super) fn complete(mut self, sequence: &Sequence) -> Checkpoint {
        self.checkpoint.branch = Some(sequence.lineage.branch(self.checkpoint.tokens));
        self.checkpoint
    }
}

/// Tells which rows of a sequence's caches are still those that a checkpoint saw. Rows are forgotten from some position on,
/// and what comes after is a new branch; so those before a position are untouched as long as the last of them is of the
/// branch that it was of.
#[derive(Clone, Debug)]
pub(super) struct Lineage {
    /// Of the position before the first token.
    root: u64,
    /// First position and number of each branch, ascending; the first begins at 0.
    branches: Vec<(usize, u64)>,
}

impl Default for Lineage {
    fn default() -> Self {
        Self { root: new_branch(), branches: vec![(0, new_branch())] }
    }
}

impl Lineage {
    /// The branch of the last of `tokens` tokens.
    pub(super) fn branch(&self, tokens: usize) -> u64 {
        match tokens.checked_sub(1) {
            None => self.root,
            Some(last) => self.branches[self.branches.partition_point(|(first, _)| *first <= last) - 1].1,
        }
    }

    /// All tokens but the first `tokens` are forgotten.
    pub(super) fn cut(&mut self, tokens: usize) {
        self.branches.truncate(self.branches.partition_point(|(first, _)| *first < tokens));
        self.branches.push((tokens, new_branch()));
    }
}

/// A number that no branch of any sequence has had.
fn new_branch() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Sequence {
    /// Whether it can go back to `checkpoint`: it is its own, and nothing before it was forgotten since.
    pub fn can_restore(&self, checkpoint: &Checkpoint) -> bool {
        checkpoint.branch == Some(self.lineage.branch(checkpoint.tokens))
    }

    /// Its states are those after `tokens` tokens; what came later is forgotten.
    pub(super) fn go_back(&mut self, tokens: usize) {
        self.tokens = tokens;
        self.is_torn = false;
        self.remembered = None;
        self.lineage.cut(tokens);
    }
}

impl Model {
    /// Copies where a sequence is.
    ///
    /// # Errors
    /// When memory does not suffice, or the sequence was stopped in the middle of a pass.
    pub fn checkpoint(&mut self, sequence: &Sequence) -> Result<Checkpoint, ModelError> {
        let mut checkpoint = Checkpoint::default();
        self.checkpoint_into(sequence, &mut checkpoint)?;
        Ok(checkpoint)
    }

    /// [`checkpoint`](Self::checkpoint) into the memory of one that is no longer wanted.
    ///
    /// # Errors
    /// As [`checkpoint`](Self::checkpoint); there is nothing to go back to then.
    pub fn checkpoint_into(&mut self, sequence: &Sequence, checkpoint: &mut Checkpoint) -> Result<(), ModelError> {
        checkpoint.branch = None;
        if sequence.is_torn {
            return Err(ModelError::Interrupted);
        }
        checkpoint.states.resize_with(sequence.all_states().count(), SavedState::default);
        for (state, saved) in sequence.all_states().zip(&mut checkpoint.states) {
            self.backend.save_state(state, saved)?;
        }
        checkpoint.tokens = sequence.tokens;
        checkpoint.window.clone_from(&sequence.window);
        checkpoint.residency.clone_from(&sequence.residency);
        checkpoint.branch = Some(sequence.lineage.branch(sequence.tokens));
        Ok(())
    }

    /// [`checkpoint_into`](Self::checkpoint_into), and remembers the next `rows` tokens for
    /// [`restore_window`](Self::restore_window): 3 MB each of the published model.
    ///
    /// # Errors
    /// As [`checkpoint`](Self::checkpoint).
    pub fn checkpoint_window(
        &mut self,
        sequence: &mut Sequence,
        checkpoint: &mut Checkpoint,
        rows: usize,
    ) -> Result<(), ModelError> {
        self.checkpoint_into(sequence, checkpoint)?;
        for state in sequence.all_states() {
            self.backend.remember_rows(state, rows);
        }
        sequence.residency.remember_rows(rows);
        sequence.remembered = Some((sequence.tokens, rows));
        Ok(())
    }

    /// Brings a sequence back to the first of the tokens that it took after
    /// [`checkpoint_window`](Self::checkpoint_window): `kept` of them stay.
    ///
    /// # Errors
    /// When it [cannot](Sequence::can_restore) go back so far, or does not remember these tokens: it was stopped in the
    /// middle of a pass, went back before, or was empty.
    pub fn restore_window(
        &mut self,
        sequence: &mut Sequence,
        checkpoint: &Checkpoint,
        kept: &[u32],
    ) -> Result<(), ModelError> {
        let tokens = checkpoint.tokens + kept.len();
        let remembers = |(first, rows)| first == checkpoint.tokens && first > 0 && kept.len() <= rows;
        let is_there = sequence.tokens >= tokens && !sequence.is_torn && sequence.can_restore(checkpoint);
        if !is_there || !sequence.remembered.is_some_and(remembers) {
            return Err(ModelError::StaleCheckpoint { tokens });
        }
        for (state, saved) in sequence.all_states().zip(&checkpoint.states) {
            self.backend.replay_state(state, saved, kept.len());
        }
        sequence.window.clone_from(&checkpoint.window);
        sequence.residency.replay(&checkpoint.residency, kept.len());
        self.look_back(&mut sequence.window, kept);
        sequence.go_back(tokens);
        Ok(())
    }

    /// Brings a sequence back to where it was, also one that was stopped in the middle of a pass. Its later checkpoints are
    /// lost; this one can be returned to again.
    ///
    /// # Errors
    /// When it [cannot](Sequence::can_restore); the sequence stays as it is.
    pub fn restore(&mut self, sequence: &mut Sequence, checkpoint: &Checkpoint) -> Result<(), ModelError> {
        if !sequence.can_restore(checkpoint) {
            return Err(ModelError::StaleCheckpoint { tokens: checkpoint.tokens });
        }
        self.restore_copies(sequence, checkpoint);
        Ok(())
    }

    /// [`restore`](Self::restore) of a sequence whose caches have the rows.
    pub(super) fn restore_copies(&mut self, sequence: &mut Sequence, checkpoint: &Checkpoint) {
        for (state, saved) in sequence.all_states().zip(&checkpoint.states) {
            self.backend.restore_state(state, saved);
        }
        sequence.window.clone_from(&checkpoint.window);
        sequence.residency.clone_from(&checkpoint.residency);
        sequence.go_back(checkpoint.tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_lasts_until_its_last_row_is_forgotten() {
        let mut lineage = Lineage::default();
        let other = Lineage::default();
        let marks: Vec<u64> = (0..=30).map(|tokens| lineage.branch(tokens)).collect();
        assert!((0..=30).all(|tokens| lineage.branch(tokens) != other.branch(tokens)));
        lineage.cut(20);
        let later: Vec<u64> = (0..=30).map(|tokens| lineage.branch(tokens)).collect();
        lineage.cut(10);
        lineage.cut(10);
        for tokens in 0..=30 {
            assert_eq!(lineage.branch(tokens) == marks[tokens], tokens <= 10, "{tokens}");
            assert_eq!(later[tokens] == marks[tokens], tokens <= 20, "{tokens}");
            assert_eq!(lineage.branch(tokens) == later[tokens], tokens <= 10, "{tokens}");
        }
        lineage.cut(0);
        assert!((1..=30).all(|tokens| lineage.branch(tokens) != marks[tokens]));
        assert_eq!(lineage.branch(0), marks[0], "the beginning is always there");
        assert_eq!(lineage.branches.len(), 1);
    }
}
