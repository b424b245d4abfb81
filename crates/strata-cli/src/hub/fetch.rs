//! The bytes of a file: pieces over several connections, written in order.
//!
//! Promises: what is written is the file's beginning, without gaps, at every moment; a broken connection costs no byte
//! that came over it; a link to bytes that expired is asked for anew. Refuses: to go on where the server's file has
//! another length than the hub's list says.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::header::{CONTENT_RANGE, RANGE};
use reqwest::{Response, StatusCode, Url};
use tokio::task::JoinHandle;

use super::remote::accepted;
use super::{Hub, Part, Problem};

/// How often something is tried that may go well a little later.
#[derive(Clone, Debug)]
pub(crate) struct Patience {
    /// Failures in a row that are borne.
    pub(crate) failures: u32,
    /// The wait after the first; it doubles with each.
    pub(crate) first_wait: Duration,
    /// Failures so far.
    pub(crate) failed: u32,
}

impl Patience {
    /// Waits until the next try; gives the problem back if it will not pass, or was borne often enough.
    pub(crate) async fn wait(&mut self, problem: Problem, was_served: bool) -> Result<(), Problem> {
        self.failed += 1;
        if self.failed > self.failures || !problem.may_pass(was_served) {
            return Err(problem);
        }
        tokio::time::sleep(problem.wait(self.first_wait, self.failed)).await;
        Ok(())
    }
}

/// One file to fetch.
pub(crate) struct Fetch {
    pub(crate) hub: Hub,
    pub(crate) url: Url,
    pub(crate) len_bytes: u64,
    pub(crate) connections: usize,
    pub(crate) piece_bytes: u64,
    pub(crate) patience: Patience,
    pub(crate) seen: Arc<Seen>,
}

/// How it goes, for whoever shows it.
#[derive(Default)]
pub(crate) struct Seen {
    /// Bytes that are here.
    pub(crate) here_bytes: AtomicU64,
    /// What went wrong last, and is tried again.
    pub(crate) trouble: Mutex<Option<String>>,
}

/// Adds to a part what is missing.
pub(crate) async fn fetch(what: Fetch, part: &mut Part) -> Result<(), Problem> {
    what.seen.here_bytes.store(part.len_bytes(), Ordering::Relaxed);
    let source = Arc::new(Source { what, link: Mutex::new(None), was_served: AtomicBool::new(false) });
    let (len_bytes, piece_bytes) = (source.what.len_bytes, source.what.piece_bytes);
    let mut next = part.len_bytes();
    let mut pieces: VecDeque<Running> = VecDeque::new();
    loop {
        // The first one alone tells whether the server gives pieces at all.
        let most = if source.was_served.load(Ordering::Relaxed) { source.what.connections } else { 1 };
        while pieces.len() < most && next < len_bytes {
            let range = next..len_bytes.min(next + piece_bytes);
            next = range.end;
            pieces.push_back(Running(tokio::spawn(Arc::clone(&source).piece(range))));
        }
        let Some(mut first) = pieces.pop_front() else { return Ok(()) };
        let (bytes, problem) = (&mut first.0).await.map_err(|error| Problem::Connection(error.to_string()))?;
        part.append(&bytes)?;
        match problem {
            None => {}
            Some(Problem::NoRanges) => return source.whole(part).await,
            Some(problem) => return Err(problem),
        }
    }
}

/// A piece on its way; it ends with whoever wants it.
struct Running(JoinHandle<(Vec<u8>, Option<Problem>)>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Source {
    what: Fetch,
    /// Where the hub sent us for the bytes: asking it for each piece would use up the requests that it allows.
    link: Mutex<Option<Url>>,
    was_served: AtomicBool,
}

impl Source {
    /// A piece, or the beginning of it and why no more came.
    async fn piece(self: Arc<Self>, range: Range<u64>) -> (Vec<u8>, Option<Problem>) {
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        let mut patience = self.what.patience.clone();
        loop {
            let had = bytes.len();
            let Err(problem) = self.read(range.start + had as u64..range.end, &mut bytes).await else {
                return (bytes, None);
            };
            if bytes.len() > had {
                patience.failed = 0;
            }
            if let Err(problem) = self.wait(&mut patience, problem, self.was_served.load(Ordering::Relaxed)).await {
                return (bytes, Some(problem));
            }
        }
    }

    async fn wait(&self, patience: &mut Patience, problem: Problem, was_served: bool) -> Result<(), Problem> {
        if problem.may_pass(was_served) {
            *self.what.seen.trouble.lock().expect("no panic") = Some(problem.to_string());
        }
        patience.wait(problem, was_served).await
    }

    /// Asks for a range once and adds what comes of it.
    async fn read(&self, range: Range<u64>, bytes: &mut Vec<u8>) -> Result<(), Problem> {
        let link = self.link.lock().expect("no panic").clone();
        let request = self.what.hub.get(link.clone().unwrap_or_else(|| self.what.url.clone()));
        let response = request.header(RANGE, format!("bytes={}-{}", range.start, range.end - 1)).send().await;
        let response = response.map_err(Problem::from).and_then(accepted);
        // Whatever it was, the hub knows a link that works now.
        *self.link.lock().expect("no panic") = match &response {
            Ok(response) if link.is_some() || *response.url() != self.what.url => Some(response.url().clone()),
            _ => None,
        };
        let mut response = response?;
        check_range(&response, &range, self.what.len_bytes)?;
        self.was_served.store(true, Ordering::Relaxed);
        let end_len = bytes.len() + (range.end - range.start) as usize;
        while let Some(chunk) = response.chunk().await? {
            if bytes.len() + chunk.len() > end_len {
                return Err(Problem::Different("the server sent more bytes than it was asked for".to_owned()));
            }
            bytes.extend_from_slice(&chunk);
            self.what.seen.here_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        }
        match bytes.len() < end_len {
            true => Err(Problem::Connection("it ended early".to_owned())),
            false => Ok(()),
        }
    }

    /// All of the file from a server that knows no ranges, over one connection: what is here already is passed over.
    async fn whole(&self, part: &mut Part) -> Result<(), Problem> {
        let mut patience = self.what.patience.clone();
        loop {
            let had_bytes = part.len_bytes();
            let Err(problem) = self.read_whole(part).await else { return Ok(()) };
            if part.len_bytes() > had_bytes {
                patience.failed = 0;
            }
            self.wait(&mut patience, problem, true).await?;
        }
    }

    async fn read_whole(&self, part: &mut Part) -> Result<(), Problem> {
        let mut response = accepted(self.what.hub.get(self.what.url.clone()).send().await?)?;
        if let Some(got) = response.content_length() {
            check_length(got, self.what.len_bytes)?;
        }
        let mut passed_bytes = part.len_bytes();
        while let Some(chunk) = response.chunk().await? {
            let passed = passed_bytes.min(chunk.len() as u64);
            passed_bytes -= passed;
            let new = &chunk[passed as usize..];
            if part.len_bytes() + new.len() as u64 > self.what.len_bytes {
                return Err(Problem::Different("the server sent more bytes than the hub lists".to_owned()));
            }
            part.append(new)?;
            self.what.seen.here_bytes.store(part.len_bytes(), Ordering::Relaxed);
        }
        match part.len_bytes() < self.what.len_bytes {
            true => Err(Problem::Connection("it ended early".to_owned())),
            false => Ok(()),
        }
    }
}

/// Checks that an answer is the range that was asked for, of a file of the right length.
fn check_range(response: &Response, range: &Range<u64>, len_bytes: u64) -> Result<(), Problem> {
    if response.status() != StatusCode::PARTIAL_CONTENT {
        return Err(Problem::NoRanges);
    }
    let said = response.headers().get(CONTENT_RANGE).and_then(|said| said.to_str().ok()).unwrap_or_default();
    let parts = said.strip_prefix("bytes ").and_then(|said| said.split_once('/'));
    let Some((got, all_bytes)) = parts.and_then(|(got, all)| Some((got, all.parse().ok()?))) else {
        return Err(Problem::Different(format!("the server does not say which bytes it sends (`{said}`)")));
    };
    check_length(all_bytes, len_bytes)?;
    if got != format!("{}-{}", range.start, range.end - 1) {
        let asked = format!("{}-{}", range.start, range.end - 1);
        return Err(Problem::Different(format!("the server sends bytes {got} where {asked} were asked for")));
    }
    Ok(())
}

fn check_length(got: u64, expected: u64) -> Result<(), Problem> {
    match got == expected {
        true => Ok(()),
        false => Err(Problem::Different(format!("the server's file has {got} bytes, but the hub lists {expected}"))),
    }
}
