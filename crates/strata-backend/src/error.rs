//! What a backend can fail at.

use thiserror::Error;

/// Why an operation could not be done.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BackendError {
    /// No memory left.
    #[error("not enough memory: {bytes} bytes for {what} could not be had")]
    OutOfMemory {
        /// What it was for.
        what: &'static str,
        /// Bytes asked for.
        bytes: usize,
    },
    /// An id outside of the embedding table.
    #[error("token id {id} is not in the model's vocabulary of {rows} ids")]
    NoSuchToken {
        /// The id.
        id: u32,
        /// Rows of the table.
        rows: usize,
    },
    /// A sequence grew past its state.
    #[error("the context is full: {needed_tokens} tokens in a context of {context_tokens}")]
    ContextFull {
        /// Tokens the sequence would have.
        needed_tokens: usize,
        /// Tokens there is room for.
        context_tokens: usize,
    },
    /// A ticket was used for something it does not name, or twice.
    #[error("internal error: this ticket names no {expected}")]
    WrongTicket {
        /// What was asked of it.
        expected: &'static str,
    },
}
