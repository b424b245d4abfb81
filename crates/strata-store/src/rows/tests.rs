//! The table over files in memory: rows in the order asked for, whatever is read in which order.

use std::ops::Range;

use proptest::prelude::*;

use super::{GatherId, RowTable, TablePlace};
use crate::reads::memory::{Files, POISON};
use crate::timeline::{Lane, Timeline};
use crate::{PAGE_BYTES, StoreError};

/// A table in file 0, which ends where the table does.
struct Bed {
    table: RowTable,
    files: Files,
    place: TablePlace,
}

impl Bed {
    fn new(offset: u64, row_bytes: usize, rows: u64, depth: usize, seed: u64) -> Self {
        let place = TablePlace { file: 0, offset, row_bytes, rows };
        let files = Files::of_lens(&[offset as usize + row_bytes * rows as usize]);
        let mut table = RowTable::new(place, files.queue(depth, seed)).unwrap();
        let len_bytes = table.windows.len_bytes();
        // SAFETY: no reads are under way.
        unsafe { table.windows.bytes_mut(0..len_bytes) }.fill(POISON);
        Self { table, files, place }
    }

    fn row(&self, id: u64) -> Vec<u8> {
        let from = self.place.offset as usize + id as usize * self.place.row_bytes;
        self.files.bytes(0, from..from + self.place.row_bytes)
    }

    /// Takes all rows of a pass, which asked for `ids`, so many at a time, and ends it.
    fn check_pass(&mut self, gather: GatherId, ids: &[u64], strip: usize) {
        for (number, ids) in ids.chunks(strip).enumerate() {
            let expected = ids.iter().map(|id| self.row(*id)).collect::<Vec<_>>().concat();
            let places = number * strip..number * strip + ids.len();
            assert!(self.table.rows(gather, places.clone()).unwrap() == expected, "strip {number} has other bytes");
            // A strip can be looked at again.
            assert!(self.table.rows(gather, places).unwrap() == expected);
        }
        self.table.finish(gather);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 3 } else { 100 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rows_come_in_the_order_asked_for(
        offset in 0u64..10_000,
        row_bytes in prop_oneof![1usize..200, 1000usize..10_000],
        rows in 1u64..300,
        depth in 1usize..9,
        seed in any::<u64>(),
        passes in prop::collection::vec((prop::collection::vec(any::<u64>(), 0..60), 1usize..20), 1..5),
    ) {
        let mut bed = Bed::new(offset, row_bytes, rows, depth, seed);
        let passes: Vec<(Vec<u64>, usize)> = passes
            .into_iter()
            .map(|(ids, strip)| (ids.into_iter().map(|id| id % rows).collect(), strip))
            .collect();
        // The next pass's rows are asked for before those of the pass at hand are taken.
        let mut gather = bed.table.begin(&passes[0].0, passes[0].1).unwrap();
        for (at, (ids, strip)) in passes.iter().enumerate() {
            let mut next_gather = gather;
            if let Some((next, next_strip)) = passes.get(at + 1) {
                next_gather = bed.table.begin_later(next, *next_strip).unwrap();
                prop_assert_eq!(bed.table.gathers(), 2);
            }
            // What is taken at a time may be anything.
            bed.check_pass(gather, ids, (strip + at).max(1));
            gather = next_gather;
        }
        prop_assert_eq!(bed.table.gathers(), 0);
        let counts = bed.table.counts();
        prop_assert_eq!(counts.rows as usize, passes.iter().map(|(ids, _)| ids.len()).sum::<usize>());
        let reads = bed.files.take_reads();
        prop_assert_eq!(counts.reads as usize, reads.len());
        prop_assert_eq!(counts.read_bytes as usize, reads.iter().map(|(_, range)| range.len()).sum::<usize>());
        // At most one read for each distinct row of a strip.
        let distinct = |ids: &[u64]| ids.iter().collect::<std::collections::BTreeSet<_>>().len();
        let most: usize = passes.iter().flat_map(|(ids, strip)| ids.chunks(*strip)).map(distinct).sum();
        prop_assert!(reads.len() <= most, "{} reads of {most} rows", reads.len());
    }
}

#[test]
fn reads_follow_the_file_and_pages_that_rows_share_are_read_once_a_strip() {
    // 64 rows a page; two strips of 200 of 640 rows.
    let mut bed = Bed::new(4096, 64, 640, 4, 1);
    let ids: Vec<u64> = (0..400).map(|i| i * 37 % 640).collect();
    let gather = bed.table.begin(&ids, 200).unwrap();
    bed.check_pass(gather, &ids, 200);
    let starts: Vec<usize> = bed.files.take_reads().into_iter().map(|(_, range)| range.start).collect();
    let once: Vec<usize> = (1..11).map(|page| page * PAGE_BYTES).collect();
    assert_eq!(starts, [once.clone(), once].concat());
}

#[test]
fn a_timeline_has_the_bytes_of_every_row_once() {
    let Bed { table, files, place } = Bed::new(100, 40, 500, 4, 2);
    let timeline = Timeline::with_room(100);
    let mut bed = Bed { table: table.recorded(timeline.clone()), files, place };
    timeline.begin();
    let ids: Vec<u64> = (0..130).map(|i| i * 7 % 500).collect();
    let gather = bed.table.begin(&ids, 50).unwrap();
    bed.check_pass(gather, &ids, 50);
    timeline.end();
    let spans = timeline.take().spans;
    let bytes: Vec<u64> = spans.iter().filter(|span| span.lane == Lane::NgramRows).map(|span| span.bytes).collect();
    assert_eq!((bytes.len(), bytes.iter().sum::<u64>()), (3, 130 * 40), "{bytes:?}");
}

#[test]
fn what_a_pass_needs_now_is_read_before_what_others_need_later() {
    let mut bed = Bed::new(0, PAGE_BYTES, 100, 2, 1);
    bed.files.hold(true);
    let first = bed.table.begin(&[9, 7, 8, 1], 2).unwrap();
    let later = bed.table.begin_later(&[0, 50], 2).unwrap();
    // Another pass comes in between: what was not started waits.
    let now = bed.table.begin(&[30, 20], 2).unwrap();
    bed.files.hold(false);
    bed.check_pass(now, &[30, 20], 2);
    bed.check_pass(first, &[9, 7, 8, 1], 2);
    bed.check_pass(later, &[0, 50], 2);
    let pages: Vec<usize> = bed.files.take_reads().into_iter().map(|(_, range)| range.start / PAGE_BYTES).collect();
    assert_eq!(pages, [7, 9, 20, 30, 1, 8, 0, 50], "strip by strip, in the order of the file");
}

#[test]
fn what_is_given_up_while_it_is_read_does_no_harm() {
    let mut bed = Bed::new(10, 300, 1000, 3, 7);
    for round in 0..20u64 {
        let ids: Vec<u64> = (0..50).map(|i| (i * 97 + round * 13) % 1000).collect();
        bed.files.hold(true);
        let kept = bed.table.begin(&ids[30..], 9).unwrap();
        let gathers = [bed.table.begin(&ids, 10).unwrap(), bed.table.begin_later(&ids[..20], 10).unwrap()];
        bed.table.poll().unwrap();
        gathers.into_iter().for_each(|gather| bed.table.finish(gather));
        assert_eq!(bed.table.gathers(), 1);
        // All windows are still in use by what nobody wants.
        let other: Vec<u64> = ids.iter().map(|id| (id + 501) % 1000).collect();
        let gather = bed.table.begin(&other, 7).unwrap();
        bed.files.hold(false);
        bed.check_pass(gather, &other, 7);
        bed.check_pass(kept, &ids[30..], 9);
    }
}

#[test]
fn a_row_that_cannot_be_read_fails_its_own_pass_and_no_other() {
    let mut bed = Bed::new(100, 5000, 60, 4, 3);
    let bad: Range<usize> = 100 + 40 * 5000 + 2000..100 + 40 * 5000 + 2001;
    bed.files.spoil(Some(bad));
    // The pass that follows has the bad row: this one is not concerned.
    let (ids, next): (Vec<u64>, Vec<u64>) = ((0..30).collect(), (25..55).collect());
    let gather = bed.table.begin(&ids, 6).unwrap();
    let next_gather = bed.table.begin_later(&next, 6).unwrap();
    bed.check_pass(gather, &ids, 6);
    let error = (0..5).find_map(|strip| bed.table.rows(next_gather, strip * 6..strip * 6 + 6).err()).unwrap();
    match error {
        StoreError::Read { offset, wanted_bytes, .. } => assert_eq!((offset, wanted_bytes), (100 + 40 * 5000, 5000)),
        other => panic!("{other}"),
    }
    bed.table.finish(next_gather);
    bed.files.spoil(None);
    let gather = bed.table.begin(&next, 6).unwrap();
    bed.check_pass(gather, &next, 6);
}

#[test]
#[cfg_attr(miri, ignore = "Miri's patience is longer")]
fn rows_that_do_not_exist_and_reads_that_do_not_end_are_told() {
    let mut bed = Bed::new(100, 10, 60, 4, 3);
    let error = bed.table.begin(&[59, 60], 1).unwrap_err();
    assert!(matches!(error, StoreError::NoSuchRow { row: 60, rows: 60 }), "{error}");
    assert_eq!((bed.table.gathers(), bed.table.counts().rows), (0, 0));
    bed.files.hold(true);
    let gather = bed.table.begin(&[59], 1).unwrap();
    let error = bed.table.rows(gather, 0..1).unwrap_err();
    assert!(matches!(error, StoreError::Stuck { offset: 690, got_bytes: 0, .. }), "{error}");
    assert!(bed.table.counts().exposed_wait.as_millis() >= 200);
    bed.files.hold(false);
    // It has come after all.
    bed.check_pass(gather, &[59], 1);
}
