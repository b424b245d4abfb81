//! The speed of tokens one by one, after a prompt.

use std::time::Instant;

use strata_backend::{BackendError, Profile};
use strata_gguf::{MetadataError, Optional};
use strata_kernels::Cpu;
use strata_kernels::peaks::Peak;
use strata_model::ModelError;
use strata_model::qwen4exp::{Flops, Rows};

use super::Spread;
use crate::generate::Stoppable;
use crate::{Engine, EngineError, Stop};

/// Tokens one by one, each with its logits. They are given, not chosen by the model, so that every run has the same work;
/// choosing is not timed.
#[derive(Clone, Debug)]
pub struct Decode {
    /// The prompt before them, which is not timed.
    pub context: Vec<u32>,
    /// The tokens.
    pub ids: Vec<u32>,
}

/// What was measured of one engine.
#[derive(Clone, Debug)]
pub struct DecodeTiming {
    /// Seconds of each run.
    pub seconds: Vec<f64>,
    /// Tokens of a run.
    pub tokens: usize,
    /// Operations of a run.
    pub flops: Flops,
    /// What bounds the arithmetic in use.
    pub peak: Peak,
    /// Operations per second of the peak: the median of samples taken between the runs.
    pub peak_flops_per_second: f64,
    /// Where the time of all runs went, if that is measured.
    pub profile: Option<Profile>,
}

impl DecodeTiming {
    /// Seconds of the runs.
    pub fn spread(&self) -> Spread {
        Spread::of(self.seconds.iter().copied())
    }

    /// Of the median run.
    pub fn flops_per_second(&self) -> f64 {
        self.flops.total() as f64 / self.spread().median
    }

    /// How much longer this one takes than `other`: the median of the ratios of their runs, pair by pair.
    pub fn ratio(&self, other: &Self) -> f64 {
        Spread::of(self.seconds.iter().zip(&other.seconds).map(|(a, b)| a / b)).median
    }
}

/// Times `repeat` runs of each engine, in turns, after one run of each that is not timed. Every run has a fresh sequence.
/// A timeline has the last of them.
///
/// # Errors
/// When a run fails or is stopped.
pub fn measure(
    engines: &mut [Engine],
    work: &Decode,
    repeat: usize,
    stop: &Stop,
) -> Result<Vec<DecodeTiming>, EngineError> {
    let mut timings = Vec::with_capacity(engines.len());
    let mut peaks: Vec<(Cpu, Vec<f64>)> = Vec::with_capacity(engines.len());
    for engine in engines.iter_mut() {
        engine.time_decode(work, stop)?;
        engine.take_profile();
        let cpu = engine.options.cpu()?;
        timings.push(DecodeTiming {
            seconds: Vec::new(),
            tokens: work.ids.len(),
            flops: engine.flops(work),
            peak: Peak::of(&cpu),
            peak_flops_per_second: 0.0,
            profile: None,
        });
        peaks.push((cpu, Vec::new()));
    }
    for _ in 0..repeat {
        for ((engine, timing), (cpu, peaks)) in engines.iter_mut().zip(&mut timings).zip(&mut peaks) {
            peaks.extend(timing.peak.flops_per_second(cpu));
            timing.seconds.push(engine.time_decode(work, stop)?);
        }
    }
    for ((engine, timing), (_, peaks)) in engines.iter_mut().zip(&mut timings).zip(peaks) {
        timing.peak_flops_per_second = Spread::of(peaks).median;
        timing.profile = engine.take_profile().filter(|profile| profile.layers > 0);
    }
    Ok(timings)
}

impl Engine {
    /// `count` ids to measure with: those that a synthetic file names, else those of `text`. They are repeated when there
    /// are too few.
    ///
    /// # Errors
    /// When there are none, the file has no usable tokenizer for the text, or the context has no room for so many.
    pub fn ids_to_measure(&self, text: Option<&str>, count: usize) -> Result<Vec<u32>, EngineError> {
        let ids = match text {
            Some(text) => self.tokenizer()?.encode(text, false)?,
            None => self.named_ids().unwrap_or_default(),
        };
        if ids.is_empty() {
            return Err(EngineError::TextTooShort { got_tokens: 0, needed_tokens: 1 });
        }
        let context_tokens = self.model.context_tokens();
        if count > context_tokens {
            return Err(ModelError::from(BackendError::ContextFull { needed_tokens: count, context_tokens }).into());
        }
        Ok(ids.into_iter().cycle().take(count).collect())
    }

    /// The ids that a synthetic file names as its prompt.
    pub fn named_ids(&self) -> Option<Vec<u32>> {
        let named: Result<_, MetadataError> = self.gguf.metadata().u64_array("strata.synth.prompt_ids").optional();
        Some(named.ok()??.into_iter().map(|id| id as u32).collect())
    }

    /// Operations that the shapes of `work` ask for.
    fn flops(&self, work: &Decode) -> Flops {
        let (first, tokens) = (work.context.len(), work.ids.len());
        self.model.config().flops(first..first + tokens, tokens, self.model.vocabulary())
    }

    /// Seconds of one run on a fresh sequence.
    ///
    /// # Errors
    /// When it fails or is stopped.
    pub fn time_decode(&mut self, work: &Decode, stop: &Stop) -> Result<f64, EngineError> {
        let mut session = self.new_session()?;
        let result = self.time(&mut session.sequence, work, stop);
        self.free_session(session);
        result
    }

    fn time(
        &mut self,
        sequence: &mut strata_model::qwen4exp::Sequence,
        work: &Decode,
        stop: &Stop,
    ) -> Result<f64, EngineError> {
        let observer = &mut Stoppable(stop);
        let mut logits = Vec::with_capacity(self.model.vocabulary());
        let timeline = self.options.model.timeline.clone();
        if !work.context.is_empty() {
            let profile = self.take_profile();
            self.model.forward(sequence, &work.context, Rows::Last, &mut logits, observer)?;
            self.put_profile(profile);
        }
        timeline.begin();
        let start = Instant::now();
        for id in &work.ids {
            logits.clear();
            self.model.forward(sequence, &[*id], Rows::Last, &mut logits, observer)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        timeline.end();
        Ok(seconds)
    }
}
