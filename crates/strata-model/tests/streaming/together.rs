//! Several sequences on one model: passes of several of them, and prompts that stop between layers for others. Each text
//! must come out as it does alone.

use std::sync::Arc;

use strata_gguf::Gguf;
use strata_model::ModelError;
use strata_model::qwen4exp::{
    Checkpoint, DraftHead, Moce, Model, Observer, Options, Part, Reading, RouteCounts, Rows, Sequence, Unobserved,
    Workspace,
};
use strata_store::reads::faulty::{Fault, Faults};

use crate::cached::MOCE;
use crate::common::data;
use crate::faults::{ALWAYS, Case, rule};
use crate::{Bed, SINGLE, mini, reference, streams};

/// A text: a prompt, and what is written after it.
#[derive(Clone)]
struct Text {
    prompt: Vec<u32>,
    written: Vec<u32>,
}

/// Three texts of other lengths, made of one.
fn texts(ids: &[u32]) -> Vec<Text> {
    let text = |from: usize, prompt: usize, to: usize| Text {
        prompt: ids[from..from + prompt].to_vec(),
        written: ids[from + prompt..to].to_vec(),
    };
    vec![text(0, 20, 40), text(7, 29, 45), text(3, 1, 16)]
}

fn bits(logits: Vec<f32>) -> Vec<u32> {
    logits.into_iter().map(f32::to_bits).collect()
}

/// The logits behind each written token of a text that is alone, everything in memory, token by token.
fn alone(bed: &Bed, moce: Option<Moce>, text: &Text) -> Vec<u32> {
    let (mut model, _) = bed.open(2, Options { moce, ..Options::default() }, &Faults::default());
    let mut sequence = model.new_sequence().unwrap();
    let mut logits = Vec::new();
    model.forward(&mut sequence, &text.prompt, Rows::Last, &mut Vec::new(), &mut Unobserved).unwrap();
    for id in &text.written {
        model.decode(&mut sequence, &[*id], Rows::Last, &mut logits, &mut Unobserved).unwrap();
    }
    bits(logits)
}

/// A quarter of the experts in memory, and strips that end within sequences.
fn small(bed: &Bed, moce: Option<Moce>) -> Options {
    Options { moce, strip_rows: 4, ..streams(bed.experts().0 / 4) }
}

/// Writes all texts at once: each takes a window of one to three tokens a step, of which the last is wrong when there are
/// several and is taken back, and drops out when it is complete.
fn in_company(model: &mut Model, texts: &[Text]) -> Vec<Vec<u32>> {
    let vocabulary = model.vocabulary();
    let mut workspace = model.new_workspace(3 * texts.len()).unwrap();
    let mut sequences: Vec<Sequence> = texts.iter().map(|_| model.new_sequence().unwrap()).collect();
    for (text, sequence) in texts.iter().zip(&mut sequences) {
        model.forward(sequence, &text.prompt, Rows::Last, &mut Vec::new(), &mut Unobserved).unwrap();
    }
    let mut checkpoints: Vec<Checkpoint> = texts.iter().map(|_| Checkpoint::default()).collect();
    let mut got: Vec<Vec<u32>> = texts.iter().map(|_| Vec::new()).collect();
    for round in 0.. {
        let mut windows: Vec<Vec<u32>> = Vec::new();
        for (at, text) in texts.iter().enumerate() {
            let done = got[at].len() / vocabulary;
            let mut window: Vec<u32> = text.written[done..].iter().copied().take(1 + (round + at) % 3).collect();
            if let [_, .., last] = &mut window[..] {
                *last = (*last + 1) % vocabulary as u32;
            }
            model.checkpoint_window(&mut sequences[at], &mut checkpoints[at], window.len()).unwrap();
            windows.push(window);
        }
        if windows.iter().all(Vec::is_empty) {
            break;
        }
        let parts = sequences.iter_mut().zip(&windows).map(|(sequence, ids)| Part { sequence, ids });
        let mut logits = Vec::new();
        model.step(&mut workspace, &mut parts.collect::<Vec<_>>(), &mut logits, &mut Unobserved).unwrap();
        let mut rows = logits.chunks_exact(vocabulary);
        for (at, window) in windows.iter().enumerate() {
            let kept = if window.len() > 1 { window.len() - 1 } else { window.len() };
            for row in rows.by_ref().take(kept) {
                got[at].extend(row.iter().map(|logit| logit.to_bits()));
            }
            // The row of what was wrong.
            if kept < window.len() {
                rows.next().unwrap();
                model.restore_window(&mut sequences[at], &checkpoints[at], &window[..kept]).unwrap();
            }
        }
        assert!(rows.next().is_none());
    }
    if let Some(all) = model.route_counts() {
        let mut sum = RouteCounts::default();
        sequences.iter().for_each(|sequence| sum += sequence.route_counts());
        let whole = |counts: RouteCounts| RouteCounts { mass: 0.0, ..counts };
        assert!(
            whole(all) == whole(sum) && (all.mass - sum.mass).abs() < 1e-6 && sum.substituted > 0,
            "{all:?} {sum:?}"
        );
    }
    sequences.into_iter().for_each(|sequence| model.free(sequence));
    model.free_workspace(workspace);
    got
}

#[test]
fn a_sequence_gives_the_same_bytes_alone_or_in_company() {
    for bed in [mini(48), reference("moe8ple")] {
        let texts = texts(&bed.ids);
        for moce in [None, Some(MOCE)] {
            let (mut model, seen) = bed.open(2, small(&bed, moce), &Faults::default());
            let got = in_company(&mut model, &texts);
            for (at, (text, got)) in texts.iter().zip(&got).enumerate() {
                assert!(*got == alone(&bed, moce, text), "text {at}, {moce:?}");
            }
            seen.check_none_is_out();
        }
    }
}

#[test]
fn an_expert_is_demanded_once_for_all_sequences_of_a_step() {
    let bed = mini(48);
    let (mut model, seen) = bed.open(2, small(&bed, None), &Faults::default());
    let mut sequences: Vec<Sequence> = (0..4).map(|_| model.new_sequence().unwrap()).collect();
    let mut workspace = model.new_workspace(8).unwrap();
    let mut step = |model: &mut Model, ids: &[u32]| {
        let parts = sequences.iter_mut().map(|sequence| Part { sequence, ids });
        let lookups = |model: &mut Model| {
            let counts = model.streaming().unwrap().counts();
            (counts.resident + counts.ahead + counts.missed).records
        };
        let before = lookups(model);
        model.step(&mut workspace, &mut parts.collect::<Vec<_>>(), &mut Vec::new(), &mut Unobserved).unwrap();
        lookups(model) - before
    };
    // Four times the same token needs what one needs.
    let (layers, top_k) = (12, bed.experts().1 as u64);
    assert_eq!(step(&mut model, &bed.ids[..1]), layers * top_k);
    seen.check_none_is_out();
}

/// Who reads and who writes, layer by layer and step by step, in an order that depends on a seed.
struct Turns(u64);

impl Turns {
    fn next(&mut self, of: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % of
    }
}

/// The logits of all positions of a text that is read alone.
fn all_logits(bed: &Bed, ids: &[u32]) -> Vec<u32> {
    let (mut model, _) = bed.open(2, Options::default(), &Faults::default());
    let mut sequence = model.new_sequence().unwrap();
    let mut logits = Vec::new();
    model.forward(&mut sequence, ids, Rows::All, &mut logits, &mut Unobserved).unwrap();
    bits(logits)
}

/// The checkpoint is that of the text's first tokens: what follows is right.
fn goes_on(model: &mut Model, sequence: &mut Sequence, checkpoint: &Checkpoint, ids: &[u32], expected: &[u32]) {
    let (at, vocabulary) = (checkpoint.tokens(), model.vocabulary());
    model.restore(sequence, checkpoint).unwrap();
    let mut logits = Vec::new();
    model.forward(sequence, &ids[at..], Rows::All, &mut logits, &mut Unobserved).unwrap();
    assert!(bits(logits) == expected[at * vocabulary..], "from the checkpoint at {at}");
}

#[test]
fn prompts_that_stop_between_layers_for_others_give_the_same_bytes() {
    for (bed, rounds) in [(mini(60), 2), (reference("moe8ple"), 3)] {
        let expected = all_logits(&bed, &bed.ids);
        let vocabulary = expected.len() / bed.ids.len();
        let at_row = |row: usize| expected[row * vocabulary..][..vocabulary].to_vec();
        let (prompts, texts) = ([60, 33, 47], texts(&bed.ids));
        let written: Vec<_> = texts[..2].iter().map(|text| alone(&bed, Some(MOCE), text)).collect();
        for round in 0..rounds {
            let (mut model, seen) = bed.open(2, small(&bed, Some(MOCE)), &Faults::default());
            let mut step_workspace = model.new_workspace(2).unwrap();
            let mut writers: Vec<Sequence> = (0..2).map(|_| model.new_sequence().unwrap()).collect();
            for (text, sequence) in texts.iter().zip(&mut writers) {
                model.forward(sequence, &text.prompt, Rows::Last, &mut Vec::new(), &mut Unobserved).unwrap();
            }
            // In one pass, in passes of a strip and a half, and in passes of fewer rows than a strip.
            let checkpoints_at = [vec![0, 1, 5, 6, 60], vec![8, 30], vec![7]];
            let mut readings: Vec<Reading> = Vec::new();
            for ((tokens, rows), checkpoints_at) in prompts.iter().zip([60, 6, 3]).zip(checkpoints_at) {
                let workspace = model.new_workspace(rows).unwrap();
                let sequence = model.new_sequence().unwrap();
                readings.push(model.begin_reading(sequence, bed.ids[..*tokens].to_vec(), workspace, checkpoints_at));
            }
            let (mut turns, mut done) = (Turns(round), 0);
            let mut got = vec![Vec::new(), Vec::new()];
            while !readings.iter().all(Reading::is_complete) {
                match turns.next(20) {
                    0 if done < 9 => {
                        let parts = writers.iter_mut().zip(&texts);
                        let mut parts: Vec<_> =
                            parts.map(|(sequence, text)| Part { sequence, ids: &text.written[done..=done] }).collect();
                        let mut logits = Vec::new();
                        model.step(&mut step_workspace, &mut parts, &mut logits, &mut Unobserved).unwrap();
                        got.iter_mut()
                            .zip(logits.chunks(vocabulary))
                            .for_each(|(got, row)| got.extend(row.iter().map(|v| v.to_bits())));
                        done += 1;
                    }
                    turn => {
                        let reader = turn % 3;
                        let before = readings[reader].progress();
                        model.advance(&mut readings[reader], &mut Unobserved).unwrap();
                        assert!(readings[reader].progress() > before || before == 1.0);
                    }
                }
            }
            assert_eq!(done, 9, "steps in between");
            for (written, got) in written.iter().zip(&got) {
                assert!(*got == written[..got.len()], "what was written meanwhile");
            }
            for (reading, tokens) in readings.into_iter().zip(prompts) {
                let (mut sequence, workspace, logits, checkpoints) = model.finish_reading(reading);
                assert!(bits(logits) == at_row(tokens - 1), "a prompt of {tokens} in round {round}");
                let places: Vec<_> = checkpoints.iter().map(Checkpoint::tokens).collect();
                let wanted = [(60, vec![0, 1, 5, 6, 60]), (33, vec![8, 30]), (47, vec![7])];
                assert!(wanted.contains(&(tokens, places)));
                for checkpoint in checkpoints.iter().rev() {
                    goes_on(
                        &mut model,
                        &mut sequence,
                        checkpoint,
                        &bed.ids[..prompts[0]],
                        &expected[..prompts[0] * vocabulary],
                    );
                }
                model.free(sequence);
                model.free_workspace(workspace);
            }
            seen.check_none_is_out();
        }
    }
}

/// All that a sequence shows: what is decoded from here, and what is drafted.
fn shows(model: &mut Model, sequence: &mut Sequence, ids: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut logits = Vec::new();
    let drafts = model.draft(sequence, ids[0], 4, &mut logits, &mut Unobserved).unwrap();
    for id in ids {
        model.decode(sequence, &[*id], Rows::Last, &mut logits, &mut Unobserved).unwrap();
        model.draft(sequence, 3, 2, &mut logits, &mut Unobserved).unwrap();
    }
    (drafts, bits(logits))
}

/// With a draft head and cache-aware routing, both of which a checkpoint is to bring back.
#[test]
fn checkpoints_within_a_pass_are_those_between_two_calls() {
    let bed = reference("moe8ple");
    let head = Arc::new(Gguf::open(&data("oracle/moe8ple/mtp-q8_0.gguf")).unwrap());
    let draft_head = Some(DraftHead { file: Some(head), ..DraftHead::default() });
    let options = Options { draft_head, ..small(&bed, Some(MOCE)) };
    let (mut model, seen) = bed.open(2, options, &Faults::default());
    // From an empty sequence, and on from there; strips are of four rows.
    for first in [0, 11] {
        let places = [1, 2, 4, 7, 8, 13].map(|row| first + row);
        let mut sequence = model.new_sequence().unwrap();
        if first > 0 {
            model.forward(&mut sequence, &bed.ids[..first], Rows::Last, &mut Vec::new(), &mut Unobserved).unwrap();
        }
        let workspace = model.new_workspace(14).unwrap();
        let ids = bed.ids[first..first + 14].to_vec();
        // In any order, and twice; those that are not reached are none.
        let wanted = places.iter().rev().chain(&places[2..4]).copied().chain([first + 15]).collect();
        let mut reading = model.begin_reading(sequence, ids, workspace, wanted);
        while !model.advance(&mut reading, &mut Unobserved).unwrap() {}
        let (mut sequence, workspace, _, checkpoints) = model.finish_reading(reading);
        model.free_workspace(workspace);
        assert_eq!(checkpoints.iter().map(Checkpoint::tokens).collect::<Vec<_>>(), places);
        for checkpoint in checkpoints.iter().rev() {
            let at = checkpoint.tokens();
            let mut straight = model.new_sequence().unwrap();
            for piece in [&bed.ids[..first], &bed.ids[first..at]] {
                model.forward(&mut straight, piece, Rows::Last, &mut Vec::new(), &mut Unobserved).unwrap();
            }
            let between = model.checkpoint(&straight).unwrap();
            assert_eq!(checkpoint.bytes(), between.bytes());
            model.restore(&mut sequence, checkpoint).unwrap();
            let ids = &bed.ids[at..at + 5];
            let (want, got) = (shows(&mut model, &mut straight, ids), shows(&mut model, &mut sequence, ids));
            assert!(got == want, "the checkpoint at {at}");
            model.free(straight);
        }
        model.free(sequence);
    }
    seen.check_none_is_out();
}

/// A prompt that stopped before layer 3, and a sequence that writes.
struct Suspended {
    model: Model,
    seen: crate::Seen,
    faults: Faults,
    reading: Reading,
    writer: Sequence,
    workspace: Workspace,
}

impl Suspended {
    fn new(case: &Case, layers: usize) -> Self {
        let faults = Faults::default();
        let (mut model, seen) = case.open(|_| {}, &faults);
        let prompt = case.bed.ids[..case.bed.ids.len() - SINGLE].to_vec();
        // Two passes, so that rows of the second are already asked for.
        let (sequence, workspace) = (model.new_sequence().unwrap(), model.new_workspace(40).unwrap());
        let mut reading = model.begin_reading(sequence, prompt, workspace, vec![30]);
        (0..layers).for_each(|_| assert!(!model.advance(&mut reading, &mut Unobserved).unwrap()));
        let (writer, workspace) = (model.new_sequence().unwrap(), model.new_workspace(8).unwrap());
        Self { model, seen, faults, reading, writer, workspace }
    }

    fn step(&mut self, ids: &[u32]) -> Result<Vec<u32>, ModelError> {
        let mut logits = Vec::new();
        let parts = &mut [Part { sequence: &mut self.writer, ids }];
        self.model.step(&mut self.workspace, parts, &mut logits, &mut Unobserved)?;
        self.seen.check_none_is_out();
        Ok(bits(logits))
    }

    /// Reads on to the end, and writes what follows the prompt.
    fn ends_right(mut self, case: &Case) {
        while !self.model.advance(&mut self.reading, &mut Unobserved).unwrap() {}
        let (mut sequence, _, mut logits, checkpoints) = self.model.finish_reading(self.reading);
        for id in &case.bed.ids[case.bed.ids.len() - SINGLE..] {
            self.model.forward(&mut sequence, &[*id], Rows::Last, &mut logits, &mut Unobserved).unwrap();
        }
        assert!(bits(logits) == case.expected, "other bytes");
        assert_eq!(checkpoints.len(), 1);
        self.seen.check_none_is_out();
    }
}

#[test]
fn a_step_that_fails_leaves_a_prompt_that_waits_untouched() {
    let case = Case::new();
    let mut none = Suspended::new(&case, 3);
    let expected = none.step(&case.bed.ids[..2]).unwrap();
    none.ends_right(&case);
    // Before the layer whose table rows are needed, and behind it.
    for layers in [1, 3] {
        // All of the drive, and the n-gram table alone.
        for (bytes, is_table) in [(0..u64::MAX, false), (case.table.clone(), true)] {
            let mut bed = Suspended::new(&case, layers);
            bed.faults.set(rule(bytes, 1, ALWAYS, Fault::Error));
            let error = bed.step(&case.bed.ids[..2]).unwrap_err();
            assert!(matches!(error, ModelError::Store(_)), "{error}");
            assert_eq!(error.to_string().contains("expert"), !is_table, "{error}");
            assert!(matches!(bed.step(&case.bed.ids[..1]).unwrap_err(), ModelError::Interrupted));
            bed.faults.set(Vec::new());
            bed.model.reset(&mut bed.writer);
            assert!(bed.step(&case.bed.ids[..2]).unwrap() == expected);
            bed.ends_right(&case);
        }
    }
}

/// Cancels whatever it sees.
struct Cancels;

impl Observer for Cancels {
    fn is_cancelled(&self) -> bool {
        true
    }
}

#[test]
fn a_prompt_that_fails_or_is_given_up_leaves_steps_untouched() {
    let case = Case::new();
    let mut none = Suspended::new(&case, 3);
    let (first, second) = (none.step(&case.bed.ids[..2]).unwrap(), none.step(&case.bed.ids[2..3]).unwrap());
    for how in 0..4 {
        let mut bed = Suspended::new(&case, if how == 3 { 0 } else { 2 });
        assert!(bed.step(&case.bed.ids[..2]).unwrap() == first);
        match how {
            // Its own reads fail, while it is not at hand.
            0 => {
                bed.faults.set(rule(0..u64::MAX, 1, ALWAYS, Fault::Error));
                let error = loop {
                    match bed.model.advance(&mut bed.reading, &mut Unobserved) {
                        Ok(is_complete) => assert!(!is_complete),
                        Err(error) => break error,
                    }
                };
                assert!(matches!(error, ModelError::Store(_)), "{error}");
                bed.faults.set(Vec::new());
                let error = bed.model.advance(&mut bed.reading, &mut Unobserved).unwrap_err();
                assert!(matches!(error, ModelError::Interrupted), "{error}");
            }
            1 => {
                let error = bed.model.advance(&mut bed.reading, &mut Cancels).unwrap_err();
                assert!(matches!(error, ModelError::Cancelled), "{error}");
            }
            // Between two layers, and before the first.
            _ => {}
        }
        let Suspended { mut model, reading, seen, faults, writer, workspace } = bed;
        let (mut sequence, room) = model.give_up_reading(reading);
        seen.check_none_is_out();
        model.reset(&mut sequence);
        let prompt = case.bed.ids[..case.bed.ids.len() - SINGLE].to_vec();
        let reading = model.begin_reading(sequence, prompt, room, vec![30]);
        let mut bed = Suspended { model, reading, seen, faults, writer, workspace };
        assert!(bed.step(&case.bed.ids[2..3]).unwrap() == second, "{how}");
        bed.ends_right(&case);
    }
}

#[test]
fn the_models_own_workspace_can_be_taken_for_a_reading() {
    let bed = mini(30);
    let expected = all_logits(&bed, &bed.ids);
    let (mut model, _) = bed.open(2, Options { pass_tokens: 16, ..small(&bed, None) }, &Faults::default());
    let workspace = model.take_workspace().unwrap();
    assert_eq!(workspace.rows(), 16);
    let sequence = model.new_sequence().unwrap();
    let mut reading = model.begin_reading(sequence, bed.ids.clone(), workspace, Vec::new());
    assert_eq!((reading.tokens(), reading.progress()), ((30, 0), 0.0));
    // Who calls `forward` meanwhile gets another.
    let mut other = model.new_sequence().unwrap();
    while !model.advance(&mut reading, &mut Unobserved).unwrap() {
        let mut logits = Vec::new();
        model.reset(&mut other);
        model.forward(&mut other, &bed.ids[..1], Rows::Last, &mut logits, &mut Unobserved).unwrap();
        assert!(bits(logits) == expected[..model.vocabulary()]);
    }
    let (_, workspace, logits, _) = model.finish_reading(reading);
    assert!(bits(logits) == expected[29 * model.vocabulary()..]);
    model.free_workspace(workspace);
}
