//! Memory that slots lie in.

/// Alignment of an area's first byte: a page, so that direct reads can land in it.
const ALIGN_BYTES: usize = 4096;

/// One piece of page-aligned memory, at most [`Area::MAX_BYTES`] long. An arena is a list of them.
pub struct Area {
    memory: Vec<u8>,
    /// Offset of the first aligned byte of `memory`.
    start: usize,
    len_bytes: usize,
}

impl Area {
    /// The largest area that is asked for: 1 GiB.
    pub const MAX_BYTES: usize = 1 << 30;

    /// A zeroed area, or `None` when the system has no memory for it.
    pub fn allocate(len_bytes: usize) -> Option<Self> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(len_bytes.checked_add(ALIGN_BYTES)?).ok()?;
        memory.resize(len_bytes + ALIGN_BYTES, 0);
        let start = memory.as_ptr().align_offset(ALIGN_BYTES);
        Some(Self { memory, start, len_bytes })
    }

    /// All its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len_bytes]
    }

    /// All its bytes, to be filled.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_aligned_zeroed_and_refused_when_absurd() {
        for len in [0, 1, 4095, 4096, 100_000] {
            let area = Area::allocate(len).unwrap();
            assert_eq!(area.bytes().len(), len);
            assert!(area.bytes().as_ptr().addr().is_multiple_of(ALIGN_BYTES));
            assert!(area.bytes().iter().all(|b| *b == 0));
        }
        assert!(Area::allocate(usize::MAX).is_none());
        assert!(Area::allocate(usize::MAX / 2).is_none());
    }
}
