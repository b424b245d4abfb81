//! Choosing the next token from a row of logits.
//!
//! Owns: the truncation rules (top-k, top-p, min-p), temperature and the random numbers of a draw.
//! Promises: the same logits, parameters, seed and number of earlier draws give the same token on every platform.
//! Only IEEE additions, multiplications and divisions are used (also inside `exp`), sums run in a fixed order, and
//! among equal logits the lowest id comes first everywhere.
//! Refuses: logits that hold NaN or +inf, or only -inf. A -inf logit masks its token: it is never chosen.
//!
//! The order of the steps is llama.cpp's: top-k, then top-p on the softmax of what is left, then min-p, then
//! temperature. Temperature comes last, so it never changes which tokens can be drawn.

use std::cmp::Ordering;
use std::ops::RangeInclusive;

use thiserror::Error;

use crate::random;

/// How to choose. The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerParams {
    /// Divides the logits before the draw. Zero or less means greedy: the largest logit, the lowest id among equals.
    pub temperature: f32,
    /// Keep the `top_k` largest logits; 0 keeps all, 1 is greedy.
    pub top_k: u32,
    /// Keep the shortest run of most probable tokens whose probabilities sum to at least this, in `0..=1`; 1 keeps
    /// all. At least one token stays.
    pub top_p: f32,
    /// Keep tokens at least this fraction as probable as the most probable one, in `0..=1`; 0 keeps all.
    pub min_p: f32,
    /// Seed of the draws.
    pub seed: u64,
    /// Divides the logits above zero, and multiplies those below, of tokens among the last
    /// [`repeat_window`](Self::repeat_window), in `0.1..=10`; 1 changes nothing (llama.cpp's `repeat_penalty`).
    pub repeat_penalty: f32,
    /// How many of the last tokens are looked at for `repeat_penalty`.
    pub repeat_window: u32,
    /// Taken off the logits of all tokens that were written, in `-2..=2` (OpenAI's `presence_penalty`).
    pub presence_penalty: f32,
    /// Taken off the logit of a token for each time that it was written, in `-2..=2` (OpenAI's `frequency_penalty`).
    pub frequency_penalty: f32,
}

impl Default for SamplerParams {
    fn default() -> Self {
        SamplerParams {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
            repeat_penalty: 1.0,
            repeat_window: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
        }
    }
}

/// Why a sampler could not be made, or could not choose.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SamplingError {
    /// A parameter is out of its range.
    #[error("sampling: `{name}` must be {expected}, got {got}")]
    BadParam {
        /// The parameter.
        name: &'static str,
        /// The values it may have, in words.
        expected: &'static str,
        /// The value given.
        got: f32,
    },
    /// There is nothing to choose from.
    #[error("sampling: the row of logits is empty")]
    NoLogits,
    /// A logit is NaN or +inf.
    #[error("sampling: the logit of token {id} is {value}: the model's arithmetic or its file is broken")]
    NotFinite {
        /// The first such token.
        id: usize,
        /// Its logit.
        value: f32,
    },
    /// All logits are -inf.
    #[error("sampling: all {count} tokens are masked (every logit is -inf)")]
    AllMasked {
        /// Number of logits.
        count: usize,
    },
    /// A bias names a token that the model has not.
    #[error("sampling: there is a bias for token {id}, but the model has only {count} tokens")]
    NoSuchToken {
        /// The token.
        id: u32,
        /// Number of logits.
        count: usize,
    },
    /// A bias is no number.
    #[error("sampling: the bias of token {id} is {value}, expected a finite number")]
    BadBias {
        /// The token.
        id: u32,
        /// The value given.
        value: f32,
    },
    /// The grammar became too much work, or broke.
    #[error("the answer's grammar cannot be followed any further: {0}; simplify the schema or grammar")]
    Grammar(String),
}

/// A token that may still be drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) logit: f32,
}

impl Candidate {
    /// Most probable first, the lowest id first among equals.
    fn order(&self, other: &Candidate) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.id.cmp(&other.id))
    }
}

/// Draws tokens; remembers only how many it has drawn.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplerParams,
    draws: u64,
    /// Kept between calls so that a draw allocates nothing after the first.
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// Checks the parameters. Penalties are for a [`Chooser`](crate::Chooser), which knows what was written.
    pub fn new(params: SamplerParams) -> Result<Sampler, SamplingError> {
        let within = |name, got: f32, range: RangeInclusive<f32>, expected| match range.contains(&got) {
            true => Ok(()),
            false => Err(SamplingError::BadParam { name, expected, got }),
        };
        if !params.temperature.is_finite() {
            return Err(SamplingError::BadParam {
                name: "temperature",
                expected: "a finite number",
                got: params.temperature,
            });
        }
        within("top_p", params.top_p, 0.0..=1.0, "between 0 and 1")?;
        within("min_p", params.min_p, 0.0..=1.0, "between 0 and 1")?;
        within("repeat_penalty", params.repeat_penalty, 0.1..=10.0, "between 0.1 and 10")?;
        within("presence_penalty", params.presence_penalty, -2.0..=2.0, "between -2 and 2")?;
        within("frequency_penalty", params.frequency_penalty, -2.0..=2.0, "between -2 and 2")?;
        Ok(Sampler { params, draws: 0, candidates: Vec::new() })
    }

    /// Chooses a token: `logits[id]` is the logit of token `id`.
    ///
    /// A greedy choice uses no random number; any other uses exactly one, whatever the logits.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SamplingError> {
        let best = argmax(logits)?;
        if self.params.temperature <= 0.0 || self.params.top_k == 1 {
            return Ok(best.id);
        }
        let unit = unit_draw(self.params.seed, self.draws);
        self.draws += 1;

        let candidates = &mut self.candidates;
        candidates.clear();
        match self.params.top_k as usize {
            k if k > 0 && k < logits.len() => keep_top_k(logits, k, candidates),
            _ => candidates.extend(unmasked(logits)),
        }
        if self.params.top_p < 1.0 {
            keep_top_p(candidates, f64::from(self.params.top_p), best.logit);
        }
        if self.params.min_p > 0.0 {
            let min_p = f64::from(self.params.min_p);
            candidates.retain(|c| weight(c.logit, best.logit, 1.0) >= min_p);
        }
        Ok(draw(candidates, f64::from(self.params.temperature), best, unit))
    }

    /// Forgets the last draw: the next one uses its random number again.
    pub(super) fn take_back(&mut self) {
        self.draws = self.draws.saturating_sub(1);
    }
}

/// The largest logit, the lowest id among equals. All logits are checked on the way.
pub(super) fn argmax(logits: &[f32]) -> Result<Candidate, SamplingError> {
    let mut best = Candidate { id: 0, logit: f32::NEG_INFINITY };
    for (id, &logit) in logits.iter().enumerate() {
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(SamplingError::NotFinite { id, value: logit });
        }
        if logit > best.logit {
            best = Candidate { id: id as u32, logit };
        }
    }
    match (logits.len(), best.logit == f32::NEG_INFINITY) {
        (0, _) => Err(SamplingError::NoLogits),
        (count, true) => Err(SamplingError::AllMasked { count }),
        _ => Ok(best),
    }
}

fn unmasked(logits: &[f32]) -> impl Iterator<Item = Candidate> {
    // Adding zero turns -0 into +0, which the total order would otherwise put below it.
    let candidate = |(id, &logit): (usize, &f32)| Candidate { id: id as u32, logit: logit + 0.0 };
    logits.iter().enumerate().map(candidate).filter(|c| c.logit != f32::NEG_INFINITY)
}

/// Leaves the `k` first candidates in `kept`, in order.
///
/// One pass over the logits: most of them are turned away by one comparison with the k-th best so far.
pub(super) fn keep_top_k(logits: &[f32], k: usize, kept: &mut Vec<Candidate>) {
    let limit = k.saturating_mul(2).max(64);
    let mut threshold = f32::NEG_INFINITY;
    for candidate in unmasked(logits) {
        // Ids ascend, so a candidate that only equals the k-th best comes after it.
        if candidate.logit > threshold {
            kept.push(candidate);
            if kept.len() >= limit {
                kept.select_nth_unstable_by(k - 1, Candidate::order);
                kept.truncate(k);
                threshold = kept[k - 1].logit;
            }
        }
    }
    kept.sort_unstable_by(Candidate::order);
    kept.truncate(k);
}

/// Leaves the shortest run of first candidates whose probabilities sum to at least `top_p`, in order.
fn keep_top_p(candidates: &mut Vec<Candidate>, top_p: f64, max: f32) {
    let total: f64 = candidates.iter().map(|c| weight(c.logit, max, 1.0)).sum();
    // The run is usually short: sort a growing prefix rather than a whole vocabulary.
    let mut sorted = 0;
    let mut sum = 0.0;
    let mut next = 256;
    while sorted < candidates.len() {
        let end = next.min(candidates.len());
        let rest = &mut candidates[sorted..];
        if end - sorted < rest.len() {
            rest.select_nth_unstable_by(end - sorted, Candidate::order);
        }
        rest[..end - sorted].sort_unstable_by(Candidate::order);
        for (index, candidate) in candidates.iter().enumerate().take(end).skip(sorted) {
            sum += weight(candidate.logit, max, 1.0);
            if sum >= top_p * total {
                candidates.truncate(index + 1);
                return;
            }
        }
        sorted = end;
        next *= 4;
    }
}

/// The candidate at which the running sum of softmax(logit / temperature) passes `unit`, in `0..1`.
fn draw(candidates: &[Candidate], temperature: f64, best: Candidate, unit: f64) -> u32 {
    let weights = || candidates.iter().map(|c| (c.id, weight(c.logit, best.logit, temperature)));
    let target = unit * weights().map(|(_, w)| w).sum::<f64>();
    let mut sum = 0.0;
    let mut chosen = best.id;
    for (id, w) in weights() {
        if w > 0.0 {
            chosen = id;
            sum += w;
            if target < sum {
                break;
            }
        }
    }
    chosen
}

/// exp((logit - max) / temperature): 1 for the largest logit, less for the others.
pub(super) fn weight(logit: f32, max: f32, temperature: f64) -> f64 {
    exp((f64::from(logit) - f64::from(max)) / temperature)
}

/// e^x for x <= 0, to within a few units of the last place; 0 below -708.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2, and e^r by its Taylor series. The system's `exp` differs between platforms in
/// the last bit, which is enough to change a drawn token.
fn exp(x: f64) -> f64 {
    // ln 2 in two parts: the first has enough trailing zeros for `n * LN_2_HIGH` to be exact.
    const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    if x < -708.0 {
        return 0.0;
    }
    let n = (x * std::f64::consts::LOG2_E).round();
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    // 13 terms: r^14 / 14! is below 5e-18.
    let series = (1..=13).rev().fold(1.0, |sum, term| 1.0 + sum * r / f64::from(term));
    series * f64::from_bits(((n as i64 + 1023) as u64) << 52)
}

/// Number `index` of the stream of `seed`, uniform in `0..1`. The state after `index` steps is known without taking them.
fn unit_draw(seed: u64, index: u64) -> f64 {
    random::unit(random::number(seed.wrapping_add(index.wrapping_add(1).wrapping_mul(random::STEP))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_agrees_with_the_system_library() {
        for step in 0..=7080 {
            let x = -f64::from(step) / 10.0;
            let (got, expected) = (exp(x), x.exp());
            assert!(
                (got - expected).abs() <= 4.0 * f64::EPSILON * expected,
                "exp({x}): {got:e}, expected {expected:e}"
            );
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-709.0), 0.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
    }

    #[test]
    fn draws_are_splitmix64() {
        // The first outputs of the reference implementation for seed 1234567, as published with it.
        let expected = [6457827717110365317u64, 3203168211198807973, 9817491932198370423];
        for (index, value) in expected.into_iter().enumerate() {
            assert_eq!(unit_draw(1_234_567, index as u64), (value >> 11) as f64 / 9_007_199_254_740_992.0);
        }
    }
}
