//! `strata trace`: which experts a text uses.

use std::fs::File;

use strata_engine::trace as routes;

use crate::error::CliError;
use crate::flags::TraceRecordFlags;
use crate::interrupt::stoppable;
use crate::{bench, exact, interrupt, note, setup};

/// Tokens that are recorded when no text was named.
const TOKENS: usize = 1024;

pub(crate) fn record(flags: &TraceRecordFlags) -> Result<(), CliError> {
    interrupt::install()?;
    exact::check_output(&flags.output)?;
    let path = setup::model_path(flags.model.model.as_deref())?;
    let mut engine = setup::open(&path, &setup::engine_options(&flags.engine))?;
    let ids = match flags.text.named() {
        Ok(text) => text.read(&engine, flags.limit)?,
        Err(_) => bench::ids(&engine, None, flags.limit.unwrap_or(TOKENS))?,
    };
    let trace = stoppable(|stop| routes::record(&mut engine, &ids, stop))?;
    let failed = |error: &dyn std::fmt::Display| CliError::Failed(format!("{}: {error}", flags.output.display()));
    let mut file = File::create(&flags.output).map_err(|error| failed(&error))?;
    trace.write(&mut file).map_err(|error| failed(&error))?;
    let (name, tokens) = (flags.output.display(), trace.tokens());
    note::line(format_args!("{name}: routes of {tokens} tokens in {} layers", trace.layers));
    Ok(())
}
