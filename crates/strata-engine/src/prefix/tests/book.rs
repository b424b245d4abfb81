//! Choices, by properties.

use proptest::prelude::*;

use super::super::book::{Book, How};
use super::super::stops::stops;
use super::*;

/// What happens to a book.
#[derive(Clone, Debug)]
enum Step {
    /// A prompt comes: of a text of some length, which is the same as other texts up to a place.
    Begin { text: usize, tokens: usize },
    /// A busy place will make marks.
    Expect { busy: usize, wanted: usize },
    /// A busy place keeps its text up to a part of it.
    Keep { busy: usize, part: f64, point: Point },
    /// A busy place ends, after some tokens of its own, or within its prompt.
    End { busy: usize, written: usize, is_whole: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let point = prop_oneof![Just(Point::Root), Just(Point::Within), Just(Point::Prompt)];
    let begin = (0usize..6, 1usize..60).prop_map(|(text, tokens)| Step::Begin { text, tokens });
    let keep = (0usize..4, 0.0..1.0, point).prop_map(|(busy, part, point)| Step::Keep { busy, part, point });
    let expect = (0usize..4, 0usize..5).prop_map(|(busy, wanted)| Step::Expect { busy, wanted });
    let end = (0usize..4, 0usize..9, any::<bool>());
    let end = end.prop_map(|(busy, written, is_whole)| Step::End { busy, written, is_whole });
    prop::collection::vec(prop_oneof![2 => begin, 1 => expect, 3 => keep, 2 => end], 1..80)
}

/// Texts that branch: text `n` is that of `n / 2` for the first 10, 20, 30 tokens.
fn text(number: usize, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|at| (at + 1000 * (number >> (2 - (at / 10).min(2)))) as u32).collect()
}

/// Of a mark: its text, the places that have it, and whether its logits are known.
type Known = (Vec<u32>, Vec<usize>, bool);

fn marks(book: &Book) -> Vec<Known> {
    book.marks.iter().map(|mark| (mark.text.clone(), mark.holders.clone(), mark.has_logits)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn books_agree_with_what_happened(steps in steps(), places in 1usize..5, budget in 0usize..7) {
        let mut book = Book::new(places, budget);
        // Of each place, what its caches have; and which are busy.
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); places];
        let mut whole = vec![true; places];
        let mut busy: Vec<usize> = Vec::new();
        for step in steps {
            match step {
                Step::Begin { text: number, tokens } => {
                    let prompt = text(number, tokens);
                    let start = book.choose(&prompt, None);
                    prop_assert_eq!(start.is_none(), busy.len() == places);
                    let Some(start) = start else { continue };
                    prop_assert!(!busy.contains(&start.place) && start.reused_tokens <= prompt.len());
                    let mark = |id: u64| book.marks.iter().find(|mark| mark.id == id).unwrap().clone();
                    match start.how {
                        How::Load { .. } => prop_assert!(false, "there are no files"),
                        How::Cold => prop_assert_eq!(start.reused_tokens, 0),
                        How::GoOn => {
                            prop_assert!(whole[start.place] && rows[start.place].len() < prompt.len());
                            prop_assert_eq!(&rows[start.place], &prompt[..start.reused_tokens]);
                        }
                        How::Return { mark: id } | How::Fork { mark: id, .. } => {
                            let mark = mark(id);
                            let holder = start.source().unwrap_or(start.place);
                            prop_assert!(mark.holders.contains(&holder) && rows[holder].starts_with(&mark.text));
                            prop_assert_eq!(&mark.text, &prompt[..start.reused_tokens]);
                            prop_assert!(mark.has_logits || mark.text.len() < prompt.len());
                        }
                    }
                    // With a place that nobody misses, nothing is read that somebody has.
                    if (0..places).any(|at| !busy.contains(&at) && rows[at].is_empty()) {
                        let usable = |mark: &&Known| {
                            prompt.starts_with(&mark.0) && (mark.2 || mark.0.len() < prompt.len())
                        };
                        let most = marks(&book).iter().filter(usable).map(|mark| mark.0.len()).max().unwrap_or(0);
                        prop_assert!(start.reused_tokens >= most);
                    }
                    book.begin(&start, &prompt);
                    rows[start.place] = prompt.clone();
                    busy.push(start.place);
                }
                Step::Keep { busy: which, part, point } if !busy.is_empty() => {
                    let place = busy[which % busy.len()];
                    let taken = 1 + (part * (rows[place].len() - 1) as f64) as usize;
                    let is_end = taken == rows[place].len();
                    let added = book.add(place, &rows[place][..taken], point, is_end);
                    prop_assert!(added.id.is_none_or(|id| !added.dropped.contains(&id)));
                    if point == Point::Prompt && is_end && budget > book.coming() {
                        prop_assert!(added.id.is_some(), "the end of the prompt at hand is kept");
                    }
                }
                Step::Expect { busy: which, wanted } if !busy.is_empty() => {
                    let place = busy[which % busy.len()];
                    let others = book.coming() - book.coming_of(place);
                    let (room, _) = book.expect(place, wanted);
                    prop_assert!(room <= wanted && (room > 0 || wanted == 0 || others >= budget));
                }
                Step::End { busy: which, written, is_whole } if !busy.is_empty() => {
                    let place = busy.remove(which % busy.len());
                    let taken = if is_whole { rows[place].len() } else { rows[place].len() / 2 };
                    rows[place].truncate(taken);
                    rows[place].extend((0..written as u32).map(|i| 90_000 + i));
                    whole[place] = is_whole;
                    book.end(place, &rows[place], is_whole);
                }
                _ => {}
            }
            prop_assert!(book.marks.len() + book.coming() <= budget);
            for (text, holders, _) in marks(&book) {
                prop_assert!(!holders.is_empty());
                prop_assert!(holders.iter().all(|place| rows[*place].starts_with(&text)));
                let mut once = holders.clone();
                once.sort_unstable();
                once.dedup();
                prop_assert_eq!(once.len(), holders.len());
            }
        }
    }

    #[test]
    fn stops_ascend_to_the_end(
        prompt in prop::collection::vec(prop_oneof![1 => Just(END), 60 => Just(7u32)], 1..3000),
        from in 0.0..1.0,
        every_tokens in 1usize..3000,
        most in 1usize..20,
    ) {
        let from = (from * prompt.len() as f64) as usize;
        let stops = stops(&prompt, from, &[END], every_tokens, most);
        prop_assert_eq!(stops.last(), Some(&(prompt.len(), Point::Prompt)));
        prop_assert!(stops[0].0 > from && stops.is_sorted_by(|a, b| a.0 < b.0));
        // Apart from each other, few, and each for a reason.
        let others: Vec<_> = stops.iter().filter(|stop| stop.1 != Point::Root).collect();
        prop_assert!(others.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 64));
        prop_assert!(stops.len() <= most.min(16));
        let every_tokens = every_tokens.max(64);
        for (at, point) in stops {
            let back = (prompt.len() - at) / every_tokens;
            let is_step = (prompt.len() - at).is_multiple_of(every_tokens) && back.is_power_of_two();
            let is_turn = prompt[at - 1] == END;
            prop_assert!(point == Point::Prompt || is_turn || is_step);
            let is_first = is_turn && !prompt[..at - 1].contains(&END);
            prop_assert!(point != Point::Root || is_first);
        }
    }
}

/// The first conversation's root serves others; a long conversation that comes alone must not cost it.
#[test]
fn a_popular_root_is_not_given_up_while_anything_else_can_be() {
    let mut book = Book::new(2, 6);
    let root: Vec<u32> = (0..500).collect();
    let mut ask = |prompt: &[u32]| {
        let start = book.choose(prompt, None).unwrap();
        book.begin(&start, prompt);
        if prompt.starts_with(&root) {
            book.add(start.place, &root, Point::Root, false);
        }
        book.add(start.place, prompt, Point::Prompt, true);
        book.end(start.place, prompt, true);
        start.reused_tokens
    };
    let with_root = |number: u32| [&root[..], &[10_000 + number; 50]].concat();
    let reused: Vec<usize> = (0..4).map(|number| ask(&with_root(number))).collect();
    assert_eq!(reused, [0, 500, 500, 500]);
    // Others, longer and longer, which have nothing in common.
    for number in 0..20u32 {
        ask(&vec![20_000 + number; 1000 * (number as usize + 1)]);
        assert_eq!(ask(&with_root(100 + number)), 500, "after {number} others");
    }
}
