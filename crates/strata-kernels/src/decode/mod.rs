//! Block formats to weights, with vector instructions.
//!
//! Owns: for x86-64, one decoder of a block per type, compiled for AVX2 and AVX-512 and for float32 and bfloat16 weights.
//! They share a shape: the codes of sixteen weights are brought into sixteen signed bytes, which [`lanes::Wide::put`]
//! widens and multiplies by a scale. The types of the largest matrices have decoders straight to bfloat16 as well.
//! Promises: the bits of `strata_quant::decode_row`, which stays the definition of every format (a NaN is only promised
//! to be a NaN), or those bits rounded once by [`bfloat16::round`](crate::bfloat16::round). Where a factor is moved from
//! one place of a product to another, both forms are exact.
//! Refuses: nothing; a type without a decoder here, and `Isa::Portable`, take `decode_row`.

use strata_gguf::TensorType;
use strata_quant::decode_row;

#[cfg(target_arch = "x86_64")]
pub(crate) use self::bfloat16::{dots, dots_of_two};
use crate::{Arithmetic, Isa, UnavailableIsa};

#[cfg(target_arch = "x86_64")]
mod bfloat16;
#[cfg(target_arch = "x86_64")]
mod iquants;
#[cfg(target_arch = "x86_64")]
mod kquants;
#[cfg(target_arch = "x86_64")]
mod lanes;
#[cfg(target_arch = "x86_64")]
mod simple;
#[cfg(target_arch = "x86_64")]
mod x86;

/// Decodes whole blocks of type `ty`: `out` gets their weights in order.
///
/// # Panics
/// When the lengths do not fit together, or this machine cannot run `isa`.
pub fn decode_blocks(isa: Isa, ty: TensorType, blocks: &[u8], out: &mut [f32]) {
    assert!(isa.is_available(), "{}", UnavailableIsa(isa));
    check_lengths(ty, blocks, out.len());
    match isa {
        // SAFETY: the assertion above: this machine has the instructions.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => unsafe { x86::avx512(ty, blocks, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::avx2(ty, blocks, out) },
        _ => decode_row(ty, blocks, out),
    }
}

/// [`decode_blocks`] to bfloat16: `out` gets the bits of the rounded weights.
///
/// # Panics
/// When the lengths do not fit together, or the fastest arithmetic of `isa` on this machine is not
/// [`Arithmetic::Bfloat16`].
pub fn decode_blocks_to_bfloat16(isa: Isa, ty: TensorType, blocks: &[u8], out: &mut [u16]) {
    assert!(isa.is_available() && isa.fastest_arithmetic() == Arithmetic::Bfloat16, "`{isa}` has no bfloat16 here");
    check_lengths(ty, blocks, out.len());
    // SAFETY: the assertion above: this machine has AVX-512 with BF16, and BMI2.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        bfloat16::to_memory(ty, blocks, out);
    }
}

fn check_lengths(ty: TensorType, blocks: &[u8], weights: usize) {
    assert!(
        ty.row_bytes(weights as u64) == Some(blocks.len() as u64),
        "{} bytes of {ty} do not decode to {weights} weights: {} bytes hold {}",
        blocks.len(),
        ty.block_bytes(),
        ty.block_weights()
    );
}
