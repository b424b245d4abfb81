//! Many requests on one model: the same texts as alone, in any company and at any time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use strata_engine::host::{Answer, Event, Failure, FailureKind, Host, HostOptions, Outcome, Request};
use strata_engine::{
    ChatOptions, DraftKind, Engine, EngineOptions, Finish, GenerateOptions, Route, SamplerParams, Stop, Tokenizer,
};
use strata_gguf::{Gguf, TensorType};

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

/// Options of an engine that such a host can have.
fn served() -> EngineOptions {
    EngineOptions { threads: 2, sequences: 4, checkpoints: 6, ..EngineOptions::default() }
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
    let exact = served();
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
        // What monitors are told when it rests again.
        while !host.status().active.is_empty() {
            std::thread::sleep(Duration::from_millis(2));
        }
        let status = host.status();
        assert_eq!(status.routed_choices > 0, options.route == Route::Cached, "{name}");
        assert!(status.substituted_choices <= status.routed_choices && status.substituted_mass <= 1.0, "{name}");
        host.close(Duration::ZERO).unwrap();
    }
}

#[test]
fn field_report_54_what_cannot_be_served_is_refused_at_once() {
    let mut options = served();
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

#[test]
fn a_stop_text_ends_an_answer_and_is_no_part_of_it() {
    let host = Host::start(Engine::open(&mini(), &served()).unwrap(), HostOptions::default()).unwrap();
    let prompt = ids(host.tokenizer(), TEXTS[0]);
    let plain = all(host.submit(request(prompt.clone(), 40)).unwrap());
    let whole = plain.text.clone();
    assert!(plain.end.as_ref().is_ok_and(|end| end.stop.is_none()));
    let letters: Vec<usize> = whole.char_indices().map(|(at, _)| at).collect();
    assert!(letters.len() > 60, "{whole}");
    // Some letters from the middle, wherever the borders of tokens are.
    for (from, to) in [(30, 34), (41, 42), (48, 60)] {
        let stop = &whole[letters[from]..letters[to]];
        let stops = vec!["never there".to_owned(), stop.to_owned()];
        let seen = all(host.submit(Request { stop: stops, ..request(prompt.clone(), 40) }).unwrap());
        let end = seen.end.unwrap();
        assert_eq!((end.stop.as_deref(), end.finish), (Some(stop), Finish::EndOfTurn));
        assert_eq!(seen.text, whole[..whole.find(stop).unwrap()]);
        assert!(seen.tokens.len() == end.written_tokens && plain.tokens.starts_with(&seen.tokens));
    }
}

#[test]
fn probabilities_come_with_tokens_when_they_are_asked_for() {
    let host = Host::start(Engine::open(&mini(), &served()).unwrap(), HostOptions::default()).unwrap();
    let greedy = SamplerParams::default();
    let asked = Request { sampling: greedy, top_logprobs: Some(3), ..request(ids(host.tokenizer(), TEXTS[1]), 5) };
    let mut answer = host.submit(asked).unwrap();
    let mut tokens = 0;
    while let Some(event) = answer.recv_blocking() {
        let Event::Token(written) = event else { continue };
        let choice = written.choice.expect("it was asked for");
        assert_eq!(
            (choice.top.len(), choice.top[0]),
            (3, (written.token, choice.logprob)),
            "the most likely is chosen"
        );
        assert!(choice.logprob < 0.0 && choice.top.is_sorted_by(|a, b| a.1 >= b.1));
        tokens += 1;
    }
    assert_eq!(tokens, 5);
}

#[test]
fn a_host_that_closes_ends_every_answer_with_a_reason() {
    let options = || HostOptions { parallel: 1, ..HostOptions::default() };
    let start = || Host::start(Engine::open(&mini(), &served()).unwrap(), options()).unwrap();
    let kind = |seen: &Seen| seen.end.as_ref().err().map(|failure| failure.kind);
    let first_token = |answer: &mut Answer| while !matches!(answer.recv_blocking(), Some(Event::Token(_))) {};

    let host = start();
    let prompt = ids(host.tokenizer(), TEXTS[1]);
    let mut first = host.submit(request(prompt.clone(), 50)).unwrap();
    first_token(&mut first);
    let second = host.submit(request(prompt.clone(), 50)).unwrap();
    assert_eq!((host.status().queued, host.status().parallel, host.status().queue_limit), (1, 1, 64));
    host.close(Duration::from_secs(60)).unwrap();
    let (first, second) = (all(first), all(second));
    assert!(first.end.is_ok() && first.tokens.len() == 49, "{first:?}");
    assert_eq!((kind(&second), second.tokens.len()), (Some(FailureKind::Closing), 0));
    assert_eq!(host.submit(request(prompt.clone(), 5)).err().unwrap().kind, FailureKind::Closing);
    host.close(Duration::ZERO).unwrap();
    let status = host.status();
    assert_eq!((status.done, status.failed, status.written_tokens, status.active.len()), (1, 1, 50, 0));
    assert_eq!((status.prompt_tokens, status.reused_tokens), (prompt.len() as u64, 0));

    let host = start();
    let mut answer = host.submit(request(prompt, 400)).unwrap();
    first_token(&mut answer);
    host.close(Duration::ZERO).unwrap();
    assert_eq!(kind(&all(answer)), Some(FailureKind::Closing));
}

/// The same prompt again, an answer that is asked for anew, a conversation that goes on, and one whose last message is
/// edited: what is reused changes no text.
#[test]
fn kept_prefixes_change_no_text() {
    let exact = served();
    let mut cached = EngineOptions { route: Route::Cached, ..exact.clone() };
    cached.arena_bytes = Some(300 * (3 + 3 + 4) * 4096);
    for (name, options) in [("exact", exact), ("cached", cached)] {
        let host = Host::start(Engine::open(&mini(), &options).unwrap(), HostOptions::default()).unwrap();
        let question = ids(host.tokenizer(), &TEXTS.join(" ").repeat(3));
        let ask = |prompt: &[u32]| {
            let seen = all(host.submit(request(prompt.to_vec(), 12)).unwrap());
            let end = seen.end.unwrap();
            assert_eq!(end.prompt_tokens, prompt.len());
            let (tokens, text, _) = alone(&options, prompt, 12);
            assert!(seen.tokens == tokens && seen.text == text, "{name}: {:?}, alone {text:?}", seen.text);
            (tokens, end.reused_tokens)
        };
        let (answer, reused) = ask(&question);
        assert_eq!(reused, 0, "{name}");
        // field_report_48: regenerate.
        assert_eq!(ask(&question), (answer.clone(), question.len()), "{name}");
        let more = [&question[..], &answer, &ids(host.tokenizer(), TEXTS[2])].concat();
        let reused = ask(&more).1 - question.len();
        // The last token of an answer need not have been given to the model.
        let want = if name == "exact" { answer.len() - 1..=answer.len() } else { 0..=0 };
        assert!(want.contains(&reused), "{name}: {reused} of the answer");
        // field_report_47: a client that sends the answer in another form.
        let other = [&question[..], &answer[..4], &ids(host.tokenizer(), TEXTS[1])].concat();
        assert_eq!(ask(&other).1, question.len(), "{name}");
        let status = host.status();
        assert!(status.checkpoints > 0 && status.checkpoints <= 6 && status.checkpoint_bytes > 0, "{status:?}");
    }
}

#[test]
fn broken_numbers_end_a_request_and_not_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("broken.gguf");
    let output = Gguf::open(&mini()).unwrap().tensor("output.weight").unwrap().clone();
    assert_eq!(output.ty, TensorType::Q6_K);
    let mut bytes = std::fs::read(mini()).unwrap();
    // The scale of the first block, which is the logit of token 0, is no number.
    let scale = output.offset as usize + 208;
    bytes[scale..scale + 2].copy_from_slice(&0x7E00u16.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let host = Host::start(Engine::open(&path, &served()).unwrap(), HostOptions::default()).unwrap();
    for _ in 0..2 {
        let failure = all(host.submit(request(ids(host.tokenizer(), TEXTS[1]), 5)).unwrap()).end.unwrap_err();
        assert!(failure.kind == FailureKind::Internal && failure.message.contains("token 0 is NaN"), "{failure:?}");
    }
    host.close(Duration::ZERO).unwrap();
    assert_eq!((host.status().failed, host.status().active.len()), (2, 0));
}

#[test]
fn a_host_keeps_to_the_plan_of_its_engine() {
    let engine = |options: &EngineOptions| Engine::open(&mini(), options).unwrap();
    for options in [EngineOptions::default(), EngineOptions { checkpoints: 5, ..served() }] {
        let error = Host::start(engine(&options), HostOptions::default()).err().unwrap().to_string();
        assert!(error.contains("a host of 4 requests at a time with 6 checkpoints"), "{error}");
    }
    let (host_options, options) = (HostOptions { checkpoints: 0, parallel: 3, ..HostOptions::default() }, served());
    let host = Host::start(engine(&options), host_options).unwrap();
    let memory = host.status().memory;
    assert_eq!(memory.plan.iter().map(|(_, bytes)| bytes).sum::<u64>(), memory.plan_bytes);
    assert!(memory.plan.iter().any(|(name, _)| name == "checkpoints") && memory.plan.is_sorted_by(|a, b| a.1 >= b.1));
}

#[test]
fn field_report_37_an_answer_ends_by_itself_and_has_no_marks_of_turns() {
    let host = Host::start(Engine::open(&mini(), &served()).unwrap(), HostOptions::default()).unwrap();
    let message = serde_json::json!({ "role": "user", "content": "Say hi." });
    let text = host.template().unwrap().render(&[message], &ChatOptions::default()).unwrap();
    let asked = Request { sampling: SamplerParams::default(), ..request(ids(host.tokenizer(), &text), 400) };
    let seen = all(host.submit(asked).unwrap());
    let end = seen.end.unwrap();
    assert_eq!((end.finish, end.stop), (Finish::EndOfTurn, None), "{:?}", seen.text);
    // The token that ended it counts, and is no part of the text.
    assert_eq!(end.written_tokens, seen.tokens.len() + 1);
    let ends = host.tokenizer().end_of_turn_ids();
    assert!(!ends.is_empty() && !seen.tokens.iter().any(|token| ends.contains(token)));
    assert!(!seen.text.is_empty() && !seen.text.contains("<|"), "{:?}", seen.text);
}
