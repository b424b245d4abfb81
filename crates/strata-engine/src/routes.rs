//! Cache-aware routing as a user sets it, and the receipt of what it did.
//!
//! Owns: how many experts of a layer are logically resident, the tokens that go through the model a second time to see
//! what exact routing would have said, and the figures that are shown and exported. Refuses: to choose experts; see
//! `strata-model/src/qwen4exp/moce.rs`.

use std::ops::Sub;

use strata_model::ModelError;
use strata_model::qwen4exp::{Checkpoint, Config, Moce, Model, Observer, RouteCounts, Rows, Sequence};
use strata_store::StreamingOptions;
use strata_store::plan::Plan;
use strata_store::scheduler::Limits;

use crate::exact::kl;
use crate::{Engine, EngineError, EngineOptions};

/// How the experts of written tokens are chosen. Prompts are always routed by the router alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// By the router alone.
    #[default]
    Exact,
    /// With a bonus for experts that are likely in memory: fewer reads, and a text that is a little different.
    Cached,
}

/// How much [`Route::Cached`] prefers experts that are likely in memory: see [`Moce`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoceOptions {
    /// Experts of a layer that are logically resident; `None`: as many as the arena keeps, which is the most.
    pub slots: Option<usize>,
    /// What is added to the router logits of those, for the choice alone.
    pub bonus: f32,
    /// Of a token's experts, so many with the largest weights never give way.
    pub keep: usize,
    /// The most router mass of a token and layer that gives way, of 1.
    pub mass: f32,
    /// Of written tokens, each so-manieth pass is computed with exact routing as well, from the same state, to measure how far predictions
    /// are apart; 0: none.
    pub kl_every: usize,
}

impl Default for MoceOptions {
    /// What docs/routing.md found.
    fn default() -> Self {
        Self { slots: None, bonus: 0.3, keep: 2, mass: 0.5, kl_every: 64 }
    }
}

/// Experts of a layer that an arena keeps while a prompt streams through the rest of it; all, when each has a slot.
fn kept_experts(plan: &Plan, config: &Config, depth: Option<u32>) -> usize {
    if plan.slots >= plan.experts {
        return config.moe.experts;
    }
    let (slots, top_k) = (plan.slots as u32, config.moe.top_k as u32);
    let depth = depth.unwrap_or(StreamingOptions::depth_for(slots as usize, top_k));
    let limits = Limits { record_bytes: Vec::new(), experts: config.moe.experts as u32, top_k, slots, depth };
    // A draft head's experts are one more layer.
    let layers = plan.experts as usize / config.moe.experts.max(1);
    (slots - limits.ring_slots()) as usize / layers.max(1)
}

/// Cache-aware routing as `options` want it; `None`: none.
pub(crate) fn moce(plan: &Plan, config: &Config, options: &EngineOptions) -> Result<Option<Moce>, EngineError> {
    if options.route == Route::Exact {
        return Ok(None);
    }
    let MoceOptions { slots, bonus, keep, mass, .. } = options.moce;
    let most_slots = kept_experts(plan, config, options.model.streaming.depth);
    match slots {
        Some(slots) if slots > most_slots => Err(EngineError::MoceSlots { slots, most_slots }),
        _ => Ok(Some(Moce { slots: slots.unwrap_or(most_slots), bonus, keep, mass })),
    }
}

/// What cache-aware routing did. A *choice* is one expert of one layer for one token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RouteReceipt {
    /// What was counted.
    pub counts: RouteCounts,
    /// Tokens that were routed exactly as well.
    pub kl_tokens: u64,
    /// KL(exact || cached) of the predictions after these, summed, in nats.
    pub kl_nats: f64,
}

/// What came after an `earlier` receipt.
impl Sub for RouteReceipt {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            counts: self.counts - earlier.counts,
            kl_tokens: self.kl_tokens - earlier.kl_tokens,
            kl_nats: self.kl_nats - earlier.kl_nats,
        }
    }
}

/// `part / whole`; `None` when there is nothing.
fn share(part: f64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part / whole as f64)
}

impl RouteReceipt {
    /// Share of the choices that are the router's own.
    pub fn agreement(&self) -> Option<f64> {
        share((self.counts.choices - self.counts.substituted) as f64, self.counts.choices)
    }

    /// Router mass that gave way, of 1: the mean over tokens and layers.
    pub fn substituted_mass(&self) -> Option<f64> {
        share(self.counts.mass, self.counts.layer_rows)
    }

    /// Mean KL(exact || cached) of the predictions after a token, in nats: what the substitutions of that token alone did.
    pub fn mean_kl(&self) -> Option<f64> {
        share(self.kl_nats, self.kl_tokens)
    }

    /// Share of the choices that were logically resident.
    pub fn hit_rate(&self) -> Option<f64> {
        share(self.counts.resident as f64, self.counts.choices)
    }

    /// Choices of a token that were not logically resident, in all layers.
    pub fn misses_per_token(&self) -> Option<f64> {
        share((self.counts.choices - self.counts.resident) as f64, self.counts.rows)
    }

    /// Share of the choices whose records were in memory.
    pub fn arena_hit_rate(&self) -> Option<f64> {
        share(self.counts.held as f64, self.counts.choices)
    }

    /// Choices of a token whose records were not in memory, in all layers.
    pub fn arena_misses_per_token(&self) -> Option<f64> {
        share((self.counts.choices - self.counts.held) as f64, self.counts.rows)
    }

    /// Of the choices that were logically resident, the share whose records were in memory.
    pub fn held_share(&self) -> Option<f64> {
        share(self.counts.resident_held as f64, self.counts.resident)
    }
}

fn set_counting(model: &mut Model, is_counting: bool) {
    model.streaming().into_iter().for_each(|store| store.set_counting(is_counting));
}

/// Now and then looks what exact routing would have said.
pub(crate) struct KlSampler {
    /// 0: never.
    every: usize,
    /// Passes since the last one that was looked at.
    since: usize,
    tokens: u64,
    nats: f64,
    checkpoint: Checkpoint,
}

impl KlSampler {
    pub(crate) fn new(options: &EngineOptions) -> Self {
        let every = if options.route == Route::Cached { options.moce.kl_every } else { 0 };
        Self { every, since: 0, tokens: 0, nats: 0.0, checkpoint: Checkpoint::default() }
    }

    /// Before a token is decoded. When it is time, it is routed exactly from a checkpoint to which the sequence goes back,
    /// so that nothing else is changed by it; rows that the sequence was to remember, it forgets. What it looks up and reads
    /// counts for nothing, but what it brings into memory is there. `exact` becomes the logits of that, or empty.
    pub(crate) fn look(
        &mut self,
        model: &mut Model,
        sequence: &mut Sequence,
        id: u32,
        exact: &mut Vec<f32>,
        observer: &mut dyn Observer,
    ) -> Result<(), ModelError> {
        exact.clear();
        self.since += 1;
        if self.every == 0 || self.since < self.every {
            return Ok(());
        }
        self.since = 0;
        model.checkpoint_into(sequence, &mut self.checkpoint)?;
        set_counting(model, false);
        let result = model.forward(sequence, &[id], Rows::Last, exact, observer);
        set_counting(model, true);
        result?;
        model.restore(sequence, &self.checkpoint)
    }

    /// After it was decoded: the first of `logits` are those after it, `exact` what [`look`](Self::look) gave.
    pub(crate) fn compare(&mut self, exact: &[f32], logits: &[f32]) {
        if !exact.is_empty() {
            self.tokens += 1;
            self.nats += kl(exact, &logits[..exact.len()]);
        }
    }

    /// Decodes a token, and appends the logits after it to `logits`.
    pub(crate) fn decode(
        &mut self,
        model: &mut Model,
        sequence: &mut Sequence,
        id: u32,
        logits: &mut Vec<f32>,
        observer: &mut dyn Observer,
    ) -> Result<(), ModelError> {
        let mut exact = Vec::new();
        self.look(model, sequence, id, &mut exact, observer)?;
        let first = logits.len();
        model.decode(sequence, &[id], Rows::Last, logits, observer)?;
        self.compare(&exact, &logits[first..]);
        Ok(())
    }
}

impl Engine {
    /// How decode prefers experts that are likely in memory; `None`: not at all.
    pub fn moce(&self) -> Option<Moce> {
        self.options.model.moce
    }

    /// What cache-aware routing did so far, in all sessions; `None` without it.
    pub fn route_receipt(&self) -> Option<RouteReceipt> {
        let counts = self.model.route_counts()?;
        Some(RouteReceipt { counts, kl_tokens: self.kl_sampler.tokens, kl_nats: self.kl_sampler.nats })
    }

    /// What it did after an `earlier` receipt.
    pub(crate) fn routed_since(&self, earlier: Option<RouteReceipt>) -> Option<RouteReceipt> {
        Some(self.route_receipt()? - earlier.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::bench::Counted;
    use crate::{GenerateOptions, SamplerParams, Stop};

    #[test]
    fn a_receipt_of_known_counts() {
        let counts = RouteCounts {
            rows: 2,
            layer_rows: 6,
            choices: 24,
            substituted: 3,
            mass: 0.6,
            resident: 18,
            held: 12,
            resident_held: 9,
        };
        let receipt = RouteReceipt { counts, kl_tokens: 4, kl_nats: 0.5 };
        assert_eq!((receipt.agreement(), receipt.hit_rate()), (Some(0.875), Some(0.75)));
        assert!((receipt.substituted_mass().unwrap() - 0.1).abs() < 1e-12);
        assert_eq!((receipt.misses_per_token(), receipt.arena_misses_per_token()), (Some(3.0), Some(6.0)));
        assert_eq!((receipt.arena_hit_rate(), receipt.held_share()), (Some(0.5), Some(0.5)));
        assert_eq!(receipt.mean_kl(), Some(0.125));
        let nothing = receipt - receipt;
        assert_eq!((nothing, nothing.agreement()), (RouteReceipt::default(), None));
    }

    /// What is only measured is no part of what a text used: neither look-ups nor what is kept for the next run.
    #[test]
    fn what_measures_divergence_does_not_count() {
        let mini = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/strata-mini/strata-mini-iq2xs-q4_0.gguf");
        let run = |kl_every| {
            let moce = MoceOptions { slots: Some(10), kl_every, ..MoceOptions::default() };
            let arena_bytes = Some(300 * 10 * 4096);
            let mut options = EngineOptions { route: Route::Cached, moce, arena_bytes, ..EngineOptions::default() };
            // Not what the user's own runs used.
            options.model.streaming.usage = vec![1; 12 * 96];
            let mut engine = Engine::open(&mini, &options).unwrap();
            let mut session = engine.new_session().unwrap();
            let options = GenerateOptions { max_tokens: 20, sampling: SamplerParams::default() };
            engine.generate(&mut session, &[40, 41, 42], &options, &Stop::new(false), |_| ()).unwrap();
            let counted = engine.counted().since(&Counted::default());
            let lookups = counted.resident + counted.ahead + counted.missed;
            let usage = engine.model.streaming().unwrap().usage().counts().to_vec();
            let receipt = engine.route_receipt().unwrap();
            // Eight experts in each of twelve layers for each token: of the prompt, and of those that were written.
            assert_eq!(u64::from(usage.iter().sum::<u32>()), 12 * 96 + (3 + receipt.counts.rows) * 12 * 8);
            (lookups, usage, receipt)
        };
        let (plain, measured) = (run(0), run(2));
        assert_eq!((plain.2.kl_tokens, measured.2.kl_tokens), (0, plain.2.counts.rows / 2));
        assert!(measured.2.kl_tokens > 0);
        assert!(plain.0 == measured.0 && plain.1 == measured.1, "{} {}", plain.0, measured.0);
    }
}
