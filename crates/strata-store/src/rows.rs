//! A table of equal rows that stays on the drive; single rows are fetched.

use std::sync::Arc;
use std::time::Instant;

use crate::timeline::{Lane, Timeline};
use crate::{Reader, StoreError};

/// A table whose rows are gathered by number, never loaded whole.
pub struct RowTable {
    reader: Arc<dyn Reader>,
    file: usize,
    offset: u64,
    row_bytes: usize,
    rows: u64,
    timeline: Timeline,
}

impl RowTable {
    /// The table of `rows` rows of `row_bytes` bytes that begins at `offset` of `file`.
    pub fn new(reader: Arc<dyn Reader>, file: usize, offset: u64, row_bytes: usize, rows: u64) -> Self {
        Self { reader, file, offset, row_bytes, rows, timeline: Timeline::off() }
    }

    /// Records on `timeline` when rows are read.
    pub fn recorded(self, timeline: Timeline) -> Self {
        Self { timeline, ..self }
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Fills `out` with the rows `ids`, one after another in the order asked for.
    ///
    /// They are read in the order in which they lie in the file, each distinct row once.
    ///
    /// # Errors
    /// When a row does not exist or cannot be read.
    pub fn gather(&self, ids: &[u64], out: &mut [u8]) -> Result<(), StoreError> {
        assert_eq!(out.len(), ids.len() * self.row_bytes, "room for the rows");
        if let Some(&row) = ids.iter().find(|row| **row >= self.rows) {
            return Err(StoreError::NoSuchRow { row, rows: self.rows });
        }
        let start = Instant::now();
        let mut bytes = 0;
        let mut order: Vec<usize> = (0..ids.len()).collect();
        order.sort_unstable_by_key(|&i| ids[i]);
        let mut before: Option<usize> = None;
        for i in order {
            let at = i * self.row_bytes;
            match before {
                Some(b) if ids[b] == ids[i] => out.copy_within(b * self.row_bytes..(b + 1) * self.row_bytes, at),
                _ => {
                    let offset = self.offset + ids[i] * self.row_bytes as u64;
                    self.reader.read(self.file, offset, &mut out[at..at + self.row_bytes])?;
                    bytes += self.row_bytes as u64;
                }
            }
            before = Some(i);
        }
        // Who gathers waits for it.
        let end = Instant::now();
        self.timeline.read_rows(None, bytes, start, end);
        self.timeline.span(Lane::Waits, "n-gram rows", None, start, end);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Every byte at offset `o` is `o`; remembers the offsets read.
    struct Ramp(Mutex<Vec<u64>>);

    impl Reader for Ramp {
        fn read(&self, _file: usize, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
            self.0.lock().unwrap().push(offset);
            (offset..).zip(out).for_each(|(o, b)| *b = o as u8);
            Ok(())
        }
    }

    #[test]
    fn rows_come_in_the_order_asked_for_and_are_read_once_in_file_order() {
        let ramp = Arc::new(Ramp(Mutex::default()));
        let table = RowTable::new(ramp.clone(), 0, 10, 3, 5);
        let mut out = [0; 15];
        table.gather(&[4, 0, 2, 0, 4], &mut out).unwrap();
        assert_eq!(out, [22, 23, 24, 10, 11, 12, 16, 17, 18, 10, 11, 12, 22, 23, 24]);
        assert_eq!(*ramp.0.lock().unwrap(), [10, 16, 22]);
        let error = table.gather(&[0, 5], &mut out[..6]).unwrap_err();
        assert_eq!(error.to_string(), "row 5 of a table of 5 rows was asked for");
        table.gather(&[], &mut []).unwrap();
    }
}
