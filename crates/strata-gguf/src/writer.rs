//! Writing one file: the header at once, then the data of its tensors, streamed in any number of pieces.
//!
//! Promises: nothing is held but the header, so files may be larger than memory; the reader accepts what is written, and
//! writing again what was read from a file without gaps gives the same bytes; a file that exists is never overwritten.
//! For a model in several files, write each with [`set_path`](crate::set_path) and [`set_metadata`](crate::set_metadata).

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::Problem;
use crate::format::{MAGIC, VERSION, id};
use crate::reader::alignment_bytes;
use crate::tensor::data_bytes;
use crate::{Array, GgufError, Metadata, TensorType, Value};

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTensor {
    /// Its name.
    pub name: String,
    /// Its dimensions, the length of a row first.
    pub dims: Vec<u64>,
    /// The type of its weights.
    pub ty: TensorType,
}

/// Writes one file.
#[derive(Debug)]
pub struct GgufWriter<W: Write> {
    out: W,
    path: PathBuf,
    alignment_bytes: u64,
    /// Bytes of each tensor, in order.
    lens_bytes: Vec<u64>,
    /// The tensor that the next byte of data belongs to.
    current: usize,
    /// Bytes of it already written.
    current_bytes: u64,
}

impl GgufWriter<BufWriter<File>> {
    /// Creates a file and writes its header.
    ///
    /// # Errors
    /// When the file exists or cannot be written; as [`new`](Self::new).
    pub fn create(path: &Path, metadata: &Metadata, tensors: &[NewTensor]) -> Result<Self, GgufError> {
        let file = File::create_new(path)
            .map_err(|error| GgufError::new(path, Problem::Io { action: "create the file", error }))?;
        Self::new(BufWriter::with_capacity(1 << 20, file), path, metadata, tensors)
    }
}

impl<W: Write> GgufWriter<W> {
    /// Writes the header to `out`; `path` is for errors.
    ///
    /// # Errors
    /// When a tensor cannot have its shape and type, a name is there twice, `general.alignment` is not a power of two, or
    /// `out` fails.
    pub fn new(out: W, path: &Path, metadata: &Metadata, tensors: &[NewTensor]) -> Result<Self, GgufError> {
        let problem_here = |problem| GgufError::new(path, problem);
        let alignment_bytes = u64::from(alignment_bytes(metadata).map_err(problem_here)?);
        let (header, lens_bytes) = header(metadata, tensors, alignment_bytes).map_err(problem_here)?;
        let path = path.to_owned();
        let mut writer = Self { out, path, alignment_bytes, lens_bytes, current: 0, current_bytes: 0 };
        writer.put(&header)?;
        writer.pad(header.len() as u64)?;
        Ok(writer)
    }

    /// Writes the next piece of data. Pieces follow each other through the tensors in the order they were declared in and
    /// may end anywhere.
    ///
    /// # Errors
    /// When there are more data than the declared tensors take, or the output fails.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), GgufError> {
        while !bytes.is_empty() {
            let Some(&len_bytes) = self.lens_bytes.get(self.current) else {
                return Err(self.data_length_error(bytes.len() as u64));
            };
            let (now, later) = bytes.split_at(bytes.len().min((len_bytes - self.current_bytes) as usize));
            self.put(now)?;
            self.current_bytes += now.len() as u64;
            bytes = later;
            if self.current_bytes == len_bytes {
                self.pad(len_bytes)?;
                self.current += 1;
                self.current_bytes = 0;
            }
        }
        Ok(())
    }

    /// Ends the file and returns the output, flushed.
    ///
    /// # Errors
    /// When data of declared tensors are missing, or the output fails.
    pub fn finish(mut self) -> Result<W, GgufError> {
        if self.current < self.lens_bytes.len() {
            return Err(self.data_length_error(0));
        }
        let flushed = self.out.flush();
        self.written(flushed)?;
        Ok(self.out)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), GgufError> {
        let written = self.out.write_all(bytes);
        self.written(written)
    }

    /// Writes the zeros that follow `len_bytes` bytes up to the next multiple of the alignment.
    fn pad(&mut self, len_bytes: u64) -> Result<(), GgufError> {
        let padding_bytes = len_bytes.next_multiple_of(self.alignment_bytes) - len_bytes;
        let copied = io::copy(&mut io::repeat(0).take(padding_bytes), &mut self.out);
        self.written(copied.map(drop))
    }

    fn written(&self, result: io::Result<()>) -> Result<(), GgufError> {
        result.map_err(|error| GgufError::new(&self.path, Problem::Io { action: "write the file", error }))
    }

    fn data_length_error(&self, extra_bytes: u64) -> GgufError {
        let wanted_bytes: u64 = self.lens_bytes.iter().sum();
        let got_bytes = self.lens_bytes[..self.current].iter().sum::<u64>() + self.current_bytes + extra_bytes;
        GgufError::new(&self.path, Problem::DataLength { wanted_bytes, got_bytes })
    }
}

/// The bytes before the padding and the first tensor's data, and the length of each tensor.
fn header(metadata: &Metadata, tensors: &[NewTensor], alignment_bytes: u64) -> Result<(Vec<u8>, Vec<u64>), Problem> {
    let mut out = Vec::new();
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        put_string(&mut out, key);
        put_value(&mut out, value);
    }

    let mut lens_bytes = Vec::new();
    let mut names = HashSet::new();
    let mut offset = 0u64;
    for NewTensor { name, dims, ty } in tensors {
        if !names.insert(name) {
            return Err(Problem::DuplicateTensor { tensor: name.clone(), other_path: None });
        }
        let len_bytes = data_bytes(name, dims, *ty)?;
        put_string(&mut out, name);
        out.extend((dims.len() as u32).to_le_bytes());
        out.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        out.extend(ty.id().to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset = offset
            .checked_add(len_bytes)
            .and_then(|end| end.checked_next_multiple_of(alignment_bytes))
            .ok_or_else(|| Problem::TooLarge { tensor: name.clone(), dims: dims.clone(), ty: *ty })?;
        lens_bytes.push(len_bytes);
    }
    Ok((out, lens_bytes))
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    macro_rules! put {
        ($id:expr, $bytes:expr) => {{
            out.extend($id.to_le_bytes());
            out.extend($bytes);
        }};
    }
    match value {
        Value::U8(v) => put!(id::U8, v.to_le_bytes()),
        Value::I8(v) => put!(id::I8, v.to_le_bytes()),
        Value::U16(v) => put!(id::U16, v.to_le_bytes()),
        Value::I16(v) => put!(id::I16, v.to_le_bytes()),
        Value::U32(v) => put!(id::U32, v.to_le_bytes()),
        Value::I32(v) => put!(id::I32, v.to_le_bytes()),
        Value::U64(v) => put!(id::U64, v.to_le_bytes()),
        Value::I64(v) => put!(id::I64, v.to_le_bytes()),
        Value::F32(v) => put!(id::F32, v.to_le_bytes()),
        Value::F64(v) => put!(id::F64, v.to_le_bytes()),
        Value::Bool(v) => put!(id::BOOL, [u8::from(*v)]),
        Value::String(v) => {
            out.extend(id::STRING.to_le_bytes());
            put_string(out, v);
        }
        Value::Array(array) => {
            out.extend(id::ARRAY.to_le_bytes());
            put_array(out, array);
        }
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    macro_rules! put {
        ($id:expr, $items:expr) => {{
            out.extend($id.to_le_bytes());
            out.extend(($items.len() as u64).to_le_bytes());
            out.extend($items.iter().flat_map(|item| item.to_le_bytes()));
        }};
    }
    match array {
        Array::U8(items) => put!(id::U8, items),
        Array::I8(items) => put!(id::I8, items),
        Array::U16(items) => put!(id::U16, items),
        Array::I16(items) => put!(id::I16, items),
        Array::U32(items) => put!(id::U32, items),
        Array::I32(items) => put!(id::I32, items),
        Array::U64(items) => put!(id::U64, items),
        Array::I64(items) => put!(id::I64, items),
        Array::F32(items) => put!(id::F32, items),
        Array::F64(items) => put!(id::F64, items),
        Array::Bool(items) => {
            out.extend(id::BOOL.to_le_bytes());
            out.extend((items.len() as u64).to_le_bytes());
            out.extend(items.iter().map(|&item| u8::from(item)));
        }
        Array::String(items) => {
            out.extend(id::STRING.to_le_bytes());
            out.extend((items.len() as u64).to_le_bytes());
            items.iter().for_each(|item| put_string(out, item));
        }
    }
}
