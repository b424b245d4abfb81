//! Hyper-connections (spec 6.1): the reads of the residual streams.

use strata_backend::HyperRead;

use super::config::Config;
use super::weights::Loader;
use crate::ModelError;

/// Loads the read named `prefix`, for example `blk.0.hc_attn`; the final read has no write weights.
pub(super) fn load(
    loader: &mut Loader<'_>,
    config: &Config,
    prefix: &str,
    has_inject: bool,
) -> Result<HyperRead, ModelError> {
    let wide = config.streams * config.hidden;
    Ok(HyperRead {
        norm: loader.vector(&format!("{prefix}_norm.weight"), wide)?,
        down: loader.matrix(&format!("{prefix}_down"), wide, config.low_rank)?,
        up: loader.matrix(&format!("{prefix}_up"), config.low_rank, wide)?,
        inject: match has_inject {
            true => Some(loader.matrix(&format!("{prefix}_inject"), wide, config.streams)?),
            false => None,
        },
        eps: config.eps,
    })
}
