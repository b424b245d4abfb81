//! ggml block formats: rows of weights as files store them, to and from float32.
//!
//! Owns: the layout of every [`TensorType`](strata_gguf::TensorType), its decoder, the encoders of the types that this
//! program writes, and the codebooks.
//! Promises: whatever the bytes, decoding gives the values of the format, bit for bit, in the order of operations that
//! ggml uses and without fused multiply-add (a NaN is only promised to be a NaN). Vectorised kernels are compared with
//! these decoders.
//! Refuses: to know files, tensors or matrices.

#![forbid(unsafe_code)]

mod decode;
mod encode;
pub mod fields;
mod float;
pub mod grids;
mod iquants;
mod kquants;
mod simple;

pub use decode::decode_row;
pub use encode::{EncodeError, encode_row};
pub use float::{bf16_to_f32, f16_to_f32};
