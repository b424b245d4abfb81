//! Chat templates against Python's jinja2, and templates that misbehave.

use std::path::PathBuf;

use jiff::civil::date;
use jiff::tz::TimeZone;
use serde_json::{Value, json};
use strata_engine::{ChatOptions, ChatTemplate, TemplateError};
use strata_gguf::{Array, Metadata, Value as MetadataValue};

fn data(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The time that tools/gen_renders.py used.
fn options() -> ChatOptions {
    let now = date(2026, 2, 3).at(4, 5, 6, 0).to_zoned_datetime(TimeZone::UTC).unwrap();
    ChatOptions { now: Some(now), ..ChatOptions::default() }
}

fn render(source: &str) -> Result<String, TemplateError> {
    ChatTemplate::from_source(source)?.render(&[json!({"role": "user", "content": "hi"})], &options())
}

#[test]
fn renders_as_jinja2_does() {
    let cases: Vec<Value> = serde_json::from_str(&data("templates/renders.json")).unwrap();
    assert!(cases.len() > 30);
    let mut wrong = Vec::new();
    for case in &cases {
        let source = match case.get("template") {
            Some(name) => data(&format!("templates/{}", name.as_str().unwrap())),
            None => case["source"].as_str().unwrap().to_owned(),
        };
        let options = ChatOptions { variables: case["variables"].as_object().unwrap().clone(), ..options() };
        let result = ChatTemplate::from_source(&source)
            .and_then(|template| template.render(case["messages"].as_array().unwrap(), &options));
        let agrees = match (&result, case.get("text"), case.get("refused")) {
            (Ok(text), Some(expected), None) => text == expected.as_str().unwrap(),
            (Err(TemplateError::Refused { message }), None, Some(expected)) => message == expected.as_str().unwrap(),
            _ => false,
        };
        if !agrees {
            wrong.push(format!(
                "{}:\n  got      {result:?}\n  expected {}{}",
                case["name"], case["text"], case["refused"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Loops, text without end, and JSON that is exponentially longer than its value: all must end soon, in an error.
#[test]
fn runaway_templates_end() {
    let too_much = [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}".to_owned(),
        "{% for a in range(9999) %}{% for b in range(9999) %}{{ 'text' }}{% endfor %}{% endfor %}".to_owned(),
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(9999) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}".to_owned(),
        "{{ 'x' * 99999999999 }}".to_owned(),
        "{{ 'xxxxxxxxxxxxxxxx'.replace('x', 'y' * 99999999) }}".to_owned(),
        "{% set ns = namespace(x=['a']) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}".to_owned(),
        "{{ range(9999) | list | tojson(indent=999999999) }}".to_owned(),
        "{{ [1] | tojson(indent=18446744073709551615) }}".to_owned(),
        "{{ range(99999) | list | tojson(separators=('x' * 99999, '')) }}".to_owned(),
    ];
    for source in &too_much {
        let start = std::time::Instant::now();
        let result = render(source);
        assert!(
            matches!(result, Err(TemplateError::TooMuchWork { .. })),
            "{source}: {:?}",
            result.map(|text| text.len())
        );
        assert!(start.elapsed().as_secs() < 20, "{source}: {:?}", start.elapsed());
    }
}

/// Nothing may overflow the stack: that would end the process, whatever the result here is.
#[test]
fn deep_templates_end() {
    let recursion = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    assert!(matches!(render(recursion), Err(TemplateError::Failed { .. })));
    let recursive_loop = "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}";
    assert!(matches!(render(recursive_loop), Err(TemplateError::Failed { .. })));

    // As deep as the longest template allows. Chains of operators on variables would do too, but take long to compile.
    let within = |open: &str, middle: &str, close: &str| {
        let levels = (64 * 1024 - middle.len() - 6) / (open.len() + close.len());
        format!("{}{middle}{}", open.repeat(levels), close.repeat(levels))
    };
    assert_eq!(render(&format!("{{{{ {} }}}}", within("-", "1", ""))).map(|text| text.len() < 3).ok(), Some(true));
    for expression in [
        within("(", "1", ")"),
        within("[", "", "]"),
        within("{1:", "1", "}"),
        within("not ", "1", ""),
        within("", "1", "+1"),
        within("", "1", "|abs"),
        within("", "x", ".a"),
        within("", "x", "[0]"),
        within("", "x", "()"),
        within("", "1", " is none"),
        within("1 if 1 else ", "1", ""),
        within("x(", "1", ")"),
    ] {
        let _ = render(&format!("{{{{ {expression} }}}}"));
    }
    for statements in [
        within("{% if true %}", "", "{% endif %}"),
        within("{% for a in [1] %}", "", "{% endfor %}"),
        within("{% if x %}", "{% endif %}", "{% elif x %}"),
        within("{% set x %}", "", "{% endset %}"),
    ] {
        let _ = render(&statements);
    }
    let long = "x".repeat(64 * 1024 + 1);
    assert!(matches!(render(&long), Err(TemplateError::TooLong { len_bytes: 65_537 })));
}

#[test]
fn deep_values_end() {
    let deep = "{% set ns = namespace(x=[1]) %}{% for a in range(99) %}{% for i in range(9999) %}{% set ns.x = STEP %}{% endfor %}{% endfor %}";
    let shallower = deep.replace("range(99)", "range(10)");
    for step in ["[ns.x]", "{'a': ns.x}", "(ns.x,)", "namespace(x=ns.x)", "ns.x | map('abs')", "ns.x | reverse"] {
        assert!(matches!(render(&deep.replace("STEP", step)), Err(TemplateError::TooMuchWork { .. })), "{step}");
        for tail in ["", "{{ ns.x }}", "{{ ns.x | list }}", "{{ ns.x == [ns.x] }}"] {
            let _ = render(&format!("{}{tail}", shallower.replace("STEP", step)));
        }
    }
    let result = render(&format!("{}{{{{ ns.x | tojson }}}}", shallower.replace("STEP", "[ns.x]")));
    assert!(matches!(&result, Err(TemplateError::Failed { reason, .. }) if reason.contains("nested")), "{result:?}");
}

/// Fuel must be no limit for chats that fit a context of 262,144 tokens.
#[test]
fn long_chats_are_fine() {
    let template = ChatTemplate::from_source(&data("templates/tools.jinja")).unwrap();
    let turn = |index: usize| match index % 3 {
        0 => json!({"role": "user", "content": "question ".repeat(100)}),
        1 => {
            json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": index, "b": "x".repeat(500)}}}]})
        }
        _ => json!({"role": "tool", "content": "result ".repeat(100)}),
    };
    let messages: Vec<Value> = (0..3000).map(turn).collect();
    let text = template.render(&messages, &options()).unwrap();
    assert!(text.len() > 2_000_000, "{}", text.len());
}

/// Field report 38: a file without a template is not given another's.
#[test]
fn errors_say_what_and_where() {
    let text = |source| render(source).unwrap_err().to_string();
    assert!(text("a\n{{ raise_exception('No ' ~ 'cats!') }}").contains("refuses these messages: No cats!"));
    let undefined = text("a\nb{{ nothing.at.all }}");
    assert!(undefined.contains("undefined") && undefined.contains("line 2"), "{undefined}");
    let function = text("{{ fetch('x') }}");
    assert!(function.contains("fetch") && function.contains("line 1"), "{function}");
    let method = text("a\nb\n{{ 'x'.explode() }}");
    assert!(method.contains("explode") && method.contains("line 3"), "{method}");
    let time = text("{{ strftime_now('%') }}");
    assert!(time.contains("strftime_now") && time.contains("%"), "{time}");
    assert!(text("{{ nope | tojson }}").contains("undefined"));
    assert!(text("{{ [1] | tojson(indent=1, colour=2) }}").contains("colour"));
    assert!(text("{{ [1] | tojson(separators=('a',)) }}").contains("separators"));

    for (source, line, part) in [
        ("{% if %}", 1, "unexpected"),
        ("x\n{% for a in b %}", 2, "end of input"),
        ("x\ny\n{{ 'open }}", 3, "string"),
        ("{% nonsense %}", 1, "nonsense"),
        ("{{ x | nofilter }}\n{% endif %}", 2, "endif"),
    ] {
        match ChatTemplate::from_source(source) {
            Err(TemplateError::Syntax { line: at, reason }) => {
                assert_eq!(at, line, "{source}: {reason}");
                assert!(reason.contains(part), "{source}: {reason}");
            }
            other => panic!("{source}: {other:?}"),
        }
    }
}

#[test]
fn special_tokens_come_from_the_file() {
    let mut metadata = Metadata::new();
    assert!(matches!(ChatTemplate::from_metadata(&metadata), Err(TemplateError::Missing)));
    assert!(TemplateError::Missing.to_string().contains("--raw"));
    let source = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ messages[0].content }}|{{ tools is none }}";
    metadata.insert("tokenizer.chat_template", MetadataValue::String(source.to_owned())).unwrap();
    let tokens = ["<a>", "<b>"].map(str::to_owned).to_vec();
    metadata.insert("tokenizer.ggml.tokens", MetadataValue::Array(Array::String(tokens))).unwrap();
    metadata.insert("tokenizer.ggml.bos_token_id", MetadataValue::U32(1)).unwrap();
    metadata.insert("tokenizer.ggml.eos_token_id", MetadataValue::U32(0)).unwrap();
    metadata.insert("tokenizer.ggml.padding_token_id", MetadataValue::U32(9)).unwrap();
    let template = ChatTemplate::from_metadata(&metadata).unwrap();
    let text = template.render(&[json!({"role": "user", "content": "hi"})], &options()).unwrap();
    assert_eq!(text, "<b>|<a>||hi|True");
}

#[test]
fn options_reach_the_template() {
    let source = "{{ add_generation_prompt }} {{ enable_thinking }} {{ tools | tojson }} {{ effort }}";
    let template = ChatTemplate::from_source(source).unwrap();
    let render = |options: &ChatOptions| template.render(&[], options).unwrap();
    assert_eq!(render(&ChatOptions::default()), "True  null ");
    let options = ChatOptions {
        add_generation_prompt: false,
        tools: vec![json!({"z": 1, "a": 2})],
        enable_thinking: Some(true),
        variables: json!({"effort": "high"}).as_object().unwrap().clone(),
        now: None,
    };
    assert_eq!(render(&options), r#"False True [{"z": 1, "a": 2}] high"#);
}

/// Without a given time it is the clock's: never before this test was written.
#[test]
fn time_runs_by_default() {
    let template = ChatTemplate::from_source("{{ strftime_now('%Y') }}").unwrap();
    let year: i32 = template.render(&[], &ChatOptions::default()).unwrap().parse().unwrap();
    assert!((2026..2100).contains(&year), "{year}");
}
