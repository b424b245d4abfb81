//! The hand-over of the pool, checked under many interleavings: the same source, with the locks of a model checker.

use std::time::Duration;

use shuttle::sync::{Arc, Barrier};
use shuttle::thread;

use hand_over::HandOver;

mod locks {
    pub(super) use shuttle::sync::{Condvar, Mutex, MutexGuard};
}

// On purpose: its locks are those of the module above it.
#[allow(clippy::duplicate_mod)]
#[path = "../hand_over.rs"]
mod hand_over;

/// Waits in the model end by a result, never by time: what is lost shows as a deadlock.
const LONG: Duration = Duration::from_secs(600);

fn workers(count: usize, hand_over: &Arc<HandOver<u32, u32>>) -> Vec<thread::JoinHandle<()>> {
    let work = |hand_over: Arc<HandOver<u32, u32>>| {
        move || {
            while let Some(work) = hand_over.next() {
                thread::yield_now();
                hand_over.finish(10 * work);
            }
        }
    };
    (0..count).map(|_| thread::spawn(work(hand_over.clone()))).collect()
}

fn everything_given_comes_back() {
    let hand_over = Arc::new(HandOver::new(2));
    let threads = workers(2, &hand_over);
    let mut results = Vec::new();
    hand_over.give(&mut vec![1]);
    hand_over.give(&mut vec![2, 3, 4]);
    hand_over.collect(Duration::ZERO, &mut results);
    hand_over.give(&mut vec![]);
    while results.len() < 4 {
        hand_over.collect(LONG, &mut results);
    }
    // The workers sleep by now, and are woken once more.
    hand_over.give(&mut vec![5]);
    while results.len() < 5 {
        hand_over.collect(LONG, &mut results);
    }
    results.sort_unstable();
    assert_eq!(results, [10, 20, 30, 40, 50]);
    hand_over.close();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn closing_sends_everybody_home() {
    let hand_over = Arc::new(HandOver::new(2));
    let threads = workers(3, &hand_over);
    hand_over.give(&mut vec![1, 2]);
    hand_over.close();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let mut results = Vec::new();
    hand_over.collect(Duration::ZERO, &mut results);
    results.sort_unstable();
    results.dedup();
    assert!(results.len() <= 2 && results.iter().all(|r| [10, 20].contains(r)), "{results:?}");
}

#[test]
fn nothing_is_lost_or_done_twice_under_any_interleaving() {
    shuttle::check_random(everything_given_comes_back, 20_000);
    shuttle::check_pct(everything_given_comes_back, 20_000, 3);
}

#[test]
fn workers_go_home_under_any_interleaving() {
    shuttle::check_random(closing_sends_everybody_home, 20_000);
    shuttle::check_pct(closing_sends_everybody_home, 20_000, 3);
}

/// Two pieces of work that can only be done at the same time.
fn every_worker_is_woken() {
    let (hand_over, together) = (Arc::new(HandOver::<(), ()>::new(2)), Arc::new(Barrier::new(2)));
    let work = || {
        let (hand_over, together) = (hand_over.clone(), together.clone());
        move || {
            while let Some(work) = hand_over.next() {
                together.wait();
                hand_over.finish(work);
            }
        }
    };
    let threads = [thread::spawn(work()), thread::spawn(work())];
    let mut results = Vec::new();
    hand_over.give(&mut vec![(), ()]);
    while results.len() < 2 {
        hand_over.collect(LONG, &mut results);
    }
    hand_over.close();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn reads_given_together_are_read_together_under_any_interleaving() {
    shuttle::check_random(every_worker_is_woken, 20_000);
    shuttle::check_pct(every_worker_is_woken, 20_000, 3);
}
