//! Flags of drafts.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use strata_engine::MOST_DRAFTS;

/// Tokens that are guessed and checked several at a time. None of these changes a text.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Drafts")]
pub(crate) struct DraftFlags {
    /// Where drafts come from. While they do not pay, there are none.
    #[arg(long, value_enum, default_value_t = DraftFlag::Off)]
    pub(crate) draft: DraftFlag,
    /// The most drafts at a time.
    #[arg(long, value_name = "N", default_value_t = MOST_DRAFTS as u32, value_parser = clap::value_parser!(u32).range(1..=MOST_DRAFTS as i64))]
    pub(crate) draft_max: u32,
    /// The model's draft head, where it is a file of its own (GGUF).
    #[arg(long, value_name = "FILE")]
    pub(crate) mtp: Option<PathBuf>,
    /// What the draft head's norm of the streams is taken over; try which one drafts better.
    #[arg(long, value_enum, default_value_t = NormFlag::One)]
    pub(crate) mtp_norm: NormFlag,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DraftFlag {
    /// No drafts.
    Off,
    /// What followed when the text had its last tokens before.
    Lookup,
    /// The model's draft head.
    Mtp,
    /// The draft head where there is one, else look-up.
    Auto,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NormFlag {
    /// All streams together.
    One,
    /// Each stream by itself.
    Grouped,
}
