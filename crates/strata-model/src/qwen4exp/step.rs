//! One pass of several sequences, each with a token or a few: answers that are written at the same time.
//!
//! What mixers remember, the n-gram module and cache-aware routing go by sequence; all else goes over all rows together, so
//! that an expert is read and computed once for all, and so is every other matrix. Promises: a sequence's logits and states are the same bytes alone or in company.

use super::forward::{Pass, strips};
use super::moce::Routing;
use super::{Model, Observer, Sequence, Workspace};
use crate::ModelError;

/// What one sequence takes in a step.
pub struct Part<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// Its next tokens: one, or one and the drafts after it.
    pub ids: &'a [u32],
}

impl Model {
    /// Takes the tokens of all parts into their sequences in one pass, as [`decode`](Self::decode) would one after the
    /// other, and appends the logits of all rows, `[rows][vocabulary]`, to `logits`: part by part, in their order.
    ///
    /// An error is that of all parts: after one, each sequence must go back to a checkpoint or be reset, unless it was
    /// found before anything was computed.
    ///
    /// # Errors
    /// As [`decode`](Self::decode), when one of the parts has such an error.
    ///
    /// # Panics
    /// When the workspace has fewer rows than the parts have ids.
    pub fn step(
        &mut self,
        workspace: &mut Workspace,
        parts: &mut [Part<'_>],
        logits: &mut Vec<f32>,
        observer: &mut dyn Observer,
    ) -> Result<(), ModelError> {
        self.step_as(Routing::Cached, workspace, parts, logits, observer)
    }

    /// [`step`](Self::step), routed by the router alone, as [`forward`](Self::forward) is: to compare with.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    ///
    /// # Panics
    /// As [`step`](Self::step).
    pub fn step_exactly(
        &mut self,
        workspace: &mut Workspace,
        parts: &mut [Part<'_>],
        logits: &mut Vec<f32>,
        observer: &mut dyn Observer,
    ) -> Result<(), ModelError> {
        self.step_as(Routing::Exact, workspace, parts, logits, observer)
    }

    fn step_as(
        &mut self,
        routing: Routing,
        workspace: &mut Workspace,
        parts: &mut [Part<'_>],
        logits: &mut Vec<f32>,
        observer: &mut dyn Observer,
    ) -> Result<(), ModelError> {
        parts.iter().try_for_each(|part| self.check(part.sequence, part.ids))?;
        let ids: Vec<u32> = parts.iter().flat_map(|part| part.ids).copied().collect();
        assert!(ids.len() <= workspace.rows(), "{} rows in a workspace of {}", ids.len(), workspace.rows());
        let mut pass = Pass::of_step(routing, parts.iter().map(|part| part.ids.len()));
        let mut sequences: Vec<&mut Sequence> =
            parts.iter_mut().filter(|part| !part.ids.is_empty()).map(|part| &mut *part.sequence).collect();
        if sequences.is_empty() {
            return Ok(());
        }
        sequences.iter_mut().for_each(|sequence| sequence.is_torn = true);
        let result = self.whole_step(workspace, &mut pass, &mut sequences, &ids, logits, observer);
        self.give_up(&mut pass);
        result?;
        sequences.iter_mut().for_each(|sequence| sequence.is_torn = false);
        Ok(())
    }

    fn whole_step(
        &mut self,
        workspace: &mut Workspace,
        pass: &mut Pass,
        sequences: &mut [&mut Sequence],
        ids: &[u32],
        logits: &mut Vec<f32>,
        observer: &mut dyn Observer,
    ) -> Result<(), ModelError> {
        self.begin(workspace, pass, sequences, ids, &[])?;
        while !self.go_on(workspace, pass, sequences, ids, observer)? {}
        for strip in strips(ids.len(), self.options.strip_rows) {
            self.logits(workspace, strip, logits)?;
        }
        self.remember_for_drafts(workspace, pass, sequences, ids)
    }
}
