//! Cache-aware routing ("MoCE"): in decode, experts that are likely in memory are preferred a little.
//!
//! Owns: *logical residency* (which experts of a layer a sequence was routed to last), the choice that prefers those, and
//! the count of what it changed. Promises: a choice depends on the sequence's tokens and on which of them were decoded,
//! never on what is in memory or when it came; prompts are routed by the router alone, and so is everything without a
//! bonus. Refuses: to change the weights of what is chosen: they are the router's, as if it had chosen it itself.
//!
//! The choice of `k` of a layer's experts, with router logits `z` and the router's own choice `E`, the `k` largest:
//!
//! 1. An expert's score is `z + bonus` if it is logically resident, else `z`. So the bonus is in the units of router
//!    logits: one of 0.7 doubles an expert's odds.
//! 2. The `keep` largest of `E` stay. Of the rest, the one with the least `z` that is not resident gives way to the
//!    resident expert outside `E` with the largest `z`, then the one before it to the next, and so on, as long as scores
//!    grow by it. Without the next rule, this gives the `k` largest scores, with the `keep` largest logits among them.
//! 3. It ends before the softmax weights of those that gave way (renormalised over `E`), the *substituted mass*, would sum
//!    up to more than `mass`. These begin with the least, so as many swaps are made as the cap allows.
//! 4. Weights are the softmax of `z` renormalised over what was chosen.

use std::ops::{AddAssign, Range, Sub};

use strata_backend::{Backend, MatrixId, PassId, Routes, choose, weigh};
use strata_store::{ExpertId, ExpertStore};

use super::{Model, Observer, Rows, Sequence};
use crate::ModelError;

/// How much decode prefers experts that are likely in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moce {
    /// Experts of a layer that are logically resident; where that is all of them, nothing is preferred.
    pub slots: usize,
    /// What is added to the router logits of those, for the choice alone.
    pub bonus: f32,
    /// Of a token's experts, so many with the largest weights never give way.
    pub keep: usize,
    /// The most router mass of a token and layer that gives way, of 1.
    pub mass: f32,
}

/// What cache-aware routing did in decode. A *choice* is one expert of one layer for one row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RouteCounts {
    /// Rows (tokens); with those of drafts that were given up again.
    pub rows: u64,
    /// Rows, once for each layer.
    pub layer_rows: u64,
    /// Choices.
    pub choices: u64,
    /// Choices that the router alone would not have made.
    pub substituted: u64,
    /// Substituted mass, summed over rows and layers.
    pub mass: f64,
    /// Choices that were logically resident.
    pub resident: u64,
    /// Choices whose records were in memory when they were made.
    pub held: u64,
    /// Choices that were logically resident and in memory.
    pub resident_held: u64,
}

/// What has been counted since an `earlier` count.
impl Sub for RouteCounts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            rows: self.rows - earlier.rows,
            layer_rows: self.layer_rows - earlier.layer_rows,
            choices: self.choices - earlier.choices,
            substituted: self.substituted - earlier.substituted,
            mass: self.mass - earlier.mass,
            resident: self.resident - earlier.resident,
            held: self.held - earlier.held,
            resident_held: self.resident_held - earlier.resident_held,
        }
    }
}

impl AddAssign for RouteCounts {
    fn add_assign(&mut self, more: Self) {
        self.rows += more.rows;
        self.layer_rows += more.layer_rows;
        self.choices += more.choices;
        self.substituted += more.substituted;
        self.mass += more.mass;
        self.resident += more.resident;
        self.held += more.held;
        self.resident_held += more.resident_held;
    }
}

/// Of a sequence: for each layer, the experts that it was routed to last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Residency {
    layers: Vec<Recent>,
    /// Where the next rows were routed to, by layer, as long as they are remembered.
    window: Vec<Vec<u32>>,
    /// Rows that are remembered.
    window_rows: usize,
    slots: usize,
    top_k: usize,
}

impl Residency {
    /// Of a sequence without tokens, where `slots` experts of a layer are resident and a row is routed to `top_k`.
    pub(super) fn new(layers: usize, slots: usize, top_k: usize) -> Self {
        let (layers, window) = (vec![Recent::default(); layers], vec![Vec::new(); layers]);
        Self { layers, window, window_rows: 0, slots, top_k }
    }

    /// Makes it that of a sequence without tokens again.
    pub(super) fn clear(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.0.clear());
        self.remember_rows(0);
    }

    /// Of each layer, the experts in the order of their last use.
    pub(super) fn layers(&self) -> impl Iterator<Item = &[u32]> {
        self.layers.iter().map(|layer| &layer.0[..])
    }

    /// Experts of a layer that are remembered.
    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    /// Makes `ids` those of a layer, in the order of their last use.
    pub(super) fn set_layer(&mut self, layer: usize, ids: Vec<u32>) {
        self.layers[layer] = Recent(ids);
    }

    /// A row of a layer was routed to `ids`, the largest weight first.
    fn touch(&mut self, layer: usize, ids: &[u32]) {
        self.layers[layer].touch(ids, self.slots);
        let window = &mut self.window[layer];
        if window.len() < self.window_rows * self.top_k {
            window.extend_from_slice(ids);
        }
    }

    /// Makes one layer that of `other`.
    pub(super) fn copy_layer(&mut self, other: &Self, layer: usize) {
        if let Some(from) = other.layers.get(layer) {
            self.layers[layer].clone_from(from);
            self.window[layer].clone_from(&other.window[layer]);
        }
    }

    /// The next rows are remembered, for [`replay`](Self::replay).
    pub(super) fn remember_rows(&mut self, rows: usize) {
        self.window.iter_mut().for_each(Vec::clear);
        self.window_rows = rows;
    }

    /// Makes it what it was before the remembered rows, then goes through the first `rows` of them again.
    pub(super) fn replay(&mut self, before: &Self, rows: usize) {
        self.layers.clone_from(&before.layers);
        for (layer, window) in self.layers.iter_mut().zip(&self.window) {
            window.chunks_exact(self.top_k).take(rows).for_each(|ids| layer.touch(ids, self.slots));
        }
        self.remember_rows(0);
    }
}

/// Experts in the order of their last use, the last one first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Recent(Vec<u32>);

impl Recent {
    /// A row was routed to `ids`, the largest weight first: that one counts as used last. `slots` experts are remembered.
    fn touch(&mut self, ids: &[u32], slots: usize) {
        for id in ids.iter().rev() {
            if let Some(at) = self.0.iter().position(|recent| recent == id) {
                self.0[..=at].rotate_right(1);
            } else {
                self.0.insert(0, *id);
                self.0.truncate(slots);
            }
        }
    }
}

/// How the rows of a pass are routed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Routing {
    /// By the router alone.
    Exact,
    /// With a bonus for what is logically resident.
    Cached,
}

/// Routes rows, and remembers where to.
pub(super) struct MoceRouter {
    moce: Moce,
    layers: usize,
    experts: usize,
    top_k: usize,
    counts: RouteCounts,
    logits: Vec<f32>,
    entrants: Vec<u32>,
}

impl MoceRouter {
    pub(super) fn new(moce: Moce, layers: usize, experts: usize, top_k: usize) -> Self {
        let counts = RouteCounts::default();
        Self { moce, layers, experts, top_k, counts, logits: Vec::new(), entrants: Vec::new() }
    }

    /// Of a sequence without tokens.
    pub(super) fn residency(&self) -> Residency {
        Residency::new(self.layers, self.moce.slots, self.top_k)
    }

    /// Routes a sequence's rows of a strip through layer `layer`; the choice is left in `routes` and with the backend.
    #[allow(clippy::too_many_arguments)] // one caller, which takes them all from the pass at hand
    pub(super) fn route(
        &mut self,
        routing: Routing,
        backend: &mut dyn Backend,
        store: &mut dyn ExpertStore,
        pass: PassId,
        rows: Range<usize>,
        layer: usize,
        router: MatrixId,
        (residency, of_sequence): (&mut Residency, &mut RouteCounts),
        routes: &mut Routes,
    ) -> Result<(), ModelError> {
        if routing == Routing::Exact {
            let ticket = backend.route(pass, rows, router);
            backend.take_routes(ticket, routes)?;
            routes.ids.chunks_exact(self.top_k).for_each(|ids| residency.touch(layer, ids));
            return Ok(());
        }
        let ticket = backend.router_logits(pass, rows.clone(), router);
        self.logits.clear();
        backend.take_logits(ticket, &mut self.logits)?;
        routes.ids.resize(rows.len() * self.top_k, 0);
        routes.weights.resize(rows.len() * self.top_k, 0.0);
        let mut counts = RouteCounts::default();
        let choices = routes.ids.chunks_exact_mut(self.top_k).zip(routes.weights.chunks_exact_mut(self.top_k));
        for (logits, (ids, weights)) in self.logits.chunks_exact(self.experts).zip(choices) {
            let recent = &residency.layers[layer].0;
            let swaps = select(&self.moce, logits, recent, &mut self.entrants, ids, weights);
            counts.rows += u64::from(layer == 0);
            counts.layer_rows += 1;
            counts.choices += ids.len() as u64;
            counts.substituted += u64::from(swaps.count);
            counts.mass += f64::from(swaps.mass);
            for index in &*ids {
                let id = ExpertId { layer: layer as u32, index: *index };
                let is_resident = u64::from(recent.contains(index));
                let is_held = u64::from(store.as_streaming().is_some_and(|store| store.holds(id)));
                counts.resident += is_resident;
                counts.held += is_held;
                counts.resident_held += is_resident & is_held;
            }
            residency.touch(layer, ids);
        }
        self.counts += counts;
        *of_sequence += counts;
        backend.set_routes(pass, rows, routes);
        Ok(())
    }
}

/// What a choice changed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Swaps {
    count: u32,
    mass: f32,
}

/// Chooses `ids.len()` experts by their `logits`, preferring those in `recent`, and gives their weights, the largest first:
/// see the [module](self). `entrants` is scratch.
fn select(
    moce: &Moce,
    logits: &[f32],
    recent: &[u32],
    entrants: &mut Vec<u32>,
    ids: &mut [u32],
    weights: &mut [f32],
) -> Swaps {
    choose(logits, ids, weights);
    let mut swaps = Swaps::default();
    if moce.slots >= logits.len() {
        return swaps;
    }
    let best_first = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    entrants.clear();
    entrants.extend(recent.iter().filter(|id| !ids.contains(id) && !logits[**id as usize].is_nan()));
    entrants.sort_unstable_by(best_first);
    for place in (moce.keep.min(ids.len())..ids.len()).rev() {
        if recent.contains(&ids[place]) {
            continue;
        }
        let Some(&entrant) = entrants.get(swaps.count as usize) else { break };
        let gains = logits[entrant as usize] + moce.bonus > logits[ids[place] as usize];
        let mass = swaps.mass + weights[place];
        if !gains || mass > moce.mass {
            break;
        }
        ids[place] = entrant;
        swaps = Swaps { count: swaps.count + 1, mass };
    }
    if swaps.count > 0 {
        ids.sort_unstable_by(best_first);
        weigh(logits, ids, weights);
    }
    swaps
}

impl Model {
    /// [`forward`](Self::forward) for tokens that are written one after the other, or guessed to be: with
    /// [`Options::moce`](super::Options::moce), experts that are logically resident are preferred. Without it, the bytes
    /// are those of `forward`.
    ///
    /// A sequence depends on its tokens and on which of them came this way, not on how many came at a time.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn decode(
        &mut self,
        sequence: &mut Sequence,
        ids: &[u32],
        wanted: Rows,
        logits: &mut Vec<f32>,
        observer: &mut dyn Observer,
    ) -> Result<(), ModelError> {
        self.take(Routing::Cached, sequence, ids, wanted, logits, observer)
    }

    /// What cache-aware routing did so far, for all sequences; `None` without it.
    pub fn route_counts(&self) -> Option<RouteCounts> {
        self.moce.as_ref().map(|moce| moce.counts)
    }
}

#[cfg(test)]
mod tests;
