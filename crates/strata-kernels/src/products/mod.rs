//! Products of decoded weight rows with input rows.
//!
//! Owns: for each kind of products, its register tiles; and the form of the values that go in and come out.
//! Promises: how rows are grouped into tiles depends on their number; the operations of one output value, and their
//! order, do not.
//! Refuses: to know block formats, and which thread does what.

use std::marker::PhantomData;

#[cfg(target_arch = "x86_64")]
pub(crate) mod bfloat16;
pub(crate) mod float32;

/// How products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Products {
    /// In float32.
    Float32,
    /// In bfloat16, by the dot-product instruction of AVX-512.
    #[cfg(target_arch = "x86_64")]
    Dots,
    /// In bfloat16, in tiles of AMX.
    #[cfg(target_arch = "x86_64")]
    Tiles,
}

/// 64 bytes of bfloat16 values: a cache line, a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u16; LINE]);

/// Values of a [`Line`].
pub(crate) const LINE: usize = 32;

impl Line {
    pub(crate) const ZERO: Self = Self([0; LINE]);
}

/// The values of lines.
pub(crate) fn values_mut(lines: &mut [Line]) -> &mut [u16] {
    // SAFETY: a line is 32 values without padding, and its alignment is larger.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LINE) }
}

/// Weight rows in bfloat16, each of whole lines; they may start at any byte.
#[derive(Clone, Copy)]
pub(crate) struct WeightRows<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> WeightRows<'a> {
    /// `count` rows of little-endian bfloat16 values.
    pub(crate) fn new(bytes: &'a [u8], count: usize) -> Self {
        assert!(bytes.len().is_multiple_of(count * size_of::<Line>()), "rows of whole lines");
        Self { bytes, count }
    }

    /// `count` rows in lines.
    pub(crate) fn of_lines(lines: &'a [Line], count: usize) -> Self {
        // SAFETY: lines are plain bytes.
        let bytes = unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) };
        Self::new(bytes, count)
    }

    /// All rows' bytes.
    #[inline(always)]
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    #[inline(always)]
    pub(crate) fn count(self) -> usize {
        self.count
    }

    /// Bytes of a row.
    pub(crate) fn row_bytes(self) -> usize {
        self.bytes.len() / self.count
    }
}

/// Where outputs go: several threads write one output, each its own columns.
#[derive(Clone, Copy)]
pub(crate) struct Out<'a> {
    start: *mut f32,
    /// Values from one row to the next.
    stride: usize,
    /// For each input row, its output row; `None`: the same.
    places: Option<&'a [usize]>,
    scale: f32,
    _values: PhantomData<&'a mut [f32]>,
}

// SAFETY: it only carries a place; those who write there promise that it is theirs.
unsafe impl Sync for Out<'_> {}

impl<'a> Out<'a> {
    /// Rows of `stride` values.
    pub(crate) fn new(values: &'a mut [f32], stride: usize) -> Self {
        Self { start: values.as_mut_ptr(), stride, places: None, scale: 1.0, _values: PhantomData }
    }

    /// The same rows, of which input row `t` goes to row `places[t]`.
    pub(crate) fn at_places(self, places: &'a [usize]) -> Self {
        Self { places: Some(places), ..self }
    }

    /// With this factor of every value.
    pub(crate) fn scaled(self, scale: f32) -> Self {
        Self { scale, ..self }
    }

    /// The columns from `column` on.
    ///
    /// # Safety
    /// There must be such a column.
    pub(crate) unsafe fn columns(self, column: usize) -> Self {
        // SAFETY: the caller's promise.
        Self { start: unsafe { self.start.add(column) }, ..self }
    }

    /// The rows from `row` on.
    ///
    /// # Safety
    /// There must be such a row.
    pub(crate) unsafe fn rows(self, row: usize) -> Self {
        // SAFETY: the caller's promise.
        Self { start: unsafe { self.start.add(row * self.stride) }, ..self }
    }

    /// Where the value of input row `t` and column `n` goes.
    ///
    /// # Safety
    /// There must be such a value.
    #[inline(always)]
    pub(crate) unsafe fn at(self, t: usize, n: usize) -> *mut f32 {
        let row = match self.places {
            Some(places) => places[t],
            None => t,
        };
        // SAFETY: the caller's promise.
        unsafe { self.start.add(row * self.stride + n) }
    }

    /// Factor of every value; 1 changes nothing.
    #[inline(always)]
    pub(crate) fn scale(self) -> f32 {
        self.scale
    }
}
