//! Flags of `strata pull` and `strata models`.

use std::path::PathBuf;

use clap::Args;

use super::at_least_one;

#[derive(Args, Debug)]
pub(crate) struct PullFlags {
    /// The model: OWNER/REPO, and which of its models where there are several: a file's name, or a tag such as Q4_K_M.
    #[arg(value_name = "OWNER/REPO[:FILE]")]
    pub(crate) model: String,
    /// Put the files into this folder [default: the cache that all tools of the hub share].
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Connections at a time.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) connections: u16,
    /// The hub or a mirror of it [default: HF_ENDPOINT, or https://huggingface.co].
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Who asks, for private and gated models [default: HF_TOKEN, or the file that the hub's login wrote].
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct ModelsFlags {
    /// Look into this folder too, and the folders in it.
    #[arg(long, value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// Tokens a text may have [default: the smaller of a model's own and 32768].
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    pub(crate) context: Option<usize>,
    /// Print one JSON object, in bytes.
    #[arg(long)]
    pub(crate) json: bool,
}
