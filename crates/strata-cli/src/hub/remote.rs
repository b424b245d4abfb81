//! What a hub says about a repository, and requests to it.

use std::time::Duration;

use hf_hub::{Repo, RepoType};
use reqwest::header::RETRY_AFTER;
use reqwest::{Client, RequestBuilder, Response, Url};
use serde_json::Value;

use super::{Patience, Problem, names::is_plain};

/// A longer answer is no list of files.
const MOST_ANSWER_BYTES: usize = 32 << 20;
const CONNECT_WITHIN: Duration = Duration::from_secs(20);
/// Silence of this length is a broken connection.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// A hub, and who asks.
#[derive(Clone, Debug)]
pub(crate) struct Hub {
    endpoint: Url,
    token: Option<String>,
    client: Client,
}

/// A repository at one commit.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) files: Vec<RemoteFile>,
}

/// A GGUF file of a repository.
#[derive(Clone, Debug)]
pub(crate) struct RemoteFile {
    /// Name below the repository.
    pub(crate) name: String,
    pub(crate) len_bytes: u64,
    /// What the hub's cache calls its bytes.
    pub(crate) etag: String,
    /// `None`: the hub does not say.
    pub(crate) sha256: Option<String>,
}

impl Hub {
    /// `endpoint` as in `https://huggingface.co`.
    pub(crate) fn new(endpoint: &str, token: Option<String>) -> Result<Self, String> {
        let url = Url::parse(endpoint.trim_end_matches('/')).map_err(|error| format!("{endpoint}: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(format!("{endpoint}: expected a URL such as https://huggingface.co"));
        }
        let mut client = Client::builder()
            .user_agent(concat!("strata/", env!("CARGO_PKG_VERSION")))
            // The newer protocol would send all pieces over one connection, at one connection's rate.
            .http1_only()
            .connect_timeout(CONNECT_WITHIN)
            .read_timeout(READ_WITHIN);
        if matches!(url.host_str(), Some("127.0.0.1" | "localhost" | "[::1]")) {
            // No proxy leads back here.
            client = client.no_proxy();
        }
        Ok(Self { endpoint: url, token, client: client.build().map_err(|error| error.to_string())? })
    }

    pub(crate) fn endpoint(&self) -> &str {
        self.endpoint.as_str().trim_end_matches('/')
    }

    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// A request. The token goes to the hub only, not to where it sends us for bytes.
    pub(crate) fn get(&self, url: Url) -> RequestBuilder {
        let token = self.token.as_ref().filter(|_| url.origin() == self.endpoint.origin());
        let request = self.client.get(url);
        match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Where a file is asked for.
    pub(crate) fn file_url(&self, repo: &str, commit: &str, name: &str) -> Url {
        let mut url = self.endpoint.clone();
        let steps = repo.split('/').chain(["resolve", commit]).chain(name.split('/'));
        url.path_segments_mut().expect("http addresses have paths").pop_if_empty().extend(steps);
        url
    }

    /// The GGUF files of a repository.
    pub(crate) async fn list(&self, repo: &str, mut patience: Patience) -> Result<Listing, Problem> {
        let path = Repo::new(repo.to_owned(), RepoType::Model).api_url();
        let url = Url::parse(&format!("{}/api/{path}?blobs=true", self.endpoint())).expect("a checked name");
        loop {
            match self.answer(url.clone()).await.and_then(|answer| read_listing(&answer)) {
                Ok(listing) => return Ok(listing),
                Err(problem) => patience.wait(problem, false).await?,
            }
        }
    }

    async fn answer(&self, url: Url) -> Result<Value, Problem> {
        let mut response = accepted(self.get(url).send().await?)?;
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if answer.len() + chunk.len() > MOST_ANSWER_BYTES {
                return Err(Problem::Answer(format!("it is longer than {MOST_ANSWER_BYTES} bytes")));
            }
            answer.extend_from_slice(&chunk);
        }
        serde_json::from_slice(&answer).map_err(|error| Problem::Answer(error.to_string()))
    }
}

/// An answer that is no refusal.
pub(crate) fn accepted(response: Response) -> Result<Response, Problem> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let wait = response.headers().get(RETRY_AFTER).and_then(|wait| wait.to_str().ok()?.trim().parse().ok());
    Err(Problem::Status { status: status.as_u16(), wait: wait.map(Duration::from_secs) })
}

/// The files and their checksums, as the hub's `blobs=true` gives them.
fn read_listing(answer: &Value) -> Result<Listing, Problem> {
    let missing = |what: &str| Problem::Answer(format!("it has no {what}"));
    let commit = answer["sha"].as_str().filter(|sha| is_hex(sha)).ok_or_else(|| missing("commit (`sha`)"))?;
    let siblings = answer["siblings"].as_array().ok_or_else(|| missing("files (`siblings`)"))?;
    let mut files = Vec::new();
    for sibling in siblings {
        let Some(name) = sibling["rfilename"].as_str().filter(|name| name.ends_with(".gguf") && is_plain(name)) else {
            continue;
        };
        let sha256 = sibling["lfs"]["sha256"].as_str().filter(|sha| is_hex(sha) && sha.len() == 64);
        let len_bytes = sibling["lfs"]["size"].as_u64().or(sibling["size"].as_u64());
        let etag = sha256.or(sibling["blobId"].as_str().filter(|id| is_hex(id)));
        let (Some(len_bytes), Some(etag)) = (len_bytes, etag) else {
            return Err(missing(&format!("size and hash of {name}")));
        };
        let sha256 = sha256.map(str::to_ascii_lowercase);
        files.push(RemoteFile { name: name.to_owned(), len_bytes, etag: etag.to_ascii_lowercase(), sha256 });
    }
    Ok(Listing { commit: commit.to_owned(), files })
}

/// Whether a text can only be a hash, and so is safe as a file's name.
fn is_hex(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_listing_is_read_and_what_could_leave_the_folder_is_left_out() {
        let sha = "a".repeat(64);
        let answer = json!({ "sha": "0123abc", "siblings": [
            { "rfilename": "README.md" },
            { "rfilename": "x/m.gguf", "size": 134, "blobId": "b".repeat(40), "lfs": { "sha256": sha, "size": 7 } },
            { "rfilename": "../../m.gguf", "size": 5, "blobId": "b".repeat(40) },
            { "rfilename": "small.gguf", "size": 5, "blobId": "c".repeat(40) },
        ]});
        let listing = read_listing(&answer).unwrap();
        assert_eq!(listing.commit, "0123abc");
        let [file, small] = &listing.files[..] else { panic!("{listing:?}") };
        assert_eq!((file.name.as_str(), file.len_bytes, &file.etag), ("x/m.gguf", 7, &sha));
        assert_eq!((small.len_bytes, small.etag.len(), &small.sha256), (5, 40, &None));
        for wrong in [
            json!({ "siblings": [] }),
            json!({ "sha": "../../../etc", "siblings": [] }),
            json!({ "sha": "0123abc" }),
            json!({ "sha": "0123abc", "siblings": [{ "rfilename": "m.gguf" }] }),
            json!({ "sha": "0123abc", "siblings": [{ "rfilename": "m.gguf", "size": -1, "blobId": "c0ffee1" }] }),
            json!({ "sha": "0123abc", "siblings": [{ "rfilename": "m.gguf", "size": 5, "blobId": "../../x" }] }),
            json!([1]),
        ] {
            assert!(matches!(read_listing(&wrong), Err(Problem::Answer(_))), "{wrong}");
        }
    }

    #[test]
    fn addresses_are_escaped() {
        let hub = Hub::new("http://localhost:1/mirror/", None).unwrap();
        let url = hub.file_url("o/r", "abc", "d/a b?#%.gguf");
        assert_eq!(url.as_str(), "http://localhost:1/mirror/o/r/resolve/abc/d/a%20b%3F%23%25.gguf");
        for wrong in ["huggingface.co", "file:///etc", "http://", ""] {
            assert!(Hub::new(wrong, None).is_err(), "{wrong}");
        }
    }
}
