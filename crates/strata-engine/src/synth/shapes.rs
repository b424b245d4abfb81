//! Shapes of models by name: the numbers of a qwen4exp model, and the keys by which a file says them.
//!
//! Promises: a shape that [`Shape::cut`] gives back is one that a model can have; anything else is refused there.

use strata_gguf::{Array, Metadata, Value};

use super::SynthError;

/// A shape by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SynthShape {
    /// Qwen3.8-Flash-Next with the types of the public IQ2_XS file (spec 12).
    FlashNextIq2,
    /// A few megabytes of the same architecture and types.
    Small,
}

impl SynthShape {
    /// Its name for people and in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::FlashNextIq2 => "flash-next-iq2",
            Self::Small => "small",
        }
    }
}

/// The numbers of a model. Names are those of the specification (spec 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) layers: usize,
    pub(super) hidden: usize,
    pub(super) streams: usize,
    pub(super) low_rank: usize,
    pub(super) vocabulary: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) rotated: usize,
    pub(super) rope_sections: [i32; 4],
    pub(super) indexer_heads: usize,
    pub(super) indexer_dim: usize,
    pub(super) indexer_tokens: usize,
    pub(super) key_heads: usize,
    pub(super) value_heads: usize,
    pub(super) gdn_dim: usize,
    pub(super) experts: usize,
    pub(super) top_k: usize,
    pub(super) ff: usize,
    pub(super) shared_ff: usize,
    /// The n-gram module, if the model has one.
    pub(super) ple: Option<PleShape>,
}

/// The n-gram module and its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PleShape {
    pub(super) row_dim: usize,
    pub(super) heads_per_ngram: usize,
    pub(super) boundary_token: u32,
    /// Rows of each head.
    pub(super) head_rows: Vec<u64>,
}

/// Taps of the convolutions.
pub(super) const CONV_TAPS: usize = 4;
/// Every so many layers one has attention.
const ATTENTION_INTERVAL: usize = 4;
/// Tokens of an attention block.
const BLOCK_TOKENS: i32 = 4;
/// The longest n-gram.
const NGRAM: usize = 3;
/// The layer with the n-gram module, from 0.
pub(super) const PLE_LAYER: usize = 1;
/// Factors of the n-gram hash in the published model.
const PLE_MULTIPLIERS: [u64; NGRAM] = [23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071];
/// The most rows a table may be asked for: ten times the published one.
const MAX_TABLE_ROWS: u64 = 3_200_000_000;

impl PleShape {
    /// A table of about `rows` rows: each head has a prime number of them, not below its share (spec 8).
    fn new(row_dim: usize, heads_per_ngram: usize, boundary_token: u32, rows: u64) -> Self {
        let heads = (NGRAM - 1) * heads_per_ngram;
        let is_prime = |n: u64| (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
        let first = (rows / heads as u64).max(2);
        let head_rows = (first..).filter(|n| is_prime(*n)).take(heads).collect();
        Self { row_dim, heads_per_ngram, boundary_token, head_rows }
    }

    /// Makes the table smaller, if it has more than about `rows` rows.
    pub(super) fn shrink(&mut self, rows: u64) {
        if rows < self.table_rows() {
            *self = Self::new(self.row_dim, self.heads_per_ngram, self.boundary_token, rows);
        }
    }

    /// Rows of the table: those of all heads, up to a multiple of 128.
    pub(super) fn table_rows(&self) -> u64 {
        self.head_rows.iter().sum::<u64>().next_multiple_of(128)
    }

    /// Width of a token's rows together.
    pub(super) fn embedded(&self) -> usize {
        self.head_rows.len() * self.row_dim
    }
}

impl Shape {
    /// The shape of this name with at most `layers` layers, `experts` experts a layer and about `table_rows` rows of the
    /// n-gram table; `None` leaves what it has, no rows leave the module out.
    pub(super) fn cut(
        shape: SynthShape,
        layers: Option<usize>,
        experts: Option<usize>,
        table_rows: Option<u64>,
    ) -> Result<Self, SynthError> {
        let mut cut = match shape {
            SynthShape::FlashNextIq2 => flash_next(),
            SynthShape::Small => small(),
        };
        let within = |what, got: Option<usize>, least: usize, whole: usize| match got.unwrap_or(whole) {
            n if (least..=whole).contains(&n) => Ok(n),
            got => Err(SynthError::Cut { shape: shape.name(), what, got, least, whole }),
        };
        cut.layers = within("layers", layers, 1, cut.layers)?;
        cut.experts = within("experts", experts, cut.top_k, cut.experts)?;
        if let Some(rows) = table_rows.filter(|rows| *rows > MAX_TABLE_ROWS) {
            return Err(SynthError::TableRows { got: rows, most: MAX_TABLE_ROWS });
        }
        let full = match shape {
            SynthShape::FlashNextIq2 => (160, 8, 248_044, DEFAULT_TABLE_ROWS),
            SynthShape::Small => (32, 4, 2047, 8192),
        };
        let rows = table_rows.unwrap_or(full.3);
        cut.ple = (rows > 0 && cut.layers > PLE_LAYER).then(|| PleShape::new(full.0, full.1, full.2, rows));
        Ok(cut)
    }

    /// Whether the layer has attention; the others are Gated DeltaNet.
    pub(super) fn has_attention(layer: usize) -> bool {
        (layer + 1).is_multiple_of(ATTENTION_INTERVAL)
    }

    /// Width of all streams together.
    pub(super) fn wide(&self) -> usize {
        self.streams * self.hidden
    }

    /// Width of the mixer's value heads together.
    pub(super) fn inner(&self) -> usize {
        self.value_heads * self.gdn_dim
    }

    /// Channels of a Gated DeltaNet convolution: queries, keys and values.
    pub(super) fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * self.gdn_dim
    }

    /// Adds what spec 2 says a file must hold.
    pub(super) fn describe(&self, metadata: &mut Metadata) {
        let mut put = |key: &str, value| {
            metadata.insert(format!("qwen4exp.{key}"), value).expect("each key is put once");
        };
        let ratios =
            (0..self.layers).map(|layer| if Self::has_attention(layer) { BLOCK_TOKENS } else { 0 }).collect::<Vec<_>>();
        for (key, size) in [
            ("block_count", self.layers),
            ("context_length", 262_144),
            ("embedding_length", self.hidden),
            ("vocab_size", self.vocabulary),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("attention.indexer.head_count", self.indexer_heads),
            ("attention.indexer.key_length", self.indexer_dim),
            ("attention.indexer.top_k", self.indexer_tokens),
            ("full_attention_interval", ATTENTION_INTERVAL),
            ("rope.dimension_count", self.rotated),
            ("ssm.conv_kernel", CONV_TAPS),
            ("ssm.state_size", self.gdn_dim),
            ("ssm.group_count", self.key_heads),
            ("ssm.time_step_rank", self.value_heads),
            ("ssm.inner_size", self.inner()),
            ("expert_count", self.experts),
            ("expert_used_count", self.top_k),
            ("expert_feed_forward_length", self.ff),
            ("expert_shared_feed_forward_length", self.shared_ff),
            ("hyper_connection.count", self.streams),
            ("hyper_connection.low_rank", self.low_rank),
        ] {
            put(key, Value::U32(size as u32));
        }
        put("attention.layer_norm_rms_epsilon", Value::F32(1e-6));
        put("rope.freq_base", Value::F32(1e7));
        put("attention.compress_ratios", Value::Array(Array::I32(ratios)));
        put("rope.dimension_sections", Value::Array(Array::I32(self.rope_sections.to_vec())));
        let Some(ple) = &self.ple else { return };
        let offsets = ple.head_rows.iter().scan(0, |sum, rows| {
            *sum += rows;
            Some(*sum - rows)
        });
        put("embedding_length_per_layer_input", Value::U32(ple.row_dim as u32));
        put("ple.layers", Value::Array(Array::I32(vec![PLE_LAYER as i32])));
        put("ple.ngram_size", Value::U32(NGRAM as u32));
        put("ple.heads_per_ngram", Value::U32(ple.heads_per_ngram as u32));
        put("ple.conv_kernel", Value::U32(CONV_TAPS as u32));
        put("ple.eos_token_id", Value::U32(ple.boundary_token));
        put("ple.layer_multipliers", Value::Array(Array::U64(PLE_MULTIPLIERS.to_vec())));
        put("ple.head_offsets", Value::Array(Array::U64(offsets.collect())));
        put("ple.head_vocab_sizes", Value::Array(Array::U64(ple.head_rows.clone())));
    }
}

/// Rows of the table when nothing else is asked for: enough that the rows of a long prompt are scattered over pages of
/// their own, without the published table's 29 GB (320,000,000 gives that one).
const DEFAULT_TABLE_ROWS: u64 = 8_000_000;

fn flash_next() -> Shape {
    Shape {
        layers: 48,
        hidden: 2560,
        streams: 4,
        low_rank: 320,
        vocabulary: 248_320,
        heads: 24,
        kv_heads: 2,
        head_dim: 256,
        rotated: 64,
        rope_sections: [11, 11, 10, 0],
        indexer_heads: 4,
        indexer_dim: 128,
        indexer_tokens: 2048,
        key_heads: 16,
        value_heads: 48,
        gdn_dim: 128,
        experts: 512,
        top_k: 10,
        ff: 640,
        shared_ff: 640,
        ple: None,
    }
}

fn small() -> Shape {
    Shape {
        layers: 4,
        hidden: 256,
        streams: 4,
        low_rank: 32,
        vocabulary: 2048,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        rotated: 32,
        rope_sections: [6, 5, 5, 0],
        indexer_heads: 2,
        indexer_dim: 64,
        indexer_tokens: 64,
        key_heads: 2,
        value_heads: 4,
        gdn_dim: 64,
        experts: 32,
        top_k: 4,
        ff: 64,
        shared_ff: 64,
        ple: None,
    }
}
