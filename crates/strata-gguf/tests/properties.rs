//! Whatever the input: what is written is read back, and no bytes bring the reader down.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::sound;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use strata_gguf::{Array, GgufWriter, Header, Metadata, NewTensor, TensorType, Value, parse};

fn arrays() -> impl Strategy<Value = Array> {
    prop_oneof![
        vec(any::<u8>(), 0..20).prop_map(Array::U8),
        vec(any::<i8>(), 0..20).prop_map(Array::I8),
        vec(any::<u16>(), 0..20).prop_map(Array::U16),
        vec(any::<i16>(), 0..20).prop_map(Array::I16),
        vec(any::<u32>(), 0..20).prop_map(Array::U32),
        vec(any::<i32>(), 0..20).prop_map(Array::I32),
        vec(any::<u64>(), 0..20).prop_map(Array::U64),
        vec(any::<i64>(), 0..20).prop_map(Array::I64),
        vec(any::<f32>(), 0..20).prop_map(Array::F32),
        vec(any::<f64>(), 0..20).prop_map(Array::F64),
        vec(any::<bool>(), 0..20).prop_map(Array::Bool),
        vec(any::<String>(), 0..20).prop_map(Array::String),
    ]
}

fn values() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f32>().prop_map(Value::F32),
        any::<f64>().prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        any::<String>().prop_map(Value::String),
        arrays().prop_map(Value::Array),
    ]
}

fn metadata() -> impl Strategy<Value = Metadata> {
    (btree_map(any::<String>(), values(), 0..8), proptest::option::of(0u32..12)).prop_map(|(pairs, alignment_log)| {
        let mut metadata = Metadata::new();
        let alignment = alignment_log.map(|log| ("general.alignment".to_owned(), Value::U32(1 << log)));
        for (key, value) in pairs.into_iter().chain(alignment) {
            metadata.insert(key, value).unwrap();
        }
        metadata
    })
}

fn tensors() -> impl Strategy<Value = Vec<NewTensor>> {
    let shape = (proptest::sample::select(TensorType::ALL), 1..4u64, vec(1..5u64, 0..4));
    btree_map(any::<String>(), shape, 0..8).prop_map(|named: BTreeMap<_, _>| {
        let tensor = |(name, (ty, blocks, more)): (String, (TensorType, u64, Vec<u64>))| {
            let row_weights = blocks * ty.block_weights() as u64;
            NewTensor { name, dims: [vec![row_weights], more].concat(), ty }
        };
        named.into_iter().map(tensor).collect()
    })
}

fn data_bytes(tensor: &NewTensor) -> usize {
    let weights: u64 = tensor.dims.iter().product();
    weights as usize / tensor.ty.block_weights() * tensor.ty.block_bytes()
}

/// Writes a file whose tensors each hold one repeated byte: 1, 2, 3 and so on.
fn written(metadata: &Metadata, tensors: &[NewTensor]) -> Vec<u8> {
    let mut writer = GgufWriter::new(Vec::new(), Path::new("x.gguf"), metadata, tensors).unwrap();
    for (fill, tensor) in (1..).zip(tensors) {
        writer.write(&vec![fill; data_bytes(tensor)]).unwrap();
    }
    writer.finish().unwrap()
}

fn parsed(bytes: &[u8]) -> Result<Header, String> {
    parse(bytes, bytes.len() as u64, Path::new("x.gguf")).map_err(|error| error.to_string())
}

/// What must hold for a file, however strange, that is accepted.
fn check(result: Result<Header, String>, len_bytes: usize) -> Result<(), TestCaseError> {
    match result {
        Err(said) => prop_assert!(said.starts_with("x.gguf: ") && said.len() > 20, "{}", said),
        Ok(header) => {
            let mut ranges: Vec<_> = header.tensors.iter().map(|t| (t.offset, t.offset + t.len_bytes)).collect();
            ranges.sort_unstable();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "overlap: {:?}", ranges);
            prop_assert!(ranges.iter().all(|range| range.1 <= len_bytes as u64), "out of file: {:?}", ranges);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(metadata in metadata(), tensors in tensors()) {
        let bytes = written(&metadata, &tensors);
        let header = parsed(&bytes).unwrap();
        prop_assert_eq!(&header.metadata, &metadata);
        prop_assert_eq!(header.tensors.len(), tensors.len());
        let alignment = metadata.u64("general.alignment").unwrap_or(32);
        for (fill, (read, new)) in (1..).zip(header.tensors.iter().zip(&tensors)) {
            prop_assert_eq!((&read.name, &read.dims, read.ty), (&new.name, &new.dims, new.ty));
            prop_assert_eq!(read.len_bytes as usize, data_bytes(new));
            prop_assert_eq!(read.offset % alignment, 0);
            let data = &bytes[read.offset as usize..][..read.len_bytes as usize];
            prop_assert!(data.iter().all(|&byte| byte == fill));
        }
    }

    #[test]
    fn any_bytes_are_survived(bytes in vec(any::<u8>(), 0..200)) {
        check(parsed(&bytes), bytes.len())?;
    }

    #[test]
    fn any_bytes_after_a_sound_start_are_survived(counts in (0..4u8, 0..4u8), bytes in vec(0..12u8, 0..300)) {
        let counts = [[counts.0, 0, 0, 0, 0, 0, 0, 0], [counts.1, 0, 0, 0, 0, 0, 0, 0]].concat();
        let bytes = [b"GGUF\x03\0\0\0".to_vec(), counts, bytes].concat();
        check(parsed(&bytes), bytes.len())?;
    }

    #[test]
    fn a_sound_file_with_changed_bytes_is_survived(
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = sound().bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        check(parsed(&bytes), bytes.len())?;
    }

    #[test]
    fn a_written_file_with_a_number_replaced_is_survived(
        metadata in metadata(),
        tensors in tensors(),
        at in any::<prop::sample::Index>(),
        number in prop_oneof![Just(0), Just(u64::MAX), Just(1 << 63), Just(1 << 60), any::<u64>()],
    ) {
        let mut bytes = written(&metadata, &tensors);
        let at = at.index(bytes.len() - 8);
        bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        check(parsed(&bytes), bytes.len())?;
    }
}
