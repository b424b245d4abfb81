//! The gate of the n-gram module (spec 8), for one row.

use crate::math::sigmoid;

/// `g = sigma(sign(s) sqrt(max(|s|, 1e-6)))` with `s = (key . query) / sqrt(hidden)`; `sign(0) = 0`.
pub fn gate(key_dot_query: f32, hidden: usize) -> f32 {
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
