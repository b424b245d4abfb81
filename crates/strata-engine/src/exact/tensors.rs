//! Small helpers around safetensors files.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::EngineError;

pub(super) fn problem(path: &Path, problem: &(impl ToString + ?Sized)) -> EngineError {
    EngineError::Record { path: path.to_owned(), problem: problem.to_string() }
}

/// One tensor to be written.
pub(super) struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    pub(super) fn f32(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { dtype: Dtype::F32, shape: shape.to_vec(), bytes }
    }

    pub(super) fn u32(shape: &[usize], values: &[u32]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { dtype: Dtype::U32, shape: shape.to_vec(), bytes }
    }
}

pub(super) fn write(path: &Path, tensors: &[(&str, Tensor)]) -> Result<(), EngineError> {
    let views = tensors
        .iter()
        .map(|(name, t)| Ok((*name, TensorView::new(t.dtype, t.shape.clone(), &t.bytes)?)))
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()
        .map_err(|error| problem(path, &error))?;
    let bytes = safetensors::serialize(views, None).map_err(|error| problem(path, &error))?;
    // Not by the library's own function: its files can be read by their owner only.
    std::fs::write(path, bytes).map_err(|error| problem(path, &error))
}

pub(super) type ShapeAndBytes<'a> = (Vec<usize>, &'a [u8]);

/// The bytes of a safetensors file, checked when a tensor is asked for.
pub(super) struct File {
    path: std::path::PathBuf,
    bytes: Vec<u8>,
}

impl File {
    pub(super) fn read(path: &Path) -> Result<Self, EngineError> {
        let bytes = std::fs::read(path).map_err(|error| problem(path, &error))?;
        let file = Self { path: path.to_owned(), bytes };
        file.parse()?;
        Ok(file)
    }

    fn parse(&self) -> Result<SafeTensors<'_>, EngineError> {
        SafeTensors::deserialize(&self.bytes)
            .map_err(|error| problem(&self.path, &format!("not a safetensors file: {error}")))
    }

    /// Shape and bytes of every tensor, by name.
    pub(super) fn tensors(&self) -> Result<BTreeMap<String, ShapeAndBytes<'_>>, EngineError> {
        let parsed = SafeTensors::deserialize(&self.bytes).map_err(|error| problem(&self.path, &error))?;
        Ok(parsed.iter().map(|(name, view)| (name.to_owned(), (view.shape().to_vec(), view.data()))).collect())
    }

    /// Shape and values of a float32 tensor.
    pub(super) fn f32(&self, name: &str) -> Result<(Vec<usize>, Vec<f32>), EngineError> {
        let (shape, bytes) = self.words(name, Dtype::F32)?;
        Ok((shape, bytes.map(f32::from_le_bytes).collect()))
    }

    /// Shape and values of an unsigned 32-bit tensor.
    pub(super) fn u32(&self, name: &str) -> Result<(Vec<usize>, Vec<u32>), EngineError> {
        let (shape, bytes) = self.words(name, Dtype::U32)?;
        Ok((shape, bytes.map(u32::from_le_bytes).collect()))
    }

    /// Shape and values of a signed 32-bit tensor.
    pub(super) fn i32(&self, name: &str) -> Result<(Vec<usize>, Vec<i32>), EngineError> {
        let (shape, bytes) = self.words(name, Dtype::I32)?;
        Ok((shape, bytes.map(i32::from_le_bytes).collect()))
    }

    fn words(&self, name: &str, dtype: Dtype) -> Result<(Vec<usize>, impl Iterator<Item = [u8; 4]>), EngineError> {
        let parsed = SafeTensors::deserialize(&self.bytes).map_err(|error| problem(&self.path, &error))?;
        let tensor = parsed.tensor(name).map_err(|error| problem(&self.path, &format!("tensor `{name}`: {error}")))?;
        if tensor.dtype() != dtype {
            let text = format!("tensor `{name}`: expected {dtype:?}, got {:?}", tensor.dtype());
            return Err(problem(&self.path, &text));
        }
        let words = tensor.data().chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]);
        Ok((tensor.shape().to_vec(), words))
    }
}
