//! Metadata: keys, values of every GGUF type, and typed getters whose errors name the key.
//!
//! Writers disagree about the width and the sign of integers, so getters take any integer that fits what is asked for;
//! nothing else is converted but float64 to float32.

use std::collections::HashMap;
use std::fmt;

use thiserror::Error;

/// Longer strings are not repeated in errors.
const SHOWN_STRING_BYTES: usize = 80;

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

impl fmt::Display for Value {
    /// The type with a short value, as errors say it: `i32 -5`, `string "llama"`, `an array of 3 f32`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => write!(f, "u8 {v}"),
            Self::I8(v) => write!(f, "i8 {v}"),
            Self::U16(v) => write!(f, "u16 {v}"),
            Self::I16(v) => write!(f, "i16 {v}"),
            Self::U32(v) => write!(f, "u32 {v}"),
            Self::I32(v) => write!(f, "i32 {v}"),
            Self::F32(v) => write!(f, "f32 {v}"),
            Self::Bool(v) => write!(f, "bool {v}"),
            Self::String(v) if v.len() <= SHOWN_STRING_BYTES => write!(f, "string {v:?}"),
            Self::String(v) => write!(f, "a string of {} bytes", v.len()),
            Self::Array(array) => write!(f, "an array of {} {}", array.len(), array.element_name()),
            Self::U64(v) => write!(f, "u64 {v}"),
            Self::I64(v) => write!(f, "i64 {v}"),
            Self::F64(v) => write!(f, "f64 {v}"),
        }
    }
}

impl Value {
    fn integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }
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

/// Runs `$body` with `$items` bound to the elements of an array, whatever their type.
macro_rules! each_array {
    ($array:expr, $items:ident => $body:expr) => {
        match $array {
            Array::U8($items) => $body,
            Array::I8($items) => $body,
            Array::U16($items) => $body,
            Array::I16($items) => $body,
            Array::U32($items) => $body,
            Array::I32($items) => $body,
            Array::F32($items) => $body,
            Array::Bool($items) => $body,
            Array::String($items) => $body,
            Array::U64($items) => $body,
            Array::I64($items) => $body,
            Array::F64($items) => $body,
        }
    };
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        each_array!(self, items => items.len())
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn element_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
            Self::Bool(_) => "bool",
            Self::String(_) => "string",
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F64(_) => "f64",
        }
    }

    /// All elements as `T`; `Err(Some(index))` names the first that does not fit, `Err(None)` says they are no integers.
    fn integers<T: TryFrom<i128>>(&self) -> Result<Vec<T>, Option<usize>> {
        fn convert<S: Copy + Into<i128>, T: TryFrom<i128>>(items: &[S]) -> Result<Vec<T>, Option<usize>> {
            let converted = items.iter().enumerate().map(|(i, &item)| T::try_from(item.into()).map_err(|_| Some(i)));
            converted.collect()
        }
        match self {
            Self::U8(items) => convert(items),
            Self::I8(items) => convert(items),
            Self::U16(items) => convert(items),
            Self::I16(items) => convert(items),
            Self::U32(items) => convert(items),
            Self::I32(items) => convert(items),
            Self::U64(items) => convert(items),
            Self::I64(items) => convert(items),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::String(_) => Err(None),
        }
    }
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
    /// The key was inserted before.
    #[error("metadata key `{key}` is there twice")]
    Duplicate {
        /// The key.
        key: String,
    },
}

/// Makes the key of a getter optional: `metadata.u32(key).optional()?` is `None` when the key is missing, and still an
/// error when its value has the wrong type.
pub trait Optional<T> {
    /// Turns [`MetadataError::Missing`] into `None`.
    ///
    /// # Errors
    /// Any other error, unchanged.
    fn optional(self) -> Result<Option<T>, MetadataError>;
}

impl<T> Optional<T> for Result<T, MetadataError> {
    fn optional(self) -> Result<Option<T>, MetadataError> {
        match self {
            Ok(value) => Ok(Some(value)),
            Err(MetadataError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The metadata of a model: key-value pairs in file order, no key twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    pairs: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// No pairs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pair at the end.
    ///
    /// # Errors
    /// [`MetadataError::Duplicate`] when the key is there already; its value stays as it was.
    pub fn insert(&mut self, key: impl Into<String>, value: Value) -> Result<(), MetadataError> {
        let key = key.into();
        if self.contains(&key) {
            return Err(MetadataError::Duplicate { key });
        }
        self.index.insert(key.clone(), self.pairs.len());
        self.pairs.push((key, value));
        Ok(())
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// All pairs, in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.pairs.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Whether the key is there.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.pairs[at].1)
    }
}

/// Typed getters. All of them: [`MetadataError::Missing`] when the key is not there, [`MetadataError::WrongType`] when
/// its value is something else or does not fit.
#[allow(clippy::missing_errors_doc)] // said once, above
impl Metadata {
    /// A non-negative integer stored in any width.
    pub fn u64(&self, key: &str) -> Result<u64, MetadataError> {
        self.integer(key, "an integer from 0 to 2^64-1")
    }

    /// A non-negative integer below 2^32, stored in any width.
    pub fn u32(&self, key: &str) -> Result<u32, MetadataError> {
        self.integer(key, "an integer from 0 to 2^32-1")
    }

    /// A non-negative integer that fits this machine's `usize`, stored in any width.
    pub fn usize(&self, key: &str) -> Result<usize, MetadataError> {
        self.integer(key, "a non-negative integer")
    }

    /// An integer stored in any width.
    pub fn i64(&self, key: &str) -> Result<i64, MetadataError> {
        self.integer(key, "an integer from -2^63 to 2^63-1")
    }

    /// A float32, or a float64 rounded to one.
    pub fn f32(&self, key: &str) -> Result<f32, MetadataError> {
        match self.required(key)? {
            Value::F32(v) => Ok(*v),
            Value::F64(v) => Ok(*v as f32),
            other => Err(wrong_type(key, "a float", other)),
        }
    }

    /// A bool.
    pub fn bool(&self, key: &str) -> Result<bool, MetadataError> {
        match self.required(key)? {
            Value::Bool(v) => Ok(*v),
            other => Err(wrong_type(key, "a bool", other)),
        }
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<&str, MetadataError> {
        match self.required(key)? {
            Value::String(v) => Ok(v),
            other => Err(wrong_type(key, "a string", other)),
        }
    }

    /// An array of non-negative integers stored in any width.
    pub fn u64_array(&self, key: &str) -> Result<Vec<u64>, MetadataError> {
        self.integer_array(key, "an array of integers from 0 to 2^64-1")
    }

    /// An array of integers stored in any width.
    pub fn i64_array(&self, key: &str) -> Result<Vec<i64>, MetadataError> {
        self.integer_array(key, "an array of integers from -2^63 to 2^63-1")
    }

    /// An array of float32, or of float64 rounded to them.
    pub fn f32_array(&self, key: &str) -> Result<Vec<f32>, MetadataError> {
        match self.required(key)? {
            Value::Array(Array::F32(items)) => Ok(items.clone()),
            Value::Array(Array::F64(items)) => Ok(items.iter().map(|&v| v as f32).collect()),
            other => Err(wrong_type(key, "an array of floats", other)),
        }
    }

    /// An array of bools.
    pub fn bool_array(&self, key: &str) -> Result<&[bool], MetadataError> {
        match self.required(key)? {
            Value::Array(Array::Bool(items)) => Ok(items),
            other => Err(wrong_type(key, "an array of bools", other)),
        }
    }

    /// An array of strings.
    pub fn str_array(&self, key: &str) -> Result<&[String], MetadataError> {
        match self.required(key)? {
            Value::Array(Array::String(items)) => Ok(items),
            other => Err(wrong_type(key, "an array of strings", other)),
        }
    }

    fn required(&self, key: &str) -> Result<&Value, MetadataError> {
        self.get(key).ok_or_else(|| MetadataError::Missing { key: key.to_owned() })
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, expected: &'static str) -> Result<T, MetadataError> {
        let value = self.required(key)?;
        value.integer().and_then(|v| T::try_from(v).ok()).ok_or_else(|| wrong_type(key, expected, value))
    }

    fn integer_array<T: TryFrom<i128>>(&self, key: &str, expected: &'static str) -> Result<Vec<T>, MetadataError> {
        let value = self.required(key)?;
        let Value::Array(array) = value else { return Err(wrong_type(key, expected, value)) };
        array.integers().map_err(|misfit| match misfit {
            None => wrong_type(key, expected, value),
            Some(index) => wrong_type(key, expected, format_args!("{value} that does not fit at index {index}")),
        })
    }
}

fn wrong_type(key: &str, expected: &'static str, got: impl fmt::Display) -> MetadataError {
    MetadataError::WrongType { key: key.to_owned(), expected, got: got.to_string() }
}
