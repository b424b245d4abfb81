//! An arena that becomes smaller while a model is in use. The only test of its process: it looks at all of its memory.
#![cfg(target_os = "linux")]

mod common;

use common::{Recorded, fast_model_on, strata_mini};
use strata_backend::Isa;
use strata_model::ModelError;
use strata_model::qwen4exp::{Model, Options, Rows, Streaming, Unobserved};
use strata_store::StoreError;
use strata_store::reads::ReaderKind;

/// Bytes of this process by the system's count: `VmRSS` in memory, `VmPin` of them kept there by registration.
fn status_bytes(key: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

fn rss_bytes() -> usize {
    status_bytes("VmRSS")
}

const EXPERTS: usize = 12 * 96;
/// Three parts of 4,736, 4,736 and 9,216 bytes, each in whole pages with one more.
const SLOT_BYTES: usize = (3 + 3 + 4) * 4096;
/// What allocators may keep.
const SLACK_BYTES: usize = 2 << 20;

/// The bytes of logits after a prompt of 200 tokens and after each of those that follow one by one.
fn run(model: &mut Model, ids: &[u32], each: &mut dyn FnMut(&mut Model)) -> Vec<u32> {
    let mut sequence = model.new_sequence().unwrap();
    let mut all = Vec::with_capacity(ids.len());
    let mut logits = Vec::with_capacity(model.vocabulary());
    let (prompt, single) = ids.split_at(200);
    for piece in std::iter::once(prompt).chain(single.chunks(1)) {
        logits.clear();
        model.forward(&mut sequence, piece, Rows::Last, &mut logits, &mut Unobserved).unwrap();
        // A sum that changes with any bit.
        all.push(logits.iter().fold(0u32, |sum, value| sum.wrapping_mul(0x0100_0193) ^ value.to_bits()));
        each(model);
    }
    model.free(sequence);
    all
}

#[test]
fn field_report_01_memory_that_was_given_back_stays_away() {
    check(ReaderKind::Threads, 60);
    check(ReaderKind::Auto, 1000);
}

/// Shrinks an arena twice, and writes so many tokens with what is left.
fn check(reader: ReaderKind, tokens: usize) {
    let recorded = Recorded::open(&strata_mini("reference.safetensors"));
    let ids: Vec<u32> =
        [recorded.u32("prompt2.token_ids"), recorded.u32("prompt0.token_ids")].concat()[..200 + tokens].to_vec();
    let options = Options {
        context_tokens: Some(1200),
        streaming: Streaming { reader, small_table_bytes: Some(0), ..Streaming::default() },
        ..Options::default()
    };
    let mut model = fast_model_on(&strata_mini("strata-mini-iq2xs-q4_0.gguf"), Isa::best(), 2, options);
    let mut empty_bytes = rss_bytes();
    model.load_experts(&mut |_, _| true).unwrap();
    let full_bytes = rss_bytes();
    let store = model.streaming().unwrap();
    assert_eq!((store.resident(), store.slots(), store.holds_all()), (EXPERTS, EXPERTS, true));
    if status_bytes("VmPin") > 0 {
        // What is registered is all in memory from the start.
        empty_bytes -= EXPERTS * SLOT_BYTES;
    }
    assert!(full_bytes > empty_bytes + EXPERTS * 5 * 4096, "{empty_bytes} {full_bytes}");
    let expected = run(&mut model, &ids, &mut |_| {});
    // What passes and caches take comes on top of the arena.
    let beside_bytes = empty_bytes + rss_bytes().saturating_sub(full_bytes);

    // Below what two tokens and the reads under way need, nothing changes.
    let error = model.shrink(100).unwrap_err();
    assert!(matches!(error, ModelError::Store(StoreError::ArenaTooSmall(_))), "{error}");
    model.shrink(EXPERTS + 1).unwrap();
    assert_eq!(model.streaming().unwrap().resident(), EXPERTS);

    for (slots, tokens) in [(900, 30), (600, tokens)] {
        let ids = &ids[..200 + tokens];
        let expected = &expected[..1 + tokens];
        model.shrink(slots).unwrap();
        let most_bytes = beside_bytes + slots * SLOT_BYTES + SLACK_BYTES;
        let mut check = |model: &mut Model| {
            let store = model.streaming().unwrap();
            assert!(store.resident() <= slots && store.slots() == slots && !store.holds_all());
            assert!(rss_bytes() <= most_bytes, "{} with {slots} slots, {most_bytes} at most", rss_bytes());
        };
        check(&mut model);
        assert_eq!(status_bytes("VmPin"), 0);
        assert!(run(&mut model, ids, &mut check) == expected, "the text changed with {slots} slots");
        // Anew, in what is left.
        model.streaming().unwrap().start_over().unwrap();
        model.load_experts(&mut |_, _| true).unwrap();
        check(&mut model);
        assert!(run(&mut model, &ids[..210], &mut check) == expected[..11], "the text changed with {slots} slots");
        assert!(model.streaming().unwrap().counts().evictions > 0);
    }
}
