//! i-quants of 256 weights: entries of a codebook times signs (IQ2, IQ3), plus a shift (IQ1), or a table (IQ4_XS).
//!
//! Owns: their decoders, one per type: `d` is the scale of a block, `scale` that of a group in it. Eight weights are
//! decoded at a time, as the eight signed bytes of a 64-bit number.

use crate::fields::{bytes_at, f16_at, u16_at, u32_at};
use crate::float::f16_to_f32;
use crate::grids::{
    IQ1, IQ1_SHIFT, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_VALUES, SIGN_MASKS, SIGN_MASKS_7, negate_bytes,
};
use crate::simple::{nibbles, scaled};

/// Writes `scale` times each byte of `entry`, after negation under `mask`.
#[inline]
fn signed(scale: f32, entry: u64, mask: u64, out: &mut [f32; 8]) {
    *out = negate_bytes(entry, mask).to_le_bytes().map(|byte| scale * f32::from(byte.cast_signed()));
}

/// The entry of eight weights made of two entries of four.
#[inline]
fn joined(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

pub(crate) fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let groups = bytes_at::<64>(block, 2).as_chunks::<8>().0;
    for (group, out) in groups.iter().zip(out.as_chunks_mut::<32>().0) {
        let packed = u32_at(group, 4);
        let scale = d * (0.5 + (packed >> 28) as f32) * 0.25;
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let mask = SIGN_MASKS_7[(packed >> (7 * l) & 127) as usize];
            signed(scale, IQ2_XXS[usize::from(group[l])], mask, out);
        }
    }
}

/// The scales of two groups of 16 weights, four bits each, as IQ2_XS and IQ2_S have them.
#[inline]
fn two_scales(d: f32, packed: u8) -> [f32; 2] {
    [packed & 15, packed >> 4].map(|n| d * (0.5 + f32::from(n)) * 0.25)
}

pub(crate) fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let scales = bytes_at::<8>(block, 66);
    for (b, (out, &packed)) in out.as_chunks_mut::<32>().0.iter_mut().zip(scales).enumerate() {
        let scales = two_scales(d, packed);
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let x = usize::from(u16_at(block, 2 + 8 * b + 2 * l));
            signed(scales[l / 2], IQ2_XS[x & 511], SIGN_MASKS_7[x >> 9], out);
        }
    }
}

pub(crate) fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let low_bits = bytes_at::<32>(block, 2).as_chunks::<4>().0;
    let signs = bytes_at::<32>(block, 34).as_chunks::<4>().0;
    let high_bits = bytes_at::<8>(block, 66);
    let scales = bytes_at::<8>(block, 74);
    for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scales = two_scales(d, scales[b]);
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let index = usize::from(low_bits[b][l]) | usize::from(high_bits[b] >> (2 * l) & 3) << 8;
            signed(scales[l / 2], IQ2_S[index], SIGN_MASKS[usize::from(signs[b][l])], out);
        }
    }
}

pub(crate) fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let indices = bytes_at::<64>(block, 2).as_chunks::<8>().0;
    let packed = bytes_at::<32>(block, 66).as_chunks::<4>().0;
    for ((indices, &packed), out) in indices.iter().zip(packed).zip(out.as_chunks_mut::<32>().0) {
        let packed = u32::from_le_bytes(packed);
        let scale = d * (0.5 + (packed >> 28) as f32) * 0.5;
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let [low, high] = [2 * l, 2 * l + 1].map(|t| IQ3_XXS[usize::from(indices[t])]);
            signed(scale, joined(low, high), SIGN_MASKS_7[(packed >> (7 * l) & 127) as usize], out);
        }
    }
}

pub(crate) fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let low_bits = bytes_at::<64>(block, 2).as_chunks::<8>().0;
    let high_bits = bytes_at::<8>(block, 66);
    let signs = bytes_at::<32>(block, 74).as_chunks::<4>().0;
    let scales = bytes_at::<4>(block, 106);
    for (b, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = d * f32::from(1 + 2 * (scales[b / 2] >> (b % 2 * 4) & 15));
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let [low, high] = [2 * l, 2 * l + 1]
                .map(|t| IQ3_S[usize::from(low_bits[b][t]) | usize::from(high_bits[b] >> t & 1) << 8]);
            signed(scale, joined(low, high), SIGN_MASKS[usize::from(signs[b][l])], out);
        }
    }
}

/// Writes `scale * (value + shift)` for the eight values of an entry of the grid of IQ1.
#[inline]
fn shifted(scale: f32, index: usize, negative_shift: bool, out: &mut [f32; 8]) {
    let shift = if negative_shift { -IQ1_SHIFT } else { IQ1_SHIFT };
    *out = IQ1[index].to_le_bytes().map(|byte| scale * (f32::from(byte.cast_signed()) + shift));
}

pub(crate) fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let low_bits = bytes_at::<32>(block, 2).as_chunks::<4>().0;
    let packed = bytes_at::<16>(block, 34).as_chunks::<2>().0;
    for ((low_bits, &packed), out) in low_bits.iter().zip(packed).zip(out.as_chunks_mut::<32>().0) {
        let packed = u16::from_le_bytes(packed);
        let scale = d * f32::from(2 * (packed >> 12 & 7) + 1);
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let index = usize::from(low_bits[l]) | usize::from(packed >> (3 * l) & 7) << 8;
            shifted(scale, index, packed >> 15 == 1, out);
        }
    }
}

pub(crate) fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let low_bits = bytes_at::<32>(block, 0).as_chunks::<2>().0;
    let high_bits = bytes_at::<16>(block, 32);
    // The four numbers of scales have twelve bits of small scales each; their top nibbles, together, are `d`.
    let packed = [48, 50, 52, 54].map(|offset| u16_at(block, offset));
    let d = f16_to_f32(packed[0] >> 12 | packed[1] >> 12 << 4 | packed[2] >> 12 << 8 | packed[3] >> 12 << 12);
    for (g, (out, &high_bits)) in out.as_chunks_mut::<16>().0.iter_mut().zip(high_bits).enumerate() {
        let scale = d * f32::from(2 * (packed[g / 4] >> (g % 4 * 3) & 7) + 1);
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let high = high_bits >> (4 * l) & 15;
            let index = usize::from(low_bits[g][l]) | usize::from(high & 7) << 8;
            shifted(scale, index, high & 8 != 0, out);
        }
    }
}

pub(crate) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    let high_bits = u16_at(block, 2);
    let low_bits = bytes_at::<4>(block, 4);
    let packed = bytes_at::<128>(block, 8).as_chunks::<16>().0;
    for (b, (packed, out)) in packed.iter().zip(out.as_chunks_mut::<32>().0).enumerate() {
        let low = low_bits[b / 2] >> (b % 2 * 4) & 15;
        let high = (high_bits >> (2 * b) & 3) as u8;
        let values = scaled(d * f32::from((low | high << 4).cast_signed() - 32), &IQ4_VALUES);
        nibbles(packed, out, |code| values[usize::from(code)]);
    }
}
