//! The operations around a layer's products allocate nothing: a strip comes thousands of times in a prompt, and memory that
//! is asked for anew is zeroed and mapped anew.
//!
//! Without the test harness, so that nobody else allocates meanwhile.

#![allow(unsafe_code)] // the allocator that counts

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use strata_kernels::attention::{KvCache, KvType};
use strata_kernels::conv::Window;
use strata_kernels::experts::{Combined, combine};
use strata_kernels::{Cpu, Isa, gdn, hyper, norm, ple, route};

/// The system's allocator, counting what all threads ask for.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the system's allocator as they come.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const HIDDEN: usize = 600;
const STREAMS: usize = 4;
const WIDE: usize = STREAMS * HIDDEN;
const SHAPE: gdn::HeadShape = gdn::HeadShape { key_heads: 2, value_heads: 6, dim: 40 };
const TAPS: usize = 4;
const EXPERTS: usize = 50;
const TOP_K: usize = 10;

fn main() {
    for threads in [1, 2, 5] {
        for rows in [1, 33] {
            let cpu = Cpu::precise(Isa::best(), threads).expect("the best one is available");
            // Threads allocate when they start: each must have begun, that is, wait in a task of its own.
            let barrier = Barrier::new(threads);
            cpu.for_rows(&mut vec![(); threads], 1, |_, _| _ = barrier.wait());
            check(&cpu, rows);
        }
    }
    println!("no operation allocates");
    #[cfg(target_os = "linux")]
    caches_take_memory_as_tokens_come();
}

/// A cache for 262,144 tokens of the published model takes a gigabyte in float32 once it is full, and next to nothing when
/// it has some tokens.
#[cfg(target_os = "linux")]
fn caches_take_memory_as_tokens_come() {
    let resident_bytes = || {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
        4096 * statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("resident pages")
    };
    for kv in KvType::ALL {
        let before = resident_bytes();
        let mut cache = KvCache::new(kv, 2, 256, 262_144).expect("no memory is used yet");
        cache.append(&vec![1.0; 100 * 512], &vec![1.0; 100 * 512]);
        let taken = resident_bytes().saturating_sub(before);
        assert!(taken < 8 << 20, "{kv:?}: {taken} bytes for 100 tokens");
        assert!(KvCache::bytes(kv, 2, 256, 262_144) > 256 << 20);
    }
}

/// Runs every operation twice; the second time must not allocate.
fn check(cpu: &Cpu, rows: usize) {
    let values = |len: usize| -> Vec<f32> { (0..len).map(|i| (i % 23) as f32 * 0.1 - 1.0).collect() };
    let never = |what: &str, operation: &mut dyn FnMut()| {
        operation();
        let before = ALLOCATIONS.load(SeqCst);
        operation();
        let allocations = ALLOCATIONS.load(SeqCst) - before;
        assert_eq!(allocations, 0, "{what}: {rows} rows on {} threads", cpu.threads());
    };
    let (gamma, wide_rows, narrow_rows) = (values(WIDE), values(rows * WIDE), values(rows * HIDDEN));
    let (mut wide, mut narrow) = (values(rows * WIDE), values(rows * HIDDEN));
    let mut by_stream = values(rows * STREAMS);

    never("grouped norm", &mut || norm::grouped_rms(cpu, &wide_rows, &gamma, HIDDEN, 1e-6, &mut wide));
    never("gate activation", &mut || hyper::gate_activation(cpu, &mut narrow, STREAMS));
    never("mix", &mut || hyper::mix(cpu, &wide_rows, &wide_rows, HIDDEN, &mut narrow));
    never("inject weights", &mut || hyper::inject_weights(cpu.isa(), &mut by_stream, STREAMS));
    never("write", &mut || hyper::write(cpu, &mut wide, &by_stream, &narrow_rows, HIDDEN));

    let gdn::HeadShape { key_heads, value_heads, dim } = SHAPE;
    let channels = (2 * key_heads + value_heads) * dim;
    let (taps, inputs, mut heads) = (values(TAPS * channels), values(rows * channels), values(rows * channels));
    let window = |t: usize| Window::new(TAPS, |back| &inputs[t.saturating_sub(back) * channels..][..channels]);
    never("convolution", &mut || gdn::convolve_heads(cpu, SHAPE, &taps, window, &mut heads));
    let (mut alpha, mut beta) = (values(rows * value_heads), values(rows * value_heads));
    let (a, dt_bias) = (values(value_heads), values(value_heads));
    never("gates", &mut || gdn::gates(cpu, &a, &dt_bias, &mut alpha, &mut beta));
    let mut state = gdn::State::new(value_heads, dim, dim).expect("memory for a state");
    let (queries, rest) = heads.split_at(rows * key_heads * dim);
    let (keys, vectors) = rest.split_at(rows * key_heads * dim);
    let strip = gdn::Strip { queries, keys, values: vectors, log_decay: &alpha, beta: &beta, key_heads, value_heads };
    let mut out = values(vectors.len());
    never("recurrence", &mut || gdn::recurrent(cpu, &strip, &mut state, &mut out));
    let mut gated = values(out.len());
    never("norm and gate", &mut || {
        gdn::norm_and_gate(cpu, &out, value_heads, &gamma[..dim], 1e-6, vectors, &mut gated);
    });

    let logits = values(rows * EXPERTS);
    let (mut ids, mut weights) = (vec![0; rows * TOP_K], values(rows * TOP_K));
    never("route", &mut || route::choose_rows(cpu, &logits, EXPERTS, &mut ids, &mut weights));
    let (outputs, shared_gate) = (values(rows * TOP_K * HIDDEN), values(rows));
    let combined = Combined { weights: &weights, outputs: &outputs, shared_gate: &shared_gate, shared: &narrow_rows };
    never("combine", &mut || combine(cpu, &combined, &mut narrow));

    let gammas = ple::Gammas { key: &gamma, query: &gamma, conv: &gamma };
    never("n-gram gates", &mut || {
        ple::gates(cpu, &gammas, 1e-6, &wide_rows, &wide_rows, &narrow_rows, &mut by_stream, &mut wide);
    });
    let taps = values(TAPS * WIDE);
    let window = |t: usize| Window::new(TAPS, |back| &wide_rows[t.saturating_sub(back) * WIDE..][..WIDE]);
    never("n-gram convolution", &mut || ple::add(cpu, &taps, window, &by_stream, &narrow_rows, &mut wide));
}
