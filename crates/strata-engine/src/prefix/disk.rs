//! Prefixes in files, for when the program starts anew.
//!
//! Owns: a folder's files of this kind. Promises: a file is used for the model, version, arithmetic and routing that it was
//! written with, and only if its checksum is right; a damaged one is removed; all files together stay below a bound, the
//! longest unused going first, and what is written in a day below another; a file is there as a whole or not at all.
//! Refuses: to touch files that it does not know, and to believe what a file claims of its size.
//!
//! A file, little-endian: 16 bytes that say what it is; the key (32 bytes); numbers of tokens, of logits and of bytes of the
//! checkpoint (u64 each); the tokens (u32 each); the checkpoint ([`Model::write_checkpoint`]); the logits (f32 each); and the
//! SHA-256 of all that.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Error, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use strata_model::ModelError;
use strata_model::qwen4exp::{Checkpoint, Model, Sequence};

use super::book::Found;
use crate::kept::{self, Key, hex};
use crate::{Engine, EngineError};

const MAGIC: &[u8; 16] = b"strata prefix 1\n";
/// What all versions begin with.
const KIND: &[u8] = b"strata prefix ";
const HEAD_BYTES: u64 = 16 + 32 + 3 * 8;
const SUM_BYTES: u64 = 32;
const EXTENSION: &str = "strata-prefix";
/// Of files that are not written yet.
const PART: &str = ".strata-prefix-part-";
/// Nobody writes a file for so long.
const PART_IS_LEFT_AFTER: Duration = Duration::from_secs(3600);
/// How much was written today.
const LEDGER: &str = "written-today.json";
const MOST_LEDGER_BYTES: u64 = 4096;

/// Where prefixes are kept in files, and how much of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// The folder; it is made if it is not there.
    pub folder: PathBuf,
    /// The most bytes of all files.
    pub bytes: u64,
    /// The most bytes that are written in a day, by all processes: what is written wears a drive.
    pub daily_bytes: u64,
}

impl DiskOptions {
    /// What is written in a day unless a user says otherwise.
    pub const DAILY_BYTES: u64 = 20_000_000_000;
}

/// A file that can be used.
struct Entry {
    path: PathBuf,
    text: Vec<u32>,
    logits: usize,
    checkpoint_bytes: u64,
}

/// What was written on a day.
#[derive(Default, Deserialize, Serialize)]
struct Ledger {
    day: String,
    bytes: u64,
}

/// The files of one folder that are of one key.
pub struct Disk {
    options: DiskOptions,
    key: Key,
    entries: Vec<Entry>,
}

/// What a file gave: a checkpoint, and logits unless there are none.
pub(super) type Loaded = (Checkpoint, Vec<f32>);

impl Engine {
    /// The prefixes of this model that a folder has. Damaged files are removed.
    ///
    /// # Errors
    /// When the folder cannot be made or read.
    pub fn prefix_disk(&self, options: DiskOptions) -> Result<Disk, EngineError> {
        let key = self.prefix_key()?;
        Disk::open(options, key, self.model.context_tokens(), self.model.vocabulary())
    }

    /// Identifies all that the bytes of a state depend on.
    fn prefix_key(&self) -> Result<Key, EngineError> {
        let options = &self.options;
        let mut hash = Sha256::new();
        hash.update(self.gguf.key()?);
        let head = options.model.draft_head.as_ref();
        if let Some(file) = head.and_then(|head| head.file.as_deref()) {
            hash.update(kept::key(file)?);
        }
        let (isa, kv) = (options.isa.unwrap_or_else(crate::Isa::best), options.model.kv);
        let (form, block) = (options.model.gdn_form, options.model.block_tokens);
        let words = (env!("CARGO_PKG_VERSION"), isa, options.is_precise, kv, form, block, head.is_some(), self.moce());
        hash.update(format!("{words:?}"));
        Ok(hash.finalize().into())
    }
}

impl Disk {
    fn open(options: DiskOptions, key: Key, most_tokens: usize, vocabulary: usize) -> Result<Self, EngineError> {
        let failed = |error: Error| EngineError::Record { path: options.folder.clone(), problem: error.to_string() };
        if options.folder.exists() && !options.folder.is_dir() {
            return Err(failed(Error::other("it is no folder; prefixes need one of their own")));
        }
        fs::create_dir_all(&options.folder).map_err(failed)?;
        let mut entries = Vec::new();
        let ours = format!("{}-", hex(&key[..8]));
        for entry in fs::read_dir(&options.folder).map_err(failed)?.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let Some(name) = name.to_str() else { continue };
            if name.starts_with(PART) && is_older(&path, PART_IS_LEFT_AFTER) {
                let _ = fs::remove_file(&path);
            }
            if !name.starts_with(&ours) || !is_kept(&path) {
                continue;
            }
            match Entry::read(&path, &key, most_tokens, vocabulary) {
                Ok(Some(entry)) => entries.push(entry),
                Err(error) if is_damage(&error) => _ = fs::remove_file(&path),
                // Longer than the context is this time, or not to be read now.
                Ok(None) | Err(_) => {}
            }
        }
        Ok(Self { options, key, entries })
    }

    /// The file with the longest beginning of a prompt. At least the prompt's last token is read, unless what it gave is
    /// there, too.
    pub(super) fn find(&self, prompt: &[u32]) -> Option<Found> {
        let begins = |entry: &Entry| {
            let is_enough = entry.logits > 0 || entry.text.len() < prompt.len();
            is_enough && prompt.starts_with(&entry.text)
        };
        let found = self.entries.iter().enumerate().filter(|(_, entry)| begins(entry));
        found.map(|(file, entry)| Found { file, tokens: entry.text.len() }).max_by_key(|found| found.tokens)
    }

    /// Tokens at the beginning of a text that are there.
    pub(super) fn saved_tokens(&self, text: &[u32]) -> usize {
        let begins = self.entries.iter().filter(|entry| text.starts_with(&entry.text));
        begins.map(|entry| entry.text.len()).max().unwrap_or(0)
    }

    /// Makes a sequence what a file of this text says. `None`: there is none, or it was damaged and is removed; the sequence
    /// is empty or as it was.
    pub(super) fn load(
        &mut self,
        file: usize,
        text: &[u32],
        model: &mut Model,
        sequence: &mut Sequence,
    ) -> Option<Loaded> {
        let entry = self.entries.get(file).filter(|entry| entry.text == text)?;
        match entry.load(&self.key, model, sequence) {
            Ok(loaded) => {
                // What was used lately stays longest.
                let _ = File::options().write(true).open(&entry.path).and_then(|f| f.set_modified(SystemTime::now()));
                Some(loaded)
            }
            Err(error) => {
                model.reset(sequence);
                if matches!(&error, ModelError::Written(error) if is_damage(error)) {
                    let _ = fs::remove_file(&entry.path);
                }
                self.entries.remove(file);
                None
            }
        }
    }

    /// Writes a checkpoint and the rows of its sequence. `false`: that would be too much, today or at all.
    pub(super) fn save(
        &mut self,
        model: &mut Model,
        sequence: &Sequence,
        checkpoint: &Checkpoint,
        text: &[u32],
        logits: &[f32],
    ) -> Result<bool, EngineError> {
        let checkpoint_bytes = model.written_bytes(sequence, checkpoint);
        let path = self.options.folder.join(format!("{}-{}.{EXTENSION}", hex(&self.key[..8]), hex(&name_of(text))));
        let entry = Entry { path, text: text.to_vec(), logits: logits.len(), checkpoint_bytes };
        let bytes = entry.bytes().expect("it is in memory");
        let mut ledger = self.ledger();
        if bytes > self.options.bytes || ledger.bytes.saturating_add(bytes) > self.options.daily_bytes {
            return Ok(false);
        }
        // Told before it is done: a process that ends meanwhile has written, too.
        ledger.bytes += bytes;
        let json = serde_json::to_vec(&ledger).expect("two plain values");
        kept::replace(&self.options.folder.join(LEDGER), &[&json])?;
        self.make_room(bytes);
        entry.save(&self.options.folder, &self.key, model, sequence, checkpoint, logits)?;
        self.entries.retain(|other| other.path != entry.path);
        self.entries.push(entry);
        Ok(true)
    }

    /// What was written today. A ledger that cannot be read is none.
    fn ledger(&self) -> Ledger {
        let path = self.options.folder.join(LEDGER);
        let mut text = Vec::new();
        let read = open(&path).and_then(|file| file.take(MOST_LEDGER_BYTES).read_to_end(&mut text));
        let ledger: Option<Ledger> = read.ok().and_then(|_| serde_json::from_slice(&text).ok());
        let day = kept::today();
        ledger.filter(|ledger| ledger.day == day).unwrap_or(Ledger { day, bytes: 0 })
    }

    /// Removes files, those that were not used for longest first, so that so many bytes are free. Files of other models count.
    fn make_room(&mut self, bytes: u64) {
        let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for path in fs::read_dir(&self.options.folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if let (true, Ok(data)) = (is_kept(&path), fs::metadata(&path)) {
                files.push((data.modified().unwrap_or(SystemTime::UNIX_EPOCH), data.len(), path));
            }
        }
        files.sort_unstable();
        let mut all = files.iter().map(|(_, bytes, _)| bytes).sum::<u64>();
        for (_, of_file, path) in files {
            if all.saturating_add(bytes) <= self.options.bytes {
                break;
            }
            if fs::remove_file(&path).is_ok() {
                all -= of_file;
                self.entries.retain(|entry| entry.path != path);
            }
        }
    }
}

impl Entry {
    /// Bytes of the file, if that is a number.
    fn bytes(&self) -> Option<u64> {
        let numbers = (self.text.len() as u64).checked_add(self.logits as u64)?.checked_mul(4)?;
        numbers.checked_add(HEAD_BYTES + SUM_BYTES)?.checked_add(self.checkpoint_bytes)
    }

    /// What the beginning of a file says. `Ok(None)`: it may be right, but is too long.
    fn read(path: &Path, key: &Key, most_tokens: usize, vocabulary: usize) -> io::Result<Option<Self>> {
        let mut file = open(path)?;
        let mut head = [0; HEAD_BYTES as usize];
        file.read_exact(&mut head)?;
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let (tokens, logits, checkpoint_bytes) = (number(48), number(56), number(64));
        let is_ours = head[..16] == *MAGIC && head[16..48] == *key;
        let is_sound = is_ours && (logits == 0 || logits == vocabulary as u64) && tokens > 0;
        // Nothing is asked of memory that the file does not have.
        let numbers = tokens.checked_add(logits).and_then(|numbers| numbers.checked_mul(4));
        let bytes = numbers.and_then(|bytes| bytes.checked_add(checkpoint_bytes)?.checked_add(HEAD_BYTES + SUM_BYTES));
        if !is_sound || bytes != Some(file.metadata()?.len()) {
            return Err(ErrorKind::InvalidData.into());
        }
        if tokens > most_tokens as u64 {
            return Ok(None);
        }
        let mut text = vec![0; 4 * tokens as usize];
        file.read_exact(&mut text)?;
        let text = text.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        Ok(Some(Self { path: path.to_owned(), text, logits: logits as usize, checkpoint_bytes }))
    }

    /// The file's bytes before the checkpoint.
    fn head(&self, key: &Key) -> Vec<u8> {
        let mut head = [&MAGIC[..], &key[..]].concat();
        for number in [self.text.len() as u64, self.logits as u64, self.checkpoint_bytes] {
            head.extend_from_slice(&number.to_le_bytes());
        }
        self.text.iter().for_each(|id| head.extend_from_slice(&id.to_le_bytes()));
        head
    }

    fn load(&self, key: &Key, model: &mut Model, sequence: &mut Sequence) -> Result<Loaded, ModelError> {
        let damaged = || ModelError::Written(ErrorKind::InvalidData.into());
        let file = open(&self.path).map_err(ModelError::Written)?;
        let mut from = Summed { inner: BufReader::with_capacity(1 << 20, file), sum: Sha256::new() };
        let (head, mut found) = (self.head(key), Vec::new());
        from.by_ref().take(head.len() as u64).read_to_end(&mut found).map_err(ModelError::Written)?;
        if found != head {
            return Err(damaged());
        }
        let mut of_checkpoint = from.by_ref().take(self.checkpoint_bytes);
        let checkpoint = model.read_checkpoint(sequence, &mut of_checkpoint)?;
        if of_checkpoint.limit() > 0 || checkpoint.tokens() != self.text.len() {
            return Err(damaged());
        }
        let mut logits = vec![0; 4 * self.logits];
        from.read_exact(&mut logits).map_err(ModelError::Written)?;
        let logits = logits.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let mut sum = [0; SUM_BYTES as usize];
        from.inner.read_exact(&mut sum).map_err(ModelError::Written)?;
        if sum != from.sum.finalize()[..] {
            return Err(damaged());
        }
        Ok((checkpoint, logits))
    }

    fn save(
        &self,
        folder: &Path,
        key: &Key,
        model: &mut Model,
        sequence: &Sequence,
        checkpoint: &Checkpoint,
        logits: &[f32],
    ) -> Result<(), EngineError> {
        let failed = |error: Error| EngineError::Record { path: self.path.clone(), problem: error.to_string() };
        let file = tempfile::Builder::new().prefix(PART).tempfile_in(folder).map_err(failed)?;
        let mut out = Summed { inner: BufWriter::with_capacity(1 << 20, file), sum: Sha256::new() };
        out.write_all(&self.head(key)).map_err(failed)?;
        model.write_checkpoint(sequence, checkpoint, &mut out)?;
        for logit in logits {
            out.write_all(&logit.to_le_bytes()).map_err(failed)?;
        }
        let Summed { mut inner, sum } = out;
        inner.write_all(&sum.finalize()).map_err(failed)?;
        let file = inner.into_inner().map_err(|error| failed(error.into_error()))?;
        file.persist(&self.path).map_err(|error| failed(error.error))?;
        Ok(())
    }
}

/// Sums up what goes through.
struct Summed<T> {
    inner: T,
    sum: Sha256,
}

impl<T: Read> Read for Summed<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(bytes)?;
        self.sum.update(&bytes[..count]);
        Ok(count)
    }
}

impl<T: Write> Write for Summed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.sum.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn name_of(text: &[u32]) -> [u8; 16] {
    let mut hash = Sha256::new();
    text.iter().for_each(|id| hash.update(id.to_le_bytes()));
    let hash: [u8; 32] = hash.finalize().into();
    *hash.first_chunk().expect("32 bytes")
}

/// Opens a file to read it. What leads elsewhere, or is a pipe or a device, is none of ours: some of these never end.
fn open(path: &Path) -> io::Result<File> {
    match fs::symlink_metadata(path)?.is_file() {
        true => File::open(path),
        false => Err(ErrorKind::InvalidInput.into()),
    }
}

/// Whether a file is of this kind.
fn is_kept(path: &Path) -> bool {
    let mut magic = [0; 16];
    let is_named_so = path.extension().is_some_and(|extension| extension == EXTENSION);
    is_named_so && open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic.starts_with(KIND)
}

/// Whether it was what a file holds that could not be read.
fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof)
}

fn is_older(path: &Path, age: Duration) -> bool {
    let modified = fs::metadata(path).and_then(|data| data.modified());
    modified.is_ok_and(|modified| SystemTime::now().duration_since(modified).is_ok_and(|since| since > age))
}
