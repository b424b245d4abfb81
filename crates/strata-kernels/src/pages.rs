//! Room that fills as it is written, in pages as large as the system gives.
//!
//! Promises: the system hands memory out when it is first written, so room for a long context costs nothing before.
//! Refuses: to insist on large pages; without them, scattered reads are slower.

/// Room for `len` values, or `None` when there is not enough memory. Large rooms get large pages: a token's attention reads
/// pieces of some kilobytes from everywhere, and would look up a page for each.
pub fn reserve<T>(len: usize) -> Option<Vec<T>> {
    let mut out: Vec<T> = Vec::new();
    out.try_reserve_exact(len).ok()?;
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        /// Of a large page, and of all pages at least.
        const LARGE_BYTES: usize = 2 << 20;
        const PAGE_BYTES: usize = 4096;
        let skipped = out.as_ptr().align_offset(PAGE_BYTES).saturating_mul(size_of::<T>());
        let bytes = (out.capacity() * size_of::<T>()).saturating_sub(skipped) / PAGE_BYTES * PAGE_BYTES;
        if bytes >= LARGE_BYTES {
            // SAFETY: the range is whole pages of this room, which nobody else has; advice changes no contents. The system
            // may refuse it.
            unsafe { libc::madvise(out.as_mut_ptr().byte_add(skipped).cast(), bytes, libc::MADV_HUGEPAGE) };
        }
    }
    Some(out)
}
