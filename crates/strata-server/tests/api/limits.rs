//! What is refused, whatever the API: strict JSON, sizes, the context, keys and origins.

use axum::body::Body;
use axum::http::{HeaderValue, Request};
use serde_json::{Value, json};
use strata_server::{Access, ServerOptions};

use crate::script::{CONTEXT, Server, says, tokenizer};

const CHAT: &str = "/v1/chat/completions";
const POSTS: [&str; 7] =
    [CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize"];

/// The message of an error, in whichever shape the path has.
fn message(path: &str, json: &Value) -> String {
    if path.starts_with("/v1/messages") {
        assert_eq!(json["type"], "error", "{json}");
    } else {
        assert!(json["error"].get("param").is_some() && json["error"].get("code").is_some(), "{json}");
    }
    assert!(json["error"]["type"].is_string());
    json["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn what_is_no_json_object_is_a_400_everywhere() {
    let server = Server::saying(&["x"]);
    let deep = format!("{{\"messages\": {}{}}}", "[".repeat(200_000), "]".repeat(200_000));
    let half = b"{\"messages\": \"\xff\"}".to_vec();
    for path in POSTS {
        for body in ["", "[]", "null", "3", "{", "{\"a\": NaN}", "{\"temperature\": 1e999}", "\u{0}", &deep] {
            let reply = server.post_text(path, body.to_owned()).await;
            assert_eq!(reply.status, 400, "{path} {body:.40}");
            message(path, &reply.json());
        }
        assert_eq!(server.post_text(path, half.clone()).await.status, 400);
    }
}

#[tokio::test]
async fn wrong_fields_are_named() {
    let server = Server::saying(&["x"]);
    let user = json!({ "role": "user", "content": "Hi" });
    for (body, field) in [
        (json!({}), "messages"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": "Hi" }), "messages"),
        (json!({ "messages": ["Hi"] }), "messages[0]"),
        (json!({ "messages": [{ "content": "Hi" }] }), "messages[0].role"),
        (json!({ "messages": [user, { "role": "robot", "content": "Hi" }] }), "messages[1].role"),
        (json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
        (json!({ "messages": [{ "role": "user", "content": 3 }] }), "messages[0].content"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
            "messages[0].content[0].type",
        ),
        (json!({ "messages": [{ "role": "assistant", "tool_calls": [{}] }] }), "messages[0].tool_calls[0].function"),
        (json!({ "messages": [user], "temperature": "1" }), "temperature"),
        (json!({ "messages": [user], "temperature": -1 }), "temperature"),
        (json!({ "messages": [user], "top_p": 1.5 }), "top_p"),
        (json!({ "messages": [user], "n": 2 }), "n"),
        (json!({ "messages": [user], "max_tokens": 0 }), "max_tokens"),
        (json!({ "messages": [user], "max_tokens": 1.5 }), "max_tokens"),
        (json!({ "messages": [user], "stream": "yes" }), "stream"),
        (json!({ "messages": [user], "stream_options": { "include_usage": true } }), "stream_options"),
        (json!({ "messages": [user], "stop": ["a", 3] }), "stop[1]"),
        (json!({ "messages": [user], "stop": "" }), "stop"),
        (json!({ "messages": [user], "logit_bias": { "x": 1 } }), "logit_bias.x"),
        (json!({ "messages": [user], "logit_bias": { "1": 1000 } }), "logit_bias.1"),
        (json!({ "messages": [user], "logprobs": 3 }), "logprobs"),
        (json!({ "messages": [user], "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        (json!({ "messages": [user], "seed": 0.5 }), "seed"),
        (json!({ "messages": [user], "functions": [] }), "functions"),
        (json!({ "messages": [user], "tools": [{ "type": "function" }] }), "tools[0].function"),
        (json!({ "messages": [user], "tools": [{ "type": "function", "function": { "name": "a b" } }] }), "tools[0]"),
        (json!({ "messages": [user], "reasoning_effort": "huge" }), "reasoning_effort"),
        (json!({ "messages": [user], "response_format": { "type": "xml" } }), "response_format.type"),
        (json!({ "messages": [user], "response_format": { "type": "json_schema" } }), "response_format.json_schema"),
        (json!({ "messages": [user], "modalities": ["audio"] }), "modalities"),
    ] {
        let reply = server.post(CHAT, &body).await;
        assert_eq!(
            (reply.status.as_u16(), &reply.json()["error"]["param"]),
            (400, &json!(field)),
            "{body}: {}",
            reply.text
        );
    }
    assert!(server.host.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn schemas_that_cannot_be_followed_are_a_400() {
    let server = Server::saying(&["x"]);
    let deep = (0..110).fold(json!({ "type": "string" }), |inner, _| json!({ "type": "array", "items": inner }));
    for schema in [
        json!({ "type": "rectangle" }),
        json!({ "$ref": "#/nowhere" }),
        json!({ "pattern": "(", "type": "string" }),
        deep,
    ] {
        let format = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema } });
        let body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "response_format": format });
        let reply = server.post(CHAT, &body).await;
        assert_eq!(reply.status, 400, "{}", reply.text);
        assert_eq!(reply.json()["error"]["param"], "response_format");
    }
}

/// The context is never cut silently: both numbers are told.
#[tokio::test]
async fn field_report_54_more_than_the_context_is_a_400_with_both_numbers() {
    let server = Server::saying(&["x"]);
    let long = "word ".repeat(CONTEXT);
    for (path, text) in [(CHAT, "Hi"), (CHAT, long.as_str()), ("/v1/messages", "Hi"), ("/v1/messages", long.as_str())] {
        let asked = if text == "Hi" { CONTEXT } else { 1 };
        let body = json!({ "model": "m", "messages": [{ "role": "user", "content": text }], "max_tokens": asked });
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status, 400);
        let json = reply.json();
        let prompt = format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
        let prompt_tokens = tokenizer().encode(&prompt, true).unwrap().len();
        let told = message(path, &json);
        for number in [prompt_tokens, asked, CONTEXT] {
            assert!(told.contains(&number.to_string()), "{number}: {told}");
        }
        if path == CHAT {
            assert_eq!(json["error"]["code"], "context_length_exceeded");
        }
    }
    let body = json!({ "messages": [{ "role": "user", "content": long }] });
    assert_eq!(server.post(CHAT, &body).await.status, 400, "also when nothing is said of the answer");
}

/// Coding tools ask for more than small contexts hold: where it is configured, they are told what they get.
#[tokio::test]
async fn field_report_54_answers_are_fitted_where_that_is_configured() {
    let options = ServerOptions { fits_answers: true, ..ServerOptions::default() };
    let server = Server::with(|request| Ok(says(request, &["x"])), crate::script::PLAIN, options);
    let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 32_000 });
    let json = server.post("/v1/messages", &body).await.json();
    let asked = server.asked();
    assert_eq!(asked.max_tokens, CONTEXT - asked.prompt.len());
    assert_eq!(json["strata"]["max_tokens"], json!(asked.max_tokens));
    let long =
        json!({ "model": "m", "messages": [{ "role": "user", "content": "word ".repeat(CONTEXT) }], "max_tokens": 1 });
    assert_eq!(server.post("/v1/messages", &long).await.status, 400, "a prompt is never cut");
}

/// colibri#604: a model without a template was given another one's.
#[tokio::test]
async fn field_report_38_a_model_without_a_template_does_not_chat() {
    let play = |request: &strata_engine::host::Request| Ok(says(request, &["x"]));
    let server = Server::of(play, Err("no chat template".to_owned()), ServerOptions::default());
    let mut body = json!({ "model": "m", "max_tokens": 5, "messages": [{ "role": "user", "content": "Hi" }] });
    for path in [CHAT, "/v1/messages", "/v1/messages/count_tokens"] {
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status, 400);
        assert_eq!(message(path, &reply.json()), "no chat template");
    }
    body["prompt"] = "Once".into();
    assert_eq!(server.post("/v1/completions", &body).await.status, 200);
}

#[tokio::test]
async fn bodies_have_a_limit() {
    let options = ServerOptions { body_bytes: 1000, ..ServerOptions::default() };
    let server = Server::with(|request| Ok(says(request, &["x"])), crate::script::PLAIN, options);
    for path in POSTS {
        let announced = Request::post(path).header("content-length", "104857600").body(Body::empty()).unwrap();
        let sent = Request::post(path).body(Body::from("x".repeat(1001))).unwrap();
        for request in [announced, sent] {
            let reply = server.send(request).await;
            assert_eq!(reply.status, 413);
            assert!(message(path, &reply.json()).contains("1000"));
        }
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_have_the_shape_of_their_api() {
    let server = Server::saying(&["x"]);
    for path in ["/v1/nothing", "/v1/messages/nothing", "/../etc/passwd", "/assets/../Cargo.toml"] {
        let reply = server.get(path).await;
        assert_eq!(reply.status, 404, "{path}");
        message(path, &reply.json());
    }
    for path in POSTS {
        let reply = server.get(path).await;
        assert_eq!(reply.status, 405, "{path}");
        message(path, &reply.json());
    }
}

#[tokio::test]
async fn keys_are_needed_where_there_are_some() {
    let access = Access { api_keys: vec!["secret".to_owned()], ..Access::default() };
    let options = ServerOptions { access, ..ServerOptions::default() };
    let server = Server::with(|request| Ok(says(request, &["x"])), crate::script::PLAIN, options);
    for path in
        ["/v1/models", "/v1/status", "/metrics", "/openapi.json", "/v1/status/events", "/nowhere", "/v1/messages"]
    {
        for key in [None, Some("Bearer wrong"), Some("Bearer secret2"), Some("secret"), Some("Bearer ")] {
            let mut request = Request::get(path);
            if let Some(key) = key {
                request = request.header("authorization", key);
            }
            let reply = server.send(request.body(Body::empty()).unwrap()).await;
            assert_eq!(
                (reply.status.as_u16(), reply.headers.contains_key("www-authenticate")),
                (401, true),
                "{path} {key:?}"
            );
            assert!(!reply.text.contains("secret"));
            let ty = reply.json()["error"]["type"].clone();
            assert_eq!(ty, "authentication_error");
        }
    }
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }] }).to_string();
    for (name, value) in [("authorization", "Bearer secret"), ("x-api-key", "secret")] {
        let request = Request::post(CHAT).header(name, value).body(Body::from(body.clone())).unwrap();
        assert_eq!(server.send(request).await.status, 200);
    }
    assert_eq!(server.post_text(CHAT, body).await.status, 401);
    assert_eq!(server.get("/health").await.status, 200);
    assert_eq!(server.get("/").await.status, 200);
}

#[tokio::test]
async fn other_hosts_and_origins_are_refused() {
    let get = |host: &str, origin: Option<&str>| {
        let mut request = Request::get("/v1/models").header("host", host);
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        request.body(Body::empty()).unwrap()
    };
    let play = |request: &strata_engine::host::Request| Ok(says(request, &["x"]));
    let access = Access { is_local_only: true, ..Access::default() };
    let server =
        Server::with(play, crate::script::PLAIN, ServerOptions { access: access.clone(), ..Default::default() });
    for (host, origin, status) in [
        ("127.0.0.1:8080", None, 200),
        ("localhost:8080", Some("http://localhost:8080"), 200),
        ("evil.example", None, 403),
        ("evil.example:8080", Some("http://evil.example:8080"), 403),
        ("localhost:8080", Some("http://evil.example"), 403),
        ("localhost:8080", Some("null"), 403),
    ] {
        let reply = server.send(get(host, origin)).await;
        assert_eq!(reply.status, status, "{host} {origin:?}");
        assert!(!reply.headers.contains_key("access-control-allow-origin"));
    }

    let cors_origin = Some(HeaderValue::from_static("http://page.example"));
    let access = Access { cors_origin, ..access };
    let server = Server::with(play, crate::script::PLAIN, ServerOptions { access, ..Default::default() });
    let reply = server.send(get("localhost:8080", Some("http://page.example"))).await;
    assert_eq!(
        (reply.status.as_u16(), &reply.headers["access-control-allow-origin"]),
        (200, &HeaderValue::from_static("http://page.example"))
    );
    let reply = server.send(get("localhost:8080", Some("http://evil.example"))).await;
    assert_eq!(reply.status, 403);
    let preflight = Request::options(CHAT)
        .header("origin", "http://page.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization")
        .body(Body::empty());
    let reply = server.send(preflight.unwrap()).await;
    assert_eq!(reply.status, 200);
    assert!(reply.headers.contains_key("access-control-allow-methods"));
}
