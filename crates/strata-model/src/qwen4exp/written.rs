//! Checkpoints with the rows of their sequence as bytes, to be kept in files.
//!
//! Promises: what follows after reading is the same bytes as in the sequence that was written; bytes from anywhere are
//! refused or accepted, and never ask for more memory than a sequence of this model takes. Refuses: to notice that bytes
//! are another model's, or were changed where any number will do: whoever keeps them adds a key and a checksum.
//!
//! All numbers are little-endian: tokens (u64); the window (u32 each, as many as follows from the tokens); for each layer
//! that remembers routes, how many (u32) and their experts (u32 each); for each state its cache's tokens (u64), its values
//! (f32 each, as many as the backend says), and its rows in the backend's own form, in pieces.

use std::io::{Error, ErrorKind, Read, Write};

use strata_backend::SavedState;

use super::checkpoint::Checkpoint;
use super::fork::pieces;
use super::{Model, Sequence};
use crate::ModelError;

impl Model {
    /// Bytes that [`write_checkpoint`](Self::write_checkpoint) writes.
    pub fn written_bytes(&self, sequence: &Sequence, checkpoint: &Checkpoint) -> u64 {
        let lists = checkpoint.window.len() + checkpoint.residency.layers().map(|ids| 1 + ids.len()).sum::<usize>();
        let states = sequence.all_states().zip(&checkpoint.states).map(|(state, saved)| {
            let (tokens, values) = saved.parts();
            let rows = pieces(tokens).map(|piece| self.backend.rows_bytes(state, piece)).sum::<usize>();
            (8 + 4 * values.len() + rows) as u64
        });
        (8 + 4 * lists) as u64 + states.sum::<u64>()
    }

    /// Writes what brings any sequence of this model to where `sequence` was at `checkpoint`.
    ///
    /// # Errors
    /// When `sequence` [cannot](Sequence::can_restore) go back there, or `out` takes no more.
    pub fn write_checkpoint(
        &mut self,
        sequence: &Sequence,
        checkpoint: &Checkpoint,
        out: &mut dyn Write,
    ) -> Result<(), ModelError> {
        if !sequence.can_restore(checkpoint) {
            return Err(ModelError::StaleCheckpoint { tokens: checkpoint.tokens });
        }
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&(checkpoint.tokens as u64).to_le_bytes());
        push(&mut bytes, &checkpoint.window);
        for ids in checkpoint.residency.layers() {
            bytes.extend_from_slice(&(ids.len() as u32).to_le_bytes());
            push(&mut bytes, ids);
        }
        out.write_all(&bytes).map_err(ModelError::Written)?;
        for (state, saved) in sequence.all_states().zip(&checkpoint.states) {
            let (tokens, values) = saved.parts();
            bytes.clear();
            bytes.extend_from_slice(&(tokens as u64).to_le_bytes());
            values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
            out.write_all(&bytes).map_err(ModelError::Written)?;
            for piece in pieces(tokens) {
                bytes.clear();
                self.backend.copy_rows(state, piece, &mut bytes);
                out.write_all(&bytes).map_err(ModelError::Written)?;
            }
        }
        Ok(())
    }

    /// Makes `sequence` what was [written](Self::write_checkpoint), and gives a checkpoint of it. Nothing behind that is
    /// read. After an error the sequence is empty.
    ///
    /// # Errors
    /// When these are not the bytes of a checkpoint of such a model, or they end too early.
    pub fn read_checkpoint(&mut self, sequence: &mut Sequence, from: &mut dyn Read) -> Result<Checkpoint, ModelError> {
        self.reset(sequence);
        sequence.is_torn = true;
        let read = self.read_parts(sequence, from);
        if read.is_err() {
            self.reset(sequence);
        }
        read
    }

    fn read_parts(&mut self, sequence: &mut Sequence, from: &mut dyn Read) -> Result<Checkpoint, ModelError> {
        let mut checkpoint = Checkpoint { residency: sequence.residency.clone(), ..Checkpoint::default() };
        checkpoint.tokens = length(from, self.context_tokens, "tokens")?;
        let looks_back = self.ple.as_ref().map_or(0, |module| module.config.ngram - 1);
        checkpoint.window = numbers(from, looks_back.min(checkpoint.tokens), self.head.vocabulary)?;
        let slots = checkpoint.residency.slots();
        for layer in 0..checkpoint.residency.layers().count() {
            let mut count = [0; 4];
            from.read_exact(&mut count).map_err(ModelError::Written)?;
            let count = u32::from_le_bytes(count) as usize;
            if count > slots {
                return Err(refused("routes"));
            }
            checkpoint.residency.set_layer(layer, numbers(from, count, self.config.moe.experts)?);
        }
        let mut bytes = Vec::new();
        for state in sequence.all_states() {
            let tokens = length(from, checkpoint.tokens, "tokens of a cache")?;
            if tokens > 0 && self.backend.rows_bytes(state, 0..tokens) == 0 {
                return Err(refused("tokens of a state without a cache"));
            }
            take(from, 4 * self.backend.saved_values(state, tokens), &mut bytes)?;
            let values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            checkpoint.states.push(SavedState::from_parts(tokens, values));
            for piece in pieces(tokens) {
                take(from, self.backend.rows_bytes(state, piece.clone()), &mut bytes)?;
                self.backend.append_rows(state, piece.len(), &bytes)?;
            }
        }
        self.restore_copies(sequence, &checkpoint);
        checkpoint.branch = Some(sequence.lineage.branch(checkpoint.tokens));
        Ok(checkpoint)
    }
}

fn push(bytes: &mut Vec<u8>, ids: &[u32]) {
    ids.iter().for_each(|id| bytes.extend_from_slice(&id.to_le_bytes()));
}

fn refused(what: &str) -> ModelError {
    ModelError::Written(Error::new(ErrorKind::InvalidData, format!("{what}: more than this model has")))
}

fn take(from: &mut dyn Read, count: usize, bytes: &mut Vec<u8>) -> Result<(), ModelError> {
    bytes.clear();
    bytes.resize(count, 0);
    from.read_exact(bytes).map_err(ModelError::Written)
}

/// A length of at most `most`.
fn length(from: &mut dyn Read, most: usize, what: &str) -> Result<usize, ModelError> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes).map_err(ModelError::Written)?;
    let length = usize::try_from(u64::from_le_bytes(bytes)).ok().filter(|length| *length <= most);
    length.ok_or_else(|| refused(what))
}

/// Some numbers below `end`.
fn numbers(from: &mut dyn Read, count: usize, end: usize) -> Result<Vec<u32>, ModelError> {
    let mut bytes = Vec::new();
    take(from, 4 * count, &mut bytes)?;
    let numbers: Vec<u32> = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    if numbers.iter().any(|number| *number as usize >= end) {
        return Err(refused("numbers of tokens or experts"));
    }
    Ok(numbers)
}
