//! The seam between a model's forward pass and the machine that computes it.
//!
//! Owns: the [`Backend`] trait, the handles and tickets that cross it, [`CpuBackend`] over the slice kernels,
//! [`ProfiledBackend`], which measures another one, and [`RecordingBackend`], which computes nothing and remembers what it
//! was asked.
//! Promises: operations on one pass take effect in the order in which they were enqueued; memory grows only when
//! weights, a pass or a state are made.
//! Refuses: to know files or architectures. There is no general tensor here: a few coarse operations on row ranges.

mod cpu;
mod error;
mod layers;
mod profiled;
mod recording;
mod saved;

use std::ops::Range;

use strata_gguf::TensorType;
use strata_store::{Area, Slot};

pub use cpu::CpuBackend;
pub use error::BackendError;
pub use layers::{DraftInput, ExpertShape, Gdn, GdnForm, HyperRead, Indexer, Mixer, Ple, Qsa, SharedExpert};
pub use profiled::{Operation, Profile, ProfiledBackend, SharedProfile, Spent};
pub use recording::{Call, Recording, RecordingBackend};
pub use saved::SavedState;
pub use strata_kernels::attention::KvType;

/// Rows of caches are copied from a multiple of so many tokens on.
pub const ROWS_TOGETHER: usize = strata_kernels::attention::KvCache::COPIED_TOGETHER;
pub use strata_kernels::route::{choose, weigh};
pub use strata_kernels::{Arithmetic, Isa, UnavailableIsa, conv::MAX_TAPS as MAX_CONV_TAPS, experts::Choice};

macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident;)*) => {
        $($(#[$meta])* #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)] pub struct $name(pub(crate) u32);)*
    };
}

handles! {
    /// A matrix of weights, in the type the file stores.
    MatrixId;
    /// A short list of float32 weights: a norm's gamma, biases, convolution taps.
    VectorId;
    /// Room for the rows of a pass: streams, layer inputs and outputs, routes, expert outputs.
    PassId;
    /// The state that a mixer or the n-gram module keeps from one token of a sequence to the next.
    StateId;
}

/// Names a result that an enqueued operation will have. Reading a result waits for it; it can be read once.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "a result that is never read stays in memory"]
pub struct Ticket(pub(crate) u64);

/// A matrix of weights on its way into a backend.
pub struct MatrixData {
    /// Type of the blocks.
    pub ty: TensorType,
    /// Rows, the length of an output.
    pub rows: usize,
    /// Weights in a row, the length of an input.
    pub cols: usize,
    /// Factor of all its products; 1 but for NVFP4 files (spec 4).
    pub scale: f32,
    /// Its blocks as the file stores them.
    pub bytes: Vec<u8>,
}

/// Sizes of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassShape {
    /// Rows (tokens) the pass has room for.
    pub rows: usize,
    /// The most rows that one operation is given.
    pub strip_rows: usize,
    /// Residual streams, `S`.
    pub streams: usize,
    /// Width of one stream, `H`.
    pub hidden: usize,
    /// Experts in a layer.
    pub experts: usize,
    /// Experts a row uses.
    pub top_k: usize,
    /// Width of a routed expert.
    pub expert_ff: usize,
    /// Whether to keep what only [`Field::ExpertHidden`], [`Field::RouterLogits`] and [`Backend::selected_blocks`] read.
    pub keep_details: bool,
}

/// What a state must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateShape {
    /// Gated DeltaNet: a matrix for each value head and the last inputs of the convolution.
    Gdn {
        /// Value heads.
        value_heads: usize,
        /// Width of a head (keys and values).
        head_dim: usize,
        /// Channels of the convolution.
        channels: usize,
        /// Earlier rows the convolution looks at.
        history_rows: usize,
    },
    /// Attention: keys, values, and the indexer's block keys.
    Qsa {
        /// Tokens there is room for.
        context_tokens: usize,
        /// What keys and values are kept in.
        kv: KvType,
        /// Key/value heads.
        kv_heads: usize,
        /// Width of a head.
        head_dim: usize,
        /// Width of the indexer's key and tokens of a block; `None` without an indexer.
        indexer: Option<(usize, usize)>,
    },
    /// The n-gram module: the last inputs of its convolution.
    Ple {
        /// Channels of the convolution.
        channels: usize,
        /// Earlier rows the convolution looks at.
        history_rows: usize,
    },
    /// The streams of the last token, which a draft head joins with the next token's embedding.
    Residual {
        /// Width of all streams together.
        width: usize,
    },
}

/// Rows of a pass that can be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Residual streams, `[S][H]` a row.
    Streams,
    /// The last [`Backend::read_streams`]: the layer's input, `[H]`.
    Mixed,
    /// The last [`Backend::read_streams`]: write weights, `[S]`.
    Inject,
    /// The last mixer or mixture output, `[H]`.
    Output,
    /// Router logits of the last [`Backend::route`] or [`Backend::router_logits`], `[experts]`; only with `keep_details`.
    RouterLogits,
    /// `silu(gate) * up` of the routed experts, `[top_k][expert_ff]`; only with `keep_details`.
    ExpertHidden,
    /// Outputs of the routed experts, unweighted, `[top_k][H]`.
    ExpertOutput,
    /// The shared expert's gate, `[1]`.
    SharedGate,
}

/// A part of a state that can be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePart {
    /// `[value_heads][d_key][d_value]`.
    GdnMatrix,
    /// The convolution's last inputs, oldest first, `[history_rows][channels]`.
    ConvHistory,
    /// `[tokens][kv_heads][head_dim]`, as rounded for the cache.
    Keys,
    /// `[tokens][kv_heads][head_dim]`, as rounded for the cache.
    Values,
    /// Indexer keys of the open block's tokens, `[tokens][dim]`.
    OpenBlockKeys,
    /// Indexer keys of complete blocks, `[blocks][dim]`.
    BlockKeys,
}

/// Experts chosen for some rows, as read back by [`Backend::take_routes`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routes {
    /// `[rows][choices]`, in descending order of weight.
    pub ids: Vec<u32>,
    /// `[rows][choices]`; a row sums to 1.
    pub weights: Vec<f32>,
}

/// Rows of a pass that continue one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The rows.
    pub rows: Range<usize>,
    /// What the sequence keeps of a mixer.
    pub state: StateId,
}

/// One expert of a group that is to be computed.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupEntry {
    /// Index into the slots of the call.
    pub slot: usize,
    /// Range of the call's choices that use it.
    pub choices: Range<usize>,
    /// Factors of the products with gate, up and down; 1 but for NVFP4 files (spec 4).
    pub scales: [f32; 3],
}

/// A machine that computes layers.
///
/// Calls enqueue work and return; what they wrote is seen by later calls. Handles are only valid with the backend that
/// made them. Shapes are checked when a model is loaded: a call whose handles do not fit together panics.
pub trait Backend: Send {
    /// What it is, for people: for example `cpu avx512, 2 threads`.
    fn describe(&self) -> String;

    /// Memory for a store's slots, one area of each size.
    ///
    /// # Errors
    /// When there is not enough memory.
    fn allocate_areas(&mut self, sizes_bytes: &[usize]) -> Result<Vec<Area>, BackendError>;

    /// Takes a matrix of weights.
    fn load_matrix(&mut self, matrix: MatrixData) -> MatrixId;

    /// Takes a list of float32 weights.
    fn load_vector(&mut self, values: Vec<f32>) -> VectorId;

    /// Makes room for a pass.
    ///
    /// # Errors
    /// When there is not enough memory.
    fn new_pass(&mut self, shape: &PassShape) -> Result<PassId, BackendError>;

    /// Gives the memory of a pass back; the handle is dead.
    fn free_pass(&mut self, pass: PassId);

    /// What keys and values are kept in unless a user says otherwise: what loses nothing that products would use.
    fn default_kv(&self) -> KvType;

    /// Makes a state, empty as at the start of a sequence.
    ///
    /// # Errors
    /// When there is not enough memory.
    fn new_state(&mut self, shape: &StateShape) -> Result<StateId, BackendError>;

    /// Empties a state: the next token is the first of a sequence.
    fn reset_state(&mut self, state: StateId);

    /// Gives a state's memory back; the handle is dead.
    fn free_state(&mut self, state: StateId);

    /// Copies a state into `saved`, whose memory is used again. Of a cache that only grows its length is kept, not its rows.
    ///
    /// # Errors
    /// When there is not enough memory.
    fn save_state(&mut self, state: StateId, saved: &mut SavedState) -> Result<(), BackendError>;

    /// Makes a state what it was when it was saved. Rows of its cache that came later are forgotten; the caller knows that
    /// the earlier ones are still those of that time.
    fn restore_state(&mut self, state: StateId, saved: &SavedState);

    /// Values of a copy of a state whose cache has `tokens` tokens; the same for any number of a state without a cache.
    fn saved_values(&self, state: StateId, tokens: usize) -> usize;

    /// Bytes of the rows that a state's cache has of some tokens; 0 without a cache.
    fn rows_bytes(&self, state: StateId, tokens: Range<usize>) -> usize;

    /// Appends the rows that a state's cache has of some tokens to `out`, in a form of the backend's own for
    /// [`append_rows`](Self::append_rows). Ranges begin with multiples of [`ROWS_TOGETHER`].
    fn copy_rows(&mut self, state: StateId, tokens: Range<usize>, out: &mut Vec<u8>);

    /// Appends the rows of the next `tokens` tokens to the cache of a state of the same shape. The caller makes the state
    /// whole by [`restore_state`](Self::restore_state).
    ///
    /// # Errors
    /// When there is no room for them.
    ///
    /// # Panics
    /// When these are not the [bytes](Self::rows_bytes) of so many tokens.
    fn append_rows(&mut self, state: StateId, tokens: usize, rows: &[u8]) -> Result<(), BackendError>;

    /// Remembers what the next `most_rows` rows give to a state, and nothing of earlier ones.
    fn remember_rows(&mut self, state: StateId, most_rows: usize);

    /// Makes a state what it was after the first `rows` of the rows that it remembers, which came right after it was
    /// saved: the same bytes as computing them again, without that.
    ///
    /// # Panics
    /// When it does not remember so many.
    fn replay_state(&mut self, state: StateId, saved: &SavedState, rows: usize);

    /// Rows of the table for `ids` into all streams of the rows from `first_row`.
    ///
    /// # Errors
    /// When an id is not a row of the table.
    fn embed(&mut self, pass: PassId, first_row: usize, table: MatrixId, ids: &[u32]) -> Result<(), BackendError>;

    /// Adds the n-gram module's output to the streams. `table_rows` are the gathered rows' bytes, in row order.
    fn add_ngrams(&mut self, pass: PassId, rows: Range<usize>, layer: &Ple, state: StateId, table_rows: &[u8]);

    /// Begins a draft head's block: the streams of each row become the embedding of its id joined with the streams of the
    /// token before it. That is the row before, and what `before` keeps for the first; the last row's streams are kept
    /// there for the next time. Without `before`, each row is its own token, and its id that of the next one.
    ///
    /// # Errors
    /// When an id is not a row of the table.
    fn draft_input(
        &mut self,
        pass: PassId,
        rows: Range<usize>,
        layer: &DraftInput,
        before: Option<StateId>,
        ids: &[u32],
    ) -> Result<(), BackendError>;

    /// Keeps the streams of the last of some rows in a state, for [`draft_input`](Self::draft_input).
    fn keep_streams(&mut self, pass: PassId, rows: Range<usize>, state: StateId);

    /// Adds the rows' keys and values to an attention layer's cache, as [`mix`](Self::mix) does, and attends to nothing.
    ///
    /// # Errors
    /// When the state has no room for so many tokens.
    fn extend_cache(
        &mut self,
        pass: PassId,
        rows: Range<usize>,
        layer: &Qsa,
        state: StateId,
    ) -> Result<(), BackendError>;

    /// Reads the streams: layer input and, where the layer has them, write weights.
    fn read_streams(&mut self, pass: PassId, rows: Range<usize>, layer: &HyperRead);

    /// Runs a mixer over the layer input of rows that follow one another: each run of them continues the sequence of its
    /// own state. A run's results are the same bytes with others or without.
    ///
    /// # Errors
    /// When a state has no room for so many tokens; no state has changed then.
    fn mix(&mut self, pass: PassId, runs: &[Run], mixer: &Mixer) -> Result<(), BackendError>;

    /// Adds the last output to the streams, by the write weights.
    fn write_streams(&mut self, pass: PassId, rows: Range<usize>);

    /// Chooses experts for the rows' layer input. The choice is kept for [`combine`](Self::combine) and can be read by
    /// the ticket ([`take_routes`](Self::take_routes)).
    fn route(&mut self, pass: PassId, rows: Range<usize>, router: MatrixId) -> Ticket;

    /// Router logits of the rows' layer input, `[rows][experts]`: the same values that [`route`](Self::route) chooses by.
    /// Read by the ticket ([`take_logits`](Self::take_logits)); who chooses by them tells the choice by
    /// [`set_routes`](Self::set_routes).
    fn router_logits(&mut self, pass: PassId, rows: Range<usize>, router: MatrixId) -> Ticket;

    /// Keeps a choice that was made elsewhere for [`combine`](Self::combine), as [`route`](Self::route) keeps its own.
    fn set_routes(&mut self, pass: PassId, rows: Range<usize>, routes: &Routes);

    /// The `choices` experts of a row that `router` (of a later layer) would choose first for the same input, rounded as
    /// suits the machine; read like a route, with as many a row, and kept nowhere.
    fn forecast(&mut self, pass: PassId, rows: Range<usize>, router: MatrixId, choices: usize) -> Ticket;

    /// Reads the routes of a ticket into `routes`.
    ///
    /// # Errors
    /// When the computation failed or the ticket names no route.
    fn take_routes(&mut self, ticket: Ticket, routes: &mut Routes) -> Result<(), BackendError>;

    /// Computes a group of experts for their choices' rows. Slots are held until the work is done and come back by the
    /// ticket ([`take_slots`](Self::take_slots)).
    fn experts(
        &mut self,
        pass: PassId,
        shape: &ExpertShape,
        slots: Vec<Slot>,
        group: &[GroupEntry],
        choices: &[Choice],
    ) -> Ticket;

    /// Appends the slots that the experts of a ticket no longer need to `slots`.
    ///
    /// # Errors
    /// When the computation failed or the ticket names no expert group.
    fn take_slots(&mut self, ticket: Ticket, slots: &mut Vec<Slot>) -> Result<(), BackendError>;

    /// Computes the shared expert for the rows' layer input. It takes the place of the last output, which
    /// [`combine`](Self::combine) makes the layer's.
    fn shared_expert(&mut self, pass: PassId, rows: Range<usize>, shared: &SharedExpert);

    /// The layer's output: the chosen experts' outputs by weight, in order of choice, and the shared expert's, which was
    /// [computed](Self::shared_expert) before.
    fn combine(&mut self, pass: PassId, rows: Range<usize>);

    /// Logits of the rows: the final read of the streams, then the output matrix.
    fn head(&mut self, pass: PassId, rows: Range<usize>, last_read: &HyperRead, output: MatrixId) -> Ticket;

    /// Appends the logits of a ticket, `[rows][vocabulary]`, to `logits`.
    ///
    /// # Errors
    /// When the computation failed or the ticket names no logits.
    fn take_logits(&mut self, ticket: Ticket, logits: &mut Vec<f32>) -> Result<(), BackendError>;

    /// Looks at rows of a pass, `[rows][width of the field]`.
    fn read_field(&mut self, pass: PassId, field: Field, rows: Range<usize>) -> Vec<f32>;

    /// The blocks that the last mixer selected for a row, ascending, or `None` when it attended to everything or is none
    /// that selects. Only with `keep_details`.
    fn selected_blocks(&mut self, pass: PassId, row: usize) -> Option<Vec<u32>>;

    /// Looks at a part of a state; empty when the state has no such part.
    fn read_state(&mut self, state: StateId, part: StatePart) -> Vec<f32>;
}
