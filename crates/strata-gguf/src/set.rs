//! Several files of one model: their names, the `split.*` keys that tie them together, and how they become one.
//!
//! Promises: files that come from different models or different splits are refused; nothing is assumed about which file
//! holds which tensor or key.

use std::path::{Path, PathBuf};

use crate::error::Problem;
use crate::format::ALIGNMENT_KEY;
use crate::{GgufError, Metadata, Optional, Value};

const NO_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSORS_KEY: &str = "split.tensors.count";

/// Whether each file of a set has this key for itself.
fn is_own_key(key: &str) -> bool {
    key.starts_with("split.") || key == ALIGNMENT_KEY
}

/// The path of file `no` (from 0) of `count`, given the path that the model would have as one file:
/// `NAME.gguf` becomes `NAME-00001-of-00003.gguf`; a single file keeps its path.
pub fn set_path(path: &Path, no: u16, count: u16) -> PathBuf {
    if count <= 1 {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{:05}-of-{count:05}.gguf", u32::from(no) + 1));
    path.with_file_name(name)
}

/// The metadata to write to file `no` (from 0) of `count`: the first has all of the model's, the others only what a
/// reader needs to understand them. `split.*` keys of `metadata` are replaced; a single file has none.
pub fn set_metadata(metadata: &Metadata, no: u16, count: u16, tensor_count: i32) -> Metadata {
    let kept = |key: &str| !key.starts_with("split.") && (no == 0 || key == ALIGNMENT_KEY);
    let own = metadata.iter().filter(|(key, _)| kept(key)).map(|(key, value)| (key, value.clone()));
    let split = [(NO_KEY, Value::U16(no)), (COUNT_KEY, Value::U16(count)), (TENSORS_KEY, Value::I32(tensor_count))];
    let mut result = Metadata::new();
    for (key, value) in own.chain(split.into_iter().filter(|_| count > 1)) {
        result.insert(key, value).expect("keys of a Metadata differ, and split.* was left out");
    }
    result
}

/// The paths of all files of the set that `path` is named as a part of; only `path` when it is not named so.
pub(crate) fn paths(path: &Path) -> Vec<PathBuf> {
    let Some((prefix, count)) = path.file_name().and_then(|name| split_name(name.to_str()?)) else {
        return vec![path.to_owned()];
    };
    (1..=count).map(|no| path.with_file_name(format!("{prefix}-{no:05}-of-{count:05}.gguf"))).collect()
}

/// The name of one file of a set, such as `NAME-00002-of-00003.gguf`, as `NAME` and 3; `None`: it is no such name.
pub fn split_name(name: &str) -> Option<(&str, u32)> {
    let five_digits = |text: &str| {
        let is_number = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<u32>().ok()).flatten()
    };
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, no) = rest.rsplit_once('-')?;
    let (no, count) = (five_digits(no)?, five_digits(count)?);
    (1..=count).contains(&no).then_some((prefix, count))
}

/// Finds the first of `paths` that is not there.
pub(crate) fn check_present(paths: &[PathBuf]) -> Result<(), GgufError> {
    // The error of opening it says more about a single file.
    if paths.len() == 1 {
        return Ok(());
    }
    let missing: Vec<&PathBuf> = paths.iter().filter(|path| !path.exists()).collect();
    let Some(first) = missing.first() else { return Ok(()) };
    let problem = Problem::MissingFile { missing: missing.len() as u64, count: paths.len() as u64 };
    Err(GgufError::new(first, problem))
}

/// Checks that file number `no` (from 0) belongs to a set of `count`.
pub(crate) fn check_member(metadata: &Metadata, no: u64, count: u64) -> Result<(), Problem> {
    let said_count = metadata.u64(COUNT_KEY).optional()?;
    if count == 1 {
        // The program that merges the files of a set leaves a count of 0 behind.
        return match said_count {
            Some(said) if said > 1 => Err(Problem::SplitName { count: said }),
            _ => Ok(()),
        };
    }
    expect(COUNT_KEY, count, said_count)?;
    expect(NO_KEY, no, metadata.u64(NO_KEY).optional()?)
}

/// Checks the number of tensors in all files of a set against what one of its files says.
pub(crate) fn check_tensor_count(metadata: &Metadata, tensor_count: u64) -> Result<(), Problem> {
    match metadata.u64(TENSORS_KEY).optional()? {
        None => Ok(()),
        said => expect(TENSORS_KEY, tensor_count, said),
    }
}

fn expect(key: &'static str, expected: u64, got: Option<u64>) -> Result<(), Problem> {
    if got == Some(expected) {
        return Ok(());
    }
    let got = got.map_or_else(|| "missing".to_owned(), |got| got.to_string());
    Err(Problem::Split { key, expected: expected.to_string(), got })
}

/// The metadata of the model: those of its first file, then what the others add. What several files say must agree.
pub(crate) fn merge_metadata(parts: Vec<(&Path, Metadata)>) -> Result<Metadata, GgufError> {
    let mut parts = parts.into_iter();
    let (_, mut merged) = parts.next().expect("a model has at least one file");
    for (path, metadata) in parts {
        for (key, value) in metadata.iter().filter(|(key, _)| !is_own_key(key)) {
            match merged.get(key) {
                None => merged.insert(key, value.clone()).map_err(|error| GgufError::new(path, error))?,
                Some(earlier) if earlier == value => {}
                Some(earlier) => {
                    let (got, earlier) = (value.to_string(), earlier.to_string());
                    return Err(GgufError::new(path, Problem::Disagree { key: key.to_owned(), got, earlier }));
                }
            }
        }
    }
    Ok(merged)
}
