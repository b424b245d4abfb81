//! Hosts whose drive fails.

use std::collections::BTreeSet;

use strata_gguf::Gguf;
use strata_model::qwen4exp::{LayerView, Model, Moment, Observer, Rows};
use strata_store::StoreError;
use strata_store::reads::faulty::{Fault, Faults, Faulty, Rule};
use strata_store::reads::{self, Port};

use super::*;

const TEXTS: [&str; 2] = ["The reader opens the file and", "In the year of the great storm, the harbour was full of"];
const TOKENS: usize = 12;

/// An engine with an eighth of its experts in memory, all of whose reads have `faults`.
fn open(faults: &Faults, stuck_after: Duration) -> Engine {
    let mut options = EngineOptions { threads: 1, sequences: 4, checkpoints: 6, ..EngineOptions::default() };
    // Three parts of 4,736, 4,736 and 9,216 bytes, each in whole pages with one more.
    options.arena_bytes = Some(144 * (3 + 3 + 4) * 4096);
    options.model.streaming.stuck_after = Some(stuck_after);
    let load = |gguf: &Gguf, backend, options: crate::ModelOptions| {
        let kind = options.streaming.reader;
        let open = |files: &[_], areas: &[_], depth: usize| -> Result<Box<dyn Port>, StoreError> {
            Ok(Box::new(Faulty::new(reads::open(kind, files, areas, depth)?, depth as u64, faults)))
        };
        Model::load_with(gguf, backend, options, &open, |store| Box::new(store))
    };
    Engine::open_loading(&mini(), &options, |_| (), load).unwrap()
}

fn host(faults: &Faults, stuck_after: Duration, stall_after: Duration) -> Host {
    Host::start(open(faults, stuck_after), HostOptions { stall_after, ..HostOptions::default() }).unwrap()
}

fn ask(host: &Host, text: &str) -> Answer {
    host.submit(request(host.tokenizer().encode(text, true).unwrap(), TOKENS)).unwrap()
}

const LONG: Duration = Duration::from_secs(60);

#[track_caller]
fn serves(host: &Host, want: &[u32]) {
    let (tokens, failure) = all(ask(host, TEXTS[0]));
    assert_eq!((&tokens[..], failure), (want, None));
}

/// The drive was stuck and is no more: when that is noticed, requests are served. On a slow machine some may be too slow for
/// the watchdogs of these tests.
#[track_caller]
fn serves_again(host: &Host, want: &[u32]) {
    let served = (0..300).map(|_| all(ask(host, TEXTS[0]))).find(|(_, failure)| failure.is_none());
    assert_eq!(served, Some((want.to_vec(), None)));
}

/// Experts that each row is sent to.
#[derive(Default)]
struct Routes(Vec<BTreeSet<(usize, u32)>>);

impl Observer for Routes {
    fn at(&mut self, moment: Moment, view: &mut LayerView<'_>) {
        if moment == Moment::LayerDone {
            self.0.resize_with(view.rows.len(), BTreeSet::new);
            let top_k = view.routes.ids.len() / view.rows.len();
            for (row, ids) in self.0.iter_mut().zip(view.routes.ids.chunks(top_k)) {
                row.extend(ids.iter().map(|id| (view.layer, *id)));
            }
        }
    }
}

/// The experts of a prompt, and those of what was written after it.
fn experts(text: &str, written: &[u32]) -> [BTreeSet<(usize, u32)>; 2] {
    let mut engine = open(&Faults::default(), LONG);
    let mut ids = engine.tokenizer().unwrap().encode(text, true).unwrap();
    let prompt_tokens = ids.len();
    ids.extend(&written[..written.len() - 1]);
    let mut sequence = engine.model.new_sequence().unwrap();
    let mut routes = Routes::default();
    engine.model.forward(&mut sequence, &ids, Rows::Last, &mut Vec::new(), &mut routes).unwrap();
    let after = routes.0.split_off(prompt_tokens);
    [routes.0, after].map(|rows| rows.into_iter().flatten().collect())
}

/// A byte that is read for this expert alone.
fn byte_of((layer, expert): (usize, u32)) -> u64 {
    let gguf = Gguf::open(&mini()).unwrap();
    let down = gguf.tensor(&format!("blk.{layer}.ffn_down_exps.weight")).unwrap();
    let bytes = down.len_bytes / 96;
    assert!(bytes > 2 * 4096);
    down.offset + u64::from(expert) * bytes + bytes / 2
}

fn rule(bytes: std::ops::Range<u64>, fault: Fault) -> Vec<Rule> {
    vec![Rule { file: 0, bytes, one_in: 1, times: u32::MAX, fault }]
}

#[test]
fn field_report_29_52_an_expert_that_cannot_be_read_ends_one_answer_and_no_other() {
    let faults = Faults::default();
    let sound = host(&faults, LONG, LONG);
    let want = TEXTS.map(|text| all(ask(&sound, text)).0);
    assert!(want[0].len() == TOKENS && want[1].len() > 4, "{want:?}");
    drop(sound);

    let [of_prompt, after] = experts(TEXTS[0], &want[0]);
    let others: BTreeSet<_> = experts(TEXTS[1], &want[1]).into_iter().flatten().collect();
    let is_late = |expert: &&(usize, u32)| !of_prompt.contains(expert) && !others.contains(expert);
    let in_prompt = of_prompt.iter().find(|expert| !others.contains(expert)).copied().unwrap();
    for expert in [*after.iter().find(is_late).unwrap(), in_prompt] {
        let host = host(&faults, LONG, LONG);
        let byte = byte_of(expert);
        faults.set(rule(byte..byte + 1, Fault::Error));
        let [first, second] = TEXTS.map(|text| ask(&host, text));
        let (tokens, failure) = all(first);
        let failure = failure.expect("it needs that expert");
        assert_eq!(failure.kind, FailureKind::Internal);
        assert!(failure.message.contains("strata-mini-iq2xs-q4_0.gguf"), "{failure:?}");
        assert!(tokens.len() < TOKENS && want[0].starts_with(&tokens), "{tokens:?}");
        assert_eq!(all(second), (want[1].clone(), None), "the other text");
        // The drive is sound again.
        faults.set(Vec::new());
        serves(&host, &want[0]);
        let status = host.status();
        assert_eq!((status.done, status.failed, status.cancelled, status.queued), (2, 1, 0, 0));
        host.close(Duration::ZERO).unwrap();
    }
}

#[test]
fn field_report_50_a_request_that_hangs_is_ended_and_says_what_it_waited_for() {
    let faults = Faults::default();
    let sound = host(&faults, LONG, LONG);
    let want = all(ask(&sound, TEXTS[0])).0;
    drop(sound);

    // The drive answers nothing, and the watchdog minds long before the store does.
    let stuck = host(&faults, Duration::from_secs(1), Duration::from_millis(100));
    faults.set(rule(0..u64::MAX, Fault::Stuck));
    let waiting: Vec<_> = (0..6).map(|_| ask(&stuck, TEXTS[0])).collect();
    for answer in waiting {
        let (tokens, failure) = all(answer);
        let failure = failure.expect("nothing can be read");
        assert_eq!((tokens.len(), failure.kind), (0, FailureKind::Stalled));
        assert!(failure.message.contains("the model's thread reads the prompt of request 1"), "{failure:?}");
        assert!(!failure.message.contains(" 0 reads are under way"), "{failure:?}");
    }
    faults.set(Vec::new());
    serves_again(&stuck, &want);
    stuck.close(Duration::ZERO).unwrap();

    // The store's own watchdog comes first.
    let impatient = host(&faults, Duration::from_millis(50), LONG);
    faults.set(rule(0..u64::MAX, Fault::Stuck));
    let failure = all(ask(&impatient, TEXTS[0])).1.expect("nothing can be read");
    assert_eq!(failure.kind, FailureKind::Internal, "{failure:?}");
    faults.set(Vec::new());
    serves_again(&impatient, &want);
}

#[test]
fn a_fault_of_the_program_leaves_nobody_waiting() {
    let desk = Arc::new(Desk::new());
    let request = request(vec![1], 1);
    let answers = [desk.ask(request.clone(), 2).unwrap(), desk.ask(request.clone(), 2).unwrap()];
    assert_eq!(desk.ask(request.clone(), 2).err().unwrap().kind, FailureKind::Busy);
    desk.take(|_| true).unwrap();
    let ending = Ending(desk.clone());
    let thread = thread::spawn(move || {
        let _ending = ending;
        std::panic::resume_unwind(Box::new("a fault"));
    });
    for answer in answers {
        assert_eq!(all(answer).1.unwrap().kind, FailureKind::Internal);
    }
    assert!(thread.join().is_err());
    assert_eq!(desk.ask(request, 2).err().unwrap().kind, FailureKind::Closing);
}
