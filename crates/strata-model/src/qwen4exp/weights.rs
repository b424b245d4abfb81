//! Tensors by name: each is checked for its shape, read, and handed to the backend.

use strata_backend::{Backend, MatrixData, MatrixId, VectorId};
use strata_gguf::{Gguf, Tensor};
use strata_quant::decode_row;

use crate::ModelError;

/// Loads the tensors of one file into one backend.
pub(super) struct Loader<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) backend: &'a mut dyn Backend,
}

/// The tensor of this name.
pub(super) fn tensor<'a>(gguf: &'a Gguf, name: &str) -> Result<&'a Tensor, ModelError> {
    gguf.tensor(name).ok_or_else(|| ModelError::MissingTensor {
        name: name.to_owned(),
        hint: if gguf.tensors().any(|tensor| tensor.name.starts_with("blk.0.")) {
            "the file is incomplete, a part of a model, or of another release"
        } else {
            "the file holds no model, or only its draft head"
        },
    })
}

/// The tensor of this name, with these dimensions (contiguous first).
pub(super) fn shaped<'a>(gguf: &'a Gguf, name: &str, expected: &[usize]) -> Result<&'a Tensor, ModelError> {
    let tensor = tensor(gguf, name)?;
    // A last dimension of 1 may be left out, or be written where none is needed.
    let got = without_ones(&tensor.dims);
    let wanted: Vec<u64> = expected.iter().map(|d| *d as u64).collect();
    if got == without_ones(&wanted) { Ok(tensor) } else { Err(wrong_shape(tensor, expected)) }
}

impl Loader<'_> {
    /// A matrix that takes `cols` values and gives `rows`.
    pub(super) fn matrix(&mut self, name: &str, cols: usize, rows: usize) -> Result<MatrixId, ModelError> {
        let tensor = shaped(self.gguf, &format!("{name}.weight"), &[cols, rows])?;
        let (ty, bytes) = (tensor.ty, self.gguf.read(tensor)?);
        let scale = self.scales(name, 1)?[0];
        Ok(self.backend.load_matrix(MatrixData { ty, rows, cols, scale, bytes }))
    }

    /// The factors that some releases keep beside a tensor (spec 4, NVFP4): one, or one for each of `count` experts.
    pub(super) fn scales(&self, name: &str, count: usize) -> Result<Vec<f32>, ModelError> {
        let Some(tensor) = self.gguf.tensor(&format!("{name}.scale")) else { return Ok(vec![1.0; count]) };
        let values = self.values(tensor)?;
        match values.len() {
            1 => Ok(vec![values[0]; count]),
            n if n == count => Ok(values),
            _ => Err(wrong_shape(tensor, &[count])),
        }
    }

    /// Refuses a factor beside a tensor that is no matrix: what it would mean is not specified.
    pub(super) fn no_scale(&self, name: &str) -> Result<(), ModelError> {
        match self.gguf.tensor(&format!("{name}.scale")) {
            Some(tensor) => Err(ModelError::Unsupported { tensor: tensor.name.clone() }),
            None => Ok(()),
        }
    }

    /// `len` float32 values; how the file divides them into dimensions does not matter.
    pub(super) fn vector(&mut self, name: &str, len: usize) -> Result<VectorId, ModelError> {
        let values = self.vector_values(name, len)?;
        Ok(self.backend.load_vector(values))
    }

    /// Convolution taps: `[taps]` of each of `channels` in the file, `[taps][channels]` for the backend.
    pub(super) fn taps(&mut self, name: &str, taps: usize, channels: usize) -> Result<VectorId, ModelError> {
        shaped(self.gguf, name, &[taps, channels])?;
        let values = self.vector_values(name, taps * channels)?;
        let by_tap = (0..taps).flat_map(|tap| values[tap..].iter().step_by(taps).copied()).collect();
        Ok(self.backend.load_vector(by_tap))
    }

    fn vector_values(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        self.no_scale(name.trim_end_matches(".weight"))?;
        let tensor = tensor(self.gguf, name)?;
        if tensor.weights() != len as u64 {
            return Err(wrong_shape(tensor, &[len]));
        }
        self.values(tensor)
    }

    fn values(&self, tensor: &Tensor) -> Result<Vec<f32>, ModelError> {
        let mut values = vec![0.0; tensor.weights() as usize];
        decode_row(tensor.ty, &self.gguf.read(tensor)?, &mut values);
        Ok(values)
    }
}

fn without_ones(dims: &[u64]) -> &[u64] {
    let used = dims.iter().rposition(|d| *d != 1).map_or(0, |last| last + 1);
    &dims[..used]
}

pub(super) fn wrong_shape(tensor: &Tensor, expected: &[usize]) -> ModelError {
    ModelError::Shape {
        name: tensor.name.clone(),
        expected: expected.iter().map(|d| *d as u64).collect(),
        got: tensor.dims.clone(),
    }
}
