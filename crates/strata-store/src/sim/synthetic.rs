//! Made-up routes with the measured statistics of real ones.

use super::random::Random;
use super::trace::demands;
use super::{LayerRoutes, Ranking, Strip, Trace};
use crate::plan::CONCENTRATION;

/// A text to be made up.
#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    /// Layers of the model.
    pub layers: u32,
    /// Experts of a layer.
    pub experts: u32,
    /// Experts that a row uses in a layer, at most as many as there are.
    pub top_k: u32,
    /// Rows of the text.
    pub tokens: u32,
    /// Rows of a strip, at least 1.
    pub strip_rows: u32,
    /// How routing behaves.
    pub habits: Habits,
    /// Seed of all that is random.
    pub seed: u64,
}

/// How routing behaves, besides how many experts so many rows use: that is
/// [`touched_experts`](crate::plan::touched_experts).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Habits {
    /// Part of the choices of a row that the next layer's router foresees, 0 to 1.
    pub foreseen: f64,
    /// How well a static ranking knows what a text uses: correlation of ranks, 0 (not at all) to 1.
    pub ranked: f64,
}

impl Synthetic {
    /// The routes, and the static ranking that one would have had before.
    ///
    /// Each expert of a layer has a rate at which rows choose it, from a positive stable distribution: the one for which so
    /// many rows are expected to use just [`touched_experts`](crate::plan::touched_experts), however many rows. A choice
    /// that the forecast gets wrong is forecast as any other of the layer, by rate.
    pub fn routes(&self) -> (Trace, Ranking) {
        let mut random = Random::new(self.seed);
        let layers: Vec<_> = (0..self.layers).map(|_| self.layer(&mut random)).collect();
        let strips = (0..self.tokens).step_by(self.strip_rows.max(1) as usize).map(|start| {
            let rows = self.strip_rows.min(self.tokens - start);
            self.strip(rows, &layers, &mut random)
        });
        let trace = Trace {
            layers: self.layers,
            experts: self.experts,
            top_k: self.top_k(),
            strips: strips.collect(),
            decode: Vec::new(),
        };
        (trace, Ranking { layers: layers.into_iter().map(|layer| layer.ranking).collect() })
    }

    fn top_k(&self) -> u32 {
        self.top_k.min(self.experts)
    }

    fn choices(&self, rows: u32) -> u64 {
        u64::from(rows) * u64::from(self.top_k())
    }

    fn layer(&self, random: &mut Random) -> Layer {
        let experts = self.experts as usize;
        let top_k = f64::from(self.top_k());
        // A row alone uses top-k experts of all: 1 - exp(-scale) of them.
        let scale = -(1.0 - top_k / f64::from(self.experts)).ln();
        let mut sorted: Vec<f64> =
            (0..experts).map(|_| random.stable(CONCENTRATION) * scale.powf(1.0 / CONCENTRATION)).collect();
        sorted.sort_by(f64::total_cmp);
        // No row chooses an expert twice, and all rows choose top-k.
        let most = most_of_sum(&sorted, top_k);
        let known: Vec<_> = (0..experts).map(|_| random.normal()).collect();
        let ranked = self.habits.ranked.clamp(0.0, 1.0);
        let used: Vec<_> =
            known.iter().map(|known| ranked * known + (1.0 - ranked * ranked).sqrt() * random.normal()).collect();
        let mut rates = vec![0.0; experts];
        for (rate, expert) in sorted.iter().zip(ascending(&used)) {
            rates[expert as usize] = rate.min(most);
        }
        let mut ranking = ascending(&known);
        ranking.reverse();
        Layer { rates, ranking }
    }

    fn strip(&self, rows: u32, layers: &[Layer], random: &mut Random) -> Strip {
        let counts: Vec<Vec<u32>> = layers.iter().map(|layer| self.choose(rows, &layer.rates, random)).collect();
        let mut strip = Strip { rows, layers: Vec::with_capacity(layers.len()) };
        for (layer, tokens) in counts.iter().enumerate() {
            let forecast = match (counts.get(layer + 1), layers.get(layer + 1)) {
                (Some(tokens), Some(next)) => demands(&self.forecast(rows, tokens, &next.rates, random)),
                _ => Vec::new(),
            };
            strip.layers.push(LayerRoutes { demand: demands(tokens), forecast });
        }
        strip
    }

    /// How many of the rows choose each expert.
    fn choose(&self, rows: u32, rates: &[f64], random: &mut Random) -> Vec<u32> {
        let mut tokens: Vec<_> = rates.iter().map(|rate| random.binomial(rows, *rate)).collect();
        even_out(&mut tokens, rows, self.choices(rows), random);
        tokens
    }

    fn forecast(&self, rows: u32, tokens: &[u32], rates: &[f64], random: &mut Random) -> Vec<u32> {
        let mut guesses: Vec<_> = tokens.iter().map(|tokens| random.binomial(*tokens, self.habits.foreseen)).collect();
        let wrong: u32 = tokens.iter().sum::<u32>() - guesses.iter().sum::<u32>();
        let all: f64 = rates.iter().sum();
        for (guesses, rate) in guesses.iter_mut().zip(rates) {
            *guesses = (*guesses + random.binomial(wrong, rate / all)).min(rows);
        }
        even_out(&mut guesses, rows, self.choices(rows), random);
        guesses
    }
}

struct Layer {
    /// Chance that a row chooses each expert.
    rates: Vec<f64>,
    ranking: Vec<u32>,
}

/// The most that rates may be so that they sum to `sum`, or 1 if they then sum to less.
fn most_of_sum(sorted: &[f64], sum: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if sorted.iter().map(|rate| rate.min(middle)).sum::<f64>() < sum {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// Indices in the order of their values.
fn ascending(values: &[f64]) -> Vec<u32> {
    let mut indices: Vec<_> = (0..values.len() as u32).collect();
    indices.sort_by(|a, b| values[*a as usize].total_cmp(&values[*b as usize]));
    indices
}

/// Makes counts sum to `sum`, none above `most`. Experts that are used take or give in proportion; another one is used only
/// when those are not enough, and one is dropped only when they are more than `sum`.
fn even_out(tokens: &mut [u32], most: u32, sum: u64, random: &mut Random) {
    let total: u64 = tokens.iter().map(|tokens| u64::from(*tokens)).sum();
    let factor = sum as f64 / total.max(1) as f64;
    for tokens in tokens.iter_mut().filter(|tokens| **tokens > 0) {
        *tokens = ((f64::from(*tokens) * factor).round() as u32).clamp(1, most);
    }
    let mut now: u64 = tokens.iter().map(|tokens| u64::from(*tokens)).sum();
    let start = random.below(tokens.len());
    let mut least = 1;
    while now != sum {
        let before = now;
        for at in 0..tokens.len() {
            let tokens = &mut tokens[(start + at) % tokens.len()];
            if now < sum && (least..most).contains(tokens) {
                *tokens += 1;
                now += 1;
            } else if now > sum && *tokens > least {
                *tokens -= 1;
                now -= 1;
            }
        }
        if now == before {
            least = 0;
        }
    }
}
