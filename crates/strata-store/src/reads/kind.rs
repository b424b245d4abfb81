//! Which port reads, and how one is opened.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use super::files::{OpenFile, describe, open_all};
use super::port::Port;
use super::threads::{Source, Threads};
use crate::{Area, StoreError};

/// How files are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReaderKind {
    /// `io_uring` where the system has it and reads are direct, else threads.
    #[default]
    Auto,
    /// Linux `io_uring`, direct.
    Uring,
    /// Threads that each wait for one read, direct.
    Threads,
    /// Threads that read through the system's page cache.
    Buffered,
    /// Threads that copy from a mapping of the file (Linux): for comparison. When the file is shortened between the look
    /// at its length and the copy, or the drive fails in between, the system ends the process.
    Mmap,
}

impl ReaderKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Auto, Self::Uring, Self::Threads, Self::Buffered, Self::Mmap];

    /// Its name, for a flag.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Threads => "threads",
            Self::Buffered => "buffered",
            Self::Mmap => "mmap",
        }
    }
}

impl fmt::Display for ReaderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ReaderKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| format!("expected one of {}", known()))
    }
}

/// The most reads at a time that a port takes.
pub const MAX_DEPTH: usize = 4096;

/// Opens `files` for reading by `kind`, at most `depth` reads at a time (from 1 to [`MAX_DEPTH`]). Reads into `areas` may be
/// faster than others. Where a file system has no direct reads, they are buffered; [`Port::describe`] says so.
///
/// The files are opened anew, each with an open description of its own: `files` may be closed.
///
/// # Errors
/// When a file cannot be opened once more, or the system does not have what `kind` names.
///
/// # Panics
/// When `depth` is out of range.
pub fn open(
    kind: ReaderKind,
    files: &[(PathBuf, File)],
    areas: &[Arc<Area>],
    depth: usize,
) -> Result<Box<dyn Port>, StoreError> {
    assert!((1..=MAX_DEPTH).contains(&depth), "a depth of {depth} reads");
    match kind {
        ReaderKind::Auto => {
            let direct = open_all(files, true)?;
            // Buffered reads would be copied by the thread that submits them.
            if direct.iter().all(|file| file.is_direct)
                && let Ok(port) = uring(direct, areas, depth)
            {
                return Ok(port);
            }
            threads(open_all(files, true)?, depth)
        }
        ReaderKind::Uring => uring(open_all(files, true)?, areas, depth),
        ReaderKind::Threads => threads(open_all(files, true)?, depth),
        ReaderKind::Buffered => threads(open_all(files, false)?, depth),
        ReaderKind::Mmap => mapped(files, depth),
    }
}

fn threads(files: Vec<OpenFile>, depth: usize) -> Result<Box<dyn Port>, StoreError> {
    let description = format!("threads, {}", describe(&files));
    let sources = files.into_iter().map(|file| Source::File(file.file)).collect();
    Ok(Box::new(Threads::start(sources, description, depth).map_err(|source| refused("threads", source))?))
}

#[cfg(target_os = "linux")]
fn uring(files: Vec<OpenFile>, areas: &[Arc<Area>], depth: usize) -> Result<Box<dyn Port>, StoreError> {
    Ok(Box::new(super::uring::Uring::open(files, areas, depth).map_err(|source| refused("io_uring", source))?))
}

#[cfg(target_os = "linux")]
fn mapped(files: &[(PathBuf, File)], depth: usize) -> Result<Box<dyn Port>, StoreError> {
    let map = |((path, _), file): (&(PathBuf, File), OpenFile)| {
        Source::map(file.file).map_err(|source| StoreError::Open { file: path.clone(), source })
    };
    let sources = files.iter().zip(open_all(files, false)?).map(map).collect::<Result<_, _>>()?;
    let description = "threads, mapped".to_owned();
    Ok(Box::new(Threads::start(sources, description, depth).map_err(|source| refused("threads", source))?))
}

#[cfg(not(target_os = "linux"))]
fn uring(_files: Vec<OpenFile>, _areas: &[Arc<Area>], _depth: usize) -> Result<Box<dyn Port>, StoreError> {
    Err(refused("io_uring", io::ErrorKind::Unsupported.into()))
}

#[cfg(not(target_os = "linux"))]
fn mapped(_files: &[(PathBuf, File)], _depth: usize) -> Result<Box<dyn Port>, StoreError> {
    Err(refused("mappings", io::ErrorKind::Unsupported.into()))
}

fn refused(port: &str, source: io::Error) -> StoreError {
    StoreError::Port { port: port.to_owned(), source }
}
