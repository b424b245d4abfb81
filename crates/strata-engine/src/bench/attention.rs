//! One token's attention in a long context, at the shape of the published model (spec 1): choice of blocks, and attention
//! over the chosen ones.

use strata_backend::BackendError;
use strata_gguf::TensorType;
use strata_kernels::attention::{Index, KvCache, KvType, Queries, Selections, attend};
use strata_kernels::{Cpu, reserve};

use super::kernels::Unit;
use crate::EngineError;
use crate::synth::blocks::Random;

/// Tokens of context.
const TOKENS: usize = 32_768;
const HEADS: usize = 24;
const KV_HEADS: usize = 2;
const DIM: usize = 256;
const INDEX_HEADS: usize = 4;
const INDEX_DIM: usize = 128;
const BLOCK_TOKENS: usize = 4;
const BUDGET_BLOCKS: usize = 512;
/// Layers that have their turn one after another: what one reads, another has not brought near.
pub(super) const LAYERS: usize = 4;
/// Random numbers that everything is made of.
const POOL: usize = 1 << 20;
/// Tokens that join a cache together.
const PIECE_TOKENS: usize = 256;

/// The caches of some layers, with keys and values kept in one type.
pub(super) struct AttentionBench {
    layers: Vec<(KvCache, Vec<f32>)>,
    pool: Vec<f32>,
    /// Where the next numbers are taken from.
    at: usize,
    selections: Selections,
    out: Vec<f32>,
}

/// What keys and values in this type are kept in.
pub(super) fn kv_type(ty: TensorType) -> Option<KvType> {
    match ty {
        TensorType::F32 => Some(KvType::Float32),
        TensorType::BF16 => Some(KvType::Bfloat16),
        TensorType::Q8_0 => Some(KvType::Q8_0),
        _ => None,
    }
}

impl AttentionBench {
    /// Fills the caches, which takes a few seconds.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub(super) fn new(kv: KvType) -> Result<Self, EngineError> {
        let mut random = Random::named(0, "attention");
        let pool: Vec<f32> = (0..POOL).map(|_| random.normal()).collect();
        let width = KV_HEADS * DIM;
        let mut bench =
            Self { layers: Vec::new(), pool, at: 0, selections: Selections::default(), out: vec![0.0; HEADS * DIM] };
        for _ in 0..LAYERS {
            let bytes = KvCache::bytes(kv, KV_HEADS, DIM, TOKENS);
            let mut cache = KvCache::new(kv, KV_HEADS, DIM, TOKENS)
                .ok_or(BackendError::OutOfMemory { what: "a cache of keys and values", bytes })
                .map_err(strata_model::ModelError::from)?;
            for _ in 0..TOKENS / PIECE_TOKENS {
                let keys = bench.take(PIECE_TOKENS * width);
                let values = bench.take(PIECE_TOKENS * width);
                cache
                    .append(&bench.pool[keys..][..PIECE_TOKENS * width], &bench.pool[values..][..PIECE_TOKENS * width]);
            }
            let len = TOKENS / BLOCK_TOKENS * INDEX_DIM;
            let mut block_keys = reserve(len)
                .ok_or(BackendError::OutOfMemory { what: "the indexer's keys", bytes: 4 * len })
                .map_err(strata_model::ModelError::from)?;
            for _ in 0..TOKENS / BLOCK_TOKENS {
                let key = bench.take(INDEX_DIM);
                block_keys.extend_from_slice(&bench.pool[key..][..INDEX_DIM]);
            }
            bench.layers.push((cache, block_keys));
        }
        Ok(bench)
    }

    /// Where so many numbers of the pool begin, others each time.
    fn take(&mut self, len: usize) -> usize {
        // An odd step, so that numbers come back beside others.
        self.at = (self.at + len + 37) % (POOL - len);
        self.at
    }

    /// A token's attention in one layer.
    pub(super) fn call(&mut self, cpu: &Cpu, layer: usize) -> Unit {
        let (index_queries, queries) = (self.take(INDEX_HEADS * INDEX_DIM), self.take(HEADS * 2 * DIM));
        let (cache, block_keys) = &self.layers[layer];
        let index = Index {
            heads: INDEX_HEADS,
            dim: INDEX_DIM,
            block_tokens: BLOCK_TOKENS,
            budget_blocks: BUDGET_BLOCKS,
            queries: &self.pool[index_queries..][..INDEX_HEADS * INDEX_DIM],
            block_keys,
        };
        self.selections.choose(cpu, TOKENS, &index);
        let values = &self.pool[queries..][..HEADS * 2 * DIM];
        let queries = Queries { values, heads: HEADS, stride: 2 * DIM };
        attend(cpu, cache, &queries, &self.selections, &mut self.out);
        let attended: usize = self.selections.row(0).ranges().map(|range| range.len()).sum();
        Unit {
            flops: 2 * (block_keys.len() * INDEX_HEADS + attended * HEADS * 2 * DIM),
            bytes: KvCache::bytes(cache.kv(), KV_HEADS, DIM, attended) + size_of_val(block_keys.as_slice()),
            weights: attended * 2 * KV_HEADS * DIM,
        }
    }
}

#[cfg(test)]
mod tests {
    use strata_kernels::Isa;

    use super::*;

    #[test]
    fn what_a_token_reads_is_counted() {
        let mut bench = AttentionBench::new(KvType::Q8_0).unwrap();
        let unit = bench.call(&Cpu::precise(Isa::best(), 2).unwrap(), 0);
        // 512 blocks of 4 tokens, and all 8,192 blocks' keys.
        assert_eq!(unit.weights, 2048 * 2 * 2 * 256);
        assert_eq!(unit.bytes, unit.weights / 32 * 34 + 8192 * 128 * 4);
        assert_eq!(unit.flops, 2 * 8192 * 128 * 4 + 4 * 2048 * 24 * 256);
        assert!(bench.out.iter().all(|v| v.is_finite() && *v != 0.0));
    }
}
