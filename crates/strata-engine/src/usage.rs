//! Which experts earlier runs used, kept in a small file of the user's cache for each model.
//!
//! Promises: a file is only used for the model that it was written for; a damaged one counts as none; it is replaced as a
//! whole. Refuses: to keep anything of a text.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use sha2::{Digest, Sha256};
use strata_gguf::Gguf;

use crate::EngineError;

/// What a file begins with, before the model's key and the counts.
const MAGIC: &[u8; 16] = b"strata usage 01\n";
/// A file of more counts than any model has experts is not read.
const MOST_COUNTS: u64 = 1 << 22;
/// Places in a model's files that its key depends on, and bytes of each.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 16_384;

/// Identifies a model by the beginning of its files, which holds all metadata, and by samples of the rest.
fn key(gguf: &Gguf) -> Result<[u8; 32], EngineError> {
    let mut hash = Sha256::new();
    let mut sample = vec![0; SAMPLE_BYTES as usize];
    for (index, file) in gguf.files().iter().enumerate() {
        hash.update(file.len_bytes.to_le_bytes());
        let step = (file.len_bytes / SAMPLES).max(SAMPLE_BYTES);
        for at in (0..file.len_bytes).step_by(step as usize) {
            let sample = &mut sample[..SAMPLE_BYTES.min(file.len_bytes - at) as usize];
            gguf.read_range(index, at, sample)?;
            hash.update(&*sample);
        }
    }
    for tensor in gguf.tensors() {
        hash.update(tensor.name.as_bytes());
        hash.update(tensor.offset.to_le_bytes());
        hash.update(tensor.len_bytes.to_le_bytes());
    }
    Ok(hash.finalize().into())
}

/// Where the usage of a model is kept; `None`: the user has no cache.
fn place(key: &[u8; 32]) -> Option<PathBuf> {
    let name: String = key[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    Some(dirs::cache_dir()?.join("strata").join(format!("{name}.usage")))
}

/// The counts of earlier runs; empty when there are none that can be used.
pub(crate) fn load(gguf: &Gguf) -> Vec<u32> {
    let Ok(key) = key(gguf) else { return Vec::new() };
    let read = || {
        let path = place(&key)?;
        let most_bytes = (MAGIC.len() + key.len()) as u64 + 4 * MOST_COUNTS;
        if fs::metadata(&path).ok()?.len() > most_bytes {
            return None;
        }
        parse(&fs::read(path).ok()?, &key)
    };
    read().unwrap_or_default()
}

fn parse(bytes: &[u8], key: &[u8; 32]) -> Option<Vec<u32>> {
    let counts = bytes.strip_prefix(MAGIC)?.strip_prefix(key)?;
    let (counts, rest) = counts.as_chunks::<4>();
    rest.is_empty().then(|| counts.iter().map(|count| u32::from_le_bytes(*count)).collect())
}

/// Keeps the counts for later runs.
pub(crate) fn save(gguf: &Gguf, counts: &[u32]) -> Result<(), EngineError> {
    let key = key(gguf)?;
    let Some(path) = place(&key) else { return Ok(()) };
    let write = || {
        let folder = path.parent().expect("a folder of the cache");
        fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(MAGIC)?;
        file.write_all(&key)?;
        file.write_all(&counts.iter().flat_map(|count| count.to_le_bytes()).collect::<Vec<_>>())?;
        file.persist(&path).map_err(|error| error.error)
    };
    match write() {
        Ok(_) => Ok(()),
        Err(error) => Err(EngineError::Record { path, problem: error.to_string() }),
    }
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
