//! Positional reads of a model's files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::StoreError;

/// Reads whole ranges of a model's files.
pub trait Reader: Send + Sync {
    /// Fills `out` from `file` (by index) at `offset` bytes.
    ///
    /// # Errors
    /// When the system reports an error twice, or the file ends first.
    fn read(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<(), StoreError>;
}

/// Reads by `pread` from files that were opened before.
pub struct FileReader {
    files: Vec<(PathBuf, File)>,
}

impl FileReader {
    /// Files by index, with the names that errors use.
    pub fn new(files: Vec<(PathBuf, File)>) -> Self {
        Self { files }
    }
}

impl Reader for FileReader {
    fn read(&self, file: usize, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
        let (path, file) = &self.files[file];
        read_whole(|out, at| file.read_at(out, at), offset, out).map_err(|failure| match failure {
            Failure { got_bytes, source: Some(source) } => {
                StoreError::Read { file: path.clone(), offset, wanted_bytes: out.len(), got_bytes, source }
            }
            Failure { got_bytes, source: None } => {
                StoreError::EndOfFile { file: path.clone(), offset, wanted_bytes: out.len(), got_bytes }
            }
        })
    }
}

/// How far a read came and what stopped it; no source = the end of the file.
struct Failure {
    got_bytes: usize,
    source: Option<io::Error>,
}

/// Reads until `out` is full. Short reads go on, interrupted ones do not count, one error is forgiven.
fn read_whole(
    read_at: impl Fn(&mut [u8], u64) -> io::Result<usize>,
    offset: u64,
    out: &mut [u8],
) -> Result<(), Failure> {
    let (mut got_bytes, mut retried) = (0, false);
    while got_bytes < out.len() {
        match read_at(&mut out[got_bytes..], offset + got_bytes as u64) {
            Ok(0) => return Err(Failure { got_bytes, source: None }),
            Ok(n) => got_bytes += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) if !retried => retried = true,
            Err(source) => return Err(Failure { got_bytes, source: Some(source) }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A file of bytes `0, 1, 2, ...` whose reads give, one after another, what the script says: `Ok(n)` at most `n`
    /// bytes, or an error. When the script is over, reads succeed.
    fn scripted(len: usize, script: Vec<io::Result<usize>>) -> impl Fn(&mut [u8], u64) -> io::Result<usize> {
        let script = RefCell::new(script.into_iter());
        move |out, at| {
            let most = script.borrow_mut().next().unwrap_or(Ok(usize::MAX))?;
            let n = most.min(out.len()).min(len.saturating_sub(at as usize));
            for (i, o) in out[..n].iter_mut().enumerate() {
                *o = (at as usize + i) as u8;
            }
            Ok(n)
        }
    }

    fn broken() -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(5))
    }

    #[test]
    fn short_reads_go_on_and_interruptions_do_not_count() {
        let interrupted = || Err(io::Error::from(io::ErrorKind::Interrupted));
        let mut out = [0; 10];
        let read = scripted(100, vec![Ok(3), interrupted(), interrupted(), Ok(1), interrupted(), Ok(2)]);
        assert!(read_whole(read, 40, &mut out).is_ok());
        assert_eq!(out, [40, 41, 42, 43, 44, 45, 46, 47, 48, 49]);
    }

    #[test]
    fn one_error_is_forgiven_the_second_ends_the_read() {
        let mut out = [0; 10];
        assert!(read_whole(scripted(100, vec![Ok(4), broken()]), 0, &mut out).is_ok());
        assert_eq!(out, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);

        let failure = read_whole(scripted(100, vec![Ok(4), broken(), Ok(1), broken()]), 0, &mut out).unwrap_err();
        assert_eq!((failure.got_bytes, failure.source.unwrap().raw_os_error()), (5, Some(5)));
    }

    #[test]
    fn errors_name_file_offset_wanted_and_got() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        std::fs::write(&path, [7u8; 100]).unwrap();
        let reader = FileReader::new(vec![(path.clone(), File::open(&path).unwrap())]);
        let mut out = [0; 20];
        reader.read(0, 80, &mut out).unwrap();
        assert_eq!(out, [7; 20]);
        let text = reader.read(0, 90, &mut out).unwrap_err().to_string();
        for part in ["model.gguf", "after 10 of the 20 bytes", "offset 90"] {
            assert!(text.contains(part), "{text}");
        }
        // A directory opens but does not read: a real error of the system.
        let reader = FileReader::new(vec![(dir.path().to_owned(), File::open(dir.path()).unwrap())]);
        let text = reader.read(0, 5, &mut out).unwrap_err().to_string();
        for part in [dir.path().to_str().unwrap(), "20 bytes at offset 5 failed after 0", "tried twice"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
