//! k-quants: blocks of 256 weights whose groups of 16 or 32 have small integer scales under one float16 scale.
//!
//! Owns: their decoders, one per type: `d` is the scale of a block, `dmin` that of its minima, which are subtracted.
//! The two- and six-bit types store a half of the block (128 weights) as four planes of 32 weights that share bytes;
//! group `i` of 16 weights then lies in half `i / 8`, in plane `i / 2 % 4`, at lane `16 * (i % 2)` of the 32.

use crate::fields::{bytes_at, f16_at};

/// Where a group of 16 weights lies in the planes of its block.
struct Place {
    half: usize,
    plane: usize,
    lane: usize,
}

#[inline]
fn place(group: usize) -> Place {
    Place { half: group / 8, plane: group / 2 % 4, lane: group % 2 * 16 }
}

pub(crate) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let scales = bytes_at::<16>(block, 0);
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (i, (out, &scale)) in out.as_chunks_mut::<16>().0.iter_mut().zip(scales).enumerate() {
        let Place { half, plane, lane } = place(i);
        let (scale, min) = (d * f32::from(scale & 15), dmin * f32::from(scale >> 4));
        for (out, &byte) in out.iter_mut().zip(bytes_at::<16>(block, 16 + 32 * half + lane)) {
            *out = scale * f32::from(byte >> (2 * plane) & 3) - min;
        }
    }
}

pub(crate) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let packed = bytes_at::<12>(block, 96);
    let d = f16_at(block, 108);
    for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let Place { half, plane, lane } = place(i);
        let low = packed[i % 8] >> (i / 8 * 4) & 15;
        let high = packed[8 + i % 4] >> (i / 4 * 2) & 3;
        let scale = d * f32::from((low | high << 4).cast_signed() - 32);
        let high_bits = bytes_at::<16>(block, lane);
        for ((out, &byte), &high) in out.iter_mut().zip(bytes_at::<16>(block, 32 + 32 * half + lane)).zip(high_bits) {
            // Without its high bit a code stands for four less.
            let code = byte >> (2 * plane) & 3 | (high >> (i / 2) & 1) << 2;
            *out = scale * f32::from(code.cast_signed() - 4);
        }
    }
}

/// The scales and minima of eight groups, six bits each.
#[inline]
fn six_bit_pairs(packed: &[u8; 12]) -> [(u8, u8); 8] {
    std::array::from_fn(|j| {
        if j < 4 {
            (packed[j] & 63, packed[j + 4] & 63)
        } else {
            (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
        }
    })
}

pub(crate) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let pairs = six_bit_pairs(bytes_at(block, 4));
    for (j, (out, (scale, min))) in out.as_chunks_mut::<32>().0.iter_mut().zip(pairs).enumerate() {
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (out, &byte) in out.iter_mut().zip(bytes_at::<32>(block, 16 + j / 2 * 32)) {
            *out = scale * f32::from(byte >> (j % 2 * 4) & 15) - min;
        }
    }
}

pub(crate) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let pairs = six_bit_pairs(bytes_at(block, 4));
    let fifth_bits = bytes_at::<32>(block, 16);
    for (j, (out, (scale, min))) in out.as_chunks_mut::<32>().0.iter_mut().zip(pairs).enumerate() {
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for ((out, &byte), &fifth) in out.iter_mut().zip(bytes_at::<32>(block, 48 + j / 2 * 32)).zip(fifth_bits) {
            *out = scale * f32::from(byte >> (j % 2 * 4) & 15 | (fifth >> j & 1) << 4) - min;
        }
    }
}

pub(crate) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let scales = bytes_at::<16>(block, 192);
    let d = f16_at(block, 208);
    for (i, (out, &scale)) in out.as_chunks_mut::<16>().0.iter_mut().zip(scales).enumerate() {
        let Place { half, plane, lane } = place(i);
        let scale = d * f32::from(scale.cast_signed());
        // The low nibbles of two planes share bytes: planes 0 and 2, planes 1 and 3.
        let low_bits = bytes_at::<16>(block, 64 * half + plane % 2 * 32 + lane);
        let high_bits = bytes_at::<16>(block, 128 + 32 * half + lane);
        for ((out, &low), &high) in out.iter_mut().zip(low_bits).zip(high_bits) {
            let code = low >> (plane / 2 * 4) & 15 | (high >> (2 * plane) & 3) << 4;
            *out = scale * f32::from(code.cast_signed() - 32);
        }
    }
}
