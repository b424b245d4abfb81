//! Floating point formats: F32, F16 and BF16 weights, and the eight-bit scales of MXFP4 and NVFP4.
//!
//! Owns: conversion of these formats to float32, all of it exact.
//! Promises: subnormals, infinities and NaNs keep their meaning; weights convert without branches, so that loops over
//! them vectorise.

/// The value of IEEE 754 binary16 bits.
#[inline]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = bits & 0x7c00;
    // The exponent and the fraction, where float32 has them; the exponent still counts from 15 instead of 127.
    let shifted = u32::from(bits & 0x7fff) << 13;
    let magnitude = if exponent == 0x7c00 {
        shifted | 0x7f80_0000
    } else if exponent == 0 {
        // The fraction under an exponent of -14, less the leading one that a subnormal does not have.
        (f32::from_bits(shifted | 113 << 23) - f32::from_bits(113 << 23)).to_bits()
    } else {
        shifted + (112 << 23)
    };
    f32::from_bits(sign | magnitude)
}

/// The value of bfloat16 bits, the upper half of a float32.
#[inline]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

pub(crate) fn f32(block: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = f32::from_le_bytes(*block);
}

pub(crate) fn f16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = f16_to_f32(u16::from_le_bytes(*block));
}

pub(crate) fn bf16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = bf16_to_f32(u16::from_le_bytes(*block));
}

/// Scale of MXFP4, half of an E8M0 number: `2^(bits - 128)`.
#[inline]
pub(crate) fn mxfp4_scale(bits: u8) -> f32 {
    match bits {
        // 2^-128 and 2^-127 are subnormal.
        0 | 1 => f32::from_bits(0x0020_0000 << bits),
        _ => f32::from_bits((u32::from(bits) - 1) << 23),
    }
}

/// Scale of NVFP4, half of an unsigned E4M3 number (bias 7). Bit 7 is ignored, except that 127 means 0 and 255 does
/// not.
#[inline]
pub(crate) fn nvfp4_scale(bits: u8) -> f32 {
    let (exponent, fraction) = (u32::from(bits >> 3) & 15, u32::from(bits) & 7);
    match (bits, exponent) {
        (127, _) => 0.0,
        (_, 0) => fraction as f32 * f32::from_bits((127 - 10) << 23), // steps of 2^-10
        // One less than the difference of the biases of float32 and E4M3, for the half.
        _ => f32::from_bits((exponent + 127 - 7 - 1) << 23 | fraction << 20),
    }
}
