//! Logits of every position of a text.

use std::path::Path;

use strata_model::qwen4exp::Rows;

use super::tensors::{self, Tensor};
use crate::generate::{Stop, Stoppable};
use crate::{Engine, EngineError};

/// Writes `logits`, float32 `[ids][vocabulary]`, to a safetensors file. The text is given in pieces of these lengths;
/// what they leave over is one more piece.
///
/// # Errors
/// When the model or writing fails, or `stop` was set.
pub fn logits(engine: &mut Engine, ids: &[u32], pieces: &[usize], path: &Path, stop: &Stop) -> Result<(), EngineError> {
    let values = all_logits(engine, ids, pieces, stop)?;
    let shape = [ids.len(), engine.model.vocabulary()];
    tensors::write(path, &[("logits", Tensor::f32(&shape, &values))])
}

/// `[ids][vocabulary]`.
pub(super) fn all_logits(
    engine: &mut Engine,
    ids: &[u32],
    pieces: &[usize],
    stop: &Stop,
) -> Result<Vec<f32>, EngineError> {
    if ids.is_empty() {
        return Err(EngineError::EmptyPrompt);
    }
    let mut session = engine.new_session()?;
    let mut logits = Vec::new();
    let mut run = || {
        for piece in cut(ids, pieces) {
            engine.model.forward(&mut session.sequence, piece, Rows::All, &mut logits, &mut Stoppable(stop))?;
        }
        Ok(())
    };
    let result = run();
    engine.free_session(session);
    result.map(|()| logits)
}

/// Cuts ids into pieces of these lengths and the rest; lengths that reach past the end are cut short.
pub(super) fn cut<'a>(ids: &'a [u32], pieces: &[usize]) -> Vec<&'a [u32]> {
    let mut rest = ids;
    let mut out = Vec::new();
    for len in pieces.iter().copied().chain([ids.len()]) {
        let (piece, after) = rest.split_at(len.min(rest.len()));
        if !piece.is_empty() {
            out.push(piece);
        }
        rest = after;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn pieces_cover_all_ids() {
        let ids = [1, 2, 3, 4, 5];
        assert_eq!(cut(&ids, &[]), [&ids[..]]);
        assert_eq!(cut(&ids, &[2, 1]), [&[1, 2][..], &[3], &[4, 5]]);
        assert_eq!(cut(&ids, &[0, 4, 9, 7]), [&[1, 2, 3, 4][..], &[5]]);
    }
}
