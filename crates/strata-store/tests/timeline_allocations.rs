//! A timeline allocates nothing while a run is recorded, not even when its room is used up.
//!
//! Without the test harness, so that nobody else allocates meanwhile.

#![allow(unsafe_code)] // the allocator that counts

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use strata_store::scheduler::Class;
use strata_store::timeline::{Lane, Timeline};

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

fn main() {
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
