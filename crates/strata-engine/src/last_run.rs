//! What the last run of a model took, and what it had been expected to take.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strata_store::plan::Plan;

use crate::kept::{self, Keep, ModelFile, is_time};
use crate::{Engine, EngineError, EngineOptions, Rates, Work};

/// A text of more tokens than any context holds was not read by a run.
const MOST_TOKENS: usize = 1 << 24;

/// A run of a model. Nothing of its text is kept.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct LastRun {
    /// The command, as in `run`.
    pub command: String,
    /// When it was, as in `2026-11-30`.
    pub date: String,
    /// The arena that it had.
    pub arena_bytes: u64,
    /// Its prompt.
    pub prompt: Option<Took>,
    /// The tokens that came one by one.
    pub decode: Option<Took>,
}

/// Tokens and their time.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Took {
    /// How many.
    pub tokens: usize,
    /// Seconds of all.
    pub seconds: f64,
    /// Seconds that were expected before; `None`: nothing had been measured yet.
    pub expected_seconds: Option<f64>,
}

impl Took {
    /// How much longer it took than expected, relative to that: 0.1 is a tenth more.
    pub fn off(&self) -> Option<f64> {
        self.expected_seconds.filter(|expected| *expected > 0.0).map(|expected| self.seconds / expected - 1.0)
    }
}

impl Keep for LastRun {
    const KIND: &str = "run";

    fn is_plausible(&self) -> bool {
        self.prompt.iter().chain(&self.decode).all(|took| {
            let is_expected = took.expected_seconds.is_none_or(is_time);
            (1..=MOST_TOKENS).contains(&took.tokens) && is_time(took.seconds) && is_expected
        })
    }
}

impl LastRun {
    /// That of a model file, if there was one.
    ///
    /// # Errors
    /// When the file is no GGUF file, or is damaged.
    pub fn of(path: &Path) -> Result<Option<Self>, EngineError> {
        Ok(kept::load(&ModelFile::open(path)?))
    }
}

/// Keeps what runs of an open model took, also when somebody else has the model.
pub struct RunKeeper {
    file: Arc<ModelFile>,
    path: PathBuf,
    options: EngineOptions,
    plan: Plan,
}

impl Engine {
    /// What keeps how long runs take.
    pub fn run_keeper(&self) -> RunKeeper {
        let (path, plan) = (self.path().to_owned(), self.plan().clone());
        RunKeeper { file: self.gguf.clone(), path, options: self.options.clone(), plan }
    }
}

impl RunKeeper {
    /// Keeps what a run took: tokens and seconds of its prompt, and of the tokens that came one by one. Runs of neither
    /// are not kept.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(
        &self,
        command: &str,
        prompt: Option<(usize, f64)>,
        decode: Option<(usize, f64)>,
    ) -> Result<(), EngineError> {
        let [prompt, decode] = [prompt, decode].map(|part| part.filter(|(tokens, _)| *tokens > 0));
        if prompt.is_none() && decode.is_none() {
            return Ok(());
        }
        let rates: Option<Rates> = kept::load(&self.file);
        let work = Work::planned(&self.file, &self.path, &self.options, self.plan.clone())?;
        let took =
            |(tokens, seconds): (usize, f64), expected_seconds: Option<f64>| Took { tokens, seconds, expected_seconds };
        let expected_prompt = |tokens| Some(work.prompt(tokens, rates.as_ref()?)?.most_s());
        let expected_decode = |tokens| Some(tokens as f64 * work.token_s(rates.as_ref()?)?);
        let run = LastRun {
            command: command.to_owned(),
            date: kept::today(),
            arena_bytes: self.plan.arena_bytes,
            prompt: prompt.map(|part| took(part, expected_prompt(part.0))),
            decode: decode.map(|part| took(part, expected_decode(part.0))),
        };
        kept::save(&self.file, &run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_run_can_have_taken_is_not_believed() {
        let is_plausible = |tokens, seconds, expected_seconds| {
            let took = Some(Took { tokens, seconds, expected_seconds });
            let (command, date) = ("run".to_owned(), String::new());
            LastRun { command, date, arena_bytes: 0, prompt: None, decode: took }.is_plausible()
        };
        assert!(is_plausible(1, 0.1, None) && is_plausible(MOST_TOKENS, 1e5, Some(1e-3)));
        for (tokens, seconds, expected) in [
            (0, 1.0, None),
            (MOST_TOKENS + 1, 1.0, None),
            (1, 0.0, None),
            (1, -1.0, None),
            (1, 1e300, None),
            (1, 1.0, Some(0.0)),
            (1, 1.0, Some(-3.0)),
            (1, f64::NAN, None),
        ] {
            assert!(!is_plausible(tokens, seconds, expected), "{tokens} {seconds} {expected:?}");
        }
    }

    #[test]
    fn field_report_16_the_error_of_a_prediction_is_relative_to_it() {
        let took = |expected_seconds| Took { tokens: 4, seconds: 3.0, expected_seconds };
        assert_eq!(took(Some(2.0)).off(), Some(0.5));
        assert_eq!(took(Some(4.0)).off(), Some(-0.25));
        assert_eq!((took(None).off(), took(Some(0.0)).off()), (None, None));
    }
}
