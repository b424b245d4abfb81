//! Random weights as files store them.
//!
//! Promises: the same seed and name give the same bytes; every block is valid and its scale finite; decoded weights have
//! the standard deviation asked for and, since scales have either sign, a mean of about zero.
//! Refuses: types that neither a shape nor a benchmark uses.

use strata_gguf::TensorType;
use strata_quant::{decode_row, encode_row};

use crate::random;

/// A counter-based generator (splitmix64): fast, and any number of independent ones by name.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The generator of this name under `seed`.
    pub(crate) fn named(seed: u64, name: &str) -> Self {
        // FNV-1a, then one step to mix it with the seed.
        let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        let mut seeded = Self(seed);
        Self(hash ^ seeded.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(random::STEP);
        random::number(self.0)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// A number in `0..1`.
    pub(crate) fn unit(&mut self) -> f64 {
        random::unit(self.next())
    }

    /// A nearly normal number of mean 0 and variance 1: the sum of the four 16-bit parts of one number.
    pub(crate) fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: u64 = [0, 16, 32, 48].iter().map(|shift| bits >> shift & 0xFFFF).sum();
        // The parts are uniform over 2^16 values, whose variance is 2^32 / 12.
        (sum as f32 - 2.0 * 65_535.0) / (65_536.0 / 3f32.sqrt())
    }
}

/// Bytes of `weights` random weights of standard deviation `std`.
pub(crate) fn random_blocks(ty: TensorType, std: f32, weights: usize, random: &mut Random) -> Vec<u8> {
    if ty.block_weights() == 1 {
        let values: Vec<f32> = (0..weights).map(|_| random.normal() * std).collect();
        return encoded(ty, &values);
    }
    let scale = f16_bits(std / unit_std(ty));
    scaled_blocks(ty, scale, weights / ty.block_weights(), random)
}

/// Plain values in the types that are no blocks.
pub(crate) fn encoded(ty: TensorType, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() * ty.block_bytes());
    encode_row(ty, values, &mut bytes).expect("F32, F16 and BF16 take any value");
    bytes
}

/// The nearest float16.
pub(crate) fn f16_bits(value: f32) -> u16 {
    let bytes = encoded(TensorType::F16, &[value]);
    u16::from_le_bytes([bytes[0], bytes[1]])
}

/// Blocks of random codes with this scale, of either sign.
fn scaled_blocks(ty: TensorType, scale: u16, blocks: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; blocks * ty.block_bytes()];
    let (words, rest) = bytes.as_chunks_mut();
    words.iter_mut().for_each(|word| *word = random.next().to_le_bytes());
    let last = random.next().to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        set_scale(ty, block, scale);
    }
    bytes
}

/// Puts the magnitude of `scale` into a block (`docs/spec/quant-formats.md`); its sign stays random.
fn set_scale(ty: TensorType, block: &mut [u8], scale: u16) {
    let at = match ty {
        TensorType::Q6_K => 208,
        TensorType::IQ1_M => {
            // A nibble in the highest bits of each of the four numbers of scales.
            let sign = u16::from(block[55] & 0x80) << 8;
            for (i, at) in [49, 51, 53, 55].into_iter().enumerate() {
                let nibble = ((scale & 0x7FFF | sign) >> (4 * i)) as u8 & 15;
                block[at] = block[at] & 15 | nibble << 4;
            }
            return;
        }
        TensorType::Q8_0 | TensorType::Q2_0 | TensorType::IQ4_NL | TensorType::IQ4_XS => 0,
        TensorType::IQ2_XXS | TensorType::IQ2_XS | TensorType::IQ2_S | TensorType::IQ3_S | TensorType::Q4_0 => 0,
        // A scale of the scales and one of the minima.
        TensorType::Q4_K | TensorType::Q5_K => {
            set_magnitude(block, 2, scale);
            0
        }
        _ => unreachable!("nobody asks for {ty}"),
    };
    set_magnitude(block, at, scale);
}

fn set_magnitude(block: &mut [u8], at: usize, scale: u16) {
    let [low, high] = scale.to_le_bytes();
    block[at] = low;
    block[at + 1] = high & 0x7F | block[at + 1] & 0x80;
}

/// The standard deviation of random codes under a scale of 1, measured.
fn unit_std(ty: TensorType) -> f32 {
    let blocks = scaled_blocks(ty, f16_bits(1.0), 256, &mut Random::named(0, ty.name()));
    let mut values = vec![0.0; 256 * ty.block_weights()];
    decode_row(ty, &blocks, &mut values);
    (values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: [TensorType; 16] = [
        TensorType::F32,
        TensorType::F16,
        TensorType::BF16,
        TensorType::Q8_0,
        TensorType::Q2_0,
        TensorType::IQ4_NL,
        TensorType::IQ4_XS,
        TensorType::Q6_K,
        TensorType::IQ3_S,
        TensorType::IQ2_S,
        TensorType::IQ2_XXS,
        TensorType::IQ1_M,
        TensorType::IQ2_XS,
        TensorType::Q4_0,
        TensorType::Q4_K,
        TensorType::Q5_K,
    ];

    #[test]
    fn weights_have_the_deviation_asked_for_and_no_mean() {
        for ty in TYPES {
            for std in [0.02f32, 1.5] {
                let weights = 256 * 1024;
                let bytes = random_blocks(ty, std, weights, &mut Random::named(7, "x"));
                let mut values = vec![0.0f32; weights];
                decode_row(ty, &bytes, &mut values);
                let mean = values.iter().sum::<f32>() / weights as f32;
                let got = (values.iter().map(|v| v * v).sum::<f32>() / weights as f32).sqrt();
                assert!((got / std - 1.0).abs() < 0.03, "{ty}: {got} for {std}");
                // Codes with a mean of their own (Q2_0: half a scale) share a sign within a block.
                assert!(mean.abs() < 0.05 * std, "{ty}: mean {mean} for {std}");
            }
        }
    }

    #[test]
    fn bytes_depend_on_seed_and_name_alone() {
        let bytes = |seed, name| random_blocks(TensorType::IQ2_S, 1.0, 2560, &mut Random::named(seed, name));
        assert_eq!(bytes(1, "a"), bytes(1, "a"));
        assert_ne!(bytes(1, "a"), bytes(2, "a"));
        assert_ne!(bytes(1, "a"), bytes(1, "b"));
    }

    /// The first numbers of splitmix64 from a state of 1234567, as its author's program prints them.
    #[test]
    fn the_generator_is_splitmix64() {
        let mut random = Random(1_234_567);
        let got = [random.next(), random.next(), random.next()];
        assert_eq!(got, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }
}
