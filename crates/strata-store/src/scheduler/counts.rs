//! What is counted: the receipt of a run.

use std::ops::{Add, AddAssign, Index, IndexMut, Sub};

use super::Class;

/// A number of records and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub records: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// One more record of so many bytes.
impl AddAssign<u64> for Tally {
    fn add_assign(&mut self, record_bytes: u64) {
        self.records += 1;
        self.bytes += record_bytes;
    }
}

impl Add for Tally {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { records: self.records + other.records, bytes: self.bytes + other.bytes }
    }
}

/// What has come since an `earlier` tally.
impl Sub for Tally {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self { records: self.records - earlier.records, bytes: self.bytes - earlier.bytes }
    }
}

/// A tally for each class of reads. A read stays in the class in which it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByClass([Tally; 3]);

impl Index<Class> for ByClass {
    type Output = Tally;

    fn index(&self, class: Class) -> &Tally {
        &self.0[class as usize]
    }
}

impl IndexMut<Class> for ByClass {
    fn index_mut(&mut self, class: Class) -> &mut Tally {
        &mut self.0[class as usize]
    }
}

/// Forecasts for single rows, as far as they were of experts that were not in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forecasts {
    /// Experts that they named.
    pub named: u64,
    /// Of these, those that the layer demanded.
    pub right: u64,
    /// Experts that the forecast layers demanded and that were not in memory before the pass.
    pub missing: u64,
}

impl Forecasts {
    /// The part of what was named that was demanded; `None`: nothing was named.
    pub fn precision(&self) -> Option<f64> {
        (self.named > 0).then(|| self.right as f64 / self.named as f64)
    }

    /// The part of what was missing that was named before it was demanded; `None`: nothing was missing.
    pub fn recall(&self) -> Option<f64> {
        (self.missing > 0).then(|| self.right as f64 / self.missing as f64)
    }
}

/// What has come since `earlier` forecasts.
impl Sub for Forecasts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            named: self.named - earlier.named,
            right: self.right - earlier.right,
            missing: self.missing - earlier.missing,
        }
    }
}

/// Counts since the scheduler was made; they only grow.
///
/// A *look-up* is one distinct expert that a layer of a pass demands, judged when the layer is closed. The bytes that a
/// run needed are those of its look-ups that were ahead or missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Look-ups of experts that were in memory without a read by this pass.
    pub resident: Tally,
    /// Look-ups whose read was queued by a forecast, or had been started, when the last strip of the layer was routed; in
    /// a pass of a few rows, started by a forecast.
    pub ahead: Tally,
    /// All other look-ups.
    pub missed: Tally,
    /// Reads that were done.
    pub read: ByClass,
    /// Of these, those whose record no layer of the pass at hand used. The hot set's are never wasted.
    pub wasted: ByClass,
    /// Reads that failed.
    pub failed: ByClass,
    /// Resident records that gave way to another.
    pub evictions: u64,
    /// Forecasts for single rows, made in the layer before theirs, and what became of them.
    pub forecast: Forecasts,
    /// Those made in the layer before that one. The layer's other forecast may have named the same experts.
    pub early_forecast: Forecasts,
}
