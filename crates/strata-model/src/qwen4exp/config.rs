//! The numbers of a model, from metadata (spec 2), checked against each other.

use strata_backend::MAX_CONV_TAPS;
use strata_gguf::{Gguf, Metadata, MetadataError, Optional};

use crate::ModelError;

/// The largest value a size in metadata may have: no real one comes near, and products of a few stay far from overflow.
const MAX_SIZE: u64 = 1 << 24;
/// The most experts in all layers: tables of them stay small beside the reserve of a memory plan.
const MAX_EXPERTS_IN_ALL: usize = 1 << 22;
/// The context when neither the user nor the model asks for less.
const DEFAULT_CONTEXT_TOKENS: usize = 32_768;

/// Numbers of a qwen4exp model. Names are those of the specification.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Trunk layers, `L`.
    pub layers: usize,
    /// Width of a stream, `H`.
    pub hidden: usize,
    /// Residual streams, `S`.
    pub streams: usize,
    /// Rank of the hyper-connection gate, `R`.
    pub low_rank: usize,
    /// Epsilon of every norm.
    pub eps: f32,
    /// Tokens the model was made for.
    pub context_length: usize,
    /// Kind of each layer's mixer.
    pub mixers: Vec<MixerKind>,
    /// Attention.
    pub attention: AttentionConfig,
    /// Gated DeltaNet.
    pub gdn: GdnConfig,
    /// Mixture of experts.
    pub moe: MoeConfig,
    /// The n-gram module, if the model has one.
    pub ple: Option<PleConfig>,
    /// Things a user should know about the file.
    pub warnings: Vec<String>,
}

/// What mixes tokens in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixerKind {
    /// Gated DeltaNet.
    Gdn,
    /// Attention, over blocks of `block_tokens` tokens that the indexer selects; 0 = over all tokens.
    Qsa {
        /// Tokens of a block.
        block_tokens: usize,
    },
}

/// Attention layers.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionConfig {
    /// Query heads, `nq`.
    pub heads: usize,
    /// Key/value heads, `nkv`.
    pub kv_heads: usize,
    /// Width of a head, `hd`.
    pub head_dim: usize,
    /// Rotated dimensions, `nrot`.
    pub rotated: usize,
    /// Base of the rotation.
    pub theta: f32,
    /// Query heads of the indexer.
    pub indexer_heads: usize,
    /// Width of an indexer head.
    pub indexer_dim: usize,
    /// Tokens that the indexer selects.
    pub indexer_tokens: usize,
}

/// Gated DeltaNet layers.
#[derive(Clone, Debug, PartialEq)]
pub struct GdnConfig {
    /// Key heads, `nk`.
    pub key_heads: usize,
    /// Value heads, `nv`.
    pub value_heads: usize,
    /// Width of a head, `d`.
    pub head_dim: usize,
    /// Taps of the convolution, `K`.
    pub conv_taps: usize,
}

impl GdnConfig {
    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * self.head_dim
    }
}

/// Mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeConfig {
    /// Experts in a layer.
    pub experts: usize,
    /// Experts a token uses.
    pub top_k: usize,
    /// Width of an expert.
    pub ff: usize,
    /// Width of the shared expert.
    pub shared_ff: usize,
}

/// The n-gram module.
#[derive(Clone, Debug, PartialEq)]
pub struct PleConfig {
    /// The layer it sits in front of, from 0.
    pub layer: usize,
    /// Width of a table row.
    pub row_dim: usize,
    /// Longest n-gram; also the dilation of the convolution.
    pub ngram: usize,
    /// Hashes for each n-gram length.
    pub heads_per_ngram: usize,
    /// Taps of the convolution.
    pub conv_taps: usize,
    /// Token that cuts n-grams.
    pub boundary_token: u32,
    /// Multipliers of the hash, by distance from the current token.
    pub multipliers: Vec<u64>,
    /// Table rows of each head.
    pub head_rows: Vec<u64>,
    /// First table row of each head.
    pub head_offsets: Vec<u64>,
}

impl PleConfig {
    /// Table rows that a token uses.
    pub fn rows_per_token(&self) -> usize {
        self.head_rows.len()
    }
}

fn invalid(key: impl Into<String>, problem: impl Into<String>) -> ModelError {
    ModelError::Config { key: key.into(), problem: problem.into() }
}

/// Metadata of the architecture: keys get its prefix, sizes are checked.
struct Keys<'a>(&'a Metadata);

impl Keys<'_> {
    fn key(key: &str) -> String {
        format!("qwen4exp.{key}")
    }

    /// A size: at least 1.
    fn size(&self, key: &str) -> Result<usize, ModelError> {
        self.size_up_to(key, MAX_SIZE)
    }

    /// A size of which memory or work is more than a multiple.
    fn size_up_to(&self, key: &str, most: u64) -> Result<usize, ModelError> {
        match self.0.u64(&Self::key(key))? {
            n if (1..=most).contains(&n) => Ok(n as usize),
            n => Err(invalid(Self::key(key), format!("expected a size from 1 to {most}, got {n}"))),
        }
    }

    /// A size, or a list of the same size for every layer.
    fn size_of_all_layers(&self, key: &str) -> Result<usize, ModelError> {
        let Ok(list) = self.0.u64_array(&Self::key(key)) else { return self.size(key) };
        match list[..] {
            [first @ 1..=MAX_SIZE, ref others @ ..] if others.iter().all(|n| *n == first) => Ok(first as usize),
            _ => Err(invalid(Self::key(key), "expected one size for all layers; different ones are not supported")),
        }
    }

    fn positive(&self, key: &str) -> Result<f32, ModelError> {
        let value = self.0.f32(&Self::key(key))?;
        if value.is_finite() && value > 0.0 {
            Ok(value)
        } else {
            Err(invalid(Self::key(key), format!("expected a number above 0, got {value}")))
        }
    }

    /// A list of `len` numbers.
    fn list(&self, key: &str, len: usize) -> Result<Vec<u64>, ModelError> {
        let list = self.0.u64_array(&Self::key(key))?;
        if list.len() == len {
            Ok(list)
        } else {
            Err(invalid(Self::key(key), format!("expected {len} numbers, got {}", list.len())))
        }
    }
}

fn divides(key: &str, whole: usize, part: usize, what: &str) -> Result<(), ModelError> {
    if whole.is_multiple_of(part) {
        return Ok(());
    }
    Err(invalid(Keys::key(key), format!("{whole} is not a multiple of {part}, the number of {what}")))
}

impl Config {
    /// Tokens of context when the user does not say how many.
    pub fn default_context_tokens(&self) -> usize {
        self.context_length.clamp(1, DEFAULT_CONTEXT_TOKENS)
    }

    /// Reads and checks the configuration of a file. `block_tokens` overrides the tokens of an attention block in all
    /// attention layers (0: attend to everything).
    ///
    /// # Errors
    /// When the file is of another architecture, or a key is missing or cannot be.
    pub fn read(gguf: &Gguf, block_tokens: Option<usize>) -> Result<Self, ModelError> {
        let metadata = gguf.metadata();
        let architecture = metadata.str("general.architecture")?;
        if architecture != "qwen4exp" {
            return Err(ModelError::Architecture(architecture.to_owned()));
        }
        let keys = Keys(metadata);
        let blocks = keys.size("block_count")?;
        let draft_blocks = metadata.u64(&Keys::key("nextn_predict_layers")).optional()?.unwrap_or(0);
        let layers = match blocks.checked_sub(draft_blocks as usize) {
            Some(layers @ 1..=4096) => layers,
            _ => {
                let problem =
                    format!("{blocks} blocks of which {draft_blocks} are draft blocks: expected 1 to 4096 others");
                return Err(invalid(Keys::key("block_count"), problem));
            }
        };
        let streams = keys.size("hyper_connection.count")?;
        if streams > 64 {
            return Err(invalid(Keys::key("hyper_connection.count"), format!("expected at most 64, got {streams}")));
        }
        let mut warnings = Vec::new();
        let attention = read_attention(&keys)?;
        let mixers = read_mixers(gguf, &keys, layers, &attention, block_tokens, &mut warnings)?;
        Ok(Self {
            layers,
            hidden: keys.size("embedding_length")?,
            streams,
            low_rank: keys.size("hyper_connection.low_rank")?,
            eps: keys.positive("attention.layer_norm_rms_epsilon")?,
            context_length: keys.size("context_length")?,
            mixers,
            attention,
            gdn: read_gdn(&keys)?,
            moe: read_moe(&keys, layers)?,
            ple: read_ple(&keys, layers)?,
            warnings,
        })
    }
}

fn read_attention(keys: &Keys<'_>) -> Result<AttentionConfig, ModelError> {
    let config = AttentionConfig {
        heads: keys.size("attention.head_count")?,
        kv_heads: keys.size("attention.head_count_kv")?,
        head_dim: keys.size("attention.key_length")?,
        rotated: keys.size("rope.dimension_count")?,
        theta: keys.positive("rope.freq_base")?,
        indexer_heads: keys.size("attention.indexer.head_count")?,
        indexer_dim: keys.size("attention.indexer.key_length")?,
        indexer_tokens: keys.size("attention.indexer.top_k")?,
    };
    divides("attention.head_count", config.heads, config.kv_heads, "key/value heads")?;
    let value_length = keys.size("attention.value_length")?;
    if value_length != config.head_dim {
        let problem = format!("{value_length} differs from the key length {}", config.head_dim);
        return Err(invalid(Keys::key("attention.value_length"), problem));
    }
    let most = config.head_dim.min(config.indexer_dim);
    if !config.rotated.is_multiple_of(2) || config.rotated > most {
        let problem = format!("expected an even number up to {most} (the smaller head), got {}", config.rotated);
        return Err(invalid(Keys::key("rope.dimension_count"), problem));
    }
    Ok(config)
}

fn read_gdn(keys: &Keys<'_>) -> Result<GdnConfig, ModelError> {
    let config = GdnConfig {
        key_heads: keys.size("ssm.group_count")?,
        value_heads: keys.size("ssm.time_step_rank")?,
        head_dim: keys.size_up_to("ssm.state_size", 4096)?,
        conv_taps: keys.size_up_to("ssm.conv_kernel", MAX_CONV_TAPS as u64)?,
    };
    divides("ssm.time_step_rank", config.value_heads, config.key_heads, "key heads")?;
    let inner = keys.size("ssm.inner_size")?;
    if inner != config.value_heads * config.head_dim {
        let problem = format!("{inner} is not {} value heads of {}", config.value_heads, config.head_dim);
        return Err(invalid(Keys::key("ssm.inner_size"), problem));
    }
    Ok(config)
}

fn read_moe(keys: &Keys<'_>, layers: usize) -> Result<MoeConfig, ModelError> {
    let config = MoeConfig {
        experts: keys.size("expert_count")?,
        top_k: keys.size_up_to("expert_used_count", 1024)?,
        ff: keys.size_of_all_layers("expert_feed_forward_length")?,
        shared_ff: keys.size("expert_shared_feed_forward_length")?,
    };
    if config.top_k > config.experts {
        let problem = format!("{} experts a token of only {}", config.top_k, config.experts);
        return Err(invalid(Keys::key("expert_used_count"), problem));
    }
    if config.experts > MAX_EXPERTS_IN_ALL / layers {
        let problem =
            format!("{} experts in each of {layers} layers: at most {MAX_EXPERTS_IN_ALL} in all", config.experts);
        return Err(invalid(Keys::key("expert_count"), problem));
    }
    Ok(config)
}

fn read_ple(keys: &Keys<'_>, layers: usize) -> Result<Option<PleConfig>, ModelError> {
    let Some(at) = keys.0.u64_array(&Keys::key("ple.layers")).optional()? else { return Ok(None) };
    let layer = match at[..] {
        [] => return Ok(None),
        [layer] if (layer as usize) < layers => layer as usize,
        _ => {
            let problem = format!("expected one layer below {layers}, got {at:?}");
            return Err(invalid(Keys::key("ple.layers"), problem));
        }
    };
    let ngram = keys.size("ple.ngram_size")?;
    let heads_per_ngram = keys.size("ple.heads_per_ngram")?;
    if !(2..=16).contains(&ngram) || heads_per_ngram > 1024 {
        let problem = format!("expected 2 to 16 with at most 1024 heads each, got {ngram} with {heads_per_ngram}");
        return Err(invalid(Keys::key("ple.ngram_size"), problem));
    }
    let heads = (ngram - 1) * heads_per_ngram;
    let config = PleConfig {
        layer,
        row_dim: keys.size("embedding_length_per_layer_input")?,
        ngram,
        heads_per_ngram,
        conv_taps: keys.size_up_to("ple.conv_kernel", MAX_CONV_TAPS as u64)?,
        boundary_token: keys.0.u32(&Keys::key("ple.eos_token_id"))?,
        multipliers: keys.list("ple.layer_multipliers", ngram)?,
        head_rows: keys.list("ple.head_vocab_sizes", heads)?,
        head_offsets: keys.list("ple.head_offsets", heads)?,
    };
    if let Some(head) = config.head_rows.iter().position(|rows| *rows == 0) {
        return Err(invalid(Keys::key("ple.head_vocab_sizes"), format!("head {head} has no rows")));
    }
    Ok(Some(config))
}

/// Kinds of the layers, and the repair of files whose block sizes were lost in conversion (spec 2, "Defect to expect").
fn read_mixers(
    gguf: &Gguf,
    keys: &Keys<'_>,
    layers: usize,
    attention: &AttentionConfig,
    block_tokens: Option<usize>,
    warnings: &mut Vec<String>,
) -> Result<Vec<MixerKind>, ModelError> {
    let recurrent = match keys.0.bool_array(&Keys::key("attention.recurrent_layers")).optional()? {
        Some(list) if list.len() >= layers => list.to_vec(),
        Some(list) => {
            let problem = format!("expected {layers} flags, got {}", list.len());
            return Err(invalid(Keys::key("attention.recurrent_layers"), problem));
        }
        None => {
            let interval = match keys.size("full_attention_interval") {
                Err(ModelError::Metadata(MetadataError::Missing { .. })) => 4,
                other => other?,
            };
            (0..layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect()
        }
    };

    let key = "attention.compress_ratios";
    let mut ratios = keys.0.u64_array(&Keys::key(key)).optional()?.unwrap_or_else(|| vec![0; layers]);
    if ratios.len() < layers {
        return Err(invalid(Keys::key(key), format!("expected {layers} numbers, got {}", ratios.len())));
    }
    ratios.truncate(layers);
    if let Some(block_tokens) = block_tokens {
        let budget_tokens = attention.indexer_tokens;
        if block_tokens > budget_tokens {
            return Err(ModelError::BlockTooLarge { block_tokens, budget_tokens });
        }
        ratios.fill(block_tokens as u64);
    } else {
        let has_indexer = (0..layers).any(|i| gguf.tensor(&format!("blk.{i}.indexer.k_proj.weight")).is_some());
        if has_indexer && ratios.iter().all(|r| *r == 0) {
            ratios.fill(DEFAULT_BLOCK_TOKENS);
            warnings.push(format!(
                "`{}` is missing or all zeros although the file has an indexer, as some converters write it: \
                 attention blocks of {DEFAULT_BLOCK_TOKENS} tokens are used (0 would attend to everything)",
                Keys::key(key)
            ));
        }
    }
    let kind = |(recurrent, ratio): (&bool, &u64)| match (recurrent, *ratio as usize) {
        (true, _) => Ok(MixerKind::Gdn),
        (false, block_tokens) if *ratio <= attention.indexer_tokens as u64 => Ok(MixerKind::Qsa { block_tokens }),
        (false, _) => Err(invalid(
            Keys::key(key),
            format!("blocks of {ratio} tokens do not fit the budget of {} tokens", attention.indexer_tokens),
        )),
    };
    recurrent.iter().zip(&ratios).map(kind).collect()
}

/// Tokens of a block in the published model.
const DEFAULT_BLOCK_TOKENS: u64 = 4;
