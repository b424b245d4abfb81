//! A prompt that is read layer by layer, and may stop between two layers for others.
//!
//! Owns: the order of its passes, and the checkpoints taken on the way. Promises: the same bytes however often it stops, and
//! whatever runs meanwhile; checkpoints in the middle of a pass are those that would be taken between two calls; while
//! nothing else runs, nothing is done between two layers.

use super::checkpoint::Mark;
use super::forward::{Pass, strips};
use super::moce::Routing;
use super::{Checkpoint, Model, Observer, Rows, Sequence, Workspace};
use strata_store::{GatherId, PassKind};

use crate::ModelError;

/// A sequence that takes tokens. It ends by [`Model::finish_reading`] or [`Model::give_up_reading`].
pub struct Reading {
    sequence: Sequence,
    workspace: Workspace,
    ids: Vec<u32>,
    routing: Routing,
    wanted: Rows,
    /// Ids of the passes that are complete.
    taken: usize,
    pass: Option<Pass>,
    layers: usize,
    /// Tokens of a pass.
    pass_tokens: usize,
    /// Table rows of the next pass, between two.
    next_gather: Option<GatherId>,
    /// Positions of checkpoints that are still to be taken, ascending.
    checkpoints_at: Vec<usize>,
    checkpoints: Vec<Checkpoint>,
    logits: Vec<f32>,
}

impl Reading {
    /// Tokens of all that are to be taken, and how many of them are in the sequence: those of whole passes.
    pub fn tokens(&self) -> (usize, usize) {
        (self.ids.len(), self.taken)
    }

    /// The sequence. Between two layers of a pass its states are of no one position; rows of its caches that it had before
    /// are as they were.
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// How much of it is done, 0 to 1: tokens times layers.
    pub fn progress(&self) -> f64 {
        let of_pass = self.pass.as_ref().map_or(0, |pass| pass.rows() * pass.layer());
        let all = (self.ids.len() * self.layers).max(1);
        if self.is_complete() { 1.0 } else { (self.taken * self.layers + of_pass) as f64 / all as f64 }
    }

    /// Whether all is done.
    pub fn is_complete(&self) -> bool {
        self.taken == self.ids.len()
    }

    /// The checkpoints that are complete so far, in order; they are not given again.
    pub fn take_checkpoints(&mut self) -> Vec<Checkpoint> {
        std::mem::take(&mut self.checkpoints)
    }
}

impl Model {
    /// Begins to take `ids` into a sequence in passes that fit into the workspace, as [`forward`](Self::forward) does, with
    /// the logits of the last. A checkpoint is taken at each of the positions `checkpoints_at` that the sequence has from now
    /// on.
    ///
    /// Nothing is computed before the first [`advance`](Self::advance).
    pub fn begin_reading(
        &self,
        sequence: Sequence,
        ids: Vec<u32>,
        workspace: Workspace,
        mut checkpoints_at: Vec<usize>,
    ) -> Reading {
        checkpoints_at.sort_unstable();
        checkpoints_at.dedup();
        Reading { checkpoints_at, ..self.reading(Routing::Exact, sequence, ids, workspace, Rows::Last) }
    }

    pub(super) fn reading(
        &self,
        routing: Routing,
        sequence: Sequence,
        ids: Vec<u32>,
        workspace: Workspace,
        wanted: Rows,
    ) -> Reading {
        Reading {
            pass_tokens: self.options.pass_tokens.min(workspace.rows()),
            sequence,
            workspace,
            ids,
            routing,
            wanted,
            taken: 0,
            pass: None,
            layers: self.layers.len(),
            next_gather: None,
            checkpoints_at: Vec::new(),
            checkpoints: Vec::new(),
            logits: Vec::new(),
        }
    }

    /// Takes a reading through one layer of one pass; `true`: it is complete.
    ///
    /// # Errors
    /// When an id is unknown, the context is full, experts cannot be read, or the observer cancels. The reading can only be
    /// given up then.
    pub fn advance(&mut self, reading: &mut Reading, observer: &mut dyn Observer) -> Result<bool, ModelError> {
        if reading.is_complete() {
            return Ok(true);
        }
        self.advance_pass(reading, observer).inspect_err(|_| self.stop(reading))?;
        Ok(reading.is_complete())
    }

    /// Ends a reading that is complete: its sequence, its workspace, the logits of its last token, and its checkpoints.
    ///
    /// # Panics
    /// When it is not complete.
    pub fn finish_reading(&mut self, reading: Reading) -> (Sequence, Workspace, Vec<f32>, Vec<Checkpoint>) {
        assert!(reading.is_complete(), "a reading that is not complete");
        (reading.sequence, reading.workspace, reading.logits, reading.checkpoints)
    }

    /// Ends a reading, complete or not. Its sequence must go back to a checkpoint or be reset if the reading was within a
    /// pass.
    pub fn give_up_reading(&mut self, mut reading: Reading) -> (Sequence, Workspace) {
        self.stop(&mut reading);
        (reading.sequence, reading.workspace)
    }

    /// A whole reading with a workspace of the model's own, of a sequence that is only lent.
    pub(super) fn take(
        &mut self,
        routing: Routing,
        sequence: &mut Sequence,
        ids: &[u32],
        wanted: Rows,
        logits: &mut Vec<f32>,
        observer: &mut dyn Observer,
    ) -> Result<(), ModelError> {
        let workspace = self.take_workspace()?;
        let mut reading = self.reading(routing, std::mem::take(sequence), ids.to_vec(), workspace, wanted);
        reading.logits = std::mem::take(logits);
        let mut result = Ok(false);
        while let Ok(false) = result {
            result = self.advance(&mut reading, observer);
        }
        *logits = std::mem::take(&mut reading.logits);
        let (taken, workspace) = self.give_up_reading(reading);
        *sequence = taken;
        self.workspace = Some(workspace);
        result.map(|_| ())
    }

    /// The pass at hand ends, if there is one.
    fn stop(&mut self, reading: &mut Reading) {
        if let Some(mut pass) = reading.pass.take() {
            self.give_up(&mut pass);
        }
        self.finish_rows(reading.next_gather.take());
    }

    fn advance_pass(&mut self, reading: &mut Reading, observer: &mut dyn Observer) -> Result<(), ModelError> {
        let begins = reading.pass.is_none();
        if begins {
            self.set_out(reading)?;
        }
        let Reading { sequence, workspace, pass: Some(pass), taken, .. } = reading else {
            unreachable!("it has begun")
        };
        let ids = &reading.ids[*taken..*taken + pass.rows()];
        let sequences = &mut [sequence];
        if begins {
            let next_ids = &reading.ids[*taken + ids.len()..];
            let next_ids = &next_ids[..next_ids.len().min(reading.pass_tokens)];
            self.begin(workspace, pass, sequences, ids, next_ids)?;
        }
        if !self.go_on(workspace, pass, sequences, ids, observer)? {
            return Ok(());
        }
        let is_last = *taken + ids.len() == reading.ids.len();
        match reading.wanted {
            Rows::All => {
                for strip in strips(ids.len(), self.options.strip_rows) {
                    self.logits(workspace, strip, &mut reading.logits)?;
                }
            }
            Rows::Last if is_last => self.logits(workspace, ids.len() - 1..ids.len(), &mut reading.logits)?,
            Rows::Last => {}
        }
        self.remember_for_drafts(workspace, pass, sequences, ids)?;
        reading.checkpoints.extend(pass.take_marks().map(|mark| mark.complete(sequences[0])));
        sequences[0].is_torn = false;
        *taken += ids.len();
        reading.next_gather = pass.next_gather.take();
        reading.pass = None;
        Ok(())
    }

    /// The next pass of a reading.
    fn set_out(&mut self, reading: &mut Reading) -> Result<(), ModelError> {
        let Reading { sequence, taken, .. } = reading;
        let left = &reading.ids[*taken..];
        self.check(sequence, left)?;
        let rows = left.len().min(reading.pass_tokens);
        let (from, to) = (sequence.tokens, sequence.tokens + rows);
        let within = reading.checkpoints_at.partition_point(|position| *position <= to);
        let mut marks = Vec::new();
        for position in reading.checkpoints_at.drain(..within) {
            if position == from {
                reading.checkpoints.push(self.checkpoint(sequence)?);
            } else if position > from {
                marks.push(Mark::new(self.ngram_tokens(), sequence, &left[..position - from]));
            }
        }
        let kind = PassKind::of_rows(rows);
        reading.pass = Some(Pass::of_reading(reading.routing, kind, rows, marks, reading.next_gather.take()));
        sequence.is_torn = true;
        Ok(())
    }
}
