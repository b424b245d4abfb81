//! Room for the rows of a pass, and what a pass fills beside them.
//!
//! A pass has its workspace to itself until it ends: one that stops between two layers keeps its rows there while others
//! run in theirs. [`Model::forward`] and [`Model::decode`] use the model's own.

use strata_backend::{Choice, GroupEntry, PassId, PassShape, Routes, Run};

use super::Model;
use super::experts::DemandCount;
use crate::ModelError;

/// Room for the rows of one pass. It is given back by [`Model::free_workspace`].
pub struct Workspace {
    pub(super) pass: PassId,
    rows: usize,
    pub(super) buffers: Buffers,
}

impl Workspace {
    /// Rows of the largest pass.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

/// Lists that a pass fills, kept between passes so that they are not allocated anew.
#[derive(Default)]
pub(super) struct Buffers {
    /// Of all rows of the pass, for the layer at hand.
    pub(super) routes: Routes,
    pub(super) strip_routes: Routes,
    /// Rows of each sequence in a strip.
    pub(super) runs: Vec<Run>,
    /// Routes of those of one.
    pub(super) run_routes: Routes,
    pub(super) forecast: Routes,
    pub(super) demand: DemandCount,
    /// Table rows of the n-gram module for all rows.
    pub(super) ple_rows: Vec<u64>,
    pub(super) next_ple_rows: Vec<u64>,
    /// All choices of the layer, by expert.
    pub(super) choices: Vec<Choice>,
    /// Where the choices of each expert begin.
    pub(super) starts: Vec<usize>,
    pub(super) group: Vec<GroupEntry>,
}

impl Model {
    /// Room for passes of at most `rows` rows.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub fn new_workspace(&mut self, rows: usize) -> Result<Workspace, ModelError> {
        let rows = rows.max(1);
        let pass = self.backend.new_pass(&PassShape {
            rows,
            strip_rows: self.options.strip_rows.min(rows),
            streams: self.config.streams,
            hidden: self.config.hidden,
            experts: self.config.moe.experts,
            top_k: self.config.moe.top_k,
            expert_ff: self.config.moe.ff,
            keep_details: self.options.keep_details,
        })?;
        Ok(Workspace { pass, rows, buffers: Buffers::default() })
    }

    /// Gives a workspace's memory back.
    #[allow(clippy::needless_pass_by_value)] // the workspace is gone afterwards
    pub fn free_workspace(&mut self, workspace: Workspace) {
        self.backend.free_pass(workspace.pass);
    }

    /// The model's own workspace, for readings: of as many rows as a pass may have. [`forward`](Self::forward),
    /// [`decode`](Self::decode) and [`draft`](Self::draft) make another when they are called after that.
    ///
    /// # Errors
    /// When it was taken before and memory does not suffice for another.
    pub fn take_workspace(&mut self) -> Result<Workspace, ModelError> {
        match self.workspace.take() {
            Some(workspace) => Ok(workspace),
            None => self.new_workspace(self.most_pass_tokens),
        }
    }

    /// Makes a workspace the model's own, for [`forward`](Self::forward), [`decode`](Self::decode) and
    /// [`draft`](Self::draft).
    pub fn put_workspace(&mut self, workspace: Workspace) {
        if let Some(other) = self.workspace.replace(workspace) {
            self.free_workspace(other);
        }
    }
}
