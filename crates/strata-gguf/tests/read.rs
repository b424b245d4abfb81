//! Sound files: what is read from them is what was put in by hand.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;

use common::{Handmade, array, handmade, member, sound, string};
use strata_gguf::{Array, Gguf, Tensor, TensorType, Value};
use tempfile::tempdir;

fn open(file: &Handmade) -> Gguf {
    let folder = tempdir().unwrap();
    Gguf::open(&file.save(folder.path(), "model.gguf")).unwrap()
}

#[test]
fn a_small_file_is_read_as_written() {
    let model = open(&sound());
    assert_eq!(model.metadata().str("general.architecture"), Ok("tiny"));
    assert_eq!(model.metadata().u32("tiny.layers"), Ok(2));
    assert_eq!(model.metadata().str_array("tiny.words").unwrap(), ["a", "", "é"]);
    assert_eq!(model.metadata().f32_array("tiny.scales").unwrap(), [1.5, -2.0]);
    assert_eq!(model.metadata().bool("tiny.on"), Ok(true));
    let keys: Vec<_> = model.metadata().iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["general.architecture", "tiny.layers", "tiny.words", "tiny.scales", "tiny.on"]);

    let data_start = sound().bytes().len() as u64 - 66;
    let a = Tensor {
        name: "a.weight".into(),
        dims: vec![3, 2],
        ty: TensorType::F32,
        file: 0,
        offset: data_start,
        len_bytes: 24,
    };
    let b = Tensor {
        name: "b.weight".into(),
        dims: vec![32, 1, 1, 1],
        ty: TensorType::Q8_0,
        file: 0,
        offset: data_start + 32,
        len_bytes: 34,
    };
    assert_eq!(model.tensors().collect::<Vec<_>>(), [&a, &b]);
    assert_eq!((a.weights(), a.rows(), a.row_bytes()), (6, 2, 12));
    assert_eq!((b.weights(), b.rows(), b.row_bytes()), (32, 1, 34));
    assert_eq!(model.tensor("b.weight"), Some(&b));
    assert_eq!(model.tensor("c.weight"), None);
    assert_eq!(model.read(&a).unwrap(), (0..24).collect::<Vec<u8>>());
    assert_eq!(model.read(&b).unwrap(), (32..66).collect::<Vec<u8>>());
    let mut middle = [0; 3];
    model.read_range(0, data_start + 5, &mut middle).unwrap();
    assert_eq!(middle, [5, 6, 7]);
    assert_eq!(model.files().len(), 1);
    assert_eq!(model.files()[0].len_bytes, sound().bytes().len() as u64);
}

#[test]
fn every_type_of_value_is_read() {
    let pairs: [(u32, Vec<u8>, Value); 13] = [
        (0, vec![200], Value::U8(200)),
        (1, vec![0xfe], Value::I8(-2)),
        (2, vec![1, 2], Value::U16(513)),
        (3, vec![0xff, 0xff], Value::I16(-1)),
        (4, vec![1, 0, 0, 0x80], Value::U32(0x8000_0001)),
        (5, vec![0, 0, 0, 0x80], Value::I32(i32::MIN)),
        (6, vec![0, 0, 0xc0, 0x3f], Value::F32(1.5)),
        (7, vec![1], Value::Bool(true)),
        (8, b"\x02\0\0\0\0\0\0\0hi".to_vec(), Value::String("hi".into())),
        (9, b"\x02\0\0\0\x02\0\0\0\0\0\0\0\x01\0\x02\0".to_vec(), Value::Array(Array::U16(vec![1, 2]))),
        (10, vec![1, 0, 0, 0, 0, 0, 0, 0x80], Value::U64(0x8000_0000_0000_0001)),
        (11, vec![0xff; 8], Value::I64(-1)),
        (12, vec![0, 0, 0, 0, 0, 0, 4, 0xc0], Value::F64(-2.5)),
    ];
    let file = pairs.iter().fold(handmade(), |file, (id, bytes, _)| file.pair(format!("k{id}"), *id, bytes));
    let model = open(&file);
    assert_eq!(model.metadata().len(), 13);
    for (id, _, expected) in &pairs {
        assert_eq!(model.metadata().get(&format!("k{id}")), Some(expected), "type id {id}");
    }
}

#[test]
fn arrays_of_every_type_are_read() {
    let arrays: [(u32, Vec<u8>, u64, Array); 13] = [
        (0, vec![1, 255], 2, Array::U8(vec![1, 255])),
        (1, vec![1, 255], 2, Array::I8(vec![1, -1])),
        (2, vec![1, 0, 255, 255], 2, Array::U16(vec![1, 65535])),
        (3, vec![1, 0, 255, 255], 2, Array::I16(vec![1, -1])),
        (4, vec![1, 0, 0, 0], 1, Array::U32(vec![1])),
        (5, vec![255; 4], 1, Array::I32(vec![-1])),
        (6, vec![0, 0, 0x80, 0xbf], 1, Array::F32(vec![-1.0])),
        (7, vec![0, 1, 1], 3, Array::Bool(vec![false, true, true])),
        (8, b"\x01\0\0\0\0\0\0\0x\0\0\0\0\0\0\0\0".to_vec(), 2, Array::String(vec!["x".into(), String::new()])),
        (10, vec![255; 8], 1, Array::U64(vec![u64::MAX])),
        (11, vec![254, 255, 255, 255, 255, 255, 255, 255], 1, Array::I64(vec![-2])),
        (12, vec![0, 0, 0, 0, 0, 0, 0xf0, 0x3f], 1, Array::F64(vec![1.0])),
        (5, vec![], 0, Array::I32(vec![])),
    ];
    let numbered = arrays.iter().enumerate();
    let file = numbered
        .fold(handmade(), |file, (i, (id, items, count, _))| file.pair(format!("k{i}"), 9, array(*id, *count, items)));
    let model = open(&file);
    for (i, (id, _, _, expected)) in arrays.iter().enumerate() {
        assert_eq!(model.metadata().get(&format!("k{i}")), Some(&Value::Array(expected.clone())), "type id {id}");
    }
}

#[test]
fn the_alignment_key_moves_the_data() {
    let mut file = handmade()
        .pair("general.alignment", 4, 128u32.to_le_bytes())
        .tensor("t", &[4], 0, 128)
        .data([vec![0xff; 128], vec![7; 16]].concat());
    file.alignment = 128;
    let model = open(&file);
    let tensor = model.tensor("t").unwrap();
    assert_eq!(tensor.offset, file.header_bytes().len() as u64 / 128 * 128 + 256);
    assert_eq!(model.read(tensor).unwrap(), [7; 16]);
}

#[test]
fn tensors_may_lie_in_any_order_with_gaps_between() {
    let data: Vec<u8> = (0..=255).collect();
    let file = handmade().tensor("last", &[2], 0, 192).tensor("first", &[2], 0, 64).data(data);
    let model = open(&file);
    assert_eq!(model.read(model.tensor("last").unwrap()).unwrap(), (192..200).collect::<Vec<u8>>());
    assert_eq!(model.read(model.tensor("first").unwrap()).unwrap(), (64..72).collect::<Vec<u8>>());
    assert_eq!(model.tensors().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>(), ["last", "first"]);
}

#[test]
fn a_set_is_one_model_whichever_file_is_given() {
    let folder = tempdir().unwrap();
    // The first file has a tensor, the second none, and the third more keys: no file has a part of its own.
    let first = member(1, 3, 3).pair("general.architecture", 8, string("tiny")).tensor("a", &[2], 0, 0);
    let third = handmade()
        // Other tools use other widths.
        .pair("split.no", 4, 2u32.to_le_bytes())
        .pair("split.count", 11, 3i64.to_le_bytes())
        .pair("general.architecture", 8, string("tiny"))
        .pair("tiny.layers", 4, 2u32.to_le_bytes())
        .tensor("c", &[1], 0, 0)
        .tensor("b", &[2], 0, 32);
    first.data([1; 8]).save(folder.path(), "m-00001-of-00003.gguf");
    member(2, 3, 3).save(folder.path(), "m-00002-of-00003.gguf");
    third.data([[2u8; 32], [3; 32]].concat()).save(folder.path(), "m-00003-of-00003.gguf");

    for number in 1..=3 {
        let model = Gguf::open(&folder.path().join(format!("m-0000{number}-of-00003.gguf"))).unwrap();
        let tensors: Vec<_> = model.tensors().map(|t| (t.name.as_str(), t.file)).collect();
        assert_eq!(tensors, [("a", 0), ("c", 2), ("b", 2)]);
        assert_eq!(model.read(model.tensor("a").unwrap()).unwrap(), [1; 8]);
        assert_eq!(model.read(model.tensor("c").unwrap()).unwrap(), [2; 4]);
        assert_eq!(model.read(model.tensor("b").unwrap()).unwrap(), [3; 8]);
        assert_eq!(model.metadata().str("general.architecture"), Ok("tiny"));
        assert_eq!(model.metadata().u32("tiny.layers"), Ok(2));
        assert_eq!(model.metadata().u32("split.no"), Ok(0));
        let names: Vec<_> = model.files().iter().map(|file| file.path.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"]);
    }
}

#[test]
fn each_file_of_a_set_has_its_own_alignment() {
    let folder = tempdir().unwrap();
    member(1, 2, 1).save(folder.path(), "m-00001-of-00002.gguf");
    let mut second =
        member(2, 2, 1).pair("general.alignment", 4, 256u32.to_le_bytes()).tensor("t", &[2], 0, 0).data([9; 8]);
    second.alignment = 256;
    let path = second.save(folder.path(), "m-00002-of-00002.gguf");
    let model = Gguf::open(&path).unwrap();
    assert_eq!(model.read(model.tensor("t").unwrap()).unwrap(), [9; 8]);
    assert!(!model.metadata().contains("general.alignment"));
}

#[test]
fn a_merged_set_and_a_set_of_one_are_single_files() {
    let folder = tempdir().unwrap();
    let merged =
        handmade().pair("split.no", 2, [0, 0]).pair("split.count", 2, [0, 0]).tensor("t", &[1], 0, 0).data([1; 4]);
    Gguf::open(&merged.save(folder.path(), "merged.gguf")).unwrap();
    let one = member(1, 1, 1).tensor("t", &[1], 0, 0).data([1; 4]);
    Gguf::open(&one.save(folder.path(), "m-00001-of-00001.gguf")).unwrap();
}

#[test]
fn names_that_only_look_like_a_set_are_single_files() {
    let folder = tempdir().unwrap();
    for name in [
        "m-00001-of-0002.gguf",
        "m-1-of-2.gguf",
        "m-00000-of-00002.gguf",
        "m-00003-of-00002.gguf",
        "m-+0001-of-00002.gguf",
        "m-00001-of-00002.gguf.gguf",
        "00001-of-00002.gguf",
        "m-0000é-of-00002.gguf",
        "m-00001-of-00002.bin",
    ] {
        Gguf::open(&sound().save(folder.path(), name)).unwrap();
    }
}

#[test]
fn a_file_that_is_replaced_is_still_the_one_that_is_read() {
    let folder = tempdir().unwrap();
    let path = sound().save(folder.path(), "model.gguf");
    let model = Gguf::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    sound().data([0xee; 66]).save(folder.path(), "model.gguf");
    let a = model.tensor("a.weight").unwrap();
    assert_eq!(model.read(a).unwrap(), (0..24).collect::<Vec<u8>>());
    let mut handles = model.reopen_files().unwrap();
    assert_eq!(handles.len(), 1);
    assert_eq!(handles[0].0, path);
    let mut bytes = Vec::new();
    std::io::Seek::rewind(&mut handles[0].1).unwrap();
    handles[0].1.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, sound().bytes());
}

#[test]
fn a_file_cut_while_open_is_an_error_that_says_what_is_missing() {
    let folder = tempdir().unwrap();
    let path = sound().save(folder.path(), "model.gguf");
    let model = Gguf::open(&path).unwrap();
    let b = model.tensor("b.weight").unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(b.offset + 4).unwrap();
    let said = model.read(b).unwrap_err().to_string();
    assert!(said.contains("model.gguf"), "{said}");
    assert!(said.contains(&format!("wanted 34 bytes at offset {}, got 4", b.offset)), "{said}");
    let said = model.read_range(0, u64::MAX, &mut [0; 2]).unwrap_err().to_string();
    assert!(said.contains(&u64::MAX.to_string()), "{said}");
}

#[test]
fn the_shipped_model_is_read() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/strata-mini/strata-mini-iq2xs-q4_0.gguf");
    let model = Gguf::open(path.as_ref()).unwrap();
    assert_eq!(model.metadata().str("general.architecture"), Ok("qwen4exp"));
    let tokens = model.metadata().str_array("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.len() as u64, model.tensor("token_embd.weight").unwrap().rows());
    let types: BTreeSet<_> = model.tensors().map(|tensor| tensor.ty.name()).collect();
    assert!(types.contains("IQ2_XS") && types.contains("Q4_0"), "{types:?}");
    // Its tensors fill the file: nothing is left over but padding.
    let end = model.tensors().map(|tensor| tensor.offset + tensor.len_bytes).max().unwrap();
    assert_eq!(end.next_multiple_of(32), model.files()[0].len_bytes);
}
