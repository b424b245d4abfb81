//! The port with faults, over real files: whatever it does, the queue reports errors and never wrong bytes.

use std::time::{Duration, Instant};

use super::ports::{bytes, files, names, poisoned, range, read_all};
use crate::StoreError;
use crate::reads::faulty::{Fault, Faults, Faulty, Rule};
use crate::reads::{ReadQueue, ReaderKind, open};

fn rule(bytes: std::ops::Range<u64>, one_in: u32, times: u32, fault: Fault) -> Rule {
    Rule { file: 0, bytes, one_in, times, fault }
}

const FILE_BYTES: usize = 1_000_000;

/// Reads 40 ranges of 20,000 bytes with these faults; gives which of them failed, and how.
fn run(seed: u64, rules: Vec<Rule>) -> Vec<(usize, StoreError)> {
    let (_dir, files) = files(&[FILE_BYTES]);
    let content = std::fs::read(&files[0].0).unwrap();
    let area = poisoned(1 << 20);
    let port = open(ReaderKind::Auto, &files, std::slice::from_ref(&area), 8).unwrap();
    let faults = Faults::default();
    faults.set(rules);
    let port = Faulty::new(port, seed, &faults);
    let mut queue = ReadQueue::new(Box::new(port), names(&files)).with_patience(Duration::from_millis(300));
    assert!(queue.describe().ends_with(", with faults"));
    let reads: Vec<_> = (0..40).map(|i| (range(0, i * 24_000 + i, 20_000), i as usize * 24_576)).collect();
    let done = read_all(&mut queue, &area, &reads);
    let mut failed = Vec::new();
    for ((range, at), done) in reads.iter().zip(done) {
        match done.result {
            Ok(()) => {
                let (got, start) = (at + range.shift(), range.offset as usize);
                assert!(bytes(&area, got..got + 20_000) == &content[start..start + 20_000]);
            }
            Err(error) => failed.push((done.tag as usize, error)),
        }
    }
    failed
}

#[test]
fn faults_that_can_be_forgiven_are() {
    let all = 0..FILE_BYTES as u64;
    assert!(run(1, vec![]).is_empty());
    assert!(run(2, vec![rule(all.clone(), 1, u32::MAX, Fault::Late(Duration::from_millis(3)))]).is_empty());
    assert!(run(3, vec![rule(24_001..40_000, 1, 1, Fault::Error)]).is_empty());
    let rules = vec![
        rule(100_000..100_001, 1, 1, Fault::Error),
        rule(500_000..500_001, 1, 1, Fault::Error),
        rule(all.clone(), 3, 60, Fault::Short),
        rule(all, 5, u32::MAX, Fault::Late(Duration::from_millis(1))),
    ];
    for seed in 0..20 {
        let failed = run(seed, rules.clone());
        assert!(failed.is_empty(), "{failed:?}");
    }
}

#[test]
fn faults_that_last_are_errors_of_the_reads_that_they_strike() {
    let failed = run(4, vec![rule(240_010..240_011, 1, u32::MAX, Fault::Error)]);
    assert!(matches!(&failed[..], [(10, StoreError::Read { got_bytes: 0, .. })]), "{failed:?}");
    let failed = run(5, vec![rule(0..1, 1, 2, Fault::Error), rule(940_000..940_001, 1, 1, Fault::Zero)]);
    assert!(
        matches!(&failed[..], [(0, StoreError::Read { .. }), (39, StoreError::EndOfFile { got_bytes: 0, .. })]),
        "{failed:?}"
    );
}

#[test]
fn a_stuck_read_is_reported_and_does_not_hold_up_the_others() {
    let (_dir, files) = files(&[FILE_BYTES]);
    let area = poisoned(1 << 16);
    let port = open(ReaderKind::Auto, &files, &[], 4).unwrap();
    let faults = Faults::default();
    faults.set(vec![rule(0..1, 1, u32::MAX, Fault::Stuck)]);
    let port = Faulty::new(port, 1, &faults);
    let mut queue = ReadQueue::new(Box::new(port), names(&files)).with_patience(Duration::from_millis(50));
    let mut done = Vec::new();
    for i in 0..3u64 {
        // SAFETY: pages of the area, which outlives the queue.
        unsafe { queue.start(i, range(0, i * 10_000, 100), area.start().add(i as usize * 8192)) };
    }
    while done.len() < 2 {
        queue.take(true, &mut done).unwrap();
    }
    assert!(done.iter().all(|done| done.tag > 0 && done.result.is_ok()));
    let start = Instant::now();
    let error = queue.take(true, &mut done).unwrap_err();
    assert!(matches!(error, StoreError::Stuck { offset: 0, got_bytes: 0, .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
    // The drive answers again.
    faults.set(Vec::new());
    while done.len() < 3 {
        queue.take(false, &mut done).unwrap();
    }
    assert!(done.len() == 3 && done[2].tag == 0 && done[2].result.is_ok());
}

#[test]
fn a_system_that_refuses_is_told_and_may_change_its_mind() {
    let (_dir, files) = files(&[FILE_BYTES]);
    let area = poisoned(1 << 16);
    let faults = Faults::default();
    let port = Faulty::new(open(ReaderKind::Auto, &files, &[], 4).unwrap(), 1, &faults);
    let mut queue = ReadQueue::new(Box::new(port), names(&files));
    // SAFETY: pages of the area, which outlives the queue.
    unsafe { queue.start(0, range(0, 500, 100), area.start()) };
    faults.refuse(true);
    let mut done = Vec::new();
    for result in [queue.submit(), queue.take(false, &mut done), queue.take(true, &mut done)] {
        assert!(matches!(result, Err(StoreError::Port { .. })), "{result:?}");
    }
    faults.refuse(false);
    queue.take(true, &mut done).unwrap();
    assert!(done.len() == 1 && done[0].result.is_ok());
}

/// A megabyte at twenty a second; less is for the drive to be slower, never faster.
#[test]
fn a_slow_drive_takes_its_time_and_reads_right() {
    let (_dir, files) = files(&[FILE_BYTES]);
    let content = std::fs::read(&files[0].0).unwrap();
    let area = poisoned(1 << 20);
    let faults = Faults::default();
    faults.slow_down(Some(20e6));
    let port = Faulty::new(open(ReaderKind::Auto, &files, std::slice::from_ref(&area), 8).unwrap(), 1, &faults);
    let mut queue = ReadQueue::new(Box::new(port), names(&files));
    let reads: Vec<_> = (0..40).map(|i| (range(0, i * 24_576, 24_576), i as usize * 24_576)).collect();
    let start = Instant::now();
    assert!(read_all(&mut queue, &area, &reads).iter().all(|done| done.result.is_ok()));
    assert!(start.elapsed() >= Duration::from_secs_f64(40.0 * 24_576.0 / 20e6));
    assert!(bytes(&area, 0..40 * 24_576) == &content[..40 * 24_576]);
}
