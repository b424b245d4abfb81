//! What a prompt may expect of the drive under a plan.

use super::{MachineFacts, ModelShape, Plan, round_up};

/// Reads of a prompt, by the measured habits of routing. Experts that the hot set holds are not read.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Passes that it takes.
    pub passes: u64,
    /// Bytes of experts.
    pub expert_bytes: u64,
    /// Bytes of pages with rows of the n-gram table.
    pub ple_bytes: u64,
    /// The drive's time; `None` when it was not measured.
    pub seconds: Option<f64>,
}

/// How much new a token brings to those before it: `n` tokens touch as many experts as `n ^ CONCENTRATION` tokens that
/// choose independently of each other would.
///
/// Measured on the published model with 512 experts and top-10: 1,023 tokens of a text touch 410 experts of a layer,
/// 2,047 tokens about 470. Solved for the exponent, the two give 0.6355 and 0.6352.
pub(crate) const CONCENTRATION: f64 = 0.635;
/// Part of the arena that stays with the hot set while a prompt streams through the rest.
const HOT_PART: f64 = 0.85;

/// Distinct experts of a layer that `tokens` tokens are expected to use: `E (1 - (1 - k / E) ^ (n ^ c))`, the expectation
/// of a binomial choice for one token, and thinned by the concentration `c` = 0.635 for more.
pub fn touched_experts(experts: u64, top_k: u64, tokens: u64) -> f64 {
    if experts == 0 || tokens == 0 {
        return 0.0;
    }
    let missed = 1.0 - top_k.min(experts) as f64 / experts as f64;
    experts as f64 * (1.0 - missed.powf((tokens as f64).powf(CONCENTRATION)))
}

/// What a prompt of so many tokens may expect of the drive of `machine` under a plan that was made for the two.
pub fn expected(
    shape: &ModelShape,
    machine: &MachineFacts,
    io_depth: u64,
    plan: &Plan,
    prompt_tokens: u64,
) -> Expected {
    let (full, rest) = (prompt_tokens / plan.pass_tokens.max(1), prompt_tokens % plan.pass_tokens.max(1));
    let touched = |tokens| touched_experts(shape.experts, shape.top_k, tokens);
    let cold = if plan.slots == plan.experts { 0.0 } else { 1.0 - HOT_PART * plan.share() };
    // Experts of every layer, each by the bytes of its own records.
    let reads_a_layer = cold * (full as f64 * touched(plan.pass_tokens) + touched(rest));
    let layers_bytes: f64 = shape.part_bytes.iter().flatten().map(|bytes| *bytes as f64).sum();
    let expert_bytes = (reads_a_layer * layers_bytes).round();
    let ple_reads = prompt_tokens.saturating_mul(shape.ple_rows);
    let ple_bytes = ple_reads.saturating_mul(round_up(shape.ple_row_bytes, machine.page_bytes));
    let seconds = machine.drive.filter(|drive| drive.bytes_per_second > 0).map(|drive| {
        // A drive moves so many bytes a second, and answers as many reads at a time as are in flight.
        let answer_s = drive.latency_ns as f64 / 1e9 / io_depth as f64;
        let time = |bytes: f64, reads: f64| (bytes / drive.bytes_per_second as f64).max(reads * answer_s);
        let expert_reads = 3.0 * reads_a_layer * shape.part_bytes.len() as f64;
        time(expert_bytes, expert_reads) + time(ple_bytes as f64, ple_reads as f64)
    });
    Expected {
        prompt_tokens,
        passes: full + u64::from(rest > 0),
        expert_bytes: expert_bytes as u64,
        ple_bytes,
        seconds,
    }
}
