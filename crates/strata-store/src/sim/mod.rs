//! The simulator: a prompt in virtual time, and decode as a sequence of look-ups.
//!
//! Owns: models of a drive and of compute, routes to feed them with (made up or recorded), the loop that drives the
//! real [`Scheduler`](crate::scheduler::Scheduler) through the layers of a pass as the engine does, and caches to compare
//! it with ([`replay`]). Promises: the same
//! arguments give the same report; no file makes it panic or take more memory than its size explains. Refuses: to be more
//! exact than its numbers: machines vary by more than what it leaves out.

mod cache;
mod drive;
mod file;
mod random;
pub mod reference;
pub mod replay;
mod run;
mod synthetic;
mod trace;

pub use cache::{Cache, Eviction};
pub use file::TraceError;
pub use run::simulate;
pub use synthetic::{Habits, Synthetic};
pub use trace::{LayerRoutes, Ranking, Strip, Trace};

use crate::scheduler::{Class, Counts};

/// A machine as the simulator sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The drive.
    pub drive: Drive,
    /// What computes.
    pub compute: Compute,
    /// Bytes of a record.
    pub record_bytes: u64,
    /// Slots of the arena.
    pub slots: u32,
    /// Of these, slots of the hot set. At most as many as leave the smallest legal arena.
    pub hot_slots: u32,
}

/// A drive: reads share its bandwidth in the order in which they are started, and each has its latency on top.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drive {
    /// Bytes that it reads in a second, above 0.
    pub bytes_per_second: f64,
    /// From the end of a read's transfer to its arrival.
    pub latency_ns: u64,
    /// Most reads of records at a time, at least 1.
    pub depth: u32,
    /// Time of the reads of n-gram table rows for a token, when nothing else is read.
    pub ple_token_ns: f64,
    /// Part of the drive that these reads take from those of records while they run beside, 0 to below 1.
    pub ple_share: f64,
}

/// What computes: one thing at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compute {
    /// A layer of a pass, whatever its rows: launching, waiting for routes, and so on.
    pub layer_ns: f64,
    /// Mixer, router, shared expert and streams, for a row and layer.
    pub mixer_row_ns: f64,
    /// An expert, whatever its rows.
    pub expert_ns: f64,
    /// A row of an expert.
    pub expert_row_ns: f64,
    /// A prompt outside its passes.
    pub prompt_ns: f64,
}

/// What is read, and when.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Most rows of a pass; more when a strip has more.
    pub pass_tokens: u32,
    /// Where read-ahead comes from.
    pub lookahead: Lookahead,
    /// Read-ahead is queued only when the last expert of the layer at hand has arrived, and not with its demand.
    pub queues_after_wait: bool,
    /// Read-ahead that was queued is read even when its layer turns out not to need it.
    pub finishes_ahead: bool,
    /// The experts of a layer are computed when all have arrived, and not each when it has arrived.
    pub waits_for_all: bool,
    /// Rows of the n-gram table are read before the first layer, and not beside it until the layer that uses them.
    pub ple_first: bool,
}

/// Where read-ahead comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookahead {
    /// There is none.
    Off,
    /// From a static ranking: the first so many of a layer that are not in the hot set.
    Profile {
        /// How many.
        cap: u32,
        /// From this layer on ...
        late_layer: u32,
        /// ... only so many.
        late_cap: u32,
    },
    /// From what the next layer's router says about this layer's rows.
    Router {
        /// Only experts that so many rows are expected to use.
        min_tokens: u32,
    },
}

/// What became of a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Tokens of the prompt.
    pub tokens: u64,
    /// Passes that it took.
    pub passes: u64,
    /// From beginning to end. The hot set is loaded before.
    pub wall_ns: u64,
    /// Needed bytes over the drive's bandwidth.
    pub drive_floor_ns: u64,
    /// All that was computed.
    pub compute_floor_ns: u64,
    /// Time in which nothing was computed because experts were missing.
    pub expert_wait_ns: u64,
    /// The same for rows of the n-gram table.
    pub ple_wait_ns: u64,
    /// Look-ups and reads.
    pub counts: Counts,
}

impl Report {
    /// Wall time over the larger floor.
    pub fn ratio(&self) -> f64 {
        self.wall_ns as f64 / self.drive_floor_ns.max(self.compute_floor_ns).max(1) as f64
    }

    /// Bytes of look-ups that were not in memory.
    pub fn needed_bytes(&self) -> u64 {
        self.counts.ahead.bytes + self.counts.missed.bytes
    }

    /// Bytes that were read for the prompt.
    pub fn read_bytes(&self) -> u64 {
        self.counts.read[Class::Demand].bytes + self.counts.read[Class::ReadAhead].bytes
    }

    /// Bytes that were read for nothing.
    pub fn wasted_bytes(&self) -> u64 {
        self.counts.wasted[Class::Demand].bytes + self.counts.wasted[Class::ReadAhead].bytes
    }
}
