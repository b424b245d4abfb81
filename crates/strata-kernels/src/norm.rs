//! Root-mean-square and l2 norms (spec 5 and 6.2).

use crate::vector::{PORTABLE_FUSED, sum_of_squares};

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline]
fn rms_factor(x: &[f32], eps: f32) -> f32 {
    1.0 / (sum_of_squares::<PORTABLE_FUSED>(x) / x.len() as f32 + eps).sqrt()
}

/// `out = x / sqrt(mean(x^2) + eps) .* gamma`.
pub fn rms(x: &[f32], gamma: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == gamma.len() && x.len() == out.len(), "rms: lengths differ");
    let factor = rms_factor(x, eps);
    for ((o, v), g) in out.iter_mut().zip(x).zip(gamma) {
        *o = v * factor * g;
    }
}

/// [`rms`] onto its own input.
pub fn rms_in_place(x: &mut [f32], gamma: &[f32], eps: f32) {
    assert_eq!(x.len(), gamma.len(), "rms: lengths differ");
    let factor = rms_factor(x, eps);
    for (v, g) in x.iter_mut().zip(gamma) {
        *v = *v * factor * g;
    }
}

/// [`rms`] of each of the `group`-wide parts of `x` by itself; `gamma` is as wide as `x`.
pub fn grouped_rms(x: &[f32], gamma: &[f32], group: usize, eps: f32, out: &mut [f32]) {
    let whole = x.len().is_multiple_of(group) && x.len() == gamma.len() && x.len() == out.len();
    assert!(whole, "grouped rms: shapes differ");
    for ((x, gamma), out) in x.chunks_exact(group).zip(gamma.chunks_exact(group)).zip(out.chunks_exact_mut(group)) {
        rms(x, gamma, eps, out);
    }
}

/// `x <- x / sqrt(sum(x^2) + 1e-6) * scale`: the epsilon is added to the sum (spec 6.2).
pub fn l2_in_place(x: &mut [f32], scale: f32) {
    let factor = scale / (sum_of_squares::<PORTABLE_FUSED>(x) + 1e-6).sqrt();
    x.iter_mut().for_each(|v| *v *= factor);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_of_known_vectors() {
        let mut out = [0.0; 2];
        rms(&[3.0, 4.0], &[1.0, 2.0], 0.0, &mut out);
        let root = 12.5f32.sqrt();
        assert!((out[0] - 3.0 / root).abs() < 1e-6 && (out[1] - 8.0 / root).abs() < 1e-6);

        let mut grouped = [0.0; 4];
        grouped_rms(&[3.0, 4.0, 30.0, 40.0], &[1.0; 4], 2, 0.0, &mut grouped);
        assert!((grouped[0] - grouped[2]).abs() < 1e-6 && (grouped[1] - 4.0 / root).abs() < 1e-6);

        let mut x = [3.0, 4.0];
        l2_in_place(&mut x, 10.0);
        assert!((x[0] - 6.0).abs() < 1e-5 && (x[1] - 8.0).abs() < 1e-5);
        let mut zero = [0.0; 3];
        l2_in_place(&mut zero, 1.0);
        assert_eq!(zero, [0.0; 3]);
    }
}
