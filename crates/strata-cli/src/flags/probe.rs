//! Flags of `strata probe`.

use std::path::PathBuf;

use clap::Args;

use super::plan::gib;

#[derive(Args, Debug)]
pub(crate) struct ProbeFlags {
    /// A large file on the drive, such as a model. Of a directory, a temporary file in it, which is removed afterwards.
    #[arg(value_name = "FILE|DIR")]
    pub(crate) path: PathBuf,
    /// Size of the temporary file, in GiB.
    #[arg(long, value_name = "GIB", value_parser = gib, default_value = "4")]
    pub(crate) size_gb: u64,
    /// About how long to measure, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "20")]
    pub(crate) seconds: f64,
    /// Print one JSON object a line, in bytes and seconds.
    #[arg(long)]
    pub(crate) json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number of seconds from 0.1 to 86400".to_owned()),
    }
}
