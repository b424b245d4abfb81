//! The formulas of the formats a second time, one weight at a time and as plainly as they can be written, compared with
//! `decode_row` bit for bit: for every value of every byte of a block, and for rows of several blocks.
//!
//! Here `b` is a block, `e` a weight of it, and `h` reads a float16. Products are taken from left to right.

use std::array::from_fn;

use proptest::prelude::*;
use strata_gguf::TensorType;
use strata_quant::{decode_row, grids};

const IQ4: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
const E2M1_TWICE: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

fn u16_of(b: &[u8], offset: usize) -> u32 {
    u32::from(b[offset]) + 256 * u32::from(b[offset + 1])
}

fn u32_of(b: &[u8], offset: usize) -> u32 {
    u16_of(b, offset) + 65536 * u16_of(b, offset + 2)
}

/// `n` bits of `x` from bit `first` on.
fn bits(x: u32, first: usize, n: usize) -> u32 {
    (x >> first) % (1 << n)
}

/// A float16 by its definition; float64 holds every step exactly.
fn float16(x: u32) -> f32 {
    let (exponent, fraction) = (bits(x, 10, 5) as i32, f64::from(bits(x, 0, 10)));
    let magnitude = match exponent {
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        0 => fraction / 1024.0 * 2f64.powi(-14),
        _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
    };
    (if bits(x, 15, 1) == 1 { -magnitude } else { magnitude }) as f32
}

fn h(b: &[u8], offset: usize) -> f32 {
    float16(u16_of(b, offset))
}

/// Four-bit code of weight `e` in a run of `len_bytes` bytes: low nibbles first, then high nibbles.
fn nibble(b: &[u8], offset: usize, len_bytes: usize, e: usize) -> u32 {
    bits(b[offset + e % len_bytes].into(), e / len_bytes * 4, 4)
}

/// Two-bit code of Q2_K and Q3_K.
fn two_bits(b: &[u8], offset: usize, e: usize) -> u32 {
    bits(b[offset + e / 128 * 32 + e % 32].into(), e % 128 / 32 * 2, 2)
}

/// Scale and minimum of a group of Q4_K or Q5_K.
fn scale_and_min(b: &[u8], j: usize) -> (f32, f32) {
    let p = |i: usize| u32::from(b[4 + i]);
    let (scale, min) = if j < 4 {
        (bits(p(j), 0, 6), bits(p(j + 4), 0, 6))
    } else {
        (bits(p(j + 4), 0, 4) + 16 * bits(p(j - 4), 6, 2), bits(p(j + 4), 4, 4) + 16 * bits(p(j), 6, 2))
    };
    (scale as f32, min as f32)
}

/// The sign of weight `j` of eight when seven signs are stored: negatives are even in number.
fn sign_of_7(signs: u32, j: usize) -> f32 {
    let negatives: u32 = (0..7).map(|i| bits(signs, i, 1)).sum();
    let negative = if j < 7 { bits(signs, j, 1) } else { negatives % 2 };
    1.0 - 2.0 * negative as f32
}

fn sign_of_8(signs: u8, j: usize) -> f32 {
    1.0 - 2.0 * bits(signs.into(), j, 1) as f32
}

fn grid8(entry: u64, j: usize) -> f32 {
    f32::from(entry.to_le_bytes()[j].cast_signed())
}

fn grid4(entry: u32, j: usize) -> f32 {
    f32::from(entry.to_le_bytes()[j].cast_signed())
}

/// The scale of 16 weights in IQ2_XS and IQ2_S, whose nibbles start at `offset`.
fn scale_of_16(b: &[u8], offset: usize, e: usize) -> f32 {
    h(b, 0) * (0.5 + bits(b[offset + e / 32].into(), e % 32 / 16 * 4, 4) as f32) * 0.25
}

/// Weight `e` of block `b`.
fn weight(ty: TensorType, b: &[u8], e: usize) -> f32 {
    // Group of 32, eight weights in it, weight of these.
    let (g, l, j) = (e / 32, e % 32 / 8, e % 8);
    match ty {
        TensorType::F32 => f32::from_bits(u32_of(b, 0)),
        TensorType::F16 => h(b, 0),
        TensorType::BF16 => f32::from_bits(u16_of(b, 0) * 65536),
        TensorType::Q8_0 => h(b, 0) * f32::from(b[2 + e].cast_signed()),
        TensorType::Q4_0 => h(b, 0) * (nibble(b, 2, 16, e) as f32 - 8.0),
        TensorType::Q4_1 => h(b, 0) * nibble(b, 4, 16, e) as f32 + h(b, 2),
        TensorType::Q5_0 => h(b, 0) * ((nibble(b, 6, 16, e) + 16 * bits(u32_of(b, 2), e, 1)) as f32 - 16.0),
        TensorType::Q5_1 => h(b, 0) * (nibble(b, 8, 16, e) + 16 * bits(u32_of(b, 4), e, 1)) as f32 + h(b, 2),
        TensorType::Q2_0 => h(b, 0) * (bits(b[2 + e / 4].into(), 2 * (e % 4), 2) as f32 - 1.0),
        TensorType::IQ4_NL => h(b, 0) * f32::from(IQ4[nibble(b, 2, 16, e) as usize]),
        TensorType::MXFP4 => {
            let scale = 2f64.powi(i32::from(b[0]) - 128) as f32;
            scale * f32::from(E2M1_TWICE[nibble(b, 1, 16, e) as usize])
        }
        TensorType::NVFP4 => {
            let x = b[e / 16];
            let (exponent, fraction) = (i32::from(x / 8 % 16), f32::from(x % 8));
            let scale = match exponent {
                _ if x == 0 || x == 127 => 0.0,
                0 => 0.5 * fraction * 2f32.powi(-9),
                _ => 0.5 * (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7),
            };
            scale * f32::from(E2M1_TWICE[nibble(b, 4 + e / 16 * 8, 8, e % 16) as usize])
        }
        TensorType::Q2_K => {
            let s = u32::from(b[e / 16]);
            h(b, 80) * bits(s, 0, 4) as f32 * two_bits(b, 16, e) as f32 - h(b, 82) * bits(s, 4, 4) as f32
        }
        TensorType::Q3_K => {
            let i = e / 16;
            let low = nibble(b, 96, 8, i);
            let high = bits(b[96 + 8 + i % 4].into(), i / 4 * 2, 2);
            let high_bit = bits(b[e % 32].into(), g, 1);
            let code = two_bits(b, 32, e) as f32 - if high_bit == 1 { 0.0 } else { 4.0 };
            h(b, 108) * ((low + 16 * high) as f32 - 32.0) * code
        }
        TensorType::Q4_K => {
            let (scale, min) = scale_and_min(b, g);
            h(b, 0) * scale * nibble(b, 16 + g / 2 * 32, 32, e % 64) as f32 - h(b, 2) * min
        }
        TensorType::Q5_K => {
            let (scale, min) = scale_and_min(b, g);
            let code = nibble(b, 48 + g / 2 * 32, 32, e % 64) + 16 * bits(b[16 + e % 32].into(), g, 1);
            h(b, 0) * scale * code as f32 - h(b, 2) * min
        }
        TensorType::Q6_K => {
            let (half, k) = (e / 128, e % 128 / 32);
            let low = bits(b[64 * half + 32 * (k % 2) + e % 32].into(), k / 2 * 4, 4);
            let high = bits(b[128 + 32 * half + e % 32].into(), 2 * k, 2);
            h(b, 208) * f32::from(b[192 + e / 16].cast_signed()) * ((low + 16 * high) as f32 - 32.0)
        }
        TensorType::IQ2_XXS => {
            let (indices, packed) = (u32_of(b, 2 + 8 * g), u32_of(b, 6 + 8 * g));
            let scale = h(b, 0) * (0.5 + bits(packed, 28, 4) as f32) * 0.25;
            let entry = grids::IQ2_XXS[bits(indices, 8 * l, 8) as usize];
            scale * grid8(entry, j) * sign_of_7(bits(packed, 7 * l, 7), j)
        }
        TensorType::IQ2_XS => {
            let x = u16_of(b, 2 + 2 * (e / 8));
            let entry = grids::IQ2_XS[bits(x, 0, 9) as usize];
            scale_of_16(b, 66, e) * grid8(entry, j) * sign_of_7(bits(x, 9, 7), j)
        }
        TensorType::IQ2_S => {
            let index = u32::from(b[2 + e / 8]) + 256 * bits(b[66 + g].into(), 2 * l, 2);
            scale_of_16(b, 74, e) * grid8(grids::IQ2_S[index as usize], j) * sign_of_8(b[34 + e / 8], j)
        }
        TensorType::IQ3_XXS => {
            let packed = u32_of(b, 66 + 4 * g);
            let scale = h(b, 0) * (0.5 + bits(packed, 28, 4) as f32) * 0.5;
            let entry = grids::IQ3_XXS[usize::from(b[2 + e / 4])];
            scale * grid4(entry, e % 4) * sign_of_7(bits(packed, 7 * l, 7), j)
        }
        TensorType::IQ3_S => {
            let t = e / 4;
            let index = u32::from(b[2 + t]) + 256 * bits(b[66 + t / 8].into(), t % 8, 1);
            let scale = h(b, 0) * (1.0 + 2.0 * bits(b[106 + g / 2].into(), g % 2 * 4, 4) as f32);
            scale * grid4(grids::IQ3_S[index as usize], e % 4) * sign_of_8(b[74 + e / 8], j)
        }
        TensorType::IQ1_S => {
            let packed = u16_of(b, 34 + 2 * g);
            let scale = h(b, 0) * (2.0 * bits(packed, 12, 3) as f32 + 1.0);
            let shift = if bits(packed, 15, 1) == 1 { -0.125 } else { 0.125 };
            let index = u32::from(b[2 + e / 8]) + 256 * bits(packed, 3 * l, 3);
            scale * (grid8(grids::IQ1[index as usize], j) + shift)
        }
        TensorType::IQ1_M => {
            let c: [u32; 4] = from_fn(|i| u16_of(b, 48 + 2 * i));
            let d = float16((0..4).map(|i| bits(c[i], 12, 4) << (4 * i)).sum());
            let scale = d * (2.0 * bits(c[e / 64], e % 64 / 16 * 3, 3) as f32 + 1.0);
            let n = bits(b[32 + e / 16].into(), e % 16 / 8 * 4, 4);
            let shift = if n >= 8 { -0.125 } else { 0.125 };
            scale * (grid8(grids::IQ1[(u32::from(b[e / 8]) + 256 * (n % 8)) as usize], j) + shift)
        }
        TensorType::IQ4_XS => {
            let scale = bits(b[4 + g / 2].into(), g % 2 * 4, 4) + 16 * bits(u16_of(b, 2), 2 * g, 2);
            h(b, 0) * (scale as f32 - 32.0) * f32::from(IQ4[nibble(b, 8 + 16 * g, 16, e % 32) as usize])
        }
    }
}

/// Decodes `blocks` both ways; a NaN equals any NaN.
fn check(ty: TensorType, blocks: &[u8], values: &mut [f32]) {
    decode_row(ty, blocks, values);
    let blocks = blocks.chunks_exact(ty.block_bytes());
    for (i, (b, values)) in blocks.zip(values.chunks_exact(ty.block_weights())).enumerate() {
        for (e, &value) in values.iter().enumerate() {
            let expected = weight(ty, b, e);
            assert!(
                value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan(),
                "{ty}, block {i}, weight {e}: {value:e}, not {expected:e}; block {b:?}"
            );
        }
    }
}

/// The same bytes in every run (a 64-bit linear congruential generator).
fn noise() -> impl Iterator<Item = u8> {
    std::iter::successors(Some(1u64), |x| Some(x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407)))
        .map(|x| (x >> 56) as u8)
}

/// Field report 35: a packed byte that is ignored.
#[test]
fn every_value_of_every_byte_decodes_as_the_formulas_say() {
    let mut noise = noise();
    for &ty in TensorType::ALL {
        let mut values = vec![0.0; ty.block_weights()];
        for base in 0..2 {
            let mut block: Vec<u8> = noise.by_ref().take(ty.block_bytes()).collect();
            for position in 0..block.len() {
                let kept = block[position];
                for byte in 0..=255 {
                    block[position] = byte;
                    check(ty, &block, &mut values);
                }
                // The second time around the other bytes are all zero or all one, in turn.
                block[position] = if base == 0 { kept } else { [0, 255][position % 2] };
            }
        }
    }
}

#[test]
fn every_float16_and_bfloat16_decodes_as_its_definition_says() {
    for x in 0..=u16::MAX {
        let expected = float16(x.into());
        let value = strata_quant::f16_to_f32(x);
        assert!(value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan(), "{x:#x}: {value:e}");
        // The sign of a NaN is not its value, but losing it would be a mistake in the making.
        assert_eq!(value.is_sign_negative(), x >= 0x8000, "{x:#x}");
        assert_eq!(strata_quant::bf16_to_f32(x).to_bits(), u32::from(x) * 65536, "{x:#x}");
        check(TensorType::F16, &x.to_le_bytes(), &mut [0.0]);
        check(TensorType::BF16, &x.to_le_bytes(), &mut [0.0]);
    }
}

proptest! {
    #[test]
    fn rows_of_any_bytes_decode_block_by_block(
        ty in proptest::sample::select(TensorType::ALL),
        blocks in 0usize..6,
        bytes in proptest::collection::vec(any::<u8>(), 6 * 256),
    ) {
        let mut values = vec![f32::NAN; blocks * ty.block_weights()];
        check(ty, &bytes[..blocks * ty.block_bytes()], &mut values);
    }
}

#[test]
#[should_panic(expected = "35 bytes of Q8_0 do not decode to 32 weights: 34 bytes hold 32")]
fn too_many_bytes_are_a_mistake_of_the_caller() {
    decode_row(TensorType::Q8_0, &[0; 35], &mut [0.0; 32]);
}

#[test]
#[should_panic(expected = "34 bytes of Q8_0 do not decode to 64 weights")]
fn too_few_bytes_are_a_mistake_of_the_caller() {
    decode_row(TensorType::Q8_0, &[0; 34], &mut [0.0; 64]);
}

#[test]
#[should_panic(expected = "34 bytes of Q8_0 do not decode to 33 weights")]
fn a_part_of_a_block_is_a_mistake_of_the_caller() {
    decode_row(TensorType::Q8_0, &[0; 34], &mut [0.0; 33]);
}
