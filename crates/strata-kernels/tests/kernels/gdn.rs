//! Gated DeltaNet: the convolution, and the two forms of the recurrence.

use strata_kernels::conv::Window;
use strata_kernels::gdn::{CHUNK_TOKENS, HeadShape, State, Strip};
use strata_kernels::gdn::{chunked, convolve_heads, gates, norm_and_gate, recurrent};
use strata_kernels::{Cpu, Isa};

use crate::reference::{Random, assert_close, bits, doubles, isas, poison, same_bits, sigmoid, silu};

const KEY_HEADS: usize = 2;
const VALUE_HEADS: usize = 6;

/// How much of the past is kept.
#[derive(Clone, Copy, Debug)]
enum Decay {
    /// All of it, and everything new is written in full.
    None,
    Mild,
    /// Products of decays underflow within a chunk.
    Strong,
}

/// Heads of a strip, and the states they begin with.
struct Case {
    keys: usize,
    width: usize,
    tokens: usize,
    /// `[key_head][token][keys]`.
    q: Vec<f32>,
    k: Vec<f32>,
    /// `[value_head][token][width]`.
    v: Vec<f32>,
    /// `[token][value_head]`.
    log_decay: Vec<f32>,
    beta: Vec<f32>,
    /// `[value_head][keys][width]`.
    state: Vec<f32>,
}

/// The tokens `first .. end` of vectors `[head][token][width]`.
fn piece(vectors: &[f32], heads: usize, width: usize, first: usize, end: usize) -> Vec<f32> {
    let by_head = vectors.chunks_exact(vectors.len() / heads);
    by_head.flat_map(|head| &head[first * width..end * width]).copied().collect()
}

type Form = fn(&Cpu, &Strip<'_>, &mut State, &mut [f32]);

impl Case {
    fn random(seed: u64, keys: usize, width: usize, tokens: usize, decay: Decay) -> Self {
        let random = &mut Random::new(seed);
        let mut vectors = |length: f32| {
            let mut all = random.floats(KEY_HEADS * tokens * keys);
            for vector in all.chunks_exact_mut(keys) {
                let factor = length / vector.iter().map(|v| v * v).sum::<f32>().sqrt();
                vector.iter_mut().for_each(|v| *v *= factor);
            }
            all
        };
        let (q, k) = (vectors(1.0 / (keys as f32).sqrt()), vectors(1.0));
        let mut gate = || match decay {
            Decay::None => (0.0, 1.0),
            Decay::Mild => (-0.2 * random.float().abs(), random.float().abs()),
            Decay::Strong => (-60.0 * random.float().abs(), random.float().abs()),
        };
        let (log_decay, beta) = (0..VALUE_HEADS * tokens).map(|_| gate()).unzip();
        let v = random.floats(VALUE_HEADS * tokens * width);
        let state = random.floats(VALUE_HEADS * keys * width);
        Self { keys, width, tokens, q, k, v, log_decay, beta, state }
    }

    fn state(&self, h: usize) -> &[f32] {
        &self.state[h * self.keys * self.width..][..self.keys * self.width]
    }

    /// Outputs `[head][token][width]` and final states, the tokens cut into pieces of `piece_tokens`.
    fn run(&self, cpu: &Cpu, piece_tokens: usize, form: Form) -> (Vec<f32>, Vec<f32>) {
        let &Self { keys, width, tokens, .. } = self;
        let mut state = State::new(VALUE_HEADS, keys, width).unwrap();
        (0..VALUE_HEADS).for_each(|h| state.write(h, self.state(h)));
        let mut all = vec![Vec::new(); VALUE_HEADS];
        for first in (0..tokens).step_by(piece_tokens) {
            let end = tokens.min(first + piece_tokens);
            let strip = Strip {
                queries: &piece(&self.q, KEY_HEADS, keys, first, end),
                keys: &piece(&self.k, KEY_HEADS, keys, first, end),
                values: &piece(&self.v, VALUE_HEADS, width, first, end),
                log_decay: &self.log_decay[first * VALUE_HEADS..end * VALUE_HEADS],
                beta: &self.beta[first * VALUE_HEADS..end * VALUE_HEADS],
                key_heads: KEY_HEADS,
                value_heads: VALUE_HEADS,
            };
            let mut out = poison(VALUE_HEADS * (end - first) * width);
            form(cpu, &strip, &mut state, &mut out);
            for (all, out) in all.iter_mut().zip(out.chunks_exact((end - first) * width)) {
                all.extend_from_slice(out);
            }
        }
        let mut states = poison(self.state.len());
        states.chunks_exact_mut(keys * width).enumerate().for_each(|(h, rows)| state.read(h, rows));
        (all.concat(), states)
    }

    /// The recurrence as it is written down, in double precision.
    fn reference(&self) -> (Vec<f64>, Vec<f64>) {
        let &Self { keys, width, tokens, .. } = self;
        let (mut out, mut states) = (Vec::new(), Vec::new());
        for h in 0..VALUE_HEADS {
            let mut m = doubles(self.state(h));
            for t in 0..tokens {
                let start = (h % KEY_HEADS * tokens + t) * keys;
                let (q, k) = (|i| f64::from(self.q[start + i]), |i| f64::from(self.k[start + i]));
                let gate = t * VALUE_HEADS + h;
                m.iter_mut().for_each(|m| *m *= f64::from(self.log_decay[gate]).exp());
                for j in 0..width {
                    let value = f64::from(self.v[(h * tokens + t) * width + j]);
                    let read: f64 = (0..keys).map(|i| m[i * width + j] * k(i)).sum();
                    let write = f64::from(self.beta[gate]) * (value - read);
                    (0..keys).for_each(|i| m[i * width + j] += k(i) * write);
                }
                out.extend((0..width).map(|j| (0..keys).map(|i| m[i * width + j] * q(i)).sum::<f64>()));
            }
            states.extend(m);
        }
        (out, states)
    }
}

fn cases() -> Vec<(Case, String)> {
    let c = CHUNK_TOKENS;
    let lengths = if cfg!(miri) { vec![3] } else { vec![1, 2, 9, c - 1, c, c + 1, 2 * c - 1, 2 * c, 2 * c + 1, 200] };
    let sizes: &[_] = if cfg!(miri) { &[(3, 5), (2, 33)] } else { &[(1, 1), (13, 21), (32, 32), (40, 8), (16, 71)] };
    let mut cases = Vec::new();
    for (i, tokens) in lengths.into_iter().enumerate() {
        for (j, &(keys, width)) in sizes.iter().enumerate() {
            for decay in if cfg!(miri) { &[Decay::Mild][..] } else { &[Decay::None, Decay::Mild, Decay::Strong] } {
                let case = Case::random((10 * i + j) as u64, keys, width, tokens, *decay);
                cases.push((case, format!("{tokens} tokens, {keys} keys, {width} values, decay {decay:?}")));
            }
        }
    }
    cases
}

/// Values are about 1 and keys have length 1, so that errors do not grow.
const RECURRENT_ERROR: f64 = 4e-6;
/// Sums of log decays are rounded before they are exponentiated.
const CHUNKED_ERROR: f64 = 4e-5;

#[test]
fn the_recurrence_matches_the_double_reference() {
    for (case, what) in cases() {
        let (want_out, want_state) = case.reference();
        for isa in isas() {
            let (out, state) = case.run(&Cpu::precise(isa, 1).unwrap(), case.tokens, recurrent);
            assert_close(&out, &want_out, RECURRENT_ERROR, &format!("outputs, {isa}, {what}"));
            assert_close(&state, &want_state, RECURRENT_ERROR, &format!("states, {isa}, {what}"));
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "plain Rust, and slow there")]
fn the_chunked_form_matches_the_double_reference_and_the_recurrence() {
    let cpu = Cpu::precise(Isa::best(), 2).unwrap();
    for (case, what) in cases() {
        let (want_out, want_state) = case.reference();
        let (out, state) = case.run(&cpu, case.tokens, chunked);
        assert_close(&out, &want_out, CHUNKED_ERROR, &format!("outputs, {what}"));
        assert_close(&state, &want_state, CHUNKED_ERROR, &format!("states, {what}"));
        let (want_out, want_state) = case.run(&cpu, case.tokens, recurrent);
        assert_close(&out, &doubles(&want_out), CHUNKED_ERROR, &format!("outputs, {what}"));
        assert_close(&state, &doubles(&want_state), CHUNKED_ERROR, &format!("states, {what}"));
    }
}

#[test]
fn the_recurrence_has_the_same_bytes_however_the_tokens_are_cut() {
    for (case, what) in cases() {
        for isa in isas() {
            let cpu = Cpu::precise(isa, 1).unwrap();
            let (out, state) = case.run(&cpu, case.tokens, recurrent);
            for piece in if cfg!(miri) { &[1][..] } else { &[1, 2, 7, 64, 65] } {
                let (cut_out, cut_state) = case.run(&cpu, *piece, recurrent);
                assert_eq!(bits(&cut_out), bits(&out), "outputs in pieces of {piece}, {isa}, {what}");
                assert_eq!(bits(&cut_state), bits(&state), "states in pieces of {piece}, {isa}, {what}");
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "plain Rust, and slow there")]
fn the_chunked_form_has_the_same_bytes_when_cut_between_chunks() {
    let cpu = Cpu::precise(Isa::best(), 2).unwrap();
    for (case, what) in cases() {
        let (out, state) = case.run(&cpu, case.tokens, chunked);
        for piece in [CHUNK_TOKENS, 2 * CHUNK_TOKENS] {
            let (cut_out, cut_state) = case.run(&cpu, piece, chunked);
            assert_eq!(bits(&cut_out), bits(&out), "outputs in pieces of {piece}, {what}");
            assert_eq!(bits(&cut_state), bits(&state), "states in pieces of {piece}, {what}");
        }
    }
}

#[test]
fn fused_instruction_sets_agree_and_so_do_threads() {
    for (case, _) in cases().into_iter().rev().take(15) {
        same_bits(|cpu| {
            let (out, state) = case.run(cpu, case.tokens, recurrent);
            [out, state].concat()
        });
    }
}

#[test]
fn a_reset_state_is_zero_in_every_place() {
    let mut state = State::new(2, 3, 37).unwrap();
    assert_eq!(state.shape(), [2, 3, 37]);
    let rows = Random::new(3).floats(3 * 37);
    state.write(1, &rows);
    let mut got = poison(3 * 37);
    state.read(1, &mut got);
    assert_eq!(bits(&got), bits(&rows));
    state.read(0, &mut got);
    assert_eq!(got, [0.0; 3 * 37]);
    state.reset();
    state.read(1, &mut got);
    assert_eq!(got, [0.0; 3 * 37]);
}

#[test]
fn convolved_heads_match_the_double_reference() {
    let mut random = Random::new(1);
    for (taps, shape, tokens) in [
        (1, HeadShape { key_heads: 1, value_heads: 1, dim: 1 }, 3),
        (2, HeadShape { key_heads: 2, value_heads: 3, dim: 5 }, 4),
        (4, HeadShape { key_heads: 1, value_heads: 2, dim: 37 }, 3),
        (8, HeadShape { key_heads: 3, value_heads: 3, dim: 48 }, if cfg!(miri) { 1 } else { 40 }),
    ] {
        let HeadShape { key_heads, value_heads, dim } = shape;
        let heads = 2 * key_heads + value_heads;
        let channels = heads * dim;
        let weights = random.floats(taps * channels);
        // The first rows are history.
        let rows = random.floats((tokens + taps - 1) * channels);
        let row = |t: usize| &rows[t * channels..][..channels];
        let mut want = vec![0.0; tokens * channels];
        for (h, head) in want.chunks_exact_mut(tokens * dim).enumerate() {
            for (t, out) in head.chunks_exact_mut(dim).enumerate() {
                for (i, out) in out.iter_mut().enumerate() {
                    let c = h * dim + i;
                    let products = (0..taps).map(|k| f64::from(weights[k * channels + c]) * f64::from(row(t + k)[c]));
                    *out = silu(products.sum());
                }
                let length = (out.iter().map(|v| v * v).sum::<f64>() + 1e-6).sqrt();
                let scale = match h / key_heads {
                    0 => 1.0 / length / (dim as f64).sqrt(),
                    1 => 1.0 / length,
                    _ => 1.0,
                };
                out.iter_mut().for_each(|v| *v *= scale);
            }
        }
        let what = format!("{taps} taps, {shape:?}");
        let results = same_bits(|cpu| {
            let mut out = poison(tokens * channels);
            convolve_heads(cpu, shape, &weights, |t| Window::new(taps, |back| row(t + taps - 1 - back)), &mut out);
            out
        });
        results.iter().for_each(|(isa, got)| assert_close(got, &want, 2e-6, &format!("{what}, {isa}")));

        // A row by itself has the same bytes.
        let alone = |t: usize| {
            let mut out = poison(channels);
            let window = |_| Window::new(taps, |back| row(t + taps - 1 - back));
            convolve_heads(&Cpu::precise(results[0].0, 1).unwrap(), shape, &weights, window, &mut out);
            out
        };
        let together = &results[0].1;
        for t in 0..tokens {
            assert_eq!(bits(&alone(t)), bits(&piece(together, heads, dim, t, t + 1)), "{what}, row {t}");
        }
    }
}

#[test]
fn gates_match_the_double_reference() {
    let mut random = Random::new(7);
    for (heads, tokens) in [(1, 1), (3, 7), (48, if cfg!(miri) { 1 } else { 33 })] {
        let a: Vec<f32> = random.floats(heads).iter().map(|v| -4.0 * v.abs()).collect();
        let dt_bias = random.floats(heads);
        let many =
            |random: &mut Random| -> Vec<f32> { random.floats(heads * tokens).iter().map(|v| v * 12.0).collect() };
        let (alpha, beta) = (many(&mut random), many(&mut random));
        let softplus = |x: f64| x.exp().ln_1p();
        let log_decay =
            (0..alpha.len()).map(|i| f64::from(a[i % heads]) * softplus(f64::from(alpha[i] + dt_bias[i % heads])));
        let want: Vec<f64> = log_decay.chain(beta.iter().map(|b| sigmoid(f64::from(*b)))).collect();
        let results = same_bits(|cpu| {
            let (mut alpha, mut beta) = (alpha.clone(), beta.clone());
            gates(cpu, &a, &dt_bias, &mut alpha, &mut beta);
            [alpha, beta].concat()
        });
        for (isa, got) in results {
            assert_close(&got, &want, 5e-6, &format!("{heads} heads, {tokens} tokens, {isa}"));
        }
    }
}

#[test]
fn norm_and_gate_match_the_double_reference() {
    let mut random = Random::new(8);
    for (heads, width, tokens) in [(1, 1, 1), (3, 5, 2), (2, 37, 3), (6, 128, if cfg!(miri) { 0 } else { 9 })] {
        let (x, gamma) = (random.floats(heads * width * tokens), random.floats(width));
        let z: Vec<f32> = random.floats(x.len()).iter().map(|v| v * 8.0).collect();
        let mut want = vec![0.0; x.len()];
        for (i, want) in want.iter_mut().enumerate() {
            let (t, h, c) = (i / width / heads, i / width % heads, i % width);
            let head = &x[(h * tokens + t) * width..][..width];
            let mean = head.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / width as f64;
            *want = f64::from(head[c]) / (mean + 1e-6).sqrt() * f64::from(gamma[c]) * sigmoid(f64::from(z[i]));
        }
        let results = same_bits(|cpu| {
            let mut out = poison(x.len());
            norm_and_gate(cpu, &x, heads, &gamma, 1e-6, &z, &mut out);
            out
        });
        for (isa, got) in results {
            assert_close(&got, &want, 2e-6, &format!("{heads} heads of {width}, {tokens} tokens, {isa}"));
        }
    }
}
