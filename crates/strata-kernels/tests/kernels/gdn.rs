//! Gated DeltaNet: the convolution, and the two forms of the recurrence.

use strata_kernels::gdn::{CHUNK_TOKENS, Head, chunked, chunked_scratch_len, convolve, recurrent};
use strata_kernels::{Cpu, Isa};

use crate::reference::{Random, THREADS, assert_close, bits, is_fused, isas, poison, silu};

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

/// Convolved rows of all heads, with poison between them.
struct Case {
    keys: usize,
    width: usize,
    tokens: usize,
    stride: usize,
    rows: Vec<f32>,
    /// `[head][token]`.
    gates: Vec<Vec<(f32, f32)>>,
    /// `[head][keys][width]`.
    state: Vec<f32>,
}

impl Case {
    fn random(seed: u64, keys: usize, width: usize, tokens: usize, decay: Decay) -> Self {
        let random = &mut Random::new(seed);
        let stride = 2 * KEY_HEADS * keys + VALUE_HEADS * width + 3;
        let mut rows = poison(tokens * stride);
        for row in rows.chunks_exact_mut(stride) {
            let (vectors, values) = row[..stride - 3].split_at_mut(2 * KEY_HEADS * keys);
            for (i, vector) in vectors.chunks_exact_mut(keys).enumerate() {
                vector.copy_from_slice(&random.floats(keys));
                let length = vector.iter().map(|v| v * v).sum::<f32>().sqrt();
                let length = if i < KEY_HEADS { length * (keys as f32).sqrt() } else { length };
                vector.iter_mut().for_each(|v| *v /= length);
            }
            values.copy_from_slice(&random.floats(values.len()));
        }
        let mut gate = || match decay {
            Decay::None => (0.0, 1.0),
            Decay::Mild => (-0.2 * random.float().abs(), random.float().abs()),
            Decay::Strong => (-60.0 * random.float().abs(), random.float().abs()),
        };
        let gates = (0..VALUE_HEADS).map(|_| (0..tokens).map(|_| gate()).collect()).collect();
        let state = random.floats(VALUE_HEADS * keys * width);
        Self { keys, width, tokens, stride, rows, gates, state }
    }

    /// Head `h` from token `first` to before `end`.
    fn head(&self, h: usize, first: usize, end: usize) -> Head<'_> {
        let (key, values) = (h % KEY_HEADS, 2 * KEY_HEADS * self.keys);
        Head {
            rows: &self.rows[first * self.stride..end * self.stride],
            stride: self.stride,
            starts: [key * self.keys, (KEY_HEADS + key) * self.keys, values + h * self.width],
            gates: &self.gates[h][first..end],
        }
    }

    fn state(&self, h: usize) -> &[f32] {
        &self.state[h * self.keys * self.width..][..self.keys * self.width]
    }

    /// Outputs and final state of head `h`, its tokens cut into pieces of `piece`.
    fn run(&self, h: usize, piece: usize, form: impl Fn(&Head<'_>, &mut [f32], &mut [f32])) -> (Vec<f32>, Vec<f32>) {
        let (mut out, mut state) = (poison(self.tokens * self.width), self.state(h).to_vec());
        for (i, out) in out.chunks_mut(piece * self.width).enumerate() {
            let first = i * piece;
            form(&self.head(h, first, first + out.len() / self.width), &mut state, out);
        }
        (out, state)
    }

    fn recurrent(&self, isa: Isa, h: usize, piece: usize) -> (Vec<f32>, Vec<f32>) {
        self.run(h, piece, |head, state, out| recurrent(isa, head, state, &mut poison(self.width + 2), out))
    }

    fn chunked(&self, h: usize, piece: usize) -> (Vec<f32>, Vec<f32>) {
        let scratch_len = chunked_scratch_len(self.keys, self.width);
        self.run(h, piece, |head, state, out| chunked(head, state, &mut poison(scratch_len), out))
    }

    /// The recurrence as it is written down, in double precision.
    fn reference(&self, h: usize) -> (Vec<f64>, Vec<f64>) {
        let (keys, width) = (self.keys, self.width);
        let mut m: Vec<f64> = self.state(h).iter().map(|v| f64::from(*v)).collect();
        let mut out = Vec::new();
        let starts = self.head(h, 0, 0).starts;
        for (t, (g, beta)) in self.gates[h].iter().enumerate() {
            let at = |which: usize, i: usize| f64::from(self.rows[t * self.stride + starts[which] + i]);
            m.iter_mut().for_each(|m| *m *= f64::from(*g).exp());
            for j in 0..width {
                let read: f64 = (0..keys).map(|i| m[i * width + j] * at(1, i)).sum();
                let write = f64::from(*beta) * (at(2, j) - read);
                (0..keys).for_each(|i| m[i * width + j] += at(1, i) * write);
            }
            out.extend((0..width).map(|j| (0..keys).map(|i| m[i * width + j] * at(0, i)).sum::<f64>()));
        }
        (out, m)
    }
}

fn cases() -> Vec<(Case, String)> {
    let c = CHUNK_TOKENS;
    let lengths = [1, 2, 9, c - 1, c, c + 1, 2 * c - 1, 2 * c, 2 * c + 1, 200];
    let sizes = [(1, 1), (13, 21), (32, 32), (40, 8)];
    let mut cases = Vec::new();
    for (i, tokens) in lengths.into_iter().enumerate() {
        for (j, (keys, width)) in sizes.into_iter().enumerate() {
            for decay in [Decay::None, Decay::Mild, Decay::Strong] {
                let case = Case::random((10 * i + j) as u64, keys, width, tokens, decay);
                cases.push((case, format!("{tokens} tokens, {keys} keys, {width} values, decay {decay:?}")));
            }
        }
    }
    cases
}

#[test]
fn the_recurrence_matches_the_double_reference() {
    for (case, what) in cases() {
        for h in 0..VALUE_HEADS {
            let (want_out, want_state) = case.reference(h);
            for isa in isas() {
                let (out, state) = case.recurrent(isa, h, case.tokens);
                assert_close(&out, &want_out, RECURRENT_ERROR, &format!("outputs of head {h}, {isa}, {what}"));
                assert_close(&state, &want_state, RECURRENT_ERROR, &format!("state of head {h}, {isa}, {what}"));
            }
        }
    }
}

/// Values are about 1 and keys have length 1, so that errors do not grow.
const RECURRENT_ERROR: f64 = 4e-6;
/// Sums of log decays are rounded before they are exponentiated.
const CHUNKED_ERROR: f64 = 4e-5;

#[test]
fn the_chunked_form_matches_the_double_reference_and_the_recurrence() {
    for (case, what) in cases() {
        for h in 0..VALUE_HEADS {
            let (want_out, want_state) = case.reference(h);
            let (out, state) = case.chunked(h, case.tokens);
            assert_close(&out, &want_out, CHUNKED_ERROR, &format!("outputs of head {h}, {what}"));
            assert_close(&state, &want_state, CHUNKED_ERROR, &format!("state of head {h}, {what}"));
            let (want_out, want_state) = case.recurrent(Isa::best(), h, case.tokens);
            let doubles = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
            assert_close(&out, &doubles(&want_out), CHUNKED_ERROR, &format!("outputs of head {h}, {what}"));
            assert_close(&state, &doubles(&want_state), CHUNKED_ERROR, &format!("state of head {h}, {what}"));
        }
    }
}

#[test]
fn the_recurrence_has_the_same_bytes_however_the_tokens_are_cut() {
    for (case, what) in cases() {
        for isa in isas() {
            let (out, state) = case.recurrent(isa, 1, case.tokens);
            for piece in [1, 2, 7, 64, 65] {
                let (cut_out, cut_state) = case.recurrent(isa, 1, piece);
                assert_eq!(bits(&cut_out), bits(&out), "outputs in pieces of {piece}, {isa}, {what}");
                assert_eq!(bits(&cut_state), bits(&state), "state in pieces of {piece}, {isa}, {what}");
            }
        }
    }
}

#[test]
fn the_chunked_form_has_the_same_bytes_when_cut_between_chunks() {
    for (case, what) in cases() {
        let (out, state) = case.chunked(2, case.tokens);
        for piece in [CHUNK_TOKENS, 2 * CHUNK_TOKENS] {
            let (cut_out, cut_state) = case.chunked(2, piece);
            assert_eq!(bits(&cut_out), bits(&out), "outputs in pieces of {piece}, {what}");
            assert_eq!(bits(&cut_state), bits(&state), "state in pieces of {piece}, {what}");
        }
    }
}

#[test]
fn fused_instruction_sets_agree_and_so_do_threads() {
    let (case, _) = cases().pop().unwrap();
    let state_len = case.keys * case.width;
    let mut fused = Vec::new();
    for isa in isas() {
        let mut results = Vec::new();
        for &threads in THREADS {
            let (mut state, mut out) = (case.state.clone(), poison(VALUE_HEADS * case.tokens * case.width));
            let cpu = Cpu::precise(isa, threads).unwrap();
            cpu.for_row_pairs((&mut state, state_len), (&mut out, case.tokens * case.width), |h, state, out| {
                recurrent(isa, &case.head(h, 0, case.tokens), state, &mut poison(case.width), out);
            });
            results.push((bits(&state), bits(&out)));
        }
        assert!(results.iter().all(|r| *r == results[0]), "{isa}");
        if is_fused(isa) {
            fused.push(results.swap_remove(0));
        }
    }
    assert!(fused.iter().all(|r| *r == fused[0]));
}

#[test]
fn the_convolution_matches_the_double_reference() {
    let mut random = Random::new(1);
    for (reach, channels) in [(1, 1), (2, 5), (4, 37), (4, 128)] {
        let (taps, inputs) = (random.floats(reach * channels), random.floats(reach * channels));
        let window: Vec<&[f32]> = inputs.chunks(channels).collect();
        let want: Vec<f64> = (0..channels)
            .map(|c| (0..reach).map(|k| f64::from(taps[k * channels + c]) * f64::from(window[k][c])).sum())
            .map(silu)
            .collect();
        let mut fused = Vec::new();
        for isa in isas() {
            let mut out = poison(channels);
            convolve(isa, &taps, &window, &mut out);
            assert_close(&out, &want, 1e-6, &format!("{reach} taps, {channels} channels, {isa}"));
            if is_fused(isa) {
                fused.push(bits(&out));
            }
        }
        assert!(fused.iter().all(|bits| *bits == fused[0]), "{reach} taps, {channels} channels");
    }
}
