//! The small kernels that work on one row: norms, hyper-connections, rope, the n-gram gate; and that every kernel
//! refuses sizes that do not fit together.

use std::panic::{AssertUnwindSafe, catch_unwind};

use strata_kernels::attention::{KvCache, Queries, Selections, attend, best_blocks, block_scores, gate};
use strata_kernels::experts::combine;
use strata_kernels::gdn::{Head, chunked, chunked_scratch_len, convolve, recurrent};
use strata_kernels::math::silu_times;
use strata_kernels::rope::{Rope, rotate};
use strata_kernels::{Arithmetic, Cpu, Isa, dot, hyper, norm, ple, route};

use crate::reference::{Random, assert_close, bits, doubles, is_fused, isas, poison, sigmoid, silu};

const WIDTHS: &[usize] = if cfg!(miri) { &[3, 37] } else { &[1, 3, 16, 31, 100, 256] };

fn mean_of_squares(x: &[f32]) -> f64 {
    x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64
}

#[test]
fn rms_norms_match_the_double_reference() {
    let mut random = Random::new(1);
    for &width in WIDTHS {
        for (size, eps) in [(1.0, 1e-6), (1e-3, 1e-6), (300.0, 1e-2)] {
            let x: Vec<f32> = random.floats(3 * width).iter().map(|v| v * size).collect();
            let gamma = random.floats(3 * width);
            let reference = |x: &[f32], gamma: &[f32]| -> Vec<f64> {
                let root = (mean_of_squares(x) + f64::from(eps)).sqrt();
                x.iter().zip(gamma).map(|(x, g)| f64::from(*x) / root * f64::from(*g)).collect()
            };
            let want = reference(&x, &gamma);
            let mut out = poison(3 * width);
            norm::rms(&x, &gamma, eps, &mut out);
            assert_close(&out, &want, 3e-6, "rms");

            let mut in_place = x.clone();
            norm::rms_in_place(&mut in_place, &gamma, eps);
            assert_eq!(bits(&in_place), bits(&out), "in place");

            let mut grouped = poison(3 * width);
            norm::grouped_rms(&x, &gamma, width, eps, &mut grouped);
            let want: Vec<f64> = x.chunks(width).zip(gamma.chunks(width)).flat_map(|(x, g)| reference(x, g)).collect();
            assert_close(&grouped, &want, 3e-6, "grouped rms");
        }
    }
}

#[test]
fn l2_norm_matches_the_double_reference() {
    let mut random = Random::new(2);
    for &width in WIDTHS {
        // The smallest is where the epsilon shows.
        for (size, scale) in [(1.0, 1.0), (1e-3, 0.125), (1e4, 3.0)] {
            let x: Vec<f32> = random.floats(width).iter().map(|v| v * size).collect();
            let root = (mean_of_squares(&x) * width as f64 + 1e-6).sqrt();
            let want: Vec<f64> = x.iter().map(|v| f64::from(*v) / root * f64::from(scale)).collect();
            let mut got = x.clone();
            norm::l2_in_place(&mut got, scale);
            assert_close(&got, &want, 1e-6 * f64::from(scale), "l2");
        }
    }
}

#[test]
fn hyper_connections_match_the_double_reference() {
    let mut random = Random::new(3);
    for (streams, hidden) in [(1, 1), (2, 5), (4, 37), (4, 64)] {
        let (up, normed) = (random.floats(streams * hidden), random.floats(streams * hidden));
        let up: Vec<f32> = up.iter().map(|v| v * 8.0).collect();
        let gated = |i: usize| -> f64 {
            let all = (0..streams).map(|s| s * hidden + i);
            all.map(|at| sigmoid(f64::from(up[at])) * f64::from(normed[at])).sum::<f64>() / streams as f64
        };
        let want: Vec<f64> = (0..hidden).map(gated).collect();
        let mut fused = Vec::new();
        for isa in isas() {
            let mut mixed = poison(hidden);
            hyper::mix(isa, &up, &normed, &mut mixed);
            assert_close(&mixed, &want, 1e-6, &format!("mix of {streams} x {hidden}, {isa}"));
            if is_fused(isa) {
                fused.push(bits(&mixed));
            }
        }
        assert!(fused.iter().all(|bits| *bits == fused[0]));

        let (inject, y, before) = (random.floats(streams), random.floats(hidden), random.floats(streams * hidden));
        let mut after = before.clone();
        hyper::write(&mut after, &inject, &y);
        let written = |at: usize| f64::from(before[at]) + f64::from(inject[at / hidden]) * f64::from(y[at % hidden]);
        assert_close(&after, &(0..streams * hidden).map(written).collect::<Vec<_>>(), 3e-7, "write");

        let raw: Vec<f32> = random.floats(streams).iter().map(|v| v * 20.0).collect();
        let mut got = raw.clone();
        hyper::inject_weights(&mut got);
        let want: Vec<f64> = doubles(&raw).iter().map(|v| 2.0 * sigmoid(v / streams as f64)).collect();
        assert_close(&got, &want, 5e-7, "inject weights");

        // As many values as the low-rank product has, whatever the number of streams.
        let raw: Vec<f32> = random.floats(hidden + 3).iter().map(|v| v * 20.0).collect();
        let mut got = raw.clone();
        hyper::gate_activation(&mut got, streams);
        let want: Vec<f64> = doubles(&raw).iter().map(|v| silu(v / streams as f64)).collect();
        assert_close(&got, &want, 5e-6, "gate activation");
    }
}

#[test]
fn silu_times_matches_the_double_reference() {
    let mut random = Random::new(4);
    let (gate, up) = (random.floats(101), random.floats(101));
    let gate: Vec<f32> = gate.iter().map(|v| v * 30.0).collect();
    let want: Vec<f64> = doubles(&gate).iter().zip(&up).map(|(g, u)| silu(*g) * f64::from(*u)).collect();
    let got: Vec<Vec<f32>> = isas()
        .map(|isa| {
            let mut got = gate.clone();
            silu_times(isa, &mut got, &up);
            got
        })
        .collect();
    assert_close(&got[0], &want, 5e-6, "silu");
    assert!(got.iter().all(|g| bits(g) == bits(&got[0])), "no fused step: the same on every instruction set");
}

#[test]
fn rope_matches_the_double_rotation() {
    let mut random = Random::new(5);
    for (rotated, dim, theta) in [(2, 2, 1e4), (8, 13, 1e4), (64, 256, 1e7)] {
        let rope = Rope::new(rotated, theta);
        assert_eq!(rope.pairs(), rotated / 2);
        for position in [0usize, 1, 17, 4096] {
            let head = random.floats(dim);
            let mut angles = vec![(f32::NAN, f32::NAN); rotated / 2];
            rope.angles(position, &mut angles);
            let mut got = head.clone();
            rotate(&mut got, &angles);

            let mut want = doubles(&head);
            for j in 0..rotated / 2 {
                let angle = position as f64 * f64::from(theta).powf(-2.0 * j as f64 / rotated as f64);
                let (a, b) = (f64::from(head[j]), f64::from(head[j + rotated / 2]));
                want[j] = a * angle.cos() - b * angle.sin();
                want[j + rotated / 2] = b * angle.cos() + a * angle.sin();
            }
            // The angle is rounded to float32: its error grows with the position.
            assert_close(&got, &want, 5e-7 + position as f64 * 2e-7, &format!("position {position} of {rotated}"));
            assert_eq!(bits(&got[rotated..]), bits(&head[rotated..]), "the rest stays");
        }
    }
}

#[test]
fn the_ngram_gate_matches_the_double_reference() {
    let mut random = Random::new(6);
    for hidden in [1, 7, 64, 2560] {
        for size in [1e-9, 1e-3, 1.0, 100.0, 1e4] {
            let product = random.float() * size;
            let s = f64::from(product) / (hidden as f64).sqrt();
            let want = sigmoid(s.signum() * s.abs().max(1e-6).sqrt());
            assert_close(&[ple::gate(product, hidden)], &[want], 5e-7, &format!("{product} over {hidden}"));
        }
    }
}

/// What does not fit must not be computed in part: the rest of the output would be what was there before.
#[test]
fn sizes_that_do_not_fit_are_refused() {
    let isa = Isa::Portable;
    let z = || vec![0.0f32; 64];
    let head = |gates| Head { rows: &[0.0; 64], stride: 6, starts: [0, 2, 4], gates };
    let gates = [(0.0, 1.0); 2];
    let cpu = Cpu::precise(isa, 1).unwrap();
    let cache = || {
        let mut cache = KvCache::new(Arithmetic::Float32, 2, 4, 20).unwrap();
        cache.append(&[0.0; 128], &[0.0; 128]); // sixteen tokens
        cache
    };
    let attend = |heads, stride, values_len, visible, out_len| {
        let mut selections = Selections::default();
        selections.set_everything(visible, 2);
        let queries = Queries { values: &vec![0.0; values_len], heads, stride };
        attend(&cpu, &cache(), &queries, &selections, &mut vec![0.0; out_len]);
    };
    attend(4, 5, 40, 15, 32);
    let refused = |what: &str, f: &dyn Fn()| {
        assert!(catch_unwind(AssertUnwindSafe(f)).is_err(), "{what}");
    };
    refused("dot", &|| _ = dot(isa, &z()[..3], &z()[..4]));
    refused("block scores: scores", &|| block_scores(isa, &z()[..16], &z()[..8], 8, 4, &mut z()[..3]));
    refused("block scores: part of a key", &|| block_scores(isa, &z()[..16], &z()[..7], 8, 4, &mut z()[..2]));
    refused("block scores: part of a head", &|| block_scores(isa, &z()[..14], &z()[..8], 7, 4, &mut z()[..4]));
    refused("block scores: part of a row", &|| block_scores(isa, &z()[..12], &z()[..8], 8, 4, &mut z()[..2]));
    refused("best blocks", &|| best_blocks(isa, &z()[..3], &mut [0; 4]));
    refused("cache: values", &|| cache().append(&z()[..16], &z()[..8]));
    refused("cache: part of a token", &|| cache().append(&z()[..12], &z()[..12]));
    refused("cache: full", &|| cache().append(&z()[..40], &z()[..40]));
    refused("attend: heads", &|| attend(3, 5, 30, 15, 24));
    refused("attend: stride", &|| attend(4, 3, 24, 15, 32));
    refused("attend: queries", &|| attend(4, 5, 39, 15, 32));
    refused("attend: output", &|| attend(4, 5, 40, 15, 31));
    refused("attend: tokens", &|| attend(4, 5, 40, 16, 32));
    refused("gate: gates", &|| gate(isa, &mut z()[..8], &z()[..15], 4));
    refused("gate: part of a head", &|| gate(isa, &mut z()[..8], &z()[..16], 3));
    refused("convolve: taps", &|| convolve(isa, &z()[..9], &[&z()[..4], &z()[..4]], &mut z()[..4]));
    refused("convolve: window", &|| convolve(isa, &z()[..8], &[&z()[..4], &z()[..3]], &mut z()[..4]));
    refused("convolve: rows", &|| convolve(isa, &z()[..8], &[&z()[..4]], &mut z()[..4]));
    refused("recurrent: output", &|| recurrent(isa, &head(&gates), &mut z()[..4], &mut z(), &mut z()[..5]));
    refused("recurrent: state", &|| recurrent(isa, &head(&gates), &mut z()[..5], &mut z(), &mut z()[..4]));
    refused("recurrent: scratch", &|| recurrent(isa, &head(&gates), &mut z()[..4], &mut [0.0], &mut z()[..4]));
    refused("recurrent: no tokens", &|| recurrent(isa, &head(&[]), &mut z()[..4], &mut z(), &mut []));
    let enough = chunked_scratch_len(2, 2);
    refused("chunked: scratch", &|| chunked(&head(&gates), &mut z()[..4], &mut vec![0.0; enough - 63], &mut z()[..4]));
    refused("chunked: output", &|| chunked(&head(&gates), &mut z()[..4], &mut vec![0.0; enough], &mut z()[..5]));
    refused("mix: up", &|| hyper::mix(isa, &z()[..7], &z()[..8], &mut z()[..4]));
    refused("mix: part of a stream", &|| hyper::mix(isa, &z()[..7], &z()[..7], &mut z()[..4]));
    refused("write: weights", &|| hyper::write(&mut z()[..8], &[0.0], &z()[..4]));
    refused("write: part of a stream", &|| hyper::write(&mut z()[..7], &[0.0; 2], &z()[..4]));
    refused("combine: outputs", &|| combine(&[0.0; 2], &z()[..4], 0.0, &z()[..4], &mut z()[..4]));
    refused("combine: shared", &|| combine(&[0.0; 2], &z()[..8], 0.0, &z()[..3], &mut z()[..4]));
    refused("rms: gamma", &|| norm::rms(&z()[..4], &z()[..3], 1.0, &mut z()[..4]));
    refused("rms: output", &|| norm::rms(&z()[..4], &z()[..4], 1.0, &mut z()[..5]));
    refused("rms in place", &|| norm::rms_in_place(&mut z()[..4], &z()[..5], 1.0));
    refused("grouped rms: part of a group", &|| norm::grouped_rms(&z()[..5], &z()[..5], 2, 1.0, &mut z()[..5]));
    refused("grouped rms: gamma", &|| norm::grouped_rms(&z()[..4], &z()[..2], 2, 1.0, &mut z()[..4]));
    refused("grouped rms: output", &|| norm::grouped_rms(&z()[..4], &z()[..4], 2, 1.0, &mut z()[..6]));
    refused("silu", &|| silu_times(isa, &mut z()[..4], &z()[..3]));
    refused("angles", &|| Rope::new(4, 10.0).angles(1, &mut [(0.0, 0.0); 3]));
    refused("rotate", &|| rotate(&mut z()[..3], &[(1.0, 0.0); 2]));
    refused("route: more choices than experts", &|| route::choose(&z()[..2], &mut [0; 3], &mut z()[..3]));
    refused("route: weights", &|| route::choose(&z()[..4], &mut [0; 2], &mut z()[..3]));
}
