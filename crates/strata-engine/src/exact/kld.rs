//! How far a run's predictions are from recorded ones: Kullback-Leibler divergence over a teacher-forced text.

use std::path::Path;

use super::logits::all_logits;
use super::perplexity::{log_sum_exp, negative_log_likelihood};
use super::tensors::{self, File, Tensor, problem};
use crate::generate::Stop;
use crate::{Engine, EngineError};

/// Distance of a run from a recorded one. Divergences are in nats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Divergence {
    /// Positions compared.
    pub positions: usize,
    /// Mean of KL(recorded || run).
    pub mean_kl: f64,
    /// Largest of them.
    pub max_kl: f64,
    /// Share of positions where both prefer the same token.
    pub top1_agreement: f64,
    /// Perplexity of the text in the run.
    pub perplexity: f64,
    /// Perplexity of the text in the recorded run.
    pub recorded_perplexity: f64,
}

/// Runs `ids` and records them with the logits of every position: `ids` `[T]`, `logits` `[T][vocabulary]`.
///
/// # Errors
/// When the model or writing fails, or `stop` was set.
pub fn save_logits(engine: &mut Engine, ids: &[u32], path: &Path, stop: &Stop) -> Result<(), EngineError> {
    let logits = all_logits(engine, ids, &[], stop)?;
    let shape = [ids.len(), engine.model.vocabulary()];
    tensors::write(path, &[("ids", Tensor::u32(&[ids.len()], ids)), ("logits", Tensor::f32(&shape, &logits))])
}

/// Runs the ids of a recorded file and compares.
///
/// # Errors
/// When the file is no such record or of another vocabulary, the model fails or gives what is no number, or `stop` was set.
pub fn divergence(engine: &mut Engine, path: &Path, stop: &Stop) -> Result<Divergence, EngineError> {
    let file = File::read(path)?;
    let (_, ids) = file.u32("ids")?;
    let (shape, recorded) = file.f32("logits")?;
    let vocabulary = engine.model.vocabulary();
    if shape != [ids.len(), vocabulary] {
        let text = format!(
            "`logits` have the shape {shape:?}; {} ids of this model have [{}, {vocabulary}]",
            ids.len(),
            ids.len()
        );
        return Err(problem(path, &text));
    }
    if ids.len() < 2 {
        return Err(EngineError::TextTooShort { got_tokens: ids.len(), needed_tokens: 2 });
    }
    let logits = all_logits(engine, &ids, &[], stop)?;
    let rows = recorded.chunks_exact(vocabulary).zip(logits.chunks_exact(vocabulary));
    let (mut sum_kl, mut max_kl, mut agreements) = (0.0, 0.0f64, 0);
    let (mut nats, mut recorded_nats) = (0.0, 0.0);
    for (position, (recorded, run)) in rows.enumerate() {
        if recorded.iter().chain(run).any(|logit| !logit.is_finite()) {
            return Err(EngineError::NotFinite { position });
        }
        let kl = kl(recorded, run);
        sum_kl += kl;
        max_kl = max_kl.max(kl);
        agreements += usize::from(best(recorded) == best(run));
        if let Some(next) = ids.get(position + 1) {
            nats += negative_log_likelihood(run, *next);
            recorded_nats += negative_log_likelihood(recorded, *next);
        }
    }
    let (positions, predictions) = (ids.len() as f64, (ids.len() - 1) as f64);
    Ok(Divergence {
        positions: ids.len(),
        mean_kl: sum_kl / positions,
        max_kl,
        top1_agreement: agreements as f64 / positions,
        perplexity: (nats / predictions).exp(),
        recorded_perplexity: (recorded_nats / predictions).exp(),
    })
}

/// `sum_i p_i ln(p_i / q_i)` of the softmax of two rows of logits, in float64.
pub(crate) fn kl(p: &[f32], q: &[f32]) -> f64 {
    let (norm_p, norm_q) = (log_sum_exp(p), log_sum_exp(q));
    let term = |(p, q): (&f32, &f32)| {
        let (ln_p, ln_q) = (f64::from(*p) - norm_p, f64::from(*q) - norm_q);
        ln_p.exp() * (ln_p - ln_q)
    };
    p.iter().zip(q).map(term).sum()
}

/// The preferred token, the lowest id among equals.
pub(super) fn best(logits: &[f32]) -> usize {
    let better = |best: usize, (i, logit): (usize, &f32)| if *logit > logits[best] { i } else { best };
    logits.iter().enumerate().fold(0, better)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_of_known_distributions() {
        // p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4): KL = 1/2 ln 2 - 1/4 ln 2 = 1/4 ln 2.
        let p = [2f32.ln() + 3.0, 3.0, 3.0];
        let q = [-1.0, 2f32.ln() - 1.0, -1.0];
        assert!((kl(&p, &q) - 0.25 * 2f64.ln()).abs() < 1e-6);
        assert_eq!(kl(&p, &p), 0.0);
        assert_eq!((best(&p), best(&q), best(&[1.0, 1.0])), (0, 1, 0));
    }
}
