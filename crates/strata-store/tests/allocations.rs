//! A scheduler allocates nothing after it was made: its tables have fixed sizes. A timeline allocates nothing while a run is
//! recorded, not even when its room is used up.
//!
//! Without the test harness, so that nobody else allocates meanwhile.

#![allow(unsafe_code)] // the allocator that counts

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use strata_store::scheduler::{Class, Limits, Outcome, PassKind, Scheduler, SlotId};
use strata_store::timeline::{Lane, Timeline};
use strata_store::{Demand, ExpertId};

/// The system's allocator, counting what is asked for.
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

const LAYERS: u32 = 5;
const EXPERTS: u32 = 30;

fn main() {
    the_scheduler_does_not_allocate();
    the_timeline_does_not_allocate();
}

fn the_scheduler_does_not_allocate() {
    let all: Vec<_> = (0..EXPERTS).map(|expert| Demand { expert, tokens: 1 + expert % 3 }).collect();
    let hot: Vec<_> = (0..20).map(|index| ExpertId { layer: 1, index }).collect();
    for slots in [13, 24, 100] {
        let record_bytes = vec![1000; LAYERS as usize];
        let limits = Limits { record_bytes, experts: EXPERTS, top_k: 3, slots, depth: 4 };
        let mut scheduler = Scheduler::new(limits, &hot).expect("large enough");
        let before = ALLOCATIONS.load(SeqCst);
        for (i, kind) in [PassKind::Prompt, PassKind::Decode, PassKind::Decode].into_iter().enumerate() {
            // In the first pass all reads fail: as many failures as there can be.
            pass(&mut scheduler, kind, &all, i == 0);
            scheduler.clear_ring();
            scheduler.shrink(slots - i as u32 * slots / 10).expect("large enough");
            while scheduler.next_retired().is_some() {}
        }
        assert_eq!(ALLOCATIONS.load(SeqCst) - before, 0, "allocations with {slots} slots");
        let counts = scheduler.counts();
        assert_eq!(
            counts.resident.records + counts.ahead.records + counts.missed.records,
            u64::from(3 * LAYERS * EXPERTS)
        );
    }
    println!("the scheduler does not allocate");
}

/// A pass in which every layer needs all its experts, and two layers are forecast; every read ends at once.
fn pass(scheduler: &mut Scheduler, kind: PassKind, all: &[Demand], fails: bool) {
    scheduler.begin_pass(kind);
    for layer in 0..LAYERS {
        for ahead in 1..3 {
            scheduler.forecast(layer + ahead, all);
        }
        if kind == PassKind::Decode {
            let mut ranked = [0; EXPERTS as usize];
            ranked.iter_mut().zip(all).for_each(|(index, demand)| *index = demand.expert);
            (1..3).for_each(|ahead| scheduler.forecast_ranked(layer + ahead, &ranked));
            scheduler.expect_idle(9.0);
        }
        for strip in all.chunks(7) {
            scheduler.demand(layer, strip).expect("they exist");
            read(scheduler, fails);
        }
        scheduler.close(layer);
        while scheduler.outstanding() > 0 {
            let mut out = [SlotId { index: 0, generation: 0 }; 3];
            let (mut held, before) = (0, scheduler.outstanding());
            while held < out.len()
                && let Some(outcome) = scheduler.next_outcome()
            {
                if let Outcome::Ready { slot, .. } = outcome {
                    out[held] = slot;
                    held += 1;
                }
            }
            out[..held].iter().for_each(|slot| scheduler.release(*slot));
            let is_fewer = scheduler.outstanding() < before;
            assert!(read(scheduler, fails) > 0 || is_fewer, "no progress");
        }
        scheduler.layer_done(layer);
    }
    scheduler.end_pass();
}

/// Does all reads that find a slot; gives their number.
fn read(scheduler: &mut Scheduler, fails: bool) -> u32 {
    let mut reads = 0;
    while let Some(read) = scheduler.next_read() {
        if fails {
            scheduler.read_failed(read.slot);
        } else {
            scheduler.read_done(read.slot);
        }
        reads += 1;
    }
    reads
}

fn the_timeline_does_not_allocate() {
    let timeline = Timeline::with_room(100);
    let before = ALLOCATIONS.load(SeqCst);
    for _ in 0..2 {
        timeline.begin();
        for layer in 0..150 {
            let start = Instant::now();
            timeline.read(1, layer, Class::Demand, 5, start, Instant::now());
            timeline.span(Lane::Experts, "experts", Some(layer), start, Instant::now());
        }
        timeline.end();
    }
    assert_eq!(ALLOCATIONS.load(SeqCst) - before, 0, "allocations of two runs");
    let run = timeline.take();
    assert_eq!((run.spans.len(), run.dropped), (100, 200));
    println!("the timeline does not allocate");
}
