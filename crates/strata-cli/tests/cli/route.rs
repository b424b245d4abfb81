//! `--route cached`: its receipt, its refusals, and that texts depend on its settings alone.

use serde_json::Value;

use crate::{arg, root, strata};

/// 345 of the shipped model's 1,152 experts, of which the arena keeps 20 a layer.
const ARENA: [&str; 2] = ["--arena-gb", "0.0132"];
/// Settings whose effect every text shows.
const STRONG: [&str; 8] = ["--moce-slots", "20", "--moce-bonus", "1.5", "--moce-keep", "1", "--moce-mass", "0.9"];

#[test]
fn a_text_depends_on_the_settings_and_not_on_the_arena() {
    let run = |more: &[&[&str]]| {
        let base = ["run", "--raw", "--temp", "0", "-n", "40"];
        strata(&[&base[..], &more.concat(), &["The history of"]].concat())
    };
    let cached = ["--route", "cached"];
    let ran = run(&[&cached, &STRONG]);
    let settings = "strata: routes: cached, 20 slots a layer, bonus 1.5, the best 1 kept, at most 0.9 of the mass\n";
    assert!(ran.stderr.contains(settings), "{ran:?}");
    assert!(ran.stderr.contains(" | routes: ") && ran.stderr.contains("of the mass substituted"), "{ran:?}");
    let text = ran.ok();
    assert_eq!(text, run(&[&cached, &STRONG, &ARENA, &["--threads", "1"]]).ok());
    // The slots of an arena are those that it keeps.
    let ran = run(&[&cached, &STRONG[2..], &ARENA]);
    assert!(ran.stderr.contains("cached, 20 slots a layer"), "{ran:?}");
    assert_eq!(text, ran.ok());

    let exact = run(&[]);
    assert!(!exact.stderr.contains("routes"), "{exact:?}");
    let exact = exact.ok();
    assert_ne!(text, exact);
    // Where every expert has a slot, nothing is preferred.
    assert_eq!(exact, run(&[&cached, &STRONG[2..]]).ok());
    assert_eq!(exact, run(&[&cached, &["--moce-slots", "20", "--moce-bonus", "0"]]).ok());
}

#[test]
fn perplexity_is_that_of_decoded_tokens() {
    let text = root().join("models/strata-mini/eval.txt");
    let eval = |more: &[&str]| -> Value {
        let base = ["eval", "ppl", "--text", arg(&text), "--window", "64", "--limit", "128", "--json"];
        serde_json::from_str(&strata(&[&base[..], more].concat()).ok()).unwrap()
    };
    let exact = eval(&[]);
    assert_eq!(exact.get("routes"), None);
    let cached = eval(&[&["--route", "cached"], &STRONG[..]].concat());
    assert_ne!(cached["perplexity_second_half"], exact["perplexity_second_half"]);
    let number = |value: &Value, name: &str| value["routes"][name].as_f64().unwrap();
    // Two windows, each with 31 tokens of the second half that predict another; 12 layers of 8 experts.
    assert_eq!((number(&cached, "tokens"), cached["moce"]["slots"].as_u64()), (62.0, Some(20)));
    assert!(number(&cached, "agreement") < 0.9 && number(&cached, "substituted_mass") > 0.02, "{cached}");
    let misses = 96.0 * (1.0 - number(&cached, "hit_rate"));
    assert!((number(&cached, "misses_per_token") - misses).abs() < 1e-9, "{cached}");
    assert_eq!((number(&cached, "arena_hit_rate"), number(&cached, "held_share")), (1.0, 1.0));

    // Without a bonus, routes and predictions are exact; the same experts are counted.
    let none = eval(&["--route", "cached", "--moce-slots", "20", "--moce-bonus", "0"]);
    assert_eq!(none["perplexity_all"], exact["perplexity_all"]);
    assert_eq!((number(&none, "agreement"), number(&none, "substituted_mass")), (1.0, 0.0));
    assert!(number(&none, "misses_per_token") > misses, "{none} {cached}");

    let streamed = eval(&[&["--route", "cached"], &STRONG[..], &ARENA[..]].concat());
    assert_eq!(streamed["perplexity_all"], cached["perplexity_all"]);
    assert_eq!(number(&streamed, "hit_rate"), number(&cached, "hit_rate"));
    assert!(number(&streamed, "arena_misses_per_token") > 1.0, "{streamed}");
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let run = |more: &[&str]| strata(&[&["run", "-n", "1", "--route", "cached", "x"], more].concat());
    run(&[&ARENA[..], &["--moce-slots", "21"]].concat()).fails(1, &["21 logical slots", "20 experts of a layer"]);
    run(&["--moce-slots", "97"]).fails(1, &["97", "96"]);
    run(&["--moce-slots", "0"]).fails(2, &["--moce-slots"]);
    run(&["--moce-bonus=-1"]).fails(2, &["--moce-bonus"]);
    run(&["--moce-bonus=NaN"]).fails(2, &["--moce-bonus"]);
    run(&["--moce-mass", "1.1"]).fails(2, &["--moce-mass"]);
    run(&["--route", "fast"]).fails(2, &["--route"]);
}
