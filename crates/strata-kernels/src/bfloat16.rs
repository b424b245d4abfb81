//! Bfloat16: the upper half of a float32, as bits.
//!
//! Owns: rounding, in plain code. Promises: what VCVTNEPS2BF16 does, so that tests have a definition to hold vector code
//! against.

/// The nearest bfloat16, the even one among equally near ones. Subnormal numbers become zeros of their sign; a NaN stays
/// one.
#[inline]
pub fn round(value: f32) -> u16 {
    let bits = value.to_bits();
    let upper = (bits >> 16) as u16;
    if value.is_nan() {
        return upper | 0x40;
    }
    if value.is_subnormal() {
        return upper & 0x8000;
    }
    ((bits + 0x7fff + u32::from(upper & 1)) >> 16) as u16
}

/// The value of bfloat16 bits.
#[inline]
pub fn to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
