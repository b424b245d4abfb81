//! What can be wrong with a file, in words for the person who has to do something about it.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::{MetadataError, TensorType};

/// A problem and the file that has it.
#[derive(Debug, Error)]
#[error("{}: {problem}", path.display())]
pub struct GgufError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it; boxed so that results stay small.
    pub problem: Box<Problem>,
}

impl GgufError {
    pub(crate) fn new(path: &Path, problem: impl Into<Problem>) -> Self {
        Self { path: path.to_owned(), problem: Box::new(problem.into()) }
    }
}

/// What is wrong with a file, or with what was to be written to it.
///
/// The texts are the documentation of the variants; offsets and sizes are in bytes, offsets from the start of the file.
#[derive(Debug, Error)]
#[allow(missing_docs)] // each variant and field is explained by its text
pub enum Problem {
    #[error("cannot {action}: {error}")]
    Io { action: &'static str, error: io::Error },
    #[error("this is not a regular file; give the path of a .gguf file")]
    NotAFile,
    #[error("the file is empty; download it again")]
    Empty,
    #[error("not a GGUF file: it starts with `{start}` instead of `GGUF`{hint}")]
    NotGguf { start: String, hint: &'static str },
    #[error(
        "this GGUF file is big-endian (for s390x); get the little-endian one or convert it with gguf_convert_endian.py"
    )]
    BigEndian,
    #[error("GGUF version {got}, but only version 3 can be read; convert the model again with a current llama.cpp")]
    Version { got: u32 },
    #[error(
        "{what} needs {wanted_bytes} bytes at offset {offset}, but the file has only {left_bytes} more: it is cut off or damaged; download it again"
    )]
    Truncated { what: String, offset: u64, wanted_bytes: u64, left_bytes: u64 },
    #[error(
        "the header says {count} {what}, at least {least_bytes} bytes each, but only {left_bytes} bytes follow: the file is cut off or damaged; download it again"
    )]
    Count { what: &'static str, count: u64, least_bytes: u64, left_bytes: u64 },
    #[error("{what} at offset {offset} is not valid UTF-8: the file is damaged")]
    NotUtf8 { what: String, offset: u64 },
    #[error(
        "metadata key `{key}`: unknown value type id {id} at offset {offset} (0 to 12 are known): the file is damaged or too new"
    )]
    ValueType { key: String, id: u32, offset: u64 },
    #[error("metadata key `{key}`: an array of arrays at offset {offset}; these are not supported")]
    NestedArray { key: String, offset: u64 },
    #[error("metadata key `{key}`: a bool is stored as {got} at offset {offset}, expected 0 or 1: the file is damaged")]
    BoolByte { key: String, got: u8, offset: u64 },
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    #[error("metadata key `general.alignment` is {got}; expected a power of two")]
    Alignment { got: u32 },
    #[error("tensor `{tensor}` has {got} dimensions; expected 1 to 4")]
    DimCount { tensor: String, got: u64 },
    #[error("tensor `{tensor}` has a dimension of zero: {dims:?}")]
    ZeroDim { tensor: String, dims: Vec<u64> },
    #[error("tensor `{tensor}` of {dims:?} {ty} weights is larger than any file")]
    TooLarge { tensor: String, dims: Vec<u64>, ty: TensorType },
    #[error("tensor `{tensor}`: a row of {row_weights} weights is not a whole number of {ty} blocks of {} weights", ty.block_weights())]
    PartialBlock { tensor: String, row_weights: u64, ty: TensorType },
    #[error(
        "tensor `{tensor}` has type id {id} (at offset {offset}), which this program does not know; use a file with another quantisation"
    )]
    TensorTypeId { tensor: String, id: u32, offset: u64 },
    #[error("tensor `{tensor}` is there twice{}", other_path.as_ref().map(|p| format!(", also in {}", p.display())).unwrap_or_default())]
    DuplicateTensor { tensor: String, other_path: Option<PathBuf> },
    #[error("tensor `{tensor}`: data offset {data_offset} is not a multiple of the alignment, {alignment_bytes}")]
    Unaligned { tensor: String, data_offset: u64, alignment_bytes: u32 },
    #[error("tensor `{tensor}` ({ty}) takes {len_bytes} bytes at offset {offset}, but the file has {file_bytes} bytes: it is cut off or damaged; download it again{}", type_hint(&[*ty]))]
    OutOfRange { tensor: String, ty: TensorType, offset: u64, len_bytes: u64, file_bytes: u64 },
    #[error("tensor `{tensor}` ({ty}) takes {len_bytes} bytes at offset {offset} and overlaps tensor `{next}` ({next_ty}) at offset {next_offset}{}", type_hint(&[*ty, *next_ty]))]
    Overlap {
        tensor: String,
        ty: TensorType,
        offset: u64,
        len_bytes: u64,
        next: String,
        next_ty: TensorType,
        next_offset: u64,
    },
    #[error(
        "metadata key `{key}` is {got}, expected {expected}: the file belongs to another set, or was renamed; get all files of one download"
    )]
    Split { key: &'static str, expected: String, got: String },
    #[error(
        "this is one of {count} files of a model, which must be named like NAME-00001-of-{count:05}.gguf to be found; rename them"
    )]
    SplitName { count: u64 },
    #[error("this file of the model is missing ({missing} of its {count} files are); put all of them into one folder")]
    MissingFile { missing: u64, count: u64 },
    #[error(
        "metadata key `{key}` is {got}, but {earlier} in an earlier file of the model: these are files of different models; get all files of one download"
    )]
    Disagree { key: String, got: String, earlier: String },
    #[error(
        "wanted {wanted_bytes} bytes at offset {offset}, got {got_bytes}: the file ends there; was it cut while in use?"
    )]
    ShortRead { offset: u64, wanted_bytes: u64, got_bytes: u64 },
    #[error("not enough memory for the {len_bytes} bytes of tensor `{tensor}`")]
    OutOfMemory { tensor: String, len_bytes: u64 },
    #[error("{got_bytes} bytes of tensor data were given, but the declared tensors take {wanted_bytes}")]
    DataLength { wanted_bytes: u64, got_bytes: u64 },
}

/// Type id 42 has a second meaning in the wild, whose smaller blocks make every tensor look too long.
fn type_hint(types: &[TensorType]) -> &'static str {
    if types.contains(&TensorType::Q2_0) {
        "; note that some unrelated files use type id 42 for blocks of 128 weights in 34 bytes, which are not supported"
    } else {
        ""
    }
}
