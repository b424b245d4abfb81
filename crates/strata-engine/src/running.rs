//! The Strata processes of this user that run now, and the memory that their plans promise them.
//!
//! A process that has planned and is still loading uses little of its memory yet: what the system calls available is not
//! all free for a second one. So each process writes into a file of the user's runtime folder what its plan promises it,
//! and holds a lock on that file while its model is open. Containers may share that folder, with processes of equal numbers:
//! a process is known by its number and the space that it is a number in. Who runs on another machine has no part in this
//! one's memory.
//! Promises: a file that nobody has locked is nobody's, and is removed; plans are made one after another. Where no file
//! can be written, there are no others. Refuses: to wait for others to end, and to stop them.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
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
    place: Place,
    model: String,
    plan_bytes: u64,
}

/// Where a process number means one process. What the system does not tell is empty.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct Place {
    /// The machine since it was started.
    boot: String,
    /// Its space of process numbers: containers have their own.
    space: String,
}

impl Place {
    /// That of this process.
    fn here() -> &'static Self {
        static HERE: LazyLock<Place> = LazyLock::new(|| {
            let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
            let space = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
            Place { boot: boot.trim().to_owned(), space: space.to_string_lossy().into_owned() }
        });
        &HERE
    }

    /// What files of its processes begin with: letters and digits.
    fn name(&self) -> String {
        let plain = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>();
        let boot: String = plain(&self.boot).chars().take(8).collect();
        format!("{boot}{}", plain(&self.space))
    }
}

const EXTENSION: &str = "running";
/// A longer file is none of this program's.
const MOST_BYTES: u64 = 1 << 16;
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
                let Some(Said { pid, place, model, plan_bytes }) = read(&path) else { continue };
                let (here, is_in_sight) = (Place::here(), place == *Place::here());
                if place.boot != here.boot || (is_in_sight && pid == std::process::id()) {
                    continue;
                }
                // Who cannot be looked at is taken to have what it was promised.
                let held_bytes = Some(pid).filter(|_| is_in_sight).and_then(Memory::held_bytes).unwrap_or(plan_bytes);
                others.push(Other { pid, model, plan_bytes, held_bytes });
            }
            // The system has no such locks: nobody is known.
            Err(TryLockError::Error(_)) => {}
        }
    }
    others.sort_by_key(|other| other.pid);
    others
}

/// What a file says, if it is one of this program's.
fn read(path: &Path) -> Option<Said> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
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
        let path = folder.join(format!("{}-{}-{number}.{EXTENSION}", Place::here().name(), std::process::id()));
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
        let said =
            Said { pid: std::process::id(), place: Place::here().clone(), model: self.model.clone(), plan_bytes };
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

    fn said_by(pid: u32, place: &Place) -> String {
        let said = Said { pid, place: place.clone(), model: "b.gguf".to_owned(), plan_bytes: 1 << 60 };
        serde_json::to_string(&said).unwrap()
    }

    #[test]
    fn containers_with_one_folder_and_equal_numbers_see_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let here = Place::here();
        let mine = Entry::make_in(dir.path(), Path::new("/models/a.gguf"), 100).unwrap();
        let (pid, path) = (std::process::id(), dir.path().join("other.running"));
        let others = |place: &Place| {
            fs::write(&path, said_by(pid, place)).unwrap();
            let file = File::open(&path).unwrap();
            file.lock().unwrap();
            others_in(dir.path())
        };
        let container = Place { space: "pid:[1]".to_owned(), ..here.clone() };
        let [other] = &others(&container)[..] else { panic!("it is not seen") };
        // What it has cannot be looked up by its number, which is this process's own here.
        assert_eq!((other.pid, other.to_come_bytes()), (pid, 0));
        assert!(others(here).is_empty(), "this process");
        assert!(others(&Place { boot: "elsewhere".to_owned(), ..here.clone() }).is_empty(), "another machine's memory");
        // Nor does one take the other's file.
        assert_ne!(container.name(), here.name());
        let name = mine.path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with(&format!("{}-{pid}-", here.name())), "{name}");
    }

    #[test]
    fn field_report_09_only_living_processes_count_and_not_this_one() {
        let dir = tempfile::tempdir().unwrap();
        let mine = Entry::make_in(dir.path(), Path::new("/models/a.gguf"), 100).unwrap();
        assert!(mine.path.exists() && others_in(dir.path()).is_empty(), "this process does not count");
        // Another process's file, with the lock that it would hold. It has far less memory than this.
        let said = |pid: u32| said_by(pid, Place::here());
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
