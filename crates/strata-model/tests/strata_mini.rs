//! The shipped model against a float32 run of its decoded weights (`models/strata-mini/reference.safetensors`).

mod common;

use std::path::Path;

use common::{Log, Recorded, fast_model_on, logits, max_difference, model, model_on, strata_mini};
use strata_backend::Isa;
use strata_model::qwen4exp::{Model, Options, Rows};

const FILE: &str = "strata-mini-iq2xs-q4_0.gguf";
const PROMPTS: usize = 3;

#[test]
fn logits_routes_and_streams_of_the_recorded_prompts() {
    let recorded = Recorded::open(&strata_mini("reference.safetensors"));
    let mut model = model(&strata_mini(FILE), Options { keep_details: true, ..Options::default() });
    let layers = model.config().layers;
    let top_k = model.config().moe.top_k;
    for prompt in 0..PROMPTS {
        let at = |what: &str| format!("prompt{prompt}.{what}");
        let ids = recorded.u32(&at("token_ids"));
        let mut sequence = model.new_sequence().unwrap();
        let (mut logits, mut log) = (Vec::new(), Log::default());
        model.forward(&mut sequence, &ids, Rows::All, &mut logits, &mut log).unwrap();

        let last = &logits[(ids.len() - 16) * model.vocabulary()..];
        let difference = max_difference(last, &recorded.f32(&at("logits_last16")));
        assert!(difference <= 2e-4, "prompt {prompt}: logits differ by {difference}");

        let (route_ids, route_weights) = (recorded.u16(&at("router_ids")), recorded.f32(&at("router_weights")));
        let streams = recorded.f32(&at("streams_last"));
        for (i, layer) in log.layers.iter().enumerate() {
            let of_layer = i * ids.len() * top_k..(i + 1) * ids.len() * top_k;
            let want: Vec<u32> = route_ids[of_layer.clone()].iter().map(|id| u32::from(*id)).collect();
            assert_eq!(layer.route_ids, want, "prompt {prompt} layer {i}: route");
            let difference = max_difference(&layer.route_weights, &route_weights[of_layer]);
            assert!(difference <= 1e-4, "prompt {prompt} layer {i}: route weights differ by {difference}");

            let width = streams.len() / layers;
            let (got, want) = (&layer.streams[layer.streams.len() - width..], &streams[i * width..(i + 1) * width]);
            let norm = want.iter().map(|v| v * v).sum::<f32>().sqrt();
            let distance = got.iter().zip(want).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt();
            assert!(
                distance <= 1e-5 * norm,
                "prompt {prompt} layer {i}: streams are {} of their norm away",
                distance / norm
            );
        }
        assert_eq!(log.layers.len(), layers);
        model.free(sequence);
    }
}

#[test]
fn logits_are_the_same_bytes_for_any_pieces_passes_strips_and_threads() {
    bytes_do_not_depend_on_the_cut(model_on);
}

#[test]
fn so_are_those_of_the_fast_arithmetic() {
    bytes_do_not_depend_on_the_cut(fast_model_on);
}

fn bytes_do_not_depend_on_the_cut(open: fn(&Path, Isa, usize, Options) -> Model) {
    let recorded = Recorded::open(&strata_mini("reference.safetensors"));
    // Long enough for block selection (33 blocks of 8 tokens and a tail).
    let ids = recorded.u32("prompt1.token_ids")[..300].to_vec();
    let run = |threads, pass_tokens, strip_rows, pieces: &[usize]| {
        let options = Options { pass_tokens, strip_rows, ..Options::default() };
        let mut model = open(&strata_mini(FILE), Isa::best(), threads, options);
        let mut sequence = model.new_sequence().unwrap();
        let logits = logits(&mut model, &mut sequence, &ids, pieces);
        logits.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
    };
    let whole = run(2, 1024, 256, &[ids.len()]);
    for (threads, pass, strip, pieces) in [
        (1, 1024, 256, vec![ids.len()]),
        (2, 1024, 100, vec![295, 5]),
        (1, 64, 17, vec![7, 1, 2, 200]),
        (2, 1024, 256, vec![250, 1]), // fifty single steps
    ] {
        let other = run(threads, pass, strip, &pieces);
        assert!(other == whole, "threads {threads} pass {pass} strip {strip} pieces {pieces:?}");
    }
}
