//! Elementary functions in plain arithmetic, nothing fused: the same bits on every machine, and code that the compiler can
//! vectorise.

use crate::vector::{Lanes, dispatch};

/// `e^x`, within 2 units in the last place; 0 below the smallest subnormal, infinity above the largest float, NaN for NaN.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`; `e^r` by its Taylor polynomial (degree 7: the next term is below 2^-27).
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LN2_HI: f32 = 0.693_359_4; // twelve bits, so that n * LN2_HI is exact
    const LN2_LO: f32 = -2.121_944_4e-4;
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding and subtracting it rounds to an integer
    // Comparisons written so that NaN passes through.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (x - n * LN2_HI) - n * LN2_LO;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = (p * r) * r + r + 1.0;
    // 2^n in two factors: n reaches below the normal exponents and up to 128. The last bits of `rounded` count in ones, so
    // that n needs no conversion (of NaN, `p` is NaN and these bits do not matter).
    let n = rounded.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// `2^n` for normal exponents.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x sigmoid(x)`.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

dispatch! {
    /// `gate <- silu(gate) .* up`.
    pub fn silu_times = silu_times_body(gate: &mut [f32], up: &[f32])
}

#[inline(always)]
fn silu_times_body<V: Lanes, const FUSED: bool>(gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "silu: lengths differ");
    for (g, u) in gate.iter_mut().zip(up) {
        *g = silu(*g) * u;
    }
}

/// `ln(1 + e^x) = max(x, 0) + ln(1 + y)` with `y = e^-|x|`, within 2e-7 of itself.
///
/// `ln(1 + y) = 2 artanh z` with `z = y / (2 + y) <= 1/3`, by its series (up to `z^15`: the next term is below 2^-27 of
/// the first).
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    let y = exp(-x.abs());
    let z = y / (2.0 + y);
    let w = z * z;
    let mut p = 1.0 / 15.0;
    p = p * w + 1.0 / 13.0;
    p = p * w + 1.0 / 11.0;
    p = p * w + 1.0 / 9.0;
    p = p * w + 1.0 / 7.0;
    p = p * w + 1.0 / 5.0;
    p = p * w + 1.0 / 3.0;
    let z = z + z;
    (if x > 0.0 { x } else { 0.0 }) + (z + z * (w * p))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_ulp_of_the_double_result() {
        let mut worst = 0;
        let steps = if cfg!(miri) { 2_000 } else { 2_000_000 };
        for i in 0..steps {
            let x = -87.0 + i as f32 * (175.7 / steps as f32);
            let want = f64::from(x).exp() as f32;
            worst = worst.max(exp(x).to_bits().abs_diff(want.to_bits()));
        }
        assert!(worst <= 2, "{worst} ulp");
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-200.0), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(88.8), f32::INFINITY);
        assert!(exp(88.72).is_finite());
        assert!(exp(f32::NAN).is_nan());
        // Subnormal results: one step of their coarse spacing is allowed.
        for x in [-88.0f32, -95.0, -100.0, -103.0] {
            assert!((f64::from(exp(x)) - f64::from(x).exp()).abs() <= 1.5e-45, "{x}");
        }
    }

    #[test]
    fn gates_match_the_double_results() {
        for i in -400..=400 {
            let x = i as f32 * 0.1;
            let d = f64::from(x);
            let s = 1.0 / (1.0 + (-d).exp());
            assert!((f64::from(sigmoid(x)) - s).abs() <= 2e-7 * s, "sigmoid {x}");
            assert!((f64::from(silu(x)) - d * s).abs() <= 2e-7 * (d * s).abs().max(1e-30), "silu {x}");
            let p = d.exp().ln_1p();
            assert!((f64::from(softplus(x)) - p).abs() <= 2e-7 * p, "softplus {x}");
        }
        assert_eq!(sigmoid(-200.0), 0.0);
        assert_eq!(silu(-200.0), -0.0);
    }
}
