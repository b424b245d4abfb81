//! The n-gram module (spec 8): its gates, and its way onto the residual streams.

use crate::Cpu;
use crate::conv::{Window, convolve};
use crate::math::sigmoid;
use crate::norm::squares;
use crate::pool::DisjointMut;
use crate::vector::{LANES, Lanes, add_product, dispatch, fold};

/// Gammas of the module's norms, each `[S][hidden]`.
#[derive(Clone, Copy)]
pub struct Gammas<'a> {
    /// Of the keys.
    pub key: &'a [f32],
    /// Of the queries, which are the residual streams.
    pub query: &'a [f32],
    /// Of what goes into the convolution.
    pub conv: &'a [f32],
}

/// The gate of each stream and what goes into the convolution: `g = gate(RMS(key) . RMS(residual))`, and
/// `out = RMS(g value)`, each norm with its gamma.
///
/// `key`, `residual` and `out` are `[rows][S][hidden]`, `value` is `[rows][hidden]`, `gates` `[rows][S]`.
#[allow(clippy::too_many_arguments)] // the module has that many vectors
pub fn gates(
    cpu: &Cpu,
    gammas: &Gammas<'_>,
    eps: f32,
    key: &[f32],
    residual: &[f32],
    value: &[f32],
    gates: &mut [f32],
    out: &mut [f32],
) {
    let wide = gammas.key.len();
    let rows = key.len() / wide;
    let (streams, hidden) = (gates.len() / rows.max(1), value.len() / rows.max(1));
    let fits = key.len() == rows * wide
        && wide == streams * hidden
        && (residual.len(), out.len()) == (key.len(), key.len())
        && (gates.len(), value.len()) == (rows * streams, rows * hidden)
        && (gammas.query.len(), gammas.conv.len()) == (wide, wide);
    assert!(fits, "n-gram gates: shapes differ");
    let (gates, out) = (DisjointMut::new(gates), DisjointMut::new(out));
    cpu.for_ranges(rows * streams, 1, |units| {
        for unit in units {
            let (at, from) = (unit * hidden, unit % streams * hidden);
            let stream = Stream {
                key: &key[at..][..hidden],
                query: &residual[at..][..hidden],
                value: &value[unit / streams * hidden..][..hidden],
                gammas: Gammas {
                    key: &gammas.key[from..][..hidden],
                    query: &gammas.query[from..][..hidden],
                    conv: &gammas.conv[from..][..hidden],
                },
            };
            // SAFETY: this stream of this row is this unit's alone.
            let (gate, out) = unsafe { (gates.part(unit, 1), out.part(at, hidden)) };
            gate[0] = gate_stream(cpu.isa(), &stream, eps, out);
        }
    });
}

/// One stream of one row.
struct Stream<'a> {
    key: &'a [f32],
    query: &'a [f32],
    value: &'a [f32],
    gammas: Gammas<'a>,
}

dispatch! {
    fn gate_stream = gate_stream_body(stream: &Stream<'_>, eps: f32, out: &mut [f32]) -> f32
}

#[inline(always)]
fn gate_stream_body<V: Lanes, const FUSED: bool>(stream: &Stream<'_>, eps: f32, out: &mut [f32]) -> f32 {
    let &Stream { key, query, value, gammas } = stream;
    let hidden = out.len() as f32;
    let key_factor = 1.0 / (squares::<V, FUSED>(key) / hidden + eps).sqrt();
    let query_factor = 1.0 / (squares::<V, FUSED>(query) / hidden + eps).sqrt();
    let product = weighted_dot::<V, FUSED>(key, gammas.key, query, gammas.query);
    let gate = gate(product * key_factor * query_factor, out.len());
    let factor = gate / (gate * gate * (squares::<V, FUSED>(value) / hidden) + eps).sqrt();
    for ((o, v), gamma) in out.iter_mut().zip(value).zip(gammas.conv) {
        *o = v * factor * gamma;
    }
    gate
}

/// `sum_i (a_i u_i) (b_i v_i)`, in the lane order of all sums.
#[inline(always)]
fn weighted_dot<V: Lanes, const FUSED: bool>(a: &[f32], u: &[f32], b: &[f32], v: &[f32]) -> f32 {
    let len = a.len();
    assert!((u.len(), b.len(), v.len()) == (len, len, len), "weighted dot product: lengths differ");
    let whole = len / LANES * LANES;
    // SAFETY: all four are `len` long; callers are compiled by `dispatch`, which vouches for the instructions.
    let mut sums = unsafe {
        let mut sums = V::zero();
        let mut at = 0;
        while at < whole {
            let left = V::load(a.as_ptr().add(at)).times(V::load(u.as_ptr().add(at)));
            let right = V::load(b.as_ptr().add(at)).times(V::load(v.as_ptr().add(at)));
            sums = sums.add_product(left, right);
            at += LANES;
        }
        sums.to_array()
    };
    for i in whole..len {
        sums[i - whole] = add_product::<FUSED>(sums[i - whole], a[i] * u[i], b[i] * v[i]);
    }
    fold(sums)
}

/// `g = sigma(sign(s) sqrt(max(|s|, 1e-6)))` with `s = (key . query) / sqrt(hidden)`; `sign(0) = 0`.
#[inline(always)]
fn gate(key_dot_query: f32, hidden: usize) -> f32 {
    let s = key_dot_query / (hidden as f32).sqrt();
    let root = s.abs().max(1e-6).sqrt();
    sigmoid(if s > 0.0 {
        root
    } else if s < 0.0 {
        -root
    } else {
        s // zero, or a NaN that must not become a number
    })
}

/// Channels that are convolved before they are added.
const CHANNELS: usize = 256;

/// `X <- X + gate value + conv`, where `conv` is the convolution (with silu) of what [`gates`] made.
///
/// `taps` is `[K][S * hidden]`; `window(t)` gives the rows that they meet for row `t`; `streams` is `[rows][S][hidden]`,
/// `gates` `[rows][S]`, `value` `[rows][hidden]`.
pub fn add<'a>(
    cpu: &Cpu,
    taps: &[f32],
    window: impl Fn(usize) -> Window<'a> + Sync,
    gates: &[f32],
    value: &[f32],
    streams: &mut [f32],
) {
    let hidden = streams.len() / gates.len().max(1);
    let count = gates.len() / (value.len() / hidden.max(1)).max(1);
    let fits = streams.len() == gates.len() * hidden && value.len() * count == streams.len();
    assert!(fits, "n-gram module: shapes differ");
    let streams = DisjointMut::new(streams);
    cpu.for_ranges(gates.len(), 1, |units| {
        for unit in units {
            let (t, stream) = (unit / count, unit % count);
            // SAFETY: this stream of this row is this unit's alone.
            let x = unsafe { streams.part(unit * hidden, hidden) };
            let value = &value[t * hidden..][..hidden];
            add_stream(cpu.isa(), taps, &window(t), stream * hidden, gates[unit], value, x);
        }
    });
}

dispatch! {
    fn add_stream = add_stream_body(
        taps: &[f32], window: &Window<'_>, first: usize, gate: f32, value: &[f32], x: &mut [f32],
    )
}

#[inline(always)]
fn add_stream_body<V: Lanes, const FUSED: bool>(
    taps: &[f32],
    window: &Window<'_>,
    first: usize,
    gate: f32,
    value: &[f32],
    x: &mut [f32],
) {
    let mut buffer = [0.0; CHANNELS];
    for (i, (x, value)) in x.chunks_mut(CHANNELS).zip(value.chunks(CHANNELS)).enumerate() {
        let convolved = &mut buffer[..x.len()];
        convolve::<V, FUSED>(taps, window, first + i * CHANNELS, convolved);
        for ((x, v), c) in x.iter_mut().zip(value).zip(convolved) {
            *x = add_product::<FUSED>(*x, gate, *v) + *c;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_of_known_values() {
        assert_eq!(gate(0.0, 4), 0.5);
        assert!(gate(f32::NAN, 4).is_nan());
        // s = 8 / sqrt(4) = 4, sqrt 2.
        assert!((gate(8.0, 4) - 1.0 / (1.0 + (-2f32).exp())).abs() < 1e-6);
        assert!((gate(-8.0, 4) - 1.0 / (1.0 + 2f32.exp())).abs() < 1e-6);
        // Tiny scores are lifted to sqrt(1e-6) with their sign.
        assert!((gate(1e-20, 4) - 0.50025).abs() < 1e-6 && (gate(-1e-20, 4) - 0.49975).abs() < 1e-6);
    }
}
