//! The typed getters: which stored types they take, and what they say when they refuse.

use strata_gguf::{Array, Metadata, MetadataError, Optional, Value};

fn one(value: Value) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("k", value).unwrap();
    metadata
}

fn text<T: std::fmt::Debug>(result: Result<T, MetadataError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn integers_of_every_width_are_read_when_they_fit() {
    for value in [
        Value::U8(7),
        Value::I8(7),
        Value::U16(7),
        Value::I16(7),
        Value::U32(7),
        Value::I32(7),
        Value::U64(7),
        Value::I64(7),
    ] {
        let metadata = one(value);
        assert_eq!(metadata.u32("k"), Ok(7));
        assert_eq!(metadata.u64("k"), Ok(7));
        assert_eq!(metadata.usize("k"), Ok(7));
        assert_eq!(metadata.i64("k"), Ok(7));
    }
    for value in [Value::I8(-1), Value::I16(-1), Value::I32(-1), Value::I64(-1)] {
        let metadata = one(value);
        assert_eq!(metadata.i64("k"), Ok(-1));
        assert!(text(metadata.u32("k")).contains("expected an integer from 0 to 2^32-1, got i"));
        assert!(text(metadata.u64("k")).contains(" -1"));
        assert!(text(metadata.usize("k")).contains(" -1"));
    }
    assert_eq!(one(Value::U64(u64::MAX)).u64("k"), Ok(u64::MAX));
    assert_eq!(one(Value::U32(u32::MAX)).u32("k"), Ok(u32::MAX));
    assert!(text(one(Value::U64(1 << 32)).u32("k")).contains("got u64 4294967296"));
    assert!(text(one(Value::U64(1 << 63)).i64("k")).contains("got u64 9223372036854775808"));
    for value in [Value::F32(7.0), Value::F64(7.0), Value::Bool(true), Value::String("7".into())] {
        assert!(matches!(one(value).u64("k"), Err(MetadataError::WrongType { .. })));
    }
}

#[test]
fn integer_arrays_of_every_width_are_read_when_all_items_fit() {
    for array in [
        Array::U8(vec![1, 2]),
        Array::I8(vec![1, 2]),
        Array::U16(vec![1, 2]),
        Array::I16(vec![1, 2]),
        Array::U32(vec![1, 2]),
        Array::I32(vec![1, 2]),
        Array::U64(vec![1, 2]),
        Array::I64(vec![1, 2]),
    ] {
        let metadata = one(Value::Array(array));
        assert_eq!(metadata.u64_array("k"), Ok(vec![1, 2]));
        assert_eq!(metadata.i64_array("k"), Ok(vec![1, 2]));
    }
    let negative = one(Value::Array(Array::I32(vec![3, -4])));
    assert_eq!(negative.i64_array("k"), Ok(vec![3, -4]));
    let said = text(negative.u64_array("k"));
    assert!(said.contains("an array of 2 i32 that does not fit at index 1"), "{said}");
    let said = text(one(Value::Array(Array::F32(vec![1.0]))).u64_array("k"));
    assert!(said.contains("expected an array of integers from 0 to 2^64-1, got an array of 1 f32"), "{said}");
    let said = text(one(Value::U32(1)).u64_array("k"));
    assert!(said.contains("got u32 1"), "{said}");
}

#[test]
fn other_types_are_read_as_they_are() {
    assert_eq!(one(Value::F32(0.1)).f32("k"), Ok(0.1));
    assert_eq!(one(Value::F64(0.1)).f32("k"), Ok(0.1));
    assert!(text(one(Value::U32(1)).f32("k")).contains("expected a float, got u32 1"));
    assert_eq!(one(Value::Bool(true)).bool("k"), Ok(true));
    assert!(text(one(Value::U8(1)).bool("k")).contains("expected a bool, got u8 1"));
    assert_eq!(one(Value::String("é".into())).str("k"), Ok("é"));
    assert!(text(one(Value::Bool(false)).str("k")).contains("expected a string, got bool false"));
    assert_eq!(one(Value::Array(Array::F64(vec![0.1]))).f32_array("k"), Ok(vec![0.1]));
    assert_eq!(one(Value::Array(Array::F32(vec![0.1]))).f32_array("k"), Ok(vec![0.1]));
    assert!(one(Value::Array(Array::I32(vec![1]))).f32_array("k").is_err());
    assert_eq!(one(Value::Array(Array::Bool(vec![true, false]))).bool_array("k"), Ok(&[true, false][..]));
    assert!(one(Value::Array(Array::U8(vec![1]))).bool_array("k").is_err());
    assert_eq!(one(Value::Array(Array::String(vec!["x".into()]))).str_array("k"), Ok(&["x".to_owned()][..]));
    assert!(one(Value::String("x".into())).str_array("k").is_err());
}

#[test]
fn a_missing_key_is_none_when_optional_and_a_wrong_type_is_not() {
    let metadata = one(Value::U32(1));
    assert_eq!(text(metadata.u32("other")), "metadata key `other` is missing");
    assert_eq!(metadata.u32("other").optional(), Ok(None));
    assert_eq!(metadata.u32("k").optional(), Ok(Some(1)));
    assert!(metadata.str("k").optional().is_err());
}

#[test]
fn pairs_keep_their_order_and_no_key_is_taken_twice() {
    let mut metadata = Metadata::new();
    for (key, value) in [("z", 1), ("a", 2), ("m", 3)] {
        metadata.insert(key, Value::U32(value)).unwrap();
    }
    assert_eq!(text(metadata.insert("a", Value::U32(9))), "metadata key `a` is there twice");
    let pairs: Vec<_> = metadata.iter().collect();
    assert_eq!(pairs, [("z", &Value::U32(1)), ("a", &Value::U32(2)), ("m", &Value::U32(3))]);
    assert_eq!((metadata.len(), metadata.is_empty()), (3, false));
    assert!(metadata.contains("m") && !metadata.contains("n"));
    assert_eq!(metadata.get("n"), None);
}

#[test]
fn errors_repeat_short_strings_only() {
    assert!(text(one(Value::String("llama".into())).u32("k")).ends_with("got string \"llama\""));
    assert!(text(one(Value::String("x".repeat(1000))).u32("k")).ends_with("got a string of 1000 bytes"));
}
