//! Against numbers recorded from the reference implementation (float32; see `docs/spec/qwen4exp.md`, section 13): three
//! tiny models whose weights are exact in float16.

mod common;

use std::path::Path;

use common::{LayerLog, Log, Recorded, data, fast_model_on, logits, max_difference, model, model_on};
use strata_backend::{GdnForm, Isa, StatePart};
use strata_model::qwen4exp::{MixerKind, Model, Options, Rows, Sequence};

const MODELS: [&str; 3] = ["mini4", "moe8ple", "longqsa"];
const LOGITS: f32 = 5e-5;
const STREAMS: f32 = 1e-4;
const STATES: f32 = 1e-4;

fn open(name: &str, options: Options) -> (Model, Recorded) {
    let path = |file| data(&format!("oracle/{name}/{file}"));
    (model(&path("model-f16.gguf"), options), Recorded::open(&path("reference.safetensors")))
}

fn with_details() -> Options {
    Options { keep_details: true, ..Options::default() }
}

/// Runs ids and returns their logits and what the layers showed.
fn observed(model: &mut Model, sequence: &mut Sequence, ids: &[u32]) -> (Vec<f32>, Vec<LayerLog>) {
    let (mut logits, mut log) = (Vec::new(), Log::default());
    model.forward(sequence, ids, Rows::All, &mut logits, &mut log).unwrap();
    (logits, log.layers)
}

/// Compares what layers showed with what was recorded under `prefix`; returns how many comparisons there were.
fn compare_layers(
    name: &str,
    model: &Model,
    layers: &[LayerLog],
    recorded: &Recorded,
    prefix: &str,
    first: usize,
) -> usize {
    let mut compared = 0;
    for (i, log) in layers.iter().enumerate() {
        let at = |what: &str| format!("{prefix}.layer{i:02}.{what}");
        if recorded.has(&at("stream_out")) {
            let difference = max_difference(&log.streams, &recorded.f32(&at("stream_out")));
            assert!(difference <= STREAMS, "{name} {prefix} layer {i}: streams differ by {difference}");
            compared += 1;
        }
        if recorded.has(&at("router_ids")) {
            assert_eq!(log.route_ids, recorded.u32(&at("router_ids")), "{name} {prefix} layer {i}: route");
            compared += 1;
        }
        if recorded.has(&at("router_weights")) {
            let difference = max_difference(&log.route_weights, &recorded.f32(&at("router_weights")));
            assert!(difference <= 1e-5, "{name} {prefix} layer {i}: route weights differ by {difference}");
            compared += 1;
        }
        if recorded.has(&at("ple_rows")) {
            let want: Vec<u64> = recorded.u32(&at("ple_rows")).into_iter().map(u64::from).collect();
            assert_eq!(log.ple_rows, want, "{name} {prefix} layer {i}: n-gram rows");
            compared += 1;
        }
        if recorded.has(&at("qsa_mask")) {
            let MixerKind::Qsa { block_tokens } = model.config().mixers[i] else { panic!("layer {i} attends") };
            let shape = recorded.shape(&at("qsa_mask"));
            for (row, mask) in recorded.u8(&at("qsa_mask")).chunks_exact(shape[1]).enumerate() {
                let visible = first + row + 1;
                let got = mask_of(log.blocks[row].as_deref(), block_tokens, visible, shape[1]);
                assert_eq!(got, mask, "{name} {prefix} layer {i} position {}: selected tokens", first + row);
            }
            compared += 1;
        }
    }
    compared
}

/// One byte for each of `width` tokens: 1 where a position that sees `visible` of them attends.
fn mask_of(blocks: Option<&[u32]>, block_tokens: usize, visible: usize, width: usize) -> Vec<u8> {
    let attends = |token: usize| match blocks {
        _ if token >= visible => false,
        None => true,
        Some(blocks) => {
            token >= visible / block_tokens * block_tokens || blocks.contains(&((token / block_tokens) as u32))
        }
    };
    (0..width).map(|token| u8::from(attends(token))).collect()
}

#[test]
fn a_prompt_in_one_piece() {
    for name in MODELS {
        let (mut model, recorded) = open(name, with_details());
        let ids = recorded.u32("prefill.input_ids");
        let mut sequence = model.new_sequence().unwrap();
        let (logits, layers) = observed(&mut model, &mut sequence, &ids);
        let difference = max_difference(&logits, &recorded.f32("prefill.logits"));
        assert!(difference <= LOGITS, "{name}: logits differ by {difference}");
        assert_eq!(layers.len(), model.config().layers);
        let compared = compare_layers(name, &model, &layers, &recorded, "prefill", 0);
        assert!(compared >= 3 * layers.len() - 3, "{name}: only {compared} comparisons");
    }
}

#[test]
fn a_prompt_in_the_recorded_pieces() {
    for name in MODELS {
        let (mut model, recorded) = open(name, Options::default());
        let pieces: Vec<usize> = recorded.u32("chunked.chunks").iter().map(|n| *n as usize).collect();
        let ids = recorded.u32("prefill.input_ids");
        assert_eq!(pieces.iter().sum::<usize>(), ids.len());
        let mut sequence = model.new_sequence().unwrap();
        let logits = logits(&mut model, &mut sequence, &ids, &pieces);
        let difference = max_difference(&logits, &recorded.f32("chunked.logits"));
        assert!(difference <= LOGITS, "{name}: logits differ by {difference}");
    }
}

#[test]
fn a_prompt_and_eight_single_tokens() {
    for name in MODELS {
        let (mut model, recorded) = open(name, with_details());
        let ids = recorded.u32("prefill.input_ids");
        let (prompt, steps) = ids.split_at(ids.len() - 8);
        let mut sequence = model.new_sequence().unwrap();

        let (mut last, mut log) = (Vec::new(), Log::default());
        model.forward(&mut sequence, prompt, Rows::Last, &mut last, &mut log).unwrap();
        let difference = max_difference(&last, &recorded.f32("decode.prefill_logits_last"));
        assert!(difference <= LOGITS, "{name}: logits after the prompt differ by {difference}");
        compare_states(name, &mut model, &sequence, &recorded, "decode.after_prefill", prompt.len());

        let mut step_logits = Vec::new();
        let mut log = Log::default();
        for id in steps {
            model.forward(&mut sequence, &[*id], Rows::Last, &mut step_logits, &mut log).unwrap();
        }
        let difference = max_difference(&step_logits, &recorded.f32("decode.step_logits"));
        assert!(difference <= LOGITS, "{name}: step logits differ by {difference}");
        let compared = compare_layers(name, &model, &log.layers, &recorded, "decode.steps", prompt.len());
        assert!(compared > 2 * log.layers.len(), "{name}: only {compared} comparisons");
        compare_states(name, &mut model, &sequence, &recorded, "decode.after_steps", ids.len());
    }
}

/// Recorded states are in the checkpoint's order of value heads: its head `g * r + j` is the file's head `j * nk + g`.
fn compare_states(
    name: &str,
    model: &mut Model,
    sequence: &Sequence,
    recorded: &Recorded,
    prefix: &str,
    tokens: usize,
) {
    let config = model.config().clone();
    let gdn = &config.gdn;
    let repeat = gdn.value_heads / gdn.key_heads;
    let recorded_head = |h: usize| (h % gdn.key_heads) * repeat + h / gdn.key_heads;
    let key_channels = 2 * gdn.key_heads * gdn.head_dim;
    let check = |what: String, got: &[f32], want: &[f32]| {
        let difference = max_difference(got, want);
        assert!(difference <= STATES, "{name} {prefix} {what}: differs by {difference}");
    };
    for (i, mixer) in config.mixers.iter().enumerate() {
        let at = |what: &str| format!("{prefix}.layer{i:02}.{what}");
        match *mixer {
            MixerKind::Gdn => {
                let size = gdn.head_dim * gdn.head_dim;
                let want = recorded.f32(&at("gdn_state"));
                let by_head = (0..gdn.value_heads).flat_map(|h| &want[recorded_head(h) * size..][..size]).copied();
                check(
                    at("gdn_state"),
                    &model.read_state(sequence, i, StatePart::GdnMatrix),
                    &by_head.collect::<Vec<_>>(),
                );

                // Recorded: [channels][4], newest last, of which the last three are state.
                let want = recorded.f32(&at("gdn_conv"));
                let recorded_channel = |c: usize| match c.checked_sub(key_channels) {
                    None => c,
                    Some(v) => key_channels + recorded_head(v / gdn.head_dim) * gdn.head_dim + v % gdn.head_dim,
                };
                let rows = (1..4).flat_map(|back| (0..gdn.channels()).map(move |c| (back, c)));
                let want: Vec<f32> = rows.map(|(back, c)| want[recorded_channel(c) * 4 + back]).collect();
                check(at("gdn_conv"), &model.read_state(sequence, i, StatePart::ConvHistory), &want);
            }
            MixerKind::Qsa { block_tokens } => {
                let dim = config.attention.indexer_dim;
                let want = recorded.f32(&at("indexer_raw_k"));
                assert_eq!(want.len(), tokens * dim);
                let open = tokens / block_tokens * block_tokens * dim;
                let got = model.read_state(sequence, i, StatePart::OpenBlockKeys);
                check(at("indexer_raw_k"), &got, &want[open..]);
                assert_eq!(model.read_state(sequence, i, StatePart::BlockKeys).len(), open / block_tokens);

                for (what, part) in [("k", StatePart::Keys), ("v", StatePart::Values)] {
                    if recorded.has(&at(what)) {
                        let (heads, width) = (config.attention.kv_heads, config.attention.head_dim);
                        let want = recorded.f32(&at(what)); // [heads][tokens][width]
                        let order = (0..tokens).flat_map(|t| (0..heads).map(move |h| (h * tokens + t) * width));
                        let want: Vec<f32> = order.flat_map(|from| &want[from..from + width]).copied().collect();
                        check(at(what), &model.read_state(sequence, i, part), &want);
                    }
                }
            }
        }
    }
    if let Some(ple) = &config.ple {
        let at = |what: &str| format!("{prefix}.layer{:02}.{what}", ple.layer);
        let want = recorded.f32(&at("ple_conv")); // [channels][9], newest last
        let (rows, channels) = (9, config.streams * config.hidden);
        let want: Vec<f32> =
            (0..rows).flat_map(|r| (0..channels).map(move |c| c * rows + r)).map(|i| want[i]).collect();
        check(at("ple_conv"), &model.read_ple_state(sequence).unwrap(), &want);
        assert_eq!(sequence.window(), recorded.u32(&at("ple_tokens")), "{name} {prefix}: token window");
    }
    assert_eq!(sequence.tokens(), tokens);
}

type Load = fn(&Path, Isa, usize, Options) -> Model;

#[test]
fn logits_are_the_same_bytes_for_any_pieces_passes_strips_and_threads() {
    for name in MODELS {
        let path = data(&format!("oracle/{name}/model-f16.gguf"));
        let recorded = Recorded::open(&data(&format!("oracle/{name}/reference.safetensors")));
        let ids = recorded.u32("prefill.input_ids");
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let run = |load: Load, threads, pass_tokens, strip_rows, pieces: &[usize]| {
                let mut model = load(&path, isa, threads, Options { pass_tokens, strip_rows, ..Options::default() });
                let mut sequence = model.new_sequence().unwrap();
                let logits = logits(&mut model, &mut sequence, &ids, pieces);
                logits.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
            };
            let rest = ids.len() - 5; // a last piece of five tokens
            for load in [model_on, fast_model_on] as [Load; 2] {
                let whole = run(load, 2, 1024, 256, &[ids.len()]);
                for (threads, pass, strip, pieces) in [
                    (1, 1024, 256, vec![ids.len()]),
                    (2, 1024, 256, vec![1]),
                    (1, 1024, 256, vec![rest, 5]),
                    (5, 16, 7, vec![7, 1, 2, 20]),
                    (2, 33, 33, vec![ids.len()]),
                    (1, 1024, 3, vec![3, 64, 1]),
                ] {
                    let other = run(load, threads, pass, strip, &pieces);
                    let what = format!("{name} {isa}: threads {threads} pass {pass} strip {strip} pieces {pieces:?}");
                    assert!(other == whole, "{what}");
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_agrees_with_the_reference() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for name in MODELS {
            let recorded = Recorded::open(&data(&format!("oracle/{name}/reference.safetensors")));
            let path = data(&format!("oracle/{name}/model-f16.gguf"));
            let mut model = model_on(&path, isa, 2, Options::default());
            let ids = recorded.u32("prefill.input_ids");
            let mut sequence = model.new_sequence().unwrap();
            let logits = logits(&mut model, &mut sequence, &ids, &[ids.len()]);
            let difference = max_difference(&logits, &recorded.f32("prefill.logits"));
            assert!(difference <= LOGITS, "{name} {isa}: logits differ by {difference}");
        }
    }
}

#[test]
fn the_chunked_recurrence_agrees_with_the_reference() {
    for name in MODELS {
        let (mut model, recorded) = open(name, Options { gdn_form: GdnForm::Chunked, ..Options::default() });
        let ids = recorded.u32("prefill.input_ids");
        // In one piece (several chunks), in pieces, and with single steps.
        for pieces in [vec![ids.len()], vec![7, 1, 2, 20], vec![ids.len() - 3, 1]] {
            let mut sequence = model.new_sequence().unwrap();
            let logits = logits(&mut model, &mut sequence, &ids, &pieces);
            let difference = max_difference(&logits, &recorded.f32("prefill.logits"));
            assert!(difference <= LOGITS, "{name} {pieces:?}: logits differ by {difference}");
            model.free(sequence);
        }
    }
}

#[test]
fn a_reset_sequence_begins_anew() {
    for name in MODELS {
        let (mut model, recorded) = open(name, Options::default());
        let ids = recorded.u32("prefill.input_ids");
        let mut sequence = model.new_sequence().unwrap();
        let first = logits(&mut model, &mut sequence, &ids, &[ids.len()]);
        model.reset(&mut sequence);
        let second = logits(&mut model, &mut sequence, &ids, &[9]);
        assert!(first == second, "{name}");
    }
}
