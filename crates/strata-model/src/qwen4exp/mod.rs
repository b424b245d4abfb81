//! qwen4exp (Qwen3.8-Flash-Next): hyper-connections, Gated DeltaNet and sparse attention, mixtures of many small
//! experts, hashed n-gram embeddings. One file per part; `forward` has the order of operations.

mod config;
mod flops;
mod forward;
mod gdn;
mod head;
mod hyper;
mod memory;
mod moe;
mod ple;
mod qsa;
mod weights;

use std::sync::Arc;

use strata_backend::{Backend, GdnForm, HyperRead, Mixer, PassId, PassShape, StateId, StatePart};
use strata_gguf::Gguf;
use strata_store::timeline::Timeline;
use strata_store::{ExpertStore, FileReader, LayerRecords, Reader, Records, ResidentStore};

pub use config::{AttentionConfig, Config, GdnConfig, MixerKind, MoeConfig, PleConfig};
pub use flops::Flops;
pub use forward::{LayerView, Moment, Observer, Rows, Unobserved};
pub use memory::memory_shape;

use self::head::Head;
use self::moe::Moe;
use self::ple::PleModule;
use self::weights::Loader;
use crate::ModelError;

/// How a model is to be run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tokens a sequence may have; `None`: the smaller of the model's own and 32,768.
    pub context_tokens: Option<usize>,
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
    /// Where to record what happens when; off where nobody wants to know.
    pub timeline: Timeline,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            context_tokens: None,
            pass_tokens: 1024,
            strip_rows: 256,
            gdn_form: GdnForm::Recurrent,
            block_tokens: None,
            keep_details: false,
            timeline: Timeline::off(),
        }
    }
}

/// A loaded model.
pub struct Model {
    config: Config,
    options: Options,
    context_tokens: usize,
    backend: Box<dyn Backend>,
    store: Box<dyn ExpertStore>,
    head: Head,
    layers: Vec<Layer>,
    ple: Option<PleModule>,
    pass: PassId,
    buffers: forward::Buffers,
}

struct Layer {
    read: HyperRead,
    mixer: Mixer,
    moe: Moe,
}

/// The state of one text: where it is, and what the layers remember of it.
#[derive(Debug)]
pub struct Sequence {
    /// Tokens taken so far.
    tokens: usize,
    /// The last tokens, as many as the n-gram hash looks back.
    window: Vec<u32>,
    /// By layer.
    states: Vec<StateId>,
    ple_state: Option<StateId>,
    /// A pass began and did not end: the states are of no one position.
    is_torn: bool,
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
}

impl Model {
    /// Loads the model of a file, with its experts in memory.
    ///
    /// # Errors
    /// When the file is no such model or cannot be read, or memory does not suffice.
    pub fn load(gguf: &Gguf, mut backend: Box<dyn Backend>, options: Options) -> Result<Self, ModelError> {
        let reader: Arc<dyn Reader> = Arc::new(FileReader::new(gguf.reopen_files()?));
        let parts = load_parts(gguf, backend.as_mut(), &options, &reader)?;
        let areas = backend.allocate_areas(&ResidentStore::area_bytes(&parts.records))?;
        let store = Box::new(ResidentStore::load(&parts.records, reader.as_ref(), areas)?);
        Self::assemble(parts, backend, store, options)
    }

    /// Loads all of a file but its experts, which `store` provides.
    ///
    /// # Errors
    /// When the file is no such model or cannot be read, or memory does not suffice.
    pub fn load_with_store(
        gguf: &Gguf,
        mut backend: Box<dyn Backend>,
        options: Options,
        make_store: impl FnOnce(&Records) -> Box<dyn ExpertStore>,
    ) -> Result<Self, ModelError> {
        let reader: Arc<dyn Reader> = Arc::new(FileReader::new(gguf.reopen_files()?));
        let parts = load_parts(gguf, backend.as_mut(), &options, &reader)?;
        let store = make_store(&parts.records);
        Self::assemble(parts, backend, store, options)
    }

    fn assemble(
        parts: Parts,
        mut backend: Box<dyn Backend>,
        store: Box<dyn ExpertStore>,
        mut options: Options,
    ) -> Result<Self, ModelError> {
        let Parts { config, head, layers, ple, .. } = parts;
        let context_tokens = options.context_tokens.unwrap_or(config.default_context_tokens()).max(1);
        options.pass_tokens = options.pass_tokens.clamp(1, context_tokens);
        options.strip_rows = options.strip_rows.clamp(1, options.pass_tokens);
        let pass = backend.new_pass(&PassShape {
            rows: options.pass_tokens,
            strip_rows: options.strip_rows,
            streams: config.streams,
            hidden: config.hidden,
            experts: config.moe.experts,
            top_k: config.moe.top_k,
            expert_ff: config.moe.ff,
            keep_details: options.keep_details,
        })?;
        let buffers = forward::Buffers::default();
        Ok(Self { config, options, context_tokens, backend, store, head, layers, ple, pass, buffers })
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
        let mut sequence =
            Sequence { tokens: 0, window: Vec::new(), states: Vec::new(), ple_state: None, is_torn: false };
        let shapes = self.config.mixers.iter().map(|mixer| match *mixer {
            MixerKind::Gdn => gdn::state_shape(&self.config),
            MixerKind::Qsa { block_tokens } => qsa::state_shape(&self.config, block_tokens, self.context_tokens),
        });
        let ple = self.ple.as_ref().map(|ple| ple::state_shape(&self.config, &ple.config));
        for (at, shape) in shapes.chain(ple).enumerate() {
            match self.backend.new_state(&shape) {
                Ok(state) if at < self.config.layers => sequence.states.push(state),
                Ok(state) => sequence.ple_state = Some(state),
                Err(error) => {
                    sequence.states.iter().for_each(|state| self.backend.free_state(*state));
                    return Err(error.into());
                }
            }
        }
        Ok(sequence)
    }

    /// Makes a sequence empty again.
    pub fn reset(&mut self, sequence: &mut Sequence) {
        sequence.states.iter().chain(&sequence.ple_state).for_each(|state| self.backend.reset_state(*state));
        sequence.window.clear();
        sequence.tokens = 0;
        sequence.is_torn = false;
    }

    /// Gives a sequence's memory back.
    #[allow(clippy::needless_pass_by_value)] // the sequence is gone afterwards
    pub fn free(&mut self, sequence: Sequence) {
        sequence.states.iter().chain(&sequence.ple_state).for_each(|state| self.backend.free_state(*state));
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
    records: Records,
}

fn load_parts(
    gguf: &Gguf,
    backend: &mut dyn Backend,
    options: &Options,
    reader: &Arc<dyn Reader>,
) -> Result<Parts, ModelError> {
    let config = Config::read(gguf, options.block_tokens)?;
    let mut loader = Loader { gguf, backend };
    let mut layers = Vec::with_capacity(config.layers);
    let mut records = Records { layers: Vec::with_capacity(config.layers) };
    for (layer, mixer) in config.mixers.iter().enumerate() {
        let (layer, layer_records) = load_layer(&mut loader, &config, layer, *mixer, options.gdn_form)?;
        layers.push(layer);
        records.layers.push(layer_records);
    }
    let ple = match &config.ple {
        Some(ple) => Some(ple::load(&mut loader, &config, ple, reader.clone(), &options.timeline)?),
        None => None,
    };
    Ok(Parts { head: head::load(&mut loader, &config)?, config, layers, ple, records })
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
