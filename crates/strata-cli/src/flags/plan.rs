//! Flags of `strata plan`.

use clap::Args;

use super::{ModelFlags, at_least_one};

#[derive(Args, Debug)]
pub(crate) struct PlanFlags {
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    /// The most memory of the whole process, in GiB [default: what the machine can spare].
    #[arg(long, value_name = "GIB", value_parser = gib)]
    pub(crate) memory_gb: Option<u64>,
    /// The most memory of the arena of experts, in GiB [default: what is left].
    #[arg(long, value_name = "GIB", value_parser = gib)]
    pub(crate) arena_gb: Option<u64>,
    /// Tokens a text may have [default: the smaller of the model's own and 32768].
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    pub(crate) context: Option<usize>,
    /// Tokens of a prompt that go through the layers together [default: as memory allows, at most 8192].
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    pub(crate) pass: Option<usize>,
    /// Compute, and keep the context, in float32.
    #[arg(long)]
    pub(crate) precise: bool,
    /// What the drive reads in a second, in GiB; without it, the time of prompts is not foretold.
    #[arg(long, value_name = "GIB", value_parser = gib)]
    pub(crate) drive_gb: Option<u64>,
    /// Print one JSON object, in bytes and seconds.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads GiB, with decimals, as bytes.
pub(super) fn gib(text: &str) -> Result<u64, String> {
    let bytes = text.parse::<f64>().map(|gib| gib * (1u64 << 30) as f64);
    match bytes {
        Ok(bytes) if bytes >= 1.0 && bytes < (1u64 << 62) as f64 => Ok(bytes as u64),
        _ => Err("expected a number of GiB above 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::gib;

    #[test]
    fn sizes_have_decimals() {
        assert_eq!((gib("6.5"), gib("1"), gib("1e-9")), (Ok(13 << 29), Ok(1 << 30), Ok(1)));
        for wrong in ["", "0", "-1", "nan", "inf", "1e30", "8GB", "0x10"] {
            assert!(gib(wrong).is_err(), "{wrong}");
        }
    }
}
