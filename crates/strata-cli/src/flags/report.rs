//! Flags of `strata report`.

use std::path::PathBuf;

use clap::Args;

#[derive(Args, Debug)]
pub(crate) struct ReportFlags {
    /// What --timeline of `run` and `bench` wrote.
    #[arg(value_name = "TIMELINE.json")]
    pub(crate) input: PathBuf,
    /// Page to write (HTML), complete in itself.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}
