//! Copies of states.

use crate::BackendError;

/// What brings a state back to where it was, as long as the earlier rows of its cache are still there
/// ([`Backend::save_state`](crate::Backend::save_state)).
#[derive(Clone, Debug, Default)]
pub struct SavedState {
    /// Tokens of its cache.
    pub(crate) tokens: usize,
    /// What is no part of the cache, in an order of the backend's own.
    pub(crate) values: Vec<f32>,
}

impl SavedState {
    /// Memory it takes.
    pub fn bytes(&self) -> usize {
        self.values.capacity() * size_of::<f32>()
    }

    /// Tokens of its cache, and what is no part of it, in an order of the backend's own.
    pub fn parts(&self) -> (usize, &[f32]) {
        (self.tokens, &self.values)
    }

    /// A copy that was taken to [parts](Self::parts). A backend accepts it for a state for which it
    /// [says](crate::Backend::saved_values) that a copy has so many values.
    pub fn from_parts(tokens: usize, values: Vec<f32>) -> Self {
        Self { tokens, values }
    }

    /// Replaces what it holds.
    pub(crate) fn fill(&mut self, tokens: usize, parts: [&[f32]; 2]) -> Result<(), BackendError> {
        let len = parts.iter().map(|part| part.len()).sum();
        self.tokens = tokens;
        self.values.clear();
        let bytes = len * size_of::<f32>();
        self.values
            .try_reserve_exact(len)
            .map_err(|_| BackendError::OutOfMemory { what: "a copy of the state", bytes })?;
        parts.iter().for_each(|part| self.values.extend_from_slice(part));
        Ok(())
    }
}
