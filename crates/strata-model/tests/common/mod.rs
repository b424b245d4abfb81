//! What the tests share: recorded numbers, models, and an observer that collects what a pass shows.

#![allow(dead_code, unreachable_pub)] // each test file uses a part of it

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use strata_backend::{CpuBackend, Field, Isa, StatePart};
use strata_gguf::{Gguf, GgufWriter, Metadata, NewTensor, Value};
use strata_model::qwen4exp::{LayerView, Model, Moment, Observer, Options, Rows, Sequence, Unobserved};

pub fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

/// The model that ships in the repository.
pub fn strata_mini(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/strata-mini").join(file)
}

/// A safetensors file of recorded numbers.
pub struct Recorded(Vec<u8>);

impl Recorded {
    pub fn open(path: &Path) -> Self {
        Self(std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.0).unwrap()
    }

    pub fn has(&self, name: &str) -> bool {
        self.tensors().tensor(name).is_ok()
    }

    pub fn shape(&self, name: &str) -> Vec<usize> {
        self.tensors().tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).shape().to_vec()
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        self.tensors().tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).data().to_vec()
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        self.bytes(name).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    pub fn u32(&self, name: &str) -> Vec<u32> {
        self.bytes(name).chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    pub fn u16(&self, name: &str) -> Vec<u16> {
        self.bytes(name).chunks_exact(2).map(|b| u16::from_le_bytes(b.try_into().unwrap())).collect()
    }

    pub fn u8(&self, name: &str) -> Vec<u8> {
        self.bytes(name)
    }
}

pub fn model(path: &Path, options: Options) -> Model {
    model_on(path, Isa::best(), 2, options)
}

pub fn model_on(path: &Path, isa: Isa, threads: usize, options: Options) -> Model {
    load(path, CpuBackend::precise(isa, threads).unwrap(), options)
}

/// With the fastest arithmetic of `isa`.
pub fn fast_model_on(path: &Path, isa: Isa, threads: usize, options: Options) -> Model {
    load(path, CpuBackend::fast(isa, threads).unwrap(), options)
}

fn load(path: &Path, backend: CpuBackend, options: Options) -> Model {
    let backend = Box::new(backend);
    Model::load(&Gguf::open(path).unwrap(), backend, options).unwrap()
}

/// Logits of every position, the text given in pieces of these lengths (the last of them repeated to the end).
pub fn logits(model: &mut Model, sequence: &mut Sequence, ids: &[u32], pieces: &[usize]) -> Vec<f32> {
    let mut logits = Vec::new();
    let (mut at, mut piece) = (0, 0);
    while at < ids.len() {
        let end = ids.len().min(at + pieces[piece.min(pieces.len() - 1)]);
        model.forward(sequence, &ids[at..end], Rows::All, &mut logits, &mut Unobserved).unwrap();
        (at, piece) = (end, piece + 1);
    }
    logits
}

/// Logits of the last of `ids`, as bits.
pub fn last(model: &mut Model, sequence: &mut Sequence, ids: &[u32]) -> Vec<u32> {
    let mut logits = Vec::new();
    model.forward(sequence, ids, Rows::Last, &mut logits, &mut Unobserved).unwrap();
    logits.into_iter().map(f32::to_bits).collect()
}

/// Everything that a sequence keeps, as bits.
pub fn state(model: &mut Model, sequence: &Sequence) -> Vec<Vec<u32>> {
    let parts = [
        StatePart::GdnMatrix,
        StatePart::ConvHistory,
        StatePart::Keys,
        StatePart::Values,
        StatePart::OpenBlockKeys,
        StatePart::BlockKeys,
    ];
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
    let mut all: Vec<_> = (0..model.config().layers)
        .flat_map(|layer| parts.map(|part| (layer, part)))
        .map(|(layer, part)| bits(model.read_state(sequence, layer, part)))
        .collect();
    all.push(model.read_ple_state(sequence).map_or(Vec::new(), bits));
    all.push(sequence.window().to_vec());
    all
}

/// The prompt of an oracle model.
pub fn oracle(name: &str) -> Vec<u32> {
    Recorded::open(&data(&format!("oracle/{name}/reference.safetensors"))).u32("prefill.input_ids")
}

pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().chain(b).all(|v| v.is_finite()), "not a number");
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// What a run showed of one layer, position by position.
#[derive(Default, Clone)]
pub struct LayerLog {
    pub streams: Vec<f32>,
    pub route_ids: Vec<u32>,
    pub route_weights: Vec<f32>,
    pub ple_rows: Vec<u64>,
    /// Blocks selected by each position; `None` = all tokens.
    pub blocks: Vec<Option<Vec<u32>>>,
}

/// Collects a [`LayerLog`] of each layer.
#[derive(Default)]
pub struct Log {
    pub layers: Vec<LayerLog>,
}

impl Observer for Log {
    fn at(&mut self, moment: Moment, view: &mut LayerView<'_>) {
        if self.layers.len() <= view.layer {
            self.layers.resize(view.layer + 1, LayerLog::default());
        }
        let log = &mut self.layers[view.layer];
        match moment {
            Moment::StripMixed => {
                let rows = view.rows.clone();
                log.blocks.extend(rows.map(|row| view.selected_blocks(row)));
            }
            Moment::LayerDone => {
                log.streams.extend(view.read(Field::Streams));
                log.route_ids.extend(&view.routes.ids);
                log.route_weights.extend(&view.routes.weights);
                log.ple_rows.extend(view.ple_rows);
            }
        }
    }
}

/// Writes a copy of a model file with changes: to its metadata (a new value, or none to leave the key out) and to its
/// tensors (a new name and shape for each, or none to leave it out).
pub fn rewrite(
    source: &Path,
    target: &Path,
    metadata: impl Fn(&str, &Value) -> Option<Value>,
    tensors: impl Fn(&NewTensor) -> Option<NewTensor>,
) {
    let source = Gguf::open(source).unwrap();
    let mut new_metadata = Metadata::new();
    for (key, value) in source.metadata().iter() {
        if let Some(value) = metadata(key, value) {
            new_metadata.insert(key, value).unwrap();
        }
    }
    let kept: Vec<_> = source
        .tensors()
        .filter_map(|t| {
            let old = NewTensor { name: t.name.clone(), dims: t.dims.clone(), ty: t.ty };
            Some((t, tensors(&old)?))
        })
        .collect();
    let new: Vec<_> = kept.iter().map(|(_, new)| new.clone()).collect();
    let mut writer = GgufWriter::create(target, &new_metadata, &new).unwrap();
    for (old, _) in kept {
        writer.write(&source.read(old).unwrap()).unwrap();
    }
    writer.finish().unwrap();
}
