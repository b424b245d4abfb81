//! `/v1/chat/completions`, `/v1/completions`, `/v1/models`, tokens and monitors.

use serde_json::{Value, json};
use strata_engine::Finish;
use strata_engine::host::{Event, Failure, FailureKind, Outcome};

use crate::script::{Server, outcome, says, stream, token, tokenizer};

const CHAT: &str = "/v1/chat/completions";

fn ask(more: Value) -> Value {
    let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "Hi" }] });
    let Value::Object(more) = more else { panic!("fields") };
    body.as_object_mut().unwrap().extend(more);
    body
}

fn tools() -> Value {
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
    json!([{ "type": "function", "function": { "name": "weather", "description": "Tells it.", "parameters": parameters } }])
}

#[tokio::test]
async fn a_chat_is_answered() {
    let server = Server::saying(&["Hel", "lo", "!"]);
    let reply = server.post(CHAT, &ask(json!({ "seed": 3, "top_p": 0.5, "unknown": 1, "user": null }))).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let json = reply.json();
    assert_eq!(json["object"], "chat.completion");
    assert_eq!(json["model"], "m");
    let choice = &json["choices"][0];
    assert_eq!(choice["message"], json!({ "role": "assistant", "content": "Hello!", "refusal": null }));
    assert_eq!(choice["finish_reason"], "stop");
    let asked = server.asked();
    let prompt_tokens = asked.prompt.len();
    assert_eq!(
        json["usage"],
        json!({
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 4,
            "total_tokens": prompt_tokens + 4,
            "prompt_tokens_details": { "cached_tokens": 3 },
            "completion_tokens_details": {
                "reasoning_tokens": 0, "accepted_prediction_tokens": 4, "rejected_prediction_tokens": 1,
            },
        })
    );
    assert_eq!(json["strata"]["drafts"], json!({ "proposed": 5, "accepted": 4 }));
    assert_eq!(json["strata"]["ignored_fields"], json!(["unknown"]));
    assert_eq!(server.prompt(), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!((asked.sampling.seed, asked.sampling.top_p, asked.sampling.temperature), (3, 0.5, 0.5));
    assert_eq!(asked.max_tokens, crate::script::CONTEXT - prompt_tokens, "all that is left of the context");
}

#[tokio::test]
async fn a_stream_is_the_same_text_in_pieces() {
    let server = Server::saying(&["Hel", "lo", "!"]);
    let options = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let reply = server.post(CHAT, &ask(options)).await;
    assert!(reply.text.starts_with(": hello\n\n"), "the first byte is a comment");
    let events = reply.events();
    assert_eq!(events.last().unwrap().1, "[DONE]");
    let data = reply.data();
    assert!(data.iter().all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk["id"] == data[0]["id"]));
    assert_eq!(data[0]["choices"][0]["delta"]["role"], "assistant");
    let text: String = data.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "Hello!");
    let [.., last, usage] = data.as_slice() else { panic!() };
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!((&usage["choices"], &usage["usage"]["completion_tokens"]), (&json!([]), &json!(4)));

    let reply = server.post(CHAT, &ask(json!({ "stream": true }))).await;
    assert!(reply.data().iter().all(|chunk| chunk.get("usage").is_none()), "nobody asked for it");
}

#[tokio::test]
async fn thinking_and_calls_are_told_apart() {
    // Cut where no tag ends.
    let server = Server::saying(&[
        "<thi",
        "nk>\nHm",
        ".\n</th",
        "ink>\n\nLet me see.\n<tool_ca",
        "ll>\n{\"name\": \"weather\", \"argu",
        "ments\": {\"city\": \"Bern\"}}\n</tool_call>",
    ]);
    let body = ask(json!({ "tools": tools() }));
    let json = server.post(CHAT, &body).await.json();
    let message = &json["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("Hm."), &json!("Let me see.")));
    let call = &message["tool_calls"][0];
    assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("weather")));
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({ "city": "Bern" }));
    assert_eq!(json["choices"][0]["finish_reason"], "tool_calls");
    assert!(server.prompt().contains("\"name\": \"weather\""), "the template knows no tools: {}", server.prompt());

    let mut body = body;
    body["stream"] = true.into();
    let reply = server.post(CHAT, &body).await;
    let deltas: Vec<Value> = reply.data().iter().map(|chunk| chunk["choices"][0]["delta"].clone()).collect();
    let joined = |name: &str| deltas.iter().filter_map(|delta| delta[name].as_str()).collect::<String>();
    assert_eq!((joined("reasoning_content"), joined("content")), ("Hm.".to_owned(), "Let me see.".to_owned()));
    let calls: Vec<&Value> =
        deltas.iter().map(|delta| &delta["tool_calls"][0]).filter(|call| !call.is_null()).collect();
    assert!(calls[0]["id"].is_string() && calls[0]["function"]["name"] == "weather");
    let arguments: String = calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&arguments).unwrap(), json!({ "city": "Bern" }));
    assert_eq!(reply.data().last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

/// ds4#318: the call came before the thinking was closed.
#[tokio::test]
async fn field_report_41_a_call_inside_of_thinking_is_delivered() {
    let server = Server::saying(&[
        "<think>\nI must look",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>",
    ]);
    let json = server.post(CHAT, &ask(json!({ "tools": tools() }))).await.json();
    assert_eq!(json["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "weather");
    assert_eq!(json["choices"][0]["finish_reason"], "tool_calls");
}

/// ds4#42: a tool block that does not end.
#[tokio::test]
async fn field_report_42_an_unterminated_call_is_text_and_a_problem() {
    let pieces = &["Wait. ", "<tool_call>\n{\"name\": \"weather\", \"argum"];
    let server = Server::new(move |request| {
        let mut events = vec![token(pieces[0]), token(pieces[1])];
        events.push(Event::Done(outcome(request, Finish::MaxTokens, 2)));
        Ok(stream(events))
    });
    for is_streamed in [false, true] {
        let reply = server.post(CHAT, &ask(json!({ "tools": tools(), "stream": is_streamed }))).await;
        let (text, last) = if is_streamed {
            let data = reply.data();
            assert!(data.iter().all(|chunk| chunk["choices"][0]["delta"].get("tool_calls").is_none()));
            let text = data.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
            (text, data.last().unwrap().clone())
        } else {
            let json = reply.json();
            assert!(json["choices"][0]["message"].get("tool_calls").is_none());
            (json["choices"][0]["message"]["content"].as_str().unwrap().to_owned(), json)
        };
        assert_eq!(text, pieces.concat());
        assert_eq!(last["choices"][0]["finish_reason"], "length");
        assert_eq!(last["strata"]["problems"][0]["code"], "unterminated_tool_call", "{last}");
    }
}

/// colibri#401: `tools` were read twice, so that `tool_choice` was ignored, and text was cut at `<`.
#[tokio::test]
async fn field_report_45_tool_choice_binds_and_a_less_than_sign_is_text() {
    let server = Server::saying(&["1 < 2 and <b>", "<", "/b> <tool"]);
    let json = server.post(CHAT, &ask(json!({ "tools": tools() }))).await.json();
    assert_eq!(json["choices"][0]["message"]["content"], "1 < 2 and <b></b> <tool");

    for choice in [json!("required"), json!({ "type": "function", "function": { "name": "weather" } })] {
        server.post(CHAT, &ask(json!({ "tools": tools(), "tool_choice": choice }))).await;
        assert!(server.asked().constraint.is_some(), "{choice}");
    }
    server.post(CHAT, &ask(json!({ "tools": tools(), "tool_choice": "none" }))).await;
    assert!(server.asked().constraint.is_none());
    assert!(!server.prompt().contains("weather"), "what may not be called is not told of");

    for (choice, field) in [
        (json!("any"), "tool_choice"),
        (json!({ "type": "function", "function": { "name": "other" } }), "tool_choice"),
        (json!({ "type": "function", "function": {} }), "tool_choice.function.name"),
    ] {
        let reply = server.post(CHAT, &ask(json!({ "tools": tools(), "tool_choice": choice }))).await;
        assert_eq!((reply.status.as_u16(), &reply.json()["error"]["param"]), (400, &json!(field)));
    }
    let reply = server.post(CHAT, &ask(json!({ "tool_choice": "required" }))).await;
    assert_eq!(reply.json()["error"]["param"], "tool_choice");
}

#[tokio::test]
async fn a_whole_turn_with_tools_is_a_prompt() {
    let server = Server::saying(&["Rain."]);
    let messages = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "developer", "content": [{ "type": "text", "text": "Be kind." }] },
        { "role": "user", "content": [{ "type": "text", "text": "Weather" }, { "type": "text", "text": "?" }] },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "a", "type": "function", "function": { "name": "weather", "arguments": "{\"city\": \"Bern\"}" } },
            { "id": "b", "type": "function", "function": { "name": "weather", "arguments": "" } },
        ] },
        { "role": "tool", "tool_call_id": "a", "content": "rain" },
        { "role": "tool", "tool_call_id": "b", "content": "sun" },
    ]);
    let reply = server.post(CHAT, &json!({ "messages": messages })).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(
        server.prompt(),
        "<|im_start|>system\nBe brief.\n\nBe kind.<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n\
         <|im_start|>assistant\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"Bern\"}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call><|im_end|>\n\
         <|im_start|>user\n<tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n"
    );
}

#[tokio::test]
async fn templates_are_told_of_thinking() {
    const THINKS: &str = "{{ messages[0].content }}|{{ reasoning_effort }}|{{ enable_thinking }}|{{ extra }}";
    let server = Server::with(|request| Ok(says(request, &["x"])), THINKS, Default::default());
    for (more, expected) in [
        (json!({ "reasoning_effort": "none" }), "Hi|none|False|"),
        (json!({ "reasoning_effort": "xhigh" }), "Hi|xhigh|True|"),
        (json!({ "enable_thinking": false }), "Hi||False|"),
        (json!({ "chat_template_kwargs": { "extra": "yes", "enable_thinking": true } }), "Hi||True|yes"),
    ] {
        let reply = server.post(CHAT, &ask(more)).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(server.prompt(), expected);
    }
}

#[tokio::test]
async fn probabilities_are_told_when_they_are_asked_for() {
    let server = Server::saying(&[" the", "!"]);
    let json = server.post(CHAT, &ask(json!({ "logprobs": true, "top_logprobs": 2 }))).await.json();
    let content = json["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 2);
    assert_eq!(
        content[1],
        json!({
            "token": "!", "logprob": -0.25, "bytes": [33],
            "top_logprobs": [{ "token": "!", "logprob": -0.25, "bytes": [33] }, { "token": "!", "logprob": -0.25, "bytes": [33] }],
        })
    );
    let json = server.post(CHAT, &ask(json!({}))).await.json();
    assert_eq!(json["choices"][0]["logprobs"], Value::Null);
    assert_eq!(server.asked().top_logprobs, None);
    let reply = server.post(CHAT, &ask(json!({ "top_logprobs": 2 }))).await;
    assert_eq!((reply.status.as_u16(), &reply.json()["error"]["param"]), (400, &json!("top_logprobs")));

    let body = json!({ "prompt": "Say", "logprobs": 1, "max_tokens": 5 });
    let json = server.post("/v1/completions", &body).await.json();
    assert_eq!(
        json["choices"][0]["logprobs"],
        json!({
            "tokens": [" the", "!"], "token_logprobs": [-0.25, -0.25],
            "top_logprobs": [{ " the": -0.25 }, { "!": -0.25 }], "text_offset": [0, 4],
        })
    );
}

#[tokio::test]
async fn what_is_asked_reaches_the_host() {
    let server = Server::saying(&["x"]);
    let more = json!({
        "temperature": 1.5, "top_k": 7, "min_p": 0.1, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "repeat_penalty": 1.1, "logit_bias": { "5": -100, "7": 2.5 }, "stop": ["a", "b"], "max_completion_tokens": 9,
        "max_tokens": 4, "response_format": { "type": "json_object" },
    });
    assert_eq!(server.post(CHAT, &ask(more)).await.status, 200);
    let asked = server.asked();
    let sampling = asked.sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.min_p), (1.5, 7, 0.1));
    assert_eq!((sampling.presence_penalty, sampling.frequency_penalty, sampling.repeat_penalty), (0.5, -0.5, 1.1));
    assert_eq!(asked.bias, [(5, -100.0), (7, 2.5)]);
    assert_eq!((asked.stop.as_slice(), asked.max_tokens), (&["a".to_owned(), "b".to_owned()][..], 9));
    assert!(asked.constraint.is_some());
    assert_ne!(asked.sampling.seed, 9, "each request has its own seed");
}

#[tokio::test]
async fn every_end_has_its_reason() {
    for (finish, stop, reason) in [
        (Finish::EndOfTurn, None, "stop"),
        (Finish::EndOfTurn, Some("END"), "stop"),
        (Finish::MaxTokens, None, "length"),
        (Finish::ContextFull, None, "length"),
        (Finish::Repeated, None, "length"),
    ] {
        let server = Server::new(move |request| {
            let outcome = Outcome { stop: stop.map(str::to_owned), ..outcome(request, finish, 1) };
            Ok(stream(vec![token("x"), Event::Done(outcome)]))
        });
        for path in [CHAT, "/v1/completions"] {
            let mut body = ask(json!({}));
            body["prompt"] = "Hi".into();
            assert_eq!(server.post(path, &body).await.json()["choices"][0]["finish_reason"], reason, "{finish:?}");
        }
    }
}

#[tokio::test]
async fn failures_have_their_status_and_streams_their_last_word() {
    for (kind, status, ty) in [
        (FailureKind::Invalid, 400, "invalid_request_error"),
        (FailureKind::Busy, 429, "rate_limit_error"),
        (FailureKind::Closing, 503, "server_error"),
        (FailureKind::Stalled, 504, "server_error"),
        (FailureKind::Internal, 500, "server_error"),
    ] {
        let failure = Failure { kind, message: "because".to_owned() };
        let (at_once, later) = (failure.clone(), failure);
        let server = Server::new(move |_| Err(at_once.clone()));
        let reply = server.post(CHAT, &ask(json!({ "stream": true }))).await;
        assert_eq!(reply.status, status);
        let error = &reply.json()["error"];
        assert_eq!((&error["type"], &error["message"]), (&json!(ty), &json!("because")));
        assert_eq!(reply.headers.contains_key("retry-after"), matches!(status, 429 | 503));

        let server = Server::new(move |_| Ok(stream(vec![token("x"), Event::Failed(later.clone())])));
        assert_eq!(server.post(CHAT, &ask(json!({}))).await.status, status);
        let events = server.post(CHAT, &ask(json!({ "stream": true }))).await.data();
        assert_eq!(events.last().unwrap()["error"]["message"], "because");
    }
}

#[tokio::test]
async fn a_plain_text_goes_on() {
    let server = Server::saying(&["<think>", " is text here"]);
    let json = server.post("/v1/completions", &json!({ "prompt": "Once", "suffix": null })).await.json();
    assert_eq!(
        (&json["object"], &json["choices"][0]["text"]),
        (&json!("text_completion"), &json!("<think> is text here"))
    );
    assert_eq!((server.prompt().as_str(), server.asked().max_tokens), ("Once", 16));
    let ids = tokenizer().encode("Once upon", false).unwrap();
    for prompt in [json!(ids), json!([ids]), json!(["Once upon"])] {
        server.post("/v1/completions", &json!({ "prompt": prompt })).await;
        assert_eq!(server.asked().prompt, ids);
    }
    let reply = server.post("/v1/completions", &json!({ "prompt": "Once", "stream": true })).await;
    let text: String = reply.data().iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "<think> is text here");
    for (more, field) in [
        (json!({ "prompt": ["a", "b"] }), "prompt"),
        (json!({ "prompt": [] }), "prompt"),
        (json!({ "prompt": "" }), "prompt"),
        (json!({ "prompt": [1, "a"] }), "prompt"),
        (json!({ "prompt": [-1] }), "prompt"),
        (json!({ "prompt": { "a": 1 } }), "prompt"),
        (json!({}), "prompt"),
        (json!({ "prompt": "a", "echo": true }), "echo"),
        (json!({ "prompt": "a", "suffix": "b" }), "suffix"),
        (json!({ "prompt": "a", "best_of": 2 }), "best_of"),
        (json!({ "prompt": "a", "n": 2 }), "n"),
    ] {
        let reply = server.post("/v1/completions", &more).await;
        assert_eq!((reply.status.as_u16(), &reply.json()["error"]["param"]), (400, &json!(field)), "{more}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_status_comes_twice_a_second() {
    let server = Server::saying(&["x"]);
    let request = axum::http::Request::get("/v1/status/events").body(axum::body::Body::empty()).unwrap();
    let response = tower::ServiceExt::oneshot(server.router.clone(), request).await.unwrap();
    let mut frames = response.into_body().into_data_stream();
    let start = tokio::time::Instant::now();
    for beat in 0..3 {
        let frame = futures_util::StreamExt::next(&mut frames).await.unwrap().unwrap();
        let status: Value = serde_json::from_slice(frame.strip_prefix(b"data: ").unwrap()).unwrap();
        assert_eq!((&status["model"], &status["queue_limit"]), (&json!("scripted"), &json!(3)));
        assert!(start.elapsed() <= beat * std::time::Duration::from_millis(510));
    }
}

#[tokio::test]
async fn models_tokens_and_monitors() {
    let server = Server::saying(&["x"]);
    let json = server.get("/v1/models").await.json();
    assert_eq!((&json["data"][0]["id"], &json["data"][0]["object"]), (&json!("scripted"), &json!("model")));
    assert_eq!(server.get("/v1/models/scripted").await.json()["id"], "scripted");
    assert_eq!(server.get("/v1/models/other/one").await.status, 404);
    let strange = server.get("/v1/models/%ff").await;
    assert_eq!((strange.status.as_u16(), &strange.json()["error"]["type"]), (404, &json!("not_found_error")));

    let json = server.post("/tokenize", &json!({ "content": "Once upon" })).await.json();
    let ids = tokenizer().encode("Once upon", true).unwrap();
    assert_eq!(json["tokens"], json!(ids));
    assert_eq!(server.post("/detokenize", &json).await.json()["content"], "Once upon");
    let json = server.post("/tokenize", &json!({ "content": "\u{1F9D9}", "with_pieces": true })).await.json();
    assert!(json["tokens"].as_array().unwrap().iter().all(|token| token["piece"].is_array()), "halves of a character");
    let special = |is_special: bool| json!({ "content": "<|im_end|>", "parse_special": is_special });
    assert_eq!(server.post("/tokenize", &special(true)).await.json()["tokens"].as_array().unwrap().len(), 1);
    assert!(server.post("/tokenize", &special(false)).await.json()["tokens"].as_array().unwrap().len() > 1);
    for tokens in [json!([-1]), json!([1e9]), json!(["a"]), json!("a")] {
        assert_eq!(server.post("/detokenize", &json!({ "tokens": tokens })).await.status, 400);
    }

    assert_eq!(server.get("/health").await.json(), json!({ "status": "ok" }));
    assert_eq!(server.get("/v1/status").await.json()["queue_limit"], 3);
    server.get("/nowhere").await;
    let text = server.get("/metrics").await.text;
    for line in [
        "strata_requests_done_total 7\n",
        "strata_queue_limit 3.0\n",
        "strata_http_requests_total{path=\"/tokenize\",status=\"200\"} 4\n",
        "strata_http_requests_total{path=\"other\",status=\"404\"} 1\n",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
    let description = server.get("/openapi.json").await.json();
    for path in [CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize", "/v1/status"] {
        assert!(description["paths"][path].is_object(), "{path}");
    }
    let page = server.get("/").await;
    assert!(page.headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
}
