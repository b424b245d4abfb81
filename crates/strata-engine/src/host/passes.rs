//! Passes of one text at a time, until the model has them for several.

use strata_model::ModelError;
use strata_model::qwen4exp::{Model, Observer, Rows, Sequence};

pub(super) struct Workspace;

pub(super) struct Reading {
    sequence: Sequence,
    workspace: Workspace,
    ids: Vec<u32>,
    logits: Vec<f32>,
}

impl Reading {
    pub(super) fn progress(&self) -> f64 {
        if self.logits.is_empty() { 0.0 } else { 1.0 }
    }
}

pub(super) fn begin_reading(sequence: Sequence, ids: Vec<u32>, workspace: Workspace) -> Reading {
    Reading { sequence, workspace, ids, logits: Vec::new() }
}

pub(super) fn advance(
    model: &mut Model,
    reading: &mut Reading,
    observer: &mut dyn Observer,
) -> Result<bool, ModelError> {
    model.forward(&mut reading.sequence, &reading.ids, Rows::Last, &mut reading.logits, observer)?;
    Ok(true)
}

pub(super) fn finish_reading(reading: Reading) -> (Sequence, Workspace, Vec<f32>) {
    (reading.sequence, reading.workspace, reading.logits)
}

pub(super) struct Part<'a> {
    pub(super) sequence: &'a mut Sequence,
    pub(super) ids: &'a [u32],
}

pub(super) fn step(
    model: &mut Model,
    parts: &mut [Part<'_>],
    logits: &mut Vec<f32>,
    observer: &mut dyn Observer,
) -> Result<(), ModelError> {
    parts.iter_mut().try_for_each(|part| model.decode(part.sequence, part.ids, Rows::All, logits, observer))
}
