//! Every port over real files.

use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;

use super::POISON;
use crate::reads::{Done, Ended, FileRange, Load, PortRead, ReadQueue, ReaderKind, open};
use crate::{Area, PAGE_BYTES, StoreError};

fn kinds() -> Vec<ReaderKind> {
    let has = |kind: &ReaderKind| cfg!(target_os = "linux") || !matches!(kind, ReaderKind::Uring | ReaderKind::Mmap);
    ReaderKind::ALL.into_iter().filter(has).collect()
}

/// Files of these lengths, of bytes that tell where they are.
pub(super) fn files(lens: &[usize]) -> (TempDir, Vec<(PathBuf, File)>) {
    let dir = tempfile::tempdir().unwrap();
    let make = |(index, len): (usize, &usize)| {
        let path = dir.path().join(format!("{index}.gguf"));
        let byte = |at: usize| (at.wrapping_mul(0x9e37_79b1) >> 13) as u8 ^ index as u8;
        fs::write(&path, (0..*len).map(byte).collect::<Vec<_>>()).unwrap();
        (path.clone(), File::open(path).unwrap())
    };
    let files = lens.iter().enumerate().map(make).collect();
    (dir, files)
}

pub(super) fn names(files: &[(PathBuf, File)]) -> Vec<PathBuf> {
    files.iter().map(|(path, _)| path.clone()).collect()
}

/// An area full of poison.
pub(super) fn poisoned(len_bytes: usize) -> Arc<Area> {
    let mut area = Area::allocate(len_bytes).unwrap();
    // SAFETY: nobody else has it.
    unsafe { area.bytes_mut(0..len_bytes) }.fill(POISON);
    Arc::new(area)
}

pub(super) fn bytes(area: &Area, range: std::ops::Range<usize>) -> &[u8] {
    // SAFETY: the tests look when no reads are under way.
    unsafe { area.bytes(range) }
}

/// Reads all ranges, each into the area at its place, as many at a time as there is room for.
pub(super) fn read_all(queue: &mut ReadQueue, area: &Area, reads: &[(FileRange, usize)]) -> Vec<Done> {
    let (mut done, mut started) = (Vec::new(), 0);
    while done.len() < reads.len() {
        while started < reads.len() && queue.room() > 0 {
            let (range, at) = reads[started];
            // SAFETY: places are pages apart from each other, and looked at only when all reads are done.
            unsafe { queue.start(started as u64, range, area.start().add(at)) };
            started += 1;
        }
        queue.take(true, &mut done).unwrap();
    }
    assert_eq!(queue.under_way(), 0);
    done.sort_by_key(|done| done.tag);
    assert!(done.iter().enumerate().all(|(i, done)| done.tag == i as u64));
    assert_eq!((queue.under_way(), queue.gauge().load(Ordering::Relaxed)), (0, 0));
    assert!(reads.is_empty() || queue.busy() > Duration::ZERO);
    done
}

/// Reads ranges by one kind of port and compares with what the files hold.
fn check(kind: ReaderKind, depth: usize, files: &[(PathBuf, File)], ranges: &[FileRange], is_registered: bool) {
    let contents: Vec<Vec<u8>> = files.iter().map(|(path, _)| fs::read(path).unwrap()).collect();
    // Places have a page of poison between them.
    let mut end = PAGE_BYTES;
    let mut reads = Vec::new();
    for range in ranges {
        reads.push((*range, end));
        end += range.window_bytes() + PAGE_BYTES;
    }
    let area = poisoned(end);
    let areas = if is_registered { vec![area.clone()] } else { vec![] };
    let mut queue = ReadQueue::new(open(kind, files, &areas, depth).unwrap(), names(files));
    let done = read_all(&mut queue, &area, &reads);
    drop(queue);
    let mut before = 0;
    for ((range, at), done) in reads.iter().zip(done) {
        let content = &contents[range.file];
        let (start, stop) = (range.offset as usize, range.offset as usize + range.len_bytes);
        assert!(bytes(&area, before..*at).iter().all(|b| *b == POISON), "{kind}: outside of windows");
        if stop <= content.len() {
            done.result.unwrap();
            let got = bytes(&area, at + range.shift()..at + range.shift() + range.len_bytes);
            assert!(got == &content[start..stop], "{kind}: {range:?}");
        } else {
            match done.result {
                Err(StoreError::EndOfFile { file, offset, wanted_bytes, got_bytes }) => {
                    assert_eq!((&file, offset), (&files[range.file].0, range.offset));
                    assert_eq!((wanted_bytes, got_bytes), (range.len_bytes, content.len().saturating_sub(start)));
                }
                other => panic!("{kind}: {range:?}: {other:?}"),
            }
        }
        before = at + range.window_bytes();
    }
    assert!(bytes(&area, before..end).iter().all(|b| *b == POISON), "{kind}: after the windows");
}

pub(super) fn range(file: usize, offset: u64, len_bytes: usize) -> FileRange {
    FileRange { file, offset, len_bytes }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_ranges_by_any_port_are_the_bytes_of_the_files(
        lens in prop::collection::vec(1usize..300_000, 1..4),
        picks in prop::collection::vec((any::<prop::sample::Index>(), 0.0..1.1f64, 1usize..70_000), 1..40),
        depth in 1usize..40,
        is_registered in any::<bool>(),
    ) {
        let (_dir, files) = files(&lens);
        let place = |(file, at, len): &(prop::sample::Index, f64, usize)| {
            let file = file.index(lens.len());
            range(file, (lens[file] as f64 * at) as u64, *len)
        };
        let ranges: Vec<_> = picks.iter().map(place).collect();
        for kind in kinds() {
            check(kind, depth, &files, &ranges, is_registered);
        }
    }
}

#[test]
fn starts_and_ends_at_every_place_in_a_page() {
    let len = 3 * PAGE_BYTES + 1000;
    let (_dir, files) = files(&[len]);
    let near = |at: usize| [at - 1, at, at + 1];
    let starts: Vec<usize> = [0, 1, 2047].into_iter().chain(near(PAGE_BYTES)).chain(near(len - 2)).collect();
    let ends: Vec<usize> = near(PAGE_BYTES).into_iter().chain(near(2 * PAGE_BYTES)).chain(near(len)).collect();
    let mut ranges = Vec::new();
    for start in starts {
        ranges.extend(ends.iter().filter(|end| **end > start).map(|end| range(0, start as u64, end - start)));
    }
    for kind in kinds() {
        check(kind, 16, &files, &ranges, true);
    }
}

#[test]
fn what_is_asked_for_beyond_the_end_is_said() {
    let (_dir, files) = files(&[5000, PAGE_BYTES, 1]);
    let ranges = [range(0, 4990, 11), range(0, 5000, 1), range(0, 8192, 5), range(0, 1 << 40, 5), range(1, 0, 4097)];
    for kind in kinds() {
        check(kind, 2, &files, &ranges, false);
    }
}

#[test]
fn a_file_shortened_while_open_is_an_error_not_a_crash() {
    for kind in kinds() {
        let (_dir, files) = files(&[100_000]);
        let area = poisoned(1 << 20);
        let port = open(kind, &files, std::slice::from_ref(&area), 4).unwrap();
        let mut queue = ReadQueue::new(port, names(&files));
        OpenOptions::new().write(true).open(&files[0].0).unwrap().set_len(50_000).unwrap();
        let reads = [(range(0, 100, 40_000), 0), (range(0, 40_000, 20_000), 1 << 17), (range(0, 90_000, 10), 1 << 18)];
        let done = read_all(&mut queue, &area, &reads);
        assert!(done[0].result.is_ok(), "{kind}: {done:?}");
        let got = |done: &Done| match done.result {
            Err(StoreError::EndOfFile { got_bytes, .. }) => Some(got_bytes),
            _ => None,
        };
        assert_eq!((got(&done[1]), got(&done[2])), (Some(10_000), Some(0)), "{kind}: {done:?}");
    }
}

#[test]
fn a_file_replaced_while_open_stays_the_one_that_was_opened() {
    for kind in kinds() {
        let (dir, files) = files(&[30_000]);
        let wanted = fs::read(&files[0].0).unwrap();
        let other = dir.path().join("other");
        fs::write(&other, vec![1; 30_000]).unwrap();
        fs::rename(&other, &files[0].0).unwrap();
        let port = open(kind, &files, &[], 4);
        if !cfg!(target_os = "linux") {
            assert!(matches!(port, Err(StoreError::Open { .. })));
            continue;
        }
        // Another file by that name, and then none at all.
        fs::remove_file(&files[0].0).unwrap();
        let area = poisoned(1 << 16);
        let mut queue = ReadQueue::new(port.unwrap(), names(&files));
        let done = read_all(&mut queue, &area, &[(range(0, 1, 29_999), 0)]);
        assert!(done[0].result.is_ok(), "{kind}");
        assert_eq!(bytes(&area, 1..30_000), &wanted[1..], "{kind}");
    }
}

#[test]
fn a_port_can_be_dropped_at_any_moment() {
    let (_dir, files) = files(&[4 << 20]);
    let contents = fs::read(&files[0].0).unwrap();
    for kind in kinds() {
        for (depth, submitted) in [(1, 0), (1, 1), (64, 0), (64, 17), (64, 64)] {
            let area = poisoned(4 << 20);
            let mut port = open(kind, &files, std::slice::from_ref(&area), depth).unwrap();
            for id in 0..depth {
                let at = id * (1 << 16);
                // SAFETY: the area is looked at after the port is gone.
                let memory = unsafe { area.start().add(at) };
                let read = PortRead { id: id as u32, file: 0, offset: at as u64, memory, len_bytes: 1 << 16 };
                // SAFETY: as above.
                unsafe { port.start(read) };
                if id + 1 == submitted {
                    port.submit().unwrap();
                }
            }
            drop(port);
            // Nobody writes any more: each byte is the file's, or nobody's.
            let (before, poison) = (bytes(&area, 0..4 << 20).to_vec(), vec![POISON; 1 << 12]);
            for (page, wanted) in before.chunks(1 << 12).zip(contents.chunks(1 << 12)) {
                assert!(page == wanted || page == poison, "{kind}");
            }
            std::thread::sleep(Duration::from_millis(2));
            assert!(before == bytes(&area, 0..4 << 20), "{kind}");
        }
    }
}

#[test]
fn looks_and_waits_without_reads_end_at_once() {
    let (_dir, files) = files(&[10]);
    for kind in kinds() {
        let mut port = open(kind, &files, &[], 4).unwrap();
        let mut ended: Vec<Ended> = Vec::new();
        let start = std::time::Instant::now();
        port.take(Duration::from_secs(20), &mut ended).unwrap();
        port.take(Duration::ZERO, &mut ended).unwrap();
        assert!(ended.is_empty() && start.elapsed() < Duration::from_secs(5), "{kind}");
    }
}

#[test]
fn ports_say_what_they_are() {
    let (_dir, files) = files(&[10]);
    let area = poisoned(PAGE_BYTES);
    let describe = |kind, areas: &[Arc<Area>]| open(kind, &files, areas, 4).unwrap().describe();
    assert_eq!(describe(ReaderKind::Buffered, &[]), "threads, buffered");
    if cfg!(target_os = "linux") {
        assert_eq!(describe(ReaderKind::Mmap, &[]), "threads, mapped");
        let text = describe(ReaderKind::Uring, &[area]);
        assert!(text.starts_with("io_uring, ") && text.contains("registered"), "{text}");
        assert!(!describe(ReaderKind::Uring, &[]).contains("registered"));
    }
}

/// A file system in memory has no drive to be direct with.
#[test]
#[cfg(target_os = "linux")]
fn where_there_are_no_direct_reads_they_are_buffered_and_said_to_be() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    let path = dir.path().join("file");
    fs::write(&path, [7; 9000]).unwrap();
    let files = vec![(path.clone(), File::open(&path).unwrap())];
    for kind in [ReaderKind::Auto, ReaderKind::Uring, ReaderKind::Threads] {
        let text = open(kind, &files, &[], 4).unwrap().describe();
        let way = if kind == ReaderKind::Uring { "io_uring" } else { "threads" };
        assert_eq!(text, format!("{way}, buffered"));
        check(kind, 4, &files, &[range(0, 10, 8000), range(0, 8999, 1)], true);
    }
}

#[test]
fn names_of_kinds_are_read_back() {
    for kind in ReaderKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    assert_eq!("Uring".parse::<ReaderKind>().unwrap_err(), "expected one of auto, uring, threads, buffered, mmap");
}

/// More than a drive's queue holds, and more than there are threads.
#[test]
fn many_reads_at_a_time_are_all_carried_out() {
    let (_dir, files) = files(&[3 << 20]);
    let ranges: Vec<_> = (0..1500).map(|i| range(0, i * 2000 + i % 7, 2500)).collect();
    for kind in kinds() {
        check(kind, 700, &files, &ranges, true);
    }
}

#[test]
fn a_load_reads_what_it_is_told_to_and_says_when() {
    let (_dir, files) = files(&[1 << 20]);
    for kind in kinds() {
        let mut load = Load::open(kind, &files, 8, 8 << 14).unwrap();
        for depth in [1, 3, 8] {
            let mut left = (0..40).map(|i| range(0, i * 10_000, 9000));
            let reads = load.run(depth, || left.next()).unwrap();
            assert_eq!(reads.len(), 40);
            assert!(reads.iter().all(|read| read.started < read.ended));
            assert!(reads.is_sorted_by_key(|read| read.ended));
            let at_once = |at| reads.iter().filter(|read| read.started <= at && at < read.ended).count();
            assert!(reads.iter().all(|read| at_once(read.started) <= depth));
        }
        let mut beyond = [range(0, 1 << 20, 1), range(0, 0, 10)].into_iter();
        assert!(matches!(load.run(1, || beyond.next()), Err(StoreError::EndOfFile { .. })));
        assert_eq!(load.run(8, || None).unwrap(), []);
    }
}

/// Reads that a thread started go on when it has ended.
#[test]
fn a_queue_moves_from_thread_to_thread() {
    let (_dir, files) = files(&[3 << 20]);
    let content = fs::read(&files[0].0).unwrap();
    let place = |i: u64| (range(0, i * 7000, 6000), i as usize * 3 * PAGE_BYTES);
    for kind in kinds() {
        let area = poisoned(400 * 3 * PAGE_BYTES);
        let mut queue = std::thread::scope(|scope| {
            let start = || {
                let port = open(kind, &files, std::slice::from_ref(&area), 400).unwrap();
                let mut queue = ReadQueue::new(port, names(&files));
                for i in 0..400 {
                    let (range, at) = place(i);
                    // SAFETY: places are apart from each other, and looked at only when all reads are done.
                    unsafe { queue.start(i, range, area.start().add(at)) };
                }
                queue.submit().unwrap();
                queue
            };
            scope.spawn(start).join().unwrap()
        });
        let mut done = Vec::new();
        while queue.under_way() > 0 {
            queue.take(true, &mut done).unwrap();
        }
        assert_eq!(done.len(), 400);
        for Done { tag, result } in done {
            result.unwrap();
            let (range, at) = place(tag);
            let start = range.offset as usize;
            assert!(bytes(&area, at + range.shift()..at + range.shift() + 6000) == &content[start..start + 6000]);
        }
    }
}
