//! GGUF v3 model files, little endian.
//!
//! Owns: the container format — header, metadata, tensor table, files of one model — for reading and for writing.
//! Promises: whatever the bytes of a file are, opening it ends in a checked description or in an error that names the
//! file, the thing and the numbers; memory used stays proportional to the size of the file.
//! Refuses: to know what a key or a tensor means, or how a block of a quantised type decodes.

#![forbid(unsafe_code)]

mod error;
mod format;
mod metadata;
mod model;
mod reader;
mod set;
mod tensor;
mod types;
mod writer;

pub use error::{GgufError, Problem};
pub use metadata::{Array, Metadata, MetadataError, Optional, Value};
pub use model::{Gguf, ModelFile};
pub use reader::{Header, parse};
pub use set::{set_metadata, set_path, split_name};
pub use tensor::Tensor;
pub use types::TensorType;
pub use writer::{GgufWriter, NewTensor};

// Sizes in files are 64 bits wide and become `usize` once they are known to fit the file.
const _: () = assert!(usize::BITS == 64, "a 64-bit machine is needed");
