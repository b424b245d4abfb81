//! Flags of `strata plan`.

use clap::Args;

use super::{EngineFlags, ModelFlags};

#[derive(Args, Debug)]
pub(crate) struct PlanFlags {
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    #[command(flatten)]
    pub(crate) engine: EngineFlags,
    /// What the drive reads in a second, in GiB; without it, the time of prompts is not foretold.
    #[arg(long, value_name = "GIB", value_parser = gib)]
    pub(crate) drive_gb: Option<u64>,
    /// Print one JSON object, in bytes and seconds.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads GiB, with decimals, as bytes.
pub(crate) fn gib(text: &str) -> Result<u64, String> {
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
