//! Route traces of a model: which experts the rows of a text use, and what the forecast said.

use strata_model::ModelError;
use strata_model::qwen4exp::{LayerView, Moment, Observer, Rows};
use strata_store::sim::{LayerRoutes, Strip, Trace};

use crate::generate::Stop;
use crate::{Engine, EngineError};

/// Runs a text as one prompt and records its routes, strip by strip: a trace of strips can be taken in passes of any size.
///
/// # Errors
/// When there are no ids, the model fails, or `stop` was set.
pub fn record(engine: &mut Engine, ids: &[u32], stop: &Stop) -> Result<Trace, EngineError> {
    if ids.is_empty() {
        return Err(EngineError::EmptyPrompt);
    }
    let config = engine.model.config();
    let (experts, top_k) = (config.moe.experts, config.moe.top_k);
    let trace =
        Trace { layers: config.layers as u32, experts: experts as u32, top_k: top_k as u32, strips: Vec::new() };
    let mut recorder =
        Recorder { trace, strip_rows: engine.options.model.strip_rows.max(1), first_strip: 0, stop, failure: None };
    let mut session = engine.new_session()?;
    let result = engine.model.forward(&mut session.sequence, ids, Rows::Last, &mut Vec::new(), &mut recorder);
    engine.free_session(session);
    match recorder.failure {
        Some(failure) => Err(failure.into()),
        None => Ok(result.map(|()| recorder.trace)?),
    }
}

struct Recorder<'a> {
    trace: Trace,
    strip_rows: usize,
    /// Of the pass at hand.
    first_strip: usize,
    stop: &'a Stop,
    /// An observer cannot fail: the first failure ends the pass and is told afterwards.
    failure: Option<ModelError>,
}

impl Observer for Recorder<'_> {
    fn is_cancelled(&self) -> bool {
        self.failure.is_some() || self.stop.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn at(&mut self, moment: Moment, view: &mut LayerView<'_>) {
        if moment == Moment::LayerDone {
            let result = self.layer(view);
            self.failure = self.failure.take().or(result.err());
        }
    }
}

impl Recorder<'_> {
    fn layer(&mut self, view: &mut LayerView<'_>) -> Result<(), ModelError> {
        let forecast = view.forecast()?.map(|routes| routes.ids).unwrap_or_default();
        let choices = self.strip_rows * self.trace.top_k as usize;
        if view.layer == 0 {
            self.first_strip = self.trace.strips.len();
        }
        for (at, demand) in view.routes.ids.chunks(choices).enumerate() {
            if view.layer == 0 {
                let rows = demand.len() as u32 / self.trace.top_k;
                self.trace.strips.push(Strip { rows, layers: Vec::new() });
            }
            let forecast = forecast.chunks(choices).nth(at).unwrap_or_default();
            let routes = LayerRoutes::count(self.trace.experts, demand, forecast);
            self.trace.strips[self.first_strip + at].layers.push(routes);
        }
        Ok(())
    }
}
