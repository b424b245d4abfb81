//! `--timeline` and `strata report`: what happened when in a run, as a file and as a page.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use strata_engine::{Timeline, Trace};

use crate::error::CliError;
use crate::flags::ReportFlags;
use crate::{exact, note};

/// The recorder for a --timeline, or one that is off. Whether the file can be written is seen before the run.
pub(crate) fn recorder(path: Option<&Path>) -> Result<Timeline, CliError> {
    let Some(path) = path else { return Ok(Timeline::off()) };
    exact::check_output(path)?;
    Ok(Timeline::with_room(Timeline::DEFAULT_ROOM))
}

/// Writes what was recorded to the file of a --timeline, if there is one.
pub(crate) fn write(timeline: &Timeline, path: Option<&Path>, title: &str, details: &str) -> Result<(), CliError> {
    let Some(path) = path else { return Ok(()) };
    let trace = Trace::new(title, details, &timeline.take());
    let written = File::create(path).and_then(|file| {
        let mut out = BufWriter::new(file);
        trace.write(&mut out)?;
        out.flush()
    });
    written.map_err(|error| CliError::Failed(format!("{}: cannot write the timeline: {error}", path.display())))?;
    note::line(format_args!("{}: {} spans", path.display(), trace.spans.len()));
    if trace.dropped_spans > 0 {
        note::line(format_args!(
            "strata: warning: the end of the run was not recorded: {} spans had no room",
            trace.dropped_spans
        ));
    }
    Ok(())
}

pub(crate) fn report(flags: &ReportFlags) -> Result<(), CliError> {
    exact::check_output(&flags.output)?;
    let name = flags.input.display();
    let file = File::open(&flags.input).and_then(|file| Ok((file.metadata()?.len(), file)));
    let (len_bytes, file) = file.map_err(|error| CliError::Failed(format!("{name}: {error}")))?;
    let trace = Trace::read(file, len_bytes).map_err(|error| CliError::Failed(format!("{name}: {error}")))?;
    std::fs::write(&flags.output, trace.page())
        .map_err(|error| CliError::Failed(format!("{}: cannot write the page: {error}", flags.output.display())))?;
    note::line(format_args!("{}: {} spans", flags.output.display(), trace.spans.len()));
    Ok(())
}
