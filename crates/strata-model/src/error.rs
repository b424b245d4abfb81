//! Why a file is no model, or a forward pass ended.

use strata_backend::BackendError;
use strata_gguf::{GgufError, MetadataError};
use strata_store::StoreError;
use thiserror::Error;

/// What went wrong with a model.
#[derive(Debug, Error)]
pub enum ModelError {
    /// The file itself.
    #[error(transparent)]
    File(#[from] GgufError),
    /// A metadata key.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// An architecture this program does not run.
    #[error("architecture `{0}` is not supported; this program runs `qwen4exp` (Qwen3.8-Flash-Next)")]
    Architecture(String),
    /// A metadata value that cannot be.
    #[error("metadata key `{key}`: {problem}")]
    Config {
        /// The key.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A block size that does not fit the model.
    #[error(
        "attention blocks of {block_tokens} tokens were asked for, but the indexer selects only {budget_tokens} tokens"
    )]
    BlockTooLarge {
        /// Tokens of a block.
        block_tokens: usize,
        /// Tokens that the indexer selects.
        budget_tokens: usize,
    },
    /// A tensor that is not there.
    #[error("tensor `{name}` is missing: {hint}")]
    MissingTensor {
        /// Its name.
        name: String,
        /// What that means.
        hint: &'static str,
    },
    /// A tensor of the wrong shape.
    #[error("tensor `{name}`: expected shape {expected:?}, got {got:?}")]
    Shape {
        /// Its name.
        name: String,
        /// What the metadata ask for, contiguous dimension first.
        expected: Vec<u64>,
        /// What the file holds.
        got: Vec<u64>,
    },
    /// A tensor whose meaning is not known.
    #[error("tensor `{tensor}` is not supported: without it the results would be wrong")]
    Unsupported {
        /// Its name.
        tensor: String,
    },
    /// The experts or the n-gram table could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The computation failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// An earlier pass of this sequence was stopped half-way.
    #[error(
        "this sequence was stopped in the middle of a pass and must be reset, or go back to a checkpoint, before it goes on"
    )]
    Interrupted,
    /// A checkpoint that the sequence cannot go back to.
    #[error(
        "the sequence cannot go back to its checkpoint of {tokens} tokens: it is another sequence's, or what came before \
         it was forgotten since"
    )]
    StaleCheckpoint {
        /// Tokens of the checkpoint.
        tokens: usize,
    },
    /// A checkpoint that could not be written, or bytes that are none of this model.
    #[error("a checkpoint could not be written or read: {0}")]
    Written(#[source] std::io::Error),
    /// The caller asked to stop.
    #[error("stopped")]
    Cancelled,
}
