//! Ctrl-C: the first one stops what is running, cleanly; a second one, or one while nothing runs, ends the program.

use std::sync::atomic::{AtomicBool, Ordering};

use strata_engine::Stop;

use crate::error::CliError;

static STOP: Stop = Stop::new(false);
static RUNNING: AtomicBool = AtomicBool::new(false);

/// Takes over Ctrl-C for the rest of the program.
pub(crate) fn install() -> Result<(), CliError> {
    ctrlc::set_handler(|| {
        let is_first = !STOP.swap(true, Ordering::Relaxed);
        if !(is_first && RUNNING.load(Ordering::Relaxed)) {
            std::process::exit(i32::from(CliError::Interrupted.exit_code()));
        }
    })
    .map_err(|error| CliError::Failed(format!("cannot handle Ctrl-C: {error}")))
}

/// Runs something that Ctrl-C stops through the flag it is given.
pub(crate) fn stoppable<T>(run: impl FnOnce(&Stop) -> T) -> T {
    STOP.store(false, Ordering::Relaxed);
    RUNNING.store(true, Ordering::Relaxed);
    let result = run(&STOP);
    RUNNING.store(false, Ordering::Relaxed);
    result
}
