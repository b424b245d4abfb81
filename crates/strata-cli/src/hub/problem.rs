//! What can go wrong between here and a hub: what it is, whether trying again can help, and what a user can do.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::time::Duration;

/// The longest that a server's wish to wait is heeded: the hub counts requests of five minutes.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(crate) enum Problem {
    /// No connection, or it broke.
    Connection(String),
    /// The server refuses, in HTTP's numbers; and how long it wants to be left alone.
    Status { status: u16, wait: Option<Duration> },
    /// It answered with all of the file where a part was asked for.
    NoRanges,
    /// It sends something else than what the hub lists.
    Different(String),
    /// All bytes came, and they are not those that the hub has.
    Checksum { expected: String, got: String },
    /// The hub's answer makes no sense.
    Answer(String),
    /// A file here cannot be read or written.
    File { path: PathBuf, problem: String },
}

impl Problem {
    pub(crate) fn file(path: &std::path::Path, problem: &impl ToString) -> Self {
        Self::File { path: path.to_owned(), problem: problem.to_string() }
    }

    /// Whether the same may go well a little later. A refusal may be due to a link that expired, if `was_served` before.
    pub(crate) fn may_pass(&self, was_served: bool) -> bool {
        match self {
            Self::Connection(_) => true,
            Self::Status { status: 408 | 429 | 500..=599, wait } => wait.is_none_or(|wait| wait <= LONGEST_WAIT),
            Self::Status { status: 401 | 403 | 404 | 410, .. } => was_served,
            _ => false,
        }
    }

    /// How long to wait before the next try, after `failures` of them.
    pub(crate) fn wait(&self, first: Duration, failures: u32) -> Duration {
        let growing = first * 2u32.pow(failures.clamp(1, 6) - 1);
        match self {
            Self::Status { wait: Some(wait), .. } => growing.max(*wait),
            _ => growing,
        }
    }

    /// What a user can do.
    pub(crate) fn advice(&self, endpoint: &str, repo: &str, has_token: bool) -> String {
        let mirror = "another --endpoint URL (a mirror of the hub) may serve it";
        match self {
            Self::Status { status: 401 | 403, .. } if has_token => format!(
                "the token does not give access: accept the model's terms at {endpoint}/{repo}, or use another --token; \
                 {mirror}"
            ),
            Self::Status { status: 401 | 403, .. } => format!(
                "it may be private, gated (accept its terms at {endpoint}/{repo}) or misspelt: give --token TOKEN or set \
                 HF_TOKEN; {mirror}"
            ),
            Self::Status { status: 404 | 410, .. } => {
                format!("check the name at {endpoint}/{repo}; a private one needs --token TOKEN")
            }
            Self::Status { status: 429, .. } => {
                format!("wait a few minutes; with --token TOKEN the hub allows more requests; {mirror}")
            }
            Self::Connection(_) | Self::Status { .. } | Self::Answer(_) => {
                format!("check the network, or try again later; {mirror}")
            }
            Self::NoRanges | Self::Different(_) | Self::Checksum { .. } => {
                format!("the file may have been changed meanwhile: pull it again; {mirror}")
            }
            Self::File { .. } => "--folder DIR puts the files elsewhere".to_owned(),
        }
    }
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(problem) => write!(f, "the connection failed: {problem}"),
            Self::Status { status, .. } => {
                let name = reqwest::StatusCode::from_u16(*status).ok().and_then(|status| status.canonical_reason());
                write!(f, "the server answered {status} {}", name.unwrap_or_default())
            }
            Self::NoRanges => write!(f, "the server sends whole files only"),
            Self::Different(what) => f.write_str(what),
            Self::Checksum { expected, got } => {
                write!(f, "the SHA-256 of what came is {got}, but the hub has {expected}; the partial file was removed")
            }
            Self::Answer(problem) => write!(f, "the hub's answer makes no sense: {problem}"),
            Self::File { path, problem } => write!(f, "{}: {problem}", path.display()),
        }
    }
}

impl From<reqwest::Error> for Problem {
    fn from(error: reqwest::Error) -> Self {
        // Its own text is the outermost cause only, and repeats the address, which may be signed.
        let error = error.without_url();
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(next) = cause {
            text = format!("{text}: {next}");
            cause = next.source();
        }
        Self::Connection(text)
    }
}
