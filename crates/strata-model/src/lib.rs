//! Model architectures: weights by name, per-sequence state, and the forward pass for prompts and single tokens.
//!
//! Owns: what a file must hold to be a model of an architecture, and the order of operations of its forward pass. One
//! folder per architecture, in it one file per part of the architecture.
//! Promises: a file that does not fit is refused with the tensor or key, what was expected and what it holds; a token's
//! result is the same bytes whatever pieces its text came in.
//! Refuses: to compute (that is a backend's work) and to read experts (a store's).

mod error;
pub mod qwen4exp;

pub use error::ModelError;
