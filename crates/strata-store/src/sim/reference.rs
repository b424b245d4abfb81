//! The reference: what an engine of this design was measured to do before and after it read ahead, and the machine and
//! policies that should give the same here.
//!
//! One set of parameters for the whole table. Each is a measured figure of that machine, follows from such, or was fitted
//! or assumed and says so. Two numbers were fitted, [`RANKED`] and [`UNEXPLAINED_NS`].

use super::random::Random;
use super::{Compute, Drive, Habits, Lookahead, Machine, Policy, Ranking, Report, Synthetic, Trace, simulate};
use crate::ExpertId;

/// Layers of the reference's model.
pub const LAYERS: u32 = 48;
/// Experts of each.
pub const EXPERTS: u32 = 512;
/// Experts that a row uses in a layer.
pub const TOP_K: u32 = 10;
/// Bytes of a record.
pub const RECORD_BYTES: u64 = 1_474_000;
/// Rows of the chunk whose times were measured.
const CHUNK_ROWS: f64 = 1024.0;

/// How much the popularity of experts in general says about their use in a text. Fitted to the share of look-ups that a
/// static ranking read ahead, 50.9 %.
pub const RANKED: f64 = 0.65;
/// Share of a token's ten experts that the next layer's router foresees, measured on this model.
pub const FORESEEN: f64 = 0.595;
/// Time of a chunk that was neither the GPU's nor spent waiting for reads. Fitted to the first line of the table, and to the
/// last, by which it grows with rows.
pub const UNEXPLAINED_NS: f64 = 0.57e9;

/// The reference's machine, a fanless laptop: its figures.
pub fn machine() -> Machine {
    let slots = (6.5e9 / RECORD_BYTES as f64) as u32;
    Machine {
        drive: Drive {
            // 7.97 to 8.05 GB/s at 4, 8 and 16 threads; the engine has 8.
            bytes_per_second: 8.0e9,
            depth: 8,
            // Of a 4 KiB read, on another machine of the same make.
            latency_ns: 53_600,
            // 150 ms for a chunk; 80 ms were gained by reading beside.
            ple_token_ns: 150e6 / CHUNK_ROWS,
            ple_share: (150.0 - 80.0) / 150.0,
        },
        compute: compute(),
        record_bytes: RECORD_BYTES,
        slots,
        // 14.8 % of the look-ups were resident. Assumed: residents are no more popular than others, so they are 14.8 % of all
        // experts. What is left has room for twice what a layer needs.
        hot_slots: (0.148 * f64::from(LAYERS * EXPERTS)) as u32,
    }
}

/// The GPU took 2.0 to 2.4 s for a chunk, 737 of 1,967 ms of it for experts. Assumed: all of it grows with rows.
fn compute() -> Compute {
    let row_ns = (2.2e9 + UNEXPLAINED_NS) / CHUNK_ROWS / f64::from(LAYERS);
    let of_experts = (442.0 + 130.0 + 165.0) / 1967.0;
    Compute {
        layer_ns: 0.0,
        mixer_row_ns: row_ns * (1.0 - of_experts),
        expert_ns: 0.0,
        expert_row_ns: row_ns * of_experts / f64::from(TOP_K),
        prompt_ns: 0.0,
    }
}

/// What a prompt took beside its chunks: 1,024 tokens at 281 to 286 a second had a chunk of 3,440 to 3,497 ms.
const PROMPT_NS: f64 = 145e6;

/// The reference before: 256 experts of a static ranking, 128 from layer 40 on, queued after the wait.
pub fn before(pass_tokens: u32) -> Policy {
    Policy {
        pass_tokens,
        lookahead: Lookahead::Profile { cap: 256, late_layer: 40, late_cap: 128 },
        queues_after_wait: true,
        // It read 11.2 K experts ahead: all that the caps allow.
        finishes_ahead: true,
        waits_for_all: true,
        ple_first: true,
    }
}

/// The reference after: all that the next router says, queued before the wait; table rows beside compute.
pub fn after(pass_tokens: u32) -> Policy {
    Policy {
        lookahead: Lookahead::Router { min_tokens: 1 },
        queues_after_wait: false,
        ple_first: false,
        ..before(pass_tokens)
    }
}

/// Strata: what is not needed any more is not read, and experts are computed as they arrive.
pub fn strata(pass_tokens: u32) -> Policy {
    Policy { finishes_ahead: false, waits_for_all: false, ..after(pass_tokens) }
}

/// A text for the reference's model.
pub fn text(tokens: u32, strip_rows: u32, seed: u64) -> (Trace, Ranking) {
    let habits = Habits { foreseen: FORESEEN, ranked: RANKED };
    Synthetic { layers: LAYERS, experts: EXPERTS, top_k: TOP_K, tokens, strip_rows, habits, seed }.routes()
}

/// Residents that are no more popular than others.
pub fn any_experts(seed: u64, layers: u32, experts: u32) -> Vec<ExpertId> {
    let mut all: Vec<_> =
        (0..layers).flat_map(|layer| (0..experts).map(move |index| ExpertId { layer, index })).collect();
    Random::new(!seed).shuffle(&mut all);
    all
}

/// A line of the reference's table.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Rows that went through the layers together: a prompt's last token does not.
    pub rows: u32,
    /// Rows of a chunk.
    pub chunk: u32,
    /// After it read ahead.
    pub is_after: bool,
    /// The whole prompt was measured, and not its chunks.
    pub is_whole: bool,
    /// What was measured, from ...
    pub low_ms: f64,
    /// ... to.
    pub high_ms: f64,
}

impl Measured {
    /// The same, simulated.
    pub fn simulate(&self, seed: u64) -> Report {
        let mut machine = machine();
        machine.compute.prompt_ns = if self.is_whole { PROMPT_NS } else { 0.0 };
        let (trace, ranking) = text(self.rows, self.chunk, seed);
        let policy = if self.is_after { after(self.chunk) } else { before(self.chunk) };
        simulate(&trace, &machine, &policy, &any_experts(seed, LAYERS, EXPERTS), Some(&ranking))
            .expect("the arena is large enough")
    }
}

/// The reference's table.
pub fn table() -> Vec<Measured> {
    let line = |rows, chunk, is_after, is_whole, low_ms, high_ms| Measured {
        rows,
        chunk,
        is_after,
        is_whole,
        low_ms,
        high_ms,
    };
    vec![
        line(1023, 1024, false, false, 4016.0, 4521.0),
        line(1023, 1024, true, false, 3440.0, 3497.0),
        line(243, 1024, false, false, 2504.0, 2638.0),
        line(243, 1024, true, false, 2207.0, 2338.0),
        line(2047, 1024, false, true, 8196.0, 8196.0),
        line(2047, 1024, true, true, 7309.0, 7309.0),
        line(2047, 2048, true, true, 5980.0, 5980.0),
    ]
}
