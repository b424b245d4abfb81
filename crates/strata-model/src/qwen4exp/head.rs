//! Both ends of the model: the token embedding, and the final read of the streams with the output matrix (spec 6.5).

use strata_backend::{HyperRead, MatrixId};

use super::config::Config;
use super::hyper;
use super::weights::{Loader, tensor, wrong_shape};
use crate::ModelError;

pub(super) struct Head {
    pub(super) embedding: MatrixId,
    pub(super) read: HyperRead,
    pub(super) output: MatrixId,
    /// Rows of both matrices.
    pub(super) vocabulary: usize,
}

pub(super) fn load(loader: &mut Loader<'_>, config: &Config) -> Result<Head, ModelError> {
    let table = tensor(loader.gguf, "token_embd.weight")?;
    let vocabulary = table.rows() as usize;
    if vocabulary > u32::MAX as usize {
        return Err(wrong_shape(table, &[config.hidden, u32::MAX as usize]));
    }
    loader.no_scale("token_embd")?;
    let embedding = loader.matrix("token_embd", config.hidden, vocabulary)?;
    let output = match loader.gguf.tensor("output.weight") {
        Some(_) => loader.matrix("output", config.hidden, vocabulary)?,
        None => embedding, // tied
    };
    Ok(Head { embedding, read: hyper::load(loader, config, "output_hc", false)?, output, vocabulary })
}
