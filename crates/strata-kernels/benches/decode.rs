//! Weights decoded per second, for every type and instruction set: `cargo bench -p strata-kernels --bench decode`.
//!
//! Each call decodes 16 rows of 1,024 weights, as a product does, into one buffer; the encoded rows walk through 8 MiB of
//! distinct random blocks. The figure is the median of 31 samples of at least one walk.

use std::hint::black_box;
use std::time::Instant;

use strata_gguf::TensorType;
use strata_kernels::Isa;
use strata_kernels::decode::decode_blocks;

const PANEL_WEIGHTS: usize = 16 * 1024;
const WALK_BYTES: usize = 8 << 20;
const SAMPLES: usize = 31;

fn main() {
    let isas: Vec<Isa> = Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect();
    print!("{:8}", "G/s");
    isas.iter().for_each(|isa| print!("{:>10}", isa.name()));
    println!();
    for &ty in TensorType::ALL {
        print!("{:8}", ty.name());
        for &isa in &isas {
            print!("{:10.2}", median_rate(isa, ty) / 1e9);
        }
        println!();
    }
}

/// Weights per second.
fn median_rate(isa: Isa, ty: TensorType) -> f64 {
    let panel_bytes = PANEL_WEIGHTS / ty.block_weights() * ty.block_bytes();
    let panels = WALK_BYTES / panel_bytes;
    let bytes = random_bytes(panels * panel_bytes);
    let mut out = vec![0.0; PANEL_WEIGHTS];
    let mut rates: Vec<f64> = (0..SAMPLES)
        .map(|_| {
            let start = Instant::now();
            for panel in bytes.chunks_exact(panel_bytes) {
                decode_blocks(isa, ty, black_box(panel), black_box(&mut out));
            }
            (panels * PANEL_WEIGHTS) as f64 / start.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[SAMPLES / 2]
}

/// Bytes of a linear congruential generator.
fn random_bytes(len: usize) -> Vec<u8> {
    let mut x = 1u64;
    let mut next = || {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (x >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}
