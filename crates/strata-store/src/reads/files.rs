//! A model's files, opened once more for the reads of a port.
//!
//! Promises: what is opened is the very file that was checked, also when its name means another one by now; whether reads
//! of it go past the system's page cache is known.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::StoreError;

/// A file with an open description of its own.
pub(super) struct OpenFile {
    pub(super) file: File,
    /// Whether reads go past the system's page cache.
    pub(super) is_direct: bool,
}

/// Opens each file anew; with `direct`, for reads past the page cache where its file system has them.
pub(super) fn open_all(files: &[(PathBuf, File)], direct: bool) -> Result<Vec<OpenFile>, StoreError> {
    let open = |(path, file): &(PathBuf, File)| {
        let opened = match direct.then(|| open_direct(path, file)) {
            Some(Ok(Some(file))) => Ok(OpenFile { file, is_direct: true }),
            Some(Err(error)) => Err(error),
            Some(Ok(None)) | None => reopen(path, file, 0).map(|file| OpenFile { file, is_direct: false }),
        };
        opened.map_err(|source| StoreError::Open { file: path.clone(), source })
    };
    files.iter().map(open).collect()
}

/// How the files are read, for people.
pub(super) fn describe(files: &[OpenFile]) -> &'static str {
    match files.iter().filter(|file| file.is_direct).count() {
        n if n == files.len() => "direct",
        0 => "buffered",
        _ => "in part direct, in part buffered",
    }
}

/// A file for direct reads; `None`: its file system has none.
#[cfg(target_os = "linux")]
fn open_direct(path: &Path, file: &File) -> io::Result<Option<File>> {
    let is_refusal = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    if is_in_memory(file) {
        return Ok(None);
    }
    let direct = match reopen(path, file, libc::O_DIRECT) {
        Err(error) if is_refusal(&error) => return Ok(None),
        opened => opened?,
    };
    // Some open it and then refuse to read it, or only in larger blocks. Other errors are those of a real read.
    Ok((!read_page(&direct).is_err_and(|error| is_refusal(&error))).then_some(direct))
}

/// Whether the file lies in the page cache and nowhere else; such file systems take the flag and ignore it.
#[cfg(target_os = "linux")]
fn is_in_memory(file: &File) -> bool {
    const RAMFS_MAGIC: i128 = 0x8584_58f6;
    // SAFETY: all bits zero are a valid `statfs`, which the call fills.
    let (done, about) = unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(file.as_raw_fd(), &raw mut about), about)
    };
    done == 0 && [i128::from(libc::TMPFS_MAGIC), RAMFS_MAGIC].contains(&i128::from(about.f_type))
}

#[cfg(target_os = "linux")]
fn read_page(file: &File) -> io::Result<()> {
    use crate::{Area, PAGE_BYTES};
    let page = Area::allocate(PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: the page is of this length, and nobody else has it.
    let n = unsafe { libc::pread(file.as_raw_fd(), page.start().cast(), PAGE_BYTES, 0) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(target_os = "macos")]
fn open_direct(path: &Path, file: &File) -> io::Result<Option<File>> {
    let file = reopen(path, file, 0)?;
    // SAFETY: the call has no memory of ours.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_NOCACHE, 1) };
    Ok((done == 0).then_some(file))
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn open_direct(_path: &Path, _file: &File) -> io::Result<Option<File>> {
    Ok(None)
}

/// What the drive of a file takes before it lets others wait.
#[cfg(target_os = "linux")]
pub(super) struct DriveQueue {
    /// Requests that wait or are at work.
    pub(super) requests: usize,
    /// The most bytes of a request; longer reads are split.
    pub(super) request_bytes: usize,
}

#[cfg(target_os = "linux")]
impl DriveQueue {
    /// That of a file's drive; where the system does not tell, that of a small one.
    pub(super) fn of(file: &File) -> Self {
        use std::os::unix::fs::MetadataExt;
        let number = file.metadata().map_or(0, |about| about.dev());
        let dir = format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
        // A partition's queue is that of the whole drive, one directory above.
        let read = |name: &str| {
            let texts = ["queue", "../queue"].map(|queue| std::fs::read_to_string(format!("{dir}/{queue}/{name}")));
            texts.into_iter().flatten().find_map(|text| text.trim().parse::<usize>().ok()).filter(|value| *value > 0)
        };
        Self { requests: read("nr_requests").unwrap_or(64), request_bytes: read("max_sectors_kb").unwrap_or(128) << 10 }
    }
}

/// Another open description of the same file, for reads through the page cache.
#[cfg(target_os = "linux")]
pub(crate) fn reopen_buffered(path: &Path, file: &File) -> io::Result<File> {
    reopen(path, file, 0)
}

/// Another open description of the same file.
fn reopen(path: &Path, file: &File, flags: i32) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let open = |path: &Path| OpenOptions::new().read(true).custom_flags(flags).open(path);
    if cfg!(target_os = "linux") {
        match open(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd()))) {
            // There may be no /proc.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
    }
    let opened = open(path)?;
    if same_file(file, &opened)? { Ok(opened) } else { Err(io::Error::other("it was replaced after it was opened")) }
}

fn same_file(a: &File, b: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let (a, b) = (a.metadata()?, b.metadata()?);
    Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
}
