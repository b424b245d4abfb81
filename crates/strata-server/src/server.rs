//! The router: which path leads where, and what every request goes through.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, MatchedPath, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use strata_engine::SamplerParams;
use tokio::sync::Semaphore;
use tower_http::cors::CorsLayer;

use crate::access::Access;
use crate::answer::Answer;
use crate::chat::Prepared;
use crate::fields::Fields;
use crate::metrics::Metrics;
use crate::model::Model;
use crate::problem::{Family, Kind, Problem};
use crate::record::Record;
use crate::{anthropic, body, chat, ids, openai, page, sse, tokens};

/// How a server serves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Who may ask.
    pub access: Access,
    /// The name that clients are told; `None`: the model's own.
    pub name: Option<String>,
    /// The most bytes of a request's body.
    pub body_bytes: usize,
    /// The most time in which a request's head, and then its body, must arrive.
    pub arrival_time: Duration,
    /// The most time that an answer may take; `None`: no limit.
    pub answer_time: Option<Duration>,
    /// Whether an answer that the context has no room for may have what is left of it, and is told so; else its request is
    /// refused.
    pub fits_answers: bool,
    /// Whether each request is told on standard error.
    pub is_logged: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            access: Access::default(),
            name: None,
            body_bytes: 16 << 20,
            arrival_time: Duration::from_secs(30),
            answer_time: None,
            fits_answers: false,
            is_logged: true,
        }
    }
}

/// Requests whose prompts are made at the same time: each may take a processor and much memory.
const PREPARED_AT_ONCE: usize = 2;
/// Time between two events of the status.
const STATUS_EVERY: Duration = Duration::from_millis(500);

/// What all requests share.
pub(crate) struct Shared {
    model: Model,
    options: ServerOptions,
    metrics: Arc<Metrics>,
    /// Requests so far.
    requests: AtomicU64,
    preparing: Arc<Semaphore>,
    started: u64,
}

type App = State<Arc<Shared>>;
type Records = Extension<Arc<Record>>;

/// The APIs over a model.
pub fn router(model: Model, options: ServerOptions) -> Router {
    let metrics = Arc::new(Metrics::new(Arc::clone(&model.writer)));
    let cors = options.access.cors_origin.clone().map(|origin| {
        let headers = ["authorization", "content-type", "x-api-key", "anthropic-version", "anthropic-beta"];
        CorsLayer::new()
            .allow_origin(origin)
            .allow_methods([Method::GET, Method::POST])
            .allow_headers(headers.map(header::HeaderName::from_static))
    });
    let shared = Arc::new(Shared {
        model,
        options,
        metrics,
        requests: AtomicU64::new(0),
        preparing: Arc::new(Semaphore::new(PREPARED_AT_ONCE)),
        started: ids::now(),
    });
    let router = Router::new()
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/completions", post(completions))
        .route("/v1/responses", post(responses))
        .route("/v1/messages", post(messages))
        .route("/v1/messages/count_tokens", post(count_tokens))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model_by_name))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/health", get(|| async { Json(json!({ "status": "ok" })) }))
        .route("/v1/status", get(status))
        .route("/v1/status/events", get(status_events))
        .route("/metrics", get(metrics_text))
        .route("/openapi.json", get(openapi))
        .merge(page::routes())
        .fallback(|| async { Problem::new(Kind::NotFound, "there is no such path; /openapi.json lists all") })
        .method_not_allowed_fallback(|| async { Problem::new(Kind::Method, "this path takes another method") })
        .layer(from_fn_with_state(Arc::clone(&shared), admitted));
    let router = match cors {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router.layer(from_fn_with_state(Arc::clone(&shared), recorded)).with_state(shared)
}

/// Keeps a record of the request, and writes problems as its family of APIs does.
async fn recorded(State(shared): App, mut request: Request, next: Next) -> Response {
    let number = 1 + shared.requests.fetch_add(1, Ordering::Relaxed);
    let family = Family::of(request.uri().path(), request.headers());
    let path = request.extensions().get::<MatchedPath>().map_or("other", |path| path.as_str());
    let method = request.method().as_str();
    let record = Record::new(number, method, path, Arc::clone(&shared.metrics), shared.options.is_logged);
    request.extensions_mut().insert(Arc::clone(&record));
    let mut response = next.run(request).await;
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        record.failed(&problem);
        let headers = std::mem::take(response.headers_mut());
        response = problem.response(family);
        // What the layers between have added, such as CORS.
        for (name, value) in headers.iter().filter(|(name, _)| name.as_str().starts_with("access-control-")) {
            response.headers_mut().append(name, value.clone());
        }
    }
    record.responded(response.status().as_u16());
    let number = HeaderValue::from(number);
    response.headers_mut().insert("x-request-id", number.clone());
    response.headers_mut().insert("request-id", number);
    response
}

/// Lets in who may ask.
async fn admitted(State(shared): App, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    match shared.options.access.check(path, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

impl Shared {
    /// Reads a request's body, and does `work` on it where that holds up nobody, since it may take long.
    async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        headers: &HeaderMap,
        body: Body,
        work: impl FnOnce(&Self, Fields) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let bytes = body::read(headers, body, self.options.body_bytes, self.options.arrival_time).await?;
        let shared = Arc::clone(self);
        in_room(&self.preparing, move || work(&shared, Fields::parse(&bytes)?)).await
    }

    /// Takes what one of the APIs asks for, and makes it ready.
    async fn ready<R: Send + 'static>(
        self: &Arc<Self>,
        headers: &HeaderMap,
        body: Body,
        read: impl FnOnce(Fields, SamplerParams) -> Result<R, Problem> + Send + 'static,
        prepare: impl FnOnce(&Model, &R, bool) -> Result<Prepared, Problem> + Send + 'static,
    ) -> Result<(R, Prepared), Problem> {
        let work = |shared: &Self, fields| {
            let request = read(fields, shared.model.sampling)?;
            let prepared = prepare(&shared.model, &request, shared.options.fits_answers)?;
            Ok((request, prepared))
        };
        self.read(headers, body, work).await
    }

    fn ask(&self, prepared: Prepared, record: Arc<Record>) -> Result<Answer, Problem> {
        let events = self.model.writer.submit(prepared.request)?;
        record.began();
        Ok(Answer::new(events, prepared.parser, prepared.fitted, record, self.options.answer_time))
    }

    /// The name that a response gives the model: the one that was asked for, since clients compare.
    fn name(&self, asked: Option<String>) -> String {
        asked.unwrap_or_else(|| self.own_name().to_owned())
    }

    fn own_name(&self) -> &str {
        self.options.name.as_ref().unwrap_or(&self.model.name)
    }
}

/// Runs work on a thread of its own, when there is room for it. It goes on when whoever waits for it goes away, and keeps its
/// room until it is done.
async fn in_room<T: Send + 'static>(
    room: &Arc<Semaphore>,
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let permit = Arc::clone(room).acquire_owned().await;
    let permit = permit.map_err(|_| Problem::new(Kind::Closing, "the server is closing"))?;
    let done = tokio::task::spawn_blocking(move || {
        let result = work();
        drop(permit);
        result
    });
    done.await.map_err(|_| Problem::new(Kind::Internal, "the server failed in reading the request"))?
}

async fn chat_completions(
    State(shared): App,
    Extension(record): Records,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let (request, prepared) = shared
        .ready(&headers, body, openai::chat::read, |model, request, fits| {
            chat::prepare(model, &request.conversation, &request.settings, fits)
        })
        .await?;
    let answer = shared.ask(prepared, record)?;
    let name = shared.name(request.model.clone());
    let shape = openai::chat::Chat::new(&request, name, Arc::clone(&shared.model.tokenizer));
    sse::response(answer, shape, request.is_streamed).await
}

async fn completions(
    State(shared): App,
    Extension(record): Records,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let (request, prepared) = shared
        .ready(&headers, body, openai::completions::read, |model, request, fits| {
            chat::prepare_text(model, &request.prompt, &request.settings, fits)
        })
        .await?;
    let answer = shared.ask(prepared, record)?;
    let name = shared.name(request.model.clone());
    let shape = openai::completions::Completion::new(&request, name, Arc::clone(&shared.model.tokenizer));
    sse::response(answer, shape, request.is_streamed).await
}

async fn responses(
    State(shared): App,
    Extension(record): Records,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let (request, prepared) = shared
        .ready(&headers, body, openai::read_responses, |model, request, fits| {
            chat::prepare(model, &request.conversation, &request.settings, fits)
        })
        .await?;
    let answer = shared.ask(prepared, record)?;
    let name = shared.name(request.model.clone());
    let shape = openai::Responses::new(&request, name, Arc::clone(&shared.model.tokenizer));
    sse::response(answer, shape, request.is_streamed).await
}

async fn messages(
    State(shared): App,
    Extension(record): Records,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let (request, prepared) = shared
        .ready(
            &headers,
            body,
            |fields, sampling| anthropic::read(fields, sampling, false),
            |model, request, fits| chat::prepare(model, &request.conversation, &request.settings, fits),
        )
        .await?;
    let prompt_tokens = prepared.request.prompt.len();
    let answer = shared.ask(prepared, record)?;
    let shape = anthropic::Messages::new(&request, request.model.clone(), prompt_tokens);
    sse::response(answer, shape, request.is_streamed).await
}

async fn count_tokens(State(shared): App, headers: HeaderMap, body: Body) -> Result<Json<Value>, Problem> {
    let tokens = shared
        .read(&headers, body, |shared, fields| {
            let model = &shared.model;
            let request = anthropic::read(fields, model.sampling, true)?;
            Ok(chat::prompt(model, &request.conversation)?.len())
        })
        .await?;
    Ok(Json(json!({ "input_tokens": tokens })))
}

async fn tokenize(State(shared): App, headers: HeaderMap, body: Body) -> Result<Json<Value>, Problem> {
    shared.read(&headers, body, |shared, fields| tokens::tokenize(fields, &shared.model.tokenizer)).await.map(Json)
}

async fn detokenize(State(shared): App, headers: HeaderMap, body: Body) -> Result<Json<Value>, Problem> {
    shared.read(&headers, body, |shared, fields| tokens::detokenize(fields, &shared.model.tokenizer)).await.map(Json)
}

/// The model, in the words of both families.
fn model_json(shared: &Shared) -> Value {
    let (name, context_tokens) = (shared.own_name(), shared.model.context_tokens);
    json!({
        "id": name,
        "object": "model",
        "type": "model",
        "created": shared.started,
        "owned_by": "strata",
        "display_name": name,
        "created_at": ids::date(shared.started),
        "context_length": context_tokens,
    })
}

async fn models(State(shared): App) -> Json<Value> {
    let name = shared.own_name();
    let data = [model_json(&shared)];
    Json(json!({ "object": "list", "data": data, "has_more": false, "first_id": name, "last_id": name }))
}

async fn model_by_name(State(shared): App, id: Result<Path<String>, PathRejection>) -> Result<Json<Value>, Problem> {
    match id.is_ok_and(|Path(id)| id == shared.own_name()) {
        true => Ok(Json(model_json(&shared))),
        false => Err(Problem::new(Kind::NotFound, "there is no such model; /v1/models lists all")),
    }
}

async fn status(State(shared): App) -> Json<Value> {
    Json(json!(shared.model.writer.status()))
}

async fn status_events(State(shared): App) -> Response {
    let mut ticks = tokio::time::interval(STATUS_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    sse::body(futures_util::stream::unfold((shared, ticks), |(shared, mut ticks)| async move {
        ticks.tick().await;
        let mut events = sse::Events::default();
        events.data(&json!(shared.model.writer.status()));
        Some((Ok(events.text()), (shared, ticks)))
    }))
}

async fn metrics_text(State(shared): App) -> Result<Response, Problem> {
    let text = shared.metrics.text().map_err(|_| Problem::new(Kind::Internal, "the figures cannot be written"))?;
    let ty = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, ty)], text).into_response())
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("../assets/openapi.json")).into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Clients that ask for something long and go away would else have all threads at work for nobody.
    #[tokio::test]
    async fn work_that_nobody_waits_for_keeps_its_room() {
        let room = Arc::new(Semaphore::new(1));
        let (begun, has_begun) = mpsc::channel();
        let (end, may_end) = mpsc::channel::<()>();
        let shared = Arc::clone(&room);
        let asked = tokio::spawn(async move {
            let work = move || {
                begun.send(()).unwrap();
                Ok(may_end.recv().is_ok())
            };
            in_room(&shared, work).await
        });
        let has_begun = tokio::task::spawn_blocking(move || has_begun.recv().is_ok());
        assert!(has_begun.await.unwrap());
        asked.abort();
        assert!(asked.await.unwrap_err().is_cancelled());
        assert_eq!(room.available_permits(), 0);
        end.send(()).unwrap();
        assert_eq!(in_room(&room, || Ok(3)).await.unwrap(), 3);
        // A panic gives the room back, too.
        let broken = in_room(&room, || -> Result<(), Problem> { panic!("on purpose") }).await;
        assert_eq!(broken.unwrap_err().kind, Kind::Internal);
        assert_eq!(in_room(&room, || Ok(4)).await.unwrap(), 4);
    }
}
