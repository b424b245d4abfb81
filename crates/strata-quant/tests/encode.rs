//! Encoders: exact roundings of the float types, error bounds of the others, and what is refused.

use proptest::prelude::*;
use strata_gguf::TensorType;
use strata_quant::{EncodeError, bf16_to_f32, decode_row, encode_row, f16_to_f32};

const BLOCKS: [TensorType; 4] = [TensorType::Q8_0, TensorType::Q4_0, TensorType::IQ4_NL, TensorType::Q2_0];

fn encode(ty: TensorType, weights: &[f32]) -> Vec<u8> {
    let mut blocks = Vec::new();
    encode_row(ty, weights, &mut blocks).unwrap();
    assert_eq!(blocks.len() as u64, ty.row_bytes(weights.len() as u64).unwrap());
    blocks
}

fn decode(ty: TensorType, blocks: &[u8]) -> Vec<f32> {
    let mut weights = vec![0.0; blocks.len() / ty.block_bytes() * ty.block_weights()];
    decode_row(ty, blocks, &mut weights);
    weights
}

fn encode_half(ty: TensorType, weight: f32) -> u16 {
    u16::from_le_bytes(encode(ty, &[weight]).try_into().unwrap())
}

/// Root of the mean squared error of a round trip, relative to the weights.
fn relative_error(ty: TensorType, weights: &[f32]) -> f64 {
    let decoded = decode(ty, &encode(ty, weights));
    let square = |x: f32| f64::from(x) * f64::from(x);
    let error: f64 = weights.iter().zip(&decoded).map(|(a, b)| square(a - b)).sum();
    (error / weights.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
}

/// Every number between two neighbours goes to the nearer one, the one in the middle to the even one.
fn check_rounding(ty: TensorType, to_f32: fn(u16) -> f32, infinity: u16, middle: impl Fn(u16) -> f32) {
    for sign in [0, 0x8000] {
        let signed = |value: f32| if sign == 0 { value } else { -value };
        for low in 0..infinity {
            assert_eq!(encode_half(ty, to_f32(low | sign)), low | sign);
            let high = low + 1;
            let middle = middle(low);
            let even = if low % 2 == 0 { low } else { high };
            assert_eq!(encode_half(ty, signed(middle)), even | sign, "{ty} between {low:#x} and the next");
            assert_eq!(encode_half(ty, signed(middle.next_down())), low | sign, "{ty} above {low:#x}");
            assert_eq!(encode_half(ty, signed(middle.next_up())), high | sign, "{ty} below {high:#x}");
        }
        assert_eq!(encode_half(ty, signed(f32::INFINITY)), infinity | sign);
        for nan in infinity + 1..0x8000 {
            let back = encode_half(ty, to_f32(nan | sign));
            assert!(back & 0x7fff > infinity, "{ty}: {nan:#x} became {back:#x}, which is no NaN");
        }
    }
    assert_eq!(encode_half(ty, f32::MAX), infinity);
}

#[test]
fn f16_rounds_to_nearest_even() {
    // 65536 is what would follow the largest finite number.
    let value = |bits: u16| if bits == 0x7c00 { 65536.0 } else { f16_to_f32(bits) };
    check_rounding(TensorType::F16, f16_to_f32, 0x7c00, |low| (value(low) + value(low + 1)) / 2.0);
}

#[test]
fn bf16_rounds_to_nearest_even() {
    check_rounding(TensorType::BF16, bf16_to_f32, 0x7f80, |low| f32::from_bits(u32::from(low) << 16 | 0x8000));
}

#[test]
fn known_blocks() {
    // 127/64 is the largest weight: the scale is 1/64, float16 0x2400.
    let mut weights = [0.0; 32];
    weights[..4].copy_from_slice(&[-127.0 / 64.0, 1.0 / 64.0, -0.4 / 64.0, 1.6 / 64.0]);
    assert_eq!(encode(TensorType::Q8_0, &weights)[..7], [0x00, 0x24, 0x81, 1, 0, 2, 0]);

    // The largest weight, 8, is code 0 of scale -1 (0xbc00); zero is code 8, 7 is code 1, -9 does not occur.
    let mut weights = [0.0; 32];
    weights[0] = 8.0;
    weights[1] = 7.0;
    weights[16] = -7.0;
    let mut want = [0x88; 18];
    want[..4].copy_from_slice(&[0x00, 0xbc, 0xf0, 0x81]);
    assert_eq!(encode(TensorType::Q4_0, &weights), want);

    // -1, 2, 0, 1 times a scale of -0.5 (0xb800), neighbours in a byte from the lowest bits up.
    let weights = [0.5, -1.0, 0.0, -0.5].repeat(16);
    let mut want = [0b10_01_11_00; 18];
    want[..2].copy_from_slice(&[0x00, 0xb8]);
    assert_eq!(encode(TensorType::Q2_0, &weights), want);

    // -127 and 113 times 2 (0x4000) are the ends of the table, 2 its code 8.
    let mut weights = [2.0; 32];
    weights[0] = -254.0;
    weights[31] = 226.0;
    let mut want = [0x88; 18];
    want[..3].copy_from_slice(&[0x00, 0x40, 0x80]);
    want[17] = 0xf8;
    assert_eq!(encode(TensorType::IQ4_NL, &weights), want);
}

#[test]
fn zeros_and_weights_below_every_scale_become_zeros() {
    for ty in BLOCKS {
        for weight in [0.0, -0.0, 1e-30, -1e-30, f32::from_bits(1)] {
            let decoded = decode(ty, &encode(ty, &[weight; 64]));
            assert!(decoded.iter().all(|value| value.to_bits() == 0), "{ty} of {weight:e}: {decoded:?}");
        }
    }
}

#[test]
fn refuses_what_no_scale_reaches() {
    for (ty, largest_code) in BLOCKS.into_iter().zip([127.0, 8.0, 127.0, 2.0]) {
        let limit = 65504.0 * largest_code;
        for largest in [limit, -limit] {
            let mut weights = [0.0; 64];
            weights[3] = largest;
            let decoded = decode(ty, &encode(ty, &weights))[3];
            // IQ4_NL has no zero: its scale gives a little of the largest weight for the others.
            let slack = if ty == TensorType::IQ4_NL { limit / 256.0 } else { 0.0 };
            assert!((decoded - largest).abs() <= slack, "{ty}: {largest:e} became {decoded:e}");
        }
        for value in [f32::next_up(limit), f32::MIN, f32::INFINITY, f32::NAN] {
            let mut weights = [0.0; 128];
            weights[70] = value;
            let mut out = vec![1, 2, 3];
            let error = encode_row(ty, &weights, &mut out).unwrap_err();
            assert!(
                matches!(error, EncodeError::OutOfRange { index: 70, limit: l, .. } if l == limit),
                "{ty} of {value}: {error}"
            );
            assert_eq!(out, [1, 2, 3]);
        }
    }
}

#[test]
fn refuses_other_types_and_parts_of_blocks() {
    let written = [TensorType::F32, TensorType::F16, TensorType::BF16];
    for &ty in TensorType::ALL {
        let result = encode_row(ty, &[1.0; 256], &mut Vec::new());
        if BLOCKS.contains(&ty) || written.contains(&ty) {
            assert_eq!(result, Ok(()));
        } else {
            assert_eq!(result, Err(EncodeError::NoEncoder(ty)));
        }
    }
    let error = encode_row(TensorType::Q2_0, &[1.0; 96], &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "cannot encode a row of 96 weights as Q2_0: whole blocks of 64 are needed");
}

#[test]
fn errors_say_what_to_do() {
    let error = |ty, weights: &[f32]| encode_row(ty, weights, &mut Vec::new()).unwrap_err().to_string();
    assert_eq!(
        error(TensorType::IQ2_XS, &[0.0; 256]),
        "cannot encode IQ2_XS: only F32, F16, BF16, Q8_0, Q4_0, IQ4_NL and Q2_0 can be written; choose one of these"
    );
    let mut weights = [0.0; 32];
    weights[7] = -1e9;
    assert_eq!(
        error(TensorType::Q8_0, &weights),
        "cannot encode weight 7 of the row, -1e9, as Q8_0: it must lie within +-8.319008e6; use BF16"
    );
}

/// What quantisers reach on weights from a normal distribution; without the searches for scales the last two fail.
#[test]
fn quality_on_normal_weights() {
    // The sum of twelve uniform numbers, from a plain generator.
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let weights: Vec<f32> = (0..65536).map(|_| ((0..12).map(|_| uniform()).sum::<f32>() - 6.0) * 0.02).collect();
    let errors = BLOCKS.map(|ty| relative_error(ty, &weights));
    for (error, limit) in errors.into_iter().zip([0.0053, 0.085, 0.073, 0.35]) {
        assert!(error < limit, "{errors:?}");
    }
}

proptest! {
    /// Weights of any size: the bound is that of the rounding of codes under the scale that was chosen.
    #[test]
    fn errors_are_bounded_by_the_scale(
        weights in prop::collection::vec(-1.0_f32..1.0, 64),
        exponent in -20..16_i32,
    ) {
        let weights: Vec<f32> = weights.iter().map(|weight| weight * 2f32.powi(exponent)).collect();
        for (ty, worst) in [(TensorType::Q8_0, 0.5), (TensorType::Q4_0, 1.0)] {
            let blocks = encode(ty, &weights);
            let decoded = decode(ty, &blocks);
            for (block, (weights, decoded)) in
                blocks.chunks(ty.block_bytes()).zip(weights.chunks(32).zip(decoded.chunks(32)))
            {
                let scale = f16_to_f32(u16::from_le_bytes([block[0], block[1]])).abs();
                let largest = weights.iter().fold(0.0, |a: f32, b| a.max(b.abs()));
                // A scale is rounded to 11 bits, or to a whole number of the smallest subnormals.
                let rounding = largest / 1024.0 + 128.0 * 3e-8;
                for (a, b) in weights.iter().zip(decoded) {
                    prop_assert!((a - b).abs() <= worst * scale + rounding, "{ty}: {a:e} became {b:e}");
                }
            }
        }
    }

    /// A search can only do better than the scale that fits the largest weight, and that is no worse than all zeros.
    #[test]
    fn searched_scales_beat_plain_ones(weights in prop::collection::vec(-1.0_f32..1.0, 64)) {
        let plain = |largest_code: f32, nearest: fn(f32) -> f32, weights: &[f32]| -> f32 {
            let largest = weights.iter().fold(0.0, |a: f32, &b| if b.abs() > a.abs() { b } else { a });
            let scale = largest / largest_code;
            weights.iter().map(|w| (w - scale * nearest(w / scale)).powi(2)).sum()
        };
        let iq4 = |ratio: f32| {
            let table = strata_quant::grids::IQ4_VALUES.map(f32::from);
            table.into_iter().min_by(|a, b| (a - ratio).abs().total_cmp(&(b - ratio).abs())).unwrap()
        };
        for (ty, largest_code, nearest) in [
            (TensorType::IQ4_NL, -127.0, iq4 as fn(f32) -> f32),
            (TensorType::Q2_0, 2.0, |ratio: f32| ratio.round().clamp(-1.0, 2.0)),
        ] {
            let size = ty.block_weights();
            let decoded = decode(ty, &encode(ty, &weights));
            for (weights, decoded) in weights.chunks(size).zip(decoded.chunks(size)) {
                let error: f32 = weights.iter().zip(decoded).map(|(a, b)| (a - b).powi(2)).sum();
                // Rounding the scale to float16 moves every value a little, and a few codes.
                let energy: f32 = weights.iter().map(|w| w * w).sum();
                let limit = plain(largest_code, nearest, weights) * 1.02 + energy / 2_097_152.0;
                prop_assert!(error <= limit, "{ty}: {error} above {limit}");
            }
        }
    }

    /// Blocks that use the end of the range of their codes come back as they were.
    #[test]
    fn decoded_blocks_encode_to_the_same_weights(
        bytes in prop::collection::vec(any::<u8>(), 32),
        scale in prop_oneof![1_u16..0x7c00, 0x8001_u16..0xfc00],
    ) {
        let packed = |count: usize, first: u8| {
            let mut block = scale.to_le_bytes().to_vec();
            block.extend(&bytes[..count]);
            block[2] = first;
            block
        };
        let mut q8_0 = packed(32, 127);
        q8_0[0..2].copy_from_slice(&(scale & 0x7fff).to_le_bytes());
        for byte in &mut q8_0[2..] {
            *byte = if *byte == 0x80 { 0x81 } else { *byte };
        }
        for (ty, block) in [
            (TensorType::Q8_0, q8_0),
            (TensorType::Q4_0, packed(16, bytes[0] & 0xf0)),
            (TensorType::IQ4_NL, packed(16, bytes[0] & 0xf0)),
            (TensorType::Q2_0, packed(16, bytes[0] | 3)),
        ] {
            let weights = decode(ty, &block);
            prop_assert_eq!(decode(ty, &encode(ty, &weights)), weights, "{}", ty);
        }
    }
}
