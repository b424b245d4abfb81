//! Answers taken apart: what models write, what they write wrongly, and text cut anywhere.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;
use strata_engine::{AnswerParser, CallFormat, CallProblem, Detokenizer, Part, Tools, opens_thinking};

fn tools() -> Arc<Tools> {
    let function = |name: &str, properties| {
        json!({ "type": "function", "function": {
            "name": name, "parameters": { "type": "object", "properties": properties } } })
    };
    let edit = json!({
        "path": { "type": "string" }, "line": { "type": "integer" }, "force": { "type": "boolean" },
        "tags": { "type": "array", "items": { "type": "string" } }, "note": { "type": ["string", "null"] },
        "mode": { "enum": ["a", "b"] }, "any": {}, "size": { "anyOf": [{ "type": "number" }, { "type": "null" }] },
        "as": { "$ref": "#/properties/path" },
    });
    Arc::new(
        Tools::read(&[function("weather", json!({ "city": { "type": "string" } })), function("edit", edit)]).unwrap(),
    )
}

fn parser(is_thinking: bool, format: Option<CallFormat>) -> AnswerParser {
    AnswerParser::new(is_thinking, format.map(|format| (format, tools())))
}

/// Neighbours of one kind put together.
fn joined(parts: impl IntoIterator<Item = Part>) -> Vec<Part> {
    let mut all: Vec<Part> = Vec::new();
    for part in parts {
        match (all.last_mut(), part) {
            (Some(Part::Text(last)), Part::Text(next)) | (Some(Part::Thinking(last)), Part::Thinking(next)) => {
                last.push_str(&next);
            }
            (_, part) => all.push(part),
        }
    }
    all
}

fn read(mut parser: AnswerParser, text: &str) -> Vec<Part> {
    let mut parts = parser.push(text);
    parts.extend(parser.finish());
    joined(parts)
}

fn json_answer(text: &str) -> Vec<Part> {
    read(parser(false, Some(CallFormat::Json)), text)
}

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

fn thinking(text: &str) -> Part {
    Part::Thinking(text.to_owned())
}

fn call(index: usize, name: &str, arguments: &str) -> [Part; 3] {
    [
        Part::CallBegin { index, name: name.to_owned() },
        Part::CallArguments { index, json_fragment: arguments.to_owned() },
        Part::CallEnd { index },
    ]
}

const WEATHER: &str = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>";
const BERN: &str = "{\"city\": \"Bern\"}";

#[test]
fn thinking_text_and_calls_lose_what_templates_add() {
    let answer = format!("\nFirst,\n\nlook.\n</think>\n\nI look.\n{WEATHER}\n{WEATHER}\n");
    let parts = read(parser(true, Some(CallFormat::Json)), &answer);
    let expected = [
        vec![thinking("First,\n\nlook."), text("I look.")],
        call(0, "weather", BERN).to_vec(),
        call(1, "weather", BERN).to_vec(),
    ];
    assert_eq!(parts, expected.concat());
    // One line break is the template's, others are the model's.
    assert_eq!(json_answer(&format!("Text\n\n{WEATHER}"))[0], text("Text\n"));
    assert_eq!(json_answer("Text\n\n"), [text("Text\n\n")]);
    // The model opens its thinking itself; later tags are text.
    assert_eq!(json_answer("\n<think>\nA\n</think>\nB <think>"), [thinking("A"), text("B <think>")]);
    assert_eq!(json_answer("B </think>"), [text("B </think>")]);
    assert_eq!(read(parser(true, None), "A\n"), [thinking("A\n")]);
    assert_eq!(read(parser(false, None), WEATHER), [text(WEATHER)]);
}

#[test]
fn prompts_open_thinking() {
    assert!(opens_thinking("<|im_start|>assistant\n<think>\n"));
    assert!(!opens_thinking("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    assert!(!opens_thinking("<|im_start|>assistant\n"));
}

#[test]
fn arguments_are_the_bytes_that_were_written() {
    let arguments = r#"{ "city":"</tool_call> \"x\" \u00fc","n":1.0e2, "deep":{"name":[]} }"#;
    let written = format!("<tool_call>{{\"arguments\":{arguments},\"name\":\"weather\"}}</tool_call>");
    assert_eq!(json_answer(&written), call(0, "weather", arguments));
}

#[test]
fn parameters_without_quotes_are_read_by_their_schema() {
    let written = "Now.\n\n<tool_call>\n<function=edit>\n<parameter=path>\na/<b>\n\n</parameter>\n<parameter=line>\n12\n\
                   </parameter>\n<parameter=force>\nTrue\n</parameter>\n<parameter=tags>\n[\"x\", 1]\n</parameter>\n\
                   <parameter=note>\nnull\n</parameter>\n<parameter=mode>\n1\n</parameter>\n<parameter=any>\nsome \"text\"\n\
                   </parameter>\n<parameter=size>\nNone\n</parameter>\n<parameter=as>\n7\n</parameter>\n<parameter=other>\n{\"a\": 1}\n</parameter>\n</function>\n</tool_call>\n";
    let arguments = r#"{"path": "a/<b>\n", "line": 12, "force": true, "tags": ["x", 1], "note": null, "mode": "1", "#
        .to_owned()
        + r#""any": "some \"text\"", "size": null, "as": "7", "other": {"a": 1}}"#;
    let expected = [vec![text("Now.")], call(0, "edit", &arguments).to_vec()].concat();
    assert_eq!(read(parser(false, Some(CallFormat::Xml)), written), expected);
    // Neither numbers nor text that should be numbers are lost.
    let empty = "<tool_call><function=edit><parameter=line>twelve</parameter><parameter=path></parameter></function></tool_call>";
    assert_eq!(read(parser(false, Some(CallFormat::Xml)), empty), call(0, "edit", r#"{"line": "twelve", "path": ""}"#));
    let none = "<tool_call>\n<function=weather>\n</function>\n</tool_call>";
    assert_eq!(read(parser(false, Some(CallFormat::Xml)), none), call(0, "weather", "{}"));
}

#[test]
fn field_report_41_a_complete_call_ends_the_thinking() {
    for newlines in ["", "\n", "\n\n"] {
        let mut parser = parser(true, Some(CallFormat::Json));
        let mut parts = parser.push(&format!("I need the weather.{newlines}{WEATHER}"));
        assert!(!parser.is_thinking());
        assert_eq!(parser.calls_made(), 1);
        parts.extend(parser.finish());
        let expected = [vec![thinking("I need the weather.")], call(0, "weather", BERN).to_vec()].concat();
        assert_eq!(joined(parts), expected);
    }
    // Thinking about calls is thinking.
    for thought in [
        "I could write <tool_call> here.",
        "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"weather\", \"arg",
        "<tool_call>\n{\"name\": \"",
    ] {
        let parts = read(parser(true, Some(CallFormat::Json)), &format!("{thought}\n</think>\n\nDone."));
        assert_eq!(parts, [thinking(thought), text("Done.")], "{thought}");
    }
}

#[test]
fn field_report_42_a_call_that_is_not_complete_is_text_with_a_problem() {
    let broken = |text: &str, problem: CallProblem| Part::Broken { text: text.to_owned(), problem };
    let malformed = |expected| CallProblem::Malformed { expected };
    // Cut anywhere, it is no call, and nothing is lost.
    for end in "<tool_call>".len()..WEATHER.len() {
        let cut = &WEATHER[..end];
        assert_eq!(json_answer(&format!("A\n{cut}")), [text("A\n"), broken(cut, CallProblem::Unterminated)], "{cut}");
        let in_thinking = read(parser(true, Some(CallFormat::Json)), cut);
        assert_eq!(in_thinking, [broken(cut, CallProblem::Unterminated)], "{cut}");
    }
    // What cannot become a call is text at once, and a call after it is one.
    let answer = format!("<tool_call>\n{{\"name\": weather}}\n</tool_call>\n{WEATHER}");
    let expected = [
        vec![
            broken("<tool_call>\n{\"name\": weather", malformed("a number, true, false or null")),
            text("}\n</tool_call>"),
        ],
        call(0, "weather", BERN).to_vec(),
    ];
    assert_eq!(json_answer(&answer), expected.concat());
    let nested = format!("<tool_call>{WEATHER}");
    let expected = [vec![broken("<tool_call>", malformed("a JSON object"))], call(0, "weather", BERN).to_vec()];
    assert_eq!(json_answer(&nested), expected.concat());
    for (inner, problem) in [
        ("{\"name\": \"rm\", \"arguments\": {}}", CallProblem::UnknownTool { name: "rm".to_owned() }),
        ("{\"arguments\": {}}", malformed("a `name` that is a string")),
        ("{\"name\": \"weather\"}", malformed("`arguments` that are an object")),
        ("{\"name\": \"weather\", \"arguments\": \"{}\"}", malformed("`arguments` that are an object")),
    ] {
        let written = format!("<tool_call>{inner}</tool_call>");
        assert_eq!(json_answer(&format!("{written}\nB")), [broken(&written, problem), text("\nB")]);
    }
    let xml = |text: &str| read(parser(false, Some(CallFormat::Xml)), text);
    let twice = "<tool_call><function=edit><parameter=line>1</parameter><parameter=line";
    assert_eq!(xml(&format!("{twice}>"))[0], broken(twice, malformed("no parameter twice")));
    let open = "<tool_call>\n<function=edit>\n<parameter=line>\n1\n</parameter>\n</function>\n";
    assert_eq!(xml(open), [broken(open, CallProblem::Unterminated)]);
}

#[test]
fn field_report_45_what_is_no_tag_is_text() {
    for answer in
        ["a < b", "<", "<tool", "<tool_calls>", "x <think", "<<tool_call", "<\n<b>", "</think>", "a<|im_end|>"]
    {
        assert_eq!(json_answer(answer), [text(answer)], "{answer}");
    }
    // It is given as soon as it is known to be none.
    let mut parser = parser(false, Some(CallFormat::Json));
    assert_eq!(parser.push("a <to"), [text("a ")]);
    assert_eq!(parser.push("p"), [text("<top")]);
    assert_eq!(parser.push("\n\n<tool_call"), []);
    assert_eq!(parser.push("s>"), [text("\n\n<tool_calls>")]);
}

#[test]
fn tags_and_characters_may_be_cut_at_every_byte() {
    let json = format!("Ünd so\n</think>\n\n😀 <b>\n{WEATHER}\n<tool_call>{{\"name\": ü\n</tool_call> ü");
    let xml = "</think>é\n<tool_call>\n<function=edit>\n<parameter=path>\né😀\n</parameter>\n</function>\n</tool_call>";
    for (format, answer) in [(CallFormat::Json, json.as_str()), (CallFormat::Xml, xml)] {
        let whole = read(parser(true, Some(format)), answer);
        assert!(whole.len() >= 4, "{whole:?}");
        for first in 0..=answer.len() {
            for second in [first, (first + 1).min(answer.len()), answer.len()] {
                let (mut detokenizer, mut parser) = (Detokenizer::new(true), parser(true, Some(format)));
                let mut parts = Vec::new();
                let bytes = answer.as_bytes();
                for piece in [&bytes[..first], &bytes[first..second], &bytes[second..]] {
                    parts.extend(parser.push(detokenizer.push_bytes(piece)));
                }
                parts.extend(parser.push(detokenizer.finish()));
                parts.extend(parser.finish());
                assert_eq!(joined(parts), whole, "cut at {first} and {second}");
            }
        }
    }
}

/// Text that is full of tags, whole and broken.
fn answers() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<",
        "\n",
        "\n\n",
        " ",
        "a",
        "ü",
        "{",
        "}",
        "\"",
        "\\",
        "{\"name\": \"weather\", \"arguments\": {}}",
        "\"name\":",
        "\"weather\"",
        ",",
        "<function=edit>",
        "</function>",
        "<parameter=line>",
        "</parameter>",
        "12",
        "</",
        "<tool_",
        WEATHER,
    ]);
    prop::collection::vec(pieces, 0..16).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_cut_gives_the_same_parts(
        answer in answers(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        is_thinking: bool, is_xml: bool,
    ) {
        let format = if is_xml { CallFormat::Xml } else { CallFormat::Json };
        let whole = read(parser(is_thinking, Some(format)), &answer);
        let ends: Vec<usize> = answer.char_indices().map(|(at, _)| at).chain([answer.len()]).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| ends[cut.index(ends.len())]).chain([0, answer.len()]).collect();
        cuts.sort_unstable();
        let mut pieces = parser(is_thinking, Some(format));
        let mut parts: Vec<Part> = cuts.windows(2).flat_map(|cut| pieces.push(&answer[cut[0]..cut[1]])).collect();
        parts.extend(pieces.finish());
        prop_assert_eq!(joined(parts), whole.clone());
        // Nothing is lost but line breaks, tags of thinking, and what makes a call a call.
        if !whole.iter().any(|part| matches!(part, Part::CallEnd { .. })) {
            let kept: String = whole.iter().map(|part| match part {
                Part::Thinking(text) | Part::Text(text) | Part::Broken { text, .. } => text.as_str(),
                _ => "",
            }).collect();
            let bare = |text: &str| text.replace("<think>", "").replace("</think>", "").replace('\n', "");
            prop_assert_eq!(bare(&kept), bare(&answer));
        }
    }
}
