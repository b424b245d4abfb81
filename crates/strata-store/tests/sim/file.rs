//! Files of routes: what is written can be read, and nothing else.

use proptest::prelude::*;
use strata_store::Demand;
use strata_store::sim::{Habits, LayerRoutes, Strip, Synthetic, Trace, TraceError};

fn bytes(trace: &Trace) -> Vec<u8> {
    let mut bytes = Vec::new();
    trace.write(&mut bytes).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
    Trace::read(&mut { bytes })
}

fn list(all: &[(u32, u32)]) -> Vec<Demand> {
    all.iter().map(|(expert, tokens)| Demand { expert: *expert, tokens: *tokens }).collect()
}

/// Two layers, 300 experts, one strip of two rows that use two experts each.
fn small() -> Trace {
    let layers = vec![
        LayerRoutes { demand: list(&[(0, 2), (299, 2)]), forecast: list(&[(3, 1), (4, 1), (200, 2)]) },
        LayerRoutes { demand: list(&[(1, 1), (2, 1), (3, 2)]), forecast: Vec::new() },
    ];
    Trace { layers: 2, experts: 300, top_k: 2, strips: vec![Strip { rows: 2, layers }], decode: Vec::new() }
}

#[rustfmt::skip]
const SMALL: &[u8] = &[
    b'S', b'T', b'R', b'A', b'T', b'A', b'R', b'T',
    1, 2, 0xAC, 2, 2, 1, // version, layers, 300 experts, top-k, strips
    2, // rows
    2, 0, 1, 0xAA, 2, 1, // 0 twice; 298 past it, 299 twice
    3, 3, 0, 0, 0, 0xC3, 1, 1,
    3, 1, 0, 0, 0, 0, 1,
    0,
];

#[test]
fn the_format_is_what_it_is() {
    assert_eq!(bytes(&small()), SMALL);
    assert_eq!(read(SMALL).unwrap(), small());
}

/// Passes that came after the text make another version, with their number after that of the strips.
#[test]
fn what_came_after_the_text_follows_it() {
    let layers = vec![
        LayerRoutes { demand: list(&[(7, 1), (8, 1)]), forecast: Vec::new() },
        LayerRoutes { demand: list(&[(0, 1), (2, 1)]), forecast: Vec::new() },
    ];
    let after = Strip { rows: 1, layers };
    let trace = Trace { decode: vec![after.clone(), after], ..small() };
    let after = [1, 2, 7, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0];
    let expected = [&SMALL[..8], &[2], &SMALL[9..14], &[2], &SMALL[14..], &after, &after].concat();
    assert_eq!(bytes(&trace), expected);
    assert_eq!(read(&expected).unwrap(), trace);
    assert!(read(&expected[..expected.len() - 13]).is_err());
    assert_eq!(trace.tokens(), 2, "tokens of the text");
    let counts = trace.usage().counts().to_vec();
    let used: Vec<_> = counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(at, c)| (at, *c)).collect();
    assert_eq!(used, [(0, 2), (7, 2), (8, 2), (299, 2), (300, 2), (301, 1), (302, 3), (303, 2)]);
}

#[test]
fn broken_files_are_refused_with_the_place() {
    let change = |at: usize, with: &[u8]| [&SMALL[..at], with, &SMALL[at + 1..]].concat();
    for (file, message) in [
        (b"".to_vec(), "no route trace of version 1"),
        (b"GGUF".to_vec(), "no route trace of version 1"),
        (change(0, b"T"), "no route trace of version 1"),
        (change(8, &[3]), "no route trace of version 1 or 2"),
        // The rows, 2, are the number of passes after the text then.
        (change(8, &[2]), "at offset 21, 2 rows make 2 choices instead of 4"),
        ([&SMALL[..8], &[2], &SMALL[9..14], &[0], &SMALL[14..]].concat(), "passes after the text is 0"),
        (SMALL[..SMALL.len() - 1].to_vec(), "at offset 36, the file ends too early"),
        (SMALL[..12].to_vec(), "at offset 12, the file ends too early"),
        ([SMALL, &[0]].concat(), "the trace has ended, but the file has not"),
        (change(9, &[0]), "at offset 9, the number of layers is 0"),
        (change(9, &[0x81, 0x20]), "the number of layers is 4097"),
        (change(12, &[0xAD, 2]), "at offset 12, top-k is 301"),
        (change(13, &[0]), "the number of strips is 0"),
        (change(14, &[0]), "the number of rows is 0"),
        (change(14, &[3]), "3 rows make 4 choices instead of 6"),
        (change(15, &[0xAD, 2]), "the length of a list is 301"),
        (change(15, &[0]), "rows are routed to no expert"),
        (change(17, &[0]), "2 rows make 3 choices instead of 4"),
        (change(17, &[2]), "the number of tokens, less one, is 2, which is not in 0..=1"),
        (change(18, &[0xAB]), "the distance to an expert is 299, which is not in 0..=298"),
        (change(16, &[0x80, 0]), "at offset 16, the distance to an expert takes too many bytes"),
        (change(13, &[0x80, 0x80, 0x80, 0x80, 0x80, 1]), "the number of strips takes too many bytes"),
        (change(13, &[0xFF, 0xFF, 0xFF, 0xFF, 0x1F]), "the number of strips is 8589934591"),
        // All but the magic promise more than there is.
        (change(13, &[0xFF, 0xFF, 0xFF, 0xFF, 0x0F]), "the file ends too early"),
    ] {
        let error = read(&file).unwrap_err().to_string();
        assert!(error.contains(message), "{error}, expected {message}");
    }
    let after_the_last = [&SMALL[..SMALL.len() - 1], &[1, 0, 1]].concat();
    let error = read(&after_the_last).unwrap_err().to_string();
    assert!(error.contains("instead of 4"), "{error}");
    let after_the_last = [&SMALL[..SMALL.len() - 1], &[2, 0, 1, 0, 1]].concat();
    let error = read(&after_the_last).unwrap_err().to_string();
    assert!(error.contains("no layer to forecast after the last"), "{error}");
}

#[test]
fn what_could_not_be_read_is_not_written() {
    let mut unsorted = small();
    unsorted.strips[0].layers[0].demand.reverse();
    let mut too_few = small();
    too_few.strips[0].rows = 3;
    let mut no_tokens = small();
    no_tokens.strips[0].layers[1].demand[0].tokens = 0;
    let empty = Trace { strips: Vec::new(), ..small() };
    for trace in [unsorted, too_few, no_tokens, empty] {
        let mut bytes = Vec::new();
        assert!(trace.write(&mut bytes).is_err() && bytes.is_empty(), "{trace:?}");
    }
}

fn traces() -> impl Strategy<Value = Trace> {
    (1..6_u32, 1..40_u32, 1..6_u32, 1..60_u32, 1..30_u32, any::<u64>()).prop_map(
        |(layers, experts, top_k, tokens, strip_rows, seed)| {
            let habits = Habits { foreseen: 0.6, ranked: 0.5 };
            let mut trace = Synthetic { layers, experts, top_k, tokens, strip_rows, habits, seed }.routes().0;
            trace.decode = trace.strips.split_off(trace.strips.len().min(1 + seed as usize % 4));
            trace
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_can_be_read(trace in traces()) {
        prop_assert_eq!(read(&bytes(&trace)).unwrap(), trace);
    }

    /// A file that can be read is the only one of its trace.
    #[test]
    fn changed_files_are_refused_or_mean_something_else(
        trace in traces(), changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let whole = bytes(&trace);
        prop_assert!(read(&whole[..cut.index(whole.len())]).is_err());
        let mut changed = whole.clone();
        for (at, byte) in changes {
            let at = at.index(changed.len());
            changed[at] = byte;
        }
        if let Ok(other) = read(&changed) {
            prop_assert_eq!(bytes(&other), changed);
        }
    }

    #[test]
    fn any_bytes_are_refused(rest in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&[b"STRATART\x01", rest.as_slice()].concat());
    }
}
