//! Whether two dumps are the same, byte for byte, and where they part.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::tensors::{File, problem};
use crate::EngineError;

/// How two dumps compare.
#[derive(Clone, Debug, Default)]
pub struct Parity {
    /// The layers in order, then the logits.
    pub layers: Vec<LayerParity>,
    /// The first difference in the order of computation.
    pub first: Option<Difference>,
}

impl Parity {
    /// Whether nothing differs.
    pub fn is_equal(&self) -> bool {
        self.first.is_none()
    }
}

/// How one layer compares.
#[derive(Clone, Debug)]
pub struct LayerParity {
    /// `layer00`, ..., or `logits`.
    pub name: String,
    /// Values compared.
    pub values: usize,
    /// Values whose bytes differ.
    pub different_values: usize,
    /// The largest difference between two finite values.
    pub largest: f32,
    /// Positions whose experts are not the same in the same order.
    pub route_mismatches: usize,
}

/// A value that is not the same in both dumps.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// `layer00`, ..., or `logits`.
    pub layer: String,
    /// The tensor.
    pub tensor: String,
    /// Position in the text.
    pub position: usize,
    /// Index of the value within the position.
    pub index: usize,
    /// The value in the first dump and in the second, as text.
    pub values: (String, String),
}

/// The tensors of a layer in the order in which they are computed.
const ORDER: [&str; 12] = [
    "mixer_inject",
    "selected_blocks",
    "mixer_output",
    "moe_inject",
    "moe_input",
    "router_logits",
    "route_ids",
    "route_weights",
    "expert_hidden",
    "expert_output",
    "shared_gate",
    "moe_output",
];

/// Compares two dumps of one text, whatever pieces and passes they were made in.
///
/// # Errors
/// When a directory holds no dump, or they are of different texts or models.
pub fn parity(a: &Path, b: &Path) -> Result<Parity, EngineError> {
    let (dump_a, dump_b) = (Dump::open(a)?, Dump::open(b)?);
    let ids = dump_a.ids()?;
    let positions = ids.len();
    if ids != dump_b.ids()? {
        return Err(problem(b, &format!("a dump of another text than {}", a.display())));
    }
    if !dump_a.parts.keys().eq(dump_b.parts.keys()) {
        return Err(problem(b, &format!("a dump of a model with other layers than {}", a.display())));
    }
    let mut parity = Parity::default();
    for (_, name) in dump_a.parts.keys() {
        let (layer_a, layer_b) = (dump_a.layer(name, positions)?, dump_b.layer(name, positions)?);
        if !layer_a.iter().map(|(k, v)| (k, v.width)).eq(layer_b.iter().map(|(k, v)| (k, v.width))) {
            return Err(problem(b, &format!("{name} has tensors of other shapes than in {}", a.display())));
        }
        let mut result =
            LayerParity { name: name.clone(), values: 0, different_values: 0, largest: 0.0, route_mismatches: 0 };
        let order = |tensor: &str| ORDER.iter().position(|t| *t == tensor).unwrap_or(ORDER.len());
        let mut tensors: Vec<_> = layer_a.keys().collect();
        tensors.sort_by_key(|tensor| order(tensor));
        for tensor in tensors {
            compare(tensor, &layer_a[tensor], &layer_b[tensor], &mut result, &mut parity.first);
        }
        parity.layers.push(result);
    }
    Ok(parity)
}

fn compare(name: &str, a: &Values, b: &Values, result: &mut LayerParity, first: &mut Option<Difference>) {
    let is_route = name == "route_ids";
    let is_list = name == "selected_blocks";
    let is_integer = is_route || is_list;
    let show = |word: Option<&[u8; 4]>| match word {
        None => "nothing".to_owned(),
        Some(word) if is_integer => u32::from_le_bytes(*word).to_string(),
        Some(word) => f32::from_le_bytes(*word).to_string(),
    };
    let len = a.words.len().max(b.words.len());
    result.values += len;
    let mut last_mismatch = None;
    for at in 0..len {
        let (x, y) = (a.words.get(at), b.words.get(at));
        if x == y {
            continue;
        }
        result.different_values += 1;
        let row = at / a.width.max(1);
        if is_route && last_mismatch != Some(row) {
            last_mismatch = Some(row);
            result.route_mismatches += 1;
        }
        if let (false, Some(x), Some(y)) = (is_integer, x, y) {
            let difference = (f32::from_le_bytes(*x) - f32::from_le_bytes(*y)).abs();
            if difference.is_finite() {
                result.largest = result.largest.max(difference);
            }
        }
        first.get_or_insert_with(|| Difference {
            layer: result.name.clone(),
            tensor: name.to_owned(),
            position: if is_list { list_position(a, b, row) } else { row },
            index: at % a.width.max(1),
            values: (show(x), show(y)),
        });
    }
}

/// The position that entry `row` of a list `[position, block]` is about.
fn list_position(a: &Values, b: &Values, row: usize) -> usize {
    let of = |list: &Values| list.words.get(row * list.width).map(|word| u32::from_le_bytes(*word) as usize);
    of(a).into_iter().chain(of(b)).min().unwrap_or(row)
}

/// All of one tensor, positions in order.
#[derive(Default)]
struct Values {
    /// Values of a position.
    width: usize,
    words: Vec<[u8; 4]>,
}

/// Layers by number, then the logits.
fn computed_at(part: &str) -> usize {
    part.strip_prefix("layer").and_then(|number| number.parse().ok()).unwrap_or(usize::MAX)
}

struct Dump {
    dir: PathBuf,
    /// Files of each layer (and of the logits), by position. In the order of computation: see [`computed_at`].
    parts: BTreeMap<(usize, String), Vec<PathBuf>>,
}

impl Dump {
    fn open(dir: &Path) -> Result<Self, EngineError> {
        let mut parts: BTreeMap<_, Vec<PathBuf>> = BTreeMap::new();
        let entries = std::fs::read_dir(dir).map_err(|error| problem(dir, &error))?;
        let mut paths: Vec<PathBuf> = entries
            .map(|entry| entry.map(|e| e.path()))
            .collect::<Result<_, _>>()
            .map_err(|error| problem(dir, &error))?;
        paths.sort();
        for path in paths {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if let [part, _, "safetensors"] = name.split('.').collect::<Vec<_>>()[..] {
                parts.entry((computed_at(part), part.to_owned())).or_default().push(path.clone());
            }
        }
        if parts.is_empty() {
            return Err(problem(dir, "no dump: it has no files `layerNN.PPPPPPPP.safetensors`"));
        }
        Ok(Self { dir: dir.to_owned(), parts })
    }

    fn ids(&self) -> Result<Vec<u32>, EngineError> {
        Ok(File::read(&self.dir.join("ids.safetensors"))?.u32("ids")?.1)
    }

    /// All of a layer, which must be there for all `positions`: a pass that is missing would shift those after it.
    fn layer(&self, name: &str, positions: usize) -> Result<BTreeMap<String, Values>, EngineError> {
        let mut all: BTreeMap<String, Values> = BTreeMap::new();
        let mut rows = 0;
        for path in &self.parts[&(computed_at(name), name.to_owned())] {
            if *path != self.dir.join(format!("{name}.{rows:08}.safetensors")) {
                let text = format!("the dump is incomplete: expected a file that begins at position {rows}");
                return Err(problem(path, &text));
            }
            let mut after = rows;
            for (tensor, (shape, bytes)) in File::read(path)?.tensors()? {
                // A list of any length, not one entry a position.
                if tensor != "selected_blocks" {
                    after = rows + shape.first().copied().unwrap_or(0);
                }
                let values = all.entry(tensor).or_default();
                values.width = shape.iter().skip(1).product();
                values.words.extend(bytes.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]));
            }
            rows = after;
        }
        if rows != positions {
            let text = format!("the dump is incomplete: {name} has {rows} of {positions} positions");
            return Err(problem(&self.dir, &text));
        }
        Ok(all)
    }
}
