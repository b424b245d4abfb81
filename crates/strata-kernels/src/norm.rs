//! Root-mean-square norms (spec 5).

use crate::Cpu;
use crate::pool::DisjointMut;
use crate::vector::{Lanes, PORTABLE_FUSED, dispatch, dots, sum_of_squares};

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

/// Groups that a thread takes at least.
const GROUPS_GRAIN: usize = 2;

/// The norm of each `group`-wide part of each row by itself; `x` is any number of rows that are as wide as `gamma`.
pub fn grouped_rms(cpu: &Cpu, x: &[f32], gamma: &[f32], group: usize, eps: f32, out: &mut [f32]) {
    let fits = gamma.len().is_multiple_of(group) && x.len().is_multiple_of(gamma.len()) && x.len() == out.len();
    assert!(fits, "grouped rms: shapes differ");
    let out = DisjointMut::new(out);
    cpu.for_ranges(x.len() / group, GROUPS_GRAIN, |units| {
        for unit in units {
            let at = unit * group;
            // SAFETY: this group is this unit's alone.
            let out = unsafe { out.part(at, group) };
            rms_group(cpu.isa(), &x[at..at + group], &gamma[at % gamma.len()..][..group], eps, out);
        }
    });
}

dispatch! {
    fn rms_group = rms_group_body(x: &[f32], gamma: &[f32], eps: f32, out: &mut [f32])
}

#[inline(always)]
fn rms_group_body<V: Lanes, const FUSED: bool>(x: &[f32], gamma: &[f32], eps: f32, out: &mut [f32]) {
    let factor = 1.0 / (squares::<V, FUSED>(x) / x.len() as f32 + eps).sqrt();
    for ((o, v), g) in out.iter_mut().zip(x).zip(gamma) {
        *o = v * factor * g;
    }
}

/// `sum(x^2)`, in the lane order of all sums.
#[inline(always)]
pub(crate) fn squares<V: Lanes, const FUSED: bool>(x: &[f32]) -> f32 {
    // SAFETY: the slice's own length; callers are compiled by `dispatch`, which vouches for the instructions.
    unsafe { dots::<V, FUSED, 1, 1>([x.as_ptr()], [x.as_ptr()], x.len())[0][0] }
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
    }
}
