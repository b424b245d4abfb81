//! Everything that a run computes, layer by layer, as files.
//!
//! A dump is a directory. `ids.safetensors` holds the token ids. `layerNN.PPPPPPPP.safetensors` holds what layer NN
//! computed for the positions from PPPPPPPP on, one file a pass; `logits.PPPPPPPP.safetensors` the logits.

use std::path::{Path, PathBuf};

use strata_backend::Field;
use strata_model::qwen4exp::{LayerView, Moment, Observer, Rows};

use super::logits::cut;
use super::tensors::{self, Tensor, problem};
use crate::generate::Stop;
use crate::{Engine, EngineError};

/// Runs a text, given in pieces, and writes a dump of it. The engine must have been opened with `keep_details`.
///
/// The directory is made if it is not there; it must not hold a dump already.
///
/// # Errors
/// When the model or writing fails, or `stop` was set.
pub fn dump(engine: &mut Engine, ids: &[u32], pieces: &[usize], dir: &Path, stop: &Stop) -> Result<(), EngineError> {
    if ids.is_empty() {
        return Err(EngineError::EmptyPrompt);
    }
    if !engine.model.keeps_details() {
        return Err(problem(dir, "the engine was opened without `keep_details`: there is nothing to dump"));
    }
    std::fs::create_dir_all(dir).map_err(|error| problem(dir, &error))?;
    if std::fs::read_dir(dir).map_err(|error| problem(dir, &error))?.next().is_some() {
        return Err(problem(dir, "the directory is not empty; a dump needs one of its own"));
    }
    tensors::write(&dir.join("ids.safetensors"), &[("ids", Tensor::u32(&[ids.len()], ids))])?;

    let mut session = engine.new_session()?;
    let mut writer = Writer { dir: dir.to_owned(), stop, before: Mixed::default(), failure: None };
    let result = run(engine, &mut session, ids, pieces, &mut writer);
    engine.free_session(session);
    match writer.failure {
        Some(failure) => Err(failure),
        None => result,
    }
}

fn run(
    engine: &mut Engine,
    session: &mut crate::Session,
    ids: &[u32],
    pieces: &[usize],
    writer: &mut Writer<'_>,
) -> Result<(), EngineError> {
    let vocabulary = engine.model.vocabulary();
    for piece in cut(ids, pieces) {
        let position = session.sequence.tokens();
        let mut logits = Vec::new();
        engine.model.forward(&mut session.sequence, piece, Rows::All, &mut logits, writer)?;
        let path = writer.dir.join(format!("logits.{position:08}.safetensors"));
        tensors::write(&path, &[("logits", Tensor::f32(&[piece.len(), vocabulary], &logits))])?;
    }
    Ok(())
}

/// What the mixer of a layer gave, strip by strip.
#[derive(Default)]
struct Mixed {
    inject: Vec<f32>,
    output: Vec<f32>,
    /// Blocks selected by each row, with the row before them; rows that attended to everything are not listed.
    blocks: Vec<u32>,
}

struct Writer<'a> {
    dir: PathBuf,
    stop: &'a Stop,
    before: Mixed,
    /// An observer cannot fail: the first failure to write ends the pass and is told afterwards.
    failure: Option<EngineError>,
}

impl Observer for Writer<'_> {
    fn is_cancelled(&self) -> bool {
        self.failure.is_some() || self.stop.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn at(&mut self, moment: Moment, view: &mut LayerView<'_>) {
        match moment {
            Moment::StripMixed => {
                self.before.inject.extend(view.read(Field::Inject));
                self.before.output.extend(view.read(Field::Output));
                for row in view.rows.clone() {
                    let position = (view.first_position + row) as u32;
                    let blocks = view.selected_blocks(row).unwrap_or_default();
                    self.before.blocks.extend(blocks.into_iter().flat_map(|block| [position, block]));
                }
            }
            Moment::LayerDone => {
                let result = self.write_layer(view);
                self.failure = self.failure.take().or(result.err());
            }
        }
    }
}

impl Writer<'_> {
    fn write_layer(&mut self, view: &mut LayerView<'_>) -> Result<(), EngineError> {
        let mixed = std::mem::take(&mut self.before);
        let rows = view.rows.len();
        let top_k = view.routes.ids.len() / rows;
        let wide = |values: &[f32]| values.len() / rows;
        let mut all = Vec::new();
        let mut add = |name, shape: &[usize], values: &[f32]| all.push((name, Tensor::f32(shape, values)));
        add("mixer_inject", &[rows, wide(&mixed.inject)], &mixed.inject);
        add("mixer_output", &[rows, wide(&mixed.output)], &mixed.output);
        for (name, field) in [
            ("moe_input", Field::Mixed),
            ("moe_inject", Field::Inject),
            ("moe_output", Field::Output),
            ("router_logits", Field::RouterLogits),
            ("shared_gate", Field::SharedGate),
            ("streams", Field::Streams),
        ] {
            let values = view.read(field);
            add(name, &[rows, wide(&values)], &values);
        }
        for (name, field) in [("expert_hidden", Field::ExpertHidden), ("expert_output", Field::ExpertOutput)] {
            let values = view.read(field);
            add(name, &[rows, top_k, wide(&values) / top_k], &values);
        }
        add("route_weights", &[rows, top_k], &view.routes.weights);
        all.push(("route_ids", Tensor::u32(&[rows, top_k], &view.routes.ids)));
        all.push(("selected_blocks", Tensor::u32(&[mixed.blocks.len() / 2, 2], &mixed.blocks)));
        let name = format!("layer{:02}.{:08}.safetensors", view.layer, view.first_position);
        tensors::write(&self.dir.join(name), &all)
    }
}
