//! qwen4exp (Qwen3.8-Flash-Next): hyper-connections, Gated DeltaNet and sparse attention, mixtures of many small
//! experts, hashed n-gram embeddings. One file per part; `forward` has the order of operations.

mod checkpoint;
mod config;
mod experts;
mod flops;
mod fork;
mod forward;
mod gdn;
mod head;
mod hyper;
mod memory;
mod moce;
mod moe;
mod mtp;
mod observer;
mod ple;
mod qsa;
mod reading;
mod step;
mod weights;
mod workspace;
mod written;

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use strata_backend::{Backend, BackendError, GdnForm, HyperRead, KvType, Mixer, StateId, StatePart, StateShape};
use strata_gguf::Gguf;
use strata_store::reads::{self, Port, ReadQueue, ReaderKind};
use strata_store::timeline::Timeline;
use strata_store::{
    Area, ExpertStore, LayerRecords, Lookahead, Records, RowCounts, StoreError, StreamingOptions, StreamingStore, Usage,
};

pub use checkpoint::Checkpoint;
pub use config::{AttentionConfig, Config, GdnConfig, MixerKind, MoeConfig, PleConfig};
pub use flops::Flops;
pub use forward::{DECODE_ROWS, Rows};
pub use memory::{add_draft_head, checkpoint_bytes, memory_shape, token_bytes, window_bytes};
pub use moce::{Moce, RouteCounts};
pub use mtp::{DraftHead, StreamsNorm, has_draft_block};
pub use observer::{LayerView, Moment, Observer, Unobserved};
pub use reading::Reading;
pub use step::Part;
pub use workspace::Workspace;

use self::checkpoint::Lineage;
use self::head::Head;
use self::moce::{MoceRouter, Residency};
use self::moe::Moe;
use self::mtp::Head as LoadedDraftHead;
use self::ple::PleModule;
pub use self::ple::RowsWhen;
use self::weights::Loader;
use crate::ModelError;

/// How a model is to be run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tokens a sequence may have; `None`: the smaller of the model's own and 32,768.
    pub context_tokens: Option<usize>,
    /// What keys and values of attention are kept in; `None`: what the backend's products use.
    pub kv: Option<KvType>,
    /// Tokens of a prompt that go through the layers together.
    pub pass_tokens: usize,
    /// Rows of a pass that one operation handles.
    pub strip_rows: usize,
    /// How the DeltaNet recurrence is computed.
    pub gdn_form: GdnForm,
    /// Tokens of an attention block, instead of what the file says; 0 = attend to everything.
    pub block_tokens: Option<usize>,
    /// Whether observers will want expert hidden values, router logits and selected blocks.
    pub keep_details: bool,
    /// How experts and rows of the n-gram table come from the drive. Nothing of it changes a result.
    pub streaming: Streaming,
    /// How [`Model::decode`] prefers experts that are likely in memory; `None`: not at all.
    pub moce: Option<Moce>,
    /// The head that drafts tokens ([`Model::draft`]); `None`: there is none, or it is not wanted.
    pub draft_head: Option<DraftHead>,
    /// Where to record what happens when; off where nobody wants to know.
    pub timeline: Timeline,
}

/// How a model that is larger than its arena streams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Streaming {
    /// Slots of the arena; `None`: one for each expert.
    pub slots: Option<usize>,
    /// Records on their way at a time; `None`: as many as the arena has room for, at most [`StreamingOptions::DEPTH`].
    pub depth: Option<u32>,
    /// How files are read.
    pub reader: ReaderKind,
    /// What is read before it is demanded.
    pub lookahead: Lookahead,
    /// Rows that must be expected to need an expert before it is read ahead; 0 is as good as 1.
    pub forecast_min: u32,
    /// When rows of the n-gram table are read.
    pub rows_when: RowsWhen,
    /// Tables of at most so many bytes are kept in memory; `None`: [`Streaming::SMALL_TABLE_BYTES`].
    pub small_table_bytes: Option<u64>,
    /// Whether the arena is locked in memory, so that the system never moves it to the swap.
    pub lock: Lock,
    /// What earlier runs used of this model ([`Usage::counts`]); empty: not known.
    pub usage: Vec<u32>,
    /// How long the drive may answer no read before that ends the request; `None`: [`ReadQueue::STUCK_AFTER`].
    pub stuck_after: Option<Duration>,
}

/// Whether memory is locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lock {
    /// Not at all.
    #[default]
    Off,
    /// If the system lets it be.
    Try,
    /// It must be.
    On,
}

impl Streaming {
    /// A table of so many bytes is not worth reading row by row.
    pub const SMALL_TABLE_BYTES: u64 = 64 << 20;
}

/// Opens files for reading into areas, so many reads at a time.
pub type OpenPort<'a> = &'a dyn Fn(&[(PathBuf, File)], &[Arc<Area>], usize) -> Result<Box<dyn Port>, StoreError>;

impl Default for Options {
    fn default() -> Self {
        Self {
            context_tokens: None,
            kv: None,
            pass_tokens: 1024,
            strip_rows: 256,
            gdn_form: GdnForm::Recurrent,
            block_tokens: None,
            keep_details: false,
            streaming: Streaming::default(),
            moce: None,
            draft_head: None,
            timeline: Timeline::off(),
        }
    }
}

/// A loaded model.
pub struct Model {
    config: Config,
    options: Options,
    context_tokens: usize,
    /// Tokens of a pass that there is room for.
    most_pass_tokens: usize,
    backend: Box<dyn Backend>,
    store: Box<dyn ExpertStore>,
    head: Head,
    layers: Vec<Layer>,
    ple: Option<PleModule>,
    draft_head: Option<LoadedDraftHead>,
    /// Of [`forward`](Self::forward) and [`decode`](Self::decode), unless somebody took it.
    workspace: Option<Workspace>,
    fixed_routes: Option<FixedRoutes>,
    moce: Option<MoceRouter>,
}

/// The experts that each row is sent to, whatever the router says: for measuring.
struct FixedRoutes {
    /// For each layer of each pass in turn, `[rows][top_k]`.
    layers: Vec<Vec<u32>>,
    /// The one at hand.
    at: usize,
}

struct Layer {
    read: HyperRead,
    mixer: Mixer,
    moe: Moe,
}

/// The state of one text: where it is, and what the layers remember of it.
#[derive(Debug, Default)]
pub struct Sequence {
    /// Tokens taken so far.
    tokens: usize,
    /// The last tokens, as many as the n-gram hash looks back.
    window: Vec<u32>,
    /// By layer, then that of the draft head's attention.
    states: Vec<StateId>,
    ple_state: Option<StateId>,
    /// Which experts it was routed to last; empty unless decode prefers those.
    residency: Residency,
    /// What that changed.
    routed: RouteCounts,
    /// A pass began and did not end: the states are of no one position.
    is_torn: bool,
    /// Which checkpoints it can go back to.
    lineage: Lineage,
    /// Position of the first token that its states remember, and how many from there on.
    remembered: Option<(usize, usize)>,
    /// What a draft head needs of the last token.
    residual: Option<StateId>,
}

impl Sequence {
    /// Tokens taken so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The last tokens, as many as the n-gram hash looks back.
    pub fn window(&self) -> &[u32] {
        &self.window
    }

    /// What cache-aware routing did for it since it was made.
    pub fn route_counts(&self) -> RouteCounts {
        self.routed
    }

    /// Those of the layers, of the n-gram module and of the draft head.
    fn all_states(&self) -> impl Iterator<Item = StateId> {
        self.states.iter().chain(&self.ple_state).chain(&self.residual).copied()
    }
}

impl Model {
    /// Loads the model of a file. Its experts are in memory when they are first used, or after
    /// [`load_experts`](Self::load_experts).
    ///
    /// # Errors
    /// When the file is no such model or cannot be read, or memory does not suffice.
    pub fn load(gguf: &Gguf, backend: Box<dyn Backend>, options: Options) -> Result<Self, ModelError> {
        let kind = options.streaming.reader;
        let open = |files: &[_], areas: &[_], depth| reads::open(kind, files, areas, depth);
        Self::load_with(gguf, backend, options, &open, |store| Box::new(store))
    }

    /// [`load`](Self::load) with other ways to read, and with a store of the caller's around the one that streams.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_with(
        gguf: &Gguf,
        mut backend: Box<dyn Backend>,
        options: Options,
        open: OpenPort<'_>,
        wrap: impl FnOnce(StreamingStore) -> Box<dyn ExpertStore>,
    ) -> Result<Self, ModelError> {
        let parts = load_parts(gguf, backend.as_mut(), &options, open)?;
        let files = all_files(gguf, options.draft_head.as_ref())?;
        let store = streaming_store(files, backend.as_mut(), &options.streaming, parts.records.clone(), open)?;
        let store = store.recorded(options.timeline.clone());
        let store = store.with_left_out(usize::from(options.draft_head.is_some()));
        Self::assemble(parts, backend, wrap(store), options)
    }

    /// Reads the experts that stay in memory. `progress` is told bytes read and bytes in all, and ends it by `false`: what
    /// was not read then comes when the drive has nothing else to do.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn load_experts(&mut self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<(), ModelError> {
        match self.store.as_streaming() {
            Some(store) => Ok(store.load_hot_set(progress)?),
            None => Ok(()),
        }
    }

    /// The store of its experts, if that is the one that streams.
    pub fn streaming(&mut self) -> Option<&mut StreamingStore> {
        self.store.as_streaming()
    }

    /// Computes from now on with any valid records and rows that are in memory, reading nothing, and sends rows to the
    /// experts of `routes`: for each layer of each pass in turn, `[rows][top_k]`. Results mean nothing then, but the time
    /// is that of computation alone. `None` ends it. `false`: not all kinds of records are in memory.
    pub fn set_fake_stream(&mut self, routes: Option<Vec<Vec<u32>>>) -> bool {
        let is_fake = routes.is_some();
        self.fixed_routes = None;
        if let Some(module) = &mut self.ple {
            module.table.is_fake = is_fake;
        }
        let has_all = self.store.as_streaming().is_some_and(|store| store.set_fake(is_fake));
        self.fixed_routes = routes.filter(|_| has_all).map(|layers| FixedRoutes { layers, at: 0 });
        has_all
    }

    /// Makes the arena smaller, and gives the memory of the other slots back to the system: see
    /// [`StreamingStore::shrink`]. Results stay the same.
    ///
    /// # Errors
    /// When so few slots are not enough, or reads under way do not end.
    pub fn shrink(&mut self, slots: usize) -> Result<(), ModelError> {
        match self.store.as_streaming() {
            Some(store) => Ok(store.shrink(slots)?),
            None => Ok(()),
        }
    }

    /// Reads of the n-gram table so far.
    pub fn row_counts(&self) -> RowCounts {
        self.ple.as_ref().map(|ple| ple.table.counts()).unwrap_or_default()
    }

    /// Changes how a prompt is streamed, from the next pass on: tokens of a pass, which there must have been room for from
    /// the start; what is read before it is demanded; when rows of the n-gram table are read.
    pub fn set_streaming(&mut self, pass_tokens: usize, streaming: &Streaming) {
        self.options.pass_tokens = pass_tokens.clamp(1, self.most_pass_tokens);
        self.options.strip_rows = self.options.strip_rows.min(self.options.pass_tokens);
        self.options.streaming.rows_when = streaming.rows_when;
        if let Some(store) = self.store.as_streaming() {
            store.set_lookahead(streaming.lookahead, streaming.forecast_min);
        }
    }

    fn assemble(
        parts: Parts,
        backend: Box<dyn Backend>,
        store: Box<dyn ExpertStore>,
        mut options: Options,
    ) -> Result<Self, ModelError> {
        let Parts { config, head, layers, ple, draft_head, .. } = parts;
        let context_tokens = options.context_tokens.unwrap_or(config.default_context_tokens()).max(1);
        options.pass_tokens = options.pass_tokens.clamp(1, context_tokens);
        options.strip_rows = options.strip_rows.clamp(1, options.pass_tokens);
        let moce = options.moce.map(|moce| MoceRouter::new(moce, config.layers, config.moe.experts, config.moe.top_k));
        let most_pass_tokens = options.pass_tokens;
        let mut model = Self {
            config,
            options,
            context_tokens,
            most_pass_tokens,
            backend,
            store,
            head,
            layers,
            ple,
            draft_head,
            workspace: None,
            fixed_routes: None,
            moce,
        };
        model.workspace = Some(model.take_workspace()?);
        Ok(model)
    }

    /// The model's numbers, and warnings about its file.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Ids that the model knows; logits have this many values.
    pub fn vocabulary(&self) -> usize {
        self.head.vocabulary
    }

    /// Tokens a sequence may have.
    pub fn context_tokens(&self) -> usize {
        self.context_tokens
    }

    /// Tokens of a prompt that go through the layers together.
    pub fn pass_tokens(&self) -> usize {
        self.options.pass_tokens
    }

    /// Whether observers can look at everything ([`Options::keep_details`]).
    pub fn keeps_details(&self) -> bool {
        self.options.keep_details
    }

    /// What computes, for people.
    pub fn describe_backend(&self) -> String {
        self.backend.describe()
    }

    /// An empty sequence.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub fn new_sequence(&mut self) -> Result<Sequence, ModelError> {
        let residency = self.moce.as_ref().map(MoceRouter::residency).unwrap_or_default();
        let mut sequence = Sequence { residency, ..Sequence::default() };
        let kv = self.options.kv.unwrap_or_else(|| self.backend.default_kv());
        let shapes = self.config.mixers.iter().map(|mixer| match *mixer {
            MixerKind::Gdn => gdn::state_shape(&self.config),
            MixerKind::Qsa { block_tokens } => qsa::state_shape(&self.config, block_tokens, self.context_tokens, kv),
        });
        let ple = self.ple.as_ref().map(|ple| ple::state_shape(&self.config, &ple.config));
        let head = self.draft_head.as_ref().map(|_| mtp::state_shapes(&self.config, self.context_tokens, kv));
        for shape in shapes.chain(ple).chain(head.into_iter().flatten()) {
            match self.backend.new_state(&shape) {
                Ok(state) => match shape {
                    StateShape::Ple { .. } => sequence.ple_state = Some(state),
                    StateShape::Residual { .. } => sequence.residual = Some(state),
                    StateShape::Gdn { .. } | StateShape::Qsa { .. } => sequence.states.push(state),
                },
                Err(error) => {
                    sequence.all_states().for_each(|state| self.backend.free_state(state));
                    return Err(error.into());
                }
            }
        }
        Ok(sequence)
    }

    /// Makes a sequence empty again.
    pub fn reset(&mut self, sequence: &mut Sequence) {
        sequence.all_states().for_each(|state| self.backend.reset_state(state));
        sequence.window.clear();
        sequence.residency.clear();
        sequence.go_back(0);
    }

    /// Gives a sequence's memory back.
    #[allow(clippy::needless_pass_by_value)] // the sequence is gone afterwards
    pub fn free(&mut self, sequence: Sequence) {
        sequence.all_states().for_each(|state| self.backend.free_state(state));
    }

    /// Looks at a part of a layer's state; empty when the layer has no such part.
    pub fn read_state(&mut self, sequence: &Sequence, layer: usize, part: StatePart) -> Vec<f32> {
        self.backend.read_state(sequence.states[layer], part)
    }

    /// Looks at the convolution history of the n-gram module, if there is one.
    pub fn read_ple_state(&mut self, sequence: &Sequence) -> Option<Vec<f32>> {
        sequence.ple_state.map(|state| self.backend.read_state(state, StatePart::ConvHistory))
    }
}

/// Everything of a file but its experts.
struct Parts {
    config: Config,
    head: Head,
    layers: Vec<Layer>,
    ple: Option<PleModule>,
    draft_head: Option<LoadedDraftHead>,
    records: Records,
}

fn load_parts(
    gguf: &Gguf,
    backend: &mut dyn Backend,
    options: &Options,
    open: OpenPort<'_>,
) -> Result<Parts, ModelError> {
    let config = Config::read(gguf, options.block_tokens)?;
    let mut loader = Loader { gguf, backend };
    let mut layers = Vec::with_capacity(config.layers);
    let mut records = Records { layers: Vec::with_capacity(config.layers), top_k: config.moe.top_k as u32 };
    for (layer, mixer) in config.mixers.iter().enumerate() {
        let (layer, layer_records) = load_layer(&mut loader, &config, layer, *mixer, options.gdn_form)?;
        layers.push(layer);
        records.layers.push(layer_records);
    }
    let ple = match &config.ple {
        Some(ple) => Some(ple::load(&mut loader, &config, ple, &options.streaming, &options.timeline, open)?),
        None => None,
    };
    let head = head::load(&mut loader, &config)?;
    let draft_head = match &options.draft_head {
        Some(wanted) => {
            let (loaded, layer_records) = mtp::load(gguf, loader.backend, &config, &head, wanted)?;
            records.layers.push(layer_records);
            Some(loaded)
        }
        None => None,
    };
    Ok(Parts { config, head, layers, ple, draft_head, records })
}

fn load_layer(
    loader: &mut Loader<'_>,
    config: &Config,
    layer: usize,
    mixer: MixerKind,
    gdn_form: GdnForm,
) -> Result<(Layer, LayerRecords), ModelError> {
    let read = hyper::load(loader, config, &format!("blk.{layer}.hc_attn"), true)?;
    let mixer = match mixer {
        MixerKind::Gdn => Mixer::Gdn(gdn::load(loader, config, layer, gdn_form)?),
        MixerKind::Qsa { block_tokens } => Mixer::Qsa(qsa::load(loader, config, layer, block_tokens)?),
    };
    let (moe, records) = moe::load(loader, config, layer)?;
    Ok((Layer { read, mixer, moe }, records))
}

/// The model's files, then those of a draft head in files of its own: records name them by their place.
fn all_files(gguf: &Gguf, draft_head: Option<&DraftHead>) -> Result<Vec<(PathBuf, File)>, ModelError> {
    let mut files = gguf.reopen_files()?;
    if let Some(own) = draft_head.and_then(|head| head.file.as_ref()) {
        files.extend(own.reopen_files()?);
    }
    Ok(files)
}

fn streaming_store(
    files: Vec<(PathBuf, File)>,
    backend: &mut dyn Backend,
    streaming: &Streaming,
    records: Records,
    open: OpenPort<'_>,
) -> Result<StreamingStore, ModelError> {
    let all = records.experts() as usize;
    let slots = streaming.slots.unwrap_or(all).min(all);
    let depth = streaming.depth.unwrap_or(StreamingOptions::depth_for(slots, records.top_k));
    let areas = backend.allocate_areas(&StreamingStore::area_bytes(&records, slots))?;
    let areas: Vec<Arc<Area>> = areas.into_iter().map(Arc::new).collect();
    for area in areas.iter().filter(|_| streaming.lock != Lock::Off) {
        match area.lock() {
            Err(source) if streaming.lock == Lock::On => return Err(StoreError::Lock { source }.into()),
            _ => {}
        }
    }
    let queue = queue(files, &areas, StreamingStore::queue_depth(depth), streaming, open)?;
    let options = StreamingOptions { depth, lookahead: streaming.lookahead, forecast_min: streaming.forecast_min };
    let usage = Usage::new(&records);
    // Counts of another model are no use; a draft head may have been there, or not.
    let mut counts = streaming.usage.clone();
    if counts.len().abs_diff(usage.counts().len()) == usage.counts().len() / records.layers.len() {
        counts.resize(usage.counts().len(), 0);
    }
    let usage = usage.with_counts(counts).unwrap_or(usage);
    Ok(StreamingStore::new(records, areas, queue, options, usage)?)
}

/// Reads of these files, so many at a time.
#[allow(clippy::needless_pass_by_value)] // the reader keeps handles of its own
fn queue(
    files: Vec<(PathBuf, File)>,
    areas: &[Arc<Area>],
    depth: usize,
    streaming: &Streaming,
    open: OpenPort<'_>,
) -> Result<ReadQueue, ModelError> {
    let names = files.iter().map(|(path, _)| path.clone()).collect();
    let queue = ReadQueue::new(open(&files, areas, depth)?, names);
    Ok(queue.with_patience(streaming.stuck_after.unwrap_or(ReadQueue::STUCK_AFTER)))
}

fn no_memory(what: &'static str, bytes: usize) -> ModelError {
    BackendError::OutOfMemory { what, bytes }.into()
}
