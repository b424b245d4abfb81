//! What the system says about files in its memory, and how it treats this process's reads.
//!
//! Promises: never a guess; what a system does not tell is an error or `None`.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

#[cfg(target_os = "linux")]
pub use linux::{PageCache, io_priority};
#[cfg(not(target_os = "linux"))]
pub use others::{PageCache, io_priority};

/// How the reads of this process are ranked among those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoPriority {
    /// Before all others.
    RealTime,
    /// From 0 to 7, the lowest; 4 is usual.
    BestEffort(u8),
    /// Only when nobody else reads.
    Idle,
}

#[cfg(target_os = "linux")]
mod linux {
    use super::{File, IoPriority, Path, Range, io};
    use crate::reads::reopen_buffered;

    /// The pages of a file that the system has in memory.
    pub struct PageCache {
        file: File,
        /// Never looked at: it is what the system is asked about.
        map: memmap2::Mmap,
        page_bytes: u64,
        states: Vec<u8>,
    }

    impl PageCache {
        /// That of an open file.
        ///
        /// # Errors
        /// When it cannot be opened once more and mapped.
        pub fn of(path: &Path, file: &File) -> io::Result<Self> {
            let file = reopen_buffered(path, file)?;
            // SAFETY: nothing is ever read from the mapping.
            let map = unsafe { memmap2::Mmap::map(&file)? };
            // SAFETY: the call has no memory of ours.
            let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
            Ok(Self { file, map, page_bytes, states: Vec::new() })
        }

        /// Whether any page of these bytes is in memory. Of a file that it may not write to, a process is told that all
        /// pages are.
        ///
        /// # Errors
        /// When the range is not in the file as it was when opened, or the system does not tell.
        pub fn has_any(&mut self, range: Range<u64>) -> io::Result<bool> {
            if range.end > self.map.len() as u64 || range.start > range.end {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let start = range.start / self.page_bytes * self.page_bytes;
            self.states.clear();
            self.states.resize((range.end - start).div_ceil(self.page_bytes) as usize, 0);
            let len_bytes = (range.end - start) as usize;
            // SAFETY: the pages are of the mapping, and there is a byte for the state of each.
            let asked = unsafe {
                let first = self.map.as_ptr().add(start as usize).cast_mut();
                libc::mincore(first.cast(), len_bytes, self.states.as_mut_ptr())
            };
            if asked != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(self.states.iter().any(|state| state & 1 != 0))
        }

        /// Asks the system to drop the file's pages from memory. It may keep some.
        ///
        /// # Errors
        /// When it refuses.
        pub fn drop_pages(&self) -> io::Result<()> {
            use std::os::fd::AsRawFd;
            // SAFETY: the call has no memory of ours.
            match unsafe { libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
                0 => Ok(()),
                code => Err(io::Error::from_raw_os_error(code)),
            }
        }
    }

    /// The priority of this process's reads; `None`: the system does not tell.
    pub fn io_priority() -> Option<IoPriority> {
        const WHO_PROCESS: libc::c_int = 1;
        const CLASS_SHIFT: u32 = 13;
        // SAFETY: the call has no memory of ours.
        let value = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, 0) };
        let value = u32::try_from(value).ok()?;
        Some(match (value >> CLASS_SHIFT, (value & 7) as u8) {
            (0, _) => {
                // Nothing was set: it follows the priority among the processors' users, from -20 to 19.
                // SAFETY: the call has no memory of ours.
                let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
                IoPriority::BestEffort(u8::try_from((nice + 20) / 5).ok()?)
            }
            (1, _) => IoPriority::RealTime,
            (2, level) => IoPriority::BestEffort(level),
            (3, _) => IoPriority::Idle,
            _ => return None,
        })
    }
}

#[cfg(not(target_os = "linux"))]
mod others {
    use super::{File, IoPriority, Path, Range, io};

    /// The pages of a file that the system has in memory: not told here.
    pub struct PageCache(std::convert::Infallible);

    impl PageCache {
        /// Not here.
        ///
        /// # Errors
        /// Always.
        pub fn of(_path: &Path, _file: &File) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        /// Not here.
        ///
        /// # Errors
        /// Always.
        pub fn has_any(&mut self, _range: Range<u64>) -> io::Result<bool> {
            match self.0 {}
        }

        /// Not here.
        ///
        /// # Errors
        /// Always.
        pub fn drop_pages(&self) -> io::Result<()> {
            match self.0 {}
        }
    }

    /// Not told here.
    pub fn io_priority() -> Option<IoPriority> {
        None
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn pages_in_memory_are_seen() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; 1 << 20]).unwrap();
        file.as_file().sync_all().unwrap();
        let mut cache = PageCache::of(file.path(), file.as_file()).unwrap();
        assert!(cache.has_any(0..1 << 20).unwrap(), "it was just written");
        assert!(cache.has_any(0..(1 << 20) + 1).is_err());
        cache.drop_pages().unwrap();
        // Some file systems have nowhere else to keep them.
        if !cache.has_any(0..1 << 20).unwrap() {
            std::fs::read(file.path()).unwrap();
            assert!(cache.has_any((1 << 20) - 1..1 << 20).unwrap());
        }
    }

    #[test]
    fn the_priority_is_read() {
        assert!(matches!(io_priority(), Some(IoPriority::RealTime | IoPriority::BestEffort(0..=7) | IoPriority::Idle)));
    }
}
