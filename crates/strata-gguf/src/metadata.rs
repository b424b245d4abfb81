//! Metadata: keys, values of every GGUF type, and typed getters whose errors name the key.

use thiserror::Error;

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the variants are the format's own type names
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array value: its elements all have one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the variants are the format's own type names
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Why a metadata value could not be used.
#[derive(Debug, Error, Clone, PartialEq)]
pub enum MetadataError {
    /// The key is not in the file.
    #[error("metadata key `{key}` is missing")]
    Missing {
        /// The key asked for.
        key: String,
    },
    /// The key is there, with a value of another type or out of range.
    #[error("metadata key `{key}`: expected {expected}, got {got}")]
    WrongType {
        /// The key asked for.
        key: String,
        /// What the caller needs, in words.
        expected: &'static str,
        /// What the file holds, in words.
        got: String,
    },
}

/// The metadata of a model: key-value pairs in file order, no key twice.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    pairs: Vec<(String, Value)>,
}
