//! Sequences that go back to where they were.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{Recorded, data, fast_model_on, last, model_on, oracle, state, strata_mini};
use strata_backend::Isa;
use strata_gguf::Gguf;
use strata_model::ModelError;
use strata_model::qwen4exp::{
    Checkpoint, DraftHead, LayerView, Model, Moment, Observer, Options, Rows, Sequence, Unobserved,
};

/// At each of `cuts`: on for a while with other tokens, back, and on as if nothing had been.
fn there_and_back(model: &mut Model, ids: &[u32], cuts: std::ops::Range<usize>, away: &[usize], what: &str) {
    let mut straight = model.new_sequence().unwrap();
    let mut sequence = model.new_sequence().unwrap();
    let vocabulary = model.vocabulary() as u32;
    let others: Vec<u32> = ids.iter().rev().map(|id| (id + 1) % vocabulary).collect();
    last(model, &mut straight, &ids[..cuts.start]);
    last(model, &mut sequence, &ids[..cuts.start]);
    let mut checkpoint = Checkpoint::default();
    for cut in cuts {
        model.checkpoint_into(&sequence, &mut checkpoint).unwrap();
        for tokens in away {
            // Twice to the same place: the first return must not have spoilt the checkpoint.
            last(model, &mut sequence, &others[..*tokens]);
            model.restore(&mut sequence, &checkpoint).unwrap();
            assert_eq!(sequence.tokens(), cut);
        }
        assert!(state(model, &sequence) == state(model, &straight), "{what}: the state at {cut}");
        let (want, got) = (last(model, &mut straight, &ids[cut..=cut]), last(model, &mut sequence, &ids[cut..=cut]));
        assert!(got == want, "{what}: the token at {cut}");
    }
    assert!(state(model, &sequence) == state(model, &straight), "{what}: the state at the end");
    model.free(straight);
    model.free(sequence);
}

#[test]
fn a_sequence_that_returns_goes_on_as_if_it_had_never_left() {
    for name in ["mini4", "moe8ple", "longqsa"] {
        let (path, ids) = (data(&format!("oracle/{name}/model-f16.gguf")), oracle(name));
        // Two blocks of four tokens; in longqsa, whose budget is 32 tokens, also where blocks are chosen.
        let from = ids.len() - 12;
        for open in [model_on as Load, fast_model_on as Load] {
            let mut model = open(&path, Isa::best(), 2, Options::default());
            there_and_back(&mut model, &ids, from..from + 9, &[1, 6], name);
            there_and_back(&mut model, &ids, 0..5, &[9], name);
        }
    }
    let ids = Recorded::open(&strata_mini("reference.safetensors")).u32("prompt1.token_ids");
    let mut model = fast_model_on(&strata_mini("strata-mini-iq2xs-q4_0.gguf"), Isa::best(), 2, Options::default());
    there_and_back(&mut model, &ids, 280..289, &[3], "strata-mini");
}

/// As a server keeps them: at ends of turns, in one sequence.
#[test]
fn checkpoints_hold_until_what_lies_before_them_is_forgotten() {
    let ids = oracle("moe8ple");
    let mut model = fast_model_on(&data("oracle/moe8ple/model-f16.gguf"), Isa::best(), 2, Options::default());
    let mut sequence = model.new_sequence().unwrap();
    let start = model.checkpoint(&sequence).unwrap();
    let mut kept = Vec::new();
    for piece in ids[..60].chunks(20) {
        last(&mut model, &mut sequence, piece);
        kept.push(model.checkpoint(&sequence).unwrap());
    }
    let [first, second, third] = &kept[..] else { panic!("three") };
    assert!(kept.iter().all(|checkpoint| checkpoint.bytes() > 0 && sequence.can_restore(checkpoint)));
    let expected = last(&mut model, &mut sequence, &ids[60..65]);

    // Back by two, and another way on: what lay beyond is lost, what lay before is not.
    model.restore(&mut sequence, second).unwrap();
    assert!(!sequence.can_restore(third));
    last(&mut model, &mut sequence, &ids[..25]);
    assert_eq!(sequence.tokens(), 65);
    let error = model.restore(&mut sequence, third).unwrap_err();
    assert!(matches!(error, ModelError::StaleCheckpoint { tokens: 60 }), "{error}");
    assert_eq!(sequence.tokens(), 65, "nothing changed");
    model.restore(&mut sequence, first).unwrap();
    assert!(!sequence.can_restore(second) && sequence.can_restore(&start));
    last(&mut model, &mut sequence, &ids[20..60]);
    assert!(last(&mut model, &mut sequence, &ids[60..65]) == expected);

    // Another sequence's, and one from before a reset.
    let other = model.new_sequence().unwrap();
    assert!(!other.can_restore(first) && !other.can_restore(&start));
    model.reset(&mut sequence);
    assert!(!sequence.can_restore(first) && sequence.can_restore(&start));
    model.restore(&mut sequence, &start).unwrap();
    last(&mut model, &mut sequence, &ids[..60]);
    assert!(last(&mut model, &mut sequence, &ids[60..65]) == expected);
    assert!(!sequence.can_restore(&Checkpoint::default()), "an empty one is of no sequence");
}

/// Cancels a pass behind one of its layers.
struct StopAfter(usize, bool);

impl Observer for StopAfter {
    fn is_cancelled(&self) -> bool {
        self.1
    }

    fn at(&mut self, moment: Moment, view: &mut LayerView<'_>) {
        self.1 |= moment == Moment::LayerDone && view.layer == self.0;
    }
}

#[test]
fn a_sequence_that_was_stopped_in_the_middle_can_return() {
    let ids = oracle("longqsa");
    let mut model = fast_model_on(&data("oracle/longqsa/model-f16.gguf"), Isa::best(), 2, Options::default());
    let mut straight = model.new_sequence().unwrap();
    last(&mut model, &mut straight, &ids[..100]);
    let expected = last(&mut model, &mut straight, &ids[100..107]);
    let mut sequence = model.new_sequence().unwrap();
    last(&mut model, &mut sequence, &ids[..100]);
    let checkpoint = model.checkpoint(&sequence).unwrap();
    for layer in [0, 3, 5] {
        let error = model
            .forward(&mut sequence, &ids[100..107], Rows::All, &mut Vec::new(), &mut StopAfter(layer, false))
            .unwrap_err();
        assert!(matches!(error, ModelError::Cancelled), "{error}");
        let error = model.checkpoint(&sequence).unwrap_err();
        assert!(matches!(error, ModelError::Interrupted), "{error}");
        model.restore(&mut sequence, &checkpoint).unwrap();
        assert!(last(&mut model, &mut sequence, &ids[100..107]) == expected, "stopped after layer {layer}");
        model.restore(&mut sequence, &checkpoint).unwrap();
    }
}

type Load = fn(&Path, Isa, usize, Options) -> Model;

/// Windows of other tokens from `from` on, of which the first few are right: back to these, and on.
fn windows(model: &mut Model, ids: &[u32], from: usize, rows: usize, what: &str) {
    let vocabulary = model.vocabulary() as u32;
    let drafts = |model: &mut Model, sequence: &mut Sequence, id| {
        model.draft(sequence, id, 3, &mut Vec::new(), &mut Unobserved).unwrap()
    };
    let mut sequence = model.new_sequence().unwrap();
    last(model, &mut sequence, &ids[..from]);
    let mut checkpoint = Checkpoint::default();
    for kept in 0..=rows {
        let mut straight = model.new_sequence().unwrap();
        last(model, &mut straight, &ids[..from]);
        if kept > 0 {
            last(model, &mut straight, &ids[from..from + kept]);
        }
        let mut window = ids[from..from + rows].to_vec();
        window[kept..].iter_mut().for_each(|id| *id = (*id + 1) % vocabulary);
        model.checkpoint_window(&mut sequence, &mut checkpoint, rows).unwrap();
        last(model, &mut sequence, &window);
        model.restore_window(&mut sequence, &checkpoint, &window[..kept]).unwrap();
        assert_eq!(sequence.tokens(), from + kept);
        assert!(state(model, &sequence) == state(model, &straight), "{what}: the state, {kept} of {rows} kept");
        let next = ids[from + kept];
        assert_eq!(drafts(model, &mut sequence, next), drafts(model, &mut straight, next), "{what}: drafts");
        let (want, got) = (last(model, &mut straight, &[next]), last(model, &mut sequence, &[next]));
        assert!(got == want, "{what}: the next token, {kept} of {rows} kept");
        assert_eq!(drafts(model, &mut sequence, 1), drafts(model, &mut straight, 1), "{what}: later drafts");
        model.free(straight);
        model.restore(&mut sequence, &checkpoint).unwrap();
    }
    model.free(sequence);
}

#[test]
fn a_window_is_taken_back_to_any_of_its_rows() {
    for name in ["mini4", "moe8ple", "longqsa"] {
        let (path, ids) = (data(&format!("oracle/{name}/model-f16.gguf")), oracle(name));
        // Four tokens are a block: all places in one.
        for (open, pass_tokens, strip_rows, places) in
            [(model_on as Load, 1024, 256, 1), (fast_model_on as Load, 1024, 3, 4), (fast_model_on as Load, 5, 2, 1)]
        {
            let file = Gguf::open(&data("oracle/moe8ple/mtp-q8_0.gguf")).unwrap();
            let head = DraftHead { file: Some(Arc::new(file)), ..DraftHead::default() };
            let draft_head = (name == "moe8ple").then_some(head);
            let options = Options { pass_tokens, strip_rows, draft_head, ..Options::default() };
            let mut model = open(&path, Isa::best(), 2, options);
            for from in ids.len() - 14..ids.len() - 14 + places {
                windows(&mut model, &ids, from, 8, name);
            }
        }
    }
    let ids = Recorded::open(&strata_mini("reference.safetensors")).u32("prompt1.token_ids");
    let mut model = fast_model_on(&strata_mini("strata-mini-iq2xs-q4_0.gguf"), Isa::best(), 2, Options::default());
    windows(&mut model, &ids, 29, 3, "strata-mini");
}

#[test]
fn what_is_not_remembered_cannot_be_taken_back_in_part() {
    let ids = oracle("mini4");
    let mut model = fast_model_on(&data("oracle/mini4/model-f16.gguf"), Isa::best(), 2, Options::default());
    let mut sequence = model.new_sequence().unwrap();
    let mut checkpoint = Checkpoint::default();
    let refused = |model: &mut Model, sequence: &mut Sequence, checkpoint: &Checkpoint, kept: &[u32]| {
        let error = model.restore_window(sequence, checkpoint, kept).unwrap_err();
        assert!(matches!(error, ModelError::StaleCheckpoint { .. }), "{error}");
    };
    last(&mut model, &mut sequence, &ids[..10]);
    model.checkpoint_into(&sequence, &mut checkpoint).unwrap();
    last(&mut model, &mut sequence, &ids[10..14]);
    refused(&mut model, &mut sequence, &checkpoint, &ids[10..12]);
    model.restore(&mut sequence, &checkpoint).unwrap();
    model.checkpoint_window(&mut sequence, &mut checkpoint, 4).unwrap();
    last(&mut model, &mut sequence, &ids[10..16]);
    // More than are remembered, more than there are, and once it went back before.
    refused(&mut model, &mut sequence, &checkpoint, &ids[10..15]);
    model.restore_window(&mut sequence, &checkpoint, &ids[10..14]).unwrap();
    refused(&mut model, &mut sequence, &checkpoint, &ids[10..12]);
    let expected = last(&mut model, &mut sequence, &ids[14..17]);
    let mut straight = model.new_sequence().unwrap();
    last(&mut model, &mut straight, &ids[..14]);
    assert!(last(&mut model, &mut straight, &ids[14..17]) == expected);
}
