//! How routing of a synthetic model turned out, by running it.
//!
//! The model that is run is a cut of the one described: a few layers, narrow experts, and only the token ids that prompts
//! use. Everything that decides routes is the same to the byte but the experts' own outputs, which are small.

use std::path::Path;
use std::sync::atomic::Ordering;

use strata_backend::{CpuBackend, Isa};
use strata_gguf::Gguf;
use strata_model::ModelError;
use strata_model::qwen4exp::{LayerView, Model, Moment, Observer, Options, Rows};

use super::{Parts, Synth, SynthError, SynthOptions, tokens};
use crate::Stop;

/// Statistics of routing, means over layers.
#[derive(Clone, Debug, PartialEq)]
pub struct SynthStatistics {
    /// Layers that were run.
    pub layers: usize,
    /// Rows of the pass.
    pub rows: usize,
    /// Experts of a layer.
    pub experts: usize,
    /// Slots of a layer: residents of the pass, and the size of the cache in decode.
    pub slots: usize,
    /// Distinct experts of the pass.
    pub distinct: f64,
    /// Share of those that are among the half of all experts that other text uses most.
    pub popular_share: f64,
    /// Share that the next router forecasts, of those that are not resident: not among the `slots` that other text uses
    /// most. Not a number for one layer.
    pub forecast_share: f64,
    /// Share of a token's experts that the next router forecasts. Not a number for one layer.
    pub recall: f64,
    /// Share of hits of a cache of `slots` experts a layer that drops the least recently used.
    pub lru_share: f64,
}

/// Layers that are run: the n-gram module and one attention layer are among them.
const LAYERS: usize = 4;
/// Rows of the pass. As many after it, of the same document, show what decode would do; as many of the next document are
/// the other text.
const PASS_ROWS: usize = 1023;
/// Width of the experts that are run.
const FF: usize = 64;
/// Rows of the n-gram table that is run, if the model's is not smaller.
const TABLE_ROWS: u64 = 8192;

impl Synth {
    /// Measures routing on the prompt. The cut model is written to a file in `dir` and removed again.
    ///
    /// # Errors
    /// When that file cannot be written or run, or `stop` is set.
    pub fn measure(&self, dir: &Path, stop: &Stop) -> Result<SynthStatistics, SynthError> {
        let cut = self.measured()?;
        let path = dir.join(format!(".strata-synth-{}.gguf", std::process::id()));
        let written = Parts(cut.write(&path, stop, &mut |_| {})?);
        let collected = cut.run(&path, stop)?;
        drop(written);
        Ok(collected.statistics())
    }

    /// The cut that is run in this model's place.
    pub(super) fn measured(&self) -> Result<Self, SynthError> {
        let mut shape = self.shape.clone();
        shape.layers = shape.layers.min(LAYERS);
        shape.ff = FF;
        shape.vocabulary = tokens::prompt_vocabulary(&shape);
        if let Some(ple) = &mut shape.ple {
            ple.shrink(TABLE_ROWS);
        }
        Self::with_shape(&SynthOptions { split: false, ..self.options.clone() }, shape)
    }

    fn run<'a>(&self, path: &Path, stop: &'a Stop) -> Result<Collected<'a>, SynthError> {
        let gguf = Gguf::open(path)?;
        let backend = CpuBackend::fast(Isa::best(), 0).expect("the best instruction set is available");
        let mut ids = self.prompt[..2 * PASS_ROWS].to_vec();
        ids.extend(&self.prompt[tokens::DOCUMENT_TOKENS..][..PASS_ROWS]);
        let options = Options { pass_tokens: PASS_ROWS, context_tokens: Some(ids.len()), ..Options::default() };
        let mut collected = Collected {
            experts: self.shape.experts,
            top_k: self.shape.top_k,
            routes: vec![Vec::new(); self.shape.layers],
            forecasts: vec![Vec::new(); self.shape.layers],
            failure: None,
            stop,
        };
        let mut model = Model::load(&gguf, Box::new(backend), options)?;
        let mut sequence = model.new_sequence()?;
        match model.forward(&mut sequence, &ids, Rows::Last, &mut Vec::new(), &mut collected) {
            Err(ModelError::Cancelled) => match collected.failure {
                Some(failure) => Err(failure.into()),
                None => Err(SynthError::Cancelled),
            },
            other => Ok(other.map(|()| collected)?),
        }
    }
}

/// Routes and forecasts of all rows, `[layers][rows * top_k]`.
struct Collected<'a> {
    experts: usize,
    top_k: usize,
    routes: Vec<Vec<u32>>,
    forecasts: Vec<Vec<u32>>,
    /// An observer cannot fail: what went wrong ends the pass and is told afterwards.
    failure: Option<ModelError>,
    stop: &'a Stop,
}

impl Observer for Collected<'_> {
    fn is_cancelled(&self) -> bool {
        self.failure.is_some() || self.stop.load(Ordering::Relaxed)
    }

    fn at(&mut self, moment: Moment, view: &mut LayerView<'_>) {
        if moment != Moment::LayerDone {
            return;
        }
        self.routes[view.layer].extend_from_slice(&view.routes.ids);
        match view.forecast() {
            Ok(Some(forecast)) => self.forecasts[view.layer + 1].extend(forecast.ids),
            Ok(None) => {}
            Err(failure) => self.failure = Some(failure),
        }
    }
}

impl Collected<'_> {
    fn statistics(&self) -> SynthStatistics {
        let &Self { experts, top_k, .. } = self;
        // The reference figures are for 89 slots a layer of 512 experts.
        let slots = (experts * 89 / 512).max(top_k);
        let layers = self.routes.len();
        let at = PASS_ROWS * top_k;
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
        let mut all = [const { Vec::new() }; 5];
        for (layer, routes) in self.routes.iter().enumerate() {
            let [pass, decode, other] = [0, 1, 2].map(|part| &routes[part * at..(part + 1) * at]);
            let used = used(pass, experts);
            let distinct = used.iter().filter(|used| **used).count() as f64;
            let ranked = by_use(other, experts);
            let popular = ranked[..experts / 2].iter().filter(|expert| used[**expert]).count();
            all[0].push(distinct);
            all[1].push(popular as f64 / distinct);
            all[2].push(lru_hits(pass, decode, experts, slots) as f64 / decode.len() as f64);
            if layer == 0 {
                continue;
            }
            let forecast = &self.forecasts[layer];
            let expected = self::used(&forecast[..at], experts);
            let needed: Vec<usize> = ranked[slots..].iter().copied().filter(|expert| used[*expert]).collect();
            let ahead = needed.iter().filter(|expert| expected[**expert]).count();
            if !needed.is_empty() {
                all[3].push(ahead as f64 / needed.len() as f64);
            }
            let recalled = routes.chunks_exact(top_k).zip(forecast.chunks_exact(top_k));
            let right: usize = recalled.map(|(a, b)| a.iter().filter(|expert| b.contains(expert)).count()).sum();
            all[4].push(right as f64 / routes.len() as f64);
        }
        let [distinct, popular_share, lru_share, forecast_share, recall] = all.map(mean);
        let rows = PASS_ROWS;
        SynthStatistics { layers, rows, experts, slots, distinct, popular_share, forecast_share, recall, lru_share }
    }
}

/// Which experts `ids` name.
fn used(ids: &[u32], experts: usize) -> Vec<bool> {
    let mut used = vec![false; experts];
    ids.iter().for_each(|id| used[*id as usize] = true);
    used
}

/// All experts, those that `ids` name most often first, the lower index first among equals.
fn by_use(ids: &[u32], experts: usize) -> Vec<usize> {
    let mut counts = vec![0u32; experts];
    ids.iter().for_each(|id| counts[*id as usize] += 1);
    let mut ranked: Vec<usize> = (0..experts).collect();
    ranked.sort_by_key(|expert| std::cmp::Reverse(counts[*expert]));
    ranked
}

/// Hits of `ids` in a cache of `slots` experts that drops the least recently used, after `before` went through it.
fn lru_hits(before: &[u32], ids: &[u32], experts: usize, slots: usize) -> usize {
    // A hit was last used after all but fewer than `slots` other experts.
    let mut last_use = vec![0usize; experts];
    let mut hits = 0;
    for (now, id) in (1..).zip(before.iter().chain(ids)) {
        let last = last_use[*id as usize];
        let newer = last_use.iter().filter(|other| **other > last).count();
        hits += usize::from(now > before.len() && last > 0 && newer < slots);
        last_use[*id as usize] = now;
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_drops_the_least_recently_used() {
        // By hand: two slots; 1 2 1 3 leave {1, 3}; then 1 hits, 2 evicts 3, 3 evicts 1, 2 hits.
        assert_eq!(lru_hits(&[1, 2, 1, 3], &[1, 2, 3, 2], 5, 2), 2);
        assert_eq!(lru_hits(&[], &[1, 1, 2, 2], 5, 1), 2);
    }

    #[test]
    fn statistics_of_a_small_case_by_hand() {
        // Four experts, two layers, one expert a row. The pass uses 0 and 1, what follows and other text 1 and 2 (1 twice
        // as often).
        let pass = |a: u32, b: u32| (0..PASS_ROWS).map(move |row| if row == 0 { a } else { b });
        let other = || (0..2 * PASS_ROWS).map(|row| if row % 3 == 0 { 2 } else { 1 });
        let routes: Vec<u32> = pass(0, 1).chain(other()).collect();
        let forecast: Vec<u32> = pass(0, 0).chain(other()).collect();
        let stop = Stop::new(false);
        let collected = Collected {
            experts: 4,
            top_k: 1,
            routes: vec![routes.clone(), routes],
            forecasts: vec![Vec::new(), forecast],
            failure: None,
            stop: &stop,
        };
        let got = collected.statistics();
        assert_eq!((got.layers, got.slots, got.distinct), (2, 1, 2.0));
        assert_eq!(got.popular_share, 0.5); // 1 of {0, 1} is among the popular {1, 2}
        assert_eq!(got.forecast_share, 1.0); // 1 is resident, 0 is needed and was forecast
        assert_eq!(got.recall, (1 + 2 * PASS_ROWS) as f64 / (3 * PASS_ROWS) as f64);
        // 2 1 1 2 1 1 ...: in one slot, the second 1 of each three hits.
        assert_eq!(got.lru_share, 341.0 / 1023.0);
    }
}
