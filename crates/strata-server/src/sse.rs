//! Answers as an API wants them: as server-sent events, or whole.
//!
//! Owns: the frame of an event, and the comments that show a client that the server lives while nothing else comes. Promises:
//! a first byte at once, then one at least every [`KEEP_ALIVE`]; when the client goes away the answer is given up.

use std::convert::Infallible;
use std::fmt::Write;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde_json::Value;
use tokio::time::Instant;

use crate::answer::{Answer, End, Part, Piece, Whole};
use crate::problem::Problem;

/// The longest silence.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Text of events, to be sent.
#[derive(Default)]
pub(crate) struct Events(String);

impl Events {
    /// An event without a name.
    pub(crate) fn data(&mut self, data: &Value) {
        let _ = write!(self.0, "data: {data}\n\n");
    }

    /// An event whose data is a word.
    pub(crate) fn word(&mut self, word: &str) {
        let _ = write!(self.0, "data: {word}\n\n");
    }

    /// An event with a name.
    pub(crate) fn named(&mut self, name: &str, data: &Value) {
        let _ = write!(self.0, "event: {name}\ndata: {data}\n\n");
    }

    /// What is to be sent.
    pub(crate) fn text(self) -> String {
        self.0
    }

    /// Something that clients skip.
    pub(crate) fn comment(&mut self, text: &str) {
        let _ = write!(self.0, ": {text}\n\n");
    }
}

/// How an API writes an answer: whole, or as events.
pub(crate) trait Shape: Send + 'static {
    /// All of it.
    fn whole(&mut self, whole: Whole) -> Value;
    /// Before anything is known.
    fn begin(&mut self, events: &mut Events);
    /// A part of the answer.
    fn part(&mut self, part: Part, events: &mut Events);
    /// Its end.
    fn end(&mut self, end: End, events: &mut Events);
    /// It failed.
    fn failed(&mut self, problem: &Problem, events: &mut Events);
}

struct State<S> {
    answer: Answer,
    shape: S,
    /// What the comments say.
    doing: String,
    begins: bool,
}

/// The response that gives an answer: as it comes, or when it is complete.
pub(crate) async fn response<S: Shape>(answer: Answer, mut shape: S, is_streamed: bool) -> Result<Response, Problem> {
    match is_streamed {
        true => Ok(stream(answer, shape)),
        false => Ok(Json(shape.whole(answer.whole().await?)).into_response()),
    }
}

fn stream<S: Shape>(answer: Answer, shape: S) -> Response {
    let state = State { answer, shape, doing: "waiting".to_owned(), begins: true };
    body(futures_util::stream::unfold(state, |mut state| async move {
        let text = state.next().await?;
        Some((Ok(text), state))
    }))
}

/// A response of events.
pub(crate) fn body(events: impl Stream<Item = Result<String, Infallible>> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that hold back what they forward would hold back the whole stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl<S: Shape> State<S> {
    async fn next(&mut self) -> Option<String> {
        let mut events = Events::default();
        if std::mem::take(&mut self.begins) {
            events.comment("hello");
            self.shape.begin(&mut events);
            return Some(events.0);
        }
        let deadline = Instant::now() + KEEP_ALIVE;
        while events.0.is_empty() {
            match tokio::time::timeout_at(deadline, self.answer.next()).await {
                Err(_) => events.comment(&self.doing),
                Ok(None) => return None,
                Ok(Some(Piece::Reading(progress))) => self.doing = format!("reading {:.0} %", 100.0 * progress),
                Ok(Some(Piece::Part(part))) => {
                    "writing".clone_into(&mut self.doing);
                    self.shape.part(part, &mut events);
                }
                Ok(Some(Piece::End(end))) => self.shape.end(*end, &mut events),
                Ok(Some(Piece::Failed(problem))) => self.shape.failed(&problem, &mut events),
            }
        }
        Some(events.0)
    }
}
