//! Which experts earlier runs used, kept in a small file of the user's cache for each model.
//!
//! Promises: a file is only used for the model that it was written for; a damaged one counts as none; it is replaced as a
//! whole. Refuses: to keep anything of a text.

use std::fs;

use strata_gguf::Gguf;

use crate::EngineError;
use crate::kept::{Key, key, place, replace};

/// What files of this kind are called.
const KIND: &str = "usage";
/// What a file begins with, before the model's key and the counts.
const MAGIC: &[u8; 16] = b"strata usage 01\n";
/// A file of more counts than any model has experts is not read.
const MOST_COUNTS: u64 = 1 << 22;

/// The counts of earlier runs; empty when there are none that can be used.
pub(crate) fn load(gguf: &Gguf) -> Vec<u32> {
    let Ok(key) = key(gguf) else { return Vec::new() };
    let read = || {
        let path = place(&key, KIND)?;
        let most_bytes = (MAGIC.len() + key.len()) as u64 + 4 * MOST_COUNTS;
        if fs::metadata(&path).ok()?.len() > most_bytes {
            return None;
        }
        parse(&fs::read(path).ok()?, &key)
    };
    read().unwrap_or_default()
}

fn parse(bytes: &[u8], key: &Key) -> Option<Vec<u32>> {
    let counts = bytes.strip_prefix(MAGIC)?.strip_prefix(key)?;
    let (counts, rest) = counts.as_chunks::<4>();
    rest.is_empty().then(|| counts.iter().map(|count| u32::from_le_bytes(*count)).collect())
}

/// Keeps the counts for later runs.
pub(crate) fn save(gguf: &Gguf, counts: &[u32]) -> Result<(), EngineError> {
    let key = key(gguf)?;
    let Some(path) = place(&key, KIND) else { return Ok(()) };
    let counts: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
    replace(&path, &[MAGIC, &key, &counts])
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
}
