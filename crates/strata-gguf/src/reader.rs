//! The header of one file: metadata and tensor table.
//!
//! Promises: nothing is allocated before the bytes it stands for are known to be in the file, so that memory stays within
//! a small multiple of the file's size; every tensor returned lies inside the file, aligned, and overlaps no other.
//! Refuses: anything that is not version 3, little endian.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use crate::error::Problem;
use crate::format::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT_BYTES, MAGIC, MAX_DIMS, VERSION, id};
use crate::tensor::data_bytes;
use crate::{Array, GgufError, Metadata, Optional, Tensor, TensorType, Value};

/// Room for reading ahead; one file's header at a time is read.
const BUFFER_BYTES: usize = 1 << 16;
/// Bytes of the shortest metadata pair: an empty key, a type, a value of one byte.
const LEAST_PAIR_BYTES: u64 = 8 + 4 + 1;
/// Bytes of the shortest tensor entry: an empty name, one dimension, a type, an offset.
const LEAST_TENSOR_BYTES: u64 = 8 + 4 + 8 + 4 + 8;
/// Bytes of an empty string.
const LEAST_STRING_BYTES: u64 = 8;

/// What the header of one file says.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Its metadata.
    pub metadata: Metadata,
    /// Its tensors in the order of its table, each with file index 0. A name may be there twice.
    pub tensors: Vec<Tensor>,
}

/// Reads and checks the header of a file of `len_bytes` bytes, whose data may be left unread; `path` is for errors.
///
/// # Errors
/// Whatever is wrong with the header; a failed read.
pub fn parse(file: impl Read, len_bytes: u64, path: &Path) -> Result<Header, GgufError> {
    header(file, len_bytes).map_err(|problem| GgufError::new(path, problem))
}

fn header(file: impl Read, len_bytes: u64) -> Result<Header, Problem> {
    let reader = BufReader::with_capacity(BUFFER_BYTES, file);
    let mut input = Input { reader, offset: 0, len_bytes, what: "the header".into() };
    magic_and_version(&mut input)?;
    let tensor_count = input.u64()?;
    let pair_count = input.u64()?;

    input.check_count("metadata pairs", pair_count, LEAST_PAIR_BYTES)?;
    let mut metadata = Metadata::new();
    for index in 0..pair_count {
        input.what = format!("metadata key number {index}");
        let key = input.string()?;
        input.what = format!("metadata key `{key}`");
        let value = value(&mut input, &key)?;
        metadata.insert(key, value)?;
    }

    let alignment_bytes = alignment_bytes(&metadata)?;
    input.check_count("tensors", tensor_count, LEAST_TENSOR_BYTES)?;
    let mut tensors = Vec::new();
    for index in 0..tensor_count {
        input.what = format!("tensor number {index}");
        let name = input.string()?;
        input.what = format!("tensor `{name}`");
        tensors.push(tensor(&mut input, name, alignment_bytes)?);
    }

    place(&mut tensors, input.offset, alignment_bytes, len_bytes)?;
    Ok(Header { metadata, tensors })
}

fn magic_and_version(input: &mut Input<impl Read>) -> Result<(), Problem> {
    if input.len_bytes == 0 {
        return Err(Problem::Empty);
    }
    let start = input.reader.fill_buf().map_err(read_failed)?;
    if !start.starts_with(&MAGIC) {
        let shown = start[..start.len().min(8)].escape_ascii().to_string();
        return Err(Problem::NotGguf { start: shown, hint: file_kind_hint(start) });
    }
    input.bytes::<{ MAGIC.len() }>()?;
    match input.u32()? {
        VERSION => Ok(()),
        // Small numbers have their low bytes set in the other byte order.
        got if got & 0xffff == 0 && got != 0 => Err(Problem::BigEndian),
        got => Err(Problem::Version { got }),
    }
}

/// Names what people most often have instead of a model.
fn file_kind_hint(start: &[u8]) -> &'static str {
    if start.starts_with(b"version https://git-lfs") {
        "; this is a Git LFS pointer: run `git lfs pull` to get the file itself"
    } else if start.get(8) == Some(&b'{') {
        "; this looks like a safetensors file, which must be converted first"
    } else if start.starts_with(b"<") {
        "; this looks like a web page: the download failed"
    } else {
        ""
    }
}

pub(crate) fn alignment_bytes(metadata: &Metadata) -> Result<u32, Problem> {
    match metadata.u32(ALIGNMENT_KEY).optional()? {
        None => Ok(DEFAULT_ALIGNMENT_BYTES),
        Some(got) if got.is_power_of_two() => Ok(got),
        Some(got) => Err(Problem::Alignment { got }),
    }
}

fn value(input: &mut Input<impl Read>, key: &str) -> Result<Value, Problem> {
    let offset = input.offset;
    Ok(match input.u32()? {
        id::U8 => Value::U8(u8::from_le_bytes(input.bytes()?)),
        id::I8 => Value::I8(i8::from_le_bytes(input.bytes()?)),
        id::U16 => Value::U16(u16::from_le_bytes(input.bytes()?)),
        id::I16 => Value::I16(i16::from_le_bytes(input.bytes()?)),
        id::U32 => Value::U32(u32::from_le_bytes(input.bytes()?)),
        id::I32 => Value::I32(i32::from_le_bytes(input.bytes()?)),
        id::U64 => Value::U64(u64::from_le_bytes(input.bytes()?)),
        id::I64 => Value::I64(i64::from_le_bytes(input.bytes()?)),
        id::F32 => Value::F32(f32::from_le_bytes(input.bytes()?)),
        id::F64 => Value::F64(f64::from_le_bytes(input.bytes()?)),
        id::BOOL => Value::Bool(input.bool(key)?),
        id::STRING => Value::String(input.string()?),
        id::ARRAY => Value::Array(array(input, key)?),
        id => return Err(Problem::ValueType { key: key.to_owned(), id, offset }),
    })
}

fn array(input: &mut Input<impl Read>, key: &str) -> Result<Array, Problem> {
    let offset = input.offset;
    let id = input.u32()?;
    let count = input.u64()?;
    Ok(match id {
        id::U8 => Array::U8(input.numbers(count, u8::from_le_bytes)?),
        id::I8 => Array::I8(input.numbers(count, i8::from_le_bytes)?),
        id::U16 => Array::U16(input.numbers(count, u16::from_le_bytes)?),
        id::I16 => Array::I16(input.numbers(count, i16::from_le_bytes)?),
        id::U32 => Array::U32(input.numbers(count, u32::from_le_bytes)?),
        id::I32 => Array::I32(input.numbers(count, i32::from_le_bytes)?),
        id::U64 => Array::U64(input.numbers(count, u64::from_le_bytes)?),
        id::I64 => Array::I64(input.numbers(count, i64::from_le_bytes)?),
        id::F32 => Array::F32(input.numbers(count, f32::from_le_bytes)?),
        id::F64 => Array::F64(input.numbers(count, f64::from_le_bytes)?),
        id::BOOL => Array::Bool(input.items(count, 1, |input| input.bool(key))?),
        id::STRING => Array::String(input.items(count, LEAST_STRING_BYTES, Input::string)?),
        id::ARRAY => return Err(Problem::NestedArray { key: key.to_owned(), offset }),
        id => return Err(Problem::ValueType { key: key.to_owned(), id, offset }),
    })
}

/// One entry of the tensor table, after its name; `offset` still counts from the start of the data.
fn tensor(input: &mut Input<impl Read>, name: String, alignment_bytes: u32) -> Result<Tensor, Problem> {
    let dim_count = input.u32()?;
    if !(1..=MAX_DIMS as u32).contains(&dim_count) {
        return Err(Problem::DimCount { tensor: name, got: dim_count.into() });
    }
    let dims = input.numbers(dim_count.into(), u64::from_le_bytes)?;
    let type_offset = input.offset;
    let id = input.u32()?;
    let offset = input.u64()?;
    let Some(ty) = TensorType::from_id(id) else {
        return Err(Problem::TensorTypeId { tensor: name, id, offset: type_offset });
    };
    let len_bytes = data_bytes(&name, &dims, ty)?;
    if !offset.is_multiple_of(alignment_bytes.into()) {
        return Err(Problem::Unaligned { tensor: name, data_offset: offset, alignment_bytes });
    }
    Ok(Tensor { name, dims, ty, file: 0, offset, len_bytes })
}

/// Makes the offsets of tensors absolute and checks that all data are in the file and apart from each other.
fn place(tensors: &mut [Tensor], table_end: u64, alignment_bytes: u32, file_bytes: u64) -> Result<(), Problem> {
    // All bytes of the table were read, and nobody has 2^63 of them: this cannot overflow.
    let data_start = table_end.next_multiple_of(alignment_bytes.into());
    for tensor in &mut *tensors {
        let offset = data_start.saturating_add(tensor.offset);
        if offset.checked_add(tensor.len_bytes).is_none_or(|end| end > file_bytes) {
            return Err(Problem::OutOfRange {
                tensor: tensor.name.clone(),
                ty: tensor.ty,
                offset,
                len_bytes: tensor.len_bytes,
                file_bytes,
            });
        }
        tensor.offset = offset;
    }

    let mut by_offset: Vec<&Tensor> = tensors.iter().collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    for pair in by_offset.windows(2) {
        let (tensor, next) = (pair[0], pair[1]);
        if tensor.offset + tensor.len_bytes > next.offset {
            return Err(Problem::Overlap {
                tensor: tensor.name.clone(),
                ty: tensor.ty,
                offset: tensor.offset,
                len_bytes: tensor.len_bytes,
                next: next.name.clone(),
                next_ty: next.ty,
                next_offset: next.offset,
            });
        }
    }
    Ok(())
}

/// A file read from its start, with what is left of it known before every read.
struct Input<R> {
    reader: BufReader<R>,
    offset: u64,
    len_bytes: u64,
    /// What is being read, for errors.
    what: String,
}

impl<R: Read> Input<R> {
    fn left_bytes(&self) -> u64 {
        self.len_bytes - self.offset
    }

    /// Checks that `wanted_bytes` more are in the file.
    fn check_left(&self, wanted_bytes: u64) -> Result<(), Problem> {
        if wanted_bytes <= self.left_bytes() {
            return Ok(());
        }
        let what = self.what.clone();
        Err(Problem::Truncated { what, offset: self.offset, wanted_bytes, left_bytes: self.left_bytes() })
    }

    fn check_count(&self, what: &'static str, count: u64, least_bytes: u64) -> Result<(), Problem> {
        if count <= self.left_bytes() / least_bytes {
            return Ok(());
        }
        Err(Problem::Count { what, count, least_bytes, left_bytes: self.left_bytes() })
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Problem> {
        self.check_left(bytes.len() as u64)?;
        self.reader.read_exact(bytes).map_err(read_failed)?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, Problem> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Problem> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn bool(&mut self, key: &str) -> Result<bool, Problem> {
        match self.bytes()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [got] => Err(Problem::BoolByte { key: key.to_owned(), got, offset: self.offset - 1 }),
        }
    }

    fn string(&mut self) -> Result<String, Problem> {
        let len_bytes = self.u64()?;
        self.check_left(len_bytes)?;
        let offset = self.offset;
        let mut bytes = vec![0; len_bytes as usize];
        self.fill(&mut bytes)?;
        String::from_utf8(bytes).map_err(|error| Problem::NotUtf8 {
            what: self.what.clone(),
            offset: offset + error.utf8_error().valid_up_to() as u64,
        })
    }

    fn numbers<T, const N: usize>(&mut self, count: u64, from: fn([u8; N]) -> T) -> Result<Vec<T>, Problem> {
        self.items(count, N as u64, |input| input.bytes().map(from))
    }

    /// `count` items, each of at least `least_bytes`.
    fn items<T>(
        &mut self,
        count: u64,
        least_bytes: u64,
        mut item: impl FnMut(&mut Self) -> Result<T, Problem>,
    ) -> Result<Vec<T>, Problem> {
        self.check_left(count.saturating_mul(least_bytes))?;
        let mut items = Vec::with_capacity(count as usize);
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }
}

fn read_failed(error: io::Error) -> Problem {
    Problem::Io { action: "read the header", error }
}
