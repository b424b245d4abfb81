//! What is told to a client that does not get an answer.
//!
//! Owns: kinds of problems, their HTTP status, and how each family of APIs writes them. Promises: a client sees the shape
//! that its own library knows, whatever went wrong and wherever. Refuses: to tell more of the inside than the message.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use strata_engine::host::{Failure, FailureKind};

/// Whose shape a problem is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// `{"error": {"message", "type", "param", "code"}}`.
    OpenAi,
    /// `{"type": "error", "error": {"type", "message"}}`.
    Anthropic,
}

impl Family {
    /// Of a request.
    pub(crate) fn of(path: &str, headers: &HeaderMap) -> Self {
        match path.starts_with("/v1/messages") || headers.contains_key("anthropic-version") {
            true => Self::Anthropic,
            false => Self::OpenAi,
        }
    }
}

/// What kind of problem it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The request makes no sense.
    Invalid,
    /// Prompt and answer do not fit the context.
    TooLong,
    /// No key, or a wrong one.
    NoKey,
    /// From somewhere that may not ask.
    Forbidden,
    /// There is no such thing.
    NotFound,
    /// The path exists, for another method.
    Method,
    /// The request took too long to arrive.
    Slow,
    /// The body is too large.
    TooLarge,
    /// The queue is full.
    Busy,
    /// The model or its drive failed.
    Internal,
    /// The server is shutting down.
    Closing,
    /// The answer took too long.
    Stalled,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) kind: Kind,
    /// What was wrong, where, and what to do.
    pub(crate) message: String,
    /// The field of the request at fault.
    pub(crate) field: Option<String>,
}

/// When a client whom the queue has no room for may ask again.
const RETRY_AFTER_S: HeaderValue = HeaderValue::from_static("1");

impl Problem {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), field: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    pub(crate) fn field(path: &str, message: impl Into<String>) -> Self {
        Self { field: Some(path.to_owned()), ..Self::invalid(message) }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self.kind {
            Kind::Invalid | Kind::TooLong => StatusCode::BAD_REQUEST,
            Kind::NoKey => StatusCode::UNAUTHORIZED,
            Kind::Forbidden => StatusCode::FORBIDDEN,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Method => StatusCode::METHOD_NOT_ALLOWED,
            Kind::Slow => StatusCode::REQUEST_TIMEOUT,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::Busy => StatusCode::TOO_MANY_REQUESTS,
            Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Kind::Closing => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Stalled => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// As a family of APIs writes it.
    pub(crate) fn json(&self, family: Family) -> Value {
        match family {
            Family::OpenAi => json!({ "error": self.openai() }),
            Family::Anthropic => json!({
                "type": "error",
                "error": { "type": self.anthropic_type(), "message": self.message },
            }),
        }
    }

    /// The inner object of OpenAI's shape.
    pub(crate) fn openai(&self) -> Value {
        let (ty, code) = match self.kind {
            Kind::Invalid | Kind::Method | Kind::Slow => ("invalid_request_error", None),
            Kind::TooLong => ("invalid_request_error", Some("context_length_exceeded")),
            Kind::NoKey => ("authentication_error", Some("invalid_api_key")),
            Kind::Forbidden => ("permission_error", None),
            Kind::NotFound => ("not_found_error", None),
            Kind::TooLarge => ("invalid_request_error", Some("request_too_large")),
            Kind::Busy => ("rate_limit_error", Some("rate_limit_exceeded")),
            Kind::Internal => ("server_error", None),
            Kind::Closing => ("server_error", Some("shutting_down")),
            Kind::Stalled => ("server_error", Some("timeout")),
        };
        json!({ "message": self.message, "type": ty, "param": self.field, "code": code })
    }

    fn anthropic_type(&self) -> &'static str {
        match self.kind {
            Kind::Invalid | Kind::TooLong | Kind::Method | Kind::Slow => "invalid_request_error",
            Kind::NoKey => "authentication_error",
            Kind::Forbidden => "permission_error",
            Kind::NotFound => "not_found_error",
            Kind::TooLarge => "request_too_large",
            Kind::Busy => "rate_limit_error",
            Kind::Internal => "api_error",
            Kind::Closing => "overloaded_error",
            Kind::Stalled => "timeout_error",
        }
    }

    /// The whole response.
    pub(crate) fn response(&self, family: Family) -> Response {
        let mut response = Response::new(Body::from(self.json(family).to_string()));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match self.kind {
            Kind::Busy | Kind::Closing => drop(headers.insert(header::RETRY_AFTER, RETRY_AFTER_S)),
            Kind::NoKey => drop(headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            // What is left of the body is not read.
            Kind::TooLarge | Kind::Slow => drop(headers.insert(header::CONNECTION, HeaderValue::from_static("close"))),
            _ => {}
        }
        response
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let kind = match failure.kind {
            FailureKind::Invalid => Kind::Invalid,
            FailureKind::Busy => Kind::Busy,
            FailureKind::Closing => Kind::Closing,
            FailureKind::Stalled => Kind::Stalled,
            FailureKind::Internal => Kind::Internal,
        };
        Self::new(kind, failure.message)
    }
}

/// A problem on its way out: the outermost layer, which knows the family, writes it.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}
