//! When the system is short of memory, some of what this process has goes back to it.
//!
//! The plan leaves the system a reserve; only when most of that is gone do others need more than it was thought. What is
//! given back is not taken again.

use std::time::{Duration, Instant};

use crate::Memory;

/// With less than this to spare, a system begins to swap, or ends a process: a quarter of what plans leave.
const LEAST_BYTES: u64 = 64 << 20;
/// Between two looks. One alone may have met a moment.
const EVERY: Duration = Duration::from_secs(1);

pub(in crate::host) type Spare = Box<dyn FnMut() -> Option<u64> + Send>;

/// Looks what the system has to spare.
pub(in crate::host) struct Pressure {
    spare: Spare,
    every: Duration,
    next_look: Option<Instant>,
    was_short: bool,
}

impl Pressure {
    pub(super) fn of_system() -> Self {
        Self::of(Box::new(|| Memory::detect().spare_bytes()), EVERY)
    }

    pub(in crate::host) fn of(spare: Spare, every: Duration) -> Self {
        Self { spare, every, next_look: None, was_short: false }
    }

    /// Bytes to give back now; 0 for nothing.
    pub(super) fn wanted_bytes(&mut self, now: Instant) -> u64 {
        if self.next_look.is_some_and(|next| now < next) {
            return 0;
        }
        self.next_look = Some(now + self.every);
        let missing_bytes = (self.spare)().map_or(0, |spare| LEAST_BYTES.saturating_sub(spare));
        let was_short = std::mem::replace(&mut self.was_short, missing_bytes > 0);
        // Up to twice the least, so that it is not short again at once.
        if was_short && missing_bytes > 0 { missing_bytes + LEAST_BYTES } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_wanted_when_two_looks_in_a_row_find_little() {
        let spare =
            [Some(1 << 30), Some(1 << 20), Some(1 << 30), Some(24 << 20), Some(14 << 20), None, Some(0), Some(0)];
        let mut spare = spare.into_iter();
        let mut pressure = Pressure::of(Box::new(move || spare.next().unwrap()), EVERY);
        let start = Instant::now();
        let mut look = |seconds: f64| pressure.wanted_bytes(start + Duration::from_secs_f64(seconds)) >> 20;
        assert_eq!([0.0, 1.0, 2.0, 3.0].map(&mut look), [0; 4]);
        assert_eq!(look(3.9), 0, "too early for another look");
        assert_eq!(look(4.0), 50 + 64);
        assert_eq!([5.0, 6.0].map(&mut look), [0; 2], "where nothing is known, nothing is given");
        assert_eq!(look(7.0), 128);
    }
}
