//! Answers held to a form: whatever a model wants to write, the form comes out, and what fits it comes out as it was wanted.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};
use strata_engine::{
    AnswerRules, CallFormat, Chooser, Constraint, Detokenizer, Engine, EngineOptions, Finish, Form, FormError, Part,
    SamplerParams, SamplingError, Stop, Tokenizer, ToolChoice, ToolRules, Tools, Vocabulary, describe_tools,
    knows_thinking, knows_tools,
};
use strata_gguf::{Array, Gguf, Metadata, Value as GgufValue};

fn mini_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/strata-mini/strata-mini-iq2xs-q4_0.gguf")
}

/// A vocabulary, and a model with a will but no sense.
struct Writer {
    tokenizer: Tokenizer,
    vocabulary: Arc<Vocabulary>,
    /// Tokens that end things.
    closers: Vec<u32>,
}

impl Writer {
    fn new(metadata: &Metadata) -> Writer {
        let tokenizer = Tokenizer::from_metadata(metadata).unwrap();
        let vocabulary = Vocabulary::new(&tokenizer).unwrap();
        let closes =
            |id: &u32| matches!(tokenizer.token_bytes(*id), b"\"" | b"}" | b"]" | b"\"}" | b"\n" | b"<" | b"</");
        let mut closers: Vec<u32> = (0..tokenizer.vocab_len() as u32).filter(closes).collect();
        closers.extend(tokenizer.end_of_turn_ids());
        Writer { tokenizer, vocabulary, closers }
    }

    /// The shipped model's vocabulary: tags are several tokens, and a token can end one and go on.
    fn plain() -> &'static Writer {
        static WRITER: OnceLock<Writer> = OnceLock::new();
        WRITER.get_or_init(|| Writer::new(Gguf::open(&mini_path()).unwrap().metadata()))
    }

    /// The same with one token for each tag, as published models have.
    fn tagged() -> &'static Writer {
        static WRITER: OnceLock<Writer> = OnceLock::new();
        WRITER.get_or_init(|| {
            let mini = Gguf::open(&mini_path()).unwrap();
            let mut metadata = Metadata::new();
            for (name, value) in mini.metadata().iter() {
                let value = match (name, value) {
                    ("tokenizer.ggml.tokens", GgufValue::Array(Array::String(tokens))) => {
                        let tags = ["<think>", "</think>", "<tool_call>", "</tool_call>"].map(str::to_owned);
                        GgufValue::Array(Array::String([&tokens[..], &tags].concat()))
                    }
                    ("tokenizer.ggml.token_type", GgufValue::Array(Array::I32(types))) => {
                        GgufValue::Array(Array::I32([&types[..], &[4; 4]].concat()))
                    }
                    _ => value.clone(),
                };
                metadata.insert(name, value).unwrap();
            }
            let writer = Writer::new(&metadata);
            assert_eq!(writer.tokenizer.encode("<tool_call>", true).unwrap().len(), 1);
            writer
        })
    }

    /// What is written by a model that wants `wanted`, then the end; once it could not have its will, it wants anything.
    /// The second is whether it came to an end.
    fn write(&self, rules: &AnswerRules, wanted: &str, seed: u64) -> (String, bool) {
        let constraint = rules.constraint(&self.vocabulary).unwrap();
        self.write_on(constraint, wanted, seed, 600).unwrap()
    }

    fn write_on(
        &self,
        constraint: Option<Constraint>,
        wanted: &str,
        seed: u64,
        max_tokens: usize,
    ) -> Result<(String, bool), SamplingError> {
        let mut chooser = Chooser::new(SamplerParams::default(), Vec::new(), constraint, None)?;
        let end_ids = self.tokenizer.end_of_turn_ids();
        let mut wanted = self.tokenizer.encode(wanted, true).unwrap();
        wanted.push(end_ids[0]);
        let mut wanted = wanted.into_iter();
        let (mut text, mut detokenizer) = (String::new(), Detokenizer::new(true));
        // Past the vocabulary a model's matrices may have rows.
        let mut logits = vec![0.0; self.tokenizer.vocab_len() + 3];
        for step in 0..max_tokens as u64 {
            let number = |id: u64| (seed ^ (step << 20) ^ id).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            logits.iter_mut().zip(0..).for_each(|(logit, id)| *logit = number(id) as f32 / (1 << 24) as f32);
            let wish = wanted.next();
            match wish {
                Some(id) => logits[id as usize] = 10.0,
                None if number(1 << 19) % 3 == 0 => self.closers.iter().for_each(|id| logits[*id as usize] += 1.0),
                None => {}
            }
            let (id, _) = chooser.choose(&logits)?;
            if wish.is_some_and(|wish| wish != id) {
                wanted = Vec::new().into_iter();
            }
            if !end_ids.contains(&id) {
                text.push_str(detokenizer.push(&self.tokenizer, id));
            }
            if end_ids.contains(&id) || chooser.is_finished() {
                return Ok((text, true));
            }
        }
        Ok((text, false))
    }
}

fn writers() -> [&'static Writer; 2] {
    [Writer::plain(), Writer::tagged()]
}

fn form(form: Form) -> AnswerRules {
    AnswerRules { form, ..AnswerRules::default() }
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 8 },
            "kind": { "enum": ["cat", "dog"] },
            "count": { "type": "integer", "minimum": 0, "maximum": 99 },
            "tags": { "type": "array", "items": { "$ref": "#/$defs/tag" }, "minItems": 1, "maxItems": 2 },
            "inner": { "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"],
                       "additionalProperties": false }
        },
        "required": ["name", "kind", "count", "tags", "inner"],
        "additionalProperties": false,
        "$defs": { "tag": { "type": "string", "pattern": "^[a-z]{1,3}$" } }
    })
}

/// The schema above, in words of this language.
fn obeys(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["name", "kind", "count", "tags", "inner"], "{text}");
    assert!(value["name"].as_str().unwrap().chars().count() <= 8, "{text}");
    assert!(value["kind"] == "cat" || value["kind"] == "dog", "{text}");
    assert!(value["count"].as_u64().unwrap() <= 99, "{text}");
    let tags = value["tags"].as_array().unwrap();
    let is_tag = |tag: &str| (1..=3).contains(&tag.len()) && tag.bytes().all(|byte| byte.is_ascii_lowercase());
    assert!((1..=2).contains(&tags.len()) && tags.iter().all(|tag| is_tag(tag.as_str().unwrap())), "{text}");
    assert!(value["inner"].as_object().unwrap().len() == 1 && value["inner"]["ok"].is_boolean(), "{text}");
}

#[test]
fn any_model_writes_json_of_the_schema() {
    for writer in writers() {
        for seed in 0..6 {
            let (text, has_ended) = writer.write(&form(Form::JsonSchema(schema())), "Sure! Here is", seed);
            assert!(has_ended, "{text}");
            obeys(&text);
        }
    }
}

#[test]
fn what_fits_a_form_is_written_as_it_was_wanted() {
    let fine = r#"{"name": "Mia ü", "kind": "cat", "count": 7, "tags": ["a", "bc"], "inner": {"ok": true}}"#;
    let pretty = "{\n  \"a\": [\n    1,\n    {}\n  ]\n}";
    let lark = "start: greeting \" \" NAME\ngreeting: \"hello\" | \"bye\"\nNAME: /[A-Z][a-z]+/";
    for writer in writers() {
        for (rules, wanted) in [
            (form(Form::JsonSchema(schema())), fine),
            (form(Form::Json), pretty),
            (form(Form::Regex("[0-9]{2}/[0-9]{2} (am|pm)".to_owned())), "12/30 pm"),
            (form(Form::Lark(lark.to_owned())), "bye Ada"),
        ] {
            assert_eq!(writer.write(&rules, wanted, 1), (wanted.to_owned(), true));
        }
        // It ends by itself where nothing can follow, and not before it is complete.
        let digits = form(Form::Regex("[0-9]{3}".to_owned()));
        assert_eq!(writer.write(&digits, "1234", 1), ("123".to_owned(), true));
        assert_eq!(writer.write(&digits, "1", 1).0.len(), 3);
        // A limit of tokens cuts it: what is there is its beginning.
        let constraint = form(Form::JsonSchema(schema())).constraint(&writer.vocabulary).unwrap();
        let (text, has_ended) = writer.write_on(constraint, fine, 1, 5).unwrap();
        assert!(!has_ended && fine.starts_with(&text) && text.len() >= 5, "{text}");
    }
}

#[test]
fn thinking_is_free_and_the_form_comes_after_it() {
    let rules = AnswerRules { is_thinking: true, ..form(Form::JsonSchema(schema())) };
    let json = r#"{"name": "", "kind": "dog", "count": 0, "tags": ["x"], "inner": {"ok": false}}"#;
    for writer in writers() {
        for gap in ["", "\n", "\n\n"] {
            let wanted = format!("Hm <b>, {{\"a\"}}.\n</think>{gap}{json}");
            assert_eq!(writer.write(&rules, &wanted, 1), (wanted.clone(), true));
        }
        // The answer does not end in its thinking.
        let (text, _) = writer.write(&rules, "Hm.", 1);
        assert!(text.len() > 20, "{text}");
        // A token that ends the tag cannot begin what does not fit.
        let (text, has_ended) = writer.write(&rules, "Hm.\n</think>>>::", 1);
        match text.split_once("</think>") {
            Some((_, answer)) => obeys(answer.trim_start_matches([' ', '\n'])),
            None => assert!(!has_ended && text.starts_with("Hm.\n</think"), "{text}"),
        }
    }
}

#[test]
fn a_budget_ends_the_thinking() {
    let thought = "I think and think and think and think and think and think and think and think and think and think.";
    for writer in writers() {
        for (form, budget) in [(Form::Free, 0), (Form::Free, 7), (Form::JsonSchema(schema()), 7)] {
            let rules =
                AnswerRules { form: form.clone(), thinking_tokens: Some(budget), is_thinking: true, tools: None };
            let (text, _) = writer.write(&rules, thought, 5);
            let (thinking, answer) = text.split_once("\n</think>\n\n").unwrap_or_else(|| panic!("{text}"));
            assert_eq!(writer.tokenizer.encode(thinking, false).unwrap().len(), budget, "{text}");
            if form != Form::Free {
                obeys(answer);
            }
            let quick = "Hm.\n</think>\n\n";
            let rules = AnswerRules { thinking_tokens: Some(50), ..rules };
            assert!(writer.write(&rules, quick, 5).0.starts_with(quick));
        }
    }
}

fn tools() -> Arc<Tools> {
    let function = |name: &str, parameters: Value| json!({ "type": "function", "function": { "name": name, "parameters": parameters } });
    let edit = json!({
        "type": "object",
        "properties": {
            "path": { "type": "string" },
            "line": { "type": "integer" },
            "mode": { "type": "string", "enum": ["add", "del"] },
            "tag": { "$ref": "#/$defs/tag" }
        },
        "required": ["path", "line"],
        "additionalProperties": false,
        "$defs": { "tag": { "type": "boolean" } }
    });
    let set = json!({
        "type": "object",
        "properties": { "level": { "type": "integer", "minimum": 0, "maximum": 9 }, "mode": { "enum": ["on", "off"] } },
        "required": ["level", "mode"],
        "additionalProperties": false
    });
    let functions =
        [function("data", schema()), function("edit", edit), function("now", Value::Null), function("set", set)];
    Arc::new(Tools::read(&functions).unwrap())
}

fn calling(choice: ToolChoice, format: CallFormat, is_parallel: bool) -> AnswerRules {
    AnswerRules { tools: Some(ToolRules { tools: tools(), choice, format, is_parallel }), ..AnswerRules::default() }
}

/// Text and calls of an answer; there is nothing else.
fn text_and_calls(rules: &AnswerRules, answer: &str) -> (String, Vec<(String, String)>) {
    let mut parser = rules.parser();
    let parts = [parser.push(answer), parser.finish()].concat();
    let (mut text, mut calls) = (String::new(), Vec::new());
    for part in parts {
        match part {
            Part::Text(piece) => text += &piece,
            Part::CallBegin { name, .. } => calls.push((name, String::new())),
            Part::CallArguments { json_fragment, .. } => calls.last_mut().unwrap().1 += &json_fragment,
            Part::CallEnd { .. } | Part::Thinking(_) => {}
            Part::Broken { .. } => panic!("{part:?} in {answer}"),
        }
    }
    (text, calls)
}

/// That a call is one that the tools allow.
fn is_allowed((name, arguments): &(String, String)) {
    let value: Value = serde_json::from_str(arguments).unwrap();
    match name.as_str() {
        "data" => obeys(arguments),
        "edit" => {
            assert!(value["path"].is_string() && (value["line"].is_i64() || value["line"].is_u64()), "{arguments}");
            assert!(value["mode"].is_null() || value["mode"] == "add" || value["mode"] == "del", "{arguments}");
            assert!(value["tag"].is_null() || value["tag"].is_boolean(), "{arguments}");
        }
        "now" => assert_eq!(value, json!({})),
        "set" => {
            assert!((0..=9).contains(&value["level"].as_i64().unwrap()), "{arguments}");
            assert!(value["mode"] == "on" || value["mode"] == "off", "{arguments}");
        }
        name => panic!("{name}"),
    }
}

#[test]
fn demanded_calls_are_made_whatever_the_model_wants() {
    for writer in writers() {
        for format in [CallFormat::Json, CallFormat::Xml] {
            for seed in 0..4 {
                let rules = calling(ToolChoice::Named("set".to_owned()), format, false);
                let (text, has_ended) = writer.write(&rules, "I would rather not.", seed);
                assert!(has_ended, "{text}");
                let (text, calls) = text_and_calls(&rules, &text);
                assert!(text.is_empty() && calls.len() == 1 && calls[0].0 == "set");
                is_allowed(&calls[0]);
            }
            let rules = calling(ToolChoice::Named("now".to_owned()), format, false);
            let (text, has_ended) = writer.write(&rules, "Let me edit.", 1);
            assert!(has_ended);
            let (text, calls) = text_and_calls(&rules, &text);
            assert!(text.is_empty() && calls.len() == 1 && calls[0].0 == "now", "{calls:?}");
            is_allowed(&calls[0]);
        }
    }
}

#[test]
fn calls_as_models_write_them_pass_unchanged() {
    let json = "<tool_call>\n{\"name\": \"edit\", \"arguments\": {\"path\": \"a.rs\", \"line\": 3}}\n</tool_call>";
    let xml = "<tool_call>\n<function=edit>\n<parameter=path>\na.rs\n\nb <c>\n</parameter>\n<parameter=line>\n3\n</parameter>\n\
               <parameter=mode>\nadd\n</parameter>\n<parameter=tag>\ntrue\n</parameter>\n</function>\n</tool_call>";
    let arguments = r#"{"path": "a.rs\n\nb <c>", "line": 3, "mode": "add", "tag": true}"#;
    for writer in writers() {
        for (format, call, arguments) in
            [(CallFormat::Json, json, r#"{"path": "a.rs", "line": 3}"#), (CallFormat::Xml, xml, arguments)]
        {
            let calls = |count| vec![("edit".to_owned(), arguments.to_owned()); count];
            // One, or two where that is allowed.
            let two = format!("{call}\n{call}");
            let rules = calling(ToolChoice::Required, format, true);
            assert_eq!(writer.write(&rules, call, 1), (call.to_owned(), true));
            assert_eq!(writer.write(&rules, &two, 1), (two.clone(), true));
            assert_eq!(text_and_calls(&rules, &two), (String::new(), calls(2)));
            let rules = calling(ToolChoice::Required, format, false);
            assert_eq!(writer.write(&rules, &two, 1), (call.to_owned(), true));
            // Free text with calls in it, and without.
            let rules = calling(ToolChoice::Auto, format, true);
            let answer = format!("I edit < now.\n\n{two}\nDone.");
            assert_eq!(writer.write(&rules, &answer, 1), (answer.clone(), true));
            assert_eq!(text_and_calls(&rules, &answer).1, calls(2));
            assert_eq!(writer.write(&rules, "No <tool> here.", 1), ("No <tool> here.".to_owned(), true));
            let rules = calling(ToolChoice::Auto, format, false);
            let (text, has_ended) = writer.write(&rules, &answer, 1);
            assert!(has_ended && text.ends_with("</tool_call>"), "{text}");
            assert_eq!(text_and_calls(&rules, &text).1, calls(1));
            // Thinking first.
            let rules = AnswerRules { is_thinking: true, ..calling(ToolChoice::Required, format, false) };
            let answer = format!("Let me <edit>.\n</think>\n\n{call}");
            assert_eq!(writer.write(&rules, &answer, 1), (answer.clone(), true));
            // A complete call in the thinking is the answer.
            let answer = format!("Let me edit.\n{call}");
            assert_eq!(writer.write(&rules, &answer, 1), (answer.clone(), true));
            assert_eq!(text_and_calls(&rules, &answer), (String::new(), calls(1)));
        }
    }
}

#[test]
fn a_call_once_begun_is_one_of_the_tools() {
    for writer in writers() {
        for (format, wanted) in [
            (CallFormat::Json, "Yes.\n<tool_call>\n{\"name\": \"rm\", \"arguments\": {}}"),
            (CallFormat::Json, "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1}}"),
            (CallFormat::Xml, "<tool_call>\n<function=now>\n<parameter=x>"),
        ] {
            let rules = calling(ToolChoice::Auto, format, false);
            let (text, has_ended) = writer.write(&rules, wanted, 3);
            if has_ended {
                let (_, calls) = text_and_calls(&rules, &text);
                assert_eq!(calls.len(), 1, "{text}");
                is_allowed(&calls[0]);
            } else {
                assert!(text.contains("path"), "{text}");
            }
        }
    }
}

#[test]
fn an_answer_of_a_form_may_call_tools_instead() {
    let json = r#"{"name": "", "kind": "dog", "count": 0, "tags": ["x"], "inner": {"ok": false}}"#;
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let rules = AnswerRules { form: Form::JsonSchema(schema()), ..calling(ToolChoice::Auto, CallFormat::Json, false) };
    for wanted in [json, call] {
        assert_eq!(Writer::tagged().write(&rules, wanted, 1), (wanted.to_owned(), true));
    }
}

#[test]
fn nothing_is_held_where_nothing_is_asked() {
    let vocabulary = &Writer::plain().vocabulary;
    assert!(AnswerRules::default().constraint(vocabulary).unwrap().is_none());
    assert!(calling(ToolChoice::None, CallFormat::Json, true).constraint(vocabulary).unwrap().is_none());
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let rules = calling(ToolChoice::None, CallFormat::Json, true);
    assert_eq!(text_and_calls(&rules, call), (call.to_owned(), Vec::new()));
}

#[test]
fn what_is_not_understood_is_an_error() {
    let vocabulary = &Writer::plain().vocabulary;
    let error = |rules: &AnswerRules| rules.constraint(vocabulary).unwrap_err().to_string();
    let has = |text: &str, words: &[&str]| assert!(words.iter().all(|word| text.contains(word)), "{text}");
    let unknown = json!({ "type": "object", "patternProperties": { "a": {} }, "unevaluatedProperties": false });
    has(&error(&form(Form::JsonSchema(unknown))), &["JSON schema", "unevaluatedProperties"]);
    has(&error(&form(Form::JsonSchema(json!({ "$ref": "#/nowhere" })))), &["JSON schema", "nowhere"]);
    has(&error(&form(Form::JsonSchema(json!({ "type": "integer", "minimum": 2, "maximum": 1 })))), &["JSON schema"]);
    let joined: Vec<_> = (0..50).map(|n| json!({ "pattern": format!("a.{{{n}}}b") })).collect();
    has(&error(&form(Form::JsonSchema(json!({ "allOf": joined })))), &["allOf", "50", "8"]);
    has(&error(&form(Form::Regex("(?=a)b".to_owned()))), &["regular expression"]);
    has(&error(&form(Form::Regex("(a".to_owned()))), &["regular expression"]);
    has(&error(&form(Form::Lark("start: nothing".to_owned()))), &["Lark grammar", "nothing"]);
    has(&error(&calling(ToolChoice::Named("rm".to_owned()), CallFormat::Json, true)), &["tool_choice", "rm"]);

    let read = |tool: Value| Tools::read(&[tool]).unwrap_err().to_string();
    has(&read(json!({ "type": "web" })), &["tools[0]", "type", "web"]);
    has(&read(json!({ "type": "function", "function": { "name": "a b" } })), &["tools[0]", "name", "a b"]);
    let array = json!({ "name": "a", "parameters": { "type": "array" } });
    has(&read(json!({ "type": "function", "function": array })), &["parameters", "array"]);
    let twice = json!({ "type": "function", "function": { "name": "a" } });
    assert!(matches!(Tools::read(&[twice.clone(), twice]), Err(FormError::BadTool { index: 1, .. })));
}

/// Each either is an error, or can be followed for a while; none panics or takes for ever.
#[test]
fn hostile_forms_are_errors_or_cheap() {
    let nested = |levels: usize| {
        (0..levels).fold(json!({ "type": "integer" }), |inner, _| json!({ "type": "array", "items": inner }))
    };
    let cross = |levels: usize| {
        let definition = |level: usize| {
            let next = json!({ "$ref": format!("#/$defs/d{}", level + 1) });
            (format!("d{level}"), json!({ "anyOf": [next, next, { "type": "array", "items": next }] }))
        };
        let mut definitions: serde_json::Map<_, _> = (0..levels).map(definition).collect();
        definitions.insert(format!("d{levels}"), json!({ "type": "string" }));
        json!({ "$ref": "#/$defs/d0", "$defs": definitions })
    };
    let properties: serde_json::Map<_, _> =
        (0..200).map(|at| (format!("k{at}"), json!({ "type": "string" }))).collect();
    let forms = [
        Form::JsonSchema(nested(200)),
        Form::JsonSchema(nested(40)),
        Form::JsonSchema(cross(30)),
        Form::JsonSchema(json!({ "enum": (0..5_000).map(|n| n.to_string()).collect::<Vec<_>>() })),
        Form::JsonSchema(json!({ "enum": vec!["x".repeat(1000); 400] })),
        Form::JsonSchema(json!({ "type": "object", "properties": properties })),
        Form::JsonSchema(json!({ "type": "string", "minLength": 100_000, "maxLength": 200_000 })),
        Form::JsonSchema(json!({ "type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$" })),
        Form::JsonSchema(json!({ "type": "string", "pattern": "(.*a){50}.*b.{200}" })),
        Form::JsonSchema(json!({ "type": "array", "minItems": 1_000_000, "items": {} })),
        Form::JsonSchema(
            json!({ "allOf": (0..8).map(|n| json!({ "pattern": format!("a.{{{n}}}b") })).collect::<Vec<_>>() }),
        ),
        Form::JsonSchema(json!({ "$ref": "#" })),
        Form::JsonSchema(json!(false)),
        Form::JsonSchema(json!([1])),
        Form::Regex("(a+)+$".to_owned()),
        Form::Regex("(a|a)*b".to_owned()),
        Form::Regex("((a{1,1000}){1,1000}){1,1000}".to_owned()),
        Form::Regex("(.*)(.*)(.*)(.*)(.*)[^a]{500}x".to_owned()),
        Form::Regex("(.*a.{60}|b.{60})*".to_owned()),
        Form::Regex("(".repeat(5000)),
        Form::Regex("a".repeat(1 << 20)),
        Form::Regex(String::new()),
        Form::Lark("start: start".to_owned()),
        Form::Lark("start: \"a\" start start | \"\"".to_owned()),
        Form::Lark("start: a\na: b | \"\"\nb: a a a a".to_owned()),
        Form::Lark(format!("start: {}\"a\"{}", "(".repeat(3000), ")".repeat(3000))),
        Form::Lark("start: %json {\"type\": \"bad\"}".to_owned()),
        Form::Lark("start: <|im_end|> \u{0}".to_owned()),
    ];
    let (mut refused, mut followed) = (0, 0);
    let writer = Writer::plain();
    for form in forms {
        let rules = AnswerRules { form, ..AnswerRules::default() };
        match rules.constraint(&writer.vocabulary) {
            Err(error) => {
                refused += 1;
                assert!(error.to_string().len() < 700, "{error}");
            }
            Ok(constraint) => {
                followed += 1;
                if let Err(error) = writer.write_on(constraint, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 1, 40) {
                    assert!(error.to_string().len() < 700, "{error}");
                }
            }
        }
    }
    assert!(refused > 8 && followed > 8, "{refused} refused, {followed} followed");
}

#[test]
fn templates_say_how_calls_are_written() {
    let template = include_str!("data/templates/tools.jinja");
    assert!(knows_tools(template) && knows_thinking(template));
    assert_eq!(CallFormat::of_template(template), CallFormat::Json);
    let xml = "{{ '<tool_call>\\n<function=' + call.name + '>\\n' }} {% if tools %}";
    assert!(knows_tools(xml));
    assert_eq!(CallFormat::of_template(xml), CallFormat::Xml);
    let tool = json!({ "type": "function", "function": { "name": "now", "description": "The <time>" } });
    let words = describe_tools(&[tool.clone(), tool]).unwrap();
    let line = r#"{"type": "function", "function": {"name": "now", "description": "The <time>"}}"#;
    assert!(words.contains(&format!("\n<tools>\n{line}\n{line}\n</tools>\n\n")), "{words}");
    assert!(
        words.ends_with("\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>")
    );
}

/// The shipped model itself, which knows neither tools nor thinking.
#[test]
fn the_shipped_model_is_held_to_schemas_and_calls() {
    let mut engine = Engine::open(&mini_path(), &EngineOptions::default()).unwrap();
    let vocabulary = engine.form_vocabulary().unwrap();
    let source = engine.template().unwrap().source();
    assert!(!knows_tools(source) && !knows_thinking(source));
    let description = describe_tools(&[json!({ "type": "function", "function": { "name": "now" } })]).unwrap();
    let chat = [("system".to_owned(), description), ("user".to_owned(), "What time is it?".to_owned())];
    let prompt = engine.encode_chat(&chat).unwrap();
    let stop = Stop::new(false);
    let mut write = |rules: &AnswerRules, max_tokens, temperature| {
        let sampling = SamplerParams { temperature, seed: 3, ..SamplerParams::default() };
        let constraint = rules.constraint(&vocabulary).unwrap();
        let chooser = Chooser::new(sampling, Vec::new(), constraint, None).unwrap();
        let mut session = engine.new_session().unwrap();
        let mut text = String::new();
        let written = engine.generate_by(&mut session, &prompt, max_tokens, chooser, &stop, |piece| text += piece);
        engine.free_session(session);
        (text, written.unwrap().finish)
    };
    for temperature in [0.0, 1.5] {
        let (text, finish) = write(&form(Form::JsonSchema(schema())), 300, temperature);
        assert_eq!(finish, Finish::EndOfTurn, "{text}");
        obeys(&text);
        for format in [CallFormat::Json, CallFormat::Xml] {
            let name = if format == CallFormat::Json { "data" } else { "set" };
            let rules = calling(ToolChoice::Named(name.to_owned()), format, false);
            let (text, finish) = write(&rules, 300, temperature);
            assert_eq!(finish, Finish::EndOfTurn, "{text}");
            let (text, calls) = text_and_calls(&rules, &text);
            assert!(text.is_empty() && calls.len() == 1, "{calls:?}");
            is_allowed(&calls[0]);
        }
    }
    let rules = calling(ToolChoice::Required, CallFormat::Json, false);
    let (text, finish) = write(&rules, 300, 0.0);
    if finish == Finish::EndOfTurn {
        is_allowed(&text_and_calls(&rules, &text).1[0]);
    } else {
        // Text without a limit may go on for long: then it is in the one string that has none.
        assert!(finish == Finish::MaxTokens && text.contains("\"path\""), "{text}");
    }
    // At the limit of tokens it is cut, and says so: no JSON, and no call.
    let rules = calling(ToolChoice::Named("data".to_owned()), CallFormat::Json, false);
    let (text, finish) = write(&rules, 12, 0.0);
    assert_eq!(finish, Finish::MaxTokens);
    let mut parser = rules.parser();
    let parts = [parser.push(&text), parser.finish()].concat();
    assert!(!parts.iter().any(|part| matches!(part, Part::CallBegin { .. })), "{parts:?}");
}

#[test]
fn constraints_go_to_other_threads() {
    fn check<T: Send + Clone + std::fmt::Debug>() {}
    check::<Constraint>();
    check::<Chooser>();
}
