//! Many requests on one model: the same texts as alone, in any company and at any time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use strata_engine::host::{Answer, Event, Failure, FailureKind, Host, HostOptions, Outcome, Request};
use strata_engine::{DraftKind, Engine, EngineOptions, Finish, GenerateOptions, Route, SamplerParams, Stop, Tokenizer};

fn mini() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/strata-mini/strata-mini-iq2xs-q4_0.gguf")
}

const TEXTS: [&str; 4] = [
    "The reader opens the file and reads the first page. The writer opens the file and reads the first page. The reader",
    "Once upon a time",
    "In the year of the great storm, the harbour was full of ships, and nobody knew whose they were.",
    "1, 2, 3,",
];

fn seeded() -> SamplerParams {
    SamplerParams { temperature: 0.9, top_k: 40, top_p: 0.95, min_p: 0.05, seed: 11, ..SamplerParams::default() }
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, true).unwrap()
}

fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request {
        prompt,
        max_tokens,
        sampling: seeded(),
        bias: Vec::new(),
        constraint: None,
        stop: Vec::new(),
        top_logprobs: None,
    }
}

/// What came of a request.
#[derive(Debug)]
struct Seen {
    tokens: Vec<u32>,
    text: String,
    end: Result<Outcome, Failure>,
}

/// Everything that an answer tells, and that it is told in order.
fn all(mut answer: Answer) -> Seen {
    let (mut tokens, mut text, mut end) = (Vec::new(), String::new(), None);
    let mut progress = 0.0;
    while let Some(event) = answer.recv_blocking() {
        assert!(end.is_none(), "{event:?} after the end");
        match event {
            Event::Reading { progress: now, .. } => {
                assert!(tokens.is_empty() && now >= progress && now <= 1.0, "{now} after {progress}");
                progress = now;
            }
            Event::Token(written) => {
                tokens.push(written.token);
                text.push_str(&written.text);
            }
            Event::Done(outcome) => {
                text.push_str(&outcome.text);
                end = Some(Ok(outcome));
            }
            Event::Failed(failure) => end = Some(Err(failure)),
        }
    }
    Seen { tokens, text, end: end.expect("an end") }
}

/// What an engine writes alone.
fn alone(options: &EngineOptions, prompt: &[u32], max_tokens: usize) -> (Vec<u32>, String, Finish) {
    let mut engine = Engine::open(&mini(), options).unwrap();
    let mut session = engine.new_session().unwrap();
    let mut text = String::new();
    let generate = GenerateOptions { max_tokens, sampling: seeded() };
    let written = engine.generate(&mut session, prompt, &generate, &Stop::new(false), |t| text.push_str(t)).unwrap();
    (written.tokens, text, written.finish)
}

#[test]
fn texts_in_company_are_those_alone() {
    let exact = EngineOptions { threads: 2, ..EngineOptions::default() };
    let mut drafted = exact.clone();
    drafted.drafts.kind = DraftKind::Lookup;
    let mut cached = EngineOptions { route: Route::Cached, ..drafted.clone() };
    cached.arena_bytes = Some(300 * (3 + 3 + 4) * 4096);
    for (name, options) in [("exact", exact), ("drafted", drafted), ("cached, drafted", cached)] {
        let host = Host::start(Engine::open(&mini(), &options).unwrap(), HostOptions::default()).unwrap();
        let tokenizer = host.tokenizer().clone();
        // Different lengths, and one that comes when others are half done.
        let mut answers: Vec<_> =
            (0..3).map(|at| host.submit(request(ids(&tokenizer, TEXTS[at]), 24 + 16 * at)).unwrap()).collect();
        while !matches!(answers[1].recv_blocking(), Some(Event::Token(_))) {}
        answers.push(host.submit(request(ids(&tokenizer, TEXTS[3]), 20)).unwrap());
        for (at, answer) in answers.into_iter().enumerate() {
            let max_tokens = if at == 3 { 20 } else { 24 + 16 * at };
            let (tokens, text, finish) = alone(&options, &ids(&tokenizer, TEXTS[at]), max_tokens);
            let seen = all(answer);
            let end = seen.end.unwrap();
            assert_eq!(end.finish, finish, "{name}, text {at}");
            if at == 1 {
                // Its first token was looked at before.
                assert!(seen.tokens[..] == tokens[1..] && text.ends_with(&seen.text), "{name}, text {at}");
            } else {
                assert!(
                    seen.tokens == tokens && seen.text == text,
                    "{name}, text {at}: {:?}, alone {text:?}",
                    seen.text
                );
            }
        }
        host.close(Duration::ZERO).unwrap();
    }
}

#[test]
fn what_cannot_be_served_is_refused_at_once() {
    let mut options = EngineOptions::default();
    options.model.context_tokens = Some(60);
    let host = Host::start(Engine::open(&mini(), &options).unwrap(), HostOptions::default()).unwrap();
    let refused = |request: Request| {
        let failure = host.submit(request).err().unwrap();
        assert_eq!(failure.kind, FailureKind::Invalid, "{failure:?}");
        failure.message
    };
    assert!(refused(request(Vec::new(), 1)).contains("empty"));
    assert!(refused(request(vec![1], 0)).contains("max_tokens"));
    assert!(refused(request(vec![1, 999_999], 1)).contains("999999"));
    let message = refused(request(vec![1; 50], 11));
    assert!(message.contains("50") && message.contains("11") && message.contains("60"), "{message}");
    let sampling = SamplerParams { top_p: 2.0, ..seeded() };
    assert!(refused(Request { sampling, ..request(vec![1], 1) }).contains("top_p"));
    // What just fits is served.
    assert!(all(host.submit(request(vec![1; 50], 10)).unwrap()).end.is_ok());
}
