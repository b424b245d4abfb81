//! Forks: a sequence becomes what another one was at a checkpoint, rows of its caches and all.
//!
//! Promises: what follows is the same bytes as in the other sequence; both go their own ways from there. The rows that they
//! have in common are the same bytes in both, so a checkpoint of these holds for both.

use std::ops::Range;

use strata_backend::ROWS_TOGETHER;

use super::{Checkpoint, Model, Sequence};
use crate::ModelError;

/// Rows that are copied at a time: what the copy needs of memory does not grow with the text.
const ROWS_AT_A_TIME: usize = 1024;
const _: () = assert!(ROWS_AT_A_TIME.is_multiple_of(ROWS_TOGETHER));

/// The tokens of a cache in the pieces that they are copied in.
pub(super) fn pieces(tokens: usize) -> impl Iterator<Item = Range<usize>> {
    (0..tokens).step_by(ROWS_AT_A_TIME).map(move |first| first..tokens.min(first + ROWS_AT_A_TIME))
}

impl Model {
    /// Makes `into` what `from` was at `checkpoint`; what it was before is lost. `from` may have gone on since, and may have
    /// been stopped in the middle of a pass. Checkpoints of `from` that are no later than this one hold for `into`, too.
    ///
    /// # Errors
    /// When `from` [cannot](Sequence::can_restore) go back there: `into` stays as it is then.
    pub fn fork(&mut self, from: &Sequence, checkpoint: &Checkpoint, into: &mut Sequence) -> Result<(), ModelError> {
        if !from.can_restore(checkpoint) {
            return Err(ModelError::StaleCheckpoint { tokens: checkpoint.tokens });
        }
        self.reset(into);
        into.is_torn = true;
        let mut rows = Vec::new();
        for ((source, target), saved) in from.all_states().zip(into.all_states()).zip(&checkpoint.states) {
            for piece in pieces(saved.parts().0) {
                rows.clear();
                self.backend.copy_rows(source, piece.clone(), &mut rows);
                self.backend.append_rows(target, piece.len(), &rows)?;
            }
        }
        into.lineage = from.lineage.clone();
        self.restore_copies(into, checkpoint);
        Ok(())
    }
}
