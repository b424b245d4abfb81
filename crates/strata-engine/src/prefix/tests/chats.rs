//! What clients do with a conversation.

use super::*;

const FEW: PrefixOptions = PrefixOptions { checkpoints: 6, every_tokens: 2048 };

/// A system prompt, and the question that follows.
fn opening(desk: &Desk, number: usize) -> Vec<u32> {
    [desk.turn(0, 100), desk.turn(number, 90)].concat()
}

#[test]
fn field_report_47_a_client_that_changes_the_answer_reads_no_more_than_what_it_changed() {
    let mut desk = Desk::new("longqsa", 2, FEW, |_| ());
    let mut prompt = opening(&desk, 1);
    for turn in 2..8 {
        // Thinking is written, and not sent again; metadata come instead.
        let (thought, answer) = (desk.turn(100 + turn, 70), desk.turn(200 + turn, 20));
        let before = prompt.len();
        let reused = desk.ask_exactly(&prompt, &[thought, answer.clone()].concat());
        assert_eq!(reused, if turn == 2 { 0 } else { before - 20 - 90 }, "turn {turn}");
        prompt = [prompt, answer, desk.turn(turn, 90)].concat();
    }
}

#[test]
fn field_report_48_an_answer_is_written_anew_without_reading() {
    for change in [(|_| ()) as fn(&mut EngineOptions), cached] {
        let mut desk = Desk::new("moe8ple", 2, FEW, change);
        let mut prompt = opening(&desk, 1);
        for turn in 2..5 {
            desk.ask_exactly(&prompt, &desk.turn(100, 30));
            // Twice: what came after was another answer.
            for other in 0..2 {
                assert_eq!(desk.ask_exactly(&prompt, &desk.turn(200 + other, 40)), prompt.len());
            }
            prompt = [prompt, desk.turn(201, 40), desk.turn(turn, 90)].concat();
        }
    }
}

#[test]
fn an_equal_prompt_is_not_read_twice_even_at_the_same_time() {
    let mut desk = Desk::new("longqsa", 3, FEW, |_| ());
    let prompt = opening(&desk, 1);
    let first = desk.read(&prompt);
    // The first is still being written.
    let second = desk.read(&prompt);
    assert_ne!(first.place, second.place);
    assert_eq!((first.reused_tokens, second.reused_tokens), (0, prompt.len()));
    assert!(bits(&first.logits) == bits(&second.logits));
    // Both go on: the same bytes as alone.
    for (place, number) in [(first.place, 5), (second.place, 6)] {
        desk.write(place, &desk.turn(number, 30));
        let next = [&desk.texts[place][..], &desk.turn(9, 40)].concat();
        assert_eq!(desk.ask_exactly(&next, &[]), next.len() - 40);
    }
}

#[test]
fn an_edit_of_the_last_message_reads_that_message() {
    let mut desk = Desk::new("longqsa", 1, FEW, |_| ());
    let mut text = opening(&desk, 1);
    for turn in 2..6 {
        let answer = desk.turn(100 + turn, 150);
        desk.ask_exactly(&text, &answer);
        text = [text, answer].concat();
        for edit in 0..2 {
            let question = desk.turn(turn + 50 * edit, 90);
            let prompt = [&text[..], &question].concat();
            assert_eq!(desk.ask_exactly(&prompt, &desk.turn(7, 150)), text.len(), "turn {turn}, edit {edit}");
        }
        text = [text, desk.turn(turn + 50, 90), desk.turn(7, 150)].concat();
    }
}

#[test]
fn conversations_with_the_same_system_prompt_read_it_once() {
    for change in [(|_| ()) as fn(&mut EngineOptions), cached] {
        let mut desk = Desk::new("moe8ple", 3, FEW, change);
        let prompts: Vec<_> = (1..=3).map(|number| opening(&desk, number)).collect();
        for (number, prompt) in prompts.iter().enumerate() {
            assert_eq!(desk.ask_exactly(prompt, &desk.turn(90, 20)), if number == 0 { 0 } else { 100 });
        }
        // All three are still there.
        for (number, prompt) in prompts.iter().enumerate() {
            let next = [&prompt[..], &desk.turn(90, 20), &desk.turn(80 + number, 30)].concat();
            assert!(desk.ask_exactly(&next, &[]) >= prompt.len(), "conversation {number}");
        }
    }
}

#[test]
fn three_hundred_turns_stay_within_the_budget_and_are_read_once() {
    let options = PrefixOptions { checkpoints: 6, every_tokens: 64 };
    let mut desk = Desk::new("mini4", 1, options, |_| ());
    let mut text = desk.turn(0, 100);
    let mut bytes = 0;
    for turn in 1..=300 {
        let prompt = [&text[..], &desk.turn(turn, 12)].concat();
        let answer = desk.turn(500 + turn, 8);
        let is_first = turn == 1;
        let reused = if turn % 100 == 0 { desk.ask_exactly(&prompt, &answer) } else { desk.ask(&prompt, &answer) };
        assert_eq!(reused, if is_first { 0 } else { text.len() }, "turn {turn}");
        text = [prompt, answer].concat();
        if turn == 10 {
            bytes = desk.prefixes.bytes();
        }
        assert!(turn <= 10 || desk.prefixes.bytes() <= bytes + bytes / 10, "turn {turn}");
    }
    assert_eq!(desk.prefixes.checkpoints(), 6);
    // Dense near the end, sparser before, and the system prompt is there.
    let mut marks: Vec<usize> = desk.prefixes.book.marks.iter().map(|mark| mark.text.len()).collect();
    marks.sort_unstable();
    assert_eq!((marks[0], marks.contains(&(text.len() - 8))), (100, true), "{marks:?}");
    // Who goes back reads about as much as the way back is long, and some turns where that is short.
    for back in [1, 10, 100, 1000, 3000, 5000] {
        let to = text.len() - back;
        let before = marks.iter().rev().find(|mark| **mark <= to).unwrap();
        assert!(to - before <= back + 256, "{back} back: {marks:?}");
    }
}

#[test]
fn a_prompt_that_was_stopped_is_gone_on_with_from_its_last_checkpoint() {
    let mut desk = Desk::new("longqsa", 2, PrefixOptions { checkpoints: 6, every_tokens: 64 }, |_| ());
    let prompt = opening(&desk, 1);
    let (place, _) = desk.begin(&prompt);
    let stops = desk.prefixes.stops(place, &prompt, 0, &[END]);
    let (first, point) = stops[0];
    let model = &mut desk.engine.model;
    model.forward(&mut desk.sequences[place], &prompt[..first], Rows::Last, &mut Vec::new(), &mut Unobserved).unwrap();
    desk.texts[place] = prompt[..first].to_vec();
    desk.keep(place, point, None);
    let (sequence, rest) = (&mut desk.sequences[place], &prompt[first..]);
    let stopped = desk.engine.model.forward(sequence, rest, Rows::Last, &mut Vec::new(), &mut StopAtOnce::default());
    assert!(matches!(stopped, Err(ModelError::Cancelled)));
    desk.prefixes.end(place, &prompt[..first], false);
    desk.check();
    assert_eq!(desk.ask_exactly(&prompt, &[]), first);
}

#[test]
fn field_report_15_checkpoints_survive_until_the_arena_has_no_more_to_give() {
    let mut desk = Desk::new("moe8ple", 2, FEW, |_| ());
    let prompt = opening(&desk, 1);
    let answer = desk.turn(100, 20);
    desk.ask_exactly(&prompt, &answer);
    let (kept, slots) = (desk.prefixes.checkpoints(), desk.engine.plan().slots);
    let slot_bytes = desk.engine.plan().slot_bytes;
    let least = desk.engine.model.streaming().unwrap().least_slots() as u64;
    assert!(kept >= 3 && slots > least + 3);
    // All that the arena can spare, in steps.
    let spare = slots - least;
    for step in 1..=3 {
        desk.engine.relieve(&mut desk.prefixes, (spare / 3) * slot_bytes).unwrap();
        assert_eq!(desk.prefixes.checkpoints(), kept, "step {step}");
    }
    assert!(desk.engine.plan().slots < slots);
    let next = [&prompt[..], &answer, &desk.turn(2, 40)].concat();
    assert_eq!(desk.ask_exactly(&next, &[]), prompt.len() + answer.len());
    assert_eq!(desk.ask_exactly(&prompt, &[]), prompt.len(), "written anew");
    // And when that is gone, one by one, the most useful last.
    let left = desk.engine.plan().slots - least;
    desk.engine.relieve(&mut desk.prefixes, left * slot_bytes).unwrap();
    assert_eq!(desk.engine.plan().slots, least);
    let kept = desk.prefixes.checkpoints();
    assert!(kept > 0);
    desk.engine.relieve(&mut desk.prefixes, 1).unwrap();
    assert_eq!(desk.prefixes.checkpoints(), kept - 1);
    desk.engine.relieve(&mut desk.prefixes, u64::MAX / 2).unwrap();
    assert_eq!((desk.prefixes.checkpoints(), desk.prefixes.bytes()), (0, 0));
    desk.ask_exactly(&prompt, &[]);
}
