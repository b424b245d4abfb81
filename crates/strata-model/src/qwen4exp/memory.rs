//! What a model takes of memory, from its numbers and the table of its tensors: nothing is loaded.

use strata_backend::{CpuBackend, KvType, PassShape};
use strata_gguf::{Gguf, Tensor};
use strata_store::plan::ModelShape;

use super::config::Config;
use super::{DECODE_ROWS, DraftHead, MixerKind, Streaming, gdn, moe, mtp, ple, qsa, weights};
use crate::ModelError;

/// Bytes of a value.
const F32: u64 = size_of::<f32>() as u64;
/// Weight rows that a thread decodes at a time, in float32 and in bfloat16.
const PANEL_BYTES: u64 = 32 * (4 + 2);
/// Rows that tiles are padded to.
const TILE_ROWS: u64 = 16;
/// A context of this many tokens is a whole number of blocks and cache lines.
const MEASURED_TOKENS: usize = 1 << 20;

/// The numbers that a memory plan of a file's model needs, for strips of `strip_rows` and keys and values kept in `kv`.
///
/// # Errors
/// When the file is no such model.
pub fn memory_shape(gguf: &Gguf, config: &Config, strip_rows: usize, kv: KvType) -> Result<ModelShape, ModelError> {
    let mut part_bytes = Vec::with_capacity(config.layers);
    for layer in 0..config.layers {
        part_bytes.push(moe::routed(gguf, config, layer)?.map(|(_, range)| range.len_bytes));
    }
    let sequence = sequence(config, kv);
    let table = match &config.ple {
        Some(_) => Some(weights::tensor(gguf, "per_layer_token_embd.weight")?),
        None => None,
    };
    let room_token_bytes = room_bytes(config);
    let (moe, hidden) = (&config.moe, config.hidden);
    let ple_rows = config.ple.as_ref().map_or(0, |ple| ple.rows_per_token() as u64);
    let row = PassShape {
        rows: 1,
        strip_rows: 1,
        streams: config.streams,
        hidden,
        experts: moe.experts,
        top_k: moe.top_k,
        expert_ff: moe.ff,
        keep_details: false,
    };
    // Beside the rows: of each choice its id and weight, its place in the list by expert, and whether it is taken.
    let pass_token_bytes = CpuBackend::pass_row_bytes(&row) + (8 + 8 + 1) * moe.top_k as u64 + 8 * ple_rows;
    let budget_tokens = (config.attention.indexer_tokens + most_block_tokens(config)) as u64;
    let attention = &config.attention;
    let thread_values = 8 * (attention.heads * attention.head_dim) as u64;
    // Of each token that a row attends to, itself and its weight in every head; keys or values of some, decoded.
    let shared_heads = (attention.heads / attention.kv_heads.max(1)) as u64;
    let attended_values = budget_tokens * (1 + shared_heads) + 128 * attention.head_dim as u64;
    Ok(ModelShape {
        dense_bytes: dense_bytes(gguf, config),
        experts: moe.experts as u64,
        top_k: moe.top_k as u64,
        part_bytes,
        // A cache may be padded to whole groups of four tokens.
        state_bytes: sequence.fixed_bytes.saturating_add(sequence.token_bytes.saturating_mul(3)),
        checkpoint_bytes: checkpoint_bytes(config),
        logits_bytes: F32.saturating_mul(weights::tensor(gguf, "token_embd.weight")?.rows()),
        cache_token_bytes: sequence.token_bytes,
        // Scores of sixteen rows for each block.
        context_token_bytes: (16 * F32).div_ceil(most_block_tokens(config).max(1) as u64),
        strip_bytes: strip_bytes(gguf, config, strip_rows as u64)?,
        thread_bytes: PANEL_BYTES * (config.streams * hidden) as u64
            + TILE_ROWS * room_token_bytes
            + F32 * thread_values
            + F32 * attended_values,
        pass_token_bytes,
        room_token_bytes,
        ple_rows,
        ple_row_bytes: table.map_or(0, Tensor::row_bytes),
        ple_table_bytes: table
            .map(|table| table.len_bytes)
            .filter(|bytes| *bytes <= Streaming::SMALL_TABLE_BYTES)
            .unwrap_or(0),
    })
}

/// Adds a draft head to the numbers of a model: its weights, its experts, what it keeps of a text.
///
/// # Errors
/// When it is no head of this model.
pub fn add_draft_head(
    shape: &mut ModelShape,
    trunk: &Gguf,
    config: &Config,
    head: &DraftHead,
    strip_rows: usize,
    kv: KvType,
) -> Result<(), ModelError> {
    let gguf = head.file.as_deref().unwrap_or(trunk);
    let block = mtp::block(gguf)?;
    shape.part_bytes.push(moe::routed(gguf, config, block)?.map(|(_, range)| range.len_bytes));
    let prefix = format!("blk.{block}.");
    let is_ours = |name: &str| {
        let is_read = name.starts_with("output_hc_") && mtp::last_read(head, gguf, block) == "output_hc";
        let is_block = name.starts_with(&prefix) && !name.contains("_exps.") && !name.contains(".indexer.");
        (is_block || is_read) && !name.ends_with(".scale")
    };
    let tensors = gguf.tensors().filter(|tensor| is_ours(&tensor.name));
    shape.dense_bytes += 3 * F32 * config.moe.experts as u64 + tensors.map(loaded_bytes).sum::<u64>();
    let bytes = |context| -> u64 { mtp::state_shapes(config, context, kv).iter().map(CpuBackend::state_bytes).sum() };
    let token_bytes = (bytes(2 * MEASURED_TOKENS) - bytes(MEASURED_TOKENS)) / MEASURED_TOKENS as u64;
    shape.cache_token_bytes = shape.cache_token_bytes.saturating_add(token_bytes);
    let wide = (config.streams * config.hidden) as u64;
    shape.state_bytes = shape.state_bytes.saturating_add(F32 * wide + 3 * token_bytes);
    shape.checkpoint_bytes = shape.checkpoint_bytes.saturating_add(F32 * wide);
    // Embeddings and streams side by side.
    shape.strip_bytes += 2 * F32 * wide * strip_rows as u64;
    Ok(())
}

/// What a checkpoint takes: a copy of the state that does not grow with the text.
pub fn checkpoint_bytes(config: &Config) -> u64 {
    sequence(config, KvType::Float32).fixed_bytes
}

/// What taking back drafts needs: a copy of the state, and what a few rows gave to it.
pub fn window_bytes(config: &Config) -> u64 {
    let (gdn, wide) = (&config.gdn, config.streams * config.hidden);
    let kept = config.mixers.iter().map(|mixer| match mixer {
        MixerKind::Gdn => 2 * gdn.channels() + 2 * gdn.value_heads,
        MixerKind::Qsa { .. } => config.attention.indexer_dim,
    });
    let row_values = kept.sum::<usize>() + 2 * wide;
    checkpoint_bytes(config).saturating_add(F32 * (DECODE_ROWS * row_values) as u64)
}

fn most_block_tokens(config: &Config) -> usize {
    let blocks = config.mixers.iter().map(|mixer| match *mixer {
        MixerKind::Gdn => 0,
        MixerKind::Qsa { block_tokens } => block_tokens,
    });
    blocks.max().unwrap_or(0)
}

/// What one sequence keeps.
struct SequenceBytes {
    fixed_bytes: u64,
    token_bytes: u64,
}

fn sequence(config: &Config, kv: KvType) -> SequenceBytes {
    let total = |context_tokens: usize| -> u64 {
        let layers = config.mixers.iter().map(|mixer| match *mixer {
            MixerKind::Gdn => gdn::state_shape(config),
            MixerKind::Qsa { block_tokens } => qsa::state_shape(config, block_tokens, context_tokens, kv),
        });
        let ple = config.ple.as_ref().map(|ple| ple::state_shape(config, ple));
        let shapes = layers.chain(ple);
        // What a file claims may be absurd.
        shapes.fold(0, |sum: u64, shape| sum.saturating_add(CpuBackend::state_bytes(&shape)))
    };
    let (once, twice) = (total(MEASURED_TOKENS), total(2 * MEASURED_TOKENS));
    let token_bytes = (twice - once).div_ceil(MEASURED_TOKENS as u64);
    SequenceBytes { fixed_bytes: once.saturating_sub(token_bytes.saturating_mul(MEASURED_TOKENS as u64)), token_bytes }
}

/// What stays in memory: all tensors that are neither routed experts, nor the n-gram table, nor a draft head. Short lists
/// of numbers become float32; each expert has three factors.
fn dense_bytes(gguf: &Gguf, config: &Config) -> u64 {
    let scales = 3 * F32 * (config.layers * config.moe.experts) as u64;
    let tensors = gguf.tensors().filter(|tensor| is_dense(&tensor.name, config.layers));
    scales + tensors.map(loaded_bytes).sum::<u64>()
}

fn loaded_bytes(tensor: &Tensor) -> u64 {
    if is_list(&tensor.name) { F32 * tensor.weights() } else { tensor.len_bytes }
}

/// Bytes of weights that a single token reads: all that stay in memory but the rows of the embedding, of which it needs one
/// (all of them again where they are the output matrix, too), and the experts that it is routed to.
///
/// # Errors
/// When the file is no such model.
pub fn token_bytes(gguf: &Gguf, config: &Config) -> Result<u64, ModelError> {
    let embedding = weights::tensor(gguf, "token_embd.weight")?;
    let unread_bytes = match gguf.tensor("output.weight") {
        Some(_) => embedding.len_bytes - embedding.row_bytes(),
        None => 0,
    };
    let mut expert_bytes = 0;
    for layer in 0..config.layers {
        expert_bytes += moe::routed(gguf, config, layer)?.iter().map(|(_, range)| range.len_bytes).sum::<u64>();
    }
    Ok(dense_bytes(gguf, config) - unread_bytes + config.moe.top_k as u64 * expert_bytes)
}

fn is_dense(name: &str, layers: usize) -> bool {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')?.0.parse::<usize>().ok());
    let is_trunk = layer.is_none_or(|layer| layer < layers) && !name.contains("nextn.");
    is_trunk && !name.contains("_exps.") && !name.starts_with("per_layer_token_embd") && !name.ends_with(".scale")
}

/// Whether a tensor is loaded as float32 values, not as a matrix.
fn is_list(name: &str) -> bool {
    let parts = ["norm", "conv1d", "gate_inp_shexp"];
    parts.iter().any(|part| name.contains(part)) || name.ends_with(".bias") || name.ends_with("ssm_a")
}

/// What a token takes where an expert gathers its rows: input, gate, up, hidden values and the place.
fn room_bytes(config: &Config) -> u64 {
    F32 * (config.hidden + 3 * config.moe.ff) as u64 + 8
}

/// The buffers that operations share, each as wide as the widest use; the rounded inputs of a product; rotations and
/// selections; the table rows of the strip; one row of logits, twice.
fn strip_bytes(gguf: &Gguf, config: &Config, rows: u64) -> Result<u64, ModelError> {
    let (gdn, attention, moe) = (&config.gdn, &config.attention, &config.moe);
    let wide = config.streams * config.hidden;
    let inner = gdn.value_heads * gdn.head_dim;
    let embedded = config.ple.as_ref().map_or(0, |ple| ple.rows_per_token() * ple.row_dim);
    let indexer = attention.indexer_heads * attention.indexer_dim;
    let (queries, kv) = (2 * attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim);
    let widest = |widths: &[usize]| widths.iter().copied().max().unwrap_or(0);
    let buffers = [
        widest(&[wide, gdn.channels(), inner, kv, queries, embedded, moe.experts, moe.shared_ff]),
        widest(&[wide, gdn.channels(), inner, kv, queries / 2, config.low_rank, moe.shared_ff]),
        widest(&[wide, gdn.value_heads, indexer, config.hidden]),
        widest(&[gdn.value_heads, config.hidden, config.streams]),
        widest(&[wide, inner]),
    ];
    let inputs = widest(&[wide, inner, queries / 2, embedded, moe.shared_ff]);
    let selected = attention.indexer_tokens / most_block_tokens(config).max(1);
    let values = buffers.iter().sum::<usize>() + inputs + attention.rotated + selected;
    let table_rows = match &config.ple {
        Some(ple) => ple.rows_per_token() as u64 * weights::tensor(gguf, "per_layer_token_embd.weight")?.row_bytes(),
        None => 0,
    };
    let vocabulary = weights::tensor(gguf, "token_embd.weight")?.rows();
    // A user may ask for any strip, and a file claim any width.
    let row_bytes = (F32 * values as u64).saturating_add(table_rows);
    Ok(rows.saturating_mul(row_bytes).saturating_add((2 * F32).saturating_mul(vocabulary)))
}
