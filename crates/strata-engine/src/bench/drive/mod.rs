//! The speed of a drive, by reads of the kind that experts and table rows are.
//!
//! Promises: no part of the file is read twice for one length of reads, and none at all until half of it was read; what came
//! out of memory, or may have, is marked and never counts.
//! Refuses: to judge what a drive or a machine below this one keeps in memory of its own; only direct reads can be held
//! against each other there.

mod device;

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use strata_model::ModelError;
use strata_store::reads::{FileRange, Load, Loaded, ReaderKind};
use strata_store::system::PageCache;
use strata_store::{PAGE_BYTES, StoreError};

pub use device::Device;

use super::Spread;
use crate::synth::blocks::Random;
use crate::{EngineError, Stop};

/// A drive under measurement, through one of its files.
pub struct DriveBench {
    device: Device,
    ways: Vec<Way>,
    /// `None`: the system does not tell what it has in memory.
    cache: Option<PageCache>,
    fresh: Fresh,
    /// Whether much of the file is not on the drive.
    has_holes: bool,
}

struct Way {
    kind: ReaderKind,
    load: Load,
    /// Whether its reads go past the system's memory, as was seen.
    is_direct: bool,
}

/// What was measured with one way, length and number of reads at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriveRate {
    /// How it was read.
    pub kind: ReaderKind,
    /// Bytes of a read.
    pub read_bytes: usize,
    /// Reads at a time.
    pub depth: usize,
    /// Reads that were made.
    pub reads: usize,
    /// What the drive gave.
    pub bytes_per_second: f64,
    /// Seconds of a read, from its start to its end.
    pub seconds: Spread,
    /// Why it says nothing about the drive, if so.
    pub doubt: Option<Doubt>,
}

/// Why a rate may not be the drive's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The reads were to go past the system's memory, and did not.
    NotDirect,
    /// The system had, or may have had, some of it in memory.
    Cached,
    /// It is more than direct reads gave.
    AboveDirect,
    /// All of the file had been read before: the drive may have had some of it in memory.
    Repeated,
    /// Much of the file is not on the drive: it was never written, or its file system compresses it.
    Holes,
}

impl Doubt {
    /// For people and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotDirect => "not direct",
            Self::Cached => "cached, not certified",
            Self::AboveDirect => "above direct reads, not certified",
            Self::Repeated => "repeated, not certified",
            Self::Holes => "holes, or compressed, not certified",
        }
    }
}

impl DriveRate {
    /// Several measurements of the same, in one; `None` of none.
    fn median(samples: &[Self]) -> Option<Self> {
        let first = samples.first()?;
        let of = |value: fn(&Self) -> f64| Spread::of(samples.iter().map(value));
        let reads = samples.iter().map(|rate| rate.reads).sum();
        let doubt = samples.iter().find_map(|rate| rate.doubt);
        let bytes_per_second = of(|rate| rate.bytes_per_second).median;
        let seconds = Spread {
            median: of(|rate| rate.seconds.median).median,
            min: of(|rate| rate.seconds.min).min,
            max: of(|rate| rate.seconds.max).max,
        };
        Some(Self { reads, bytes_per_second, seconds, doubt, ..*first })
    }
}

impl DriveBench {
    /// Lengths of reads, in the order in which they should be measured: short reads leave nothing whole for long ones.
    pub const READ_BYTES: [usize; 5] = [4 << 20, 3 << 19, 512 << 10, 64 << 10, 4 << 10];
    /// Reads at a time.
    pub const DEPTHS: [usize; 7] = [1, 4, 8, 16, 32, 64, 128];
    /// The most bytes that are asked for at a time: on slow drives, more would take longer than all the rest.
    pub const MAX_BYTES_AT_A_TIME: usize = 64 << 20;
    /// How often each is measured.
    const ROUNDS: usize = 3;
    /// One measurement reads at most one of so many parts of the file, unless it needs more to begin with: those of one
    /// length fit into a file of 4 GiB.
    const SHARES: usize = 100;
    /// The most bytes of a file that are measured, from its start: a table of its pages is kept.
    const MOST_FILE_BYTES: u64 = 1 << 40;
    /// A smaller number of reads at a time is as good as a larger one that gives so much more, relative to it.
    pub const AS_GOOD: f64 = 0.03;

    /// Opens `file`, whose name is `path`, for measuring by every way that the system has.
    ///
    /// # Errors
    /// When it cannot be read, or is too short for any read.
    pub fn open(path: &Path, file: File) -> Result<Self, EngineError> {
        let about = file.metadata().map_err(|error| unusable(path, &error.to_string()))?;
        let len_bytes = about.len();
        if len_bytes < PAGE_BYTES as u64 {
            return Err(unusable(path, "it is too short to measure a drive with"));
        }
        let files = [(path.to_owned(), file)];
        let mut cache = PageCache::of(path, &files[0].1).ok();
        let mut fresh = Fresh::new(len_bytes.min(Self::MOST_FILE_BYTES));
        let depth = Self::DEPTHS[Self::DEPTHS.len() - 1];
        // Windows of whole pages: every length is one.
        let memory_bytes = Self::MAX_BYTES_AT_A_TIME;
        let mut ways = Vec::new();
        for kind in [ReaderKind::Uring, ReaderKind::Threads, ReaderKind::Buffered] {
            match Load::open(kind, &files, depth, memory_bytes) {
                Ok(mut load) => {
                    let is_direct = kind != ReaderKind::Buffered
                        && load.describe().contains("direct")
                        && cache.as_mut().is_none_or(|cache| goes_past(&mut load, cache, &mut fresh));
                    ways.push(Way { kind, load, is_direct });
                }
                // Not every system has it.
                Err(StoreError::Port { .. }) => {}
                Err(error) => return Err(ModelError::from(error).into()),
            }
        }
        Ok(Self { device: Device::of(path), ways, cache, fresh, has_holes: has_holes(&about) })
    }

    /// How it reads, by each way, for people.
    pub fn ways(&self) -> impl Iterator<Item = (ReaderKind, String)> {
        self.ways.iter().map(|way| (way.kind, way.load.describe()))
    }

    /// Numbers of reads of this length that are measured.
    pub fn depths(read_bytes: usize) -> impl Iterator<Item = usize> {
        Self::DEPTHS.into_iter().filter(move |depth| depth * read_bytes <= Self::MAX_BYTES_AT_A_TIME)
    }

    /// Measures reads of this length by all ways, for so long in all: numbers of reads at a time one after another, ways in
    /// turns, and all of it a few times, of which the median counts. What there is no time left for is left out. A file
    /// shorter than a read gives nothing.
    ///
    /// # Errors
    /// When a read fails, or it is stopped.
    pub fn measure(&mut self, read_bytes: usize, time: Duration, stop: &Stop) -> Result<Vec<DriveRate>, EngineError> {
        if self.fresh.len_bytes < read_bytes as u64 {
            return Ok(Vec::new());
        }
        self.fresh.begin();
        let until = Instant::now() + time;
        let depths: Vec<usize> = Self::depths(read_bytes).collect();
        let mut samples: Vec<Vec<DriveRate>> = vec![Vec::new(); depths.len() * self.ways.len()];
        let mut left = samples.len() * Self::ROUNDS;
        for _ in 0..Self::ROUNDS {
            for (depth, samples) in depths.iter().zip(samples.chunks_mut(self.ways.len())) {
                for (way, samples) in samples.iter_mut().enumerate() {
                    let share = until.saturating_duration_since(Instant::now()) / left as u32;
                    left -= 1;
                    samples.extend(self.rate(way, read_bytes, *depth, share, stop)?);
                }
            }
        }
        let mut rates: Vec<DriveRate> = samples.iter().filter_map(|samples| DriveRate::median(samples)).collect();
        let direct = rates.iter().filter(|rate| rate.kind != ReaderKind::Buffered && rate.doubt.is_none());
        let best = direct.map(|rate| rate.bytes_per_second).fold(0.0, f64::max);
        for rate in &mut rates {
            if rate.kind == ReaderKind::Buffered && rate.doubt.is_none() && rate.bytes_per_second > best {
                rate.doubt = Some(Doubt::AboveDirect);
            }
        }
        Ok(rates)
    }

    fn rate(
        &mut self,
        way: usize,
        read_bytes: usize,
        depth: usize,
        time: Duration,
        stop: &Stop,
    ) -> Result<Option<DriveRate>, EngineError> {
        let Self { ways, cache, fresh, has_holes, .. } = self;
        let Way { kind, load, is_direct } = &mut ways[way];
        let is_buffered = !*is_direct;
        let mut doubt = has_holes.then_some(Doubt::Holes);
        doubt = (is_buffered && *kind != ReaderKind::Buffered).then_some(Doubt::NotDirect).or(doubt);
        let (begin, mut started, mut has_dropped) = (Instant::now(), 0, false);
        // Enough to see the drive at work; what is left of a small file is for the others.
        let most = (2 * depth).max((fresh.len_bytes / read_bytes as u64) as usize / Self::SHARES);
        let next = || {
            if begin.elapsed() >= time || started >= most || stop.load(Ordering::Relaxed) {
                return None;
            }
            let (offset, why) = if is_buffered {
                fresh.uncached(read_bytes, cache.as_mut(), &mut has_dropped)
            } else {
                // They take no notice of what the system has in memory.
                fresh.place(read_bytes, |_| true)
            };
            if why.is_some() && started >= depth {
                // It was measured before places ran out.
                return None;
            }
            started += 1;
            doubt = doubt.or(why);
            Some(FileRange { file: 0, offset, len_bytes: read_bytes })
        };
        let loaded = load.run(depth, next).map_err(ModelError::from)?;
        if stop.load(Ordering::Relaxed) {
            return Err(ModelError::Cancelled.into());
        }
        Ok((!loaded.is_empty()).then(|| DriveRate {
            kind: *kind,
            read_bytes,
            depth,
            reads: loaded.len(),
            bytes_per_second: reads_per_second(&loaded) * read_bytes as f64,
            seconds: Spread::of(loaded.iter().map(|read| (read.ended - read.started).as_secs_f64())),
            doubt,
        }))
    }

    /// What the system says about the drive that the file lies on.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

/// Of some rates of one length, the one with the fewest reads at a time that is nearly as good as the best of them.
pub fn best<'a>(rates: impl Iterator<Item = &'a DriveRate> + Clone) -> Option<&'a DriveRate> {
    let certain = rates.filter(|rate| rate.doubt.is_none());
    let most = certain.clone().map(|rate| rate.bytes_per_second).fold(0.0, f64::max);
    let nearly = certain.filter(|rate| rate.bytes_per_second >= most * (1.0 - DriveBench::AS_GOOD));
    nearly.min_by_key(|rate| rate.depth)
}

/// Whether a sixteenth of a file or more is not on the drive.
fn has_holes(about: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    const BLOCK_BYTES: u64 = 512;
    about.blocks().saturating_mul(BLOCK_BYTES) < about.len() - about.len() / 16
}

/// Whether reads by `load` leave nothing in the system's memory.
fn goes_past(load: &mut Load, cache: &mut PageCache, fresh: &mut Fresh) -> bool {
    const READS: usize = 8;
    let mut ranges = Vec::new();
    for _ in 0..READS {
        let (offset, doubt) = fresh.place(PAGE_BYTES, |range| !cache.has_any(range).unwrap_or(true));
        if doubt.is_some() {
            // Nothing is to be seen; its file system said that it is direct.
            return true;
        }
        ranges.push(FileRange { file: 0, offset, len_bytes: PAGE_BYTES });
    }
    let mut next = ranges.iter().copied();
    let has_read = load.run(1, || next.next()).is_ok();
    let page = PAGE_BYTES as u64;
    has_read && !ranges.iter().any(|range| cache.has_any(range.offset..range.offset + page).unwrap_or(true))
}

/// How many reads end in a second while the drive has as many as it is given.
fn reads_per_second(loaded: &[Loaded]) -> f64 {
    let last_start = loaded.iter().map(|read| read.started).max().expect("a read");
    let first = loaded[0].ended;
    // From the first end to the last one before the number of reads at a time goes down.
    let full: Vec<_> = loaded.iter().filter(|read| read.ended > first && read.ended <= last_start).collect();
    match (full.len(), full.last()) {
        (n, Some(last)) if n >= 4 => n as f64 / (last.ended - first).as_secs_f64(),
        _ => loaded.len() as f64 / loaded.last().expect("a read").ended.as_secs_f64(),
    }
}

/// Places in a file that were not read yet.
struct Fresh {
    len_bytes: u64,
    /// A bit for each page.
    read: Vec<u64>,
    read_bytes: u64,
    random: Random,
}

impl Fresh {
    /// Places that are looked at before it is said that there are no more.
    const TRIES: usize = 200;

    fn new(len_bytes: u64) -> Self {
        let words = len_bytes.div_ceil(64 * PAGE_BYTES as u64) as usize;
        Self { len_bytes, read: vec![0; words], read_bytes: 0, random: Random::named(seed(), "drive") }
    }

    /// Another length of reads begins. When little is left, all places are fresh again: none was read a short while ago.
    fn begin(&mut self) {
        if self.read_bytes > self.len_bytes / 2 {
            self.read.fill(0);
            self.read_bytes = 0;
        }
    }

    /// A place for a read through the system's memory, of which nothing is there. The file may be dropped from there once.
    fn uncached(
        &mut self,
        read_bytes: usize,
        cache: Option<&mut PageCache>,
        has_dropped: &mut bool,
    ) -> (u64, Option<Doubt>) {
        let Some(cache) = cache else {
            // The system does not tell.
            return (self.place(read_bytes, |_| true).0, Some(Doubt::Cached));
        };
        loop {
            let found = self.place(read_bytes, |range| !cache.has_any(range).unwrap_or(true));
            // Of a file that is small, or was just written, all may be there.
            if found.1 != Some(Doubt::Cached) || std::mem::replace(has_dropped, true) {
                return found;
            }
            let _ = cache.drop_pages();
        }
    }

    /// A place for a read, at a multiple of its length; by chance, and one that suits. When there seems to be none, any, and
    /// why it is no good.
    fn place(
        &mut self,
        read_bytes: usize,
        mut suits: impl FnMut(std::ops::Range<u64>) -> bool,
    ) -> (u64, Option<Doubt>) {
        let places = (self.len_bytes / read_bytes as u64) as usize;
        let mut doubt = Doubt::Repeated;
        let mut offset = 0;
        for _ in 0..Self::TRIES {
            offset = (self.random.below(places) * read_bytes) as u64;
            let pages = offset / PAGE_BYTES as u64..(offset + read_bytes as u64) / PAGE_BYTES as u64;
            let mut bits = pages.clone().map(|page| (page as usize / 64, 1 << (page % 64)));
            if bits.clone().any(|(word, bit)| self.read[word] & bit != 0) {
                continue;
            }
            if !suits(offset..offset + read_bytes as u64) {
                doubt = Doubt::Cached;
                continue;
            }
            bits.by_ref().for_each(|(word, bit): (usize, u64)| self.read[word] |= bit);
            self.read_bytes += read_bytes as u64;
            return (offset, None);
        }
        (offset, Some(doubt))
    }
}

/// Another one for every run: what one run has read, the drive may still remember at the next.
fn seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(1, |since| since.as_nanos() as u64)
}

/// Writes `len_bytes` bytes that no drive can compress, onto the drive itself; gives whether it was not stopped. `progress`
/// is told of bytes as they are written.
///
/// # Errors
/// When it cannot be written.
pub fn fill(mut file: &File, len_bytes: u64, stop: &Stop, progress: &mut dyn FnMut(u64)) -> std::io::Result<bool> {
    const PIECE_BYTES: usize = 4 << 20;
    const PIECES_A_SYNC: u64 = 16;
    let mut random = Random::named(seed(), "fill");
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    let mut left = len_bytes;
    while left > 0 {
        if stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        piece.clear();
        piece.extend((0..PIECE_BYTES / 8).flat_map(|_| random.next().to_le_bytes()));
        let part = &piece[..left.min(PIECE_BYTES as u64) as usize];
        file.write_all(part)?;
        left -= part.len() as u64;
        progress(part.len() as u64);
        if left.is_multiple_of(PIECES_A_SYNC * PIECE_BYTES as u64) {
            // So that it can be stopped at any time: the end of a large file would be one long wait.
            file.sync_data()?;
        }
    }
    file.sync_all()?;
    Ok(true)
}

fn unusable(path: &Path, problem: &str) -> EngineError {
    EngineError::Record { path: path.to_owned(), problem: problem.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_place_is_given_twice_until_all_were() {
        let mut fresh = Fresh::new(100 * 4096 + 5);
        let mut seen = HashSet::new();
        for _ in 0..10 {
            let (offset, doubt) = fresh.place(16_384, |_| true);
            assert_eq!((offset % 16_384, doubt), (0, None));
            assert!((0..4).all(|page| seen.insert(offset / 4096 + page)));
        }
        let mut given = 0;
        while let (offset, None) = fresh.place(4096, |_| true) {
            assert!(seen.insert(offset / 4096) && offset < 100 * 4096);
            given += 1;
        }
        assert!(given > 50, "{given} of 60");
        fresh.read.fill(u64::MAX);
        assert_eq!(fresh.place(4096, |_| true).1, Some(Doubt::Repeated));
        fresh.begin();
        assert_eq!(fresh.place(4096, |_| true).1, None, "more than half was read");
        fresh.begin();
        assert_eq!(fresh.read_bytes, 4096);
        assert_eq!(Fresh::new(40_960).place(4096, |_| false).1, Some(Doubt::Cached));
        let (offset, doubt) = Fresh::new(409_600).place(4096, |range| range.start == 8192);
        assert!(doubt.is_some() || offset == 8192);
    }

    #[test]
    fn the_rate_is_that_of_a_full_queue() {
        let at = Duration::from_millis;
        // Four at a time; one ends every 10 ms from 100 ms on. After 200 ms no more are started.
        let reads: Vec<_> = (0..14u64)
            .map(|i| Loaded { started: at(if i < 4 { 0 } else { 60 + 10 * i }), ended: at(100 + 10 * i) })
            .collect();
        assert!((reads_per_second(&reads) - 100.0).abs() < 1e-9);
        // Too few to see more than this.
        assert!((reads_per_second(&reads[..2]) - 2.0 / 0.11).abs() < 1e-9);
    }

    #[test]
    fn the_best_is_the_smallest_that_is_nearly_as_good() {
        let rate = |depth, bytes_per_second, doubt| DriveRate {
            kind: ReaderKind::Uring,
            read_bytes: 4096,
            depth,
            reads: 10,
            bytes_per_second,
            seconds: Spread::of([1.0]),
            doubt,
        };
        let rates =
            [rate(1, 50.0, None), rate(8, 97.5, None), rate(16, 100.0, None), rate(4, 500.0, Some(Doubt::Cached))];
        assert_eq!(best(rates.iter()).unwrap().depth, 8);
        assert_eq!(best(rates[3..].iter()), None);
    }

    #[test]
    fn a_file_is_measured_and_a_short_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![1; 3 << 20]).unwrap();
        let mut bench = DriveBench::open(&path, File::open(&path).unwrap()).unwrap();
        let stop = Stop::new(false);
        let time = Duration::from_millis(200);
        assert!(bench.measure(4 << 20, time, &stop).unwrap().is_empty(), "longer than the file");
        let rates = bench.measure(64 << 10, time, &stop).unwrap();
        assert!(rates.len() >= bench.ways().count());
        assert!(rates.iter().all(|rate| rate.reads > 0 && rate.bytes_per_second > 0.0 && rate.seconds.min > 0.0));
        stop.store(true, Ordering::Relaxed);
        assert!(bench.measure(4096, time, &stop).unwrap_err().is_cancelled());

        std::fs::write(&path, vec![1; 4095]).unwrap();
        let error = DriveBench::open(&path, File::open(&path).unwrap()).err().unwrap();
        assert!(error.to_string().contains("too short"), "{error}");
    }
}
