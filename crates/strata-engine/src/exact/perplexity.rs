//! Perplexity of a text, in windows that each start anew.

use strata_model::ModelError;
use strata_model::qwen4exp::{Rows, Sequence};

use crate::generate::{Stop, Stoppable};
use crate::{Engine, EngineError, RouteReceipt};

/// Perplexities of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// Windows evaluated.
    pub windows: usize,
    /// Tokens of a window.
    pub window_tokens: usize,
    /// Over every prediction of a window.
    pub all: f64,
    /// Over the predictions of each window's second half, which have at least half a window of context (what
    /// `llama-perplexity` prints).
    pub second_half: f64,
    /// What cache-aware routing did in the second halves; `None` without it.
    pub routes: Option<RouteReceipt>,
}

/// Negative log-likelihoods, summed.
#[derive(Default)]
struct Sum {
    nats: f64,
    count: usize,
}

impl Sum {
    fn add(&mut self, nats: f64) {
        self.nats += nats;
        self.count += 1;
    }

    fn perplexity(&self) -> f64 {
        (self.nats / self.count as f64).exp()
    }
}

/// Evaluates `ids` in whole windows of `window_tokens`; what is left over is not used. After each window `on_window`
/// gets the figures so far and the number of all windows.
///
/// With cache-aware routing, the first half of each window is a prompt, and the second half is decoded token by token.
///
/// # Errors
/// When there is not one whole window, the model fails, or `stop` was set.
pub fn perplexity(
    engine: &mut Engine,
    ids: &[u32],
    window_tokens: usize,
    stop: &Stop,
    mut on_window: impl FnMut(&Perplexity, usize),
) -> Result<Perplexity, EngineError> {
    let windows = ids.chunks_exact(window_tokens.max(2));
    let count = windows.len();
    if count == 0 {
        return Err(EngineError::TextTooShort { got_tokens: ids.len(), needed_tokens: window_tokens.max(2) });
    }
    let vocabulary = engine.model.vocabulary();
    let mut session = engine.new_session()?;
    let (mut all, mut second_half) = (Sum::default(), Sum::default());
    let routed = engine.route_receipt();
    let mut result = Err(EngineError::EmptyPrompt);
    for (i, window) in windows.enumerate() {
        let mut logits = Vec::with_capacity(window.len() * vocabulary);
        engine.model.reset(&mut session.sequence);
        if let Err(error) = engine.window(&mut session.sequence, window, &mut logits, stop) {
            result = Err(error.into());
            break;
        }
        for (position, (row, next)) in logits.chunks_exact(vocabulary).zip(&window[1..]).enumerate() {
            let nats = negative_log_likelihood(row, *next);
            all.add(nats);
            if position >= window.len() / 2 {
                second_half.add(nats);
            }
        }
        let so_far = Perplexity {
            windows: i + 1,
            window_tokens: window.len(),
            all: all.perplexity(),
            second_half: second_half.perplexity(),
            routes: engine.routed_since(routed),
        };
        on_window(&so_far, count);
        result = Ok(so_far);
    }
    engine.free_session(session);
    result
}

impl Engine {
    /// The logits of a window's rows, perhaps without the last, from which nothing is predicted.
    fn window(
        &mut self,
        sequence: &mut Sequence,
        ids: &[u32],
        logits: &mut Vec<f32>,
        stop: &Stop,
    ) -> Result<(), ModelError> {
        let observer = &mut Stoppable(stop);
        if self.moce().is_none() {
            return self.model.forward(sequence, ids, Rows::All, logits, observer);
        }
        let (prompt, decoded) = ids.split_at(ids.len() / 2);
        self.model.forward(sequence, prompt, Rows::All, logits, observer)?;
        let predicting = &decoded[..decoded.len() - 1];
        let Self { model, kl_sampler, .. } = self;
        predicting.iter().try_for_each(|id| kl_sampler.decode(model, sequence, *id, logits, observer))
    }
}

/// `-ln softmax(logits)[token]`, in float64.
pub(super) fn negative_log_likelihood(logits: &[f32], token: u32) -> f64 {
    log_sum_exp(logits) - f64::from(logits[token as usize])
}

pub(super) fn log_sum_exp(logits: &[f32]) -> f64 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    largest + logits.iter().map(|l| (f64::from(*l) - largest).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likelihoods_of_known_logits() {
        let logits = [1f32.ln(), 2f32.ln(), 5f32.ln()];
        assert!((negative_log_likelihood(&logits, 1) - 4f64.ln()).abs() < 1e-6);
        // Far from zero, where exponentials would overflow.
        let logits = logits.map(|l| l + 1000.0);
        assert!((negative_log_likelihood(&logits, 2) - 1.6f64.ln()).abs() < 1e-4);
    }
}
