//! `strata probe`: how fast a drive reads what a model needs.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde_json::{Value, json};
use strata_engine::bench::drive::{Device, Doubt, DriveBench, DriveRate, best, fill};
use strata_engine::{ReaderKind, Stop};
use tempfile::NamedTempFile;

use crate::error::CliError;
use crate::flags::ProbeFlags;
use crate::{interrupt, note, priority};

/// The length of the reads that experts are made of, nearly: three of 0.49 MB.
pub(crate) const EXPERT_READ_BYTES: usize = 512 << 10;
/// The length of the reads that rows of the n-gram table need.
pub(crate) const ROW_READ_BYTES: usize = 4 << 10;
/// A drive without moving parts answers sooner.
const SLOW_SECONDS: f64 = 2e-3;

pub(crate) fn probe(flags: &ProbeFlags) -> Result<(), CliError> {
    interrupt::install()?;
    interrupt::stoppable(|stop| {
        let mut bench = open(flags, stop)?;
        let mut out = std::io::stdout().lock();
        if !flags.json {
            for (kind, way) in bench.ways() {
                writeln!(out, "{:<10}{way}", kind.name())?;
            }
        }
        let until = Instant::now() + Duration::from_secs_f64(flags.seconds);
        let mut rates = Vec::new();
        for (index, read_bytes) in DriveBench::READ_BYTES.into_iter().enumerate() {
            let left = (DriveBench::READ_BYTES.len() - index) as u32;
            let row = bench.measure(read_bytes, until.saturating_duration_since(Instant::now()) / left, stop)?;
            match flags.json {
                true => row.iter().try_for_each(|rate| writeln!(out, "{}", rate_json(rate)))?,
                false => write_row(&mut out, read_bytes, &row)?,
            }
            out.flush()?;
            rates.extend(row);
        }
        let device = bench.device();
        match flags.json {
            true => writeln!(out, "{}", summary_json(device, &rates))?,
            false => write_summary(&mut out, device, &rates)?,
        }
        for warning in warnings(device, &rates) {
            note::line(format_args!("strata: warning: {warning}"));
        }
        Ok(())
    })
}

/// Opens the file to read; in a directory, one that is made for it and has no name any more.
fn open(flags: &ProbeFlags, stop: &Stop) -> Result<DriveBench, CliError> {
    let failed = |action: &str, error| CliError::Failed(format!("{}: {action}: {error}", flags.path.display()));
    if !flags.path.is_dir() {
        let file = File::open(&flags.path).map_err(|error| failed("cannot open it", error))?;
        return Ok(DriveBench::open(&flags.path, file)?);
    }
    check_free_space(&flags.path, flags.size_gb)?;
    let file = NamedTempFile::new_in(&flags.path).map_err(|error| failed("cannot make a file in it", error))?;
    let bar = ProgressBar::new(flags.size_gb).with_message("writing a temporary file");
    let filled = fill(file.as_file(), flags.size_gb, stop, &mut |bytes| bar.inc(bytes));
    bar.finish_and_clear();
    if !filled.map_err(|error| failed("cannot write a temporary file", error))? {
        return Err(CliError::Interrupted);
    }
    let handle = file.reopen().map_err(|error| failed("cannot open the temporary file", error))?;
    let bench = DriveBench::open(file.path(), handle)?;
    // It is open: nothing is left behind, however this ends.
    file.close().map_err(|error| failed("cannot remove the temporary file", error))?;
    Ok(bench)
}

fn check_free_space(dir: &Path, needed_bytes: u64) -> Result<(), CliError> {
    let free_bytes = fs4::available_space(dir)
        .map_err(|error| CliError::Failed(format!("{}: cannot ask for free space: {error}", dir.display())))?;
    if free_bytes >= needed_bytes {
        return Ok(());
    }
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    Err(CliError::Failed(format!(
        "{}: {:.2} GiB are free, but the temporary file takes {:.2}: use a smaller --size-gb",
        dir.display(),
        gib(free_bytes),
        gib(needed_bytes)
    )))
}

/// The rates of one length: a line for each way, a column for each number of reads at a time.
fn write_row(out: &mut impl Write, read_bytes: usize, rates: &[DriveRate]) -> Result<(), CliError> {
    write!(out, "\n{:<16}", format!("{} KiB, GB/s", read_bytes >> 10))?;
    for depth in DriveBench::depths(read_bytes) {
        write!(out, "{depth:>8}")?;
    }
    writeln!(out, "   at a time")?;
    let mut doubts = Vec::new();
    for kind in [ReaderKind::Uring, ReaderKind::Threads, ReaderKind::Buffered] {
        if !rates.iter().any(|rate| rate.kind == kind) {
            continue;
        }
        write!(out, "{:<16}", kind.name())?;
        for depth in DriveBench::depths(read_bytes) {
            let rate = rates.iter().find(|rate| (rate.kind, rate.depth) == (kind, depth));
            let mark = match rate.and_then(|rate| rate.doubt) {
                None => ' ',
                Some(doubt) => {
                    let at = doubts.iter().position(|known| *known == doubt).unwrap_or_else(|| {
                        doubts.push(doubt);
                        doubts.len() - 1
                    });
                    char::from(b'a' + at as u8)
                }
            };
            match rate {
                Some(rate) => write!(out, "{:>7.3}{mark}", rate.bytes_per_second / 1e9)?,
                None => write!(out, "{:>7}{mark}", "-")?,
            }
        }
        writeln!(out)?;
    }
    for (at, doubt) in doubts.iter().enumerate() {
        writeln!(out, "{}: {}", char::from(b'a' + at as u8), doubt.name())?;
    }
    Ok(())
}

/// What direct reads of this length gave that is beyond doubt: the fewest at a time that are nearly as good as the best.
pub(crate) fn best_of(rates: &[DriveRate], read_bytes: usize) -> Option<&DriveRate> {
    best(rates.iter().filter(|rate| rate.read_bytes == read_bytes && rate.kind != ReaderKind::Buffered))
}

/// A small read alone.
pub(crate) fn small_read(rates: &[DriveRate]) -> Option<&DriveRate> {
    best(
        rates
            .iter()
            .filter(|rate| (rate.read_bytes, rate.depth) == (ROW_READ_BYTES, 1) && rate.kind != ReaderKind::Buffered),
    )
}

fn write_summary(out: &mut impl Write, device: &Device, rates: &[DriveRate]) -> Result<(), CliError> {
    writeln!(out, "\n{:<16}{}", "drive", device.name.as_deref().unwrap_or("unknown"))?;
    if let Some(rate) = best_of(rates, EXPERT_READ_BYTES) {
        writeln!(
            out,
            "{:<16}{:.2} GB/s by {} with {} reads of {} KiB at a time: `strata plan --drive-gb {:.2}`",
            "experts",
            rate.bytes_per_second / 1e9,
            rate.kind,
            rate.depth,
            rate.read_bytes >> 10,
            rate.bytes_per_second / (1u64 << 30) as f64
        )?;
    }
    if let Some(rate) = best_of(rates, ROW_READ_BYTES) {
        writeln!(
            out,
            "{:<16}{:.0} a second by {} with {} reads at a time",
            "table rows",
            rate.bytes_per_second / rate.read_bytes as f64,
            rate.kind,
            rate.depth
        )?;
    }
    if let Some(rate) = small_read(rates) {
        writeln!(out, "{:<16}{:.3} ms, alone, by {}", "a small read", rate.seconds.median * 1e3, rate.kind)?;
    }
    if best_of(rates, EXPERT_READ_BYTES).is_none() {
        writeln!(out, "nothing is certain about experts: no direct reads of that length were measured")?;
    }
    Ok(())
}

fn rate_json(rate: &DriveRate) -> Value {
    json!({
        "reader": rate.kind.name(),
        "read_bytes": rate.read_bytes,
        "depth": rate.depth,
        "reads": rate.reads,
        "bytes_per_second": rate.bytes_per_second,
        "read_seconds_median": rate.seconds.median,
        "read_seconds_max": rate.seconds.max,
        "doubt": rate.doubt.map(Doubt::name),
    })
}

fn summary_json(device: &Device, rates: &[DriveRate]) -> Value {
    let best = |rate: Option<&DriveRate>| rate.map(rate_json);
    json!({
        "drive": device.name,
        "rotational": device.is_rotational,
        "removable": device.is_removable,
        "experts": best(best_of(rates, EXPERT_READ_BYTES)),
        "rows": best(best_of(rates, ROW_READ_BYTES)),
        "small_read_seconds": small_read(rates).map(|rate| rate.seconds.median),
        "warnings": warnings(device, rates),
    })
}

pub(crate) fn warnings(device: &Device, rates: &[DriveRate]) -> Vec<String> {
    let mut warnings = Vec::new();
    let rows = best_of(rates, ROW_READ_BYTES).map(|rate| rate.bytes_per_second / rate.read_bytes as f64);
    let rows = rows.map_or_else(String::new, |rows| format!(", {rows:.0} table rows a second at most"));
    let turns = device.is_rotational == Some(true);
    match small_read(rates).map(|rate| rate.seconds.median) {
        Some(seconds) if seconds > SLOW_SECONDS => {
            let what = if turns { "this drive turns" } else { "this drive is slow" };
            warnings.push(format!(
                "{what}: a small read takes {:.1} ms{rows}; use one without moving parts",
                seconds * 1e3
            ));
        }
        // Drives of virtual machines say so, too; but they answer at once.
        Some(_) => {}
        None if turns => {
            warnings.push("the system says that this drive turns; small reads were not measured".to_owned());
        }
        None => {}
    }
    if device.is_removable == Some(true) {
        warnings
            .push("this drive can be taken away, or hangs on a USB cable: its speed is that of the cable".to_owned());
    }
    warnings.extend(priority::warning());
    warnings
}

#[cfg(test)]
mod tests {
    use strata_engine::bench::Spread;

    use super::*;

    #[test]
    fn field_report_28_drives_that_turn_are_told_with_their_rows() {
        let rate = |read_bytes: usize, seconds: f64| DriveRate {
            kind: ReaderKind::Threads,
            read_bytes,
            depth: 1,
            reads: 10,
            bytes_per_second: read_bytes as f64 / seconds,
            seconds: Spread::of([seconds]),
            doubt: None,
        };
        let turning = Device { is_rotational: Some(true), ..Device::default() };
        let told = warnings(&turning, &[rate(ROW_READ_BYTES, 0.01)]).join("\n");
        assert!(told.contains("this drive turns") && told.contains("10.0 ms, 100 table rows a second"), "{told}");
        let told = warnings(&Device::default(), &[rate(ROW_READ_BYTES, 0.01)]).join("\n");
        assert!(told.contains("this drive is slow"), "{told}");
        // Drives of virtual machines say that they turn, and answer at once.
        let told = warnings(&turning, &[rate(ROW_READ_BYTES, 1e-4)]).join("\n");
        assert!(!told.contains("turns") && !told.contains("slow"), "{told}");
        let told = warnings(&Device { is_removable: Some(true), ..Device::default() }, &[]).join("\n");
        assert!(told.contains("USB cable"), "{told}");
    }
}
