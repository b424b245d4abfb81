//! The draft head (spec 11): one block that says, from the streams of a token behind the last layer and the embedding of the
//! next one, what may come after that. Its word is never taken: what it drafts goes through the model.
//!
//! Entry `i` of its attention is of token `i` and the token after it, so it is one entry behind the sequence. For tokens
//! that the sequence takes only keys and values are computed, with the streams of the trunk; a draft goes through the whole
//! block, and each further one takes the streams that the head itself gave.

use std::sync::Arc;

use strata_backend::{Backend, DraftInput, HyperRead, KvType, MatrixId, Mixer, SavedState, StateShape};
use strata_gguf::Gguf;
use strata_store::LayerRecords;

use super::checkpoint::Mark;
use super::config::Config;
use super::forward::Pass;
use super::weights::Loader;
use super::{Layer, Model, Observer, Sequence, Workspace, head, hyper, moe, qsa};
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
        let mut workspace = self.take_workspace()?;
        let result = self.draft_in(&mut workspace, sequence, token, most, logits, observer);
        self.workspace = Some(workspace);
        result
    }

    /// [`draft`](Self::draft) in a workspace of the caller's; one row is enough.
    ///
    /// # Errors
    /// As [`draft`](Self::draft).
    pub fn draft_in(
        &mut self,
        workspace: &mut Workspace,
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
        let result = self.drafts(workspace, sequence, token, most, logits, &mut Outside(observer));
        let head = self.draft_head.as_ref().expect("it drafted");
        for (state, saved) in states.iter().zip(&head.saved) {
            self.backend.restore_state(*state, saved);
        }
        result
    }

    fn drafts(
        &mut self,
        workspace: &mut Workspace,
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
            self.backend.draft_input(workspace.pass, 0..1, &head.input, sequence.residual, &[id])?;
            self.draft_layer(workspace, sequence, observer)?;
            let head = self.draft_head.as_ref().expect("it drafts");
            self.backend.keep_streams(workspace.pass, 0..1, sequence.residual.expect("there is one with a head"));
            let ticket = self.backend.head(workspace.pass, 0..1, &head.read, head.output);
            let first = logits.len();
            self.backend.take_logits(ticket, logits)?;
            id = best(&logits[first..]);
            drafts.push(id);
        }
        Ok(drafts)
    }

    /// A pass took `ids`: their entries join the draft heads' caches, as far as the tokens after them are known.
    pub(super) fn remember_for_drafts(
        &mut self,
        workspace: &Workspace,
        pass: &mut Pass,
        sequences: &[&mut Sequence],
        ids: &[u32],
    ) -> Result<(), ModelError> {
        // While computation is measured alone, nothing is drafted.
        if self.draft_head.is_none() || self.fixed_routes.is_some() {
            return Ok(());
        }
        for (at, sequence) in sequences.iter().enumerate() {
            let run = pass.runs()[at].clone();
            let ids = &ids[run.clone()];
            self.remember_run(workspace, sequence, run.start, ids, pass.marks())?;
        }
        Ok(())
    }

    /// The rows of one sequence, from `start` on. What comes after a row is known but for the last, so that the first entry
    /// of a sequence is one row behind.
    fn remember_run(
        &mut self,
        workspace: &Workspace,
        sequence: &Sequence,
        start: usize,
        ids: &[u32],
        marks: &mut [Mark],
    ) -> Result<(), ModelError> {
        let (Some(head), Some(residual)) = (&self.draft_head, sequence.residual) else { return Ok(()) };
        let Mixer::Qsa(attention) = &head.layer.mixer else { return Ok(()) };
        let (backend, room) = (self.backend.as_mut(), workspace.pass);
        let state = sequence.states[self.layers.len()];
        let behind = usize::from(sequence.tokens == ids.len());
        if behind > 0 {
            // The first token of a sequence follows none; and what the last rows leave must be kept before it is lost.
            for mark in &mut *marks {
                backend.keep_streams(room, start..start + mark.row, residual);
                mark.save(backend, sequence, residual)?;
                mark.save(backend, sequence, state)?;
            }
            backend.keep_streams(room, start..start + ids.len(), residual);
        }
        let (before, ids) = (Some(residual).filter(|_| behind == 0), &ids[behind..]);
        let mut end = 0;
        while end < ids.len() {
            let from = end;
            end = ids.len().min(from + self.options.strip_rows);
            let mark = marks.iter_mut().find(|mark| mark.row - behind > from);
            end = mark.as_ref().map_or(end, |mark| end.min(mark.row - behind));
            let rows = start + from..start + end;
            backend.draft_input(room, rows.clone(), &head.input, before, &ids[from..end])?;
            backend.read_streams(room, rows.clone(), &head.layer.read);
            backend.extend_cache(room, rows, attention, state)?;
            if let Some(mark) = mark.filter(|mark| mark.row - behind == end) {
                mark.save(backend, sequence, state)?;
                if behind == 0 {
                    mark.save(backend, sequence, residual)?;
                }
            }
        }
        Ok(())
    }

    /// A row goes through the draft head's layer.
    fn draft_layer(
        &mut self,
        workspace: &mut Workspace,
        sequence: &mut Sequence,
        observer: &mut dyn Observer,
    ) -> Result<(), ModelError> {
        let mut pass = Pass::of_draft(self.layers.len());
        pass.skip_in(self.store.as_mut());
        self.layer(workspace, &mut pass, &mut [sequence], observer).inspect_err(|_| self.give_up(&mut pass))?;
        self.store.end_pass();
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
