//! Gated DeltaNet layers (spec 6.2).

use strata_backend::{Gdn, GdnForm, StateShape};

use super::config::{Config, GdnConfig};
use super::weights::Loader;
use crate::ModelError;

pub(super) fn load(loader: &mut Loader<'_>, config: &Config, layer: usize, form: GdnForm) -> Result<Gdn, ModelError> {
    let &GdnConfig { key_heads, value_heads, head_dim, conv_taps } = &config.gdn;
    let (hidden, channels, inner) = (config.hidden, config.gdn.channels(), value_heads * head_dim);
    let name = |part: &str| format!("blk.{layer}.{part}");
    Ok(Gdn {
        qkv: loader.matrix(&name("attn_qkv"), hidden, channels)?,
        gate: loader.matrix(&name("attn_gate"), hidden, inner)?,
        alpha: loader.matrix(&name("ssm_alpha"), hidden, value_heads)?,
        beta: loader.matrix(&name("ssm_beta"), hidden, value_heads)?,
        conv: loader.taps(&name("ssm_conv1d.weight"), conv_taps, channels)?,
        dt_bias: loader.vector(&name("ssm_dt.bias"), value_heads)?,
        a: loader.vector(&name("ssm_a"), value_heads)?,
        norm: loader.vector(&name("ssm_norm.weight"), head_dim)?,
        out: loader.matrix(&name("ssm_out"), inner, hidden)?,
        key_heads,
        value_heads,
        head_dim,
        eps: config.eps,
        form,
    })
}

pub(super) fn state_shape(config: &Config) -> StateShape {
    let GdnConfig { value_heads, head_dim, conv_taps, .. } = config.gdn;
    StateShape::Gdn { value_heads, head_dim, channels: config.gdn.channels(), history_rows: conv_taps - 1 }
}
