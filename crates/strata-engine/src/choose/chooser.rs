//! The choice of the next token of one text: penalties, biases and a constraint, then the sampler.
//!
//! Owns: what was written, as far as penalties count it. Promises: with default parameters and nothing else set, exactly
//! the sampler's choices; probabilities are those of the model, whatever was changed for the choice.
//! Refuses: logits that are broken, before anything is changed in them.
//!
//! The order is llama.cpp's: biases, penalties, then the constraint's mask, then the sampler.

use std::collections::{BTreeMap, VecDeque};

use super::sampler::{argmax, keep_top_k, weight};
use super::{Constraint, Sampler, SamplerParams, SamplingError};
use crate::host::Choice;

/// Biases of this and less forbid a token, as clients expect of -100.
const FORBIDS: f32 = -100.0;

/// Chooses the tokens of one text.
#[derive(Clone, Debug)]
pub struct Chooser {
    params: SamplerParams,
    sampler: Sampler,
    bias: Vec<(u32, f32)>,
    constraint: Option<Constraint>,
    top_logprobs: Option<usize>,
    /// How often each token was written.
    written: BTreeMap<u32, u32>,
    /// The last tokens, and how often each is among them.
    window: VecDeque<u32>,
    in_window: BTreeMap<u32, u32>,
    /// Changed logits, kept so that a choice allocates nothing after the first.
    changed: Vec<f32>,
}

impl Chooser {
    /// A chooser for a text of which nothing is written yet. `bias` is added to logits; -100 and less forbid a token.
    /// With `top_logprobs` each choice comes with probabilities: the chosen token's, and those of so many most likely ones.
    ///
    /// # Errors
    /// When a parameter or bias is out of its range.
    pub fn new(
        params: SamplerParams,
        bias: Vec<(u32, f32)>,
        constraint: Option<Constraint>,
        top_logprobs: Option<usize>,
    ) -> Result<Chooser, SamplingError> {
        if let Some(&(id, value)) = bias.iter().find(|(_, value)| !value.is_finite()) {
            return Err(SamplingError::BadBias { id, value });
        }
        Ok(Chooser {
            params,
            sampler: Sampler::new(params)?,
            bias,
            constraint,
            top_logprobs,
            written: BTreeMap::new(),
            window: VecDeque::new(),
            in_window: BTreeMap::new(),
            changed: Vec::new(),
        })
    }

    /// Tells what the text goes on from: the repeat penalty looks at it too, as llama.cpp's does.
    pub fn read(&mut self, prompt: &[u32]) {
        if self.params.repeat_penalty != 1.0 {
            let looked_at = prompt.len().min(self.params.repeat_window as usize);
            prompt[prompt.len() - looked_at..].iter().for_each(|id| self.slide(*id));
        }
    }

    /// Chooses the next token, which counts as written. `logits[id]` is the logit of token `id`.
    ///
    /// # Errors
    /// When the logits are broken, nothing can be chosen, or the grammar cannot be followed any further.
    pub fn choose(&mut self, logits: &[f32]) -> Result<(u32, Option<Choice>), SamplingError> {
        let id = match self.constraint.as_mut().and_then(Constraint::forced) {
            Some(id) => argmax(logits).map(|_| id)?,
            None => self.draw(logits)?,
        };
        if self.params.presence_penalty != 0.0 || self.params.frequency_penalty != 0.0 {
            *self.written.entry(id).or_default() += 1;
        }
        if self.params.repeat_penalty != 1.0 {
            self.slide(id);
        }
        let choice = self.top_logprobs.map(|top| choice(logits, id, top)).transpose()?;
        Ok((id, choice))
    }

    /// Whether nothing but the end can follow: the grammar is complete.
    pub fn is_finished(&self) -> bool {
        self.constraint.as_ref().is_some_and(Constraint::is_finished)
    }

    fn draw(&mut self, logits: &[f32]) -> Result<u32, SamplingError> {
        if self.bias.is_empty() && self.constraint.is_none() && self.written.is_empty() && self.window.is_empty() {
            return self.sampler.sample(logits);
        }
        // A mask would hide that they are broken.
        argmax(logits)?;
        self.changed.clear();
        self.changed.extend_from_slice(logits);
        for &(id, value) in &self.bias {
            let count = logits.len();
            let logit = self.changed.get_mut(id as usize).ok_or(SamplingError::NoSuchToken { id, count })?;
            *logit = if value <= FORBIDS { f32::NEG_INFINITY } else { *logit + value };
        }
        self.penalize();
        let Some(constraint) = &mut self.constraint else { return self.sampler.sample(&self.changed) };
        constraint.mask(&mut self.changed)?;
        loop {
            let id = self.sampler.sample(&self.changed)?;
            if constraint.take(id)? {
                return Ok(id);
            }
            // It would end a tag and go on in a way that may not follow it.
            self.changed[id as usize] = f32::NEG_INFINITY;
            self.sampler.take_back();
        }
    }

    fn penalize(&mut self) {
        for id in self.in_window.keys() {
            if let Some(logit) = self.changed.get_mut(*id as usize) {
                let penalty = self.params.repeat_penalty;
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
        for (id, count) in &self.written {
            if let Some(logit) = self.changed.get_mut(*id as usize) {
                *logit -= *count as f32 * self.params.frequency_penalty + self.params.presence_penalty;
            }
        }
    }

    /// Adds a token to the window.
    fn slide(&mut self, id: u32) {
        self.window.push_back(id);
        *self.in_window.entry(id).or_default() += 1;
        if self.window.len() > self.params.repeat_window as usize
            && let Some(oldest) = self.window.pop_front()
            && let Some(count) = self.in_window.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.in_window.remove(&oldest);
            }
        }
    }
}

/// Natural logarithms of the model's own probabilities: the log-softmax of its logits, in double precision and in the
/// order of ids.
fn choice(logits: &[f32], id: u32, top: usize) -> Result<Choice, SamplingError> {
    let max = argmax(logits)?.logit;
    let log_sum = logits.iter().map(|logit| weight(*logit, max, 1.0)).sum::<f64>().ln();
    let logprob = |logit: f32| ((f64::from(logit) - f64::from(max)) - log_sum) as f32;
    let mut likely = Vec::new();
    if top > 0 {
        keep_top_k(logits, top.min(logits.len()), &mut likely);
    }
    Ok(Choice {
        logprob: logits.get(id as usize).map_or(f32::NEG_INFINITY, |logit| logprob(*logit)),
        top: likely.into_iter().map(|c| (c.id, logprob(c.logit))).collect(),
    })
}
