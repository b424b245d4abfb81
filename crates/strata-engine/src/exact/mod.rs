//! Tools that show whether two runs computed the same, and how far two models are apart.
//!
//! Promises: what is written is what was computed, in float32 and in full; comparisons are of bytes.

mod dump;
mod kld;
mod logits;
mod parity;
mod perplexity;
mod reference;
mod tensors;

pub use dump::dump;
pub(crate) use kld::kl;
pub use kld::{Divergence, divergence, save_logits};
pub use logits::logits;
pub use parity::{Difference, LayerParity, Parity, parity};
pub use perplexity::{Perplexity, perplexity};
pub use reference::{FromReference, from_reference};
