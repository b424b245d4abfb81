//! What can be seen of a pass from outside.

use std::ops::Range;

use strata_backend::{Backend, Field, MatrixId, PassId, Routes};

use super::forward::strips;
use crate::ModelError;

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
    /// Position in its sequence of the pass's row 0.
    pub first_position: usize,
    /// Routes of the rows so far routed, `[rows][top_k]`.
    pub routes: &'a Routes,
    /// Table rows of the n-gram module for the pass, `[rows][heads]`; empty in layers without it.
    pub ple_rows: &'a [u64],
    pub(super) backend: &'a mut dyn Backend,
    pub(super) pass: PassId,
    pub(super) next_router: Option<MatrixId>,
    pub(super) strip_rows: usize,
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
