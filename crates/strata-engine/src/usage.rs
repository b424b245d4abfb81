//! Which experts earlier runs used, kept in a small file of the user's cache for each model.
//!
//! Promises: a file is only used for the model that it was written for; a damaged one counts as none; it is replaced as a
//! whole. Refuses: to keep anything of a text.

use std::fs;

use crate::EngineError;
use crate::kept::{Key, ModelFile, place, replace};

/// What files of this kind are called.
const KIND: &str = "usage";
/// What a file begins with, before the model's key and the counts.
const MAGIC: &[u8; 16] = b"strata usage 01\n";
/// A file of more counts than any model has experts is not read.
const MOST_COUNTS: u64 = 1 << 22;

/// The counts of earlier runs, for a model of so many experts in all and in a layer; empty when there are none that can be
/// used.
pub(crate) fn load(file: &ModelFile, experts: u64, layer_experts: u64) -> Vec<u32> {
    let Ok(key) = file.key() else { return Vec::new() };
    let read = || {
        let path = place(key, KIND)?;
        let most_bytes = (MAGIC.len() + key.len()) as u64 + 4 * MOST_COUNTS;
        if fs::metadata(&path).ok()?.len() > most_bytes {
            return None;
        }
        fit(parse(&fs::read(path).ok()?, key)?, experts as usize, layer_experts as usize)
    };
    read().unwrap_or_default()
}

/// The counts of a run may end with those of a draft head, which the next one has or has not: one layer more or less.
fn fit(mut counts: Vec<u32>, experts: usize, layer_experts: usize) -> Option<Vec<u32>> {
    if counts.len().abs_diff(experts) > layer_experts || !counts.len().abs_diff(experts).is_multiple_of(layer_experts) {
        return None;
    }
    counts.resize(experts, 0);
    Some(counts)
}

fn parse(bytes: &[u8], key: &Key) -> Option<Vec<u32>> {
    let counts = bytes.strip_prefix(MAGIC)?.strip_prefix(key)?;
    let (counts, rest) = counts.as_chunks::<4>();
    rest.is_empty().then(|| counts.iter().map(|count| u32::from_le_bytes(*count)).collect())
}

/// Keeps the counts for later runs.
pub(crate) fn save(file: &ModelFile, counts: &[u32]) -> Result<(), EngineError> {
    let key = file.key()?;
    let Some(path) = place(key, KIND) else { return Ok(()) };
    let counts: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
    replace(&path, &[MAGIC, key, &counts])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_files_of_the_same_model_count() {
        let key = [7; 32];
        let mut bytes = [&MAGIC[..], &key].concat();
        bytes.extend([1, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(parse(&bytes, &key), Some(vec![1, 256]));
        assert_eq!(parse(&bytes, &[8; 32]), None);
        assert_eq!(parse(&bytes[..bytes.len() - 1], &key), None);
        assert_eq!(parse(&bytes[1..], &key), None);
        assert_eq!(parse(&[], &key), None);
    }

    #[test]
    fn counts_with_and_without_a_draft_head_serve_each_other() {
        let trunk = vec![5, 6, 7, 8];
        assert_eq!(fit(trunk.clone(), 4, 2), Some(trunk.clone()));
        assert_eq!(fit(trunk.clone(), 6, 2), Some(vec![5, 6, 7, 8, 0, 0]));
        assert_eq!(fit(vec![5, 6, 7, 8, 9, 9], 4, 2), Some(trunk.clone()));
        for (experts, layer_experts) in [(5, 2), (8, 2), (0, 2), (4 + 3, 2)] {
            assert_eq!(fit(trunk.clone(), experts, layer_experts), None, "{experts}");
        }
    }
}
