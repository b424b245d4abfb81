//! What can go wrong between a drive and memory.

use std::path::PathBuf;

use thiserror::Error;

use crate::ExpertId;

/// Why bytes of the model are not to be had.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The system reported an error, twice.
    #[error("{}: reading {wanted_bytes} bytes at offset {offset} failed after {got_bytes}: {source} (tried twice)", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Bytes from its start.
        offset: u64,
        /// Bytes asked for.
        wanted_bytes: usize,
        /// Bytes that came before the error.
        got_bytes: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that was open before cannot be opened once more.
    #[error("{}: cannot open it for reading: {source}", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file ended first.
    #[error(
        "{}: the file ends after {got_bytes} of the {wanted_bytes} bytes wanted at offset {offset}: \
         it was shortened or replaced after it was opened, or is a partial download",
        file.display()
    )]
    EndOfFile {
        /// The file.
        file: PathBuf,
        /// Bytes from its start.
        offset: u64,
        /// Bytes asked for.
        wanted_bytes: usize,
        /// Bytes that there were.
        got_bytes: usize,
    },
    /// A layer or expert that the model does not have.
    #[error("{0} does not exist in this model")]
    NoSuchExpert(ExpertId),
    /// A row that a table does not have.
    #[error("row {row} of a table of {rows} rows was asked for")]
    NoSuchRow {
        /// The row asked for.
        row: u64,
        /// Rows in the table.
        rows: u64,
    },
    /// The areas handed over are too small.
    #[error(
        "the experts need {needed_bytes} bytes of memory in areas that hold whole records; {given_bytes} were given"
    )]
    AreasTooSmall {
        /// Bytes of all records.
        needed_bytes: u64,
        /// Bytes of all areas.
        given_bytes: u64,
    },
    /// A read did not end.
    #[error(
        "{}: reading {wanted_bytes} bytes at offset {offset} has not ended for {waited_s:.1} s (after {got_bytes} bytes): \
         the drive does not answer",
        file.display()
    )]
    Stuck {
        /// The file.
        file: PathBuf,
        /// Bytes from its start.
        offset: u64,
        /// Bytes asked for.
        wanted_bytes: usize,
        /// Bytes that came.
        got_bytes: usize,
        /// Seconds since it was started.
        waited_s: f64,
    },
    /// The system does not read at all.
    #[error("the system refuses to read by {port}: {source}")]
    Port {
        /// How it was to read.
        port: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system gives no memory to read into.
    #[error(
        "the system gives no memory for {bytes} bytes of reads: other programs, or a limit (ulimit -v), leave too little"
    )]
    NoMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The arena could not be locked in memory.
    #[error("the arena cannot be locked in memory: {source}; allow this user to lock more (ulimit -l), or do not lock")]
    Lock {
        /// What the system said.
        source: std::io::Error,
    },
    /// The arena is smaller than the smallest legal one.
    #[error(transparent)]
    ArenaTooSmall(#[from] crate::scheduler::ArenaTooSmall),
    /// A record that a pass needs could not be read.
    #[error("{expert} could not be read: {source}")]
    Expert {
        /// Whose record.
        expert: ExpertId,
        /// Why.
        source: Box<StoreError>,
    },
}
