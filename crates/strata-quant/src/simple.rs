//! Types with blocks of 32 or 64 weights.
//!
//! Owns: their decoders, one per type: `d` is the scale of a block, `m` its offset. Except in Q8_0 and Q2_0, byte `j`
//! of a run of packed bytes holds weight `j` in its low nibble and, in its high nibble, the weight as many places
//! further as the run has bytes.

use crate::fields::{bytes_at, f16_at, u32_at};
use crate::float::{mxfp4_scale, nvfp4_scale};
use crate::grids::{FP4_VALUES, IQ4_VALUES};

/// Writes `value(code)` for the codes of the low nibbles of `packed`, then for those of the high nibbles.
#[inline]
pub(crate) fn nibbles(packed: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(packed.len());
    for ((&byte, low), high) in packed.iter().zip(low).zip(high) {
        *low = value(byte & 15);
        *high = value(byte >> 4);
    }
}

/// `d` times each value of a table: 16 products instead of one per weight.
#[inline]
pub(crate) fn scaled(d: f32, table: &[i8; 16]) -> [f32; 16] {
    table.map(|value| d * f32::from(value))
}

pub(crate) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (out, &q) in out.iter_mut().zip(bytes_at::<32>(block, 2)) {
        *out = d * f32::from(q.cast_signed());
    }
}

pub(crate) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    nibbles(bytes_at::<16>(block, 2), out, |code| d * f32::from(code.cast_signed() - 8));
}

pub(crate) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    nibbles(bytes_at::<16>(block, 4), out, |code| d * f32::from(code) + m);
}

/// Writes `value(code)` for 32 codes of five bits: their fifth bits (bit `e` for weight `e`), then their nibbles.
#[inline]
fn five_bits(fifth: u32, packed: &[u8; 16], out: &mut [f32; 32], value: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for (j, ((&byte, low), high)) in packed.iter().zip(low).zip(high).enumerate() {
        *low = value(byte & 15 | ((fifth >> j) as u8 & 1) << 4);
        *high = value(byte >> 4 | ((fifth >> (j + 16)) as u8 & 1) << 4);
    }
}

pub(crate) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    five_bits(u32_at(block, 2), bytes_at(block, 6), out, |code| d * f32::from(code.cast_signed() - 16));
}

pub(crate) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    five_bits(u32_at(block, 4), bytes_at(block, 8), out, |code| d * f32::from(code) + m);
}

pub(crate) fn q2_0(block: &[u8; 18], out: &mut [f32; 64]) {
    let d = f16_at(block, 0);
    let values = [-1.0, 0.0, 1.0, 2.0].map(|value| d * value);
    // Unlike in the other types, the four weights of a byte are neighbours.
    for (out, &byte) in out.as_chunks_mut::<4>().0.iter_mut().zip(bytes_at::<16>(block, 2)) {
        *out = [0, 2, 4, 6].map(|shift| values[usize::from(byte >> shift & 3)]);
    }
}

pub(crate) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let values = scaled(f16_at(block, 0), &IQ4_VALUES);
    nibbles(bytes_at::<16>(block, 2), out, |code| values[usize::from(code)]);
}

pub(crate) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let values = scaled(mxfp4_scale(block[0]), &FP4_VALUES);
    nibbles(bytes_at::<16>(block, 1), out, |code| values[usize::from(code)]);
}

/// The float32 tensor beside an NVFP4 tensor, which multiplies the products of the whole matrix, is the caller's.
pub(crate) fn nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    let scales = bytes_at::<4>(block, 0);
    let groups = bytes_at::<32>(block, 4).as_chunks::<8>().0;
    for ((&scale, packed), out) in scales.iter().zip(groups).zip(out.as_chunks_mut::<16>().0) {
        let values = scaled(nvfp4_scale(scale), &FP4_VALUES);
        nibbles(packed, out, |code| values[usize::from(code)]);
    }
}
