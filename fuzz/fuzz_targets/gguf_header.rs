//! Any bytes, read as the header of a GGUF file: never a panic, never an allocation that the bytes do not justify, and a
//! header that is accepted keeps its promises.
//!
//! From the root of the project, starting with the broken files that the tests keep:
//! `cargo +nightly fuzz run gguf_header fuzz/corpus/gguf_header crates/strata-gguf/tests/data/hostile`

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use strata_gguf::parse;

fuzz_target!(|data: &[u8]| {
    let len_bytes = data.len() as u64;
    match parse(data, len_bytes, Path::new("fuzz.gguf")) {
        Ok(header) => {
            let mut ranges: Vec<_> = header.tensors.iter().map(|t| (t.offset, t.offset + t.len_bytes)).collect();
            ranges.sort_unstable();
            assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "tensors overlap: {ranges:?}");
            assert!(ranges.last().is_none_or(|last| last.1 <= len_bytes), "tensors outside of the file: {ranges:?}");
            for tensor in &header.tensors {
                assert_eq!(tensor.rows() * tensor.row_bytes(), tensor.len_bytes, "{tensor:?}");
            }
            for (key, value) in header.metadata.iter() {
                assert_eq!(header.metadata.get(key).map(ToString::to_string), Some(value.to_string()));
            }
        }
        // Making the text is part of refusing a file.
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
