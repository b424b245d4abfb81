//! Random numbers that are the same on every platform: SplitMix64 (Steele, Lea, Flood 2014), and what is drawn from them.

use std::f64::consts::PI;

pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Above 0 and below 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }

    /// Of the standard normal distribution (Box and Muller).
    pub(super) fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (2.0 * PI * self.unit()).cos()
    }

    /// Of the positive stable distribution with Laplace transform `exp(-s^index)`, `index` below 1 (Kanter 1975).
    pub(super) fn stable(&mut self, index: f64) -> f64 {
        let (rest, angle) = (1.0 - index, PI * self.unit());
        let shape = (rest * angle).sin() * (index * angle).sin().powf(index / rest) / angle.sin().powf(1.0 / rest);
        (shape / -self.unit().ln()).powf(rest / index)
    }

    /// How many of `trials` succeed, each with `chance`: from success to success.
    pub(super) fn binomial(&mut self, trials: u32, chance: f64) -> u32 {
        if chance > 0.5 {
            return trials - self.binomial(trials, 1.0 - chance);
        }
        if trials == 0 || chance <= 0.0 {
            return 0;
        }
        let (mut successes, mut tried, log_failure) = (0, 0.0, (-chance).ln_1p());
        loop {
            tried += (self.unit().ln() / log_failure).floor() + 1.0;
            if tried > f64::from(trials) {
                return successes;
            }
            successes += 1;
        }
    }

    /// A place in a list of so many.
    pub(super) fn below(&mut self, len: usize) -> usize {
        (self.unit() * len as f64) as usize
    }

    /// Puts a list into any order.
    pub(super) fn shuffle<T>(&mut self, list: &mut [T]) {
        for end in (1..list.len()).rev() {
            let other = self.below(end + 1);
            list.swap(end, other);
        }
    }
}
