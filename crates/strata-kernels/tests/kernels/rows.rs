//! The small kernels that work on one row: norms, hyper-connections, rope, the n-gram gate; and that every kernel
//! refuses sizes that do not fit together.

use std::panic::{AssertUnwindSafe, catch_unwind};

use strata_kernels::attention::{KvCache, KvType, Queries, Selections, attend, best_blocks, block_scores, gate};
use strata_kernels::conv::{MAX_TAPS, Window};
use strata_kernels::experts::{Combined, combine};
use strata_kernels::gdn::{HeadShape, State, Strip, chunked, convolve_heads, gates, norm_and_gate, recurrent};
use strata_kernels::math::silu_times;
use strata_kernels::rope::{Rope, rotate};
use strata_kernels::{Cpu, Isa, dot, hyper, norm, ple, route};

use crate::reference::{Random, assert_close, bits, doubles, isas, poison, same_bits, sigmoid, silu};

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

            // Rows of three groups, one after the other.
            let x = [x, random.floats(12 * width)].concat();
            let groups = x.chunks(width).zip(gamma.chunks(width).cycle());
            let want: Vec<f64> = groups.flat_map(|(x, g)| reference(x, g)).collect();
            let results = same_bits(|cpu| {
                let mut grouped = poison(x.len());
                norm::grouped_rms(cpu, &x, &gamma, width, eps, &mut grouped);
                let mut first = poison(gamma.len());
                norm::grouped_rms(cpu, &x[..gamma.len()], &gamma, width, eps, &mut first);
                assert_eq!(bits(&first), bits(&grouped[..gamma.len()]), "one row");
                grouped
            });
            results.iter().for_each(|(isa, got)| assert_close(got, &want, 3e-6, &format!("grouped rms, {isa}")));
        }
    }
}

#[test]
fn hyper_connections_match_the_double_reference() {
    let mut random = Random::new(3);
    let sizes: &[_] = if cfg!(miri) {
        &[(1, 1, 1), (3, 2, 5), (1, 1, 530)]
    } else {
        &[(1, 1, 1), (3, 2, 5), (5, 4, 37), (2, 4, 64), (1, 4, 1100)]
    };
    for &(rows, streams, hidden) in sizes {
        let what = |isa| format!("{rows} rows of {streams} x {hidden}, {isa}");
        let (up, normed) = (random.floats(rows * streams * hidden), random.floats(rows * streams * hidden));
        let up: Vec<f32> = up.iter().map(|v| v * 8.0).collect();
        let gated = |i: usize| -> f64 {
            let all = (0..streams).map(|s| (i / hidden * streams + s) * hidden + i % hidden);
            all.map(|at| sigmoid(f64::from(up[at])) * f64::from(normed[at])).sum::<f64>() / streams as f64
        };
        let want: Vec<f64> = (0..rows * hidden).map(gated).collect();
        for (isa, mixed) in same_bits(|cpu| {
            let mut mixed = poison(rows * hidden);
            hyper::mix(cpu, &up, &normed, hidden, &mut mixed);
            let (mut first, wide) = (poison(hidden), streams * hidden);
            hyper::mix(cpu, &up[..wide], &normed[..wide], hidden, &mut first);
            assert_eq!(bits(&first), bits(&mixed[..hidden]), "one row");
            mixed
        }) {
            assert_close(&mixed, &want, 1e-6, &what(isa));
        }

        let (inject, y, before) =
            (random.floats(rows * streams), random.floats(rows * hidden), random.floats(rows * streams * hidden));
        let written = |at: usize| {
            let y = y[at / hidden / streams * hidden + at % hidden];
            f64::from(before[at]) + f64::from(inject[at / hidden]) * f64::from(y)
        };
        let want: Vec<f64> = (0..before.len()).map(written).collect();
        for (isa, after) in same_bits(|cpu| {
            let mut after = before.clone();
            hyper::write(cpu, &mut after, &inject, &y, hidden);
            after
        }) {
            assert_close(&after, &want, 3e-7, &what(isa));
        }

        let raw: Vec<f32> = random.floats(rows * streams).iter().map(|v| v * 20.0).collect();
        let want: Vec<f64> = doubles(&raw).iter().map(|v| 2.0 * sigmoid(v / streams as f64)).collect();
        for (isa, got) in same_bits(|cpu| {
            let mut got = raw.clone();
            hyper::inject_weights(cpu.isa(), &mut got, streams);
            got
        }) {
            assert_close(&got, &want, 5e-7, &what(isa));
        }

        // As many values as the low-rank product has, whatever the number of streams.
        let raw: Vec<f32> = random.floats(hidden * 5 + 3).iter().map(|v| v * 20.0).collect();
        let want: Vec<f64> = doubles(&raw).iter().map(|v| silu(v / streams as f64)).collect();
        for (isa, got) in same_bits(|cpu| {
            let mut got = raw.clone();
            hyper::gate_activation(cpu, &mut got, streams);
            got
        }) {
            assert_close(&got, &want, 5e-6, &what(isa));
        }
    }
}

#[test]
fn the_ngram_module_matches_the_double_reference() {
    let mut random = Random::new(6);
    for (rows, streams, hidden, taps) in [(1, 1, 1, 1), (4, 2, 5, 3), (3, 2, 37, 4), (1, 1, 300, 2)] {
        let wide = streams * hidden;
        let what = |isa| format!("{rows} rows of {streams} x {hidden}, {isa}");
        let (key, residual, value) =
            (random.floats(rows * wide), random.floats(rows * wide), random.floats(rows * hidden));
        let [key_norm, query_norm, conv_norm] = [(); 3].map(|()| random.floats(wide));
        let rms = |x: &[f64], gamma: &[f32]| -> Vec<f64> {
            let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
            x.iter().zip(gamma).map(|(x, g)| x / (mean + 1e-6).sqrt() * f64::from(*g)).collect()
        };
        let (mut want_gates, mut want_conv, mut want_added) = (Vec::new(), Vec::new(), Vec::new());
        for unit in 0..rows * streams {
            let (at, from) = (unit * hidden, unit % streams * hidden);
            let k = rms(&doubles(&key[at..][..hidden]), &key_norm[from..][..hidden]);
            let q = rms(&doubles(&residual[at..][..hidden]), &query_norm[from..][..hidden]);
            let s = k.iter().zip(&q).map(|(k, q)| k * q).sum::<f64>() / (hidden as f64).sqrt();
            let gate = sigmoid(s.signum() * s.abs().max(1e-6).sqrt());
            let gated: Vec<f64> =
                doubles(&value[unit / streams * hidden..][..hidden]).iter().map(|v| gate * v).collect();
            want_gates.push(gate);
            want_conv.extend(rms(&gated, &conv_norm[from..][..hidden]));
            want_added.extend(gated);
        }
        let gammas = ple::Gammas { key: &key_norm, query: &query_norm, conv: &conv_norm };
        let results = same_bits(|cpu| {
            let (mut gates, mut into_conv) = (poison(rows * streams), poison(rows * wide));
            ple::gates(cpu, &gammas, 1e-6, &key, &residual, &value, &mut gates, &mut into_conv);
            [gates, into_conv].concat()
        });
        let want = [want_gates, want_conv].concat();
        // Near a score of 0 the root makes its error larger.
        results.iter().for_each(|(isa, got)| assert_close(got, &want, 2e-5, &what(*isa)));

        // The rows before the first are history.
        let (gates, conv) = results[0].1.split_at(rows * streams);
        let (weights, history) = (random.floats(taps * wide), random.floats((taps - 1) * wide));
        let inputs = [history, conv.to_vec()].concat();
        let want: Vec<f64> = (0..rows * wide)
            .map(|at| {
                let (t, c) = (at / wide, at % wide);
                let tap = |k: usize| f64::from(weights[k * wide + c]) * f64::from(inputs[(t + k) * wide + c]);
                let gated = f64::from(gates[at / hidden]) * f64::from(value[t * hidden + c % hidden]);
                f64::from(residual[at]) + gated + silu((0..taps).map(tap).sum())
            })
            .collect();
        for (isa, got) in same_bits(|cpu| {
            let mut streams = residual.clone();
            let window = |t: usize| Window::new(taps, |back| &inputs[(t + taps - 1 - back) * wide..][..wide]);
            ple::add(cpu, &weights, window, gates, &value, &mut streams);
            streams
        }) {
            assert_close(&got, &want, 5e-6, &what(isa));
        }
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

/// What does not fit must not be computed in part: the rest of the output would be what was there before.
#[test]
fn sizes_that_do_not_fit_are_refused() {
    let isa = Isa::Portable;
    let z = || vec![0.0f32; 64];
    let cpu = &Cpu::precise(isa, 1).unwrap();
    let shape = HeadShape { key_heads: 1, value_heads: 1, dim: 2 };
    let convolve = |taps: &[f32], row: &[f32], out: &mut [f32]| {
        convolve_heads(cpu, shape, taps, |_| Window::new(2, |_| row), out);
    };
    let (v, state) = (z(), || State::new(1, 2, 2).unwrap());
    let strip = |gates: usize, keys: usize| Strip {
        queries: &v[..4],
        keys: &v[..keys],
        values: &v[..4],
        log_decay: &v[..gates],
        beta: &v[..2],
        key_heads: 1,
        value_heads: 1,
    };
    let gammas = ple::Gammas { key: &v[..8], query: &v[..8], conv: &v[..8] };
    let combined = |outputs: usize, shared: usize| Combined {
        weights: &v[..2],
        outputs: &v[..outputs],
        shared_gate: &v[..1],
        shared: &v[..shared],
    };
    let cache = || {
        let mut cache = KvCache::new(KvType::Float32, 2, 4, 20).unwrap();
        cache.append(&[0.0; 128], &[0.0; 128]); // sixteen tokens
        cache
    };
    let attend = |heads, stride, values_len, visible, out_len| {
        let mut selections = Selections::default();
        selections.set_everything(visible, 2);
        let queries = Queries { values: &vec![0.0; values_len], heads, stride };
        attend(cpu, &cache(), &queries, &selections, &mut vec![0.0; out_len]);
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
    refused("convolve: taps", &|| convolve(&z()[..11], &z()[..6], &mut z()[..6]));
    refused("convolve: window", &|| convolve(&z()[..12], &z()[..5], &mut z()[..6]));
    refused("convolve: part of a row", &|| convolve(&z()[..12], &z()[..6], &mut z()[..7]));
    refused("convolve: too many taps", &|| _ = Window::new(MAX_TAPS + 1, |_| &v));
    refused("gates: heads", &|| gates(cpu, &z()[..3], &z()[..2], &mut z()[..6], &mut z()[..6]));
    refused("gates: tokens", &|| gates(cpu, &z()[..3], &z()[..3], &mut z()[..6], &mut z()[..3]));
    refused("recurrent: output", &|| recurrent(cpu, &strip(2, 4), &mut state(), &mut z()[..5]));
    refused("recurrent: state", &|| recurrent(cpu, &strip(2, 4), &mut State::new(1, 2, 3).unwrap(), &mut z()[..4]));
    refused("recurrent: keys", &|| recurrent(cpu, &strip(2, 3), &mut state(), &mut z()[..4]));
    refused("recurrent: gates", &|| recurrent(cpu, &strip(1, 4), &mut state(), &mut z()[..4]));
    refused("recurrent: no tokens", &|| recurrent(cpu, &strip(0, 0), &mut state(), &mut []));
    refused("chunked: output", &|| chunked(cpu, &strip(2, 4), &mut state(), &mut z()[..5]));
    refused("state: part of a matrix", &|| state().write(0, &z()[..3]));
    refused("norm and gate", &|| norm_and_gate(cpu, &z()[..8], 2, &z()[..2], 1.0, &z()[..7], &mut z()[..8]));
    refused("mix: up", &|| hyper::mix(cpu, &z()[..7], &z()[..8], 4, &mut z()[..4]));
    refused("mix: part of a stream", &|| hyper::mix(cpu, &z()[..7], &z()[..7], 4, &mut z()[..4]));
    refused("write: weights", &|| hyper::write(cpu, &mut z()[..8], &z()[..1], &z()[..4], 4));
    refused("write: part of a stream", &|| hyper::write(cpu, &mut z()[..7], &z()[..2], &z()[..4], 4));
    let ngram = |value: usize, out: usize| {
        ple::gates(cpu, &gammas, 1.0, &z()[..8], &z()[..8], &z()[..value], &mut z()[..2], &mut z()[..out]);
    };
    refused("n-gram gates: values", &|| ngram(3, 8));
    refused("n-gram gates: output", &|| ngram(4, 7));
    let add =
        |value: usize| ple::add(cpu, &v[..8], |_| Window::new(1, |_| &v[..8]), &[0.0; 2], &v[..value], &mut z()[..8]);
    refused("n-gram module: values", &|| add(3));
    refused("combine: outputs", &|| combine(cpu, &combined(4, 4), &mut z()[..4]));
    refused("combine: shared", &|| combine(cpu, &combined(8, 3), &mut z()[..4]));
    refused("rms: gamma", &|| norm::rms(&z()[..4], &z()[..3], 1.0, &mut z()[..4]));
    refused("rms: output", &|| norm::rms(&z()[..4], &z()[..4], 1.0, &mut z()[..5]));
    refused("rms in place", &|| norm::rms_in_place(&mut z()[..4], &z()[..5], 1.0));
    refused("grouped rms: part of a group", &|| norm::grouped_rms(cpu, &z()[..5], &z()[..5], 2, 1.0, &mut z()[..5]));
    refused("grouped rms: gamma", &|| norm::grouped_rms(cpu, &z()[..4], &z()[..3], 2, 1.0, &mut z()[..4]));
    refused("grouped rms: output", &|| norm::grouped_rms(cpu, &z()[..4], &z()[..4], 2, 1.0, &mut z()[..6]));
    refused("silu", &|| silu_times(isa, &mut z()[..4], &z()[..3]));
    refused("angles", &|| Rope::new(4, 10.0).angles(1, &mut [(0.0, 0.0); 3]));
    refused("rotate", &|| rotate(&mut z()[..3], &[(1.0, 0.0); 2]));
    refused("route: more choices than experts", &|| route::choose(&z()[..2], &mut [0; 3], &mut z()[..3]));
    refused("route: rows", &|| route::choose_rows(cpu, &z()[..9], 4, &mut [0; 4], &mut z()[..4]));
    refused("route: weights", &|| route::choose(&z()[..4], &mut [0; 2], &mut z()[..3]));
}
