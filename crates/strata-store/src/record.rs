//! Where the record of each expert lies: three ranges of bytes in the model's files.

use std::fmt;

use crate::reads::FileRange;

/// One routed expert of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertId {
    /// Layer, from 0.
    pub layer: u32,
    /// Index within the layer, from 0.
    pub index: u32,
}

impl fmt::Display for ExpertId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expert {} of layer {}", self.index, self.layer)
    }
}

/// One of the three matrices of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Gate projection.
    Gate = 0,
    /// Up projection.
    Up = 1,
    /// Down projection.
    Down = 2,
}

impl Part {
    /// In the order in which a record holds them.
    pub const ALL: [Self; 3] = [Self::Gate, Self::Up, Self::Down];
}

/// Where one matrix of every expert of a layer lies: expert `i` at `offset + i * stride_bytes`, `len_bytes` long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartRange {
    /// Index of the file.
    pub file: usize,
    /// Bytes from the start of the file to expert 0's matrix.
    pub offset: u64,
    /// Bytes from one expert's matrix to the next one's.
    pub stride_bytes: u64,
    /// Bytes of one matrix.
    pub len_bytes: u64,
}

impl PartRange {
    /// The matrix of one expert.
    pub fn range(&self, expert: u32) -> FileRange {
        let offset = self.offset + u64::from(expert) * self.stride_bytes;
        FileRange { file: self.file, offset, len_bytes: self.len_bytes as usize }
    }
}

/// The records of one layer.
#[derive(Clone, Debug)]
pub struct LayerRecords {
    /// Experts in the layer.
    pub experts: u32,
    /// Gate, up, down.
    pub parts: [PartRange; 3],
}

impl LayerRecords {
    /// Bytes of one record.
    pub fn record_bytes(&self) -> u64 {
        self.parts.iter().map(|p| p.len_bytes).sum()
    }
}

/// The records of a model: one entry a layer.
#[derive(Clone, Debug)]
pub struct Records {
    /// By layer.
    pub layers: Vec<LayerRecords>,
    /// Experts of a layer that one token uses.
    pub top_k: u32,
}

impl Records {
    /// Experts of all layers.
    pub fn experts(&self) -> u64 {
        self.layers.iter().map(|l| u64::from(l.experts)).sum()
    }

    /// Bytes of all records.
    pub fn total_bytes(&self) -> u64 {
        self.layers.iter().map(|l| u64::from(l.experts) * l.record_bytes()).sum()
    }
}
