//! A host that says what a test wants, and ways to ask a server over it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request as HttpRequest, StatusCode};
use futures_util::{Stream, StreamExt};
use http_body_util::BodyExt;
use serde_json::Value;
use strata_engine::host::{Choice, Event, Failure, Outcome, Request, Status, Written};
use strata_engine::{ChatTemplate, Drafts, Finish, SamplerParams, Tokenizer};
use strata_server::{Events, Model, ServerOptions, Writer};
use tower::ServiceExt;

pub(crate) const CONTEXT: usize = 4096;

type Play = Box<dyn Fn(&Request) -> Result<Events, Failure> + Send + Sync>;

/// A host that plays a script.
pub(crate) struct Scripted {
    play: Play,
    /// What was asked.
    pub(crate) asked: Mutex<Vec<Request>>,
    /// Answers that somebody still holds.
    pub(crate) held: Arc<AtomicUsize>,
}

/// Counts answers that are held.
struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Writer for Scripted {
    fn submit(&self, request: Request) -> Result<Events, Failure> {
        let events = (self.play)(&request);
        self.asked.lock().unwrap().push(request);
        self.held.fetch_add(1, Ordering::SeqCst);
        let held = Held(Arc::clone(&self.held));
        Ok(Box::pin(events?.inspect(move |_| _ = &held)))
    }

    fn status(&self) -> Status {
        Status { model: "scripted".to_owned(), queue_limit: 3, done: 7, ..Status::default() }
    }
}

fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The tokenizer of the model that ships.
pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let read = || strata_engine::tokenizer_of(&data("models/strata-mini/strata-mini-iq2xs-q4_0.gguf")).unwrap();
    Arc::clone(TOKENIZER.get_or_init(|| Arc::new(read())))
}

/// A template that knows neither tools nor thinking.
pub(crate) const PLAIN: &str = "{%- for m in messages %}\
    {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}\
    {%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}";

/// A server under test.
pub(crate) struct Server {
    pub(crate) host: Arc<Scripted>,
    pub(crate) router: Router,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {}", self.text))
    }

    /// Name and data of each event; comments are left out.
    pub(crate) fn events(&self) -> Vec<(String, String)> {
        assert_eq!(self.headers["content-type"], "text/event-stream", "{}", self.text);
        assert!(self.text.ends_with("\n\n"), "{}", self.text);
        let frames = self.text.split("\n\n").filter(|frame| !frame.is_empty() && !frame.starts_with(':'));
        let field = |frame: &str, name: &str| {
            frame.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().to_owned()
        };
        frames.map(|frame| (field(frame, "event: "), field(frame, "data: "))).collect()
    }

    /// The data of all events that are JSON.
    pub(crate) fn data(&self) -> Vec<Value> {
        self.events().iter().filter_map(|(_, data)| serde_json::from_str(data).ok()).collect()
    }
}

impl Server {
    pub(crate) fn new(play: impl Fn(&Request) -> Result<Events, Failure> + Send + Sync + 'static) -> Self {
        Self::with(play, PLAIN, ServerOptions::default())
    }

    pub(crate) fn with(
        play: impl Fn(&Request) -> Result<Events, Failure> + Send + Sync + 'static,
        template: &str,
        options: ServerOptions,
    ) -> Self {
        Self::of(play, Ok(Arc::new(ChatTemplate::from_source(template).unwrap())), options)
    }

    pub(crate) fn of(
        play: impl Fn(&Request) -> Result<Events, Failure> + Send + Sync + 'static,
        template: Result<Arc<ChatTemplate>, String>,
        options: ServerOptions,
    ) -> Self {
        let host = Arc::new(Scripted { play: Box::new(play), asked: Mutex::default(), held: Arc::default() });
        let model = Model {
            writer: Arc::<Scripted>::clone(&host),
            name: "scripted".to_owned(),
            context_tokens: CONTEXT,
            tokenizer: tokenizer(),
            template,
            sampling: SamplerParams { temperature: 0.5, seed: 9, ..SamplerParams::default() },
            vocabulary: OnceLock::new(),
        };
        Self { host, router: strata_server::router(model, ServerOptions { is_logged: false, ..options }) }
    }

    /// Says these pieces of text, one token each, and ends the turn.
    pub(crate) fn saying(pieces: &'static [&'static str]) -> Self {
        Self::new(move |request| Ok(says(request, pieces)))
    }

    pub(crate) async fn send(&self, request: HttpRequest<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Reply { status: parts.status, headers: parts.headers, text }
    }

    pub(crate) async fn post_text(&self, path: &str, body: impl Into<Body>) -> Reply {
        self.send(HttpRequest::post(path).body(body.into()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_text(path, body.to_string()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(HttpRequest::get(path).body(Body::empty()).unwrap()).await
    }

    /// What was asked of the host last.
    pub(crate) fn asked(&self) -> Request {
        self.host.asked.lock().unwrap().last().expect("something was asked").clone()
    }

    /// The text of the prompt that was asked last.
    pub(crate) fn prompt(&self) -> String {
        tokenizer().decode(&self.asked().prompt, false)
    }
}

/// A token of an answer.
pub(crate) fn token(text: &str) -> Event {
    let token = tokenizer().encode(text, false).unwrap().first().copied().unwrap_or(0);
    Event::Token(Written { token, text: text.to_owned(), choice: None })
}

/// The end of an answer of so many tokens.
pub(crate) fn outcome(request: &Request, finish: Finish, written_tokens: usize) -> Outcome {
    Outcome {
        text: String::new(),
        finish,
        stop: None,
        prompt_tokens: request.prompt.len(),
        reused_tokens: 3,
        written_tokens,
        queue_time: Duration::from_millis(1),
        prompt_time: Duration::from_millis(20),
        decode_time: Duration::from_millis(30),
        drafts: Drafts { proposed: 5, accepted: 4 },
        routes: None,
    }
}

/// An answer in these pieces, each with the likelihood of its token where that was asked for.
pub(crate) fn says(request: &Request, pieces: &[&str]) -> Events {
    let mut events = vec![Event::Reading { prompt_tokens: request.prompt.len(), reused_tokens: 3, progress: 0.5 }];
    for piece in pieces {
        let mut event = token(piece);
        if let (Event::Token(written), Some(top)) = (&mut event, request.top_logprobs) {
            written.choice = Some(Choice { logprob: -0.25, top: vec![(written.token, -0.25); top] });
        }
        events.push(event);
    }
    events.push(Event::Done(outcome(request, Finish::EndOfTurn, pieces.len() + 1)));
    stream(events)
}

/// Events that are there at once.
pub(crate) fn stream(events: Vec<Event>) -> Events {
    Box::pin(futures_util::stream::iter(events))
}

/// These events, and then nothing for ever.
pub(crate) fn then_silence(events: Vec<Event>) -> Events {
    let silence: std::pin::Pin<Box<dyn Stream<Item = Event> + Send>> = Box::pin(futures_util::stream::pending());
    Box::pin(stream(events).chain(silence))
}
