//! Attention of the published model's shape: `cargo bench -p strata-kernels --bench attention`.
//!
//! Strips of 256 rows and single rows at several positions, by what keys and values are kept in, on all threads: time of a
//! row's choice of blocks and of its attention, the rate of the latter, and for single rows the bytes that it must read by
//! time. The figures are medians.

use std::hint::black_box;
use std::time::Instant;

use strata_kernels::attention::{Index, KvCache, KvType, Queries, Selections, attend};
use strata_kernels::{Cpu, Isa};

const HEADS: usize = 24;
const KV_HEADS: usize = 2;
const DIM: usize = 256;
const INDEX_HEADS: usize = 4;
const INDEX_DIM: usize = 128;
const BLOCK_TOKENS: usize = 4;
const BUDGET_BLOCKS: usize = 512;

fn main() {
    let cpu = Cpu::fast(Isa::best(), 0).unwrap();
    println!(
        "{:>9} {:>5} {:>7} {:>10} {:>10} {:>8} {:>8}",
        cpu.arithmetic().to_string(),
        "rows",
        "first",
        "choice us",
        "attend us",
        "GFLOP/s",
        "GB/s"
    );
    for kv in KvType::ALL {
        for (rows, first, samples) in [
            (256, 0, 9),
            (256, 1024, 9),
            (256, 2048, 9),
            (256, 4096, 9),
            (256, 32768, 5),
            (1, 1024, 201),
            (1, 4096, 201),
            (1, 32768, 201),
        ] {
            measure(&cpu, kv, rows, first, samples);
        }
    }
}

fn measure(cpu: &Cpu, kv: KvType, rows: usize, first: usize, samples: usize) {
    let mut random = Random(1);
    let tokens = first + rows;
    let mut cache = KvCache::new(kv, KV_HEADS, DIM, tokens).unwrap();
    for _ in 0..tokens {
        let width = KV_HEADS * DIM;
        cache.append(&random.floats(width), &random.floats(width));
    }
    let index = Index {
        heads: INDEX_HEADS,
        dim: INDEX_DIM,
        block_tokens: BLOCK_TOKENS,
        budget_blocks: BUDGET_BLOCKS,
        queries: &random.floats(rows * INDEX_HEADS * INDEX_DIM),
        block_keys: &random.floats(tokens / BLOCK_TOKENS * INDEX_DIM),
    };
    let queries = Queries { values: &random.floats(rows * HEADS * 2 * DIM), heads: HEADS, stride: 2 * DIM };
    let mut out = vec![0.0; rows * HEADS * DIM];
    let mut selections = Selections::default();
    // Single rows find nothing in the near caches: a layer of a model comes once a token.
    let other = vec![1u64; if rows == 1 { 8 << 20 } else { 0 }];
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..samples {
        black_box(other.iter().sum::<u64>());
        let start = Instant::now();
        selections.choose(cpu, first + 1, black_box(&index));
        times[0].push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        attend(cpu, &cache, &queries, &selections, black_box(&mut out));
        times[1].push(start.elapsed().as_secs_f64());
    }
    let [choice, attention] = times.map(|mut t| {
        t.sort_by(f64::total_cmp);
        t[t.len() / 2]
    });
    let attended: usize = (0..rows).map(|row| selections.row(row).ranges().map(|r| r.len()).sum::<usize>()).sum();
    let rate = (attended * HEADS * DIM * 4) as f64 / attention / 1e9;
    let index_bytes = if selections.row(0).blocks().is_some() { index.block_keys.len() * 4 } else { 0 };
    let bytes = KvCache::bytes(kv, KV_HEADS, DIM, attended) + index_bytes;
    let bandwidth = if rows == 1 { bytes as f64 / (choice + attention) / 1e9 } else { f64::NAN };
    let [choice, attention] = [choice, attention].map(|t| t / rows as f64 * 1e6);
    let kv = kv.name();
    println!("{kv:>9} {rows:5} {first:7} {choice:10.1} {attention:10.1} {rate:8.1} {bandwidth:8.1}");
}

/// Values in `-1 .. 1` of a linear congruential generator.
struct Random(u64);

impl Random {
    fn floats(&mut self, len: usize) -> Vec<f32> {
        let mut next = || {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next()).collect()
    }
}
