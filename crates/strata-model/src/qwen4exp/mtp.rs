//! The draft head (spec 11): one block that says, from the streams of a token behind the last layer and the embedding of the
//! next one, what may come after that. Its word is never taken: what it drafts goes through the model.
//!
//! Entry `i` of its attention is of token `i` and the token after it, so it is one entry behind the sequence. For tokens
//! that the sequence takes only keys and values are computed, with the streams of the trunk; a draft goes through the whole
//! block, and each further one takes the streams that the head itself gave.

use std::sync::Arc;

use strata_backend::{Backend, DraftInput, HyperRead, KvType, MatrixId, Mixer, SavedState, StateShape};
use strata_gguf::Gguf;
use strata_store::{LayerRecords, PassKind};

use super::config::Config;
use super::forward::strips;
use super::weights::Loader;
use super::{Layer, Model, Observer, Sequence, head, hyper, moe, qsa};
use crate::ModelError;

/// Which head drafts tokens.
#[derive(Clone, Debug, Default)]
pub struct DraftHead {
    /// Its own file; `None`: the trailing block of the model's file.
    pub file: Option<Arc<Gguf>>,
    /// How it normalises the streams. Files do not say.
    pub norm: StreamsNorm,
}

/// What the norm of a draft head's streams is taken over (spec 11, uncertain).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamsNorm {
    /// All streams together.
    #[default]
    One,
    /// Each stream by itself.
    Grouped,
}

/// A head that was loaded.
pub(super) struct Head {
    input: DraftInput,
    pub(super) layer: Layer,
    read: HyperRead,
    output: MatrixId,
    /// Of attention, and of the streams of the last token: where a draft goes back to.
    saved: [SavedState; 2],
}

/// Whether a file has a draft head.
pub fn has_draft_block(gguf: &Gguf) -> bool {
    block(gguf).is_ok()
}

/// The block that is a draft head.
pub(super) fn block(gguf: &Gguf) -> Result<usize, ModelError> {
    let mut names = gguf.tensors().map(|tensor| tensor.name.as_str());
    let found = names.find_map(|name| name.strip_prefix("blk.")?.strip_suffix(".nextn.eh_proj.weight")?.parse().ok());
    found.ok_or_else(|| ModelError::MissingTensor {
        name: "blk.*.nextn.eh_proj.weight".to_owned(),
        hint: "the file has no draft head",
    })
}

/// The name of the head's last read. One converter writes it under the trunk's name, into files without a trunk.
pub(super) fn last_read(head: &DraftHead, gguf: &Gguf, block: usize) -> String {
    let name = format!("blk.{block}.nextn.hc_head");
    let is_there = gguf.tensor(&format!("{name}_norm.weight")).is_some();
    if is_there || head.file.is_none() { name } else { "output_hc".to_owned() }
}

/// Loads the head that is wanted, with the records of its experts. Embedding and output matrix are the trunk's unless it
/// has its own.
pub(super) fn load(
    trunk: &Gguf,
    backend: &mut dyn Backend,
    config: &Config,
    ends: &head::Head,
    wanted: &DraftHead,
) -> Result<(Head, LayerRecords), ModelError> {
    let gguf = wanted.file.as_deref().unwrap_or(trunk);
    let block = block(gguf)?;
    let mut loader = Loader { gguf, backend };
    let (hidden, wide) = (config.hidden, config.streams * config.hidden);
    let name = |part: &str| format!("blk.{block}.{part}");
    let mut own = |part: &str, trunks: MatrixId| match gguf.tensor(&name(&format!("{part}.weight"))) {
        Some(_) => loader.matrix(&name(part), hidden, ends.vocabulary),
        None => Ok(trunks),
    };
    let embedding = own("nextn.embed_tokens", ends.embedding)?;
    let output = own("nextn.shared_head_head", ends.output)?;
    let input = DraftInput {
        embedding,
        embedding_norm: loader.vector(&name("nextn.enorm.weight"), hidden)?,
        streams_norm: loader.vector(&name("nextn.hnorm.weight"), wide)?,
        is_grouped: wanted.norm == StreamsNorm::Grouped,
        join: loader.matrix(&name("nextn.eh_proj"), 2 * hidden, hidden)?,
        eps: config.eps,
    };
    let read = hyper::load(&mut loader, config, &last_read(wanted, gguf, block), false)?;
    let (moe, mut records) = moe::load(&mut loader, config, block)?;
    if wanted.file.is_some() {
        records.parts.iter_mut().for_each(|part| part.file += trunk.files().len());
    }
    let layer = Layer {
        read: hyper::load(&mut loader, config, &name("hc_attn"), true)?,
        mixer: Mixer::Qsa(qsa::load(&mut loader, config, block, 0)?),
        moe,
    };
    Ok((Head { input, layer, read, output, saved: Default::default() }, records))
}

/// Those of its attention, and of the streams of the last token.
pub(super) fn state_shapes(config: &Config, context_tokens: usize, kv: KvType) -> [StateShape; 2] {
    let width = config.streams * config.hidden;
    [qsa::state_shape(config, 0, context_tokens, kv), StateShape::Residual { width }]
}

/// An observer of the trunk, to whom the head's layer is only something that can be stopped.
struct Outside<'a>(&'a mut dyn Observer);

impl Observer for Outside<'_> {
    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

impl Model {
    /// Whether it can draft.
    pub fn has_draft_head(&self) -> bool {
        self.draft_head.is_some()
    }

    /// What the draft head expects after `token`, which the sequence has not taken yet: `most` tokens, each the most
    /// probable one after those before. Their logits are appended to `logits`. The sequence stays as it is.
    ///
    /// There are none without a draft head, after an empty sequence, and where the context ends.
    ///
    /// # Errors
    /// When the token is unknown, the head's experts cannot be read, or the observer cancels.
    pub fn draft(
        &mut self,
        sequence: &mut Sequence,
        token: u32,
        most: usize,
        logits: &mut Vec<f32>,
        observer: &mut dyn Observer,
    ) -> Result<Vec<u32>, ModelError> {
        let (Some(head), Some(residual), [.., attention]) =
            (&mut self.draft_head, sequence.residual, &sequence.states[..])
        else {
            return Ok(Vec::new());
        };
        if sequence.is_torn {
            return Err(ModelError::Interrupted);
        }
        if sequence.tokens == 0 {
            return Ok(Vec::new());
        }
        let states = [*attention, residual];
        for (state, saved) in states.iter().zip(&mut head.saved) {
            self.backend.save_state(*state, saved)?;
        }
        // What is drafted goes through the same states.
        sequence.remembered = None;
        let most = most.min(self.context_tokens - sequence.tokens);
        let result = self.drafts(sequence, token, most, logits, &mut Outside(observer));
        let head = self.draft_head.as_ref().expect("it drafted");
        for (state, saved) in states.iter().zip(&head.saved) {
            self.backend.restore_state(*state, saved);
        }
        result.inspect_err(|_| self.give_up())
    }

    fn drafts(
        &mut self,
        sequence: &mut Sequence,
        token: u32,
        most: usize,
        logits: &mut Vec<f32>,
        observer: &mut dyn Observer,
    ) -> Result<Vec<u32>, ModelError> {
        let mut drafts = Vec::with_capacity(most);
        let mut id = token;
        for _ in 0..most {
            let head = self.draft_head.as_ref().expect("it drafts");
            self.backend.draft_input(self.pass, 0..1, &head.input, sequence.residual, &[id])?;
            self.store.begin_pass(PassKind::Decode);
            self.store.skip_to(self.layers.len() as u32);
            self.layer(self.layers.len(), sequence, 1, &[], observer)?;
            self.store.end_pass();
            let head = self.draft_head.as_ref().expect("it drafts");
            self.backend.keep_streams(self.pass, 0..1, sequence.residual.expect("there is one with a head"));
            let ticket = self.backend.head(self.pass, 0..1, &head.read, head.output);
            let first = logits.len();
            self.backend.take_logits(ticket, logits)?;
            id = best(&logits[first..]);
            drafts.push(id);
        }
        Ok(drafts)
    }

    /// A pass took `ids`: their entries join the draft head's cache, as far as the tokens after them are known.
    pub(super) fn remember_for_drafts(&mut self, sequence: &Sequence, ids: &[u32]) -> Result<(), ModelError> {
        // While computation is measured alone, nothing is drafted.
        let Some(head) = self.draft_head.as_ref().filter(|_| self.fixed_routes.is_none()) else { return Ok(()) };
        let (Some(residual), Mixer::Qsa(attention)) = (sequence.residual, &head.layer.mixer) else { return Ok(()) };
        let (state, pass) = (sequence.states[self.layers.len()], self.pass);
        // The first token of a sequence follows none.
        let is_first = sequence.tokens == ids.len();
        let (before, ids) = match is_first {
            true => {
                self.backend.keep_streams(pass, 0..ids.len(), residual);
                (None, &ids[1..])
            }
            false => (Some(residual), ids),
        };
        for strip in strips(ids.len(), self.options.strip_rows) {
            self.backend.draft_input(pass, strip.clone(), &head.input, before, &ids[strip.clone()])?;
            self.backend.read_streams(pass, strip.clone(), &head.layer.read);
            self.backend.extend_cache(pass, strip, attention, state)?;
        }
        Ok(())
    }
}

/// The largest logit's token, the lowest among equals.
fn best(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}
