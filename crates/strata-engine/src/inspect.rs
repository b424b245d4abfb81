//! What a model file holds, without loading it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use strata_gguf::{Array, Gguf, Value};

use crate::{EngineError, Tokenizer};

/// Elements of a metadata list that are kept.
const KEPT_ELEMENTS: usize = 64;

/// A model file at a glance. Sizes are in bytes.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Files of the model and their sizes.
    pub files: Vec<(PathBuf, u64)>,
    /// Metadata in file order.
    pub metadata: Vec<(String, MetadataValue)>,
    /// Tensors of one class and type together.
    pub groups: Vec<TensorGroup>,
    /// All tensors in file order.
    pub tensors: Vec<TensorLine>,
    /// Bytes of the routed experts.
    pub expert_bytes: u64,
    /// Bytes of the n-gram table.
    pub table_bytes: u64,
    /// Bytes of everything else.
    pub dense_bytes: u64,
}

/// A metadata value.
#[derive(Clone, Debug)]
pub enum MetadataValue {
    /// A string.
    Text(String),
    /// A number or a truth value.
    Scalar(Json),
    /// A list: its beginning, and its length.
    List {
        /// The first elements.
        first: Vec<Json>,
        /// The number of all elements.
        len: usize,
    },
}

/// Tensors of one class and type.
#[derive(Clone, Debug)]
pub struct TensorGroup {
    /// What they are for.
    pub class: &'static str,
    /// Their type.
    pub ty: &'static str,
    /// How many there are.
    pub tensors: usize,
    /// Weights in them.
    pub weights: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// One tensor.
#[derive(Clone, Debug)]
pub struct TensorLine {
    /// Name.
    pub name: String,
    /// Type.
    pub ty: &'static str,
    /// Dimensions, contiguous first.
    pub dims: Vec<u64>,
    /// Bytes.
    pub bytes: u64,
    /// Index of its file.
    pub file: usize,
    /// Bytes from the start of the file.
    pub offset: u64,
}

const EXPERTS: &str = "routed experts";
const TABLE: &str = "n-gram table";

/// The class of a tensor, by its name (spec 4).
fn class_of(name: &str) -> &'static str {
    let part = match name.strip_prefix("blk.") {
        Some(rest) => rest.split_once('.').map_or(rest, |(_, part)| part),
        None => name,
    };
    match part {
        _ if part.contains("_exps.") => EXPERTS,
        _ if part.starts_with("per_layer_token_embd") => TABLE,
        _ if part.contains("nextn.") => "draft head",
        _ if part.contains("hc_") => "hyper-connections",
        _ if part.contains("shexp") => "shared experts",
        _ if part.starts_with("ffn_gate_inp") => "routers",
        _ if part.starts_with("ssm_") || part.starts_with("attn_qkv") || part.starts_with("attn_gate") => "DeltaNet",
        _ if part.starts_with("attn_") => "attention",
        _ if part.starts_with("indexer.") => "indexers",
        _ if part.starts_with("ple_") => "n-gram module",
        _ if part.starts_with("token_embd") => "token embedding",
        _ if part.starts_with("output") => "output",
        _ => "other",
    }
}

/// Describes the model of a file.
///
/// # Errors
/// When the file is no GGUF file, or is damaged.
pub fn inspect(path: &Path) -> Result<Inspection, EngineError> {
    let gguf = Gguf::open(path)?;
    let mut groups: BTreeMap<(&str, &str), TensorGroup> = BTreeMap::new();
    let mut inspection = Inspection {
        files: gguf.files().iter().map(|file| (file.path.clone(), file.len_bytes)).collect(),
        metadata: gguf.metadata().iter().map(|(key, value)| (key.to_owned(), metadata_value(value))).collect(),
        groups: Vec::new(),
        tensors: Vec::new(),
        expert_bytes: 0,
        table_bytes: 0,
        dense_bytes: 0,
    };
    for tensor in gguf.tensors() {
        let (class, ty) = (class_of(&tensor.name), tensor.ty.name());
        let empty = TensorGroup { class, ty, tensors: 0, weights: 0, bytes: 0 };
        let group = groups.entry((class, ty)).or_insert(empty);
        group.tensors += 1;
        group.weights += tensor.weights();
        group.bytes += tensor.len_bytes;
        *match class {
            EXPERTS => &mut inspection.expert_bytes,
            TABLE => &mut inspection.table_bytes,
            _ => &mut inspection.dense_bytes,
        } += tensor.len_bytes;
        inspection.tensors.push(TensorLine {
            name: tensor.name.clone(),
            ty,
            dims: tensor.dims.clone(),
            bytes: tensor.len_bytes,
            file: tensor.file,
            offset: tensor.offset,
        });
    }
    inspection.groups = groups.into_values().collect();
    inspection.groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
    Ok(inspection)
}

/// The tokenizer of a file, without loading its model.
///
/// # Errors
/// When the file is no GGUF file, or has no tokenizer that can be used.
pub fn tokenizer_of(path: &Path) -> Result<Tokenizer, EngineError> {
    let tokenizer = Tokenizer::from_metadata(Gguf::open(path)?.metadata());
    tokenizer.map_err(|error| EngineError::Unusable(format!("{}: {error}", path.display())))
}

fn metadata_value(value: &Value) -> MetadataValue {
    macro_rules! list {
        ($values:expr) => {
            MetadataValue::List {
                first: $values.iter().take(KEPT_ELEMENTS).map(|v| json!(v)).collect(),
                len: $values.len(),
            }
        };
    }
    match value {
        Value::String(text) => MetadataValue::Text(text.clone()),
        Value::U8(v) => MetadataValue::Scalar(json!(v)),
        Value::I8(v) => MetadataValue::Scalar(json!(v)),
        Value::U16(v) => MetadataValue::Scalar(json!(v)),
        Value::I16(v) => MetadataValue::Scalar(json!(v)),
        Value::U32(v) => MetadataValue::Scalar(json!(v)),
        Value::I32(v) => MetadataValue::Scalar(json!(v)),
        Value::U64(v) => MetadataValue::Scalar(json!(v)),
        Value::I64(v) => MetadataValue::Scalar(json!(v)),
        Value::F32(v) => MetadataValue::Scalar(json!(v)),
        Value::F64(v) => MetadataValue::Scalar(json!(v)),
        Value::Bool(v) => MetadataValue::Scalar(json!(v)),
        Value::Array(array) => match array {
            Array::U8(v) => list!(v),
            Array::I8(v) => list!(v),
            Array::U16(v) => list!(v),
            Array::I16(v) => list!(v),
            Array::U32(v) => list!(v),
            Array::I32(v) => list!(v),
            Array::U64(v) => list!(v),
            Array::I64(v) => list!(v),
            Array::F32(v) => list!(v),
            Array::F64(v) => list!(v),
            Array::Bool(v) => list!(v),
            Array::String(v) => list!(v),
        },
    }
}
