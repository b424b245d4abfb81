//! The speed of tokens one by one, after a prompt, held against the least time that reading and computing them can take.
//!
//! Where the model streams, a run may be followed by its floors ([`streamed`](super::streamed)). A token's layer cannot be
//! read before it is routed, nor computed before it is read: so here the two floors add up, and the records of the drive
//! floor are read as the run needed them: those of one layer together, and the next layer's when they are all there. The
//! *memory floor* is the time in which memory can be read as often as a token reads it.

use std::time::Instant;

use strata_backend::BackendError;
use strata_gguf::{MetadataError, Optional};
use strata_kernels::peaks::{Peak, read_bytes_per_second};
use strata_model::ModelError;
use strata_model::qwen4exp::{Flops, Observer, Rows, Sequence};
use strata_store::ExpertId;

use super::streamed::{RouteRecorder, Streamed};
use super::{Spread, check, is_set};
use crate::generate::Stoppable;
use crate::machine::Conditions;
use crate::{Engine, EngineError, Memory, RouteReceipt, Stop};

/// Tokens one by one, each with its logits. They are given, not chosen by the model, so that every run has the same work;
/// choosing is not timed.
#[derive(Clone, Debug)]
pub struct Decode {
    /// The prompt before them, which is not timed.
    pub context: Vec<u32>,
    /// The tokens.
    pub ids: Vec<u32>,
}

/// A run of tokens one by one, and its floors.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodeRun {
    /// Tokens of the prompt before them.
    pub context_tokens: usize,
    /// Seconds of each token.
    pub token_s: Vec<f64>,
    /// Its floors, unless they were not wanted.
    pub floors: Option<DecodeFloors>,
    /// What it read.
    pub streamed: Streamed,
    /// What cache-aware routing did, without its divergence, which would take time; `None` without it.
    pub routes: Option<RouteReceipt>,
    /// What bounds the arithmetic in use.
    pub peak: Peak,
    /// Operations per second of the peak, measured after the run.
    pub peak_flops_per_second: Option<f64>,
    /// The most memory that the process ever had.
    pub peak_rss_bytes: Option<u64>,
    /// What the plan allows it.
    pub plan_bytes: u64,
    /// The state of the machine at the end of the run.
    pub conditions: Conditions,
}

/// The least time that a run could take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeFloors {
    /// Seconds to read what the run needed, layer by layer.
    pub drive_s: f64,
    /// Seconds to compute it with everything in memory.
    pub compute_s: f64,
    /// Seconds to read the weights that it uses from memory.
    pub memory_s: f64,
}

/// Tokens after a prompt for which what the prompt left in memory may not be what they need.
const FIRST_TOKENS: usize = 64;
/// Areas of the arena, of 1 GiB each where they are full, in which the speed of memory is measured.
const MEASURED_AREAS: usize = 2;

impl DecodeRun {
    /// Seconds of all tokens.
    pub fn wall_s(&self) -> f64 {
        self.token_s.iter().sum()
    }

    /// How many times as long as its floors it took.
    pub fn ratio(&self) -> Option<f64> {
        self.floors.map(|floors| self.wall_s() / (floors.compute_s + floors.drive_s))
    }

    /// Tokens per second of the first 64 and of all others; `None` without a prompt, or when the others are fewer.
    pub fn first_and_steady(&self) -> Option<(f64, f64)> {
        if self.context_tokens == 0 || self.token_s.len() < 2 * FIRST_TOKENS {
            return None;
        }
        let rate = |token_s: &[f64]| token_s.len() as f64 / token_s.iter().sum::<f64>();
        let (first, steady) = self.token_s.split_at(FIRST_TOKENS);
        Some((rate(first), rate(steady)))
    }
}

/// What a timed piece of work left to know.
struct Timed {
    token_s: Vec<f64>,
    /// Records needed after each token, of all so far.
    needed: Vec<usize>,
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

    /// Operations that the shapes of so many tokens after a prompt ask for.
    pub fn decode_flops(&self, context_tokens: usize, tokens: usize) -> Flops {
        let positions = context_tokens..context_tokens + tokens;
        self.model.config().flops(positions, tokens, self.model.vocabulary())
    }

    /// Times tokens one by one after a prompt, on a fresh sequence, and the floors if they are wanted. Of a model that
    /// streams, the arena holds what the prompt left there, and the hot set as it was after [`warm_up`](Self::warm_up).
    ///
    /// The compute floor goes on in the same text, so that the prompt is not read again: it needs as much context once
    /// more.
    ///
    /// # Errors
    /// When a run fails or is stopped.
    pub fn run_decode(&mut self, work: &Decode, with_floors: bool, stop: &Stop) -> Result<DecodeRun, EngineError> {
        let is_streaming = self.streams();
        let context_tokens = self.model.context_tokens();
        let needed_tokens = work.context.len() + work.ids.len() * if is_streaming && with_floors { 2 } else { 1 };
        if needed_tokens > context_tokens {
            return Err(ModelError::from(BackendError::ContextFull { needed_tokens, context_tokens }).into());
        }
        if is_streaming && let Some(store) = self.model.streaming() {
            store.forget_all().map_err(ModelError::from)?;
            self.load_experts(|_, _| !is_set(stop))?;
            check(stop)?;
        }
        let mut session = self.new_session()?;
        let result = self.decode_in(&mut session.sequence, work, with_floors, stop);
        self.free_session(session);
        check(stop)?;
        result
    }

    fn decode_in(
        &mut self,
        sequence: &mut Sequence,
        work: &Decode,
        with_floors: bool,
        stop: &Stop,
    ) -> Result<DecodeRun, EngineError> {
        if !work.context.is_empty() {
            let (profile, mut logits) = (self.take_profile(), Vec::with_capacity(self.model.vocabulary()));
            self.model.forward(sequence, &work.context, Rows::Last, &mut logits, &mut Stoppable(stop))?;
            self.take_profile();
            self.put_profile(profile);
        }
        let is_streaming = self.streams();
        if let Some(store) = self.model.streaming() {
            store.keep_needed(true);
        }
        let (before, routed) = (self.counted(), self.route_receipt());
        let (mut routes, conditions_before) = (RouteRecorder::new(stop), Conditions::now());
        let timeline = self.options.model.timeline.clone();
        timeline.begin();
        let timed = self.time_tokens(sequence, &work.ids, &mut routes)?;
        timeline.end();
        let (after, routed) = (self.counted(), self.routed_since(routed));
        let (conditions, peak_rss_bytes) = (Conditions::now().since(&conditions_before), Memory::peak_rss_bytes());
        let floors = match with_floors {
            false => None,
            true if !is_streaming => {
                // Nothing is read: the run is its own floor.
                let compute_s = timed.token_s.iter().sum();
                Some(DecodeFloors { drive_s: 0.0, compute_s, memory_s: self.memory_floor(work.ids.len())? })
            }
            true => {
                let needed = self.model.streaming().map(|store| store.needed().to_vec()).unwrap_or_default();
                let compute_s = self.with_fake_stream(routes.layers, |engine| {
                    Ok(engine.time_tokens(sequence, &work.ids, &mut Stoppable(stop))?.token_s.iter().sum())
                })?;
                let memory_s = self.memory_floor(work.ids.len())?;
                Some(DecodeFloors { drive_s: self.drive_floor(&needed, &timed.needed, stop)?, compute_s, memory_s })
            }
        };
        let cpu = self.options.cpu()?;
        let peak = Peak::of(&cpu);
        Ok(DecodeRun {
            context_tokens: work.context.len(),
            token_s: timed.token_s,
            floors,
            streamed: after.since(&before),
            routes: routed,
            peak,
            peak_flops_per_second: peak.flops_per_second(&cpu),
            peak_rss_bytes,
            plan_bytes: self.plan().total_bytes(),
            conditions,
        })
    }

    fn time_tokens(
        &mut self,
        sequence: &mut Sequence,
        ids: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<Timed, EngineError> {
        let mut logits = Vec::with_capacity(self.model.vocabulary());
        let mut timed = Timed { token_s: Vec::with_capacity(ids.len()), needed: Vec::with_capacity(ids.len()) };
        for id in ids {
            let start = Instant::now();
            logits.clear();
            self.model.decode(sequence, &[*id], Rows::Last, &mut logits, observer)?;
            timed.token_s.push(start.elapsed().as_secs_f64());
            timed.needed.push(self.model.streaming().map_or(0, |store| store.needed().len()));
        }
        Ok(timed)
    }

    /// Seconds to read the records of each token's layers again, those of a layer together.
    fn drive_floor(&mut self, needed: &[ExpertId], ends: &[usize], stop: &Stop) -> Result<f64, EngineError> {
        let (mut start, mut seconds) = (0, 0.0);
        for end in ends {
            for layer in needed[start..*end].chunk_by(|a, b| a.layer == b.layer) {
                let Some(store) = self.model.streaming() else { break };
                seconds += store.replay(layer, &|| is_set(stop)).map_err(ModelError::from)?.as_secs_f64();
            }
            check(stop)?;
            start = *end;
        }
        Ok(seconds)
    }

    /// Seconds in which memory is read as much as tokens do.
    fn memory_floor(&mut self, tokens: usize) -> Result<f64, EngineError> {
        let token_bytes = strata_model::qwen4exp::token_bytes(&self.gguf, self.model.config())?;
        let cpu = self.options.cpu()?;
        let Some(store) = self.model.streaming() else { return Ok(0.0) };
        let areas = store.memory().map_err(ModelError::from)?.take(MEASURED_AREAS);
        let rate = Spread::of(areas.map(|area| read_bytes_per_second(&cpu, area))).max;
        Ok(tokens as f64 * token_bytes as f64 / rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(context_tokens: usize, token_s: Vec<f64>) -> DecodeRun {
        DecodeRun {
            context_tokens,
            token_s,
            floors: Some(DecodeFloors { drive_s: 3.0, compute_s: 5.0, memory_s: 1.0 }),
            streamed: Streamed::default(),
            routes: None,
            peak: Peak::ALL[0],
            peak_flops_per_second: None,
            peak_rss_bytes: None,
            plan_bytes: 0,
            conditions: Conditions::default(),
        }
    }

    #[test]
    fn floors_add_up_and_first_tokens_are_told_apart() {
        // 64 tokens of a quarter of a second, 64 of an eighth.
        let timed = run(1, [[0.25; 64], [0.125; 64]].concat());
        assert_eq!((timed.wall_s(), timed.ratio()), (24.0, Some(3.0)));
        assert_eq!(timed.first_and_steady(), Some((4.0, 8.0)));
        assert_eq!(run(0, vec![1.0; 128]).first_and_steady(), None);
        assert_eq!(run(9, vec![1.0; 127]).first_and_steady(), None);
    }
}
