//! The forward pass, layer-major (spec 6): all rows of a pass go through a layer, strip by strip, before the next layer
//! begins, so that the layer's experts are needed once.

use std::ops::Range;

use strata_backend::{Backend, Choice, Field, GroupEntry, MatrixId, PassId, Routes};
use strata_store::{Demand, ExpertStore, PassKind, Slot};

use super::moce::Routing;
use super::ple::NgramRows;
use super::{Layer, Model, RowsWhen, Sequence, ple};
use crate::ModelError;

/// Of which of the tokens given to [`Model::forward`] the logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Of all.
    All,
    /// Of the last.
    Last,
}

/// Sees a forward pass from outside; it can look at things and stop it, but not change it.
pub trait Observer {
    /// Asked between strips and between groups of experts: `true` ends the pass with [`ModelError::Cancelled`].
    fn is_cancelled(&self) -> bool {
        false
    }

    /// Called twice a layer and pass, when its values can be read.
    fn at(&mut self, _moment: Moment, _view: &mut LayerView<'_>) {}
}

/// The observer that does nothing.
pub struct Unobserved;

impl Observer for Unobserved {}

/// When an observer is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// One strip of the layer went through its mixer: [`Field::Inject`] and [`Field::Output`] are the mixer's.
    StripMixed,
    /// All rows went through the layer: all fields are those of its mixture of experts.
    LayerDone,
}

/// What an observer can look at.
pub struct LayerView<'a> {
    /// The layer, from 0.
    pub layer: usize,
    /// Rows of the pass that are ready.
    pub rows: Range<usize>,
    /// Position in the sequence of the pass's row 0.
    pub first_position: usize,
    /// Routes of the rows so far routed, `[rows][top_k]`.
    pub routes: &'a Routes,
    /// Table rows of the n-gram module for the pass, `[rows][heads]`; empty in layers without it.
    pub ple_rows: &'a [u64],
    backend: &'a mut dyn Backend,
    pass: PassId,
    next_router: Option<MatrixId>,
    strip_rows: usize,
}

impl LayerView<'_> {
    /// What the next layer's router would choose for the input of this layer's mixture of experts, once the layer is done;
    /// `None` in the last layer.
    ///
    /// # Errors
    /// When the computation failed.
    pub fn forecast(&mut self) -> Result<Option<Routes>, ModelError> {
        let Some(router) = self.next_router else { return Ok(None) };
        let top_k = self.routes.ids.len() / self.rows.len().max(1);
        let (mut all, mut of_strip) = (Routes::default(), Routes::default());
        for strip in strips(self.rows.len(), self.strip_rows) {
            let rows = self.rows.start + strip.start..self.rows.start + strip.end;
            let ticket = self.backend.forecast(self.pass, rows, router, top_k);
            self.backend.take_routes(ticket, &mut of_strip)?;
            all.ids.extend_from_slice(&of_strip.ids);
            all.weights.extend_from_slice(&of_strip.weights);
        }
        Ok(Some(all))
    }

    /// Values of the ready rows, `[rows][width of the field]`.
    pub fn read(&mut self, field: Field) -> Vec<f32> {
        self.backend.read_field(self.pass, field, self.rows.clone())
    }

    /// Blocks that an attention layer selected for a row; `None`: it attended to everything.
    pub fn selected_blocks(&mut self, row: usize) -> Option<Vec<u32>> {
        self.backend.selected_blocks(self.pass, row)
    }
}

/// Lists that a pass fills, kept between passes so that they are not allocated anew.
#[derive(Default)]
pub(super) struct Buffers {
    /// Of all rows of the pass, for the layer at hand.
    routes: Routes,
    strip_routes: Routes,
    forecast: Routes,
    demand: DemandCount,
    ple_rows: Vec<u64>,
    next_ple_rows: Vec<u64>,
    /// All choices of the layer, by expert.
    choices: Vec<Choice>,
    /// Where the choices of each expert begin.
    starts: Vec<usize>,
    group: Vec<GroupEntry>,
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

    pub(super) fn take(
        &mut self,
        routing: Routing,
        sequence: &mut Sequence,
        ids: &[u32],
        wanted: Rows,
        logits: &mut Vec<f32>,
        observer: &mut dyn Observer,
    ) -> Result<(), ModelError> {
        if sequence.is_torn {
            return Err(ModelError::Interrupted);
        }
        self.check(sequence, ids)?;
        self.set_routing(routing);
        sequence.is_torn = true;
        self.passes(sequence, ids, wanted, logits, observer).inspect_err(|_| self.give_up())?;
        sequence.is_torn = false;
        Ok(())
    }

    pub(super) fn give_up(&mut self) {
        self.store.abandon();
        if let Some(module) = &mut self.ple {
            module.table.abandon();
        }
    }

    fn passes(
        &mut self,
        sequence: &mut Sequence,
        ids: &[u32],
        wanted: Rows,
        logits: &mut Vec<f32>,
        observer: &mut dyn Observer,
    ) -> Result<(), ModelError> {
        let passes = ids.len().div_ceil(self.options.pass_tokens);
        for (i, (ids, next_ids)) in with_next(ids, self.options.pass_tokens).enumerate() {
            self.pass(sequence, ids, next_ids, observer)?;
            match wanted {
                Rows::All => {
                    for strip in strips(ids.len(), self.options.strip_rows) {
                        self.logits(strip, logits)?;
                    }
                }
                Rows::Last if i + 1 == passes => self.logits(ids.len() - 1..ids.len(), logits)?,
                Rows::Last => {}
            }
            self.remember_for_drafts(sequence, ids)?;
        }
        Ok(())
    }

    /// What can be known to be wrong before anything is computed.
    fn check(&self, sequence: &Sequence, ids: &[u32]) -> Result<(), ModelError> {
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

    fn logits(&mut self, rows: Range<usize>, logits: &mut Vec<f32>) -> Result<(), ModelError> {
        let ticket = self.backend.head(self.pass, rows, &self.head.read, self.head.output);
        Ok(self.backend.take_logits(ticket, logits)?)
    }

    fn pass(
        &mut self,
        sequence: &mut Sequence,
        ids: &[u32],
        next_ids: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<(), ModelError> {
        // Before any record: a row would wait behind them in the drive's queue.
        self.gather_ngrams(&sequence.window, ids, next_ids)?;
        self.store.begin_pass(PassKind::of_rows(ids.len()));
        self.backend.embed(self.pass, 0, self.head.embedding, ids)?;
        let ple_rows = std::mem::take(&mut self.buffers.ple_rows);
        let layers = (0..self.layers.len()).try_for_each(|l| self.layer(l, sequence, ids.len(), &ple_rows, observer));
        self.buffers.ple_rows = ple_rows;
        layers?;
        self.store.end_pass();
        sequence.tokens += ids.len();
        if let Some(module) = &mut self.ple {
            module.table.finish();
        }
        self.look_back(sequence, ids);
        Ok(())
    }

    /// The n-gram hash looks back at these tokens from now on.
    pub(super) fn look_back(&self, sequence: &mut Sequence, ids: &[u32]) {
        if let Some(module) = &self.ple {
            sequence.window.extend_from_slice(ids);
            let keep = sequence.window.len().min(module.config.ngram - 1);
            sequence.window.drain(..sequence.window.len() - keep);
        }
    }

    /// Says which table rows this pass and the next use, so that they are read in time.
    fn gather_ngrams(&mut self, window: &[u32], ids: &[u32], next_ids: &[u32]) -> Result<(), ModelError> {
        let Some(module) = &mut self.ple else { return Ok(()) };
        let strip_ids = self.options.strip_rows * module.config.rows_per_token();
        let (rows, next_rows) = (&mut self.buffers.ple_rows, &mut self.buffers.next_ple_rows);
        rows.clear();
        ple::rows(&module.config, window, ids, rows);
        if module.table.begun() == 0 {
            module.table.begin(rows, strip_ids)?;
        }
        match self.options.streaming.rows_when {
            RowsWhen::Before => {
                for (strip, ids) in rows.chunks(strip_ids).enumerate() {
                    module.table.strip(strip, ids)?;
                }
            }
            RowsWhen::Beside if !next_ids.is_empty() => {
                next_rows.clear();
                let before = ids.len().saturating_sub(module.config.ngram);
                // What the hash looks back at may begin in the pass before this one.
                let window: Vec<u32> = match before {
                    0 => window.iter().chain(ids).copied().collect(),
                    _ => ids[before..].to_vec(),
                };
                ple::rows(&module.config, &window, next_ids, next_rows);
                module.table.begin(next_rows, strip_ids)?;
            }
            RowsWhen::Beside => {}
        }
        Ok(())
    }

    /// One layer; after the last comes the draft head's.
    pub(super) fn layer(
        &mut self,
        index: usize,
        sequence: &mut Sequence,
        rows: usize,
        ple_rows: &[u64],
        observer: &mut dyn Observer,
    ) -> Result<(), ModelError> {
        let Self { options, config, backend, store, layers, ple, draft_head, .. } = self;
        let Self { pass, buffers, fixed_routes, moce, .. } = self;
        let (backend, store, pass) = (backend.as_mut(), store.as_mut(), *pass);
        let layer = layers.get(index).unwrap_or_else(|| &draft_head.as_ref().expect("a layer").layer);
        let next_router = layers.get(index + 1).map(|next| next.moe.router);
        let early_router = layers.get(index + 2).map(|next| next.moe.router);
        let mut table = None;
        let mut module = None;
        if let Some(found) = ple {
            table = Some(&mut found.table);
            module = Some((&found.config, &found.weights)).filter(|(config, _)| config.layer == index);
        }
        let ple_rows = if module.is_some() { ple_rows } else { &[] };
        let top_k = config.moe.top_k;
        buffers.routes.ids.clear();
        buffers.routes.weights.clear();

        for (number, strip) in strips(rows, options.strip_rows).enumerate() {
            if observer.is_cancelled() {
                return Err(ModelError::Cancelled);
            }
            if let (Some((config, weights)), Some(table), Some(state)) = (module, &mut table, sequence.ple_state) {
                let per_token = config.rows_per_token();
                let bytes = table.strip(number, &ple_rows[strip.start * per_token..strip.end * per_token])?;
                backend.add_ngrams(pass, strip.clone(), weights, state, bytes);
            }
            backend.read_streams(pass, strip.clone(), &layer.read);
            poll(store, &mut table)?;
            backend.mix(pass, strip.clone(), &layer.mixer, sequence.states[index])?;
            poll(store, &mut table)?;
            backend.write_streams(pass, strip.clone());
            let mut view = LayerView {
                layer: index,
                rows: strip.clone(),
                first_position: sequence.tokens,
                routes: &buffers.routes,
                ple_rows,
                backend: &mut *backend,
                pass,
                next_router,
                strip_rows: options.strip_rows,
            };
            observer.at(Moment::StripMixed, &mut view);

            backend.read_streams(pass, strip.clone(), &layer.moe.read);
            let (router, routes) = (layer.moe.router, &mut buffers.strip_routes);
            // The draft head is always routed exactly.
            if let Some(moce) = moce.as_mut().filter(|_| index < config.layers) {
                moce.route(backend, store, pass, strip.clone(), index, router, &mut sequence.residency, routes)?;
            } else {
                let ticket = backend.route(pass, strip.clone(), router);
                backend.take_routes(ticket, routes)?;
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
                let ticket = backend.forecast(pass, strip.clone(), router, choices);
                backend.take_routes(ticket, &mut buffers.forecast)?;
                if rows == 1 {
                    store.forecast_ranked(next, &buffers.forecast.ids);
                    if let Some(router) = early_router.filter(|_| store.wants_early_forecast()) {
                        let ticket = backend.forecast(pass, strip, router, choices);
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
            backend.shared_expert(pass, strip, &layer.moe.shared);
            poll(store, &mut table)?;
        }
        experts(backend, store, &mut table, pass, index as u32, layer, top_k, buffers, observer)?;
        for strip in strips(rows, options.strip_rows) {
            backend.combine(pass, strip.clone());
            backend.write_streams(pass, strip);
            poll(store, &mut table)?;
        }
        let first_position = sequence.tokens;
        let routes = &buffers.routes;
        let strip_rows = options.strip_rows;
        let mut view = LayerView {
            layer: index,
            rows: 0..rows,
            first_position,
            routes,
            ple_rows,
            backend,
            pass,
            next_router,
            strip_rows,
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

/// Computes the layer's experts in the order in which the store has them ready.
#[allow(clippy::too_many_arguments)] // one caller, which takes them all from the model
fn experts(
    backend: &mut dyn Backend,
    store: &mut dyn ExpertStore,
    table: &mut Option<&mut NgramRows>,
    pass: PassId,
    index: u32,
    layer: &Layer,
    top_k: usize,
    buffers: &mut Buffers,
    observer: &dyn Observer,
) -> Result<(), ModelError> {
    let Buffers { routes, choices, starts, group, .. } = buffers;
    sort_choices(&routes.ids, top_k, layer.moe.scales.len(), choices, starts);
    loop {
        // From a slow drive, the experts of a layer take long.
        if observer.is_cancelled() {
            return Err(ModelError::Cancelled);
        }
        let mut slots: Vec<Slot> = Vec::new();
        store.ready(index, &mut slots)?;
        if slots.is_empty() {
            return Ok(());
        }
        group.clear();
        group.extend(slots.iter().enumerate().map(|(slot, held)| {
            let expert = held.id().index as usize;
            GroupEntry { slot, choices: starts[expert]..starts[expert + 1], scales: layer.moe.scales[expert] }
        }));
        let ticket = backend.experts(pass, &layer.moe.experts, slots, group, choices);
        let mut done = Vec::new();
        backend.take_slots(ticket, &mut done)?;
        done.into_iter().for_each(|slot| store.release(slot));
        // The store looks after its own reads when it is asked for more.
        if let Some(table) = table {
            table.poll()?;
        }
    }
}

/// The most rows of a pass that counts as writing, not as reading a prompt: one token, or a few that were guessed.
pub const DECODE_ROWS: usize = PassKind::DECODE_ROWS;

/// Choices of a forecast for a single row. More than the row will have: of the sixteen that the next layer's router names
/// first, ten have 60 % of those that are needed, and all sixteen 72 %.
fn ranked_choices(top_k: usize, experts: usize) -> usize {
    (top_k + top_k.div_ceil(2) + 1).min(experts)
}

/// The passes of `ids`, each with the one that follows it.
fn with_next(ids: &[u32], pass_tokens: usize) -> impl Iterator<Item = (&[u32], &[u32])> {
    let nexts = ids.chunks(pass_tokens).skip(1).chain(std::iter::once([].as_slice()));
    ids.chunks(pass_tokens).zip(nexts)
}

/// The rows `0..rows` in strips.
pub(super) fn strips(rows: usize, strip_rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(strip_rows).map(move |start| start..rows.min(start + strip_rows))
}

/// Lists the choices of `ids` (`[rows][top_k]`) by expert, rows ascending: those of expert `e` are
/// `choices[starts[e]..starts[e + 1]]`.
fn sort_choices(ids: &[u32], top_k: usize, experts: usize, choices: &mut Vec<Choice>, starts: &mut Vec<usize>) {
    starts.clear();
    starts.resize(experts + 1, 0);
    for id in ids {
        starts[*id as usize + 1] += 1;
    }
    for expert in 0..experts {
        starts[expert + 1] += starts[expert];
    }
    choices.clear();
    choices.resize(ids.len(), Choice { row: 0, k: 0 });
    // Each start moves to its expert's end, which is the next one's start; then all move back by one place.
    for (at, id) in ids.iter().enumerate() {
        let place = &mut starts[*id as usize];
        choices[*place] = Choice { row: (at / top_k) as u32, k: (at % top_k) as u32 };
        *place += 1;
    }
    starts.rotate_right(1);
    starts[0] = 0;
}

/// Counts how many rows chose each expert.
#[derive(Default)]
struct DemandCount {
    by_expert: Vec<u32>,
    demands: Vec<Demand>,
}

impl DemandCount {
    /// The distinct experts of `ids`, most rows first, the lower index first among equals.
    fn count(&mut self, ids: &[u32], experts: usize) -> &[Demand] {
        self.by_expert.clear();
        self.by_expert.resize(experts, 0);
        ids.iter().for_each(|id| self.by_expert[*id as usize] += 1);
        self.demands.clear();
        let counts = (0u32..).zip(&self.by_expert).filter(|(_, tokens)| **tokens > 0);
        self.demands.extend(counts.map(|(expert, tokens)| Demand { expert, tokens: *tokens }));
        self.demands.sort_by_key(|demand| std::cmp::Reverse(demand.tokens));
        &self.demands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_sorted_by_expert_then_row() {
        let (mut choices, mut starts) = (Vec::new(), Vec::new());
        sort_choices(&[3, 0, 0, 2, 3, 2], 2, 5, &mut choices, &mut starts);
        let choice = |row, k| Choice { row, k };
        assert_eq!(starts, [0, 2, 2, 4, 6, 6]);
        assert_eq!(choices, [choice(0, 1), choice(1, 0), choice(1, 1), choice(2, 1), choice(0, 0), choice(2, 0)]);
    }

    #[test]
    fn demand_is_counted_most_rows_first() {
        let demand = |expert, tokens| Demand { expert, tokens };
        let mut count = DemandCount::default();
        assert_eq!(count.count(&[4, 1, 1, 0, 4, 1, 3], 5), [demand(1, 3), demand(4, 2), demand(0, 1), demand(3, 1)]);
        assert_eq!(count.count(&[2], 5), [demand(2, 1)]);
    }

    #[test]
    fn strips_cover_all_rows_once() {
        assert_eq!(strips(7, 3).collect::<Vec<_>>(), [0..3, 3..6, 6..7]);
        assert_eq!(strips(3, 3).count(), 1);
        assert_eq!(strips(0, 3).count(), 0);
    }
}
