//! Any bytes, read as the header of a GGUF file: never a panic, never an allocation that the bytes do not justify, a
//! header that is accepted keeps its promises, and writing it again says the same.
//!
//! From the root of the project, starting with the broken files that the tests keep:
//! `cargo +nightly fuzz run gguf_header fuzz/corpus/gguf_header crates/strata-gguf/tests/data/hostile`

#![no_main]

use std::collections::HashSet;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use strata_gguf::{GgufWriter, Header, NewTensor, parse};

fuzz_target!(|data: &[u8]| {
    match read(data) {
        Ok(header) => {
            check_tensors(&header, data.len() as u64);
            check_writing(&header);
        }
        // Making the text is part of refusing a file.
        Err(text) => assert!(text.starts_with("fuzz.gguf: "), "{text}"),
    }
});

fn read(data: &[u8]) -> Result<Header, String> {
    parse(data, data.len() as u64, Path::new("fuzz.gguf")).map_err(|error| error.to_string())
}

fn check_tensors(header: &Header, len_bytes: u64) {
    let mut ranges: Vec<_> = header.tensors.iter().map(|t| (t.offset, t.offset + t.len_bytes)).collect();
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "tensors overlap: {ranges:?}");
    assert!(ranges.last().is_none_or(|last| last.1 <= len_bytes), "tensors outside of the file: {ranges:?}");
    for tensor in &header.tensors {
        assert_eq!(tensor.rows() * tensor.row_bytes(), tensor.len_bytes, "{tensor:?}");
    }
}

/// Bytes are compared, since metadata with a NaN do not equal themselves.
fn check_writing(header: &Header) {
    let names: HashSet<_> = header.tensors.iter().map(|tensor| &tensor.name).collect();
    // A large alignment is sound, and would fill the memory with padding.
    let alignment = header.metadata.u32("general.alignment").unwrap_or(32);
    if names.len() < header.tensors.len() || alignment > 4096 {
        return;
    }
    let once = written(header);
    let again = read(&once).expect("what is written can be read");
    assert_eq!(again.tensors.len(), header.tensors.len());
    for (a, b) in again.tensors.iter().zip(&header.tensors) {
        assert_eq!((&a.name, &a.dims, a.ty, a.len_bytes), (&b.name, &b.dims, b.ty, b.len_bytes));
    }
    assert!(once == written(&again), "written twice, the file differs");
}

fn written(header: &Header) -> Vec<u8> {
    let declare = |t: &strata_gguf::Tensor| NewTensor { name: t.name.clone(), dims: t.dims.clone(), ty: t.ty };
    let tensors: Vec<_> = header.tensors.iter().map(declare).collect();
    let mut writer = GgufWriter::new(Vec::new(), Path::new("fuzz.gguf"), &header.metadata, &tensors)
        .expect("what was read can be written");
    for tensor in &header.tensors {
        writer.write(&vec![0; tensor.len_bytes as usize]).expect("memory takes all data");
    }
    writer.finish().expect("all data were given")
}
