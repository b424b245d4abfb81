//! `/v1/messages` and `/v1/messages/count_tokens`.

use serde_json::{Value, json};
use strata_engine::Finish;
use strata_engine::host::{Event, Failure, FailureKind, Outcome};

use crate::script::{Server, outcome, says, stream, token};

const PATH: &str = "/v1/messages";

fn ask(more: Value) -> Value {
    let mut body = json!({ "model": "m", "max_tokens": 50, "messages": [{ "role": "user", "content": "Hi" }] });
    let Value::Object(more) = more else { panic!("fields") };
    body.as_object_mut().unwrap().extend(more);
    body
}

fn tools() -> Value {
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    json!([{ "name": "weather", "description": "Tells it.", "input_schema": schema }])
}

const PIECES: [&str; 2] = [
    "<think>\nHm.\n</think>\n\nLook:",
    "\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>",
];

#[tokio::test]
async fn an_answer_is_a_list_of_blocks() {
    let server = Server::saying(&PIECES);
    let reply = server.post(PATH, &ask(json!({ "tools": tools(), "system": "Be brief." }))).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let json = reply.json();
    let blocks = json["content"].as_array().unwrap();
    assert_eq!(blocks[0], json!({ "type": "thinking", "thinking": "Hm.", "signature": "" }));
    assert_eq!(blocks[1], json!({ "type": "text", "text": "Look:" }));
    assert_eq!((&blocks[2]["type"], &blocks[2]["input"]), (&json!("tool_use"), &json!({ "city": "Bern" })));
    assert_eq!((&json["stop_reason"], &json["stop_sequence"]), (&json!("tool_use"), &Value::Null));
    let asked = server.asked();
    assert_eq!(
        json["usage"],
        json!({
            "input_tokens": asked.prompt.len() - 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3,
            "output_tokens": 3,
        })
    );
    assert_eq!(asked.max_tokens, 50);
    assert!(server.prompt().starts_with("<|im_start|>system\nBe brief.\n\n# Tools"));
}

#[tokio::test]
async fn a_stream_tells_of_every_block() {
    let server = Server::saying(&PIECES);
    let reply = server.post(PATH, &ask(json!({ "tools": tools(), "stream": true }))).await;
    assert!(reply.text.starts_with(": hello\n\n"));
    let names: Vec<String> = reply.events().into_iter().map(|(name, _)| name).collect();
    let (start, delta, stop) = ("content_block_start", "content_block_delta", "content_block_stop");
    // The thinking ends with its signature.
    assert_eq!(
        names,
        [
            "message_start",
            "ping",
            start,
            delta,
            delta,
            stop,
            start,
            delta,
            stop,
            start,
            delta,
            stop,
            "message_delta",
            "message_stop",
        ]
    );
    let data = reply.data();
    let partial: String = data.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&partial).unwrap(), json!({ "city": "Bern" }));
    let starts: Vec<_> =
        data.iter().filter(|event| event["type"] == start).map(|event| event["index"].clone()).collect();
    assert_eq!(starts, [0, 1, 2]);
    let end = &data[data.len() - 2];
    assert_eq!(
        (&end["delta"]["stop_reason"], &end["usage"]["cache_read_input_tokens"]),
        (&json!("tool_use"), &json!(3))
    );
}

#[tokio::test]
async fn a_whole_conversation_is_a_prompt() {
    let server = Server::saying(&["x"]);
    let cached = json!({ "type": "ephemeral" });
    let messages = json!([
        { "role": "user", "content": [{ "type": "text", "text": "Weather?", "cache_control": cached }] },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "Hm.", "signature": "" },
            { "type": "text", "text": "Look:" },
            { "type": "tool_use", "id": "t", "name": "weather", "input": { "city": "Bern" } },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t", "content": [{ "type": "text", "text": "rain" }] },
            { "type": "text", "text": "And?" },
        ] },
    ]);
    let system = json!([{ "type": "text", "text": "A" }, { "type": "text", "text": "B" }]);
    let reply = server.post(PATH, &ask(json!({ "messages": messages, "system": system }))).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let expected = "<|im_start|>system\nA\n\nB<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n\
                    Look:\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"Bern\"}}\n</tool_call><|im_end|>\n\
                    <|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n\
                    <|im_start|>assistant\n";
    assert_eq!(server.prompt(), expected);
    let body = json!({ "model": "m", "messages": messages, "system": system });
    let counted = server.post("/v1/messages/count_tokens", &body).await.json();
    assert_eq!(counted, json!({ "input_tokens": server.asked().prompt.len() }));
}

#[tokio::test]
async fn choices_and_forms_reach_the_host() {
    let server = Server::saying(&["x"]);
    for choice in [json!({ "type": "any" }), json!({ "type": "tool", "name": "weather" })] {
        assert_eq!(server.post(PATH, &ask(json!({ "tools": tools(), "tool_choice": choice }))).await.status, 200);
        assert!(server.asked().constraint.is_some());
    }
    let format = json!({ "type": "json_schema", "schema": { "type": "object" } });
    assert_eq!(server.post(PATH, &ask(json!({ "output_config": { "format": format } }))).await.status, 200);
    assert!(server.asked().constraint.is_some());
    let more = json!({ "stop_sequences": ["END"], "top_k": 3, "metadata": { "user_id": "u" } });
    let json = server.post(PATH, &ask(more)).await.json();
    assert_eq!((server.asked().stop, server.asked().sampling.top_k), (vec!["END".to_owned()], 3));
    assert_eq!(json["strata"]["ignored_fields"], json!(["metadata"]));
    const THINKS: &str = "{{ messages[0].content }}|{{ enable_thinking }}";
    let server = Server::with(|request| Ok(says(request, &["x"])), THINKS, Default::default());
    let thinking = json!({ "type": "enabled", "budget_tokens": 1024 });
    assert_eq!(server.post(PATH, &ask(json!({ "thinking": thinking }))).await.status, 200);
    assert_eq!(server.prompt(), "Hi|True");
}

#[tokio::test]
async fn every_end_has_its_reason() {
    for (finish, stop, reason) in [
        (Finish::EndOfTurn, None, "end_turn"),
        (Finish::EndOfTurn, Some("END"), "stop_sequence"),
        (Finish::MaxTokens, None, "max_tokens"),
    ] {
        let server = Server::new(move |request| {
            let outcome = Outcome { stop: stop.map(str::to_owned), ..outcome(request, finish, 1) };
            Ok(stream(vec![token("x"), Event::Done(outcome)]))
        });
        let json = server.post(PATH, &ask(json!({}))).await.json();
        assert_eq!((&json["stop_reason"], &json["stop_sequence"]), (&json!(reason), &json!(stop)));
    }
}

#[tokio::test]
async fn problems_have_their_own_shape() {
    let server = Server::saying(&["x"]);
    for (more, field) in [
        (json!({ "max_tokens": null }), "max_tokens"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "model": null }), "model"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [{ "role": "robot", "content": "a" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user", "content": [] }] }), "messages[0].content"),
        (json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }] }), "messages[0].content[0].type"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "tool_use" }] }] }),
            "messages[0].content[0].type",
        ),
        (json!({ "tools": [{ "type": "web_search_20250305", "name": "web_search" }] }), "tools[0].type"),
        (json!({ "tools": [{ "name": "a" }] }), "tools[0].input_schema"),
        (json!({ "tool_choice": { "type": "any" } }), "tool_choice.type"),
        (json!({ "tool_choice": { "type": "tool", "name": "a" } }), "tool_choice.name"),
        (json!({ "thinking": { "type": "deep" } }), "thinking.type"),
    ] {
        let reply = server.post(PATH, &ask(more)).await;
        let json = reply.json();
        assert_eq!((reply.status.as_u16(), &json["type"]), (400, &json!("error")), "{json}");
        assert_eq!(json["error"]["type"], "invalid_request_error");
        assert!(json["error"]["message"].as_str().unwrap().contains(&format!("`{field}`")), "{json}");
    }
    for (kind, status, ty) in [(FailureKind::Busy, 429, "rate_limit_error"), (FailureKind::Internal, 500, "api_error")]
    {
        let failure = Failure { kind, message: "because".to_owned() };
        let later = failure.clone();
        let reply = Server::new(move |_| Err(failure.clone())).post(PATH, &ask(json!({}))).await;
        assert_eq!((reply.status.as_u16(), &reply.json()["error"]["type"]), (status, &json!(ty)));
        let server = Server::new(move |_| Ok(stream(vec![token("x"), Event::Failed(later.clone())])));
        let (name, data) = server.post(PATH, &ask(json!({ "stream": true }))).await.events().pop().unwrap();
        assert_eq!(name, "error");
        let data: Value = serde_json::from_str(&data).unwrap();
        assert_eq!(data, json!({ "type": "error", "error": { "type": ty, "message": "because" } }));
    }
}

/// colibri#401, #437: what a coding tool sends, in the shape it sends it.
#[tokio::test]
async fn field_report_45_a_coding_tool_is_answered() {
    let server = Server::saying(&PIECES);
    let cached = json!({ "type": "ephemeral" });
    let body = json!({
        "model": "claude-sonnet-4-5",
        "max_tokens": 2_000,
        "stream": true,
        "temperature": 1,
        "metadata": { "user_id": "user_1_account__session_2" },
        "thinking": { "type": "enabled", "budget_tokens": 1_024 },
        "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
        "system": [
            { "type": "text", "text": "You are a coding tool.", "cache_control": cached },
            { "type": "text", "text": "Be brief.", "cache_control": cached },
        ],
        "tools": [
            { "name": "Bash", "description": "Runs.", "input_schema": {
                "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": false,
                "properties": { "command": { "type": "string" }, "timeout": { "type": "number" } }, "required": ["command"],
            } },
            tools()[0].clone(),
        ],
        "messages": [
            { "role": "user", "content": [
                { "type": "text", "text": "<system-reminder>\nDate.\n</system-reminder>" },
                { "type": "text", "text": "Look.", "cache_control": cached },
            ] },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "I run ls.", "signature": "" },
                { "type": "tool_use", "id": "toolu_1", "name": "Bash", "input": { "command": "ls" } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "toolu_1", "content": "a.rs", "is_error": false, "cache_control": cached },
            ] },
        ],
    });
    let reply = server.send(
        axum::http::Request::post("/v1/messages?beta=true")
            .header("anthropic-version", "2023-06-01")
            .header("anthropic-beta", "claude-code-20250219,interleaved-thinking-2025-05-14")
            .body(axum::body::Body::from(body.to_string()))
            .unwrap(),
    );
    let reply = reply.await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let data = reply.data();
    let end = &data[data.len() - 2];
    assert_eq!(end["delta"]["stop_reason"], "tool_use");
    assert_eq!(end["strata"]["ignored_fields"], json!(["metadata", "context_management"]));
    let prompt = server.prompt();
    assert!(prompt.contains("{\"name\": \"Bash\", \"arguments\": {\"command\":\"ls\"}}"), "{prompt}");
    assert!(prompt.ends_with("<tool_response>\na.rs\n</tool_response><|im_end|>\n<|im_start|>assistant\n"), "{prompt}");
}
