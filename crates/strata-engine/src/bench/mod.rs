//! How fast it is: whole models, and kernels alone.
//!
//! Promises: what is compared is measured in turns, and what is reported is a median; the machine's own limits are measured
//! between the samples, so that they can be held against them.
//! Refuses: to judge. It gives numbers.

mod attention;
mod decode;
pub mod drive;
mod kernels;
mod prefill;
mod streamed;
mod weights;

pub use decode::{Decode, DecodeFloors, DecodeRun};
pub use kernels::{KernelBench, KernelCase, KernelKind, KernelRate};
pub use prefill::{Floors, PrefillRun};
pub use streamed::{Counted, Streamed};

use strata_model::ModelError;

use crate::{EngineError, Stop};

fn is_set(stop: &Stop) -> bool {
    stop.load(std::sync::atomic::Ordering::Relaxed)
}

/// Whether to go on: what was just done may have come to its end, or have been cut off, without looking.
fn check(stop: &Stop) -> Result<(), EngineError> {
    if is_set(stop) { Err(ModelError::Cancelled.into()) } else { Ok(()) }
}

/// Samples of one quantity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle one; of an even number, the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of samples in any order, at least one.
    ///
    /// # Panics
    /// When there are none.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = samples.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len() - 1;
        let median = (sorted[last / 2] + sorted[last.div_ceil(2)]) / 2.0;
        Self { median, min: sorted[0], max: sorted[last] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 8.0]), Spread { median: 3.0, min: 1.0, max: 8.0 });
        assert_eq!(Spread::of([5.0]).median, 5.0);
    }
}
