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

fn syntax_error(source: &str) -> (usize, String) {
    match ChatTemplate::from_source(source) {
        Err(TemplateError::Syntax { line, reason }) => (line, reason),
        other => panic!("{source}: {other:?}"),
    }
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

/// Loops, recursion, and values whose text is exponentially longer than they are: all must end soon, in an error.
#[test]
fn runaway_templates_end() {
    let doubling =
        "{% set ns = namespace(x=['a']) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    let too_much = [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}".to_owned(),
        "{% for a in range(9999) %}{% for b in range(9999) %}{{ 'text' }}{% endfor %}{% endfor %}".to_owned(),
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(9999) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}".to_owned(),
        "{{ 'x' * 99999999999 }}".to_owned(),
        "{{ 'xxxxxxxxxxxxxxxx'.replace('x', 'y' * 99999999) }}".to_owned(),
        format!("{doubling}{{{{ ns.x }}}}"),
        format!("{doubling}{{{{ ns.x | tojson }}}}"),
        format!("{doubling}{{{{ ns.x | string | length }}}}"),
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

#[test]
fn deep_templates_and_values_end() {
    let recursion = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    assert!(matches!(render(recursion), Err(TemplateError::Failed { .. })));
    let recursive_loop = "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}";
    assert!(matches!(render(recursive_loop), Err(TemplateError::Failed { .. })));

    let nested = |open: &str, close: &str| format!("{}{}", open.repeat(100_000), close.repeat(100_000));
    for source in [
        format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)),
        format!("{{{{ {} }}}}", nested("[", "]")),
        format!("{{{{ {}1 }}}}", "-".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(100_000)),
        format!("{{{{ 1{} }}}}", "+1".repeat(100_000)),
        format!("{{{{ 1{} }}}}", "|abs".repeat(100_000)),
        format!("{{{{ 1{} }}}}", ".a".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "1 if 1 else ".repeat(100_000)),
        nested("{% if true %}", "{% endif %}"),
    ] {
        // Whether the limit is met in compiling or in rendering, and whether it is met at all, is the engine's choice.
        let _ = render(&source).map_err(|error| error.to_string());
    }
}

#[test]
fn deep_values_end() {
    let deep = "{% set ns = namespace(x=[]) %}{% for a in range(9) %}{% for i in range(50000) %}{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}";
    for tail in ["", "{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x == [ns.x] }}"] {
        eprintln!("tail {tail}");
        let _ = render(&format!("{deep}{tail}"));
    }
}
