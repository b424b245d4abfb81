//! The speed of kernels alone, at the shapes of the published model (spec 1), and how near it comes to the machine's limits.

use std::hint::black_box;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use strata_gguf::TensorType::{self, *};
use strata_kernels::decode::{decode_blocks, decode_blocks_to_bfloat16};
use strata_kernels::experts::{Choice, Expert, Outputs, experts};
use strata_kernels::matmul::{Matrix, matmul};
use strata_kernels::peaks::{Peak, read_bytes_per_second};
use strata_kernels::{Arithmetic, Cpu};
use strata_model::ModelError;

use super::Spread;
use super::attention::{self, AttentionBench};
use super::weights::{Cursor, Weights};
use crate::synth::blocks::Random;
use crate::{EngineError, Stop};

/// Width of a stream and of an expert, and outputs of the largest matrix of a layer.
const HIDDEN: usize = 2560;
const FF: usize = 640;
const WIDE: usize = 10_240;
/// Rows of `dense`.
const DENSE_ROWS: usize = 512;
/// Rows of a pass, of which the experts of `grouped` choose some.
const PASS_ROWS: usize = 1024;
/// Weight rows that are decoded at a time.
const PANEL_ROWS: usize = 16;
/// Samples of each kernel, and how long one takes at least.
const SAMPLES: usize = 5;
const SAMPLE: Duration = Duration::from_millis(80);
/// Turns of each layer in a sample of `attention`; before each, as much is read as no cache holds.
const TURNS: usize = 8;
/// The machine's reading is measured on one of so many parts of the weights at a time.
const READ_PARTS: usize = 4;

/// What a kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelKind {
    /// Weights to the form that products use, alone.
    Decode,
    /// One input row times a matrix.
    Row,
    /// Many input rows times a matrix.
    Dense,
    /// Routed experts with some rows each: gathered, gate and up, silu, down.
    Grouped,
    /// One token's choice of blocks and attention, in 32,768 tokens of context.
    Attention,
}

/// A kernel with a type of weights and a number of input rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelCase {
    /// What it does.
    pub kind: KernelKind,
    /// Type of the weights; of `Grouped`, of gate and up; of `Attention`, what keys and values are kept in.
    pub ty: TensorType,
    /// Input rows; of `Grouped`, of each expert.
    pub rows: usize,
}

impl KernelKind {
    /// For people and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Row => "row",
            Self::Dense => "dense",
            Self::Grouped => "grouped",
            Self::Attention => "attention",
        }
    }
}

impl KernelCase {
    /// Types of experts, then those of dense matrices.
    const TYPES: [TensorType; 16] =
        [IQ2_S, IQ2_XXS, IQ2_XS, IQ1_M, Q2_0, IQ3_S, Q4_0, IQ4_XS, IQ4_NL, Q8_0, Q6_K, Q5_K, Q4_K, BF16, F16, F32];

    /// Every one, those of a type together.
    pub fn all() -> Vec<Self> {
        let of_type = |ty| {
            [
                (KernelKind::Decode, 0),
                (KernelKind::Row, 1),
                (KernelKind::Dense, DENSE_ROWS),
                (KernelKind::Grouped, 24),
                (KernelKind::Grouped, 128),
            ]
            .map(|(kind, rows)| Self { kind, ty, rows })
        };
        let attention = |ty| attention::kv_type(ty).map(|_| Self { kind: KernelKind::Attention, ty, rows: 1 });
        Self::TYPES.into_iter().flat_map(|ty| of_type(ty).into_iter().chain(attention(ty))).collect()
    }

    /// `[outputs, inputs]` of its matrix.
    fn shape(self) -> [usize; 2] {
        match self.kind {
            // Large enough that threads wait little for each other.
            KernelKind::Decode => [WIDE, HIDDEN],
            _ if matches!(self.ty, IQ2_S | IQ2_XXS | IQ2_XS | IQ1_M | Q2_0) => [FF, HIDDEN],
            _ => [WIDE, HIDDEN],
        }
    }

    /// Type of the experts' down matrices, which have rows of [`FF`] weights.
    fn down(self) -> TensorType {
        if self.ty.row_bytes(FF as u64).is_some() { self.ty } else { Q2_0 }
    }
}

/// How fast a kernel is: medians.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelRate {
    /// The kernel.
    pub case: KernelCase,
    /// Operations per second, two for a multiply-add.
    pub flops_per_second: f64,
    /// Bytes of weights, or of keys, values and the indexer's keys, per second.
    pub bytes_per_second: f64,
    /// Weights, or keys and values, per second.
    pub weights_per_second: f64,
    /// The most operations per second of the arithmetic in use.
    pub peak_flops_per_second: f64,
    /// The most bytes per second that the machine reads.
    pub peak_bytes_per_second: f64,
}

impl KernelRate {
    /// How near it comes to the limit that it is nearest to.
    pub fn fraction(&self) -> f64 {
        let of_bytes = self.bytes_per_second / self.peak_bytes_per_second;
        of_bytes.max(self.flops_per_second / self.peak_flops_per_second)
    }
}

/// What one call of a kernel does.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    pub(super) flops: usize,
    pub(super) bytes: usize,
    pub(super) weights: usize,
}

/// A machine ready to be measured.
pub struct KernelBench {
    cpu: Cpu,
    weights: Weights,
    /// Down matrices of experts whose other types have no rows so short.
    downs: Weights,
    /// Of the type at hand.
    attention: Option<AttentionBench>,
    /// `[PASS_ROWS][HIDDEN]`.
    x: Vec<f32>,
    out: Vec<f32>,
    group: usize,
}

impl KernelBench {
    /// With `weight_bytes` of memory for weights, an eighth more for down matrices, and some for inputs and outputs.
    /// `None`: there is not so much memory.
    pub fn new(cpu: Cpu, weight_bytes: usize) -> Option<Self> {
        let mut random = Random::named(0, "inputs");
        let x = (0..PASS_ROWS * HIDDEN).map(|_| random.normal()).collect();
        let weights = Weights::allocate(weight_bytes)?;
        let mut downs = Weights::allocate(weight_bytes / 8)?;
        downs.fill(&cpu, Q2_0);
        let group = (2 * cpu.threads()).max(8);
        Some(Self { cpu, weights, downs, attention: None, x, out: Vec::new(), group })
    }

    /// The least memory for weights: two of the largest matrices in float32.
    pub const MIN_WEIGHT_BYTES: usize = 2 * 4 * WIDE * HIDDEN;

    /// What computes.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// Operations per second of every instruction that the machine has.
    pub fn peaks(&self) -> Vec<(Peak, f64)> {
        let measured = |peak: Peak| Some((peak, peak.flops_per_second(&self.cpu)?));
        Peak::ALL.into_iter().filter_map(measured).collect()
    }

    /// Measures kernels with weights of one type, in turns with each other and the machine's limits.
    ///
    /// # Errors
    /// When it is stopped, or memory does not suffice.
    ///
    /// # Panics
    /// When the types differ.
    pub fn measure(&mut self, cases: &[KernelCase], stop: &Stop) -> Result<Vec<KernelRate>, EngineError> {
        let Some(first) = cases.first() else { return Ok(Vec::new()) };
        assert!(cases.iter().all(|case| case.ty == first.ty), "kernels of one type");
        self.weights.fill(&self.cpu, first.ty);
        self.attention = match attention::kv_type(first.ty) {
            Some(kv) if cases.iter().any(|case| case.kind == KernelKind::Attention) => Some(AttentionBench::new(kv)?),
            _ => None,
        };
        let mut units: Vec<Unit> = Vec::new();
        let mut cursors = vec![(Cursor::default(), Cursor::default()); cases.len()];
        for (case, cursors) in cases.iter().zip(&mut cursors) {
            // Not timed: buffers grow.
            units.push(self.call(*case, cursors));
        }
        let mut seconds = vec![Vec::with_capacity(SAMPLES); cases.len()];
        let (mut peak_flops, mut peak_bytes) = (Vec::new(), Vec::new());
        let peak = Peak::of(&self.cpu);
        for sample in 0..SAMPLES {
            peak_flops.extend(peak.flops_per_second(&self.cpu));
            peak_bytes.push(read_bytes_per_second(&self.cpu, self.weights.part(sample, READ_PARTS)));
            for ((case, cursors), seconds) in cases.iter().zip(&mut cursors).zip(&mut seconds) {
                if stop.load(Ordering::Relaxed) {
                    return Err(ModelError::Cancelled.into());
                }
                match &mut self.attention {
                    Some(attention) if case.kind == KernelKind::Attention => {
                        for turn in 0..TURNS {
                            let part = self.weights.part(sample + turn, READ_PARTS);
                            peak_bytes.push(read_bytes_per_second(&self.cpu, part));
                            seconds.push(turn_seconds(&self.cpu, attention));
                        }
                    }
                    _ => seconds.push(self.sample(*case, cursors)),
                }
            }
        }
        let peak_flops_per_second = Spread::of(peak_flops).median;
        let peak_bytes_per_second = Spread::of(peak_bytes).median;
        let rate = |((case, unit), seconds): ((&KernelCase, Unit), Vec<f64>)| {
            let seconds = Spread::of(seconds).median;
            KernelRate {
                case: *case,
                flops_per_second: unit.flops as f64 / seconds,
                bytes_per_second: unit.bytes as f64 / seconds,
                weights_per_second: unit.weights as f64 / seconds,
                peak_flops_per_second,
                peak_bytes_per_second,
            }
        };
        Ok(cases.iter().zip(units).zip(seconds).map(rate).collect())
    }

    /// Seconds of a call.
    fn sample(&mut self, case: KernelCase, cursors: &mut (Cursor, Cursor)) -> f64 {
        let start = Instant::now();
        let mut calls = 0;
        loop {
            self.call(case, cursors);
            calls += 1;
            let elapsed = start.elapsed();
            if elapsed >= SAMPLE {
                return elapsed.as_secs_f64() / f64::from(calls);
            }
        }
    }

    /// Calls a kernel once.
    fn call(&mut self, case: KernelCase, cursors: &mut (Cursor, Cursor)) -> Unit {
        match case.kind {
            KernelKind::Decode => self.decode(case, &mut cursors.0),
            KernelKind::Row | KernelKind::Dense => self.product(case, &mut cursors.0),
            KernelKind::Grouped => self.grouped(case, cursors),
            KernelKind::Attention => self.attention.as_mut().expect("it was made for the type").call(&self.cpu, 0),
        }
    }

    fn decode(&mut self, case: KernelCase, cursor: &mut Cursor) -> Unit {
        let (ty, [rows, cols]) = (case.ty, case.shape());
        let bytes = self.weights.next(cursor, bytes_of(ty, rows * cols));
        let panel_weights = PANEL_ROWS * cols;
        let panels: Vec<&[u8]> = bytes.chunks_exact(bytes_of(ty, panel_weights)).collect();
        let isa = self.cpu.isa();
        let mut ends = vec![(); panels.len()];
        match self.cpu.arithmetic() {
            Arithmetic::Float32 => self.cpu.for_rows_with(
                &mut ends,
                1,
                || vec![0f32; panel_weights],
                |out, i, _| decode_blocks(isa, ty, panels[i], black_box(out)),
            ),
            Arithmetic::Bfloat16 => self.cpu.for_rows_with(
                &mut ends,
                1,
                || vec![0u16; panel_weights],
                |out, i, _| decode_blocks_to_bfloat16(isa, ty, panels[i], black_box(out)),
            ),
        }
        Unit { flops: 0, bytes: bytes.len(), weights: rows * cols }
    }

    fn product(&mut self, case: KernelCase, cursor: &mut Cursor) -> Unit {
        let [rows, cols] = case.shape();
        let bytes = self.weights.next(cursor, bytes_of(case.ty, rows * cols));
        let matrix = Matrix::new(case.ty, rows, cols, 1.0, bytes);
        self.out.resize(self.out.len().max(case.rows * rows), 0.0);
        matmul(&self.cpu, &matrix, &self.x[..case.rows * cols], &mut self.out[..case.rows * rows]);
        Unit { flops: 2 * case.rows * rows * cols, bytes: bytes.len(), weights: rows * cols }
    }

    fn grouped(&mut self, case: KernelCase, (cursor, down_cursor): &mut (Cursor, Cursor)) -> Unit {
        let (choices, top_k) = choices(self.group, case.rows);
        let (weights, down_type) = (FF * HIDDEN, case.down());
        let (gate_bytes, down_bytes) = (bytes_of(case.ty, weights), bytes_of(down_type, weights));
        let mut group = Vec::with_capacity(self.group);
        for choices in choices.chunks_exact(case.rows) {
            let [gate, up] =
                [(); 2].map(|()| Matrix::new(case.ty, FF, HIDDEN, 1.0, self.weights.next(cursor, gate_bytes)));
            let down = match down_type == case.ty {
                true => self.weights.next(cursor, down_bytes),
                false => self.downs.next(down_cursor, down_bytes),
            };
            group.push(Expert { gate, up, down: Matrix::new(down_type, HIDDEN, FF, 1.0, down), choices });
        }
        let len = PASS_ROWS * top_k * HIDDEN;
        self.out.resize(self.out.len().max(len), 0.0);
        let mut outputs = Outputs { out: &mut self.out[..len], hidden: None, top_k };
        experts(&self.cpu, &group, &self.x, &mut outputs);
        let count = self.group;
        let bytes = (2 * gate_bytes + down_bytes) * count;
        Unit { flops: 2 * 3 * weights * case.rows * count, bytes, weights: 3 * weights * count }
    }
}

/// Seconds of a call, of one after another for each layer.
fn turn_seconds(cpu: &Cpu, bench: &mut AttentionBench) -> f64 {
    let start = Instant::now();
    for layer in 0..attention::LAYERS {
        bench.call(cpu, layer);
    }
    start.elapsed().as_secs_f64() / attention::LAYERS as f64
}

/// Bytes of weights of a type.
fn bytes_of(ty: TensorType, weights: usize) -> usize {
    ty.row_bytes(weights as u64).expect("the shapes are whole blocks of every type here") as usize
}

/// The choices of `experts` experts, `rows` each, spread over a pass; and the choices that a row has room for.
fn choices(experts: usize, rows: usize) -> (Vec<Choice>, usize) {
    let mut chosen = vec![0; PASS_ROWS];
    let mut choices = Vec::with_capacity(experts * rows);
    for expert in 0..experts {
        for i in 0..rows {
            let row = (i * PASS_ROWS / rows + expert * 5) % PASS_ROWS;
            choices.push(Choice { row: row as u32, k: chosen[row] });
            chosen[row] += 1;
        }
    }
    (choices, chosen.into_iter().max().unwrap_or(0) as usize)
}

#[cfg(test)]
mod tests {
    use strata_kernels::Isa;

    use super::*;

    #[test]
    fn what_a_call_does_is_counted() {
        let cpu = Cpu::precise(Isa::best(), 2).unwrap();
        let mut bench = KernelBench::new(cpu, KernelBench::MIN_WEIGHT_BYTES).unwrap();
        bench.weights.fill(&bench.cpu, IQ2_S);
        let mut call = |kind, rows| {
            let unit = bench.call(KernelCase { kind, ty: IQ2_S, rows }, &mut Default::default());
            (unit.flops, unit.bytes, unit.weights)
        };
        // IQ2_S: 82 bytes for 256 weights; Q2_0: 18 for 64.
        assert_eq!(call(KernelKind::Decode, 0), (0, 10_240 * 820, 10_240 * 2560));
        assert_eq!(call(KernelKind::Row, 1), (2 * 640 * 2560, 640 * 820, 640 * 2560));
        assert_eq!(call(KernelKind::Dense, 3), (6 * 640 * 2560, 640 * 820, 640 * 2560));
        let expert = 640 * 2560;
        let expert_bytes = 2 * 640 * 820 + 2560 * 180;
        assert_eq!(call(KernelKind::Grouped, 24), (8 * 24 * 6 * expert, 8 * expert_bytes, 8 * 3 * expert));
    }

    #[test]
    fn experts_choose_distinct_places() {
        for (experts, rows) in [(8, 24), (8, 128), (64, 128)] {
            let (choices, top_k) = choices(experts, rows);
            let places: std::collections::HashSet<_> = choices.iter().map(|choice| (choice.row, choice.k)).collect();
            assert_eq!(places.len(), experts * rows);
            assert!(choices.iter().all(|choice| (choice.k as usize) < top_k && (choice.row as usize) < PASS_ROWS));
            assert!(top_k * PASS_ROWS < 2 * experts * rows + PASS_ROWS, "{top_k} places a row");
        }
    }
}
