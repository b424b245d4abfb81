//! Models of a model hub (huggingface.co or a mirror), and the local cache that all its tools share.
//!
//! Owns: what a model of a hub is called, what a repository holds, how its bytes come here, and where they lie.
//! Promises: a file has its own name only when it is complete and, where the hub says what its SHA-256 is, that is what
//! was written; what came before an interruption is kept. Refuses: to write outside the cache or the folder it was given.

mod cache;
mod fetch;
mod names;
mod place;
mod problem;
mod remote;

pub(crate) use self::cache::{DEPTH, cache, cached_repos, models_in, resolve, token};
pub(crate) use self::fetch::{Fetch, Patience, Seen, fetch};
pub(crate) use self::names::{Choice, ModelName, choices, select};
pub(crate) use self::place::{Part, Place};
pub(crate) use self::problem::Problem;
pub(crate) use self::remote::{Hub, RemoteFile};

#[cfg(test)]
mod tests;
