//! What is kept of a model for later runs: small files of the user's cache, one of each kind for a model.
//!
//! Promises: a file is only used for the model that it was written for; a damaged or an absurd one counts as none; it is
//! replaced as a whole; a model's key, which takes reads from all over its files, is made once while it is open. Refuses: to
//! keep anything of a text.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use strata_gguf::Gguf;

use crate::EngineError;

/// Identifies a model.
pub(crate) type Key = [u8; 32];

/// Places in a model's files that its key depends on, and bytes of each.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 16_384;
/// A longer file of this program's JSON is somebody else's.
const MOST_JSON_BYTES: u64 = 1 << 20;

/// The file of a model, and the model's key once somebody has asked for it.
pub(crate) struct ModelFile {
    gguf: Gguf,
    key: OnceLock<Key>,
}

impl ModelFile {
    pub(crate) fn open(path: &Path) -> Result<Self, EngineError> {
        Ok(Self { gguf: Gguf::open(path)?, key: OnceLock::new() })
    }

    pub(crate) fn key(&self) -> Result<&Key, EngineError> {
        match self.key.get() {
            Some(key) => Ok(key),
            None => {
                let key = key(&self.gguf)?;
                Ok(self.key.get_or_init(|| key))
            }
        }
    }
}

impl Deref for ModelFile {
    type Target = Gguf;

    fn deref(&self) -> &Gguf {
        &self.gguf
    }
}

/// What is kept as JSON.
pub(crate) trait Keep: DeserializeOwned + Serialize {
    /// What its files are called.
    const KIND: &str;

    /// Whether this program can have written it: files get damaged, and edited by hand.
    fn is_plausible(&self) -> bool;
}

/// More than any measurement takes.
const MOST_SECONDS: f64 = 1e9;

/// Whether this is a time that something can have taken.
pub(crate) fn is_time(seconds: f64) -> bool {
    seconds > 0.0 && seconds <= MOST_SECONDS
}

/// The key of a model: of the beginning of its files, which holds all metadata, and of samples of the rest.
pub(crate) fn key(gguf: &Gguf) -> Result<Key, EngineError> {
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

/// Where something of this kind is kept of a model; `None`: the user has no cache.
pub(crate) fn place(key: &Key, kind: &str) -> Option<PathBuf> {
    Some(dirs::cache_dir()?.join("strata").join(format!("{}.{kind}", hex(&key[..16]))))
}

/// Writes a file as a whole.
pub(crate) fn replace(path: &Path, parts: &[&[u8]]) -> Result<(), EngineError> {
    let write = || {
        let folder = path.parent().expect("a folder of the cache");
        fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.persist(path).map_err(|error| error.error)
    };
    write().map(|_| ()).map_err(|error| EngineError::Record { path: path.to_owned(), problem: error.to_string() })
}

/// A value and the model that it belongs to.
#[derive(Deserialize, Serialize)]
struct Kept<T> {
    model: String,
    value: T,
}

/// What is kept as JSON, if there is something that can be used.
pub(crate) fn load<T: Keep>(file: &ModelFile) -> Option<T> {
    let key = file.key().ok()?;
    let path = place(key, T::KIND)?;
    let mut json = Vec::new();
    File::open(path).ok()?.take(MOST_JSON_BYTES).read_to_end(&mut json).ok()?;
    let kept: Kept<T> = serde_json::from_slice(&json).ok()?;
    (kept.model == hex(key) && kept.value.is_plausible()).then_some(kept.value)
}

/// Keeps a value as JSON. Without a place for it, nothing is kept.
pub(crate) fn save<T: Keep>(file: &ModelFile, value: &T) -> Result<(), EngineError> {
    let key = file.key()?;
    let Some(path) = place(key, T::KIND) else { return Ok(()) };
    let json = serde_json::to_vec(&Kept { model: hex(key), value })
        .map_err(|error| EngineError::Record { path: path.clone(), problem: error.to_string() })?;
    replace(&path, &[&json, b"\n"])
}

/// Removes what is kept; `false`: there was nothing.
pub(crate) fn forget<T: Keep>(file: &ModelFile) -> Result<bool, EngineError> {
    let Some(path) = place(file.key()?, T::KIND) else { return Ok(false) };
    match fs::remove_file(&path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(EngineError::Record { path, problem: error.to_string() }),
    }
}

/// Today, as in `2026-11-30`.
pub(crate) fn today() -> String {
    jiff::ZonedDateTime::now().date().to_string()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
