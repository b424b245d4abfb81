//! Codebooks and tables of the formats, for decoders and kernels.
//!
//! Owns: the grids of the IQ types (an entry is the magnitudes of 8 consecutive weights, one byte each, first weight
//! lowest; of 4 in the grids of IQ3), the masks of their signs, and the value tables of the four-bit types.
//! Promises: they are facts of the file formats and never change; an index read from a file needs masking to its bits.

pub mod codes;

/// Grid of IQ2_XXS: 8, 25 or 43.
pub static IQ2_XXS: [u64; 256] = entries_of_8(&codes::IQ2_XXS, [8, 25, 43]);

/// Grid of IQ2_XS: 8, 25 or 43.
pub static IQ2_XS: [u64; 512] = entries_of_8(&codes::IQ2_XS, [8, 25, 43]);

/// Grid of IQ2_S: 8, 25 or 43.
pub static IQ2_S: [u64; 1024] = entries_of_8(&codes::IQ2_S, [8, 25, 43]);

/// Grid of IQ3_XXS: 4, 12, 20, 28, 36, 44, 52 or 62.
pub static IQ3_XXS: [u32; 256] = entries_of_4(&codes::IQ3_XXS, [4, 12, 20, 28, 36, 44, 52, 62]);

/// Grid of IQ3_S: odd numbers from 1 to 15.
pub static IQ3_S: [u32; 512] = entries_of_4(&codes::IQ3_S, [1, 3, 5, 7, 9, 11, 13, 15]);

/// Grid of IQ1_S and IQ1_M: -1, 0 or 1, as signed bytes. These types have no signs apart from it.
pub static IQ1: [u64; 2048] = entries_of_8(&codes::IQ1, [-1, 0, 1]);

/// What IQ1_S and IQ1_M add to (or subtract from) the values of their grid.
pub const IQ1_SHIFT: f32 = 0.125;

/// Values of the codes of IQ4_NL and IQ4_XS.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Values of the codes of MXFP4 and NVFP4: twice the E2M1 numbers. Code 8, minus zero, is plain zero.
pub const FP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Sign bits of eight weights as a mask for [`negate_bytes`]: byte `j` is 255 where bit `j` of the index is set.
pub static SIGN_MASKS: [u64; 256] = sign_masks();

/// The same for the seven sign bits of the types that store no eighth: it makes the number of negatives even.
pub static SIGN_MASKS_7: [u64; 128] = sign_masks_of_7();

/// Negates the bytes of `entry` where `mask` is 255. The bytes under the mask must not be zero.
#[inline]
pub const fn negate_bytes(entry: u64, mask: u64) -> u64 {
    // -x = !x + 1, and without zeros no byte carries into the next.
    (entry ^ mask).wrapping_add(mask & 0x0101_0101_0101_0101)
}

/// Entries from their packed form: two bits for the position in `values` of each of eight values.
const fn entries_of_8<const N: usize>(codes: &[u16; N], values: [i8; 3]) -> [u64; N] {
    let mut entries = [0; N];
    let mut i = 0;
    while i < N {
        let mut j = 0;
        while j < 8 {
            let value = values[(codes[i] >> (2 * j) & 3) as usize];
            entries[i] |= (value.cast_unsigned() as u64) << (8 * j);
            j += 1;
        }
        i += 1;
    }
    entries
}

/// Entries from their packed form: three bits for the position in `values` of each of four values.
const fn entries_of_4<const N: usize>(codes: &[u16; N], values: [i8; 8]) -> [u32; N] {
    let mut entries = [0; N];
    let mut i = 0;
    while i < N {
        let mut j = 0;
        while j < 4 {
            let value = values[(codes[i] >> (3 * j) & 7) as usize];
            entries[i] |= (value.cast_unsigned() as u32) << (8 * j);
            j += 1;
        }
        i += 1;
    }
    entries
}

const fn sign_masks() -> [u64; 256] {
    let mut masks = [0; 256];
    let mut signs = 0;
    while signs < 256 {
        let mut j = 0;
        while j < 8 {
            if signs >> j & 1 == 1 {
                masks[signs] |= 0xff << (8 * j);
            }
            j += 1;
        }
        signs += 1;
    }
    masks
}

const fn sign_masks_of_7() -> [u64; 128] {
    let all = sign_masks();
    let mut masks = [0; 128];
    let mut signs: usize = 0;
    while signs < 128 {
        let parity = (signs.count_ones() & 1) as usize;
        masks[signs] = all[signs | parity << 7];
        signs += 1;
    }
    masks
}
