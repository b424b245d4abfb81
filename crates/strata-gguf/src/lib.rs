//! GGUF v3 model files, little endian.
//!
//! Owns: the container format — header, metadata, tensor table, files of one model — for reading and for writing.
//! Promises: whatever the bytes of a file are, opening it ends in a checked description or in an error that names the
//! file, the thing and the numbers; memory used stays proportional to the size of the file.
//! Refuses: to know what a key or a tensor means, or how a block of a quantised type decodes.

mod metadata;
mod types;

pub use metadata::{Metadata, MetadataError, Value};
pub use types::TensorType;
