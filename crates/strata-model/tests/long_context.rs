//! A context of more than 32,768 tokens, on a cut of a tiny model: attention far from the beginning against its definition
//! in double precision, and the same bytes for any pieces.

mod common;

use std::path::Path;

use common::{data, model, rewrite};
use strata_backend::{Field, KvType, StatePart};
use strata_gguf::{Array, Gguf, Value};
use strata_model::qwen4exp::{LayerView, Model, Moment, Observer, Options, Rows, Sequence, Unobserved};
use strata_quant::decode_row;

/// Of the four layers that are kept, the last one attends.
const LAYER: usize = 3;
const LAYERS: usize = 4;
/// More tokens in a block than the model was made with: there are fewer blocks to score, so that the test is quick.
const BLOCK_TOKENS: usize = 16;
const BUDGET_BLOCKS: usize = 8;
const PROMPT_TOKENS: usize = 32_768 + 37;
const DECODED_TOKENS: usize = 6;

/// The tiny model that goes past its budget, with fewer layers, and a budget that is not a few tokens.
fn cut(target: &Path) {
    let ratios = [0, 0, 0, BLOCK_TOKENS as i32];
    let metadata = |key: &str, value: &Value| {
        Some(match key.strip_prefix("qwen4exp.").unwrap_or_default() {
            "block_count" => Value::U32(LAYERS as u32),
            "attention.compress_ratios" => Value::Array(Array::I32(ratios.to_vec())),
            "attention.indexer.top_k" => Value::U32((BUDGET_BLOCKS * BLOCK_TOKENS) as u32),
            "context_length" => Value::U32(1 << 18),
            _ => value.clone(),
        })
    };
    rewrite(&data("oracle/longqsa/model-f16.gguf"), target, metadata, |tensor| {
        let layer = tensor.name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        layer.is_none_or(|layer| layer < LAYERS).then(|| tensor.clone())
    });
}

/// What the attention layer was given, chose and gave, of the last row.
#[derive(Default)]
struct Attended {
    input: Vec<f32>,
    blocks: Vec<u32>,
    output: Vec<f32>,
}

impl Observer for Attended {
    fn at(&mut self, moment: Moment, view: &mut LayerView<'_>) {
        if moment == Moment::StripMixed && view.layer == LAYER {
            *self = Self {
                input: view.read(Field::Mixed),
                blocks: view.selected_blocks(view.rows.start).expect("more blocks are seen than the budget has"),
                output: view.read(Field::Output),
            };
        }
    }
}

/// The logits of the prompt's last token and of each decoded one; `check` sees each decoded token's attention.
fn run(
    path: &Path,
    kv: KvType,
    (pass_tokens, strip_rows): (usize, usize),
    pieces: &[usize],
    mut check: impl FnMut(&mut Model, &Sequence, &Attended),
) -> Vec<f32> {
    let options = Options {
        context_tokens: Some(PROMPT_TOKENS + DECODED_TOKENS),
        kv: Some(kv),
        pass_tokens,
        strip_rows,
        keep_details: true,
        ..Options::default()
    };
    let mut model = model(path, options);
    let mut sequence = model.new_sequence().unwrap();
    // Ids without a period; 250 is the boundary of the n-gram hash.
    let ids: Vec<u32> = (0..PROMPT_TOKENS + DECODED_TOKENS).map(|i| (i * i / 7 + i * 13) as u32 % 250).collect();
    let mut logits = Vec::new();
    let (prompt, decoded) = ids.split_at(PROMPT_TOKENS);
    let (mut rest, mut piece) = (prompt, pieces.iter().cycle());
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rest.len().min(*piece.next().unwrap()));
        logits.clear();
        model.forward(&mut sequence, now, Rows::Last, &mut logits, &mut Unobserved).unwrap();
        rest = later;
    }
    for id in decoded {
        let mut attended = Attended::default();
        model.forward(&mut sequence, &[*id], Rows::Last, &mut logits, &mut attended).unwrap();
        check(&mut model, &sequence, &attended);
    }
    assert_eq!(logits.len(), (1 + DECODED_TOKENS) * 256);
    logits
}

/// The weights of the attention layer, in double precision.
struct Reference {
    gguf: Gguf,
}

impl Reference {
    fn weights(&self, name: &str) -> Vec<f64> {
        let tensor = self.gguf.tensor(&format!("blk.{LAYER}.{name}.weight")).unwrap();
        let mut weights = vec![0.0; tensor.weights() as usize];
        decode_row(tensor.ty, &self.gguf.read(tensor).unwrap(), &mut weights);
        weights.into_iter().map(f64::from).collect()
    }

    fn multiply(&self, name: &str, input: &[f64]) -> Vec<f64> {
        self.weights(name).chunks_exact(input.len()).map(|row| dot(row, input)).collect()
    }

    /// The norm of a head by `gamma`, and the rotation of its first eight dimensions at a position.
    fn prepare(&self, head: &[f64], gamma: &str, position: usize) -> Vec<f64> {
        let gamma = self.weights(gamma);
        let size = (dot(head, head) / head.len() as f64 + 1e-6).sqrt();
        let mut out: Vec<f64> = head.iter().zip(gamma).map(|(x, g)| x / size * g).collect();
        for pair in 0..4 {
            let (sin, cos) = (position as f64 * 1e7f64.powf(-2.0 * pair as f64 / 8.0)).sin_cos();
            let (a, b) = (out[pair], out[pair + 4]);
            (out[pair], out[pair + 4]) = (a * cos - b * sin, b * cos + a * sin);
        }
        out
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn doubles(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// Spec 6.3 of the last token, on the keys and values that the sequence keeps.
fn check(reference: &Reference, model: &mut Model, sequence: &Sequence, attended: &Attended) {
    let (tokens, input) = (sequence.tokens(), doubles(&attended.input));
    let mut read = |part| doubles(&model.read_state(sequence, LAYER, part));
    let [block_keys, keys, values] = [StatePart::BlockKeys, StatePart::Keys, StatePart::Values].map(&mut read);
    assert_eq!((block_keys.len(), keys.len()), (tokens / BLOCK_TOKENS * 16, tokens * 64));

    let queries = reference.multiply("indexer.q_proj", &input);
    let queries: Vec<_> =
        queries.chunks(16).map(|head| reference.prepare(head, "indexer.q_norm", tokens - 1)).collect();
    let score = |key: &[f64]| queries.iter().map(|query| dot(query, key).max(0.0)).sum::<f64>();
    let scores: Vec<f64> = block_keys.chunks(16).map(score).collect();
    let mut sorted = scores.clone();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let (last_in, first_out) = (sorted[BUDGET_BLOCKS - 1], sorted[BUDGET_BLOCKS]);
    assert!(last_in > first_out && first_out > 0.0, "the choice is one");
    assert_eq!(attended.blocks.len(), BUDGET_BLOCKS);
    assert!(attended.blocks.is_sorted_by(|a, b| a < b));
    for (block, score) in scores.iter().enumerate() {
        // Sums of float32 may put those on the edge on either side.
        let is_near = (score - last_in).abs() < 1e-5 * last_in;
        let is_in = attended.blocks.contains(&(block as u32));
        assert!(is_near || is_in == (*score >= last_in), "block {block} of score {score}: {last_in} is enough");
    }

    let of_blocks = attended.blocks.iter().flat_map(|b| (0..BLOCK_TOKENS).map(|t| *b as usize * BLOCK_TOKENS + t));
    let selected: Vec<usize> = of_blocks.chain(tokens / BLOCK_TOKENS * BLOCK_TOKENS..tokens).collect();
    let mut heads = Vec::new();
    for (h, projected) in reference.multiply("attn_q", &input).chunks(64).enumerate() {
        let query = reference.prepare(&projected[..32], "attn_q_norm", tokens - 1);
        let row = |token: usize| (token * 2 + h / 4) * 32..(token * 2 + h / 4 + 1) * 32;
        let scores: Vec<f64> = selected.iter().map(|t| dot(&query, &keys[row(*t)]) / 32f64.sqrt()).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for d in 0..32 {
            let mean = selected.iter().zip(&weights).map(|(t, w)| w * values[row(*t)][d]).sum::<f64>() / sum;
            heads.push(mean / (1.0 + (-projected[32 + d]).exp()));
        }
    }
    let output = reference.multiply("attn_output", &heads);
    let size = output.iter().fold(0.0, |size: f64, o| size.max(o.abs()));
    for (got, want) in attended.output.iter().zip(output) {
        assert!((f64::from(*got) - want).abs() < 2e-5 * size, "{got}, want {want} (largest {size})");
    }
}

#[test]
fn attention_past_32768_tokens_is_what_is_defined_and_does_not_show_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long.gguf");
    cut(&path);
    let reference = Reference { gguf: Gguf::open(&path).unwrap() };
    let mut checked = 0;
    let whole = run(&path, KvType::Q8_0, (8192, 1024), &[PROMPT_TOKENS], |model, sequence, attended| {
        check(&reference, model, sequence, attended);
        checked += 1;
    });
    assert_eq!(checked, DECODED_TOKENS);
    let pieces = run(&path, KvType::Q8_0, (3000, 500), &[20_001, 3, 7777], |_, _, _| ());
    assert!(whole == pieces, "logits differ");
}
