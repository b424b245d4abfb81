//! Sequences that become what another one was.

mod common;

use std::sync::Arc;

use common::{data, fast_model_on, last, oracle, state};
use strata_backend::{Isa, KvType};
use strata_gguf::Gguf;
use strata_model::ModelError;
use strata_model::qwen4exp::{
    DraftHead, LayerView, Moce, Model, Moment, Observer, Options, Rows, Sequence, Unobserved,
};

fn open(name: &str, options: Options) -> Model {
    fast_model_on(&data(&format!("oracle/{name}/model-f16.gguf")), Isa::best(), 2, options)
}

/// Logits of a token that is written, as bits.
fn write(model: &mut Model, sequence: &mut Sequence, id: u32) -> Vec<u32> {
    let mut logits = Vec::new();
    model.decode(sequence, &[id], Rows::Last, &mut logits, &mut Unobserved).unwrap();
    logits.into_iter().map(f32::to_bits).collect()
}

/// Twelve places: three blocks of four tokens, as many of what lies together in a cache, and longqsa chooses blocks there.
#[test]
fn a_fork_is_the_same_bytes_as_reading_anew() {
    for (name, kv) in [("longqsa", KvType::Bfloat16), ("moe8ple", KvType::Q8_0), ("mini4", KvType::Float32)] {
        let ids = oracle(name);
        let mut model = open(name, Options { kv: Some(kv), ..Options::default() });
        let mut source = model.new_sequence().unwrap();
        let mut straight = model.new_sequence().unwrap();
        // Not empty: nothing of what it was may be left.
        let mut fork = model.new_sequence().unwrap();
        last(&mut model, &mut fork, &ids[3..]);
        let others: Vec<u32> = ids.iter().rev().copied().collect();
        for cut in ids.len() - 13..ids.len() - 1 {
            let read = source.tokens();
            last(&mut model, &mut source, &ids[read..cut]);
            let checkpoint = model.checkpoint(&source).unwrap();
            // The source is in use beyond that place, and stays what it is.
            last(&mut model, &mut source, &others[..7]);
            let before = state(&mut model, &source);
            model.fork(&source, &checkpoint, &mut fork).unwrap();
            assert_eq!(fork.tokens(), cut);
            assert!(state(&mut model, &source) == before, "{name}: the source at {cut}");
            model.reset(&mut straight);
            last(&mut model, &mut straight, &ids[..cut]);
            assert!(state(&mut model, &fork) == state(&mut model, &straight), "{name}: the state at {cut}");
            let (want, got) = (last(&mut model, &mut straight, &ids[cut..]), last(&mut model, &mut fork, &ids[cut..]));
            assert!(got == want, "{name}: on from {cut}");
            assert!(state(&mut model, &fork) == state(&mut model, &straight), "{name}: the end from {cut}");
            model.restore(&mut source, &checkpoint).unwrap();
        }
    }
}

#[test]
fn a_fork_drafts_and_routes_like_its_source() {
    let (ids, path) = (oracle("moe8ple"), data("oracle/moe8ple/mtp-q8_0.gguf"));
    let head = DraftHead { file: Some(Arc::new(Gguf::open(&path).unwrap())), ..DraftHead::default() };
    let moce = Some(Moce { slots: 3, bonus: 5.0, keep: 0, mass: 1.0 });
    let mut model = open("moe8ple", Options { draft_head: Some(head), moce, ..Options::default() });
    let drafts = |model: &mut Model, sequence: &mut Sequence| {
        let mut drafts = Vec::new();
        model.draft(sequence, ids[50], 3, &mut drafts, &mut Unobserved).unwrap();
        drafts
    };
    let (mut source, mut fork) = (model.new_sequence().unwrap(), model.new_sequence().unwrap());
    last(&mut model, &mut source, &ids[..30]);
    ids[30..41].iter().for_each(|id| _ = write(&mut model, &mut source, *id));
    let checkpoint = model.checkpoint(&source).unwrap();
    let before = model.route_counts().unwrap();
    let want: Vec<_> = ids[41..50].iter().map(|id| write(&mut model, &mut source, *id)).collect();
    assert!((model.route_counts().unwrap() - before).substituted > 0, "routing must have something to remember");
    let want_drafts = drafts(&mut model, &mut source);
    model.fork(&source, &checkpoint, &mut fork).unwrap();
    let got: Vec<_> = ids[41..50].iter().map(|id| write(&mut model, &mut fork, *id)).collect();
    assert!(got == want);
    assert_eq!(drafts(&mut model, &mut fork), want_drafts);
    assert!(state(&mut model, &fork) == state(&mut model, &source));
}

#[test]
fn a_written_checkpoint_brings_another_run_to_the_same_place() {
    for (name, kv) in [("longqsa", KvType::Bfloat16), ("moe8ple", KvType::Q8_0), ("mini4", KvType::Float32)] {
        let ids = oracle(name);
        let moce = Some(Moce { slots: 3, bonus: 5.0, keep: 0, mass: 1.0 });
        let load = || open(name, Options { kv: Some(kv), moce, ..Options::default() });
        let (mut model, mut other) = (load(), load());
        let (mut source, mut target) = (model.new_sequence().unwrap(), other.new_sequence().unwrap());
        let end = ids.len() - 6;
        last(&mut model, &mut source, &ids[..end]);
        let checkpoint = model.checkpoint(&source).unwrap();
        let mut bytes = Vec::new();
        // Written while the source is beyond that place, and read into a sequence that was in use.
        write(&mut model, &mut source, ids[0]);
        model.write_checkpoint(&source, &checkpoint, &mut bytes).unwrap();
        assert_eq!(model.written_bytes(&source, &checkpoint), bytes.len() as u64);
        model.restore(&mut source, &checkpoint).unwrap();
        last(&mut other, &mut target, &ids[5..]);
        let read = other.read_checkpoint(&mut target, &mut &bytes[..]).unwrap();
        assert_eq!((read.tokens(), target.tokens()), (end, end));
        for id in &ids[end..] {
            assert!(write(&mut other, &mut target, *id) == write(&mut model, &mut source, *id), "{name}");
        }
        assert!(state(&mut other, &target) == state(&mut model, &source), "{name}");
        // The checkpoint that was read is one of this sequence.
        other.restore(&mut target, &read).unwrap();
        model.restore(&mut source, &checkpoint).unwrap();
        assert!(last(&mut other, &mut target, &ids[end..]) == last(&mut model, &mut source, &ids[end..]));
    }
}

#[test]
fn bytes_of_no_checkpoint_are_refused_or_harmless() {
    let ids = oracle("moe8ple");
    let moce = Some(Moce { slots: 3, bonus: 5.0, keep: 0, mass: 1.0 });
    let mut model = open("moe8ple", Options { moce, context_tokens: Some(64), ..Options::default() });
    let mut sequence = model.new_sequence().unwrap();
    last(&mut model, &mut sequence, &ids[..30]);
    let checkpoint = model.checkpoint(&sequence).unwrap();
    let mut bytes = Vec::new();
    model.write_checkpoint(&sequence, &checkpoint, &mut bytes).unwrap();
    model.reset(&mut sequence);
    let expected = last(&mut model, &mut sequence, &ids[..10]);
    let mut refused = 0;
    // All of the beginning, where the numbers are, and samples of the rest; and ends everywhere.
    let places = (0..200).chain((200..bytes.len()).step_by(bytes.len() / 100));
    for at in places {
        for change in [0x01, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            if model.read_checkpoint(&mut sequence, &mut &changed[..]).is_ok() {
                // Whatever it is now, it can go on.
                last(&mut model, &mut sequence, &ids[30..32]);
            } else {
                refused += 1;
                assert_eq!(sequence.tokens(), 0, "{at}");
            }
        }
        let error = model.read_checkpoint(&mut sequence, &mut &bytes[..at]).unwrap_err();
        assert!(matches!(error, ModelError::Written(_)), "{error}");
    }
    assert!(refused > 50, "{refused}");
    model.reset(&mut sequence);
    assert!(last(&mut model, &mut sequence, &ids[..10]) == expected);
}

#[test]
fn checkpoints_of_common_rows_hold_for_both() {
    let ids = oracle("mini4");
    let mut model = open("mini4", Options::default());
    let (mut source, mut fork) = (model.new_sequence().unwrap(), model.new_sequence().unwrap());
    let mut marks = Vec::new();
    for piece in ids[..30].chunks(10) {
        last(&mut model, &mut source, piece);
        marks.push(model.checkpoint(&source).unwrap());
    }
    let expected = last(&mut model, &mut source, &ids[30..35]);
    model.fork(&source, &marks[1], &mut fork).unwrap();
    let holds = |sequence: &Sequence| marks.iter().map(|mark| sequence.can_restore(mark)).collect::<Vec<_>>();
    assert_eq!((holds(&source), holds(&fork)), (vec![true; 3], vec![true, true, false]));
    // Each goes its own way.
    last(&mut model, &mut fork, &ids[5..20]);
    model.restore(&mut fork, &marks[0]).unwrap();
    assert_eq!((holds(&source), holds(&fork)), (vec![true; 3], vec![true, false, false]));
    last(&mut model, &mut fork, &ids[10..30]);
    assert!(last(&mut model, &mut fork, &ids[30..35]) == expected);
    let error = model.fork(&fork, &marks[2], &mut source).unwrap_err();
    assert!(matches!(error, ModelError::StaleCheckpoint { tokens: 30 }), "{error}");
    assert_eq!(source.tokens(), 35, "nothing changed");
    // The beginning of all texts can be forked, too, and so can what is left of a text that was stopped in a pass.
    model.restore(&mut source, &marks[2]).unwrap();
    let error =
        model.forward(&mut source, &ids[30..35], Rows::Last, &mut Vec::new(), &mut StopAtOnce(false)).unwrap_err();
    assert!(matches!(error, ModelError::Cancelled), "{error}");
    model.fork(&source, &marks[2], &mut fork).unwrap();
    assert!(last(&mut model, &mut fork, &ids[30..35]) == expected);
}

/// Cancels a pass behind its first layer.
struct StopAtOnce(bool);

impl Observer for StopAtOnce {
    fn is_cancelled(&self) -> bool {
        self.0
    }

    fn at(&mut self, moment: Moment, _: &mut LayerView<'_>) {
        self.0 |= moment == Moment::LayerDone;
    }
}
