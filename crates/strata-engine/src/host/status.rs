//! What a host is doing, for monitors.

use serde::Serialize;

/// A host at one moment. Counts only grow.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    /// Name of the model.
    pub model: String,
    /// Seconds since the host began.
    pub uptime_s: f64,
    /// Requests that wait.
    pub queued: usize,
    /// The most that may.
    pub queue_limit: usize,
    /// Requests at work.
    pub active: Vec<RequestStatus>,
    /// The most that may be.
    pub parallel: usize,
    /// Tokens of context that each may have.
    pub context_tokens: usize,
    /// Requests that ended with an answer.
    pub done: u64,
    /// Requests that were given up by who asked.
    pub cancelled: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Tokens of prompts, those from kept prefixes among them.
    pub prompt_tokens: u64,
    /// Tokens of prompts that came from kept prefixes.
    pub reused_tokens: u64,
    /// Tokens written.
    pub written_tokens: u64,
    /// Tokens drafted, and those that texts agreed with.
    pub drafted_tokens: u64,
    /// Of these, accepted.
    pub accepted_tokens: u64,
    /// Choices of experts by cache-aware routing: one expert of one layer for one token; 0 without it.
    pub routed_choices: u64,
    /// Of these, those that the router alone would not have made.
    pub substituted_choices: u64,
    /// Router mass that gave way, of 1: the mean over tokens and layers.
    pub substituted_mass: f64,
    /// Mean KL(exact || cached) of the predictions after sampled tokens, in nats.
    pub routing_kl: f64,
    /// Tokens of prompts read per second, over the last seconds.
    pub prompt_tok_s: f64,
    /// Tokens written per second, over the last seconds.
    pub decode_tok_s: f64,
    /// The drive.
    pub drive: DriveStatus,
    /// Look-ups of experts.
    pub lookups: LookupStatus,
    /// The arena.
    pub arena: ArenaStatus,
    /// Memory.
    pub memory: MemoryStatus,
    /// Prefixes kept in memory.
    pub checkpoints: usize,
    /// Their bytes.
    pub checkpoint_bytes: u64,
}

/// A request at work.
#[derive(Clone, Debug, Serialize)]
pub struct RequestStatus {
    /// Number of the request, from 1.
    pub id: u64,
    /// What it is doing.
    pub phase: SequencePhase,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Of these, from a kept prefix.
    pub reused_tokens: usize,
    /// How much of the prompt is read, 0 to 1.
    pub progress: f64,
    /// Tokens written.
    pub written_tokens: usize,
    /// Seconds since it was asked.
    pub age_s: f64,
}

/// What a request at work is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SequencePhase {
    /// Its prompt is read.
    Reading,
    /// Its answer is written.
    Writing,
}

/// What is read from the drive.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DriveStatus {
    /// How it is read.
    pub reader: String,
    /// Bytes read.
    pub read_bytes: u64,
    /// Of these, never used.
    pub wasted_bytes: u64,
    /// Bytes per second, over the last seconds.
    pub bytes_s: f64,
    /// Seconds that computation has waited for reads.
    pub waited_s: f64,
    /// Part of the last seconds in which reads were under way, 0 to 1.
    pub busy: f64,
}

/// Look-ups of experts, in bytes of records.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LookupStatus {
    /// In memory from before.
    pub resident_bytes: u64,
    /// Read, or asked for, before they were demanded.
    pub ahead_bytes: u64,
    /// Neither.
    pub missed_bytes: u64,
}

/// The arena by layer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ArenaStatus {
    /// Slots.
    pub slots: u64,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Experts of a layer.
    pub experts: u64,
    /// Experts of each layer that are in memory.
    pub resident_by_layer: Vec<u32>,
}

/// The plan against what the process has.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MemoryStatus {
    /// What the plan promises, by part, largest first.
    pub plan: Vec<(String, u64)>,
    /// All of it.
    pub plan_bytes: u64,
    /// What the process has in memory.
    pub rss_bytes: u64,
    /// The most that it ever had.
    pub peak_rss_bytes: u64,
}
