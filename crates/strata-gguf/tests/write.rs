//! Writing: the same bytes as files put together by hand, and as files that other tools wrote.

mod common;

use std::fs;
use std::path::Path;

use common::{handmade, member, sound, string};
use strata_gguf::{Array, Gguf, GgufWriter, Metadata, NewTensor, Tensor, TensorType, Value, set_metadata, set_path};
use tempfile::tempdir;

fn new_tensor(name: &str, dims: &[u64], ty: TensorType) -> NewTensor {
    NewTensor { name: name.into(), dims: dims.to_vec(), ty }
}

fn metadata(pairs: impl IntoIterator<Item = (&'static str, Value)>) -> Metadata {
    let mut metadata = Metadata::new();
    pairs.into_iter().for_each(|(key, value)| metadata.insert(key, value).unwrap());
    metadata
}

/// The metadata and tensors of [`sound`].
fn sound_parts() -> (Metadata, [NewTensor; 2]) {
    let metadata = metadata([
        ("general.architecture", Value::String("tiny".into())),
        ("tiny.layers", Value::U32(2)),
        ("tiny.words", Value::Array(Array::String(vec!["a".into(), "".into(), "é".into()]))),
        ("tiny.scales", Value::Array(Array::F32(vec![1.5, -2.0]))),
        ("tiny.on", Value::Bool(true)),
    ]);
    let tensors =
        [new_tensor("a.weight", &[3, 2], TensorType::F32), new_tensor("b.weight", &[32, 1, 1, 1], TensorType::Q8_0)];
    (metadata, tensors)
}

fn error(metadata: &Metadata, tensors: &[NewTensor]) -> String {
    GgufWriter::new(Vec::new(), Path::new("out.gguf"), metadata, tensors).unwrap_err().to_string()
}

/// Writes the tensors of one file of a model again.
fn rewrite(model: &Gguf, file: usize, metadata: &Metadata, path: &Path) {
    let tensors: Vec<&Tensor> = model.tensors().filter(|tensor| tensor.file == file).collect();
    let declared: Vec<_> = tensors.iter().map(|t| new_tensor(&t.name, &t.dims, t.ty)).collect();
    let mut writer = GgufWriter::create(path, metadata, &declared).unwrap();
    for tensor in tensors {
        writer.write(&model.read(tensor).unwrap()).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn bytes_are_those_put_together_by_hand_whatever_the_pieces() {
    let (metadata, tensors) = sound_parts();
    let mut expected = sound().bytes();
    let data_start = expected.len() - 66;
    // Between and after the tensors there are zeros, where the handmade file has something else.
    expected[data_start + 24..data_start + 32].fill(0);
    expected.resize(data_start + 96, 0);

    let data: Vec<u8> = (0..24).chain(32..66).collect();
    for piece_bytes in [1, 7, 24, 25, 58] {
        let mut writer = GgufWriter::new(Vec::new(), Path::new("x"), &metadata, &tensors).unwrap();
        data.chunks(piece_bytes).for_each(|piece| writer.write(piece).unwrap());
        assert_eq!(writer.finish().unwrap(), expected, "pieces of {piece_bytes}");
    }
}

#[test]
fn the_alignment_key_is_followed() {
    let metadata = metadata([("general.alignment", Value::U32(64))]);
    let tensors = [new_tensor("s", &[1], TensorType::F32), new_tensor("t", &[2], TensorType::F32)];
    let mut writer = GgufWriter::new(Vec::new(), Path::new("x"), &metadata, &tensors).unwrap();
    writer.write(&[5; 12]).unwrap();
    let mut expected = handmade()
        .pair("general.alignment", 4, 64u32.to_le_bytes())
        .tensor("s", &[1], 0, 0)
        .tensor("t", &[2], 0, 64)
        .data([&[5; 4][..], &[0; 60], &[5; 8], &[0; 56]].concat());
    expected.alignment = 64;
    assert_eq!(writer.finish().unwrap(), expected.bytes());
}

#[test]
fn a_file_without_tensors_is_a_padded_header() {
    let (metadata, _) = sound_parts();
    let written = GgufWriter::new(Vec::new(), Path::new("x"), &metadata, &[]).unwrap().finish().unwrap();
    assert_eq!(written.len() % 32, 0);
    let folder = tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    fs::write(&path, written).unwrap();
    let model = Gguf::open(&path).unwrap();
    assert_eq!((model.metadata(), model.tensors().len()), (&metadata, 0));
}

#[test]
fn models_written_by_other_tools_are_written_again_byte_by_byte() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for source in [
        "models/strata-mini/strata-mini-iq2xs-q4_0.gguf",
        "crates/strata-model/tests/data/oracle/mini4/model-f16.gguf",
        "crates/strata-model/tests/data/oracle/moe8ple/model-f16.gguf",
    ] {
        let folder = tempdir().unwrap();
        let copy = folder.path().join("copy.gguf");
        let model = Gguf::open(&root.join(source)).unwrap();
        rewrite(&model, 0, model.metadata(), &copy);
        // Not assert_eq: it would print megabytes.
        assert!(fs::read(root.join(source)).unwrap() == fs::read(&copy).unwrap(), "{source} differs");
    }
}

#[test]
fn a_model_is_split_and_merged_again() {
    let folder = tempdir().unwrap();
    let (metadata, tensors) = sound_parts();
    let whole = folder.path().join("m.gguf");
    let mut writer = GgufWriter::create(&whole, &metadata, &tensors).unwrap();
    writer.write(&[3; 58]).unwrap();
    writer.finish().unwrap();

    for (no, tensors) in [&tensors[..1], &[], &tensors[1..]].into_iter().enumerate() {
        let no = no as u16;
        let part = set_metadata(&metadata, no, 3, 2);
        let mut writer = GgufWriter::create(&set_path(&whole, no, 3), &part, tensors).unwrap();
        writer.write(&vec![3; [24, 0, 34][usize::from(no)]]).unwrap();
        writer.finish().unwrap();
    }
    // Later files say no more than which they are, in the types that other tools write.
    let second = fs::read(folder.path().join("m-00002-of-00003.gguf")).unwrap();
    assert_eq!(second, member(2, 3, 2).bytes());

    let model = Gguf::open(&folder.path().join("m-00002-of-00003.gguf")).unwrap();
    assert_eq!(model.tensors().map(|tensor| tensor.file).collect::<Vec<_>>(), [0, 2]);
    let merged_metadata = set_metadata(model.metadata(), 0, 1, 2);
    assert_eq!(merged_metadata, metadata);
    let merged = folder.path().join("merged.gguf");
    let mut writer = GgufWriter::create(&merged, &merged_metadata, &tensors).unwrap();
    model.tensors().for_each(|tensor| writer.write(&model.read(tensor).unwrap()).unwrap());
    writer.finish().unwrap();
    assert_eq!(fs::read(&merged).unwrap(), fs::read(&whole).unwrap());

    // A set written again as a set is the same, too.
    for no in 0..3u16 {
        let copy = folder.path().join("copy.gguf");
        rewrite(&model, no.into(), &set_metadata(model.metadata(), no, 3, 2), &copy);
        assert_eq!(fs::read(&copy).unwrap(), fs::read(set_path(&whole, no, 3)).unwrap());
        fs::remove_file(copy).unwrap();
    }
}

#[test]
fn every_file_of_a_set_keeps_the_alignment() {
    let metadata = metadata([("a", Value::U8(1)), ("general.alignment", Value::U32(64)), ("split.no", Value::U8(9))]);
    let keys = |no| set_metadata(&metadata, no, 2, 1).iter().map(|(key, _)| key.to_owned()).collect::<Vec<_>>();
    assert_eq!(keys(0), ["a", "general.alignment", "split.no", "split.count", "split.tensors.count"]);
    assert_eq!(keys(1), ["general.alignment", "split.no", "split.count", "split.tensors.count"]);
    assert_eq!(set_metadata(&metadata, 1, 2, 1).u32("split.no"), Ok(1));
    assert_eq!(set_path(Path::new("d/m.gguf"), 1, 12), Path::new("d/m-00002-of-00012.gguf"));
    assert_eq!(set_path(Path::new("d/m.gguf"), 0, 1), Path::new("d/m.gguf"));
}

#[test]
fn what_the_reader_would_refuse_is_not_written() {
    let none = Metadata::new();
    let f32 = |name, dims: &[u64]| new_tensor(name, dims, TensorType::F32);
    assert_eq!(error(&none, &[f32("t", &[1]), f32("t", &[2])]), "out.gguf: tensor `t` is there twice");
    assert!(error(&none, &[f32("t", &[])]).contains("tensor `t` has 0 dimensions"));
    assert!(error(&none, &[f32("t", &[1; 5])]).contains("tensor `t` has 5 dimensions"));
    assert!(error(&none, &[f32("t", &[4, 0])]).contains("dimension of zero: [4, 0]"));
    assert!(error(&none, &[f32("t", &[1 << 32, 1 << 32])]).contains("larger than any file"));
    assert!(error(&none, &[f32("t", &[1 << 62])]).contains("larger than any file"));
    assert!(error(&none, &[f32("s", &[1 << 61]), f32("t", &[1 << 61])]).contains("larger than any file"));
    assert!(error(&none, &[new_tensor("t", &[33], TensorType::Q8_0)]).contains("Q8_0 blocks of 32 weights"));
    let alignment = metadata([("general.alignment", Value::U32(48))]);
    assert!(error(&alignment, &[]).contains("`general.alignment` is 48; expected a power of two"));
}

#[test]
fn missing_and_extra_data_are_errors() {
    let (metadata, tensors) = sound_parts();
    let writer = || GgufWriter::new(Vec::new(), Path::new("out.gguf"), &metadata, &tensors).unwrap();
    let mut short = writer();
    short.write(&[0; 57]).unwrap();
    let said = short.finish().unwrap_err().to_string();
    assert_eq!(said, "out.gguf: 57 bytes of tensor data were given, but the declared tensors take 58");
    let said = writer().write(&[0; 60]).unwrap_err().to_string();
    assert_eq!(said, "out.gguf: 60 bytes of tensor data were given, but the declared tensors take 58");
}

#[test]
fn a_file_that_exists_stays_as_it_is() {
    let folder = tempdir().unwrap();
    let path = handmade().pair("k", 8, string("v")).save(folder.path(), "m.gguf");
    let before = fs::read(&path).unwrap();
    let said = GgufWriter::create(&path, &Metadata::new(), &[]).unwrap_err().to_string();
    assert!(said.contains("m.gguf: cannot create the file: "), "{said}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_full_disk_is_an_error() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let Err(error) = GgufWriter::new(Full, Path::new("out.gguf"), &Metadata::new(), &[]) else { panic!("written") };
    assert!(error.to_string().starts_with("out.gguf: cannot write the file: "), "{error}");
}
