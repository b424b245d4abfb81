//! What the processor's passes and states take, without making them.

use strata_kernels::attention::KvCache;
use strata_kernels::gdn;

use super::CpuBackend;
use crate::{PassShape, StateShape};

/// Bytes of a value.
const F32: u64 = size_of::<f32>() as u64;

impl CpuBackend {
    /// Bytes of a state when its context is full.
    pub fn state_bytes(shape: &StateShape) -> u64 {
        let floats = |factors: &[usize]| factors.iter().fold(F32, |bytes, f| bytes.saturating_mul(*f as u64));
        match *shape {
            StateShape::Gdn { value_heads, head_dim, channels, history_rows } => {
                let matrices = gdn::State::bytes(value_heads, head_dim, head_dim) as u64;
                matrices.saturating_add(floats(&[history_rows, channels]))
            }
            StateShape::Ple { channels, history_rows } => floats(&[channels, history_rows]),
            StateShape::Residual { width } => floats(&[width]),
            StateShape::Qsa { context_tokens, kv, kv_heads, head_dim, indexer } => {
                let cache = KvCache::bytes(kv, kv_heads, head_dim, context_tokens) as u64;
                let (dim, block_tokens) = indexer.unwrap_or((0, 1));
                let open = floats(&[block_tokens.min(context_tokens), dim]);
                cache.saturating_add(open).saturating_add(floats(&[context_tokens / block_tokens, dim]))
            }
        }
    }

    /// Bytes of a row of a pass that keeps no details.
    pub fn pass_row_bytes(shape: &PassShape) -> u64 {
        let &PassShape { streams, hidden, top_k, .. } = shape;
        // Streams; layer input and output; write weights; route weights; expert outputs; the shared expert's gate.
        F32 * (streams * hidden + 2 * hidden + streams + top_k + top_k * hidden + 1) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::pass::Pass;
    use super::*;
    use crate::KvType;

    #[test]
    fn a_row_is_what_a_pass_allocates_for_it() {
        let shape = PassShape {
            rows: 7,
            strip_rows: 3,
            streams: 4,
            hidden: 24,
            experts: 9,
            top_k: 3,
            expert_ff: 11,
            keep_details: false,
        };
        let pass = Pass::new(&shape).unwrap();
        let rows = [
            &pass.streams,
            &pass.mixed,
            &pass.inject,
            &pass.output,
            &pass.route_weights,
            &pass.expert_output,
            &pass.shared_gate,
            &pass.expert_hidden,
            &pass.router_logits,
        ];
        let allocated: usize = rows.iter().map(|field| size_of_val(field.all())).sum();
        assert_eq!(7 * CpuBackend::pass_row_bytes(&shape), allocated as u64);
    }

    #[test]
    fn states_take_what_is_said() {
        // 48 matrices of 128 by 128 and three rows of 10,240; narrow ones are padded.
        let gdn = |head_dim| StateShape::Gdn { value_heads: 48, head_dim, channels: 10_240, history_rows: 3 };
        let history = 4 * 3 * 10_240;
        assert_eq!(CpuBackend::state_bytes(&gdn(128)), 4 * 48 * 128 * 128 + history);
        assert_eq!(CpuBackend::state_bytes(&gdn(8)), 4 * 48 * 8 * 32 + history);

        let qsa = |kv, context_tokens, indexer| {
            CpuBackend::state_bytes(&StateShape::Qsa { context_tokens, kv, kv_heads: 2, head_dim: 256, indexer })
        };
        // Keys and values of two heads of 256; a key of 128 for each block of four tokens, and four open ones.
        assert_eq!(qsa(KvType::Float32, 4000, None), 4000 * 2 * 2 * 256 * 4);
        assert_eq!(qsa(KvType::Bfloat16, 4000, None), 4000 * 2 * 2 * 256 * 2);
        assert_eq!(qsa(KvType::Q8_0, 4000, None), 4000 * 2 * 2 * 256 / 32 * 34);
        assert_eq!(qsa(KvType::Bfloat16, 4000, Some((128, 4))), 4000 * 2 * 2 * 256 * 2 + 1004 * 128 * 4);
        assert_eq!(CpuBackend::state_bytes(&StateShape::Ple { channels: 40, history_rows: 9 }), 4 * 360);
        // The longest context of the published model, in its twelve layers: values of the specification's table, and the
        // indexer's keys.
        for (kv, value_bytes) in [(KvType::Float32, 4.0), (KvType::Bfloat16, 2.0), (KvType::Q8_0, 34.0 / 32.0)] {
            let token_bytes = (12_288.0 * value_bytes) as u64 + 12 * 128 * 4 / 4;
            let bytes = 12 * qsa(kv, 262_144, Some((128, 4)));
            assert_eq!(bytes, 262_144 * token_bytes + 12 * 4 * 128 * 4, "{kv:?}");
        }
        assert!(qsa(KvType::Bfloat16, usize::MAX, Some((128, 4))) > 1 << 63);
    }
}
