//! Route traces: what the rows of a text were routed to, and what was forecast.

use crate::{Demand, ExpertId, Usage};

/// The routes of a text. Any number of its strips can be taken as a pass, since routes do not depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Layers of the model.
    pub layers: u32,
    /// Experts of a layer.
    pub experts: u32,
    /// Experts that a row uses in a layer.
    pub top_k: u32,
    /// The rows of the text, in order.
    pub strips: Vec<Strip>,
    /// What came after the text token by token: each one a pass of its own.
    pub decode: Vec<Strip>,
}

/// Some rows of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strip {
    /// How many.
    pub rows: u32,
    /// By layer.
    pub layers: Vec<LayerRoutes>,
}

/// A strip in a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerRoutes {
    /// Experts that its rows are routed to, the indices ascending.
    pub demand: Vec<Demand>,
    /// Experts of the next layer that its router would choose for these rows; empty when it was not asked, and in the last
    /// layer.
    pub forecast: Vec<Demand>,
}

impl LayerRoutes {
    /// Counts choices, `[rows][top_k]`.
    ///
    /// # Panics
    /// When an expert does not exist.
    pub fn count(experts: u32, demand: &[u32], forecast: &[u32]) -> Self {
        Self { demand: count(experts, demand), forecast: count(experts, forecast) }
    }
}

fn count(experts: u32, ids: &[u32]) -> Vec<Demand> {
    let mut tokens = vec![0; experts as usize];
    ids.iter().for_each(|id| tokens[*id as usize] += 1);
    demands(&tokens)
}

/// The experts that are used, by their counts.
pub(super) fn demands(tokens: &[u32]) -> Vec<Demand> {
    let used = (0u32..).zip(tokens).filter(|(_, tokens)| **tokens > 0);
    used.map(|(expert, tokens)| Demand { expert, tokens: *tokens }).collect()
}

impl Trace {
    /// How often each expert was used.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::sized(self.layers as usize, self.experts as usize);
        for strip in self.strips.iter().chain(&self.decode) {
            (0u32..).zip(&strip.layers).for_each(|(layer, routes)| usage.add(layer, &routes.demand));
        }
        usage
    }

    /// Rows of the text.
    pub fn tokens(&self) -> u64 {
        self.strips.iter().map(|strip| u64::from(strip.rows)).sum()
    }

    /// Its passes, if each has at most so many rows, or one strip.
    pub fn passes(&self, pass_tokens: u32) -> Vec<&[Strip]> {
        let (mut passes, mut start, mut rows) = (Vec::new(), 0, 0);
        for (at, strip) in self.strips.iter().enumerate() {
            if at > start && rows + u64::from(strip.rows) > u64::from(pass_tokens) {
                passes.push(&self.strips[start..at]);
                (start, rows) = (at, 0);
            }
            rows += u64::from(strip.rows);
        }
        if start < self.strips.len() {
            passes.push(&self.strips[start..]);
        }
        passes
    }
}

/// The experts of each layer, those expected to be used most first, as known before a text begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranking {
    /// By layer.
    pub layers: Vec<Vec<u32>>,
}

impl Ranking {
    /// By use in another text. What was used alike is in order of index.
    pub fn of(trace: &Trace) -> Self {
        let layer = |layer: usize| {
            let mut tokens = vec![0u64; trace.experts as usize];
            for demand in trace.strips.iter().flat_map(|strip| &strip.layers[layer].demand) {
                tokens[demand.expert as usize] += u64::from(demand.tokens);
            }
            let mut experts: Vec<_> = (0..trace.experts).collect();
            experts.sort_by_key(|expert| std::cmp::Reverse(tokens[*expert as usize]));
            experts
        };
        Self { layers: (0..trace.layers as usize).map(layer).collect() }
    }

    /// All experts, the first ones of all layers first.
    pub fn hottest(&self) -> impl Iterator<Item = ExpertId> {
        let places = self.layers.iter().map(Vec::len).max().unwrap_or(0);
        (0..places).flat_map(move |place| {
            let at_place =
                (0u32..).zip(&self.layers).filter_map(move |(layer, experts)| Some((layer, *experts.get(place)?)));
            at_place.map(|(layer, index)| ExpertId { layer, index })
        })
    }
}
