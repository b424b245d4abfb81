//! `strata inspect`: what a model file holds.

use std::io::Write;

use serde_json::{Value as Json, json};
use strata_engine::{Inspection, MetadataValue, inspect as inspect_file};

use crate::error::CliError;
use crate::flags::InspectFlags;
use crate::setup;

/// Elements of a metadata array that are shown.
const SHOWN_ELEMENTS: usize = 16;
/// Characters of a metadata string that are shown in the table.
const SHOWN_CHARACTERS: usize = 60;

pub(crate) fn inspect(flags: &InspectFlags) -> Result<(), CliError> {
    let path = setup::model_path(flags.file.as_deref())?;
    let inspection = inspect_file(&path)?;
    let mut out = std::io::stdout().lock();
    if flags.json {
        writeln!(out, "{}", to_json(&inspection))?;
    } else {
        write_table(&mut out, &inspection, flags.tensors)?;
    }
    Ok(())
}

fn write_table(out: &mut impl Write, i: &Inspection, with_tensors: bool) -> Result<(), CliError> {
    for (path, bytes) in &i.files {
        writeln!(out, "{}  {}", path.display(), size(*bytes))?;
    }
    writeln!(out, "\nmetadata")?;
    for (key, value) in &i.metadata {
        writeln!(out, "  {:<48} {}", shown(key), short(value))?;
    }
    writeln!(
        out,
        "\ntensors by class and type\n  {:<20} {:<8} {:>8} {:>16} {:>12}",
        "class", "type", "tensors", "weights", "size"
    )?;
    for group in &i.groups {
        writeln!(
            out,
            "  {:<20} {:<8} {:>8} {:>16} {:>12}",
            group.class,
            group.ty,
            group.tensors,
            group.weights,
            size(group.bytes)
        )?;
    }
    writeln!(out)?;
    for (name, bytes) in [("routed experts", i.expert_bytes), ("n-gram table", i.table_bytes), ("dense", i.dense_bytes)]
    {
        writeln!(out, "  {name:<20} {:>12}  ({bytes} bytes)", size(bytes))?;
    }
    if with_tensors {
        writeln!(
            out,
            "\n  {:<44} {:<8} {:<28} {:>14} {:>14} {:>4}",
            "tensor", "type", "shape", "bytes", "offset", "file"
        )?;
        for t in &i.tensors {
            let shape = format!("{:?}", t.dims);
            writeln!(
                out,
                "  {:<44} {:<8} {shape:<28} {:>14} {:>14} {:>4}",
                shown(&t.name),
                t.ty,
                t.bytes,
                t.offset,
                t.file
            )?;
        }
    }
    Ok(())
}

/// A name from the file, with what could move a terminal's cursor made visible.
fn shown(name: &str) -> String {
    name.escape_debug().to_string()
}

fn short(value: &MetadataValue) -> String {
    match value {
        MetadataValue::Text(text) => {
            let shown: String = text.chars().take(SHOWN_CHARACTERS).collect();
            let dots = if shown.len() < text.len() { format!("... ({} bytes)", text.len()) } else { String::new() };
            format!("{shown:?}{dots}")
        }
        MetadataValue::Scalar(text) => text.to_string(),
        MetadataValue::List { first, len } => {
            let first: Vec<_> = first.iter().map(element).take(SHOWN_ELEMENTS).collect();
            let dots = if first.len() < *len { format!(", ... ({len} elements)") } else { String::new() };
            format!("[{}{dots}]", first.join(", "))
        }
    }
}

/// An element of a list. Strings are quoted as Rust does, which leaves no character that a terminal obeys.
fn element(value: &Json) -> String {
    match value {
        Json::String(text) => format!("{:?}", text.chars().take(SHOWN_CHARACTERS).collect::<String>()),
        number => number.to_string(),
    }
}

fn to_json(i: &Inspection) -> Json {
    let metadata: serde_json::Map<_, _> = i
        .metadata
        .iter()
        .map(|(key, value)| {
            let value = match value {
                MetadataValue::Text(text) => json!(text),
                MetadataValue::Scalar(value) => value.clone(),
                // Short lists as they are; a vocabulary by its length and beginning.
                MetadataValue::List { first, len } if first.len() == *len => json!(first),
                MetadataValue::List { first, len } => json!({ "length": len, "first": first }),
            };
            (key.clone(), value)
        })
        .collect();
    json!({
        "files": i.files.iter().map(|(path, bytes)| json!({ "path": path, "bytes": bytes })).collect::<Vec<_>>(),
        "metadata": metadata,
        "groups": i.groups.iter().map(|g| json!({
            "class": g.class, "type": g.ty, "tensors": g.tensors, "weights": g.weights, "bytes": g.bytes,
        })).collect::<Vec<_>>(),
        "expert_bytes": i.expert_bytes,
        "table_bytes": i.table_bytes,
        "dense_bytes": i.dense_bytes,
        "tensors": i.tensors.iter().map(|t| json!({
            "name": t.name, "type": t.ty, "shape": t.dims, "bytes": t.bytes, "file": t.file, "offset": t.offset,
        })).collect::<Vec<_>>(),
    })
}

/// Bytes in the unit that people use for files of this size.
fn size(bytes: u64) -> String {
    let value = bytes as f64;
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", value / 1e6),
        _ => format!("{:.2} GB", value / 1e9),
    }
}
