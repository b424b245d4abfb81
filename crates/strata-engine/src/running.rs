//! The Strata processes of this user that run now, and the memory that their plans promise them.
//!
//! A process that has planned and is still loading uses little of its memory yet: what the system calls available is not
//! all free for a second one. So each process writes into a file of the user's runtime folder what its plan promises it,
//! and holds a lock on that file while its model is open.
//! Promises: a file that nobody has locked is nobody's, and is removed; plans are made one after another. Where no file
//! can be written, there are no others. Refuses: to wait for others to end, and to stop them.

use std::fs::{self, File, TryLockError};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Memory;

/// Another process with an open model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Its number.
    pub pid: u32,
    /// The name of its model file.
    pub model: String,
    /// What its plan promises it.
    pub plan_bytes: u64,
    /// What it has of that now.
    pub held_bytes: u64,
}

impl Other {
    /// What it may still take.
    pub fn to_come_bytes(&self) -> u64 {
        self.plan_bytes.saturating_sub(self.held_bytes)
    }
}

/// What a process writes of itself.
#[derive(Deserialize, Serialize)]
struct Said {
    pid: u32,
    model: String,
    plan_bytes: u64,
}

const EXTENSION: &str = "running";
/// How often a turn is asked for, and the time between: plans take milliseconds.
const TURN_TRIES: usize = 50;
const TURN_WAIT: Duration = Duration::from_millis(20);

/// The other processes of this user that have a model open.
pub fn others() -> Vec<Other> {
    folder().map(|folder| others_in(&folder)).unwrap_or_default()
}

fn folder() -> Option<PathBuf> {
    Some(dirs::runtime_dir().or_else(dirs::cache_dir)?.join("strata"))
}

fn others_in(folder: &Path) -> Vec<Other> {
    let mut others = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != EXTENSION) {
            continue;
        }
        let Ok(file) = File::open(&path) else { continue };
        match file.try_lock_shared() {
            Ok(()) => {
                // Its process is gone without a farewell.
                let _ = fs::remove_file(&path);
            }
            Err(TryLockError::WouldBlock) => {
                let said = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<Said>(&bytes).ok());
                let Some(Said { pid, model, plan_bytes }) = said.filter(|said| said.pid != std::process::id()) else {
                    continue;
                };
                // Who cannot be looked at is taken to have what it was promised.
                let held_bytes = Memory::held_bytes(pid).unwrap_or(plan_bytes);
                others.push(Other { pid, model, plan_bytes, held_bytes });
            }
            // The system has no such locks: nobody is known.
            Err(TryLockError::Error(_)) => {}
        }
    }
    others.sort_by_key(|other| other.pid);
    others
}

/// The right to plan, which one process has at a time. It ends when this is dropped.
pub(crate) struct Turn(Option<File>);

impl Turn {
    /// Waits for it, but not for long: a process that was halted in its turn keeps nobody waiting.
    pub(crate) fn take() -> Self {
        let open = || {
            let folder = folder()?;
            fs::create_dir_all(&folder).ok()?;
            File::create(folder.join("turn")).ok()
        };
        let Some(file) = open() else { return Self(None) };
        for _ in 0..TURN_TRIES {
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => std::thread::sleep(TURN_WAIT),
                _ => break,
            }
        }
        Self(Some(file))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.iter().for_each(|file| drop(file.unlock()));
    }
}

/// What this process says of an open model of its own; nothing any more when it is dropped.
#[derive(Debug)]
pub(crate) struct Entry {
    path: PathBuf,
    file: File,
    model: String,
}

impl Entry {
    /// `None`: it cannot be written.
    pub(crate) fn make(model: &Path, plan_bytes: u64) -> Option<Self> {
        Self::make_in(&folder()?, model, plan_bytes)
    }

    fn make_in(folder: &Path, model: &Path, plan_bytes: u64) -> Option<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        fs::create_dir_all(folder).ok()?;
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{}-{number}.{EXTENSION}", std::process::id()));
        // Under its name it is seen only when it is locked: else it would be taken for nobody's.
        let unseen = path.with_extension("new");
        let file = File::create(&unseen).ok()?;
        let entry = Self { path, file, model: model.file_name().unwrap_or_default().to_string_lossy().into_owned() };
        entry.announce(plan_bytes);
        let is_seen = entry.file.try_lock().is_ok() && fs::rename(&unseen, &entry.path).is_ok();
        if !is_seen {
            let _ = fs::remove_file(unseen);
        }
        is_seen.then_some(entry)
    }

    /// Says what the plan promises now.
    pub(crate) fn announce(&self, plan_bytes: u64) {
        let said = Said { pid: std::process::id(), model: self.model.clone(), plan_bytes };
        let write = || {
            let mut file = &self.file;
            file.rewind()?;
            file.set_len(0)?;
            file.write_all(&serde_json::to_vec(&said)?)
        };
        // That others know less is no reason to fail.
        let _: std::io::Result<()> = write();
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_report_09_only_living_processes_count_and_not_this_one() {
        let dir = tempfile::tempdir().unwrap();
        let mine = Entry::make_in(dir.path(), Path::new("/models/a.gguf"), 100).unwrap();
        assert!(mine.path.exists() && others_in(dir.path()).is_empty(), "this process does not count");
        // Another process's file, with the lock that it would hold. It has far less memory than this.
        let said = |pid: u32| format!("{{\"pid\":{pid},\"model\":\"b.gguf\",\"plan_bytes\":{}}}", 1u64 << 60);
        let path = dir.path().join("1-0.running");
        fs::write(&path, said(1)).unwrap();
        let file = File::open(&path).unwrap();
        file.lock().unwrap();
        let [other] = &others_in(dir.path())[..] else { panic!("{:?}", others_in(dir.path())) };
        assert_eq!((other.pid, other.model.as_str(), other.plan_bytes), (1, "b.gguf", 1 << 60));
        assert_eq!(other.to_come_bytes(), (1 << 60) - other.held_bytes);
        // It went away, whatever became of its number.
        drop(file);
        assert!(others_in(dir.path()).is_empty() && !path.exists() && mine.path.exists());
        // What is no entry is left alone; what is damaged counts for nothing.
        fs::write(dir.path().join("notes.txt"), "x").unwrap();
        fs::write(&path, "{").unwrap();
        let file = File::open(&path).unwrap();
        file.lock().unwrap();
        assert!(others_in(dir.path()).is_empty() && path.exists());
        mine.announce(7);
        let text = fs::read_to_string(&mine.path).unwrap();
        assert!(text.contains("\"plan_bytes\":7}") && text.contains("a.gguf"), "{text}");
        let place = mine.path.clone();
        drop(mine);
        assert!(!place.exists() && dir.path().join("notes.txt").exists());
    }
}
