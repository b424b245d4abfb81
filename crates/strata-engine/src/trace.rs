//! Route traces of a model: which experts the rows of a text use, and what the forecast said.

use strata_model::ModelError;
use strata_model::qwen4exp::{LayerView, Moment, Observer, Rows, Sequence};
use strata_store::sim::{LayerRoutes, Strip, Trace};

use crate::generate::Stop;
use crate::{Engine, EngineError, Sampler, SamplerParams};

/// What comes after a prompt, token by token.
#[derive(Clone, Copy, Debug)]
pub enum Then<'a> {
    /// These tokens.
    Given(&'a [u32]),
    /// What the model writes: at most so many tokens, and none after it ended its turn or the context is full.
    Written {
        /// How many.
        tokens: usize,
        /// How they are chosen.
        sampling: SamplerParams,
    },
}

/// Runs a text as one prompt and records its routes, strip by strip: a trace of strips can be taken in passes of any size.
/// Then it runs and records what comes after it.
///
/// # Errors
/// When there are no ids, the model fails, or `stop` was set.
pub fn record(engine: &mut Engine, ids: &[u32], then: Then<'_>, stop: &Stop) -> Result<Trace, EngineError> {
    if ids.is_empty() {
        return Err(EngineError::EmptyPrompt);
    }
    let config = engine.model.config();
    let trace = Trace {
        layers: config.layers as u32,
        experts: config.moe.experts as u32,
        top_k: config.moe.top_k as u32,
        strips: Vec::new(),
        decode: Vec::new(),
    };
    let mut recorder = Recorder {
        trace,
        strip_rows: engine.options.model.strip_rows.max(1),
        first_strip: 0,
        is_decode: false,
        stop,
        failure: None,
    };
    let mut session = engine.new_session()?;
    let result = recorder.run(engine, &mut session.sequence, ids, then);
    engine.free_session(session);
    // A failure of the recorder is why the pass was given up.
    match recorder.failure {
        Some(failure) => Err(failure.into()),
        None => result.map(|()| recorder.trace),
    }
}

struct Recorder<'a> {
    trace: Trace,
    strip_rows: usize,
    /// Of the pass at hand.
    first_strip: usize,
    /// The prompt is done.
    is_decode: bool,
    stop: &'a Stop,
    /// An observer cannot fail: the first failure ends the pass and is told afterwards.
    failure: Option<ModelError>,
}

impl Observer for Recorder<'_> {
    fn is_cancelled(&self) -> bool {
        self.failure.is_some() || self.stop.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn at(&mut self, moment: Moment, view: &mut LayerView<'_>) {
        if moment == Moment::LayerDone {
            let result = self.layer(view);
            self.failure = self.failure.take().or(result.err());
        }
    }
}

impl Recorder<'_> {
    fn run(
        &mut self,
        engine: &mut Engine,
        sequence: &mut Sequence,
        ids: &[u32],
        then: Then<'_>,
    ) -> Result<(), EngineError> {
        let mut logits = Vec::with_capacity(engine.model.vocabulary());
        engine.model.forward(sequence, ids, Rows::Last, &mut logits, self)?;
        self.is_decode = true;
        let mut take = |engine: &mut Engine, id: u32, logits: &mut Vec<f32>| {
            logits.clear();
            engine.model.decode(sequence, &[id], Rows::Last, logits, self)
        };
        match then {
            Then::Given(ids) => Ok(ids.iter().try_for_each(|id| take(engine, *id, &mut logits))?),
            Then::Written { tokens, sampling } => {
                let mut sampler = Sampler::new(sampling)?;
                // Without a tokenizer, no token ends a turn.
                let ends = engine.tokenizer().map(|tokenizer| tokenizer.end_of_turn_ids().to_vec()).unwrap_or_default();
                let room = engine.model.context_tokens() - ids.len();
                for _ in 0..tokens.min(room) {
                    let id = sampler.sample(&logits)?;
                    if ends.contains(&id) {
                        break;
                    }
                    take(engine, id, &mut logits)?;
                }
                Ok(())
            }
        }
    }

    fn layer(&mut self, view: &mut LayerView<'_>) -> Result<(), ModelError> {
        let forecast = view.forecast()?.map(|routes| routes.ids).unwrap_or_default();
        let Trace { experts, top_k, .. } = self.trace;
        let strips = if self.is_decode { &mut self.trace.decode } else { &mut self.trace.strips };
        let choices = self.strip_rows * top_k as usize;
        if view.layer == 0 {
            self.first_strip = strips.len();
        }
        for (at, demand) in view.routes.ids.chunks(choices).enumerate() {
            if view.layer == 0 {
                let rows = demand.len() as u32 / top_k;
                strips.push(Strip { rows, layers: Vec::new() });
            }
            let forecast = forecast.chunks(choices).nth(at).unwrap_or_default();
            strips[self.first_strip + at].layers.push(LayerRoutes::count(experts, demand, forecast));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use strata_store::sim::replay::{self, Arena, Lookups};
    use strata_store::{Lookahead, StreamingOptions};

    use super::*;
    use crate::EngineOptions;

    /// Of the shipped model with slots for 30 % of its experts: the hits and misses of single tokens after a prompt.
    #[test]
    fn a_replay_of_the_arena_gives_the_engines_own_counts() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/strata-mini");
        let open =
            |options: &EngineOptions| Engine::open(&folder.join("strata-mini-iq2xs-q4_0.gguf"), options).unwrap();
        let stop = Stop::new(false);
        let text: String = std::fs::read_to_string(folder.join("eval.txt")).unwrap().chars().take(1200).collect();
        let mut whole = open(&EngineOptions::default());
        let ids = whole.tokenizer().unwrap().encode(&text, false).unwrap();
        // The end of the text says what is used most.
        let (ids, other) = ids.split_at(ids.len() / 2);
        let usage = record(&mut whole, other, Then::Given(&[]), &stop).unwrap().usage();
        let slots = whole.plan().experts * 3 / 10;
        let mut options =
            EngineOptions { arena_bytes: Some(slots * whole.plan().slot_bytes), ..EngineOptions::default() };
        options.model.streaming.lookahead = Lookahead::Off;
        options.model.streaming.usage = usage.counts().to_vec();

        let (prompt, after) = ids.split_at(30);
        let counted = |after: &[u32]| {
            let mut engine = open(&options);
            engine.load_experts(|_, _| true).unwrap();
            let trace = record(&mut engine, prompt, Then::Given(after), &stop).unwrap();
            let store = engine.model.streaming().unwrap();
            assert_eq!(store.slots() as u64, slots);
            let counts = *store.counts();
            (trace, counts.resident.records, (counts.missed + counts.ahead).records)
        };
        let (_, prompt_hits, prompt_misses) = counted(&[]);
        let (trace, hits, misses) = counted(after);
        let counted = Lookups { hits: hits - prompt_hits, misses: misses - prompt_misses };
        assert_eq!((counted.hits + counted.misses) as usize, 12 * 8 * after.len());

        let depth = StreamingOptions::depth_for(slots as usize, trace.top_k);
        let arena = Arena { slots: slots as u32, depth, pass_tokens: 30, hot: &usage.hottest(slots as usize) };
        let replayed = replay::arena(&trace, &arena).unwrap();
        assert_eq!(replayed.all(), counted);
        let best = replay::best(&trace, slots as u32).all();
        assert!(counted.hits < best.hits && counted.misses > 0, "{counted:?} {best:?}");
    }
}
