//! Encoding a row in the types that this program writes: F16, BF16, Q8_0, Q4_0, IQ4_NL, Q2_0.
//!
//! Owns: the choice of scales and codes. Q8_0 and Q4_0 fit the largest weight of a block; IQ4_NL and Q2_0 try several
//! scales and keep the one with the least squared error. Codes are chosen for the scale as stored, after its rounding.
//! Promises: F32, F16 and BF16 are IEEE conversions, ties to even: NaN stays NaN, what is too large becomes infinite.
//! In the other types a block of zeros decodes to zeros (and so does one too small for any float16 scale).
//! Refuses: other types; NaN, infinities and weights beyond the largest scale in the types with blocks.

use half::{bf16, f16};
use strata_gguf::TensorType;
use thiserror::Error;

use crate::float::f16_to_f32;
use crate::grids::IQ4_VALUES;

/// Why a row was not encoded.
#[derive(Debug, Error, PartialEq)]
pub enum EncodeError {
    /// The type can be read but not written.
    #[error("cannot encode {0}: only F32, F16, BF16, Q8_0, Q4_0, IQ4_NL and Q2_0 can be written; choose one of these")]
    NoEncoder(TensorType),
    /// The row is not a whole number of blocks.
    #[error(
        "cannot encode a row of {weights} weights as {ty}: whole blocks of {block} are needed",
        block = ty.block_weights()
    )]
    PartialBlock {
        /// The type asked for.
        ty: TensorType,
        /// Weights in the row.
        weights: usize,
    },
    /// A weight that no scale of the type reaches.
    #[error("cannot encode weight {index} of the row, {value:e}, as {ty}: it must lie within +-{limit:e}; use BF16")]
    OutOfRange {
        /// The type asked for.
        ty: TensorType,
        /// Where in the row.
        index: usize,
        /// The weight.
        value: f32,
        /// The largest magnitude that the type holds.
        limit: f32,
    },
}

/// Appends the blocks of a row of `weights` to `out`; after an error `out` is as it was.
pub fn encode_row(ty: TensorType, weights: &[f32], out: &mut Vec<u8>) -> Result<(), EncodeError> {
    match ty {
        TensorType::F32 => out.extend(weights.iter().flat_map(|weight| weight.to_le_bytes())),
        TensorType::F16 => out.extend(weights.iter().flat_map(|&weight| f16::from_f32(weight).to_le_bytes())),
        TensorType::BF16 => out.extend(weights.iter().flat_map(|&weight| bf16::from_f32(weight).to_le_bytes())),
        TensorType::Q8_0 => each_block(ty, weights, 127.0, out, q8_0)?,
        TensorType::Q4_0 => each_block(ty, weights, 8.0, out, q4_0)?,
        TensorType::IQ4_NL => each_block(ty, weights, 127.0, out, iq4_nl)?,
        TensorType::Q2_0 => each_block(ty, weights, 2.0, out, q2_0)?,
        _ => return Err(EncodeError::NoEncoder(ty)),
    }
    Ok(())
}

/// Appends `block` of every block; the largest value of a code is `largest_code`.
fn each_block<const WEIGHTS: usize, const BYTES: usize>(
    ty: TensorType,
    weights: &[f32],
    largest_code: f32,
    out: &mut Vec<u8>,
    block: impl Fn(&[f32; WEIGHTS]) -> [u8; BYTES],
) -> Result<(), EncodeError> {
    assert_eq!((BYTES, WEIGHTS), (ty.block_bytes(), ty.block_weights()), "block of the encoder of {ty}");
    let (blocks, rest) = weights.as_chunks();
    if !rest.is_empty() {
        return Err(EncodeError::PartialBlock { ty, weights: weights.len() });
    }
    let limit = f16::MAX.to_f32() * largest_code;
    if let Some(index) = weights.iter().position(|weight| weight.is_nan() || weight.abs() > limit) {
        return Err(EncodeError::OutOfRange { ty, index, value: weights[index], limit });
    }
    out.extend(blocks.iter().flat_map(block));
    Ok(())
}

/// A scale as a block stores it.
#[derive(Clone, Copy)]
struct Scale {
    bits: u16,
    value: f32,
    /// 1 / value, or 0 for a scale of 0.
    inverse: f32,
}

impl Scale {
    /// `value` as the nearest finite float16; zero is never negative.
    fn round(value: f32) -> Self {
        let largest = f16::MAX.to_f32();
        let bits = f16::from_f32(value.clamp(-largest, largest)).to_bits();
        let value = f16_to_f32(bits);
        if value == 0.0 {
            return Self { bits: 0, value: 0.0, inverse: 0.0 };
        }
        Self { bits, value, inverse: 1.0 / value }
    }
}

/// The weight of the largest magnitude, with its sign.
fn largest(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0, |largest: f32, &weight| if weight.abs() > largest.abs() { weight } else { largest })
}

/// The best of the scales that least squares makes of `candidates`, where `nearest` gives the value of the code that is
/// nearest to weight / scale.
fn best_scale(weights: &[f32], candidates: impl Iterator<Item = f32>, nearest: impl Fn(f32) -> f32) -> Scale {
    let squared_error = |scale: Scale| -> f32 {
        weights.iter().map(|&weight| (weight - scale.value * nearest(weight * scale.inverse)).powi(2)).sum()
    };
    let fitted = candidates.map(|candidate| {
        let inverse = Scale::round(candidate).inverse;
        let (products, squares) = weights.iter().fold((0.0, 0.0), |(products, squares), &weight| {
            let value = nearest(weight * inverse);
            (products + weight * value, squares + value * value)
        });
        Scale::round(if squares > 0.0 { products / squares } else { 0.0 })
    });
    fitted
        .map(|scale| (squared_error(scale), scale))
        .min_by(|(a, _), (b, _)| a.total_cmp(b))
        .map_or(Scale::round(0.0), |(_, scale)| scale)
}

/// A block of a scale and packed bytes.
fn with_scale<const BYTES: usize>(scale: Scale, packed: impl Iterator<Item = u8>) -> [u8; BYTES] {
    let mut block = [0; BYTES];
    block[..2].copy_from_slice(&scale.bits.to_le_bytes());
    for (slot, byte) in block[2..].iter_mut().zip(packed) {
        *slot = byte;
    }
    block
}

/// The codes of weights `j` and `j + 16` in one byte.
fn pack_nibbles(weights: &[f32; 32], code: impl Fn(f32) -> u8) -> impl Iterator<Item = u8> {
    let (low, high) = weights.split_at(16);
    low.iter().zip(high).map(move |(&low, &high)| code(low) | code(high) << 4)
}

fn q8_0(weights: &[f32; 32]) -> [u8; 34] {
    let scale = Scale::round(largest(weights).abs() / 127.0);
    with_scale(
        scale,
        weights.iter().map(|weight| ((weight * scale.inverse).round().clamp(-127.0, 127.0) as i8).cast_unsigned()),
    )
}

fn q4_0(weights: &[f32; 32]) -> [u8; 18] {
    // Codes go from -8 to 7: the largest weight takes the longer side, whatever its sign.
    let scale = Scale::round(largest(weights) / -8.0);
    with_scale(scale, pack_nibbles(weights, |weight| ((weight * scale.inverse).round().clamp(-8.0, 7.0) + 8.0) as u8))
}

/// Halfway between each value of IQ4_NL and the next.
const IQ4_MIDPOINTS: [f32; 15] = {
    let mut midpoints = [0.0; 15];
    let mut i = 0;
    while i < 15 {
        midpoints[i] = (IQ4_VALUES[i] as f32 + IQ4_VALUES[i + 1] as f32) / 2.0;
        i += 1;
    }
    midpoints
};

/// The code of IQ4_NL whose value is nearest to `ratio`.
fn nearest_iq4(ratio: f32) -> u8 {
    IQ4_MIDPOINTS.iter().map(|&midpoint| u8::from(ratio > midpoint)).sum()
}

fn iq4_nl(weights: &[f32; 32]) -> [u8; 18] {
    let largest = largest(weights);
    // The largest weight at either end of the table, or a little inside or outside of it.
    let candidates = [-127, 113].into_iter().flat_map(|end| (-18..=18).step_by(3).map(move |step| end + step));
    let scale = best_scale(weights, candidates.map(|value| largest / value as f32), |ratio| {
        f32::from(IQ4_VALUES[usize::from(nearest_iq4(ratio))])
    });
    with_scale(scale, pack_nibbles(weights, |weight| nearest_iq4(weight * scale.inverse)))
}

fn q2_0(weights: &[f32; 64]) -> [u8; 18] {
    let largest = largest(weights);
    let nearest = |ratio: f32| ratio.round().clamp(-1.0, 2.0);
    // Scales of both signs, from where the largest weight is a unit to where it is cut to half of its size.
    let candidates = (4..=16).flat_map(|k| [1.0, -1.0].map(|sign| sign * largest * k as f32 / 16.0));
    let scale = best_scale(weights, candidates, nearest);
    with_scale(
        scale,
        weights.as_chunks::<4>().0.iter().map(|four| {
            four.iter().rev().fold(0, |byte, weight| byte << 2 | (nearest(weight * scale.inverse) + 1.0) as u8)
        }),
    )
}
