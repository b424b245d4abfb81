//! The arena that was found to be the fastest for a model on this machine.
//!
//! More is not always better: what is not in the arena serves files, and what is beyond free memory becomes page faults.
//! Promises: of sizes that are equally fast the smallest is chosen. Refuses: to guess; only sizes that were timed count.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::EngineError;
use crate::bench::Spread;
use crate::kept::{self, Keep, ModelFile, is_time};

/// A smaller arena is as good as one that is faster by so much, relative to it.
const AS_GOOD: f64 = 0.03;

/// What was found.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Calibration {
    /// The arena to use.
    pub arena_bytes: u64,
    /// When it was found, as in `2026-11-30`.
    pub date: String,
    /// Tokens that were timed in each run.
    pub tokens: usize,
    /// All that was tried.
    pub sizes: Vec<SizeTiming>,
}

/// Runs with one size of the arena.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct SizeTiming {
    /// The arena.
    pub arena_bytes: u64,
    /// Seconds of each run.
    pub seconds: Vec<f64>,
}

impl SizeTiming {
    /// The median of its runs, of which there is at least one.
    pub fn median(&self) -> f64 {
        Spread::of(self.seconds.iter().copied()).median
    }
}

impl Keep for Calibration {
    const KIND: &str = "calibration";

    fn is_plausible(&self) -> bool {
        let is_timed = |size: &SizeTiming| !size.seconds.is_empty() && size.seconds.iter().copied().all(is_time);
        self.arena_bytes > 0 && self.sizes.iter().all(is_timed)
    }
}

impl Calibration {
    /// Chooses among sizes, each timed at least once; `None`: there are none.
    pub fn choose(tokens: usize, sizes: Vec<SizeTiming>) -> Option<Self> {
        let least = sizes.iter().map(SizeTiming::median).reduce(f64::min)?;
        let as_good = sizes.iter().filter(|size| size.median() <= least * (1.0 + AS_GOOD));
        let arena_bytes = as_good.map(|size| size.arena_bytes).min()?;
        Some(Self { arena_bytes, date: kept::today(), tokens, sizes })
    }

    /// That of a model file, if it was calibrated.
    ///
    /// # Errors
    /// When the file is no GGUF file, or is damaged.
    pub fn of(path: &Path) -> Result<Option<Self>, EngineError> {
        Ok(kept::load(&ModelFile::open(path)?))
    }

    /// Keeps it for later runs of this model; in the user's cache, if there is one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), EngineError> {
        kept::save(&ModelFile::open(path)?, self)
    }

    /// Removes what was found for a model file; `false`: nothing was.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn forget(path: &Path) -> Result<bool, EngineError> {
        kept::forget::<Self>(&ModelFile::open(path)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_report_05_06_the_smallest_arena_that_is_nearly_the_fastest_is_kept() {
        let sizes = |medians: [f64; 3]| {
            let size = |(arena_bytes, median): (u64, f64)| {
                // One run that was disturbed does not count.
                SizeTiming { arena_bytes, seconds: vec![median, 99.0, median] }
            };
            [6, 8, 10].into_iter().zip(medians).map(size).collect::<Vec<_>>()
        };
        for (medians, expected) in
            [([3.0, 2.0, 1.0], 10), ([1.0, 2.0, 3.0], 6), ([2.0, 1.0, 1.5], 8), ([1.02, 1.5, 1.0], 6), ([1.0; 3], 6)]
        {
            let chosen = Calibration::choose(32, sizes(medians)).unwrap();
            assert_eq!(chosen.arena_bytes, expected, "{medians:?}");
            assert_eq!((chosen.sizes, chosen.tokens), (sizes(medians), 32));
        }
        assert_eq!(Calibration::choose(32, Vec::new()), None);
    }
}
