//! One tensor of a model: its name, shape and type, and where its bytes are.

use crate::TensorType;
use crate::error::Problem;
use crate::format::MAX_DIMS;

/// A tensor of a model file. All fields of a tensor that a reader hands out are checked against each other and against
/// the size of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its dimensions, 1 to 4 of them, none zero; the first is the length of a row (`ne0`).
    pub dims: Vec<u64>,
    /// The type of its weights.
    pub ty: TensorType,
    /// Index of its file among those of the model.
    pub file: usize,
    /// Where its data begin, in bytes from the start of that file.
    pub offset: u64,
    /// Length of its data in bytes.
    pub len_bytes: u64,
}

impl Tensor {
    /// Number of weights.
    pub fn weights(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Number of rows: the product of all dimensions but the first.
    pub fn rows(&self) -> u64 {
        self.dims[1..].iter().product()
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> u64 {
        self.len_bytes / self.rows()
    }
}

/// Bytes of a tensor's data; an error when it cannot have this shape and type.
pub(crate) fn data_bytes(name: &str, dims: &[u64], ty: TensorType) -> Result<u64, Problem> {
    let tensor = || name.to_owned();
    let (1..=MAX_DIMS, Some(&row_weights)) = (dims.len(), dims.first()) else {
        return Err(Problem::DimCount { tensor: tensor(), got: dims.len() as u64 });
    };
    if dims.contains(&0) {
        return Err(Problem::ZeroDim { tensor: tensor(), dims: dims.to_vec() });
    }
    if !row_weights.is_multiple_of(ty.block_weights() as u64) {
        return Err(Problem::PartialBlock { tensor: tensor(), row_weights, ty });
    }
    let weights = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
    // The data are checked as well as the weights: blocks of float32 take more bytes than they have weights.
    weights.and_then(|weights| ty.row_bytes(weights)).ok_or_else(|| Problem::TooLarge {
        tensor: tensor(),
        dims: dims.to_vec(),
        ty,
    })
}
