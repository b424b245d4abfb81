//! How a command can end other than well, and the exit code that says so.

use std::io;

use strata_engine::EngineError;

#[derive(Debug)]
pub(crate) enum CliError {
    /// The command line asks for something that makes no sense.
    Usage(String),
    /// It was tried and failed.
    Failed(String),
    /// Two runs that should be equal are not; what differs was printed.
    Differs,
    /// Something is broken; it was printed.
    Broken,
    /// Ctrl-C.
    Interrupted,
    /// Whoever read the output went away.
    ReaderGone,
}

impl CliError {
    /// The exit code for a wrong command line.
    pub(crate) const USAGE: u8 = 2;

    /// What to tell the user, if anything.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Usage(text) | Self::Failed(text) => Some(text),
            Self::Differs | Self::Broken | Self::Interrupted | Self::ReaderGone => None,
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => Self::USAGE,
            Self::Failed(_) | Self::Differs | Self::Broken => 1,
            Self::Interrupted => 130,
            // As if the pipe had closed on a program that dies of it: nothing went wrong here.
            Self::ReaderGone => 0,
        }
    }
}

impl From<EngineError> for CliError {
    fn from(error: EngineError) -> Self {
        match error {
            error if error.is_cancelled() => Self::Interrupted,
            error if error.is_context_full() => Self::Failed(format!("{error}: use less text or a larger --context")),
            error => Self::Failed(error.to_string()),
        }
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ReaderGone,
            _ => Self::Failed(format!("cannot write the output: {error}")),
        }
    }
}
