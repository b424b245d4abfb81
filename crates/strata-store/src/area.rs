//! Memory that slots lie in.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// Alignment of an area's first byte, and of windows in it: a page, so that direct reads can land there.
pub const PAGE_BYTES: usize = 4096;

/// One piece of page-aligned memory, at most [`Area::MAX_BYTES`] long. An arena is a list of them.
///
/// Parts of it are written by reads that go on beside computation, while other parts are looked at. Whose turn it is with
/// which part is decided by who owns the area.
pub struct Area {
    memory: NonNull<u8>,
    len_bytes: usize,
    is_locked: AtomicBool,
}

// SAFETY: the memory is the area's own; all access to it is by unsafe methods, whose callers keep parts apart.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// The largest area that is asked for: 1 GiB, the most that can be registered for direct reads in one piece.
    pub const MAX_BYTES: usize = 1 << 30;

    /// A zeroed area, or `None` when the system has no memory for it. Its pages take memory when they are first written
    /// to: they come from the system itself, since the allocator would fill such memory with zeros at once.
    pub fn allocate(len_bytes: usize) -> Option<Self> {
        let len_bytes = len_bytes.max(1);
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, wherever the system likes it to be.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, access, kind, -1, 0) };
        if memory == libc::MAP_FAILED {
            return None;
        }
        Some(Self { memory: NonNull::new(memory.cast())?, len_bytes, is_locked: AtomicBool::new(false) })
    }

    /// Its length.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Where it begins; good for all of its bytes.
    pub fn start(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// Locks it in memory, for as long as it lives: the system never moves it to the swap.
    ///
    /// # Errors
    /// When the system refuses: most often, because a user may not lock so much.
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: the memory is the area's own, and locking does not change it.
        if unsafe { libc::mlock(self.start().cast(), self.len_bytes()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        self.is_locked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Gives the memory of some of its pages back to the system. What they hold afterwards is not known; written to, they
    /// take memory again.
    ///
    /// # Safety
    /// Nobody looks at them or writes to them.
    ///
    /// # Panics
    /// When they are not whole pages inside.
    pub(crate) unsafe fn discard(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len_bytes(), "{range:?} of {} bytes", self.len_bytes());
        assert!(
            range.start.is_multiple_of(PAGE_BYTES) && range.end.is_multiple_of(PAGE_BYTES),
            "{range:?}: whole pages"
        );
        let advice = if cfg!(target_os = "linux") { libc::MADV_DONTNEED } else { libc::MADV_FREE };
        let start = self.start().wrapping_add(range.start).cast();
        // SAFETY: pages of the area's own memory, which nobody uses. Where the system refuses, they stay as they are.
        unsafe {
            if self.is_locked.load(Ordering::Relaxed) {
                libc::munlock(start, range.len());
            }
            libc::madvise(start, range.len(), advice);
        }
    }

    /// Some of its bytes.
    ///
    /// # Safety
    /// Nobody writes to them while they are looked at.
    ///
    /// # Panics
    /// When they are not all inside.
    pub(crate) unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len_bytes(), "{range:?} of {} bytes", self.len_bytes());
        // SAFETY: they are inside, they were initialized when the area was made, and the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(self.start().add(range.start), range.len()) }
    }

    /// Some of its bytes, to be filled.
    ///
    /// # Safety
    /// Nobody else touches them meanwhile.
    ///
    /// # Panics
    /// When they are not all inside.
    #[cfg(test)]
    pub(crate) unsafe fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(range.start <= range.end && range.end <= self.len_bytes(), "{range:?} of {} bytes", self.len_bytes());
        // SAFETY: as in `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.start().add(range.start), range.len()) }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the area's own memory, given back once.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.len_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri ends where there is no memory")]
    fn areas_are_aligned_zeroed_and_refused_when_absurd() {
        for len in [1, 4095, 4096, 100_000] {
            let area = Area::allocate(len).unwrap();
            assert_eq!(area.len_bytes(), len);
            assert!(area.start().addr().is_multiple_of(PAGE_BYTES));
            // SAFETY: nobody else has it.
            assert!(unsafe { area.bytes(0..len) }.iter().all(|b| *b == 0));
        }
        assert!(Area::allocate(usize::MAX).is_none());
        assert!(Area::allocate(usize::MAX / 2).is_none());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_locked_counts_as_such_until_the_area_is_gone() {
        const LEN_BYTES: usize = 48 << 20;
        let locked_bytes = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
        };
        // Far more than any other test locks.
        let area = Area::allocate(LEN_BYTES).unwrap();
        match area.lock() {
            Ok(()) => {
                assert!(locked_bytes() >= LEN_BYTES);
                drop(area);
                assert!(locked_bytes() < LEN_BYTES);
            }
            Err(error) => {
                let refusals = [libc::ENOMEM, libc::EPERM, libc::EAGAIN];
                assert!(refusals.contains(&error.raw_os_error().unwrap()), "{error}");
            }
        }
    }
}
