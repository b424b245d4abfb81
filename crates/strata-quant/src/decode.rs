//! Decoding a row: one small decoder of a block per type, applied to every block.
//!
//! Owns: the choice of the decoder.
//! Promises: every byte pattern decodes.
//! Refuses: slices whose lengths do not fit together, by a panic: they are a mistake of the caller, not of a file.

use strata_gguf::TensorType;

use crate::{float, iquants, kquants, simple};

/// Decodes whole blocks of type `ty`: `out` gets their weights in order.
///
/// # Panics
/// When `out` is not a whole number of blocks long, or `blocks` is not exactly that many blocks.
pub fn decode_row(ty: TensorType, blocks: &[u8], out: &mut [f32]) {
    match ty {
        TensorType::F32 => each_block(ty, blocks, out, float::f32),
        TensorType::F16 => each_block(ty, blocks, out, float::f16),
        TensorType::BF16 => each_block(ty, blocks, out, float::bf16),
        TensorType::Q4_0 => each_block(ty, blocks, out, simple::q4_0),
        TensorType::Q4_1 => each_block(ty, blocks, out, simple::q4_1),
        TensorType::Q5_0 => each_block(ty, blocks, out, simple::q5_0),
        TensorType::Q5_1 => each_block(ty, blocks, out, simple::q5_1),
        TensorType::Q8_0 => each_block(ty, blocks, out, simple::q8_0),
        TensorType::Q2_0 => each_block(ty, blocks, out, simple::q2_0),
        TensorType::IQ4_NL => each_block(ty, blocks, out, simple::iq4_nl),
        TensorType::MXFP4 => each_block(ty, blocks, out, simple::mxfp4),
        TensorType::NVFP4 => each_block(ty, blocks, out, simple::nvfp4),
        TensorType::Q2_K => each_block(ty, blocks, out, kquants::q2_k),
        TensorType::Q3_K => each_block(ty, blocks, out, kquants::q3_k),
        TensorType::Q4_K => each_block(ty, blocks, out, kquants::q4_k),
        TensorType::Q5_K => each_block(ty, blocks, out, kquants::q5_k),
        TensorType::Q6_K => each_block(ty, blocks, out, kquants::q6_k),
        TensorType::IQ1_S => each_block(ty, blocks, out, iquants::iq1_s),
        TensorType::IQ1_M => each_block(ty, blocks, out, iquants::iq1_m),
        TensorType::IQ2_XXS => each_block(ty, blocks, out, iquants::iq2_xxs),
        TensorType::IQ2_XS => each_block(ty, blocks, out, iquants::iq2_xs),
        TensorType::IQ2_S => each_block(ty, blocks, out, iquants::iq2_s),
        TensorType::IQ3_XXS => each_block(ty, blocks, out, iquants::iq3_xxs),
        TensorType::IQ3_S => each_block(ty, blocks, out, iquants::iq3_s),
        TensorType::IQ4_XS => each_block(ty, blocks, out, iquants::iq4_xs),
    }
}

/// Applies `block` to every block; the sizes in its signature must be those of `ty`.
fn each_block<const BYTES: usize, const WEIGHTS: usize>(
    ty: TensorType,
    blocks: &[u8],
    out: &mut [f32],
    block: impl Fn(&[u8; BYTES], &mut [f32; WEIGHTS]),
) {
    assert_eq!((BYTES, WEIGHTS), (ty.block_bytes(), ty.block_weights()), "block of the decoder of {ty}");
    let (given_bytes, given_weights) = (blocks.len(), out.len());
    let (blocks, rest_bytes) = blocks.as_chunks();
    let (out, rest_weights) = out.as_chunks_mut();
    assert!(
        rest_bytes.is_empty() && rest_weights.is_empty() && blocks.len() == out.len(),
        "{given_bytes} bytes of {ty} do not decode to {given_weights} weights: {BYTES} bytes hold {WEIGHTS}"
    );
    for (bytes, weights) in blocks.iter().zip(out) {
        block(bytes, weights);
    }
}
