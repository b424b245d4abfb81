//! Little-endian fields of a block. An offset that leaves the block panics: offsets are constants of a format.

use crate::float::f16_to_f32;

/// The `N` bytes at `offset` of a block.
#[inline(always)] // vectorised decoders use them as well
pub fn bytes_at<const N: usize>(block: &[u8], offset: usize) -> &[u8; N] {
    block[offset..].first_chunk().expect("a field lies inside its block")
}

/// The little-endian 16-bit number at `offset` of a block.
#[inline(always)] // vectorised decoders use them as well
pub fn u16_at(block: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(*bytes_at(block, offset))
}

/// The little-endian 32-bit number at `offset` of a block.
#[inline(always)] // vectorised decoders use them as well
pub fn u32_at(block: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(*bytes_at(block, offset))
}

/// The float16 scale at `offset` of a block.
#[inline(always)] // vectorised decoders use them as well
pub fn f16_at(block: &[u8], offset: usize) -> f32 {
    f16_to_f32(u16_at(block, offset))
}
