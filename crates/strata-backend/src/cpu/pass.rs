//! The rows of a pass, and scratch that operations share.

use std::ops::Range;

use strata_kernels::attention::Selections;
use strata_kernels::inputs::InputBuffer;
use strata_kernels::rope::Rope;

use crate::{BackendError, Field, PassShape};

/// Memory of `len` zeros, or an error that says what it was for.
pub(super) fn zeroed<T: Clone + Default>(len: usize, what: &'static str) -> Result<Vec<T>, BackendError> {
    let mut out = Vec::new();
    let error = |_| BackendError::OutOfMemory { what, bytes: len.saturating_mul(size_of::<T>()) };
    out.try_reserve_exact(len).map_err(error)?;
    out.resize(len, T::default());
    Ok(out)
}

/// Rows of equal width.
pub(super) struct Rows<T> {
    pub(super) width: usize,
    values: Vec<T>,
}

impl<T: Clone + Default> Rows<T> {
    fn new(rows: usize, width: usize) -> Result<Self, BackendError> {
        Ok(Self { width, values: zeroed(rows.saturating_mul(width), "a pass")? })
    }

    pub(super) fn rows(&self, rows: Range<usize>) -> &[T] {
        &self.values[rows.start * self.width..rows.end * self.width]
    }

    pub(super) fn rows_mut(&mut self, rows: Range<usize>) -> &mut [T] {
        &mut self.values[rows.start * self.width..rows.end * self.width]
    }

    /// All rows there is room for.
    pub(super) fn all(&self) -> &[T] {
        &self.values
    }

    pub(super) fn all_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

/// What the rows of a pass carry from operation to operation.
pub(super) struct Pass {
    pub(super) shape: PassShape,
    /// `[S][H]`.
    pub(super) streams: Rows<f32>,
    /// `[H]`.
    pub(super) mixed: Rows<f32>,
    /// `[S]`.
    pub(super) inject: Rows<f32>,
    /// `[H]`.
    pub(super) output: Rows<f32>,
    /// `[top_k]`.
    pub(super) route_weights: Rows<f32>,
    /// `[top_k][H]`.
    pub(super) expert_output: Rows<f32>,
    /// `[1]`.
    pub(super) shared_gate: Rows<f32>,
    /// `[top_k][ff]`, no wider than 0 unless details are kept.
    pub(super) expert_hidden: Rows<f32>,
    /// `[experts]`, no wider than 0 unless details are kept.
    pub(super) router_logits: Rows<f32>,
    /// Per row, when details are kept.
    pub(super) selected_blocks: Vec<Option<Vec<u32>>>,
}

impl Pass {
    pub(super) fn new(shape: &PassShape) -> Result<Self, BackendError> {
        let PassShape { rows, streams, hidden, experts, top_k, expert_ff, keep_details, .. } = *shape;
        let detail = |width: usize| if keep_details { width } else { 0 };
        Ok(Self {
            streams: Rows::new(rows, streams * hidden)?,
            mixed: Rows::new(rows, hidden)?,
            inject: Rows::new(rows, streams)?,
            output: Rows::new(rows, hidden)?,
            route_weights: Rows::new(rows, top_k)?,
            expert_output: Rows::new(rows, top_k * hidden)?,
            shared_gate: Rows::new(rows, 1)?,
            expert_hidden: Rows::new(rows, detail(top_k * expert_ff))?,
            router_logits: Rows::new(rows, detail(experts))?,
            selected_blocks: zeroed(detail(rows), "a pass")?,
            shape: shape.clone(),
        })
    }

    pub(super) fn read_field(&self, field: Field, rows: Range<usize>) -> Vec<f32> {
        let field = match field {
            Field::Streams => &self.streams,
            Field::Mixed => &self.mixed,
            Field::Inject => &self.inject,
            Field::Output => &self.output,
            Field::RouterLogits => &self.router_logits,
            Field::ExpertHidden => &self.expert_hidden,
            Field::ExpertOutput => &self.expert_output,
            Field::SharedGate => &self.shared_gate,
        };
        field.rows(rows).to_vec()
    }
}

/// Buffers that an operation uses and the next may overwrite. They grow to the largest strip seen and then stay.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) a: Vec<f32>,
    pub(super) b: Vec<f32>,
    pub(super) c: Vec<f32>,
    pub(super) d: Vec<f32>,
    pub(super) e: Vec<f32>,
    /// What several products of an operation read.
    pub(super) inputs: InputBuffer,
    pub(super) rope: Rope,
    /// `(cos, sin)`, `[rows][pairs]`.
    pub(super) angles: Vec<(f32, f32)>,
    /// The same of one block.
    pub(super) block_angles: Vec<(f32, f32)>,
    pub(super) selections: Selections,
}
