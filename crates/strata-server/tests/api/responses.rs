//! `/v1/responses`.

use serde_json::{Value, json};
use strata_engine::Finish;
use strata_engine::host::{Event, Failure, FailureKind};

use crate::script::{Server, outcome, stream, token};

const PATH: &str = "/v1/responses";

fn tools() -> Value {
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    json!([{ "type": "function", "name": "weather", "parameters": parameters, "strict": true }])
}

const PIECES: [&str; 2] =
    ["<think>\nHm.\n</think>\n\nLook:", "\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>"];

#[tokio::test]
async fn an_answer_is_a_list_of_items() {
    let server = Server::saying(&PIECES);
    let body = json!({ "model": "m", "input": "Hi", "instructions": "Be brief.", "tools": tools(), "store": true });
    let reply = server.post(PATH, &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let json = reply.json();
    assert_eq!(
        (&json["object"], &json["status"], &json["model"]),
        (&json!("response"), &json!("completed"), &json!("m"))
    );
    let output = json["output"].as_array().unwrap();
    let types: Vec<_> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["reasoning", "message", "function_call"]);
    assert_eq!(output[0]["content"][0]["text"], "Hm.");
    assert_eq!(output[1]["content"][0]["text"], "Look:");
    assert_eq!((&output[2]["name"], &output[2]["arguments"]), (&json!("weather"), &json!("{}")));
    assert_eq!(json["usage"]["input_tokens_details"]["cached_tokens"], 3);
    assert_eq!((&json["store"], &json["instructions"]), (&json!(false), &json!("Be brief.")));
    assert_eq!(json["tools"][0]["name"], "weather");
    assert!(server.prompt().starts_with("<|im_start|>system\nBe brief.\n\n# Tools"), "{}", server.prompt());
}

#[tokio::test]
async fn a_stream_tells_of_every_item() {
    let server = Server::saying(&PIECES);
    let body = json!({ "input": [{ "role": "user", "content": "Hi" }], "tools": tools(), "stream": true });
    let reply = server.post(PATH, &body).await;
    let events = reply.events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.strip_prefix("response.").unwrap()).collect();
    assert_eq!(
        names,
        [
            "created",
            "in_progress",
            "output_item.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ]
    );
    let data = reply.data();
    for (at, (event, (name, _))) in data.iter().zip(&events).enumerate() {
        assert_eq!((&event["sequence_number"], &event["type"]), (&json!(at), &json!(name)));
    }
    let done: Vec<_> = data.iter().filter(|event| event["type"] == "response.output_item.done").collect();
    let last = &data.last().unwrap()["response"];
    assert_eq!(last["output"], json!(done.iter().map(|event| &event["item"]).collect::<Vec<_>>()));
    assert_eq!(done.iter().map(|event| event["output_index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(last["usage"]["output_tokens"].as_u64() > Some(0));
}

#[tokio::test]
async fn a_whole_conversation_is_a_prompt() {
    let server = Server::saying(&["x"]);
    let input = json!([
        { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "Weather?" }] },
        { "type": "reasoning", "id": "r", "summary": [], "content": [{ "type": "reasoning_text", "text": "Hm." }] },
        { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "Look:", "annotations": [] }] },
        { "type": "function_call", "call_id": "c", "name": "weather", "arguments": "{\"city\":\"Bern\"}" },
        { "type": "function_call_output", "call_id": "c", "output": "rain" },
    ]);
    let reply = server.post(PATH, &json!({ "input": input })).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(
        server.prompt(),
        "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\nLook:\n<tool_call>\n{\"name\": \"weather\", \
         \"arguments\": {\"city\":\"Bern\"}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nrain\n\
         </tool_response><|im_end|>\n<|im_start|>assistant\n"
    );
}

#[tokio::test]
async fn forms_reach_the_host() {
    let server = Server::saying(&["{}"]);
    let format = json!({ "type": "json_schema", "name": "n", "schema": { "type": "object" }, "strict": true });
    let body = json!({ "input": "Hi", "text": { "format": format }, "max_output_tokens": 7 });
    assert_eq!(server.post(PATH, &body).await.status, 200);
    assert!(server.asked().constraint.is_some());
    assert_eq!(server.asked().max_tokens, 7);
}

#[tokio::test]
async fn what_cannot_be_served_is_told() {
    let server = Server::saying(&["x"]);
    for (more, field) in [
        (json!({}), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": 3 }), "input"),
        (json!({ "input": "a", "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "input": "a", "background": true }), "background"),
        (json!({ "input": [{ "role": "robot", "content": "a" }] }), "input[0].role"),
        (json!({ "input": [{ "type": "image_generation_call" }] }), "input[0].type"),
        (json!({ "input": [{ "role": "user", "content": [{ "type": "input_image" }] }] }), "input[0].content[0].type"),
        (
            json!({ "input": [{ "type": "function_call", "call_id": "c", "name": "n", "arguments": "[" }] }),
            "input[0].arguments",
        ),
        (json!({ "input": "a", "tools": [{ "type": "web_search" }] }), "tools[0].type"),
        (json!({ "input": "a", "reasoning": { "effort": "huge" } }), "reasoning.effort"),
        (json!({ "input": "a", "text": { "format": { "type": "json_schema" } } }), "text.format.schema"),
    ] {
        let reply = server.post(PATH, &more).await;
        assert_eq!((reply.status.as_u16(), &reply.json()["error"]["param"]), (400, &json!(field)), "{}", reply.text);
    }
}

#[tokio::test]
async fn an_answer_that_was_cut_is_incomplete_and_a_failed_one_failed() {
    let server =
        Server::new(|request| Ok(stream(vec![token("x"), Event::Done(outcome(request, Finish::MaxTokens, 1))])));
    let json = server.post(PATH, &json!({ "input": "Hi" })).await.json();
    assert_eq!(
        (&json["status"], &json["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    let events = server.post(PATH, &json!({ "input": "Hi", "stream": true })).await.events();
    assert_eq!(events.last().unwrap().0, "response.incomplete");

    let failure = Failure { kind: FailureKind::Internal, message: "because".to_owned() };
    let server = Server::new(move |_| Ok(stream(vec![token("x"), Event::Failed(failure.clone())])));
    let reply = server.post(PATH, &json!({ "input": "Hi", "stream": true })).await;
    let last = reply.data().pop().unwrap();
    assert_eq!((&last["type"], &last["response"]["error"]["message"]), (&json!("response.failed"), &json!("because")));
}
