//! Names of answers.

use std::time::{SystemTime, UNIX_EPOCH};

/// The name of an answer, which its parts share.
#[derive(Clone, Debug)]
pub(crate) struct Id(String);

impl Id {
    /// One that no other answer has.
    pub(crate) fn new() -> Self {
        let random = |_| getrandom::u64().unwrap_or_default();
        let [a, b] = [0, 1].map(random);
        Self(format!("{a:016x}{b:016x}"))
    }

    /// With what an API puts before it.
    pub(crate) fn with(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.0)
    }

    /// Of the answer's tool call `index`.
    pub(crate) fn call(&self, index: usize) -> String {
        format!("call_{}{index:02}", &self.0[..22])
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
