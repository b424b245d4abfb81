//! How far a run is from the reference implementation, on the text that is recorded beside the shipped model.

use std::path::Path;

use super::kld::{best, kl};
use super::logits::all_logits;
use super::tensors::{File, problem};
use crate::generate::Stop;
use crate::{Engine, EngineError};

/// Distance from the reference at the last positions of a text. Divergences are in nats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FromReference {
    /// Tokens of the text.
    pub tokens: usize,
    /// Positions compared: the last ones.
    pub positions: usize,
    /// The largest difference of a logit.
    pub max_difference: f64,
    /// Mean of KL(reference || run).
    pub mean_kl: f64,
    /// Positions where both prefer the same token.
    pub same_best: usize,
}

/// Runs the first text of a recorded file (`prompt0.token_ids`) and compares the logits of its last positions
/// (`prompt0.logits_last16`).
///
/// # Errors
/// When the file is no such record or of another vocabulary, the model fails or gives what is no number, or `stop` was set.
pub fn from_reference(engine: &mut Engine, path: &Path, stop: &Stop) -> Result<FromReference, EngineError> {
    let file = File::read(path)?;
    let (_, ids) = file.i32("prompt0.token_ids")?;
    let ids: Vec<u32> = ids.into_iter().map(|id| u32::try_from(id).unwrap_or(u32::MAX)).collect();
    let (shape, recorded) = file.f32("prompt0.logits_last16")?;
    let vocabulary = engine.model.vocabulary();
    let positions = match shape[..] {
        [positions, width] if width == vocabulary && (1..=ids.len()).contains(&positions) => positions,
        _ => {
            let text = format!("logits of the shape {shape:?} are none of {} ids out of {vocabulary}", ids.len());
            return Err(problem(path, &text));
        }
    };
    let logits = all_logits(engine, &ids, &[], stop)?;
    let last = &logits[logits.len() - recorded.len()..];
    let (mut sum_kl, mut max_difference, mut same_best) = (0.0, 0.0f64, 0);
    let rows = recorded.chunks_exact(vocabulary).zip(last.chunks_exact(vocabulary));
    for (position, (recorded, run)) in (ids.len() - positions..).zip(rows) {
        if recorded.iter().chain(run).any(|logit| !logit.is_finite()) {
            return Err(EngineError::NotFinite { position });
        }
        let differences = recorded.iter().zip(run).map(|(a, b)| f64::from((a - b).abs()));
        max_difference = differences.fold(max_difference, f64::max);
        sum_kl += kl(recorded, run);
        same_best += usize::from(best(recorded) == best(run));
    }
    let mean_kl = sum_kl / positions as f64;
    Ok(FromReference { tokens: ids.len(), positions, max_difference, mean_kl, same_best })
}
