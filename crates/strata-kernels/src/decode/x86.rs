//! The float32 decoder of each type, compiled for each instruction set of x86-64.

use strata_gguf::TensorType;
use strata_quant::decode_row;

use super::lanes::{Avx2, Avx512, Wide};
use super::{iquants, kquants, simple};

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
pub(super) fn avx512(ty: TensorType, blocks: &[u8], out: &mut [f32]) {
    // SAFETY: the instructions of `Avx512` are enabled here.
    if !unsafe { decode::<Avx512>(ty, blocks, out) } {
        decode_row(ty, blocks, out);
    }
}

#[target_feature(enable = "avx2,f16c")]
pub(super) fn avx2(ty: TensorType, blocks: &[u8], out: &mut [f32]) {
    // SAFETY: the instructions of `Avx2` are enabled here.
    if !unsafe { decode::<Avx2>(ty, blocks, out) } {
        decode_row(ty, blocks, out);
    }
}

/// Runs the decoder of `ty` over every block; `false`: there is none.
///
/// # Safety
/// The processor must have the instructions of `W`.
#[inline(always)]
unsafe fn decode<W: Wide>(ty: TensorType, blocks: &[u8], out: &mut [f32]) -> bool {
    // A loop in place, not a closure: a closure would be compiled without the instructions.
    macro_rules! each_block {
        ($block:path) => {{
            let (blocks, out) = in_blocks(ty, blocks, out);
            for (bytes, weights) in blocks.iter().zip(out) {
                // SAFETY: the caller vouches for the instructions.
                unsafe { $block(bytes, weights) }
            }
        }};
    }
    match ty {
        TensorType::IQ2_XS => each_block!(iquants::iq2_xs::<W>),
        TensorType::IQ2_S => each_block!(iquants::iq2_s::<W>),
        TensorType::IQ2_XXS => each_block!(iquants::iq2_xxs::<W>),
        TensorType::IQ3_S => each_block!(iquants::iq3_s::<W>),
        TensorType::IQ3_XXS => each_block!(iquants::iq3_xxs::<W>),
        TensorType::IQ1_S => each_block!(iquants::iq1_s::<W>),
        TensorType::IQ1_M => each_block!(iquants::iq1_m::<W>),
        TensorType::IQ4_XS => each_block!(iquants::iq4_xs::<W>),
        TensorType::Q4_K => each_block!(kquants::q4_k::<W>),
        TensorType::Q5_K => each_block!(kquants::q5_k::<W>),
        TensorType::Q6_K => each_block!(kquants::q6_k::<W>),
        TensorType::Q4_0 => each_block!(simple::q4_0::<W>),
        TensorType::Q8_0 => each_block!(simple::q8_0::<W>),
        TensorType::Q2_0 => each_block!(simple::q2_0::<W>),
        TensorType::IQ4_NL => each_block!(simple::iq4_nl::<W>),
        // Whole rows of these need not be whole eights.
        TensorType::F16 if out.len().is_multiple_of(8) => {
            let (eights, out) = (blocks.as_chunks().0, out.as_chunks_mut().0);
            for (bytes, weights) in eights.iter().zip(out) {
                // SAFETY: the caller vouches for the instructions.
                unsafe { simple::float16(bytes, weights) }
            }
        }
        _ => return false,
    }
    true
}

/// Both slices, of fitting lengths, in blocks; `BYTES` and `WEIGHTS` must be those of `ty`.
#[inline(always)]
fn in_blocks<'a, const BYTES: usize, const WEIGHTS: usize>(
    ty: TensorType,
    blocks: &'a [u8],
    out: &'a mut [f32],
) -> (&'a [[u8; BYTES]], &'a mut [[f32; WEIGHTS]]) {
    assert_eq!((BYTES, WEIGHTS), (ty.block_bytes(), ty.block_weights()), "block of the decoder of {ty}");
    (blocks.as_chunks().0, out.as_chunks_mut().0)
}
