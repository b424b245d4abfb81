//! What speed a model may be expected to have on this machine: what the drive and computation need at least.
//!
//! Owns: the rates that were measured, and the work that a prompt and a token are. Promises: every part of an expectation
//! is named, and what it rests on. Refuses: to promise what was not measured here.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use strata_model::qwen4exp::Config;
use strata_store::plan::{Drive, MachineFacts, ModelShape, Plan, expected, touched_experts};

use crate::bench::{Floors, Spread};
use crate::kept::{self, Keep, ModelFile, is_time};
use crate::plan::{Question, plan_of};
use crate::{Engine, EngineError, EngineOptions, Stop, usage};

/// Tokens of the prompt that computation is timed with, and of the prompt whose experts get as many rows each.
const TIMED_TOKENS: usize = 64;
const SHOWN_TOKENS: usize = 1024;
/// Runs that are timed, unless they take longer than this together.
const TIMED_RUNS: usize = 5;
const TIMED_FOR: Duration = Duration::from_secs(2);
/// Tokens that must have been counted before what earlier runs used says what the next will use.
const LEAST_COUNTED_TOKENS: u64 = 256;
/// Without counts, an arena that holds the share `s` of the experts is taken to serve the share `s ^ 0.18` of their uses.
/// Measured on the published model: 57 % with 30 of 512 experts a layer (0.60 by this), 71 % with 60 (0.68).
const ASSUMED_EXPONENT: f64 = 0.18;

/// What was measured of this machine with a model.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Rates {
    /// When, as in `2026-11-30`.
    pub date: String,
    /// What the drive reads in a second, of experts; `None`: nothing certain was measured.
    pub drive_bytes_per_second: Option<f64>,
    /// Operations in a second, of a prompt whose experts are in memory.
    pub prompt_flops_per_second: f64,
    /// Seconds to compute one token, with experts in memory and no context.
    pub token_s: f64,
}

impl Rates {
    /// Those of a model file, if they were measured on this machine.
    ///
    /// # Errors
    /// When the file is no GGUF file, or is damaged.
    pub fn of(path: &Path) -> Result<Option<Self>, EngineError> {
        Ok(kept::load(&ModelFile::open(path)?))
    }
}

impl Keep for Rates {
    const KIND: &str = "rates";

    fn is_plausible(&self) -> bool {
        let is_rate = |rate: f64| rate >= 1.0 && rate.is_finite();
        self.drive_bytes_per_second.is_none_or(is_rate)
            && is_rate(self.prompt_flops_per_second)
            && is_time(self.token_s)
    }
}

/// Share of an expert's uses, token by token, that need no read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hits {
    /// 0 to 1.
    pub share: f64,
    /// Whether earlier runs say so; else it is what was measured elsewhere.
    pub is_counted: bool,
}

/// What a model under a plan has to do.
pub struct Work {
    files: Vec<PathBuf>,
    config: Config,
    shape: ModelShape,
    machine: MachineFacts,
    io_depth: u64,
    vocabulary: usize,
    plan: Plan,
    hits: Hits,
}

impl Work {
    /// That of a file's model as it would be opened.
    ///
    /// # Errors
    /// When the file is no model that can be run, or memory does not suffice.
    pub fn of(path: &Path, options: &EngineOptions) -> Result<Self, EngineError> {
        let file = ModelFile::open(path)?;
        let plan = plan_of(&file, path, options, None)?;
        Self::planned(&file, path, options, plan)
    }

    /// That of an open model.
    pub(crate) fn planned(
        file: &ModelFile,
        path: &Path,
        options: &EngineOptions,
        plan: Plan,
    ) -> Result<Self, EngineError> {
        let Question { config, mut shape, machine, request } = Question::of(file, path, options, None)?;
        let vocabulary = file.tensor("token_embd.weight").map_or(0, |table| table.rows() as usize);
        // A token does not go through the layer of a draft head: what drafts save is not foretold, nor what they cost.
        shape.part_bytes.truncate(config.layers);
        let hits = hits(&plan, &shape, &usage::load(file, plan.experts, shape.experts));
        let files = file.files().iter().map(|file| file.path.clone()).collect();
        Ok(Self { files, config, shape, machine, io_depth: request.io_depth, vocabulary, plan, hits })
    }

    /// The files of the model.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// How memory is divided.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How often a token finds its experts in memory.
    pub fn hits(&self) -> Hits {
        self.hits
    }

    /// The least time of a prompt; it is expected to take the larger part. `None`: the drive was not measured.
    pub fn prompt(&self, tokens: usize, rates: &Rates) -> Option<Floors> {
        let compute_s = self.config.flops(0..tokens, 1, self.vocabulary).total() as f64 / rates.prompt_flops_per_second;
        let drive_s = match (self.holds_all(), rates.drive_bytes_per_second) {
            (true, _) => 0.0,
            (false, None) => return None,
            (false, Some(bytes_per_second)) => {
                let drive = Some(Drive { bytes_per_second: bytes_per_second as u64, latency_ns: 0 });
                let machine = MachineFacts { drive, ..self.machine.clone() };
                expected(&self.shape, &machine, self.io_depth, &self.plan, tokens as u64).seconds?
            }
        };
        Some(Floors { drive_s, compute_s })
    }

    /// Bytes of experts that a token is expected to miss.
    pub fn missed_token_bytes(&self) -> f64 {
        let layers_bytes: f64 = self.shape.part_bytes.iter().flatten().map(|bytes| *bytes as f64).sum();
        self.shape.top_k as f64 * layers_bytes * (1.0 - self.hits.share)
    }

    /// The least time of a token that comes alone. `None`: the drive was not measured.
    pub fn token(&self, rates: &Rates) -> Option<Floors> {
        let missed_bytes = self.missed_token_bytes();
        let drive_s = if missed_bytes > 0.0 { missed_bytes / rates.drive_bytes_per_second? } else { 0.0 };
        Some(Floors { drive_s, compute_s: rates.token_s })
    }

    /// Seconds that a token is expected to take: a layer's experts are known when the layer is reached, so reading and
    /// computing are not expected to overlap.
    pub fn token_s(&self, rates: &Rates) -> Option<f64> {
        self.token(rates).map(|floors| floors.drive_s + floors.compute_s)
    }

    fn holds_all(&self) -> bool {
        self.plan.slots >= self.plan.experts
    }
}

/// `shape` is that of the layers which a token goes through, the first that `counts` are of; a draft head's come after them,
/// and share the slots.
fn hits(plan: &Plan, shape: &ModelShape, counts: &[u32]) -> Hits {
    let layers = shape.part_bytes.len();
    let counted = counts.len().min(layers * shape.experts as usize);
    let total: u64 = counts[..counted].iter().map(|count| u64::from(*count)).sum();
    let rows = layers as u64 * shape.top_k;
    if plan.slots >= plan.experts {
        Hits { share: 1.0, is_counted: true }
    } else if counts.len() as u64 == plan.experts && total >= LEAST_COUNTED_TOKENS * rows {
        let mut sorted: Vec<usize> = (0..counts.len()).collect();
        sorted.sort_by_key(|expert| std::cmp::Reverse(counts[*expert]));
        let held = sorted.iter().take(plan.slots as usize).filter(|expert| **expert < counted);
        let held: u64 = held.map(|expert| u64::from(counts[*expert])).sum();
        Hits { share: held as f64 / total as f64, is_counted: true }
    } else {
        Hits { share: plan.share().powf(ASSUMED_EXPONENT), is_counted: false }
    }
}

impl Engine {
    /// Measures computation alone, with any experts that are in memory and routes that are made up, and keeps the rates
    /// with what the drive gave for [expectations](Work) of later runs. The result is there even if it cannot be kept.
    ///
    /// # Errors
    /// When a run fails or is stopped, or the arena does not hold records of every kind; inner: when they cannot be kept.
    pub fn measure_rates(
        &mut self,
        drive_bytes_per_second: Option<f64>,
        stop: &Stop,
    ) -> Result<(Rates, Result<(), EngineError>), EngineError> {
        let tokens = TIMED_TOKENS.min(self.model.context_tokens()).min(self.model.pass_tokens());
        let (layers, moe) = (self.model.config().layers, &self.model.config().moe);
        let (experts, top_k) = (moe.experts, moe.top_k);
        // As many rows for each expert as in a longer prompt: the more, the faster.
        let touched = touched_experts(experts as u64, top_k as u64, SHOWN_TOKENS as u64);
        let used = ((touched * tokens as f64 / SHOWN_TOKENS as f64).round() as usize).clamp(top_k, experts);
        let token_s = self.median_fake(1, stop, |turn| routes(layers, 1, experts, top_k, turn))?;
        let prompt_s = self.median_fake(tokens, stop, |turn| routes(layers, tokens, used, top_k, turn))?;
        let rates = Rates {
            date: kept::today(),
            drive_bytes_per_second,
            prompt_flops_per_second: self.prompt_flops(tokens) as f64 / prompt_s,
            token_s,
        };
        let saved = kept::save(&self.gguf, &rates);
        Ok((rates, saved))
    }

    fn median_fake(
        &mut self,
        tokens: usize,
        stop: &Stop,
        routes: impl Fn(usize) -> Vec<Vec<u32>>,
    ) -> Result<f64, EngineError> {
        let ids: Vec<u32> = (0..tokens).map(|at| (at % self.model.vocabulary()) as u32).collect();
        let (start, mut seconds) = (Instant::now(), Vec::new());
        while seconds.is_empty() || (seconds.len() < TIMED_RUNS && start.elapsed() < TIMED_FOR) {
            seconds.push(self.run_fake_prefill(&ids, routes(seconds.len()), stop)?);
        }
        Ok(Spread::of(seconds).median)
    }
}

/// For each layer `[rows][top_k]` of the first `used` experts, each of them as often as any other.
fn routes(layers: usize, rows: usize, used: usize, top_k: usize, turn: usize) -> Vec<Vec<u32>> {
    let layer = |layer: usize| (0..rows * top_k).map(|at| ((at + (turn + layer) * top_k) % used) as u32).collect();
    (0..layers).map(layer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_routes_have_distinct_experts_and_share_rows_evenly() {
        for (rows, used, top_k) in [(1, 512, 10), (128, 51, 10), (7, 10, 10), (128, 13, 8)] {
            for layer in routes(3, rows, used, top_k, 5) {
                let mut uses = vec![0; used];
                for row in layer.chunks_exact(top_k) {
                    row.iter().for_each(|expert| uses[*expert as usize] += 1);
                    let distinct: std::collections::BTreeSet<_> = row.iter().collect();
                    assert_eq!(distinct.len(), top_k);
                }
                let (least, most) = (uses.iter().min().unwrap(), uses.iter().max().unwrap());
                assert!(most - least <= 1 && layer.len() == rows * top_k, "{uses:?}");
            }
        }
    }

    #[test]
    fn hits_are_counted_where_enough_was_counted() {
        let shape = ModelShape {
            dense_bytes: 1 << 30,
            experts: 4,
            top_k: 1,
            part_bytes: vec![[1 << 20; 3]; 2],
            ..ModelShape::default()
        };
        let machine = MachineFacts {
            total_bytes: None,
            available_bytes: None,
            group_limit_bytes: None,
            group_used_bytes: 0,
            lock_limit_bytes: None,
            page_bytes: 4096,
            threads: 1,
            drive: None,
        };
        let plan = |slots: u64| {
            let arena_bytes = Some(slots * 3 * ((1 << 20) + 4096));
            let request = strata_store::plan::Request { arena_bytes, io_depth: 1, ..Default::default() };
            strata_store::plan::plan(&shape, &machine, &request).unwrap()
        };
        let few = plan(4);
        assert_eq!((few.slots, few.experts), (4, 8));
        let counted = hits(&few, &shape, &[400, 0, 0, 100, 300, 100, 50, 50]);
        assert_eq!(counted, Hits { share: 0.9, is_counted: true });
        let assumed = hits(&few, &shape, &[1, 1, 1, 1, 0, 0, 0, 0]);
        assert!(!assumed.is_counted && (assumed.share - 0.5f64.powf(0.18)).abs() < 1e-12, "{assumed:?}");
        assert!(!hits(&few, &shape, &[1 << 20; 7]).is_counted, "of another model");
        assert_eq!(hits(&plan(8), &shape, &[]).share, 1.0);

        // With a draft head, whose third layer takes two of the four slots: what is left holds 400 and 300 of 1,000.
        let with_head = Plan { experts: 12, ..few };
        let counted = hits(&with_head, &shape, &[400, 0, 0, 100, 300, 100, 50, 50, 900, 800, 0, 0]);
        assert_eq!(counted, Hits { share: 0.7, is_counted: true });
    }
}
