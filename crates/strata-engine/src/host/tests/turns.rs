//! Turns of the model's thread, taken one by one.

use super::super::desk::Ended;
use super::super::run::Runner;
use super::super::run::pressure::Pressure;
use super::*;

struct Bed {
    desk: Arc<Desk>,
    tokenizer: Arc<Tokenizer>,
    monitor: Arc<Monitor>,
    runner: Runner,
}

const LAYERS: usize = 12;

impl Bed {
    fn new(parallel: usize, change: impl FnOnce(&mut EngineOptions)) -> Self {
        let mut options =
            EngineOptions { threads: 1, pass_tokens: Some(128), sequences: parallel, ..EngineOptions::default() };
        options.model.strip_rows = 16;
        change(&mut options);
        let engine = Engine::open(&mini(), &options).unwrap();
        let tokenizer = engine.tokenizer().unwrap().clone();
        let (desk, now, monitor) =
            (Arc::new(Desk::new()), Arc::new(Now::new(Arc::default())), Arc::new(Monitor::new(Status::default())));
        let options = HostOptions { parallel, ..HostOptions::default() };
        let runner = Runner::new(engine, tokenizer.clone(), desk.clone(), now, monitor.clone(), &options).unwrap();
        Self { desk, tokenizer, monitor, runner }
    }

    fn ask(&self, request: Request) -> Answer {
        self.desk.ask(request, 1000).unwrap()
    }

    /// Takes turns until nothing is left to do.
    fn finish(&mut self) {
        while self.runner.turn() {}
    }
}

/// Ids that mean nothing, other ones for each `seed`.
fn ids(seed: u32, tokens: usize) -> Vec<u32> {
    (0..tokens as u32).map(|at| 300 + (at * at * 7 + at * 31 + seed * 977) % 1000).collect()
}

/// What has come so far.
fn so_far(answer: &mut Answer) -> Vec<Event> {
    std::iter::from_fn(|| answer.try_recv()).collect()
}

fn is_end(event: &Event) -> bool {
    matches!(event, Event::Done(_) | Event::Failed(_))
}

/// The progress that was told last.
fn progress(events: &[Event]) -> f64 {
    let told = events.iter().rev().find_map(|event| match event {
        Event::Reading { progress, .. } => Some(*progress),
        _ => None,
    });
    told.unwrap_or(0.0)
}

#[test]
fn a_short_request_does_not_wait_for_a_long_prompt() {
    let mut bed = Bed::new(4, |_| ());
    // Six passes of twelve layers.
    let layers = 6 * LAYERS;
    let mut long = bed.ask(request(ids(1, 6 * 128), 2));
    let mut other = bed.ask(request(ids(2, 300), 1));
    while progress(&so_far(&mut long)) == 0.0 {
        assert!(bed.runner.turn());
    }
    let mut short = bed.ask(request(ids(3, 16), 6));
    let mut turns = 0;
    let (mut of_short, mut of_long) = (Vec::new(), Vec::new());
    while !of_short.iter().any(is_end) {
        assert!(bed.runner.turn());
        turns += 1;
        of_short.extend(so_far(&mut short));
        of_long.extend(so_far(&mut long));
    }
    // Each of its six tokens waits for one layer at most, and so does its prompt of twelve layers.
    let done = progress(&of_long) * layers as f64;
    assert!(turns <= LAYERS + 8 && done <= 1.0 + 8.0 + 0.5, "{turns} turns, {done} layers");
    assert!(so_far(&mut other).is_empty(), "it needs what the long one has");
    bed.finish();
    assert!(so_far(&mut long).iter().any(is_end) && so_far(&mut other).iter().any(is_end));
    assert_eq!(bed.runner.in_use(), 0);
}

#[test]
fn a_text_that_is_written_waits_for_one_layer_of_a_long_prompt() {
    let mut bed = Bed::new(2, |_| ());
    let mut text = bed.ask(request(ids(1, 10), 30));
    while !so_far(&mut text).iter().any(|event| matches!(event, Event::Token(_))) {
        assert!(bed.runner.turn());
    }
    let mut long = bed.ask(request(ids(2, 3 * 128), 1));
    let mut before = 0.0;
    loop {
        assert!(bed.runner.turn());
        let events = so_far(&mut text);
        let told = progress(&so_far(&mut long));
        if events.iter().any(is_end) {
            break;
        }
        assert_eq!(events.len(), 1, "a turn is a token: {events:?}");
        // One of three passes' twelve layers.
        assert!(told - before <= 1.0 / 36.0 + 1e-9, "{told} after {before}");
        before = told;
    }
    assert!(before > 0.5 && before < 1.0, "{before}");
    bed.finish();
}

#[test]
fn a_long_prompt_is_not_kept_waiting_by_short_ones() {
    let mut bed = Bed::new(3, |_| ());
    let mut long = bed.ask(request(ids(1, 128), 1));
    let mut shorts = Vec::new();
    let mut turns = 0;
    while !so_far(&mut long).iter().any(is_end) {
        // There are always two.
        shorts.retain_mut(|short| !so_far(short).iter().any(is_end));
        while shorts.len() < 2 {
            shorts.push(bed.ask(request(ids(10 + turns, 16), 1)));
        }
        assert!(bed.runner.turn());
        turns += 1;
    }
    // Of the rows that are computed, a third or more are its own: 12 layers of 128 rows beside layers of 16.
    assert!(turns <= 12 + 2 * 12 * 128 / 16 + 24, "{turns}");
}

#[test]
fn a_thousand_random_cancellations_leave_no_sequence_in_use() {
    let mut bed = Bed::new(4, |options| options.drafts.kind = crate::DraftKind::Lookup);
    let want = {
        let answer = bed.ask(request(ids(7, 20), 8));
        bed.finish();
        all(answer).0
    };
    let mut random = 1u64;
    let mut below = |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % limit
    };
    let (mut asked, mut answers, mut ended) = (0, Vec::new(), 0);
    while asked < 1000 || !answers.is_empty() {
        match below(8) {
            0..=3 if asked < 1000 => {
                asked += 1;
                let tokens = if below(20) == 0 { 140 } else { 4 + below(12) as usize };
                answers.push(bed.ask(request(ids(asked, tokens), 1 + below(6) as usize)));
            }
            4..=6 if !answers.is_empty() => {
                let at = below(answers.len() as u64) as usize;
                let mut answer = answers.swap_remove(at);
                ended += u64::from(so_far(&mut answer).iter().any(is_end));
            }
            _ => _ = bed.runner.turn(),
        }
    }
    bed.finish();
    assert_eq!(bed.runner.in_use(), 0);
    let (waiting, counts) = bed.desk.counts();
    assert_eq!((waiting, counts.done, counts.cancelled, counts.failed), (0, ended + 1, 1000 - ended, 0));
    assert!(counts.cancelled > 500 && ended > 20, "{ended}");
    assert!(bed.desk.lines().0.is_empty());
    let answer = bed.ask(request(ids(7, 20), 8));
    bed.finish();
    assert_eq!(all(answer).0, want);
}

#[test]
fn who_gives_up_frees_a_sequence_within_a_layer() {
    let mut bed = Bed::new(1, |_| ());
    let mut long = bed.ask(request(ids(1, 600), 1));
    while progress(&so_far(&mut long)) == 0.0 {
        assert!(bed.runner.turn());
    }
    let short = bed.ask(request(ids(2, 5), 1));
    drop(long);
    for _ in 0..=LAYERS + 1 {
        bed.runner.turn();
    }
    assert_eq!(all(short).1, None);
    assert_eq!(bed.runner.in_use(), 0);
}

/// What a prompt gives in a bed of its own.
fn alone(prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let mut bed = Bed::new(1, |_| ());
    let answer = bed.ask(request(prompt.to_vec(), max_tokens));
    bed.finish();
    all(answer).0
}

#[test]
fn a_prompt_begins_with_what_another_one_is_still_reading_or_writing() {
    let mut bed = Bed::new(3, |_| ());
    let end_of_turn = bed.tokenizer.end_of_turn_ids()[0];
    // Two turns, whose first is common to both; it ends in the first of two passes.
    let common = [&ids(1, 79)[..], &[end_of_turn]].concat();
    let long = [&common[..], &ids(2, 120), &[end_of_turn], &ids(3, 40)].concat();
    let other = [&common[..], &ids(4, 9)].concat();
    let mut reading = bed.ask(request(long.clone(), 6));
    while progress(&so_far(&mut reading)) < 0.6 {
        assert!(bed.runner.turn());
    }
    let reused = |events: &[Event]| {
        events.iter().find_map(|event| match event {
            Event::Done(outcome) => Some(outcome.reused_tokens),
            _ => None,
        })
    };
    let tokens = |events: &[Event]| -> Vec<u32> {
        let token = |event: &Event| if let Event::Token(written) = event { Some(written.token) } else { None };
        events.iter().filter_map(token).collect()
    };
    let mut forked = bed.ask(request(other.clone(), 4));
    let mut of_forked = Vec::new();
    while !of_forked.iter().any(is_end) {
        assert!(bed.runner.turn());
        of_forked.extend(so_far(&mut forked));
    }
    assert_eq!((reused(&of_forked), tokens(&of_forked)), (Some(common.len()), alone(&other, 4)));
    // The same prompt once more, while its answer is written.
    let mut of_reading = Vec::new();
    while !of_reading.iter().any(|event| matches!(event, Event::Token(_))) {
        assert!(bed.runner.turn());
        of_reading.extend(so_far(&mut reading));
    }
    assert!(!of_reading.iter().any(is_end));
    let mut again = bed.ask(request(long.clone(), 6));
    bed.finish();
    of_reading.extend(so_far(&mut reading));
    let of_again = so_far(&mut again);
    let want = alone(&long, 6);
    assert_eq!((reused(&of_reading), tokens(&of_reading)), (Some(0), want.clone()));
    assert_eq!((reused(&of_again), tokens(&of_again)), (Some(long.len()), want));
    assert_eq!(bed.runner.in_use(), 0);
}

#[test]
fn field_report_15_memory_is_given_back_between_turns_and_texts_stay() {
    let write = |spare: Option<u64>| {
        let mut bed = Bed::new(2, |options| options.arena_bytes = Some(24 << 20));
        let mut long = bed.ask(request(ids(1, 300), 8));
        while progress(&so_far(&mut long)) == 0.0 {
            assert!(bed.runner.turn());
        }
        let slots = bed.runner.plan().slots;
        // In the middle of a prompt, whose pass waits between layers.
        bed.runner.pressure = Pressure::of(Box::new(move || spare), Duration::ZERO);
        let other = bed.ask(request(ids(2, 40), 8));
        bed.finish();
        let left = bed.runner.plan().slots;
        if left < slots {
            let told = bed.monitor.status(0, Ended::default()).memory;
            let arena = told.plan.iter().find(|(name, _)| name == "arena").expect("a part of the plan");
            assert_eq!(arena.1, bed.runner.plan().arena_bytes, "monitors are told of the new plan");
        }
        (slots, left, all(long), all(other))
    };
    let (before, after, long, other) = write(None);
    assert!(before == after && long.1.is_none() && other.1.is_none());
    let (had, left, short_of_memory, neighbour) = write(Some(0));
    assert!(had == before && left < had / 4, "{had} -> {left}");
    assert_eq!((short_of_memory, neighbour), (long, other));
}
