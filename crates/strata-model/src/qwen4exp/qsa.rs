//! Attention layers (spec 6.3).

use strata_backend::{Indexer, KvType, Qsa, StateShape};

use super::config::{AttentionConfig, Config};
use super::weights::Loader;
use crate::ModelError;

/// Loads attention over blocks of `block_tokens` tokens; 0 = over all tokens, whether or not the file has an indexer.
pub(super) fn load(
    loader: &mut Loader<'_>,
    config: &Config,
    layer: usize,
    block_tokens: usize,
) -> Result<Qsa, ModelError> {
    let &AttentionConfig { heads, kv_heads, head_dim, rotated, theta, .. } = &config.attention;
    let hidden = config.hidden;
    let name = |part: &str| format!("blk.{layer}.{part}");
    Ok(Qsa {
        q: loader.matrix(&name("attn_q"), hidden, heads * 2 * head_dim)?,
        k: loader.matrix(&name("attn_k"), hidden, kv_heads * head_dim)?,
        v: loader.matrix(&name("attn_v"), hidden, kv_heads * head_dim)?,
        out: loader.matrix(&name("attn_output"), heads * head_dim, hidden)?,
        q_norm: loader.vector(&name("attn_q_norm.weight"), head_dim)?,
        k_norm: loader.vector(&name("attn_k_norm.weight"), head_dim)?,
        heads,
        kv_heads,
        head_dim,
        rotated,
        theta,
        eps: config.eps,
        indexer: match block_tokens {
            0 => None,
            _ => Some(load_indexer(loader, config, layer, block_tokens)?),
        },
    })
}

fn load_indexer(
    loader: &mut Loader<'_>,
    config: &Config,
    layer: usize,
    block_tokens: usize,
) -> Result<Indexer, ModelError> {
    let &AttentionConfig { indexer_heads: heads, indexer_dim: dim, indexer_tokens, .. } = &config.attention;
    let name = |part: &str| format!("blk.{layer}.indexer.{part}");
    Ok(Indexer {
        q: loader.matrix(&name("q_proj"), config.hidden, heads * dim)?,
        k: loader.matrix(&name("k_proj"), config.hidden, dim)?,
        q_norm: loader.vector(&name("q_norm.weight"), dim)?,
        k_norm: loader.vector(&name("k_norm.weight"), dim)?,
        heads,
        dim,
        block_tokens,
        budget_blocks: indexer_tokens / block_tokens,
    })
}

pub(super) fn state_shape(config: &Config, block_tokens: usize, context_tokens: usize, kv: KvType) -> StateShape {
    let AttentionConfig { kv_heads, head_dim, indexer_dim, .. } = config.attention;
    StateShape::Qsa {
        context_tokens,
        kv,
        kv_heads,
        head_dim,
        indexer: (block_tokens > 0).then_some((indexer_dim, block_tokens)),
    }
}
