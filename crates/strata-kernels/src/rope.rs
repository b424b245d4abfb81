//! Rotary position embedding, NeoX pairing on the first dimensions of a head (spec 6.3).

/// The angles of one position: `(cos, sin)` of each pair.
#[derive(Default)]
pub struct Rope {
    theta: f32,
    inverse_frequency: Vec<f32>,
}

impl Rope {
    /// For `rotated` dimensions (even) and base `theta`: pair `j` turns by `theta^(-2j / rotated)` a position.
    pub fn new(rotated: usize, theta: f32) -> Self {
        let inverse_frequency = (0..rotated / 2)
            .map(|j| {
                let exponent = (2 * j) as f32 / rotated as f32;
                1.0 / f64::from(theta).powf(f64::from(exponent)) as f32
            })
            .collect();
        Self { theta, inverse_frequency }
    }

    /// Makes it [`new`](Self::new)`(rotated, theta)`, which it mostly is already.
    pub fn set(&mut self, rotated: usize, theta: f32) {
        if (self.pairs(), self.theta) != (rotated / 2, theta) {
            *self = Self::new(rotated, theta);
        }
    }

    /// Writes `(cos, sin)` of every pair at `position`. The angle is rounded to float32 first, as the reference does.
    pub fn angles(&self, position: usize, out: &mut [(f32, f32)]) {
        assert_eq!(out.len(), self.pairs(), "rope: one angle a pair");
        for (out, frequency) in out.iter_mut().zip(&self.inverse_frequency) {
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            *out = (cos as f32, sin as f32);
        }
    }

    /// Number of pairs, the length of what [`angles`](Self::angles) writes.
    pub fn pairs(&self) -> usize {
        self.inverse_frequency.len()
    }
}

/// Turns pair `(j, j + pairs)` of `head` by each angle; further dimensions stay.
pub fn rotate(head: &mut [f32], angles: &[(f32, f32)]) {
    assert!(head.len() >= 2 * angles.len(), "rope: {} values for {} pairs", head.len(), angles.len());
    let (first, rest) = head.split_at_mut(angles.len());
    for ((a, b), (cos, sin)) in first.iter_mut().zip(rest).zip(angles) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_turn_by_their_angle_and_the_rest_stays() {
        let rope = Rope::new(4, 100.0);
        assert_eq!(rope.pairs(), 2);
        let mut angles = [(0.0, 0.0); 2];
        rope.angles(3, &mut angles);
        // Pair 0 turns by 3 * 100^0, pair 1 by 3 * 100^(-1/2).
        let mut head = [1.0, 2.0, 0.5, -1.0, 7.0];
        rotate(&mut head, &angles);
        let (a, b) = (3f64, 0.3f64);
        let want =
            [a.cos() - 0.5 * a.sin(), 2.0 * b.cos() + b.sin(), 0.5 * a.cos() + a.sin(), -b.cos() + 2.0 * b.sin(), 7.0];
        for (got, want) in head.iter().zip(want) {
            assert!((f64::from(*got) - want).abs() < 1e-6, "{got} {want}");
        }
    }
}
