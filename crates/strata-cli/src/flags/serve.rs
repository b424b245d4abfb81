//! Flags of the server.

use std::path::PathBuf;

use clap::Args;

use super::{DraftFlags, EngineFlags, ModelFlags, at_least_one};

#[derive(Args, Debug)]
pub(crate) struct ServeFlags {
    /// Address to listen at. Others than this machine's own need a key, or --insecure.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen at; 0 = any that is free.
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(crate) port: u16,
    /// Key that requests must bring, as `Authorization: Bearer KEY` or `x-api-key: KEY`. Who lists this machine's processes
    /// sees it here: a file is better.
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Vec<String>,
    /// File with such keys, one a line.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Let everybody who can reach the address ask.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Let web pages of this origin ask, such as https://chat.example.
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) cors_origin: Option<String>,
    /// The name that clients are told [default: that of the file].
    #[arg(long, value_name = "NAME", value_parser = a_name)]
    pub(crate) name: Option<String>,
    /// Requests that are answered at the same time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = at_least_one)]
    pub(crate) parallel: usize,
    /// Requests that may wait; more are told to come back later.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) queue: usize,
    /// Prefixes of texts that are kept in memory, so that they need not be read again.
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub(crate) checkpoints: usize,
    /// In a long prompt, one is kept at least every so many tokens.
    #[arg(long, value_name = "TOKENS", default_value_t = 2048, value_parser = at_least_one)]
    pub(crate) checkpoint_every: usize,
    /// Folder in which prefixes are kept for later runs. Texts are in it: who can read it can read them.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) prefix_disk: Option<PathBuf>,
    /// The most that this folder may hold; the longest unused go first.
    #[arg(long, value_name = "GIB", default_value = "8", value_parser = super::gib)]
    pub(crate) prefix_disk_gb: u64,
    /// Let answers that the context has no room for have what is left of it, instead of refusing their requests. Coding
    /// tools ask for very long answers.
    #[arg(long)]
    pub(crate) fit_answers: bool,
    /// The largest body of a request.
    #[arg(long, value_name = "MB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) max_body_mb: u32,
    /// A request without progress for so many seconds is ended.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) stall_s: u64,
    /// An answer that is not complete after so many seconds is ended [default: no limit].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    pub(crate) time_limit_s: Option<u64>,
    #[command(flatten)]
    pub(crate) model: ModelFlags,
    #[command(flatten)]
    pub(crate) drafts: DraftFlags,
    #[command(flatten)]
    pub(crate) engine: EngineFlags,
}

fn a_name(text: &str) -> Result<String, String> {
    match text.trim().is_empty() || text.contains(char::is_control) {
        true => Err("expected a name in one line".to_owned()),
        false => Ok(text.to_owned()),
    }
}
