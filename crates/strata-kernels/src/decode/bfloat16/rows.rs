//! Rows of bfloat16 weights: the decoder of each type, into memory or straight into dot products.

use std::arch::x86_64::*;

use strata_gguf::TensorType;
use strata_quant::decode_row;

use super::sink::{Dots, Memory, Sink};
use super::{codebooks, tables, values};
use crate::bfloat16::round;
use crate::products::Line;

/// Calls `$each_block` with the decoder of a type, or does `$otherwise`.
macro_rules! decoder {
    ($ty:expr, $each_block:ident, $otherwise:expr) => {
        match $ty {
            TensorType::F32 => $each_block!(values::f32),
            TensorType::F16 => $each_block!(values::f16_values),
            TensorType::BF16 => $each_block!(values::bf16),
            TensorType::Q4_0 => $each_block!(tables::q4_0),
            TensorType::Q8_0 => $each_block!(values::q8_0),
            TensorType::Q2_0 => $each_block!(tables::q2_0),
            TensorType::IQ4_NL => $each_block!(tables::iq4_nl),
            TensorType::IQ4_XS => $each_block!(tables::iq4_xs),
            TensorType::Q4_K => $each_block!(tables::q4_k),
            TensorType::Q5_K => $each_block!(tables::q5_k),
            TensorType::Q6_K => $each_block!(values::q6_k),
            TensorType::IQ1_S => $each_block!(codebooks::iq1_s),
            TensorType::IQ1_M => $each_block!(codebooks::iq1_m),
            TensorType::IQ2_XXS => $each_block!(codebooks::iq2_xxs),
            TensorType::IQ2_XS => $each_block!(codebooks::iq2_xs),
            TensorType::IQ2_S => $each_block!(codebooks::iq2_s),
            TensorType::IQ3_XXS => $each_block!(codebooks::iq3_xxs),
            TensorType::IQ3_S => $each_block!(codebooks::iq3_s),
            _ => $otherwise,
        }
    };
}

/// Decodes whole blocks.
///
/// # Safety
/// The lengths must fit together.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,f16c,bmi2")]
pub(in crate::decode) unsafe fn to_memory(ty: TensorType, blocks: &[u8], out: &mut [u16]) {
    // What is no multiple of 32 belongs to a type of single weights.
    let rest = out.len() % 32;
    let (blocks, rest_blocks) = blocks.split_at(blocks.len() - rest * ty.block_bytes());
    let (out, rest_out) = out.split_at_mut(out.len() - rest);
    // SAFETY: there is room for the weights of the blocks; the instructions are enabled here.
    unsafe { decode(ty, blocks, &mut Memory { next: out.as_mut_ptr() }) };
    let mut floats = [0.0; 32];
    decode_row(ty, rest_blocks, &mut floats[..rest]);
    for (out, value) in rest_out.iter_mut().zip(floats) {
        *out = round(value);
    }
    if ty == TensorType::BF16 {
        for (out, bits) in rest_out.iter_mut().zip(rest_blocks.as_chunks().0) {
            *out = u16::from_le_bytes(*bits);
        }
    }
}

/// The sums of two weight rows, given as their blocks, with `C` input rows, each `row_lines` lines long and as long as
/// they are. The rows are decoded side by side: the sums of one alone would wait for each other.
///
/// # Safety
/// `x` must be readable so far.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,f16c,bmi2")]
pub(crate) unsafe fn dots_of_two<const C: usize>(
    ty: TensorType,
    rows: [&[u8]; 2],
    x: *const Line,
    row_lines: usize,
) -> [[__m512; C]; 2] {
    // A function for each type: in one for all, the compiler unrolls no loop.
    macro_rules! each_block {
        ($block:path) => {{
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,f16c,bmi2")]
            unsafe fn of_type<const C: usize>(rows: [&[u8]; 2], x: *const Line, row_lines: usize) -> [[__m512; C]; 2] {
                let none = [_mm512_setzero_ps(); C];
                let mut a = Dots { next: x, row_lines, sums: none };
                let mut b = Dots { next: x, row_lines, sums: none };
                for (first, second) in rows[0].as_chunks().0.iter().zip(rows[1].as_chunks().0) {
                    // SAFETY: as many lines as weights, by the caller's promise; the instructions are enabled here.
                    unsafe {
                        $block(first, &mut a);
                        $block(second, &mut b);
                    }
                }
                [a.sums, b.sums]
            }
            // SAFETY: as above.
            unsafe { of_type::<C>(rows, x, row_lines) }
        }};
    }
    // SAFETY: as above.
    decoder!(ty, each_block, unsafe { [dots(ty, rows[0], x, row_lines), dots(ty, rows[1], x, row_lines)] })
}

/// [`dots_of_two`] of one row.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,f16c,bmi2")]
pub(crate) unsafe fn dots<const C: usize>(ty: TensorType, row: &[u8], x: *const Line, row_lines: usize) -> [__m512; C] {
    let mut dots = Dots { next: x, row_lines, sums: [_mm512_setzero_ps(); C] };
    // SAFETY: as there.
    unsafe { decode(ty, row, &mut dots) };
    dots.sums
}

/// Runs the decoder of `ty` over every block; their weights are a multiple of 32.
///
/// # Safety
/// The sink must take as many weights; the processor must have AVX-512 with BF16, F16C and BMI2.
#[inline(always)]
unsafe fn decode<S: Sink>(ty: TensorType, blocks: &[u8], sink: &mut S) {
    macro_rules! each_block {
        ($block:path) => {
            for block in blocks.as_chunks().0 {
                // SAFETY: the caller vouches for the sink and the instructions.
                unsafe { $block(block, sink) }
            }
        };
    }
    // SAFETY: as above.
    decoder!(ty, each_block, unsafe { by_definition(ty, blocks, sink) });
}

/// The types without a decoder of their own: in float32, a few weights at a time, then rounded.
///
/// # Safety
/// As [`decode`].
#[inline(always)]
unsafe fn by_definition<S: Sink>(ty: TensorType, blocks: &[u8], sink: &mut S) {
    let mut floats = [0.0; 256];
    // Whole blocks of every type: their weights divide 256.
    for blocks in blocks.chunks(256 / ty.block_weights() * ty.block_bytes()) {
        let weights = blocks.len() / ty.block_bytes() * ty.block_weights();
        decode_row(ty, blocks, &mut floats[..weights]);
        for floats in floats[..weights].as_chunks::<32>().0 {
            // SAFETY: twice sixteen readable values; the caller vouches for the rest.
            unsafe { values::f32_values(floats, sink) }
        }
    }
}
