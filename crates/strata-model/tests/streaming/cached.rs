//! Cache-aware routing: what is decoded depends on the tokens alone, whatever is in memory and whenever it comes.

use std::time::Duration;

use strata_model::ModelError;
use strata_model::qwen4exp::{Moce, Model, Options, RouteCounts, Rows, Sequence, Unobserved};
use strata_store::reads::faulty::Faults;

use crate::exactness::{BASE, Slots, Way, late, options, random_ways, readers};
use crate::{Bed, mini, reference, streams};

/// So much that every text shows it.
pub(crate) const MOCE: Moce = Moce { slots: 10, bonus: 1.0, keep: 1, mass: 1.0 };

/// How a text is cut: tokens of the prompt, of its pieces, and of the windows that are decoded after it.
#[derive(Clone, Copy, Debug)]
struct Cut {
    prompt: usize,
    piece: usize,
    window: usize,
}

/// The logits of all decoded rows, as bits.
fn decode(model: &mut Model, sequence: &mut Sequence, ids: &[u32], cut: Cut) -> Result<Vec<u32>, ModelError> {
    let (prompt, decoded) = ids.split_at(cut.prompt);
    for piece in prompt.chunks(cut.piece) {
        model.forward(sequence, piece, Rows::Last, &mut Vec::new(), &mut Unobserved)?;
    }
    let mut logits = Vec::new();
    for window in decoded.chunks(cut.window) {
        model.decode(sequence, window, Rows::All, &mut logits, &mut Unobserved)?;
    }
    Ok(logits.into_iter().map(f32::to_bits).collect())
}

fn run(model: &mut Model, ids: &[u32], cut: Cut) -> Vec<u32> {
    let mut sequence = model.new_sequence().unwrap();
    let logits = decode(model, &mut sequence, ids, cut).unwrap();
    model.free(sequence);
    logits
}

/// What does not depend on what was in memory.
fn logical(counts: RouteCounts) -> RouteCounts {
    RouteCounts { held: 0, resident_held: 0, ..counts }
}

/// In memory, with these settings.
fn resident(bed: &Bed, moce: Option<Moce>) -> Model {
    bed.open(2, Options { moce, ..Options::default() }, &Faults::default()).0
}

/// Runs `bed` in all of these ways; each must give the bytes and the counts of the run from memory, token by token.
fn check(bed: &Bed, prompt: usize, ways: &[(Way, Cut)]) {
    let experts = bed.experts();
    let base = Cut { prompt, piece: prompt, window: 1 };
    let mut model = resident(bed, Some(MOCE));
    let expected = run(&mut model, &bed.ids, base);
    let counts = model.route_counts().unwrap();
    let decoded = (bed.ids.len() - prompt) as u64;
    assert_eq!((counts.rows, counts.choices), (decoded, decoded * (model.config().layers * experts.1) as u64));
    assert_eq!((counts.held, counts.resident_held), (counts.choices, counts.resident), "all is in memory");
    assert!(counts.substituted * 20 > counts.choices, "{counts:?}");
    assert!(run(&mut resident(bed, None), &bed.ids, base) != expected, "the routes changed nothing");
    for (way, cut) in ways {
        let faults = if way.is_late { late(Duration::from_micros(800)) } else { Faults::default() };
        let options = Options { moce: Some(MOCE), ..options(way, experts, &[]) };
        let (mut model, seen) = bed.open(way.threads, options, &faults);
        let cut = Cut { prompt, ..*cut };
        assert!(run(&mut model, &bed.ids, cut) == expected, "{way:?} {cut:?}");
        let got = model.route_counts().unwrap();
        assert_eq!(logical(got), logical(counts), "{way:?} {cut:?}");
        assert!(got.held >= got.resident_held && got.held <= got.choices);
        seen.check_none_is_out();
    }
}

#[test]
fn the_shipped_model_decodes_the_same_bytes_in_every_way() {
    let bed = mini(150);
    let way = |slots| Way { slots, ..BASE };
    let ways = [
        (way(Slots::Quarter), Cut { prompt: 0, piece: 1000, window: 1 }),
        (Way { threads: 1, is_late: true, ..way(Slots::Smallest) }, Cut { prompt: 0, piece: 7, window: 8 }),
        (Way { threads: 1, ..way(Slots::All) }, Cut { prompt: 0, piece: 50, window: 3 }),
    ];
    check(&bed, 120, &ways);
}

#[test]
fn a_reference_model_decodes_the_same_bytes_in_every_way() {
    for is_precise in [false, true] {
        let bed = Bed { is_precise, ..reference("moe8ple") };
        let cut = |i: usize| Cut { prompt: 0, piece: [1, 5, 64][i % 3], window: [8, 3, 2, 1][i % 4] };
        let ways = random_ways(&readers(&bed), 16, 12).into_iter().enumerate();
        let prompt = bed.ids.len() / 2;
        check(&bed, prompt, &ways.map(|(i, way)| (way, cut(i))).collect::<Vec<_>>());
    }
}

#[test]
fn settings_that_prefer_nothing_give_the_bytes_of_exact_routing() {
    let bed = reference("moe8ple");
    let (prompt, experts) = (bed.ids.len() / 2, 32);
    let cut = Cut { prompt, piece: prompt, window: 1 };
    let expected = run(&mut resident(&bed, None), &bed.ids, cut);
    let settings = [
        Moce { bonus: 0.0, ..MOCE },
        Moce { mass: 0.0, ..MOCE },
        Moce { keep: 4, ..MOCE },
        Moce { slots: experts, ..MOCE },
        Moce { slots: 0, ..MOCE },
    ];
    for moce in settings {
        let mut model = resident(&bed, Some(moce));
        assert!(run(&mut model, &bed.ids, cut) == expected, "{moce:?}");
        let counts = model.route_counts().unwrap();
        assert_eq!((counts.substituted, counts.mass), (0, 0.0), "{moce:?}");
        assert_eq!(counts.resident == 0, moce.slots == 0, "{moce:?}");
    }
}

/// Residency is the sequence's own: others do not touch it, a reset empties it.
#[test]
fn sequences_do_not_see_each_other() {
    let bed = reference("moe8ple");
    let (a, b) = (&bed.ids[..40], &bed.ids[20..]);
    let cut = |ids: &[u32]| Cut { prompt: ids.len() / 2, piece: 9, window: 1 };
    let mut model = bed.open(2, Options { moce: Some(MOCE), ..streams(64) }, &Faults::default()).0;
    let (alone_a, alone_b) = (run(&mut model, a, cut(a)), run(&mut model, b, cut(b)));

    let mut sequences = [model.new_sequence().unwrap(), model.new_sequence().unwrap()];
    let mut logits = [Vec::new(), Vec::new()];
    for (sequence, ids) in sequences.iter_mut().zip([a, b]) {
        model.forward(sequence, &ids[..ids.len() / 2], Rows::Last, &mut Vec::new(), &mut Unobserved).unwrap();
    }
    for i in 0.. {
        let rest = [a, b].map(|ids| ids[ids.len() / 2..].get(i));
        if rest == [None, None] {
            break;
        }
        for ((sequence, logits), id) in sequences.iter_mut().zip(&mut logits).zip(rest) {
            if let Some(id) = id {
                model.decode(sequence, &[*id], Rows::Last, logits, &mut Unobserved).unwrap();
            }
        }
    }
    let bits = |logits: &[f32]| logits.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert!(bits(&logits[0]) == alone_a && bits(&logits[1]) == alone_b);

    model.reset(&mut sequences[0]);
    assert!(decode(&mut model, &mut sequences[0], b, cut(b)).unwrap() == alone_b, "a reset left something behind");
}

/// A sequence that goes back, to a checkpoint or into a window, goes on as if it had never left.
#[test]
fn residency_goes_back_with_the_sequence() {
    let bed = reference("moe8ple");
    let (ids, prompt) = (&bed.ids[..60], 30);
    let mut model = resident(&bed, Some(MOCE));
    let alone = run(&mut model, ids, Cut { prompt, piece: 30, window: 1 });
    let mut sequence = model.new_sequence().unwrap();
    let mut bits = decode(&mut model, &mut sequence, &ids[..40], Cut { prompt, piece: 30, window: 1 }).unwrap();
    let take = |model: &mut Model, sequence: &mut Sequence, ids: &[u32], is_prompt: bool| {
        let (mut logits, observer) = (Vec::new(), &mut Unobserved);
        match is_prompt {
            true => model.forward(sequence, ids, Rows::All, &mut logits, observer),
            false => model.decode(sequence, ids, Rows::All, &mut logits, observer),
        }
        .unwrap();
        logits.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    // Other tokens, and the same ones routed exactly, from a checkpoint.
    let checkpoint = model.checkpoint(&sequence).unwrap();
    for is_prompt in [false, true] {
        take(&mut model, &mut sequence, &ids[..9], is_prompt);
        model.restore(&mut sequence, &checkpoint).unwrap();
    }
    // Windows of which a part stays.
    let (mut start, mut at) = (checkpoint, 40);
    for kept in [1, 3, 8, 2, 5] {
        model.checkpoint_window(&mut sequence, &mut start, 8).unwrap();
        let mut window = ids[at..at + kept].to_vec();
        window.extend(&ids[..8 - kept]);
        let logits = take(&mut model, &mut sequence, &window, false);
        bits.extend(&logits[..kept * model.vocabulary()]);
        if kept < 8 {
            model.restore_window(&mut sequence, &start, &window[..kept]).unwrap();
        }
        at += kept;
    }
    bits.extend(take(&mut model, &mut sequence, &ids[at..], false));
    assert!(bits == alone);
}
