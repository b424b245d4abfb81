//! Rows of caches on their way from one state to another, or to a file.

use std::ops::Range;

use super::states::State;
use crate::BackendError;

impl State {
    pub(super) fn saved_values(&self, tokens: usize) -> usize {
        match self {
            Self::Gdn(s) => s.matrix.values().len() + s.history.values().len(),
            Self::Ple(history) => history.values().len(),
            Self::Residual(streams) => streams.len(),
            Self::Qsa(s) => tokens % s.index.1 * s.index.0,
        }
    }

    pub(super) fn rows_bytes(&self, tokens: Range<usize>) -> usize {
        let Self::Qsa(s) = self else { return 0 };
        s.cache.rows_bytes(tokens.len()) + s.block_values(&tokens).len() * size_of::<f32>()
    }

    /// Keys and values, then keys of the blocks that these tokens complete.
    pub(super) fn copy_rows(&self, tokens: Range<usize>, out: &mut Vec<u8>) {
        let Self::Qsa(s) = self else { return };
        let blocks = s.block_values(&tokens);
        out.reserve(self.rows_bytes(tokens.clone()));
        s.cache.copy_rows(tokens, out);
        s.block_keys[blocks].iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
    }

    pub(super) fn append_rows(&mut self, tokens: usize, rows: &[u8]) -> Result<(), BackendError> {
        let Self::Qsa(s) = self else {
            assert!(rows.is_empty(), "a state without a cache takes no rows");
            return Ok(());
        };
        s.check_room(tokens)?;
        let first = s.cache.tokens();
        let (rows, keys) = rows.split_at(s.cache.rows_bytes(tokens));
        assert_eq!(keys.len(), s.block_values(&(first..first + tokens)).len() * size_of::<f32>(), "keys of blocks");
        s.cache.append_rows(tokens, rows);
        s.block_keys.extend(keys.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        Ok(())
    }
}
