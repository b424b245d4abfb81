//! Synthetic routes.

use std::collections::BTreeMap;

use strata_store::Demand;
use strata_store::scheduler::PassKind;

/// A small generator of numbers (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % end
    }

    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// A strip of one layer: what it is routed to, and what it makes one expect of other layers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strip {
    pub(crate) demand: Vec<Demand>,
    pub(crate) forecasts: Vec<(u32, Vec<Demand>)>,
    /// What a single row makes one expect of the next layer and the one after it, the most likely first.
    pub(crate) ranked: Vec<(u32, Vec<u32>)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Pass {
    pub(crate) kind: PassKind,
    /// What is expected before the first layer begins.
    pub(crate) profile: Vec<Demand>,
    /// `[layers][strips]`.
    pub(crate) layers: Vec<Vec<Strip>>,
}

/// How routes are made up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) layers: u32,
    pub(crate) experts: u32,
    pub(crate) top_k: u32,
    /// 1: all experts alike; more: the low ones are more popular.
    pub(crate) skew: u32,
    pub(crate) strips: u32,
    pub(crate) rows: u32,
    /// Layers ahead that are forecast: 0, 1 or 2.
    pub(crate) lookahead: u32,
    /// Of a forecast, how many in a thousand are wrong.
    pub(crate) wrong_per_mille: u64,
}

pub(crate) fn pass(style: &Style, kind: PassKind, random: &mut Random) -> Pass {
    let is_single = kind == PassKind::Decode && random.chance(700);
    let style = &if is_single { Style { strips: 1, rows: 1, ..*style } } else { *style };
    let routes: Vec<Vec<Vec<Demand>>> =
        (0..style.layers).map(|_| (0..style.strips).map(|_| strip(style, random)).collect()).collect();
    let forecast = |demand: &[Demand], random: &mut Random| -> Vec<Demand> {
        let guess = |d: &Demand| {
            if random.chance(style.wrong_per_mille) {
                Demand { expert: random.below(u64::from(style.experts) + 1) as u32, ..*d }
            } else {
                *d
            }
        };
        demand.iter().map(guess).collect()
    };
    let profile = if style.lookahead > 0 { forecast(&routes[0][0], random) } else { Vec::new() };
    let mut layers = Vec::new();
    for (layer, strips) in (0u32..).zip(&routes) {
        let ahead = layer + 1..(layer + 1 + style.lookahead).min(style.layers);
        let of_strip = |(i, demand): (usize, &Vec<Demand>)| {
            let all = ahead.clone().map(|to| (to, forecast(&routes[to as usize][i], random)));
            let (ranked, forecasts) = if is_single {
                let ids =
                    |(to, demands): (u32, Vec<Demand>)| (to, demands.iter().map(|demand| demand.expert).collect());
                (all.map(ids).collect(), Vec::new())
            } else {
                (Vec::new(), all.collect())
            };
            Strip { demand: demand.clone(), forecasts, ranked }
        };
        layers.push(strips.iter().enumerate().map(of_strip).collect());
    }
    Pass { kind, profile, layers }
}

/// The routes of some rows, counted, most rows first.
fn strip(style: &Style, random: &mut Random) -> Vec<Demand> {
    let mut tokens = BTreeMap::new();
    for _ in 0..style.rows {
        let mut chosen = Vec::new();
        while chosen.len() < style.top_k.min(style.experts) as usize {
            let place = (random.below(1 << 20) as f64 / f64::from(1 << 20)).powi(style.skew as i32);
            let mut expert = (place * f64::from(style.experts)) as u32;
            while chosen.contains(&expert) {
                expert = (expert + 1) % style.experts;
            }
            chosen.push(expert);
        }
        chosen.iter().for_each(|expert| *tokens.entry(*expert).or_insert(0) += 1);
    }
    let mut demand: Vec<_> = tokens.into_iter().map(|(expert, tokens)| Demand { expert, tokens }).collect();
    demand.sort_by_key(|demand| std::cmp::Reverse(demand.tokens));
    demand
}
