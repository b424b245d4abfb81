//! Broken files: each is refused with an error that names the file, the thing and the numbers.
//!
//! The broken files are kept in `tests/data/hostile`, where the fuzzer starts from them, too. After a change of the table
//! write them again with `cargo test -p strata-gguf --test hostile -- --ignored`.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use common::{Handmade, array, handmade, member, sound, string};
use strata_gguf::Gguf;
use tempfile::tempdir;

const HUGE: u64 = 1 << 60;

struct Case {
    name: String,
    bytes: Vec<u8>,
    expected: String,
}

fn case(name: &str, file: &Handmade, expected: &str) -> Case {
    raw(name, &file.bytes(), expected)
}

fn raw(name: &str, bytes: &[u8], expected: &str) -> Case {
    Case { name: name.into(), bytes: bytes.to_vec(), expected: expected.into() }
}

fn with_start(start: &[u8]) -> Handmade {
    Handmade { start: start.to_vec(), ..sound() }
}

fn huge(text: &str) -> Vec<u8> {
    [&HUGE.to_le_bytes(), text.as_bytes()].concat()
}

fn cases() -> Vec<Case> {
    let all = [starts(), metadata(), counts_and_lengths(), shapes(), places()];
    all.into_iter().flatten().collect()
}

fn starts() -> Vec<Case> {
    vec![
        raw("empty", b"", "the file is empty"),
        raw("two-bytes", b"GG", "it starts with `GG` instead of `GGUF`"),
        raw("only-magic", b"GGUF", "the header needs 4 bytes at offset 4, but the file has only 0 more"),
        case("magic", &with_start(b"GGML\x03\0\0\0"), "it starts with `GGML\\x03\\x00\\x00\\x00` instead of `GGUF`"),
        case("big-endian", &with_start(b"GGUF\0\0\0\x03"), "big-endian"),
        case("version-0", &with_start(b"GGUF\0\0\0\0"), "GGUF version 0, but only version 3"),
        case("version-1", &with_start(b"GGUF\x01\0\0\0"), "GGUF version 1, but only version 3"),
        case("version-2", &with_start(b"GGUF\x02\0\0\0"), "GGUF version 2, but only version 3"),
        case("version-4", &with_start(b"GGUF\x04\0\0\0"), "GGUF version 4, but only version 3"),
        raw("safetensors", b"\x02\0\0\0\0\0\0\0{}", "this looks like a safetensors file"),
        raw("text", b"Once upon a time", "it starts with `Once upo` instead of `GGUF`"),
        raw("web-page", b"<!DOCTYPE html><html></html>", "this looks like a web page"),
        raw("lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "this is a Git LFS pointer"),
    ]
}

fn metadata() -> Vec<Case> {
    let one = 1u32.to_le_bytes();
    let alignment = |id, value: &[u8]| handmade().pair("general.alignment", id, value);
    vec![
        case("key-twice", &sound().pair("tiny.on", 7, [0]), "metadata key `tiny.on` is there twice"),
        case(
            "key-not-utf8",
            &handmade().pair(b"k\xff", 4, one),
            "metadata key number 0 at offset 33 is not valid UTF-8",
        ),
        case(
            "string-not-utf8",
            &handmade().pair("k", 8, string(b"ab\xc3")),
            "metadata key `k` at offset 47 is not valid UTF-8",
        ),
        case(
            "array-string-not-utf8",
            &handmade().pair("k", 9, array(8, 1, &string(b"\x80"))),
            "metadata key `k` at offset 57 is not valid UTF-8",
        ),
        case("value-type", &handmade().pair("k", 13, one), "metadata key `k`: unknown value type id 13 at offset 33"),
        case(
            "array-item-type",
            &handmade().pair("k", 9, array(99, 0, &[])),
            "metadata key `k`: unknown value type id 99 at offset 37",
        ),
        case(
            "array-of-arrays",
            &handmade().pair("k", 9, array(9, 1, &array(4, 0, &[]))),
            "metadata key `k`: an array of arrays at offset 37",
        ),
        case("bool", &handmade().pair("k", 7, [2]), "metadata key `k`: a bool is stored as 2 at offset 37"),
        case(
            "array-bool",
            &handmade().pair("k", 9, array(7, 2, &[1, 255])),
            "metadata key `k`: a bool is stored as 255 at offset 50",
        ),
        case("alignment-0", &alignment(4, &[0; 4]), "`general.alignment` is 0; expected a power of two"),
        case("alignment-48", &alignment(4, &[48, 0, 0, 0]), "`general.alignment` is 48; expected a power of two"),
        case(
            "alignment-too-wide",
            &alignment(10, &(1u64 << 32).to_le_bytes()),
            "`general.alignment`: expected an integer from 0 to 2^32-1, got u64 4294967296",
        ),
        case(
            "alignment-string",
            &alignment(8, &string("32")),
            "`general.alignment`: expected an integer from 0 to 2^32-1, got string \"32\"",
        ),
    ]
}

fn counts_and_lengths() -> Vec<Case> {
    let pairs = |count| Handmade { pair_count: count, ..handmade() };
    let tensors = |count| Handmade { tensor_count: count, ..sound() };
    let mut cases = vec![
        case("pairs-huge", &pairs(HUGE), "says 1152921504606846976 metadata pairs, at least 13 bytes each, but only"),
        case("pairs-max", &pairs(u64::MAX), "says 18446744073709551615 metadata pairs"),
        case("pairs-one-too-many", &pairs(1), "says 1 metadata pairs, at least 13 bytes each, but only 8 bytes follow"),
        case("tensors-huge", &tensors(HUGE), "says 1152921504606846976 tensors, at least 32 bytes each, but only"),
        case("tensors-max", &tensors(u64::MAX), "says 18446744073709551615 tensors"),
        raw(
            "key-huge",
            &[pairs(1).header_bytes(), huge("keykeykey")].concat(),
            "metadata key number 0 needs 1152921504606846976 bytes at offset 32",
        ),
        case(
            "string-huge",
            &handmade().pair("k", 8, huge("v")),
            "metadata key `k` needs 1152921504606846976 bytes at offset 45",
        ),
        case(
            "array-string-huge",
            &handmade().pair("k", 9, array(8, 1, &huge("v"))),
            "metadata key `k` needs 1152921504606846976 bytes at offset 57",
        ),
        raw(
            "tensor-name-huge",
            &[Handmade { tensor_count: 1, ..handmade() }.header_bytes(), huge(&"t".repeat(32))].concat(),
            "tensor number 0 needs 1152921504606846976 bytes at offset 32",
        ),
        case(
            "string-one-too-long",
            &handmade().pair("k", 8, [&20u64.to_le_bytes()[..], &[b'v'; 19]].concat()),
            "metadata key `k` needs 20 bytes at offset 45, but the file has only 19 more",
        ),
    ];
    // Arrays of each type; a length in bytes beyond 2^64 is said to be 2^64-1.
    let sizes = [1u64, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8];
    for (id, size) in (0..).zip(sizes).filter(|&(id, _)| id != 9) {
        for count in [HUGE, u64::MAX] {
            let wanted_bytes = count.saturating_mul(size);
            cases.push(Case {
                name: format!("array-of-type-{id}-{}", if count == HUGE { "huge" } else { "max" }),
                bytes: handmade().pair("k", 9, array(id, count, &[])).bytes(),
                expected: format!("metadata key `k` needs {wanted_bytes} bytes at offset 49, but the file has only 15"),
            });
        }
    }
    cases
}

fn shapes() -> Vec<Case> {
    let tensor = |dims: &[u64], id| handmade().tensor("t", dims, id, 0).data([0; 64]);
    vec![
        case("dims-none", &tensor(&[], 0).tensor("u", &[1], 0, 32), "tensor `t` has 0 dimensions; expected 1 to 4"),
        case("dims-five", &tensor(&[1; 5], 0), "tensor `t` has 5 dimensions; expected 1 to 4"),
        case("dim-zero", &tensor(&[4, 0], 0), "tensor `t` has a dimension of zero: [4, 0]"),
        case(
            "dims-product",
            &tensor(&[1 << 32, 1 << 32], 0),
            "tensor `t` of [4294967296, 4294967296] F32 weights is larger than any file",
        ),
        case("dims-wrap-to-small", &tensor(&[1 << 32, 1 << 32, 2], 0), "larger than any file"),
        case("dims-bytes", &tensor(&[1 << 62], 0), "tensor `t` of [4611686018427387904] F32 weights is larger"),
        case("dims-max", &tensor(&[u64::MAX; 4], 0), "larger than any file"),
        case("block", &tensor(&[48], 8), "tensor `t`: a row of 48 weights is not a whole number of Q8_0 blocks of 32"),
        // As many weights as a block in all, but none in a row.
        case("block-of-rows", &tensor(&[128, 2], 17), "a row of 128 weights is not a whole number of IQ2_XS blocks"),
        case("type", &tensor(&[32], 31), "tensor `t` has type id 31"),
        case("type-retired", &tensor(&[32], 4), "tensor `t` has type id 4 (at offset 45)"),
        case("type-max", &tensor(&[32], u32::MAX), "tensor `t` has type id 4294967295"),
    ]
}

fn places() -> Vec<Case> {
    let tensor = |offset| handmade().tensor("t", &[8], 0, offset).data([0; 64]);
    let two = |second| handmade().tensor("a", &[8, 2], 0, 0).tensor("b", &[8], 0, second).data([0; 128]);
    vec![
        case(
            "tensor-twice",
            &handmade().tensor("t", &[1], 0, 0).tensor("t", &[1], 0, 32).data([0; 36]),
            "tensor `t` is there twice",
        ),
        case("offset-unaligned", &tensor(16), "tensor `t`: data offset 16 is not a multiple of the alignment, 32"),
        case("offset-past-end", &tensor(64), "tensor `t` (F32) takes 32 bytes at offset 128, but the file has 128"),
        case("offset-huge", &tensor(HUGE), "tensor `t` (F32) takes 32 bytes at offset 1152921504606847040"),
        case("offset-max", &tensor(u64::MAX - 31), "tensor `t` (F32) takes 32 bytes at offset 18446744073709551615"),
        case(
            "overlap",
            &two(32),
            "tensor `a` (F32) takes 64 bytes at offset 128 and overlaps tensor `b` (F32) at offset 160",
        ),
        case("overlap-same", &two(0), "overlaps tensor"),
        // Blocks of 128 weights in 34 bytes: 2048 weights take 544 bytes, not the 576 of this type 42.
        case(
            "other-type-42-overlap",
            &handmade().tensor("a", &[2048], 42, 0).tensor("b", &[256], 42, 544).data([0; 1024]),
            "overlaps tensor `b` (Q2_0) at offset 640; note that some unrelated files use type id 42 for blocks of 128 weights in 34 bytes",
        ),
        case(
            "other-type-42-last",
            &handmade().tensor("a", &[2048], 42, 0).data([0; 544]),
            "takes 576 bytes at offset 64, but the file has 608 bytes: it is cut off or damaged; download it again; note that some unrelated files use type id 42 for blocks of 128 weights in 34 bytes",
        ),
    ]
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/hostile")
}

fn error(path: &Path) -> String {
    match Gguf::open(path) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{} was accepted", path.display()),
    }
}

#[test]
fn each_broken_file_is_refused_with_its_reason() {
    let cases = cases();
    for Case { name, bytes, expected } in &cases {
        let path = folder().join(format!("{name}.gguf"));
        assert!(
            &fs::read(&path).unwrap() == bytes,
            "{name}: the file is not what the table says; see the top of this file"
        );
        let said = error(&path);
        assert!(said.contains(expected), "{name}\nexpected: {expected}\nsaid:     {said}");
        assert!(said.starts_with(&path.display().to_string()), "{name}: no file in {said}");
    }
    let names: BTreeSet<_> = cases.iter().map(|case| format!("{}.gguf", case.name)).collect();
    let files: BTreeSet<_> =
        fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(files, names);
}

#[test]
#[ignore = "writes the broken files, when the table has changed"]
fn write_the_broken_files() {
    let _ = fs::remove_dir_all(folder());
    fs::create_dir_all(folder()).unwrap();
    for Case { name, bytes, .. } in cases() {
        fs::write(folder().join(format!("{name}.gguf")), bytes).unwrap();
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("cut.gguf");
    let bytes = sound().bytes();
    for len in 0..bytes.len() {
        fs::write(&path, &bytes[..len]).unwrap();
        let said = error(&path);
        assert!(said.contains("cut.gguf"), "{said}");
        let reason = match len {
            0 => "the file is empty",
            1..4 => "instead of `GGUF`",
            _ => "is cut off or damaged",
        };
        assert!(said.contains(reason), "cut to {len} bytes: {said}");
    }
    fs::write(&path, &bytes).unwrap();
    Gguf::open(&path).unwrap();
}

#[test]
fn what_is_not_a_file_is_refused() {
    let folder = tempdir().unwrap();
    assert!(error(folder.path()).contains("this is not a regular file"));
    assert!(error(Path::new("/dev/zero")).contains("/dev/zero: this is not a regular file"));
    let said = error(&folder.path().join("none.gguf"));
    assert!(said.contains("none.gguf: cannot open the file: "), "{said}");
}

/// Saves the files of a set and returns the error of opening its first.
fn set_error(files: &[Handmade]) -> String {
    let folder = tempdir().unwrap();
    for (i, file) in files.iter().enumerate() {
        file.save(folder.path(), &format!("m-{:05}-of-{:05}.gguf", i + 1, files.len()));
    }
    error(&folder.path().join(format!("m-00001-of-{:05}.gguf", files.len())))
}

#[track_caller]
fn check(said: &str, file: &str, expected: &str) {
    assert!(said.contains(&format!("{file}: ")), "expected an error in {file}: {said}");
    assert!(said.contains(expected), "expected: {expected}\nsaid:     {said}");
}

#[test]
fn files_of_different_sets_are_refused() {
    let first = || member(1, 2, 0).pair("general.architecture", 8, string("tiny"));
    let second = || member(2, 2, 0);

    let said = set_error(&[first(), member(2, 3, 0)]);
    check(&said, "m-00002-of-00002.gguf", "`split.count` is 3, expected 2");
    let said = set_error(&[first(), member(1, 2, 0)]);
    check(&said, "m-00002-of-00002.gguf", "`split.no` is 0, expected 1");
    let said = set_error(&[first(), sound()]);
    check(&said, "m-00002-of-00002.gguf", "`split.count` is missing, expected 2");
    let said = set_error(&[first(), handmade().pair("split.count", 2, [2, 0])]);
    check(&said, "m-00002-of-00002.gguf", "`split.no` is missing, expected 1");
    let said = set_error(&[first(), handmade().pair("split.count", 8, string("2"))]);
    check(&said, "m-00002-of-00002.gguf", "`split.count`: expected an integer");
    let said = set_error(&[first(), second().pair("general.architecture", 8, string("llama"))]);
    check(&said, "m-00002-of-00002.gguf", "`general.architecture` is string \"llama\", but string \"tiny\"");
    let said = set_error(&[first(), member(2, 2, 1)]);
    check(&said, "m-00002-of-00002.gguf", "`split.tensors.count` is 1, expected 0");
    let said = set_error(&[first(), second().tensor("t", &[1], 0, 0).data([0; 4])]);
    check(&said, "m-00001-of-00002.gguf", "`split.tensors.count` is 0, expected 1");
}

#[test]
fn a_tensor_in_two_files_is_refused() {
    let with_tensor = |number| member(number, 2, 2).tensor("t", &[1], 0, 0).data([0; 4]);
    let said = set_error(&[with_tensor(1), with_tensor(2)]);
    check(&said, "m-00002-of-00002.gguf", "tensor `t` is there twice, also in ");
    assert!(said.ends_with("m-00001-of-00002.gguf"), "{said}");
}

#[test]
fn a_broken_later_file_is_the_one_that_is_named() {
    let said = set_error(&[member(1, 2, 0), member(2, 2, 0).pair("k", 7, [9])]);
    check(&said, "m-00002-of-00002.gguf", "a bool is stored as 9");
}

#[test]
fn missing_files_of_a_set_are_counted() {
    let folder = tempdir().unwrap();
    let path = member(2, 4, 0).save(folder.path(), "m-00002-of-00004.gguf");
    check(&error(&path), "m-00001-of-00004.gguf", "this file of the model is missing (3 of its 4 files are)");
}

#[test]
fn a_renamed_file_of_a_set_is_refused() {
    let folder = tempdir().unwrap();
    let path = member(1, 3, 0).save(folder.path(), "model.gguf");
    check(&error(&path), "model.gguf", "one of 3 files of a model, which must be named like NAME-00001-of-00003.gguf");
}

#[test]
fn a_set_as_large_as_names_allow_is_refused_at_once() {
    let folder = tempdir().unwrap();
    let path = sound().save(folder.path(), "m-00001-of-99999.gguf");
    check(&error(&path), "m-00002-of-99999.gguf", "(99998 of its 99999 files are)");
}
