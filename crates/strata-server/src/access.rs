//! Who may ask.
//!
//! Owns: keys, and the checks that keep a web page somewhere else from using a server on the user's own machine. Promises:
//! keys are compared in constant time. Refuses: to tell what was wrong with a key.

use axum::http::{HeaderMap, HeaderValue, header};
use subtle::ConstantTimeEq;

use crate::problem::{Kind, Problem};

/// Whether a path is open to everyone: it tells nothing, or is a file of the web page.
fn is_open(path: &str) -> bool {
    path == "/health" || path == "/" || path.starts_with("/assets/")
}

/// Who may ask.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Any of these lets in; empty: no key is needed.
    pub api_keys: Vec<String>,
    /// Whether requests must name this machine as their host, so that no other name can be made to lead here.
    pub is_local_only: bool,
    /// Where web pages may come from, besides this server's own.
    pub cors_origin: Option<HeaderValue>,
}

impl Access {
    pub(crate) fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), Problem> {
        let mut hosts = headers.get_all(header::HOST).iter();
        // One that is no text names no machine.
        let host = hosts.next().map_or("", |host| host.to_str().unwrap_or("?"));
        if self.is_local_only && (!is_this_machine(host) || hosts.next().is_some()) {
            let text = "the `Host` of the request is not this machine's own: use http://127.0.0.1 or http://localhost, or start the server with --api-key";
            return Err(Problem::new(Kind::Forbidden, text));
        }
        if let Some(origin) = headers.get(header::ORIGIN)
            && Some(origin) != self.cors_origin.as_ref()
            && !is_own(origin, host)
        {
            let text = "web pages of other origins may not ask: start the server with --cors-origin to let one";
            return Err(Problem::new(Kind::Forbidden, text));
        }
        if self.api_keys.is_empty() || is_open(path) {
            return Ok(());
        }
        let given = key(headers).unwrap_or_default();
        // All are compared, whichever fits.
        let fits = self.api_keys.iter().fold(false, |fits, key| fits | bool::from(key.as_bytes().ct_eq(given)));
        match fits {
            true => Ok(()),
            false => {
                let text = "a valid API key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`";
                Err(Problem::new(Kind::NoKey, text))
            }
        }
    }
}

fn key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(key.trim_ascii())
    });
    bearer.or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes))
}

/// Whether a `Host` names this machine; a missing one is no browser's.
fn is_this_machine(host: &str) -> bool {
    let port = host.bytes().rev().take_while(u8::is_ascii_digit).count();
    let name = host[..host.len() - port].strip_suffix(':').unwrap_or(host);
    matches!(name, "" | "127.0.0.1" | "[::1]") || name.eq_ignore_ascii_case("localhost")
}

fn is_own(origin: &HeaderValue, host: &str) -> bool {
    let origin = origin.to_str().unwrap_or_default();
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.is_some_and(|authority| !host.is_empty() && authority.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn only_this_machine_is_this_machine() {
        for host in ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:8080", "127.0.0.1", "[::1]", ""] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example:8080",
            "[::2]",
            "10.0.0.1",
            "?",
            "[::1",
            "[::1]x.evil",
            "::1",
        ] {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn keys_come_in_two_headers() {
        let access = Access { api_keys: vec!["one".to_owned(), "two".to_owned()], ..Access::default() };
        let is_let_in = |pairs: &[(&'static str, &str)]| access.check("/v1/models", &headers(pairs)).is_ok();
        assert!(is_let_in(&[("authorization", "Bearer one")]) && is_let_in(&[("authorization", "bearer two")]));
        assert!(is_let_in(&[("x-api-key", "two")]));
        for (name, value) in
            [("authorization", "Bearer on"), ("authorization", "one"), ("x-api-key", "onetwo"), ("x-api-key", "")]
        {
            assert!(!is_let_in(&[(name, value)]), "{name}: {value}");
        }
        assert!(!is_let_in(&[]));
        assert!(access.check("/health", &headers(&[])).is_ok());
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let mut access = Access { is_local_only: true, ..Access::default() };
        let check = |access: &Access, host: &str, origin: &str| {
            access.check("/v1/models", &headers(&[("host", host), ("origin", origin)])).is_ok()
        };
        assert!(check(&access, "127.0.0.1:8080", "http://127.0.0.1:8080"));
        assert!(!check(&access, "127.0.0.1:8080", "http://evil.example"));
        assert!(!check(&access, "127.0.0.1:8080", "null"));
        assert!(!check(&access, "evil.example", "http://evil.example"));
        // Two names, or one that is no text, are nobody's.
        let mut twice = headers(&[("host", "localhost")]);
        twice.append(header::HOST, HeaderValue::from_static("evil.example"));
        assert!(access.check("/v1/models", &twice).is_err());
        let strange = HeaderMap::from_iter([(header::HOST, HeaderValue::from_bytes(b"\xff\xfe").unwrap())]);
        assert!(access.check("/v1/models", &strange).is_err());
        access.cors_origin = Some(HeaderValue::from_static("http://evil.example"));
        assert!(check(&access, "127.0.0.1:8080", "http://evil.example"));
    }
}
