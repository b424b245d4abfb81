//! The forward pass, layer-major (spec 6): all rows of a pass go through a layer, strip by strip, before the next layer
//! begins, so that the layer's experts are needed once.

use std::ops::Range;

use strata_backend::Run;
use strata_store::{ExpertStore, GatherId, PassKind, PassNumber};

use super::checkpoint::Mark;
use super::experts::experts;
use super::moce::Routing;
use super::ple::NgramRows;
use super::{LayerView, Model, Moment, Observer, RowsWhen, Sequence, Workspace, ple};
use crate::ModelError;

/// Of which of the tokens given to [`Model::forward`] the logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Of all.
    All,
    /// Of the last.
    Last,
}

/// A pass on its way through the layers.
pub(super) struct Pass {
    routing: Routing,
    kind: PassKind,
    /// Rows of each sequence, one after the other.
    runs: Vec<Range<usize>>,
    /// Checkpoints that are taken of the only sequence on the way, ascending.
    marks: Vec<Mark>,
    /// Its name in the store, from its beginning to its end there.
    number: Option<PassNumber>,
    /// The next layer.
    layer: usize,
    /// Its table rows of the n-gram module, if they are read.
    gather: Option<GatherId>,
    /// Those of the pass that follows.
    pub(super) next_gather: Option<GatherId>,
}

impl Pass {
    /// Of several sequences that write so many tokens each; those with none have no run.
    pub(super) fn of_step(routing: Routing, rows: impl Iterator<Item = usize>) -> Self {
        let mut end = 0;
        let runs = rows.filter(|rows| *rows > 0).map(|rows| {
            end += rows;
            end - rows..end
        });
        // However many write at a time, they write: what they use is likely to be used again by the next step.
        let (runs, kind) = (runs.collect(), PassKind::Decode);
        Self { routing, kind, runs, marks: Vec::new(), number: None, layer: 0, gather: None, next_gather: None }
    }

    /// Of one sequence.
    pub(super) fn of_reading(
        routing: Routing,
        kind: PassKind,
        rows: usize,
        marks: Vec<Mark>,
        gather: Option<GatherId>,
    ) -> Self {
        let pass = Self::of_step(routing, std::iter::once(rows));
        Self { kind, marks, gather, ..pass }
    }

    /// Of a draft head, whose layer is `layer`.
    pub(super) fn of_draft(layer: usize) -> Self {
        Self { layer, ..Self::of_step(Routing::Exact, std::iter::once(1)) }
    }

    /// Begins in the store with its layer.
    pub(super) fn skip_in(&mut self, store: &mut dyn ExpertStore) {
        self.number = Some(store.begin_pass(self.kind));
        store.skip_to(self.layer as u32);
    }

    /// Rows of all sequences.
    pub(super) fn rows(&self) -> usize {
        self.runs.last().map_or(0, |run| run.end)
    }

    /// The next layer.
    pub(super) fn layer(&self) -> usize {
        self.layer
    }

    /// Rows of each sequence.
    pub(super) fn runs(&self) -> &[Range<usize>] {
        &self.runs
    }

    pub(super) fn marks(&mut self) -> &mut [Mark] {
        &mut self.marks
    }

    pub(super) fn take_marks(&mut self) -> impl Iterator<Item = Mark> {
        self.marks.drain(..)
    }

    /// The end of the strip that begins at a row: checkpoints are ends of strips.
    fn strip_end(&self, start: usize, strip_rows: usize) -> usize {
        let end = self.rows().min(start + strip_rows);
        self.marks.iter().map(|mark| mark.row).find(|row| *row > start).map_or(end, |row| row.min(end))
    }

    /// The sequences of a strip's rows, with these rows.
    fn runs_of<'a, 'b>(
        &'a self,
        strip: &Range<usize>,
        sequences: &'a mut [&'b mut Sequence],
    ) -> impl Iterator<Item = (Range<usize>, &'a mut &'b mut Sequence)> {
        let Range { start, end } = *strip;
        let within = move |run: &Range<usize>| run.start.max(start)..run.end.min(end);
        self.runs.iter().map(within).zip(sequences).filter(|(rows, _)| !rows.is_empty())
    }
}

impl Model {
    /// Takes `ids` into the sequence and appends the logits of the wanted rows, `[rows][vocabulary]`, to `logits`.
    ///
    /// Any split of a text into calls gives the same bytes. After an error the sequence must be reset.
    ///
    /// # Errors
    /// When an id is unknown, the context is full, experts cannot be read, or the observer cancels.
    pub fn forward(
        &mut self,
        sequence: &mut Sequence,
        ids: &[u32],
        wanted: Rows,
        logits: &mut Vec<f32>,
        observer: &mut dyn Observer,
    ) -> Result<(), ModelError> {
        self.take(Routing::Exact, sequence, ids, wanted, logits, observer)
    }

    /// What can be known to be wrong before anything is computed.
    pub(super) fn check(&self, sequence: &Sequence, ids: &[u32]) -> Result<(), ModelError> {
        if sequence.is_torn {
            return Err(ModelError::Interrupted);
        }
        let needed_tokens = sequence.tokens + ids.len();
        if needed_tokens > self.context_tokens {
            let context_tokens = self.context_tokens;
            return Err(strata_backend::BackendError::ContextFull { needed_tokens, context_tokens }.into());
        }
        if let Some(&id) = ids.iter().find(|id| **id as usize >= self.head.vocabulary) {
            return Err(strata_backend::BackendError::NoSuchToken { id, rows: self.head.vocabulary }.into());
        }
        Ok(())
    }

    pub(super) fn logits(
        &mut self,
        workspace: &Workspace,
        rows: Range<usize>,
        logits: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        let ticket = self.backend.head(workspace.pass, rows, &self.head.read, self.head.output);
        Ok(self.backend.take_logits(ticket, logits)?)
    }

    /// A pass begins: `ids` are those of all its sequences, one after the other, and `next_ids` those of the pass that
    /// follows, if that is of the same sequence.
    pub(super) fn begin(
        &mut self,
        workspace: &mut Workspace,
        pass: &mut Pass,
        sequences: &[&mut Sequence],
        ids: &[u32],
        next_ids: &[u32],
    ) -> Result<(), ModelError> {
        // Before any record: a row would wait behind them in the drive's queue.
        self.gather_ngrams(workspace, pass, sequences, ids)?;
        self.gather_next(workspace, pass, sequences, ids, next_ids)?;
        pass.number = Some(self.store.begin_pass(pass.kind));
        Ok(self.backend.embed(workspace.pass, 0, self.head.embedding, ids)?)
    }

    /// Takes a pass through its next layer; `true`: that was the last. Other passes may have run since the one before.
    pub(super) fn go_on(
        &mut self,
        workspace: &mut Workspace,
        pass: &mut Pass,
        sequences: &mut [&mut Sequence],
        ids: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<bool, ModelError> {
        self.store.resume(pass.number.expect("the pass has begun"));
        self.layer(workspace, pass, sequences, observer)?;
        pass.layer += 1;
        if pass.layer < self.layers.len() {
            return Ok(false);
        }
        self.store.end_pass();
        pass.number = None;
        self.finish_rows(pass.gather.take());
        for (sequence, run) in sequences.iter_mut().zip(&pass.runs) {
            sequence.tokens += run.len();
            self.look_back(&mut sequence.window, &ids[run.clone()]);
        }
        Ok(true)
    }

    /// A pass ends where it is: nothing that it asked for is needed any more. Others are untouched.
    pub(super) fn give_up(&mut self, pass: &mut Pass) {
        if let Some(number) = pass.number.take() {
            self.store.abandon(number);
        }
        self.finish_rows(pass.gather.take());
        self.finish_rows(pass.next_gather.take());
    }

    /// Rows of the n-gram table are needed no more.
    pub(super) fn finish_rows(&mut self, gather: Option<GatherId>) {
        if let (Some(module), Some(gather)) = (&mut self.ple, gather) {
            module.table.finish(gather);
        }
    }

    /// Tokens that the n-gram hash looks back at.
    pub(super) fn ngram_tokens(&self) -> usize {
        self.ple.as_ref().map_or(0, |module| module.config.ngram - 1)
    }

    /// The n-gram hash looks back at these tokens from now on.
    pub(super) fn look_back(&self, window: &mut Vec<u32>, ids: &[u32]) {
        look_back(self.ngram_tokens(), window, ids);
    }

    /// Says which table rows a pass uses, so that they are read in time.
    fn gather_ngrams(
        &mut self,
        workspace: &mut Workspace,
        pass: &mut Pass,
        sequences: &[&mut Sequence],
        ids: &[u32],
    ) -> Result<(), ModelError> {
        let Some(module) = &mut self.ple else { return Ok(()) };
        let rows = &mut workspace.buffers.ple_rows;
        rows.clear();
        for (sequence, run) in sequences.iter().zip(&pass.runs) {
            ple::rows(&module.config, &sequence.window, &ids[run.clone()], rows);
        }
        if pass.gather.is_none() {
            let strip_ids = self.options.strip_rows * module.config.rows_per_token();
            pass.gather = module.table.begin(rows, strip_ids)?;
        }
        if self.options.streaming.rows_when == RowsWhen::Before {
            module.table.rows(pass.gather, 0..rows.len(), rows)?;
        }
        Ok(())
    }

    /// Says which table rows the pass that follows uses, so that they are read during this one.
    fn gather_next(
        &mut self,
        workspace: &mut Workspace,
        pass: &mut Pass,
        sequences: &[&mut Sequence],
        ids: &[u32],
        next_ids: &[u32],
    ) -> Result<(), ModelError> {
        let Some(module) = &mut self.ple else { return Ok(()) };
        if next_ids.is_empty() || self.options.streaming.rows_when == RowsWhen::Before {
            return Ok(());
        }
        let rows = &mut workspace.buffers.next_ple_rows;
        rows.clear();
        // What the hash looks back at may begin in the pass before this one.
        let mut window = sequences[0].window.clone();
        look_back(module.config.ngram - 1, &mut window, ids);
        ple::rows(&module.config, &window, next_ids, rows);
        let strip_ids = self.options.strip_rows * module.config.rows_per_token();
        pass.next_gather = module.table.begin_later(rows, strip_ids)?;
        Ok(())
    }

    /// The next layer of a pass; after the last comes the draft head's.
    pub(super) fn layer(
        &mut self,
        workspace: &mut Workspace,
        pass: &mut Pass,
        sequences: &mut [&mut Sequence],
        observer: &mut dyn Observer,
    ) -> Result<(), ModelError> {
        let Self { options, config, backend, store, layers, ple, draft_head, fixed_routes, moce, .. } = self;
        let (backend, store) = (backend.as_mut(), store.as_mut());
        let (index, rows, room) = (pass.layer, pass.rows(), workspace.pass);
        let buffers = &mut workspace.buffers;
        let layer = layers.get(index).unwrap_or_else(|| &draft_head.as_ref().expect("a layer").layer);
        let next_router = layers.get(index + 1).map(|next| next.moe.router);
        let early_router = layers.get(index + 2).map(|next| next.moe.router);
        let mut table = None;
        let mut module = None;
        if let Some(found) = ple {
            table = Some(&mut found.table);
            module = Some((&found.config, &found.weights)).filter(|(config, _)| config.layer == index);
        }
        let ple_rows: &[u64] = if module.is_some() { &buffers.ple_rows } else { &[] };
        let first_position = sequences[0].tokens;
        let top_k = config.moe.top_k;
        buffers.routes.ids.clear();
        buffers.routes.weights.clear();

        let mut strip = 0..0;
        while strip.end < rows {
            strip = strip.end..pass.strip_end(strip.end, options.strip_rows);
            if observer.is_cancelled() {
                return Err(ModelError::Cancelled);
            }
            if let (Some((config, weights)), Some(table)) = (module, &mut table) {
                let per_token = config.rows_per_token();
                let places = strip.start * per_token..strip.end * per_token;
                let bytes = table.rows(pass.gather, places.clone(), &ple_rows[places])?;
                let row_bytes = bytes.len() / strip.len();
                for (rows, sequence) in pass.runs_of(&strip, sequences) {
                    let Some(state) = sequence.ple_state else { continue };
                    let bytes = &bytes[(rows.start - strip.start) * row_bytes..(rows.end - strip.start) * row_bytes];
                    backend.add_ngrams(room, rows, weights, state, bytes);
                }
            }
            backend.read_streams(room, strip.clone(), &layer.read);
            poll(store, &mut table)?;
            buffers.runs.clear();
            let runs = pass.runs_of(&strip, sequences);
            buffers.runs.extend(runs.map(|(rows, sequence)| Run { rows, state: sequence.states[index] }));
            backend.mix(room, &buffers.runs, &layer.mixer)?;
            poll(store, &mut table)?;
            backend.write_streams(room, strip.clone());
            let mut view = LayerView {
                layer: index,
                rows: strip.clone(),
                first_position,
                routes: &buffers.routes,
                ple_rows,
                backend: &mut *backend,
                pass: room,
                next_router,
                strip_rows: options.strip_rows,
            };
            observer.at(Moment::StripMixed, &mut view);

            backend.read_streams(room, strip.clone(), &layer.moe.read);
            let (router, routes) = (layer.moe.router, &mut buffers.strip_routes);
            // The draft head is always routed exactly.
            if let Some(moce) = moce.as_mut().filter(|_| index < config.layers) {
                routes.ids.clear();
                routes.weights.clear();
                for (rows, sequence) in pass.runs_of(&strip, sequences) {
                    let (kept, of_run) = ((&mut sequence.residency, &mut sequence.routed), &mut buffers.run_routes);
                    moce.route(pass.routing, backend, store, room, rows, index, router, kept, of_run)?;
                    routes.ids.extend_from_slice(&of_run.ids);
                    routes.weights.extend_from_slice(&of_run.weights);
                }
            } else {
                let ticket = backend.route(room, strip.clone(), router);
                backend.take_routes(ticket, routes)?;
            }
            if let Some(mark) = pass.marks.iter_mut().find(|mark| mark.row == strip.end) {
                mark.save_layer(backend, sequences[0], index, module.is_some())?;
            }
            if let Some(fixed) = fixed_routes {
                let ids = &fixed.layers[fixed.at][strip.start * top_k..strip.end * top_k];
                buffers.strip_routes.ids.copy_from_slice(ids);
            }
            buffers.routes.ids.extend_from_slice(&buffers.strip_routes.ids);
            buffers.routes.weights.extend_from_slice(&buffers.strip_routes.weights);
            store.demand(index as u32, buffers.demand.count(&buffers.strip_routes.ids, config.moe.experts))?;
            if let Some(router) = next_router.filter(|_| store.wants_forecast()) {
                let next = index as u32 + 1;
                let choices = if rows == 1 { ranked_choices(top_k, config.moe.experts) } else { top_k };
                let ticket = backend.forecast(room, strip.clone(), router, choices);
                backend.take_routes(ticket, &mut buffers.forecast)?;
                if rows == 1 {
                    store.forecast_ranked(next, &buffers.forecast.ids);
                    if let Some(router) = early_router.filter(|_| store.wants_early_forecast()) {
                        let ticket = backend.forecast(room, strip.clone(), router, choices);
                        backend.take_routes(ticket, &mut buffers.forecast)?;
                        store.forecast_ranked(next + 1, &buffers.forecast.ids);
                    }
                } else {
                    store.forecast(next, buffers.demand.count(&buffers.forecast.ids, config.moe.experts));
                }
            }
        }
        if let Some(fixed) = fixed_routes {
            fixed.at += 1;
        }
        store.close(index as u32);
        // Every row needs it, and it is always there: it is computed while others arrive.
        for strip in strips(rows, options.strip_rows) {
            backend.shared_expert(room, strip, &layer.moe.shared);
            poll(store, &mut table)?;
        }
        experts(backend, store, &mut table, room, index as u32, layer, top_k, buffers, observer)?;
        for strip in strips(rows, options.strip_rows) {
            backend.combine(room, strip.clone());
            backend.write_streams(room, strip);
            poll(store, &mut table)?;
        }
        let mut view = LayerView {
            layer: index,
            rows: 0..rows,
            first_position,
            routes: &buffers.routes,
            ple_rows: if module.is_some() { &buffers.ple_rows } else { &[] },
            backend,
            pass: room,
            next_router,
            strip_rows: options.strip_rows,
        };
        observer.at(Moment::LayerDone, &mut view);
        Ok(())
    }
}

/// Between operations: looks what has arrived and starts what can be started.
fn poll(store: &mut dyn ExpertStore, table: &mut Option<&mut NgramRows>) -> Result<(), ModelError> {
    store.poll();
    match table {
        Some(table) => Ok(table.poll()?),
        None => Ok(()),
    }
}

/// The most rows of a pass that counts as writing, not as reading a prompt: one token, or a few that were guessed.
pub const DECODE_ROWS: usize = PassKind::DECODE_ROWS;

/// Choices of a forecast for a single row. More than the row will have: of the sixteen that the next layer's router names
/// first, ten have 60 % of those that are needed, and all sixteen 72 %.
fn ranked_choices(top_k: usize, experts: usize) -> usize {
    (top_k + top_k.div_ceil(2) + 1).min(experts)
}

/// The n-gram hash, which looks back at `tokens` tokens, sees these from now on.
pub(super) fn look_back(tokens: usize, window: &mut Vec<u32>, ids: &[u32]) {
    if tokens > 0 {
        window.extend_from_slice(ids);
        window.drain(..window.len().saturating_sub(tokens));
    }
}

/// The rows `0..rows` in strips.
pub(super) fn strips(rows: usize, strip_rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(strip_rows).map(move |start| start..rows.min(start + strip_rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_cover_all_rows_once() {
        assert_eq!(strips(7, 3).collect::<Vec<_>>(), [0..3, 3..6, 6..7]);
        assert_eq!(strips(3, 3).count(), 1);
        assert_eq!(strips(0, 3).count(), 0);
    }
}
