//! 512 tokens of one prompt, written in many ways: all write the same ids. One engine's way is changed at a time.

use std::path::Path;

use strata_engine::{
    DraftKind, Engine, EngineOptions, GenerateOptions, Lookahead, MoceOptions, ReaderKind, Route, SamplerParams, Stop,
};

const TOKENS: usize = 512;
/// With it, the model ends its turn in neither text.
const SEED: u64 = 0;
/// Slots take three parts of 4,736, 4,736 and 9,216 bytes, each in whole pages with one more.
const SLOT_BYTES: u64 = (3 + 3 + 4) * 4096;
/// 12 layers of 96 experts, of which a token uses 8 in each.
const EXPERTS: u64 = 12 * 96;
/// The routes of two layers, and eight to read into.
const SMALLEST: u64 = 3 * 8;

/// How the prompt comes to the model.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Prompt {
    /// In one pass.
    Whole,
    /// In passes of seven tokens.
    Pieces,
    /// After another answer to its beginning, whose state is used again.
    Reused,
}

type Way = (&'static str, Box<dyn Fn(&mut EngineOptions)>, Prompt);

fn way(name: &'static str, change: impl Fn(&mut EngineOptions) + 'static, prompt: Prompt) -> Way {
    (name, Box::new(change), prompt)
}

fn arena(slots: u64) -> impl Fn(&mut EngineOptions) {
    move |options| options.arena_bytes = Some(slots * SLOT_BYTES)
}

/// The ids that are written, with the logits' greatest or by chance from a seed.
fn write(options: &EngineOptions, prompt: Prompt) -> Vec<u32> {
    let mini = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/strata-mini/strata-mini-iq2xs-q4_0.gguf");
    let mut options = options.clone();
    if prompt == Prompt::Pieces {
        options.pass_tokens = Some(7);
    }
    let mut engine = Engine::open(&mini, &options).unwrap();
    let encode = |text: &str| engine.tokenizer().unwrap().encode(text, false).unwrap();
    let text = "The reader opens the file and reads the first page. The writer opens the file";
    let (start, rest) = (encode(text), encode(" and reads the second page. The reader"));
    let whole = [start.clone(), rest].concat();
    let sampling =
        SamplerParams { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, seed: SEED, ..SamplerParams::default() };
    let mut session = engine.new_session().unwrap();
    let stop = Stop::new(false);
    if prompt == Prompt::Reused {
        // Nothing is kept of one token but the state after the prompt.
        let options = GenerateOptions { max_tokens: 1, sampling };
        engine.generate(&mut session, &start, &options, &stop, |_| ()).unwrap();
    }
    let options = GenerateOptions { max_tokens: TOKENS, sampling };
    let written = engine.generate(&mut session, &whole, &options, &stop, |_| ()).unwrap();
    assert_eq!(written.reused_tokens, if prompt == Prompt::Reused { start.len() } else { 0 });
    written.tokens
}

fn check(base: &EngineOptions, ways: Vec<Way>) -> Vec<u32> {
    let expected = write(base, Prompt::Whole);
    assert_eq!(expected.len(), TOKENS);
    for (name, change, prompt) in ways {
        let mut options = base.clone();
        change(&mut options);
        assert!(write(&options, prompt) == expected, "{name}: other tokens");
    }
    expected
}

fn seven_ways() -> Vec<Way> {
    vec![
        way("one thread", |options| options.threads = 1, Prompt::Whole),
        way("in pieces", |_| (), Prompt::Pieces),
        way("after a part that is there", |_| (), Prompt::Reused),
        way("look-up drafts", |options| options.drafts.kind = DraftKind::Lookup, Prompt::Whole),
        way("threads that read", |options| options.model.streaming.reader = ReaderKind::Threads, Prompt::Whole),
        way("nothing ahead", |options| options.model.streaming.lookahead = Lookahead::Off, Prompt::Reused),
        way("everything in memory", |options| options.arena_bytes = None, Prompt::Whole),
    ]
}

#[test]
fn field_report_40_the_same_512_tokens_are_written_in_every_way() {
    let mut base = EngineOptions::default();
    arena(EXPERTS / 4)(&mut base);
    let mut ways = seven_ways();
    ways.push(way("the smallest arena", arena(SMALLEST), Prompt::Whole));
    check(&base, ways);
}

#[test]
fn cached_routes_write_the_same_512_tokens_in_every_way() {
    let mut base = EngineOptions { route: Route::Cached, ..EngineOptions::default() };
    base.moce = MoceOptions { slots: Some(16), bonus: 1.0, keep: 2, mass: 0.9, kl_every: 0 };
    arena(EXPERTS / 2)(&mut base);
    let mut ways = seven_ways();
    ways.push(way("a smaller arena", arena(EXPERTS * 3 / 10), Prompt::Pieces));
    let cached = check(&base, ways);
    let exact = EngineOptions { route: Route::Exact, ..base };
    assert!(write(&exact, Prompt::Whole) != cached, "routes were never displaced");
}
