//! Decoders straight to bfloat16, for AVX-512 with its BF16 extension.
//!
//! Owns: for most types a decoder of a block, which hands its weights to a [`sink::Sink`] 32 at a time. Where a group of
//! weights has few different values, they are made and rounded once, in a table that one register holds, and the codes of
//! the weights choose from it (VPERMW).
//! Promises: the values that [`super::iquants`] and its neighbours make one by one, rounded.

mod codebooks;
mod rows;
mod sink;
mod tables;
mod values;

pub(super) use self::rows::to_memory;
pub(crate) use self::rows::{dots, dots_of_two};
use self::sink::Sink;
