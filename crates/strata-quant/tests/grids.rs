//! The codebooks against the package that they were generated from, and against what is known of them otherwise.

use std::collections::{BTreeSet, HashSet};

use strata_quant::grids;

/// FNV-1a, as tools/gen_grids.py computes it over the values of a grid in the package.
fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Checks entries of `WIDTH` bytes: their number, that no two are the same, the values in use, the hash.
fn check<const WIDTH: usize>(entries: &[[u8; WIDTH]], count: usize, values: &[i8], hash: u64) {
    assert_eq!(entries.len(), count);
    assert_eq!(entries.iter().collect::<HashSet<_>>().len(), count, "an entry occurs twice");
    let used: BTreeSet<i8> = entries.as_flattened().iter().map(|byte| byte.cast_signed()).collect();
    assert_eq!(used.into_iter().collect::<Vec<_>>(), values);
    assert_eq!(fnv1a(entries.as_flattened().iter().copied()), hash, "the hash printed by tools/gen_grids.py");
}

#[test]
fn iq2_xxs() {
    check(&grids::IQ2_XXS.map(u64::to_le_bytes), 256, &[8, 25, 43], 0xbb4e_e025_b5ac_6e8e);
}

#[test]
fn iq2_xs() {
    check(&grids::IQ2_XS.map(u64::to_le_bytes), 512, &[8, 25, 43], 0xc9b1_ee61_e799_09bd);
}

#[test]
fn iq2_s() {
    check(&grids::IQ2_S.map(u64::to_le_bytes), 1024, &[8, 25, 43], 0x123e_dd38_a3b6_2b90);
}

#[test]
fn iq3_xxs() {
    check(&grids::IQ3_XXS.map(u32::to_le_bytes), 256, &[4, 12, 20, 28, 36, 44, 52, 62], 0xdfa5_dc83_d6a1_55d5);
}

#[test]
fn iq3_s() {
    check(&grids::IQ3_S.map(u32::to_le_bytes), 512, &[1, 3, 5, 7, 9, 11, 13, 15], 0xfa37_020c_25b4_4829);
}

#[test]
fn iq1() {
    check(&grids::IQ1.map(u64::to_le_bytes), 2048, &[-1, 0, 1], 0x6703_ed86_3501_ae2e);
}

#[test]
fn four_bit_tables() {
    // E2M1: a sign, two bits of exponent (bias 1), one of fraction; the table holds twice its values.
    for (code, value) in grids::FP4_VALUES.into_iter().enumerate() {
        let (exponent, fraction) = (code / 2 % 4, (code % 2) as f32 / 2.0);
        let e2m1 = if exponent == 0 { fraction } else { (1.0 + fraction) * 2f32.powi(exponent as i32 - 1) };
        assert_eq!(f32::from(value), if code < 8 { 2.0 * e2m1 } else { -2.0 * e2m1 }, "code {code}");
    }
    // Printed by tools/gen_grids.py as well.
    assert_eq!(fnv1a(grids::IQ4_VALUES.into_iter().map(i8::cast_unsigned)), 0x055d_06d2_d8fa_0f75);
    assert!(grids::IQ4_VALUES.is_sorted(), "encoders search it");
}

#[test]
fn masks_negate_the_weights_whose_sign_bit_is_set() {
    let entry = [8, 25, 43, 1, 127, 62, 15, 4];
    for signs in 0..=255u8 {
        let mask = grids::SIGN_MASKS[usize::from(signs)];
        let negated = grids::negate_bytes(u64::from_le_bytes(entry), mask).to_le_bytes();
        for (j, (value, negated)) in entry.into_iter().zip(negated).enumerate() {
            let expected = if signs & 1 << j == 0 { value.cast_signed() } else { -value.cast_signed() };
            assert_eq!(negated.cast_signed(), expected, "signs {signs:#010b}, weight {j}");
        }
    }
}

#[test]
fn seven_signs_make_an_even_number_of_negatives() {
    for (signs, &mask) in grids::SIGN_MASKS_7.iter().enumerate() {
        assert_eq!(mask & 0x00ff_ffff_ffff_ffff, grids::SIGN_MASKS[signs], "the stored signs are kept");
        assert_eq!(mask.count_ones() % 16, 0, "signs {signs:#09b}");
        assert!(mask >> 56 == 0 || mask >> 56 == 255, "signs {signs:#09b}");
    }
}
