//! The detokenizer: put together, its pieces are the lossy reading of all bytes.

use std::path::Path;

use proptest::prelude::*;
use strata_engine::{Detokenizer, Tokenizer};
use strata_gguf::Gguf;

fn mini() -> Tokenizer {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/strata-mini/strata-mini-iq2xs-q4_0.gguf");
    Tokenizer::from_metadata(Gguf::open(&path).unwrap().metadata()).unwrap()
}

/// Bytes that often make characters, whole or broken.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        any::<char>().prop_map(|c| c.to_string().into_bytes()),
        any::<char>().prop_map(|c| c.to_string().into_bytes()[..c.len_utf8().div_ceil(2)].to_vec()),
        proptest::collection::vec(any::<u8>(), 0..4),
        proptest::collection::vec(
            prop_oneof![Just(0xf0), Just(0x9f), Just(0xe2), Just(0x82), Just(0xed), Just(0xa0)],
            0..5
        ),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn pieces_are_the_lossy_whole(bytes in bytes(), sizes in proptest::collection::vec(0..5usize, 1..40)) {
        let mut detokenizer = Detokenizer::new(false);
        let (mut text, mut rest) = (String::new(), bytes.as_slice());
        for &size in sizes.iter().cycle().take(2000) {
            let (piece, after) = rest.split_at(size.min(rest.len()));
            rest = after;
            text.push_str(detokenizer.push_bytes(piece));
            // Nothing complete is held back.
            let given = bytes.len() - rest.len();
            let valid = String::from_utf8_lossy(&bytes[..given]);
            prop_assert!(valid.len() <= text.len() + 3 && valid.starts_with(&text));
        }
        prop_assert!(rest.is_empty() || sizes.iter().all(|&size| size == 0));
        text.push_str(detokenizer.push_bytes(rest));
        text.push_str(detokenizer.finish());
        prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes));
        prop_assert_eq!(detokenizer.finish(), "");
    }
}

#[test]
fn random_tokens_are_decoded_as_a_whole() {
    let mini = mini();
    let mut runner = proptest::test_runner::TestRunner::default();
    runner
        .run(&(proptest::collection::vec(0..17_000u32, 0..40), any::<bool>()), |(ids, skip_special)| {
            let mut detokenizer = Detokenizer::new(skip_special);
            let mut text: String = ids.iter().map(|&id| detokenizer.push(&mini, id).to_owned()).collect();
            text.push_str(detokenizer.finish());
            prop_assert_eq!(text, mini.decode(&ids, skip_special));
            Ok(())
        })
        .unwrap();
}

#[test]
fn characters_come_whole_and_at_once() {
    let mut detokenizer = Detokenizer::new(false);
    let crab = "🦀".as_bytes();
    assert_eq!(detokenizer.push_bytes(b"a"), "a");
    assert_eq!(detokenizer.push_bytes(&crab[..1]), "");
    assert_eq!(detokenizer.push_bytes(&crab[1..3]), "");
    assert_eq!(detokenizer.push_bytes(&[crab[3], b'b', 0xe2, 0x82]), "🦀b");
    // A letter follows: the two bytes before it are no character any more.
    assert_eq!(detokenizer.push_bytes(b"c\xff"), "\u{FFFD}c\u{FFFD}");
    assert_eq!(detokenizer.push_bytes(&[0xc3]), "");
    assert_eq!(detokenizer.finish(), "\u{FFFD}");
    assert_eq!(detokenizer.finish(), "");
    assert_eq!(detokenizer.push_bytes(b"d"), "d");
}

#[test]
fn control_tokens_are_left_out_on_request() {
    let mini = mini();
    let ids = mini.encode("hi<|im_end|>there", true).unwrap();
    let text = |skip_special| {
        let mut detokenizer = Detokenizer::new(skip_special);
        ids.iter().map(|&id| detokenizer.push(&mini, id).to_owned()).collect::<String>()
    };
    assert_eq!(text(true), "hithere");
    assert_eq!(text(false), "hi<|im_end|>there");
}
