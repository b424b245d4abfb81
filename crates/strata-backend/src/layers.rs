//! What an operation needs to know of a layer: its weights by handle, and its numbers. Shapes are `[rows][cols]`, so a
//! matrix takes an input of `cols` and gives `rows`.

use strata_gguf::TensorType;

use crate::{MatrixId, VectorId};

/// A read of the residual streams (spec 6.1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HyperRead {
    /// Gamma of the grouped norm, `[S * H]`.
    pub norm: VectorId,
    /// First gate factor, `[R][S * H]`.
    pub down: MatrixId,
    /// Second gate factor, `[S * H][R]`.
    pub up: MatrixId,
    /// Write weights, `[S][S * H]`; `None` for the final read.
    pub inject: Option<MatrixId>,
    /// Epsilon of the norm.
    pub eps: f32,
}

/// What mixes tokens in a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Gated DeltaNet.
    Gdn(Gdn),
    /// Indexed sparse attention.
    Qsa(Qsa),
}

/// How the recurrence of Gated DeltaNet is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GdnForm {
    /// Token by token: the same bytes however a prompt was cut.
    #[default]
    Recurrent,
    /// As products over chunks of tokens: equal up to rounding, and dependent on where a prompt was cut.
    Chunked,
}

/// Gated DeltaNet (spec 6.2). `C` channels = queries and keys of `key_heads`, then values of `value_heads`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gdn {
    /// `[C][H]`.
    pub qkv: MatrixId,
    /// Output gate, `[value_heads * d][H]`.
    pub gate: MatrixId,
    /// Decay input, `[value_heads][H]`.
    pub alpha: MatrixId,
    /// Write strength, `[value_heads][H]`.
    pub beta: MatrixId,
    /// Convolution taps, oldest first, `[K][C]`.
    pub conv: VectorId,
    /// `[value_heads]`.
    pub dt_bias: VectorId,
    /// `-exp(A_log)`, `[value_heads]`.
    pub a: VectorId,
    /// Gamma of the output norm, `[d]`.
    pub norm: VectorId,
    /// `[H][value_heads * d]`.
    pub out: MatrixId,
    /// Key heads; value head `h` uses key head `h mod key_heads`.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Epsilon of the output norm.
    pub eps: f32,
    /// How the recurrence is computed.
    pub form: GdnForm,
}

/// Attention over all earlier tokens or, with an indexer, over its choice of blocks (spec 6.3).
#[derive(Clone, Debug, PartialEq)]
pub struct Qsa {
    /// Per head `head_dim` query rows, then `head_dim` gate rows: `[heads * 2 * head_dim][H]`.
    pub q: MatrixId,
    /// `[kv_heads * head_dim][H]`.
    pub k: MatrixId,
    /// `[kv_heads * head_dim][H]`.
    pub v: MatrixId,
    /// `[H][heads * head_dim]`.
    pub out: MatrixId,
    /// Gamma of the queries, `[head_dim]`.
    pub q_norm: VectorId,
    /// Gamma of the keys, `[head_dim]`.
    pub k_norm: VectorId,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Rotated dimensions.
    pub rotated: usize,
    /// Base of the rotation.
    pub theta: f32,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Which blocks are attended to; `None`: all tokens.
    pub indexer: Option<Indexer>,
}

/// The block selection of an attention layer (spec 6.3).
#[derive(Clone, Debug, PartialEq)]
pub struct Indexer {
    /// `[heads * dim][H]`.
    pub q: MatrixId,
    /// `[dim][H]`.
    pub k: MatrixId,
    /// `[dim]`.
    pub q_norm: VectorId,
    /// `[dim]`.
    pub k_norm: VectorId,
    /// Query heads.
    pub heads: usize,
    /// Width of a head.
    pub dim: usize,
    /// Tokens of a block.
    pub block_tokens: usize,
    /// Blocks that are selected.
    pub budget_blocks: usize,
}

/// The n-gram module (spec 8).
#[derive(Clone, Debug, PartialEq)]
pub struct Ple {
    /// `[S * H][heads * row_dim]`.
    pub key: MatrixId,
    /// `[H][heads * row_dim]`.
    pub value: MatrixId,
    /// `[S * H]`.
    pub norm_key: VectorId,
    /// `[S * H]`.
    pub norm_query: VectorId,
    /// `[S * H]`.
    pub norm_conv: VectorId,
    /// Convolution taps, oldest first, `[K][S * H]`.
    pub conv: VectorId,
    /// Rows from one tap to the next.
    pub dilation: usize,
    /// Type of the table's rows.
    pub row_type: TensorType,
    /// Epsilon of the norms.
    pub eps: f32,
}

/// The shared expert of a layer (spec 6.4).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedExpert {
    /// Its gate, `[H]`.
    pub gate_inp: VectorId,
    /// `[ff][H]`.
    pub gate: MatrixId,
    /// `[ff][H]`.
    pub up: MatrixId,
    /// `[H][ff]`.
    pub down: MatrixId,
}

/// Types and sizes of the routed experts of a layer: gate and up are `[ff][hidden]`, down is `[hidden][ff]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertShape {
    /// Type of the gate matrices.
    pub gate: TensorType,
    /// Type of the up matrices.
    pub up: TensorType,
    /// Type of the down matrices.
    pub down: TensorType,
    /// Width of a stream.
    pub hidden: usize,
    /// Width of an expert.
    pub ff: usize,
}

/// What a draft head begins with (spec 11).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftInput {
    /// Embeddings, `[vocabulary][H]`.
    pub embedding: MatrixId,
    /// Gamma of the embedding's norm, `[H]`.
    pub embedding_norm: VectorId,
    /// Gamma of the streams' norm, `[S * H]`.
    pub streams_norm: VectorId,
    /// Whether each stream is normalised by itself, instead of all together.
    pub is_grouped: bool,
    /// Takes a normalised embedding and a normalised stream, gives a stream: `[H][2 * H]`.
    pub join: MatrixId,
    /// Epsilon of the norms.
    pub eps: f32,
}
