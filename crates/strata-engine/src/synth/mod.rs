//! Synthetic models: valid files of real shapes and types with random weights, for tests and measurements without the
//! real files.
//!
//! Promises: the same options give the same bytes; routing has the statistics of real text as nearly as
//! [`Routing`] says, by weights only; a tensor's bytes do not depend on how many layers there are; files appear under
//! their names when they are whole, and what was begun is removed when writing ends early.
//! Refuses: to replace a file.

pub(crate) mod blocks;
mod shapes;
mod statistics;
mod tokens;
mod weights;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use strata_gguf::{Array, GgufError, GgufWriter, Metadata, NewTensor, Value, set_metadata, set_path};
use strata_model::ModelError;
use thiserror::Error;

use self::blocks::Random;
use self::shapes::Shape;
pub use self::shapes::SynthShape;
pub use self::statistics::SynthStatistics;
use self::tokens::{Shares, TokenRows};
use self::weights::{Fill, Planned};
use crate::Stop;

/// What is to be made.
#[derive(Clone, Debug)]
pub struct SynthOptions {
    /// The model's shape.
    pub shape: SynthShape,
    /// Use only so many layers.
    pub layers: Option<usize>,
    /// Use only so many experts a layer.
    pub experts: Option<usize>,
    /// About how many rows the n-gram table has; 0: the model has no n-gram module; `None`: the shape's own number.
    pub table_rows: Option<u64>,
    /// Whether the n-gram table gets a file of its own, as in the public releases.
    pub split: bool,
    /// Seed of all that is random.
    pub seed: u64,
    /// How routing behaves.
    pub routing: Routing,
}

/// How routing behaves. The defaults were chosen for the shape with 512 experts (`docs/synth.md`).
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Share of the router logits' variance that all tokens have in common: popularity of experts.
    pub skew: f32,
    /// Share that the tokens of a domain have in common; a prompt's documents are each of one.
    pub domain: f32,
    /// Share that the tokens of a topic of the domain have in common. What is left is each token's own.
    pub topic: f32,
    /// Tokens for which the prompt stays with a topic, on average.
    pub topic_tokens: u32,
    /// How much layers differ in what they read of the streams: with more, forecasts are worse.
    pub drift: f32,
    /// How much what is read depends on the token: the standard deviation of the gates' logits.
    pub gate: f32,
}

impl Default for Routing {
    fn default() -> Self {
        Self { skew: 0.05, domain: 0.22, topic: 0.13, topic_tokens: 60, drift: 0.3, gate: 0.15 }
    }
}

/// What can go wrong.
#[derive(Debug, Error)]
pub enum SynthError {
    /// A cut that the shape cannot have.
    #[error("{shape} cannot have {got} {what}: expected {least} to {whole}")]
    Cut {
        /// The shape's name.
        shape: &'static str,
        /// What was to be cut.
        what: &'static str,
        /// The number asked for.
        got: usize,
        /// The least possible.
        least: usize,
        /// The whole shape's.
        whole: usize,
    },
    /// A table larger than any.
    #[error("an n-gram table of {got} rows is too large: expected at most {most}")]
    TableRows {
        /// Rows asked for.
        got: u64,
        /// The most.
        most: u64,
    },
    /// Numbers of [`Routing`] that do not go together.
    #[error("{0}")]
    Routing(&'static str),
    /// A file is in the way.
    #[error("{}: the file exists already: remove it, or choose another name", .0.display())]
    Exists(PathBuf),
    /// A whole file could not get its name.
    #[error("{}: cannot rename the finished file: {error}", path.display())]
    Rename {
        /// The name it was to get.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// Writing failed.
    #[error(transparent)]
    File(#[from] GgufError),
    /// Running what was written failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The caller's own request to stop.
    #[error("stopped")]
    Cancelled,
}

/// A model ready to be written.
#[derive(Debug)]
pub struct Synth {
    options: SynthOptions,
    shape: Shape,
    metadata: Metadata,
    files: Vec<Vec<Planned>>,
    prompt: Vec<u32>,
}

/// Bytes of a tensor that are made; a longer tensor repeats pieces of them from changing places.
const POOL_BYTES: usize = 16 << 20;
/// More than all headers take, with the padding between tensors.
const HEADER_BYTES: u64 = 1 << 20;
/// Bytes that are written at a time.
const PIECE_BYTES: usize = 4 << 20;
const _: () = assert!(POOL_BYTES > 2 * PIECE_BYTES, "pieces of a pool start at many places");

impl Synth {
    /// Decides what every file holds.
    ///
    /// # Errors
    /// When the options cannot be.
    pub fn plan(options: &SynthOptions) -> Result<Self, SynthError> {
        let &SynthOptions { shape, layers, experts, table_rows, .. } = options;
        Self::with_shape(options, Shape::cut(shape, layers, experts, table_rows)?)
    }

    fn with_shape(options: &SynthOptions, shape: Shape) -> Result<Self, SynthError> {
        let Routing { skew, domain, topic, topic_tokens, drift, gate } = options.routing;
        if !([skew, domain, topic].iter().all(|share| *share >= 0.0) && skew + domain + topic <= 1.0) {
            return Err(SynthError::Routing(
                "the shares of all tokens, domains and topics must be at least 0 each and at most 1 together",
            ));
        }
        if !(0.0..=2.0).contains(&drift) || !(0.0..=10.0).contains(&gate) || topic_tokens == 0 {
            return Err(SynthError::Routing(
                "expected a drift from 0 to 2, gates from 0 to 10 and topics of at least 1 token",
            ));
        }
        let prompt = tokens::prompt(&shape, &options.routing, options.seed);
        let mut metadata = Metadata::new();
        for (key, value) in [
            ("general.architecture", Value::String("qwen4exp".to_owned())),
            ("general.name", Value::String(format!("Synthetic {}", options.shape.name()))),
            ("strata.synth.seed", Value::U64(options.seed)),
            ("strata.synth.prompt_ids", Value::Array(Array::U32(prompt.clone()))),
        ] {
            metadata.insert(key, value).expect("each key is put once");
        }
        shape.describe(&mut metadata);
        let mut tensors = weights::tensors(&shape, &options.routing);
        let table = (options.split && shape.ple.is_some()).then(|| tensors.split_off(tensors.len() - 1));
        let files = std::iter::once(tensors).chain(table).collect();
        Ok(Self { options: options.clone(), shape, metadata, files, prompt })
    }

    /// The files that [`write`](Self::write) makes of `path`.
    pub fn paths(&self, path: &Path) -> Vec<PathBuf> {
        let count = self.files.len() as u16;
        (0..count).map(|no| set_path(path, no, count)).collect()
    }

    /// Bytes of all tensors: what writing counts up to.
    pub fn data_bytes(&self) -> u64 {
        self.files.iter().flatten().map(len_bytes).sum()
    }

    /// Room on the drive that writing and then measuring take.
    ///
    /// # Errors
    /// None that [`plan`](Self::plan) did not find.
    pub fn needed_bytes(&self) -> Result<u64, SynthError> {
        Ok(self.data_bytes() + self.measured()?.data_bytes() + HEADER_BYTES)
    }

    /// Ids to use as a prompt; the file has them as `strata.synth.prompt_ids`.
    pub fn prompt_ids(&self) -> &[u32] {
        &self.prompt
    }

    /// Writes the files, telling `progress` the bytes written since it was last called.
    ///
    /// # Errors
    /// When a file exists or cannot be written, or `stop` is set. Nothing is left then.
    pub fn write(&self, path: &Path, stop: &Stop, progress: &mut dyn FnMut(u64)) -> Result<Vec<PathBuf>, SynthError> {
        let paths = self.paths(path);
        if let Some(taken) = paths.iter().find(|path| path.exists()) {
            return Err(SynthError::Exists(taken.clone()));
        }
        let mut parts = Parts(Vec::new());
        let tensor_count = self.files.iter().map(Vec::len).sum::<usize>() as i32;
        for (no, (tensors, path)) in self.files.iter().zip(&paths).enumerate() {
            let mut name = path.clone().into_os_string();
            name.push(".part");
            let part = PathBuf::from(name);
            let metadata = set_metadata(&self.metadata, no as u16, paths.len() as u16, tensor_count);
            let declared: Vec<NewTensor> = tensors.iter().map(|planned| planned.tensor.clone()).collect();
            let mut writer = GgufWriter::create(&part, &metadata, &declared)?;
            parts.0.push(part);
            for planned in tensors {
                self.write_tensor(planned, &mut |bytes| {
                    if stop.load(Ordering::Relaxed) {
                        return Err(SynthError::Cancelled);
                    }
                    writer.write(bytes)?;
                    progress(bytes.len() as u64);
                    Ok(())
                })?;
            }
            writer.finish()?;
        }
        for (part, path) in parts.0.iter().zip(&paths) {
            std::fs::rename(part, path).map_err(|error| SynthError::Rename { path: path.clone(), error })?;
        }
        parts.0.clear();
        Ok(paths)
    }

    /// Makes a tensor's bytes and gives them to `write` in pieces.
    fn write_tensor(
        &self,
        planned: &Planned,
        write: &mut dyn FnMut(&[u8]) -> Result<(), SynthError>,
    ) -> Result<(), SynthError> {
        let NewTensor { name, dims, ty } = &planned.tensor;
        let weights = dims.iter().product::<u64>();
        let mut random = Random::named(self.options.seed, name);
        match planned.fill {
            Fill::Random(std) => {
                let pool_weights = weights.min((POOL_BYTES / ty.block_bytes() * ty.block_weights()) as u64);
                let pool = blocks::random_blocks(*ty, std, pool_weights as usize, &mut random);
                write_repeated(&pool, ty.block_bytes(), len_bytes(planned), &mut random, write)
            }
            Fill::Around { mean, std, period } => {
                let values: Vec<f32> = (0..period).map(|_| mean + std * random.normal()).collect();
                let all: Vec<f32> = values.iter().copied().cycle().take(weights as usize).collect();
                write(&blocks::encoded(*ty, &all))
            }
            Fill::Decays => {
                let last = (weights - 1).max(1) as f32;
                let values: Vec<f32> = (0..weights).map(|i| -(6.0 * i as f32 / last - 4.0).exp2()).collect();
                write(&blocks::encoded(*ty, &values))
            }
            Fill::Embedding => {
                let Routing { skew: all, domain, topic, .. } = self.options.routing;
                let shares = Shares { all, domain, topic };
                self.write_rows(TokenRows::new(name, self.shape.hidden, 1.0, shares, self.options.seed), write)
            }
            Fill::Output => {
                // A share that both ends have lifts the logits of tokens like those read by
                // deviation * sqrt(hidden * share here * share in the embedding).
                let Routing { domain, topic, .. } = self.options.routing;
                let root = (self.shape.hidden as f32).sqrt();
                let share = |lift: f32, in_embedding: f32| {
                    let share = (lift / (OUTPUT_LOGIT_STD * root)).powi(2) / in_embedding.max(f32::MIN_POSITIVE);
                    share.min(0.4)
                };
                let shares = Shares { all: 0.0, domain: share(DOMAIN_LIFT, domain), topic: share(TOPIC_LIFT, topic) };
                let std = OUTPUT_LOGIT_STD / (weights::INPUT_RMS * root);
                self.write_rows(TokenRows::new(name, self.shape.hidden, std, shares, self.options.seed), write)
            }
        }
    }

    fn write_rows(
        &self,
        mut rows: TokenRows,
        write: &mut dyn FnMut(&[u8]) -> Result<(), SynthError>,
    ) -> Result<(), SynthError> {
        let mut bytes = Vec::with_capacity(2 * PIECE_BYTES);
        for id in 0..self.shape.vocabulary {
            rows.append(id, &mut bytes);
            if bytes.len() >= PIECE_BYTES {
                write(&bytes)?;
                bytes.clear();
            }
        }
        write(&bytes)
    }
}

/// Standard deviation of the model's logits, but for what follows.
const OUTPUT_LOGIT_STD: f32 = 3.0;
/// How far the logits of the tokens of the text's domain and topic are above the others: generated text leaves a topic
/// as rarely as a prompt does (15 other topics of the domain weigh e^-7 each), and a domain hardly ever.
const DOMAIN_LIFT: f32 = 9.0;
const TOPIC_LIFT: f32 = 7.0;

fn len_bytes(planned: &Planned) -> u64 {
    let NewTensor { dims, ty, .. } = &planned.tensor;
    ty.row_bytes(dims.iter().product()).expect("shapes are made of whole blocks")
}

/// Writes the pool, then pieces of it that start at random blocks, up to `len_bytes` bytes.
fn write_repeated(
    pool: &[u8],
    block_bytes: usize,
    len_bytes: u64,
    random: &mut Random,
    write: &mut dyn FnMut(&[u8]) -> Result<(), SynthError>,
) -> Result<(), SynthError> {
    pool.chunks(PIECE_BYTES).try_for_each(&mut *write)?;
    let mut left = len_bytes - pool.len() as u64;
    while left > 0 {
        let bytes = left.min((PIECE_BYTES / block_bytes * block_bytes) as u64) as usize;
        let start = random.below((pool.len() - bytes) / block_bytes + 1) * block_bytes;
        write(&pool[start..start + bytes])?;
        left -= bytes as u64;
    }
    Ok(())
}

/// Files that are removed unless they were forgotten.
struct Parts(Vec<PathBuf>);

impl Drop for Parts {
    fn drop(&mut self) {
        for path in &self.0 {
            // Whatever ended the writing is what the user should hear about.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use strata_gguf::TensorType;

    use super::*;

    fn options(shape: SynthShape) -> SynthOptions {
        SynthOptions {
            shape,
            layers: None,
            experts: None,
            table_rows: None,
            split: false,
            seed: 1,
            routing: Routing::default(),
        }
    }

    /// Sizes of the public files (spec 12): 1224 tensors, routed experts of 35,454,976,000 bytes in a first file of
    /// 39,225,954,592 bytes, which has the tokenizer besides; a second file of 28,800,138,432 bytes with 192 of header.
    #[test]
    fn the_real_shape_has_the_sizes_of_the_real_files() {
        let whole = SynthOptions { table_rows: Some(320_000_000), split: true, ..options(SynthShape::FlashNextIq2) };
        let synth = Synth::plan(&whole).unwrap();
        assert_eq!(synth.files.iter().map(Vec::len).collect::<Vec<_>>(), [1223, 1]);
        let bytes = |no: usize| synth.files[no].iter().map(len_bytes).sum::<u64>();
        assert_eq!(bytes(1), 28_800_138_432 - 192);
        let routed = synth.files[0].iter().filter(|planned| planned.tensor.name.contains("_exps."));
        assert_eq!(routed.map(len_bytes).sum::<u64>(), 35_454_976_000);
        let tokenizer_bytes = 39_225_954_592 - bytes(0);
        assert!((5_000_000..15_000_000).contains(&tokenizer_bytes), "{tokenizer_bytes}");
        for (ty, count) in [(TensorType::BF16, 484), (TensorType::F32, 292), (TensorType::F16, 1)] {
            let got = synth.files[0].iter().filter(|planned| planned.tensor.ty == ty).count();
            assert_eq!(got, count, "{ty}");
        }
        let ple = synth.shape.ple.unwrap();
        assert_eq!((ple.head_rows[0], ple.head_rows[15], ple.table_rows()), (20_000_003, 20_000_171, 320_001_536));
    }

    #[test]
    fn a_cut_has_the_same_bytes_where_it_has_tensors() {
        let bytes = |options: &SynthOptions, name: &str| {
            let synth = Synth::plan(options).unwrap();
            let planned = synth.files[0].iter().find(|planned| planned.tensor.name == name).unwrap();
            let mut bytes = Vec::new();
            let mut write = |piece: &[u8]| {
                bytes.extend_from_slice(piece);
                Ok(())
            };
            synth.write_tensor(planned, &mut write).unwrap();
            assert_eq!(bytes.len() as u64, len_bytes(planned), "{name}");
            bytes
        };
        let whole = options(SynthShape::Small);
        let cut = SynthOptions { layers: Some(2), ..whole.clone() };
        let reseeded = SynthOptions { seed: 2, ..whole.clone() };
        for name in
            ["token_embd.weight", "blk.1.ffn_gate_inp.weight", "blk.0.ssm_out.weight", "blk.1.hc_ffn_norm.weight"]
        {
            assert!(bytes(&whole, name) == bytes(&cut, name), "{name} differs");
            assert!(bytes(&whole, name) != bytes(&reseeded, name), "{name} does not depend on the seed");
        }
    }

    /// Experts must differ although a tensor repeats pieces of a pool. Types of few bits once had pools smaller than a
    /// piece, which ended in a panic.
    #[test]
    fn long_tensors_of_any_type_have_no_two_records_alike() {
        use TensorType::{BF16, IQ1_M, IQ2_S, IQ2_XXS, IQ4_NL, Q2_0};
        let synth = Synth::plan(&options(SynthShape::Small)).unwrap();
        for ty in [IQ1_M, IQ2_XXS, IQ2_S, Q2_0, IQ4_NL, BF16] {
            let tensor = NewTensor { name: "x".to_owned(), dims: vec![2560, 640, 100], ty };
            let planned = Planned { tensor, fill: Fill::Random(0.1) };
            let mut bytes = Vec::new();
            let mut write = |piece: &[u8]| {
                bytes.extend_from_slice(piece);
                Ok(())
            };
            synth.write_tensor(&planned, &mut write).unwrap();
            assert_eq!(bytes.len() as u64, len_bytes(&planned), "{ty}");
            assert!(bytes.len() > POOL_BYTES, "{ty}: nothing is repeated");
            let records: std::collections::HashSet<&[u8]> = bytes.chunks_exact(bytes.len() / 100).collect();
            assert_eq!(records.len(), 100, "{ty}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |change: &dyn Fn(&mut SynthOptions), part: &str| {
            let mut options = options(SynthShape::Small);
            change(&mut options);
            let error = Synth::plan(&options).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        refused(&|o| o.layers = Some(0), "cannot have 0 layers: expected 1 to 4");
        refused(&|o| o.layers = Some(5), "5 layers");
        refused(&|o| o.experts = Some(3), "cannot have 3 experts: expected 4 to 32");
        refused(&|o| o.table_rows = Some(u64::MAX), "too large");
        refused(&|o| o.routing.skew = 0.9, "shares");
        refused(&|o| o.routing.topic = f32::NAN, "shares");
        refused(&|o| o.routing.drift = -1.0, "drift");
        refused(&|o| o.routing.topic_tokens = 0, "topics of at least 1 token");
    }
}
