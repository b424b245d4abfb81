//! The rank of this process's reads, and what a user should know of it: started by a scheduler of background tasks, a model
//! that streams crawls.

use strata_engine::{IoPriority, io_priority};

/// Best-effort levels from here on wait for others.
const LOW_LEVEL: u8 = 6;

/// What sets reads back, if anything does.
pub(crate) fn warning() -> Option<String> {
    match io_priority()? {
        IoPriority::Idle => Some(
            "reads of this process only get what others leave: its I/O class is `idle` (set by `ionice -c 3`, or by the \
             scheduler that started it)"
                .to_owned(),
        ),
        IoPriority::BestEffort(level) if level >= LOW_LEVEL => Some(format!(
            "reads of this process may wait for those of others: its I/O priority is {level} of 7 (set by `ionice`, or \
             following `nice`)"
        )),
        IoPriority::RealTime | IoPriority::BestEffort(_) => None,
    }
}
