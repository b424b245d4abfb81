//! Decoders against blocks decoded by ggml itself.
//!
//! `data/quants.safetensors` holds, for every quantised type, random blocks with finite scales (`<type>.blocks`) and
//! what the `dequantize_row_*` functions of ggml make of them (`<type>.values`). Written by
//! tools/oracle/check_quants.py.

use std::collections::HashMap;

use safetensors::SafeTensors;
use strata_gguf::TensorType;
use strata_quant::decode_row;

#[test]
fn equals_ggml_bit_for_bit() {
    let file = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/quants.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let tensors: HashMap<String, _> = tensors.iter().map(|(name, view)| (name.to_uppercase(), view)).collect();
    let mut checked = 0;
    for &ty in TensorType::ALL {
        if matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16) {
            continue;
        }
        let blocks = tensors[&format!("{ty}.BLOCKS")].data();
        let want = tensors[&format!("{ty}.VALUES")].data().as_chunks::<4>().0;
        assert!(want.len() >= 256, "{ty}");
        let mut out = vec![0.0; want.len()];
        decode_row(ty, blocks, &mut out);
        for (e, (got, &want)) in out.iter().zip(want).enumerate() {
            let want = f32::from_le_bytes(want);
            assert_eq!(got.to_bits(), want.to_bits(), "{ty} weight {e}: got {got:e}, expected {want:e}");
        }
        checked += 1;
    }
    assert_eq!(checked, 22);
}
