//! The numbers of the file format that the reader and the writer share.
//!
//! Source: the GGUF specification of the ggml project, version 3.

/// First four bytes of every file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
/// The one version read and written.
pub(crate) const VERSION: u32 = 3;
/// Key of the alignment of tensor data.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
/// Alignment of tensor data in a file without [`ALIGNMENT_KEY`].
pub(crate) const DEFAULT_ALIGNMENT_BYTES: u32 = 32;
/// Most dimensions of a tensor.
pub(crate) const MAX_DIMS: usize = 4;

/// Ids of value types.
pub(crate) mod id {
    pub(crate) const U8: u32 = 0;
    pub(crate) const I8: u32 = 1;
    pub(crate) const U16: u32 = 2;
    pub(crate) const I16: u32 = 3;
    pub(crate) const U32: u32 = 4;
    pub(crate) const I32: u32 = 5;
    pub(crate) const F32: u32 = 6;
    pub(crate) const BOOL: u32 = 7;
    pub(crate) const STRING: u32 = 8;
    pub(crate) const ARRAY: u32 = 9;
    pub(crate) const U64: u32 = 10;
    pub(crate) const I64: u32 = 11;
    pub(crate) const F64: u32 = 12;
}
