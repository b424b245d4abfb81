//! Times of the parts of a layer that are not products or attention, at the sizes of the first model, for a strip of 256
//! rows and for a single token: `cargo bench -p strata-kernels --bench layer [-- THREADS]`.
//!
//! Each figure is the fastest of many samples, in microseconds a row. Buffers are the same in every sample, so that a strip
//! comes from the last-level cache, as it does in a pass; the recurrence of single tokens walks through the states of many
//! layers, which no cache holds.

use std::hint::black_box;
use std::time::Instant;

use strata_kernels::conv::Window;
use strata_kernels::experts::{Combined, combine};
use strata_kernels::{Cpu, Isa, gdn, hyper, norm, ple, route};

const HIDDEN: usize = 2560;
const STREAMS: usize = 4;
const WIDE: usize = STREAMS * HIDDEN;
const LOW_RANK: usize = 320;
const KEY_HEADS: usize = 16;
const VALUE_HEADS: usize = 48;
const DIM: usize = 128;
const TAPS: usize = 4;
const EXPERTS: usize = 512;
const TOP_K: usize = 10;
/// 36 layers of 3 MB.
const STATES: usize = 36;
/// Of a strip; single rows are shorter, and there are more of them.
const SAMPLES: usize = 31;

fn main() {
    let threads = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(1);
    println!("{:>28} {:>10} {:>10}   {threads} threads, us a row", "", "256 rows", "1 row");
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        println!("{isa}");
        let cpu = Cpu::precise(isa, threads).expect("it is available");
        let many = times(&cpu, 256);
        for ((what, many), (_, one)) in many.into_iter().zip(times(&cpu, 1)) {
            println!("{what:>28} {many:10.2} {one:10.2}");
        }
    }
}

fn times(cpu: &Cpu, rows: usize) -> Vec<(&'static str, f64)> {
    let isa = cpu.isa();
    let mut random = Random(1);
    let (x, normed, up) = (random.floats(rows * WIDE), random.floats(rows * WIDE), random.floats(rows * WIDE));
    let (gamma, taps) = (random.floats(WIDE), random.floats(TAPS * WIDE));
    let (y, inject) = (random.floats(rows * HIDDEN), random.floats(rows * STREAMS));
    let (mut wide, mut narrow) = (vec![0.0; rows * WIDE], vec![0.0; rows * HIDDEN]);
    let mut out = Vec::new();
    let samples = if rows == 1 { 32 * SAMPLES } else { SAMPLES };
    let mut time = |what, f: &mut dyn FnMut()| out.push((what, fastest_us(f, samples) / rows as f64));

    time("grouped norm", &mut || norm::grouped_rms(cpu, black_box(&x), &gamma, HIDDEN, 1e-6, &mut wide));
    let mut down = random.floats(rows * LOW_RANK);
    time("gate activation", &mut || hyper::gate_activation(cpu, black_box(&mut down), STREAMS));
    time("mix", &mut || hyper::mix(cpu, black_box(&up), &normed, HIDDEN, &mut narrow));
    let mut raw = random.floats(rows * STREAMS);
    time("inject weights", &mut || hyper::inject_weights(isa, black_box(&mut raw), STREAMS));
    time("write", &mut || hyper::write(cpu, black_box(&mut wide), &inject, &y, HIDDEN));

    let shape = gdn::HeadShape { key_heads: KEY_HEADS, value_heads: VALUE_HEADS, dim: DIM };
    let mut heads = vec![0.0; rows * WIDE];
    let row = |t: usize| &x[t * WIDE..][..WIDE];
    let window = |t: usize| Window::new(TAPS, |back| row(t.saturating_sub(back)));
    time("convolution, l2 norms", &mut || gdn::convolve_heads(cpu, shape, black_box(&taps), window, &mut heads));
    let (a, dt_bias) = (random.floats(VALUE_HEADS), random.floats(VALUE_HEADS));
    let (mut alpha, mut beta) = (random.floats(rows * VALUE_HEADS), random.floats(rows * VALUE_HEADS));
    time("gates", &mut || gdn::gates(cpu, &a, &dt_bias, black_box(&mut alpha), &mut beta));
    let values_len = rows * VALUE_HEADS * DIM;
    let mut by_head = vec![0.0; values_len];
    let matrix = random.floats(DIM * DIM);
    let state = |_| {
        let mut state = gdn::State::new(VALUE_HEADS, DIM, DIM).expect("memory for a state");
        (0..VALUE_HEADS).for_each(|h| state.write(h, &matrix));
        state
    };
    let mut states: Vec<_> = (0..if rows == 1 { STATES } else { 1 }).map(state).collect();
    alpha.iter_mut().for_each(|g| *g = -0.1 * g.abs());
    beta.iter_mut().for_each(|b| *b = b.abs());
    let (queries, rest) = heads.split_at(rows * KEY_HEADS * DIM);
    let (keys, values) = rest.split_at(rows * KEY_HEADS * DIM);
    let strip = gdn::Strip {
        queries,
        keys,
        values,
        log_decay: &alpha,
        beta: &beta,
        key_heads: KEY_HEADS,
        value_heads: VALUE_HEADS,
    };
    let mut layer = 0;
    time("recurrence", &mut || {
        layer = (layer + 1) % states.len();
        gdn::recurrent(cpu, black_box(&strip), &mut states[layer], &mut by_head);
    });
    let (z, mut gated) = (random.floats(values_len), vec![0.0; values_len]);
    let gamma_head = &gamma[..DIM];
    time("output norm, gate", &mut || {
        gdn::norm_and_gate(cpu, black_box(&by_head), VALUE_HEADS, gamma_head, 1e-6, &z, &mut gated);
    });

    let logits = random.floats(rows * EXPERTS);
    let (mut ids, mut weights) = (vec![0; rows * TOP_K], vec![0.0; rows * TOP_K]);
    time("choice of experts", &mut || route::choose_rows(cpu, black_box(&logits), EXPERTS, &mut ids, &mut weights));
    let outputs = random.floats(rows * TOP_K * HIDDEN);
    let shared_gate = random.floats(rows);
    let combined = Combined { weights: &weights, outputs: &outputs, shared_gate: &shared_gate, shared: &y };
    time("combine", &mut || combine(cpu, black_box(&combined), &mut narrow));

    let gammas = ple::Gammas { key: &gamma, query: &gamma, conv: &gamma };
    let mut gates = vec![0.0; rows * STREAMS];
    time("n-gram gates", &mut || {
        ple::gates(cpu, &gammas, 1e-6, black_box(&up), &x, &y, &mut gates, &mut heads);
    });
    time("n-gram convolution", &mut || ple::add(cpu, black_box(&taps), window, &gates, &y, &mut wide));
    out
}

fn fastest_us(f: &mut dyn FnMut(), samples: usize) -> f64 {
    let mut fastest = f64::INFINITY;
    for _ in 0..samples {
        let start = Instant::now();
        f();
        fastest = fastest.min(start.elapsed().as_secs_f64() * 1e6);
    }
    fastest
}

/// A linear congruential generator.
struct Random(u64);

impl Random {
    /// In `-1 .. 1`.
    fn floats(&mut self, len: usize) -> Vec<f32> {
        let mut next = || {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next()).collect()
    }
}
