//! The queue over a port that does as it is told.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::POISON;
use crate::reads::{Done, Ended, FileRange, Port, PortRead, ReadQueue};
use crate::{Area, PAGE_BYTES, StoreError};

const EIO: i32 = 5;
const EINTR: i32 = 4;

/// What becomes of a part of a read.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// So many bytes beyond what has come before.
    Gain(usize),
    /// So many bytes, counted from where the part begins.
    Give(usize),
    Error(i32),
    /// Nothing, until the test ends it.
    Stuck,
}

/// A port over one file in memory, which it shows under many indices: each has a script of its own. After the script, reads
/// give all there is.
struct Scripted {
    content: Vec<u8>,
    scripts: Vec<VecDeque<Step>>,
    /// How far into the file each index was read.
    reached: Vec<usize>,
    under_way: Vec<(PortRead, Step)>,
    depth: usize,
    /// Whether reads that are stuck end.
    is_released: Arc<Mutex<bool>>,
    /// Chooses which reads end next.
    order: u64,
    /// Time from the end of a read to that of the next, and when one ended last.
    pace: Duration,
    last_end: Instant,
}

impl Scripted {
    fn new(content_bytes: usize, scripts: Vec<Vec<Step>>, depth: usize) -> Self {
        Self {
            content: content(content_bytes),
            reached: vec![0; scripts.len()],
            scripts: scripts.into_iter().map(VecDeque::from).collect(),
            under_way: Vec::new(),
            depth,
            is_released: Arc::default(),
            order: 1,
            pace: Duration::ZERO,
            last_end: Instant::now(),
        }
    }

    fn queue(self) -> ReadQueue {
        let names = (0..self.scripts.len()).map(|i| PathBuf::from(format!("{i}.gguf"))).collect();
        ReadQueue::new(Box::new(self), names)
    }

    fn end(&mut self, read: &PortRead, step: Step) -> io::Result<usize> {
        let rest = &self.content[self.content.len().min(read.offset as usize)..];
        let n = match step {
            Step::Gain(more) => (self.reached[read.file] + more).saturating_sub(read.offset as usize),
            Step::Give(n) => n,
            Step::Error(code) => return Err(io::Error::from_raw_os_error(code)),
            Step::Stuck => usize::MAX,
        };
        let n = n.min(read.len_bytes).min(rest.len());
        // SAFETY: the read's memory is its own. The system may leave anything behind what it says that it gave.
        let window = unsafe { std::slice::from_raw_parts_mut(read.memory, read.len_bytes) };
        window[..n].copy_from_slice(&rest[..n]);
        window[n..].fill(!POISON);
        self.reached[read.file] = self.reached[read.file].max(read.offset as usize + n);
        Ok(n)
    }
}

fn content(len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| (at ^ at >> 8) as u8).collect()
}

impl Port for Scripted {
    fn describe(&self) -> String {
        "a script".to_owned()
    }

    fn depth(&self) -> usize {
        self.depth
    }

    unsafe fn start(&mut self, read: PortRead) {
        assert!(read.offset.is_multiple_of(PAGE_BYTES as u64) && read.memory.addr().is_multiple_of(PAGE_BYTES));
        assert!(read.len_bytes > 0 && read.len_bytes.is_multiple_of(PAGE_BYTES) && (read.id as usize) < self.depth);
        assert!(self.under_way.iter().all(|(other, _)| other.id != read.id), "an id is one read's at a time");
        // What came before was counted from the window's start.
        let reached = &mut self.reached[read.file];
        *reached = (*reached).max(read.offset as usize);
        let step = self.scripts[read.file].pop_front().unwrap_or(Step::Give(usize::MAX));
        self.under_way.push((read, step));
    }

    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn take(&mut self, wait: Duration, ended: &mut Vec<Ended>) -> io::Result<()> {
        let is_released = *self.is_released.lock().unwrap();
        let may_end = |step: &Step| is_released || !matches!(step, Step::Stuck);
        let can: Vec<usize> = (0..self.under_way.len()).filter(|i| may_end(&self.under_way[*i].1)).collect();
        if can.is_empty() {
            std::thread::sleep(wait.min(Duration::from_millis(5)));
            return Ok(());
        }
        std::thread::sleep(self.pace.saturating_sub(self.last_end.elapsed()).min(wait));
        if self.last_end.elapsed() < self.pace {
            return Ok(());
        }
        self.last_end = Instant::now();
        self.order = self.order.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (read, step) = self.under_way.swap_remove(can[(self.order >> 33) as usize % can.len()]);
        let result = self.end(&read, step);
        ended.push(Ended { id: read.id, result });
        Ok(())
    }
}

/// Reads `ranges` (the index of the file is the number of the read), each between pages of poison; gives what became of
/// them, and the bytes of those that succeeded.
fn run(mut queue: ReadQueue, ranges: &[(u64, usize)]) -> Vec<(Done, Vec<u8>)> {
    let mut places = Vec::new();
    let mut end = PAGE_BYTES;
    for (file, (offset, len_bytes)) in ranges.iter().enumerate() {
        let range = FileRange { file, offset: *offset, len_bytes: *len_bytes };
        places.push((range, end));
        end += range.window_bytes() + PAGE_BYTES;
    }
    let mut area = Area::allocate(end).unwrap();
    // SAFETY: nobody else has it.
    unsafe { area.bytes_mut(0..end) }.fill(POISON);
    let (mut done, mut started) = (Vec::new(), 0);
    while done.len() < places.len() {
        while started < places.len() && queue.room() > 0 {
            let (range, at) = places[started];
            // SAFETY: windows do not overlap, and are looked at when all is done.
            unsafe { queue.start(started as u64, range, area.start().add(at)) };
            started += 1;
        }
        queue.take(true, &mut done).unwrap();
    }
    drop(queue);
    // SAFETY: no reads are under way.
    let bytes = |range| unsafe { area.bytes(range) };
    let mut before = 0;
    for (range, at) in &places {
        assert!(bytes(before..*at).iter().all(|b| *b == POISON), "outside of windows");
        before = at + range.window_bytes();
    }
    assert!(bytes(before..end).iter().all(|b| *b == POISON), "after the windows");
    done.sort_by_key(|done| done.tag);
    let got = |done: Done| {
        let (range, at) = places[done.tag as usize];
        (done, bytes(at + range.shift()..at + range.shift() + range.len_bytes).to_vec())
    };
    done.into_iter().map(got).collect()
}

/// What became of one read of `range` with this script.
fn one(content_bytes: usize, range: (u64, usize), script: &[Step]) -> (Result<(), StoreError>, Vec<u8>) {
    let (done, bytes) = run(Scripted::new(content_bytes, vec![script.to_vec()], 1).queue(), &[range]).remove(0);
    (done.result, bytes)
}

fn error_after(result: &Result<(), StoreError>) -> Option<(i32, usize)> {
    match result {
        Err(StoreError::Read { got_bytes, source, .. }) => Some((source.raw_os_error()?, *got_bytes)),
        _ => None,
    }
}

#[test]
fn field_report_51_a_read_cut_short_at_any_byte_goes_on() {
    let wanted = &content(40_000)[5000..14_000];
    for n in 1..12_288 {
        let (result, bytes) = one(40_000, (5000, 9000), &[Step::Give(n)]);
        assert!(result.is_ok() && bytes == wanted, "cut after {n} bytes");
    }
    let steps: Vec<Step> = (0..9100).map(|_| Step::Gain(1)).collect();
    let (result, bytes) = one(40_000, (5000, 9000), &steps);
    assert!(result.is_ok() && bytes == wanted, "byte by byte");
}

#[test]
fn a_part_that_brings_nothing_new_is_asked_for_once_more() {
    // Of a page, 100 bytes came; then 100 again, and 50.
    for again in [100, 50] {
        let (result, bytes) = one(9000, (10, 5000), &[Step::Give(100), Step::Give(again)]);
        assert!(result.is_ok() && bytes == content(9000)[10..5010]);
        let (result, _) = one(9000, (10, 5000), &[Step::Give(100), Step::Give(again), Step::Give(100)]);
        assert!(matches!(result, Err(StoreError::EndOfFile { got_bytes: 90, .. })), "{result:?}");
    }
}

#[test]
fn no_bytes_are_the_end_of_the_file() {
    for (first, got) in [(0, 0), (904, 0), (905, 1), (4096, 3192), (8191, 7287)] {
        let (result, _) = one(90_000, (5000, 9000), &[Step::Give(first), Step::Give(0), Step::Give(0)]);
        match &result {
            Err(StoreError::EndOfFile { offset: 5000, wanted_bytes: 9000, got_bytes, file }) => {
                assert_eq!((*got_bytes, file.to_str()), (got, Some("0.gguf")));
            }
            other => panic!("{first}: {other:?}"),
        }
        assert!(result.unwrap_err().to_string().contains("shortened or replaced"));
    }
}

#[test]
fn one_error_is_forgiven_two_are_not_and_interruptions_do_not_count() {
    let (eio, eintr) = (Step::Error(EIO), Step::Error(EINTR));
    let range = (5000, 9000);
    for good in [
        vec![eio],
        vec![eintr, eio, eintr, Step::Give(5000), eintr],
        vec![Step::Give(5000), eio],
        [eintr; 50].to_vec(),
        // All that is wanted was there before anything went wrong.
        vec![Step::Give(9904), eio, eio],
    ] {
        let (result, bytes) = one(40_000, range, &good);
        assert!(result.is_ok() && bytes == content(40_000)[5000..14_000], "{good:?}: {result:?}");
    }
    for (bad, got) in [
        (vec![eio, eio], 0),
        (vec![eio, Step::Error(EINTR), Step::Error(61)], 0),
        (vec![eio, Step::Give(5000), eio], 5000 - 904),
        (vec![Step::Give(9903), eio, eio], 8999),
        (vec![Step::Give(100), eio, eio], 0),
    ] {
        let (result, _) = one(40_000, range, &bad);
        let code = if bad.len() == 3 && matches!(bad[2], Step::Error(61)) { 61 } else { EIO };
        assert_eq!(error_after(&result), Some((code, got)), "{bad:?}: {result:?}");
        let text = result.unwrap_err().to_string();
        let parts = ["0.gguf: reading 9000 bytes at offset 5000", &format!("failed after {got}"), "tried twice"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn every_start_and_end_in_a_page_and_a_file_that_ends_in_one() {
    let len = 2 * PAGE_BYTES + 700;
    for start in (0..PAGE_BYTES).step_by(31).chain([PAGE_BYTES - 1, PAGE_BYTES]) {
        for end in [start + 1, PAGE_BYTES, PAGE_BYTES + 1, 2 * PAGE_BYTES, len - 1, len, len + 1, len + PAGE_BYTES] {
            if end <= start {
                continue;
            }
            let (result, bytes) = one(len, (start as u64, end - start), &[Step::Give(3000)]);
            if end <= len {
                assert!(result.is_ok() && bytes == content(len)[start..end], "{start}..{end}");
            } else {
                let got = len - start;
                assert!(matches!(&result, Err(StoreError::EndOfFile { got_bytes, .. }) if *got_bytes == got));
            }
        }
    }
}

#[test]
fn a_read_that_does_not_end_is_reported_and_may_still_end() {
    let port = Scripted::new(9000, vec![vec![Step::Give(5000), Step::Stuck], vec![]], 2);
    let is_released = port.is_released.clone();
    let mut queue = port.queue().with_patience(Duration::from_millis(40));
    let area = Area::allocate(4 * PAGE_BYTES).unwrap();
    // SAFETY: the area is looked at when the read is done.
    unsafe { queue.start(7, FileRange { file: 0, offset: 10, len_bytes: 8000 }, area.start()) };
    let (mut done, start) = (Vec::new(), Instant::now());
    // A look does not wait, whatever is stuck.
    queue.take(false, &mut done).unwrap();
    let error = queue.take(true, &mut done).unwrap_err();
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(40) && waited < Duration::from_secs(5), "{waited:?}");
    assert!(done.is_empty() && queue.under_way() == 1);
    let text = error.to_string();
    for part in
        ["0.gguf: reading 8000 bytes at offset 10", "has not ended for 0.", "after 4990 bytes", "does not answer"]
    {
        assert!(text.contains(part), "{text}");
    }
    *is_released.lock().unwrap() = true;
    queue.take(false, &mut done).unwrap();
    assert_eq!((done.len(), done[0].tag, queue.under_way()), (1, 7, 0));
    assert!(done[0].result.is_ok());
    // SAFETY: no reads are under way.
    assert!(unsafe { area.bytes(10..8010) } == &content(9000)[10..8010]);
}

#[test]
fn what_ended_while_nobody_looked_is_not_stuck() {
    // Given at once, after a part, and after an error; the queue is looked at long after its patience.
    for script in [vec![], vec![Step::Give(5000)], vec![Step::Error(EIO)]] {
        let mut queue = Scripted::new(9000, vec![script], 1).queue().with_patience(Duration::from_millis(20));
        let area = Area::allocate(4 * PAGE_BYTES).unwrap();
        // SAFETY: the area is looked at when the read is done.
        unsafe { queue.start(3, FileRange { file: 0, offset: 10, len_bytes: 8000 }, area.start()) };
        std::thread::sleep(Duration::from_millis(50));
        let mut done = Vec::new();
        queue.take(true, &mut done).unwrap();
        assert!(done[0].result.is_ok());
    }
}

/// Many reads at a time from a slow drive: the last one takes longer than the patience, but the drive answers all the time.
#[test]
fn a_slow_drive_is_not_stuck_while_it_answers() {
    let mut port = Scripted::new(9000, vec![vec![]; 12], 12);
    (port.pace, port.last_end) = (Duration::from_millis(15), Instant::now());
    let start = Instant::now();
    let all = run(port.queue().with_patience(Duration::from_millis(60)), &[(10, 8000); 12]);
    assert!(start.elapsed() >= 12 * Duration::from_millis(15));
    assert!(all.iter().all(|(done, bytes)| done.result.is_ok() && *bytes == content(9000)[10..8010]));
}

/// What happens to a read before it gives the rest: bytes that it gains, interruptions, and errors.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1usize..6000).prop_map(Step::Gain),
        1 => Just(Step::Error(EINTR)),
        1 => Just(Step::Error(EIO)),
    ];
    prop::collection::vec(step, 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn many_reads_with_faults_that_end_in_any_order(
        reads in prop::collection::vec((0u64..60_000, 1usize..20_000, steps()), 1..30),
        depth in 1usize..12,
        order in any::<u64>(),
    ) {
        const CONTENT_BYTES: usize = 100_000;
        let scripts = reads.iter().map(|(_, _, steps)| steps.clone()).collect();
        let mut port = Scripted::new(CONTENT_BYTES, scripts, depth);
        port.order = order;
        let ranges: Vec<_> = reads.iter().map(|(offset, len, _)| (*offset, *len)).collect();
        let content = content(CONTENT_BYTES);
        for ((done, bytes), (offset, len, steps)) in run(port.queue(), &ranges).into_iter().zip(&reads) {
            let shift = *offset as usize % PAGE_BYTES;
            let (mut gained, mut errors) = (0, 0);
            for step in steps {
                if gained >= shift + len || errors == 2 {
                    break;
                }
                match step {
                    Step::Gain(n) => gained += n,
                    Step::Error(EIO) => errors += 1,
                    _ => {}
                }
            }
            if errors == 2 {
                let got = gained.saturating_sub(shift);
                prop_assert_eq!(error_after(&done.result), Some((EIO, got)));
            } else {
                prop_assert!(done.result.is_ok(), "{:?}", done.result);
                prop_assert!(bytes == content[*offset as usize..*offset as usize + len]);
            }
        }
    }
}
