//! The tensor types a file can name: id, name, and the size of a block.

use std::fmt;

macro_rules! tensor_types {
    ($($variant:ident = $id:literal, $name:literal, $weights:literal weights in $bytes:literal bytes;)*) => {
        /// Type of the elements of a tensor, as numbered by ggml.
        ///
        /// Weights are stored in blocks of [`block_weights`](Self::block_weights) consecutive weights of a row.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, non_camel_case_types)] // the variants are ggml's own names
        pub enum TensorType { $($variant = $id,)* }

        impl TensorType {
            /// Every type, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The type with this id in a file, if it is one this program knows.
            pub fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$variant),)* _ => None }
            }

            /// Its id in a file.
            pub fn id(self) -> u32 {
                match self { $(Self::$variant => $id,)* }
            }

            /// The name ggml uses, for example `IQ2_XS`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Weights in one block.
            pub fn block_weights(self) -> usize {
                match self { $(Self::$variant => $weights,)* }
            }

            /// Bytes of one block.
            pub fn block_bytes(self) -> usize {
                match self { $(Self::$variant => $bytes,)* }
            }
        }
    };
}

tensor_types! {
    F32 = 0, "F32", 1 weights in 4 bytes;
    F16 = 1, "F16", 1 weights in 2 bytes;
    BF16 = 30, "BF16", 1 weights in 2 bytes;
    Q4_0 = 2, "Q4_0", 32 weights in 18 bytes;
    Q4_1 = 3, "Q4_1", 32 weights in 20 bytes;
    Q5_0 = 6, "Q5_0", 32 weights in 22 bytes;
    Q5_1 = 7, "Q5_1", 32 weights in 24 bytes;
    Q8_0 = 8, "Q8_0", 32 weights in 34 bytes;
    Q2_0 = 42, "Q2_0", 64 weights in 18 bytes;
    Q2_K = 10, "Q2_K", 256 weights in 84 bytes;
    Q3_K = 11, "Q3_K", 256 weights in 110 bytes;
    Q4_K = 12, "Q4_K", 256 weights in 144 bytes;
    Q5_K = 13, "Q5_K", 256 weights in 176 bytes;
    Q6_K = 14, "Q6_K", 256 weights in 210 bytes;
    IQ1_S = 19, "IQ1_S", 256 weights in 50 bytes;
    IQ1_M = 29, "IQ1_M", 256 weights in 56 bytes;
    IQ2_XXS = 16, "IQ2_XXS", 256 weights in 66 bytes;
    IQ2_XS = 17, "IQ2_XS", 256 weights in 74 bytes;
    IQ2_S = 22, "IQ2_S", 256 weights in 82 bytes;
    IQ3_XXS = 18, "IQ3_XXS", 256 weights in 98 bytes;
    IQ3_S = 21, "IQ3_S", 256 weights in 110 bytes;
    IQ4_NL = 20, "IQ4_NL", 32 weights in 18 bytes;
    IQ4_XS = 23, "IQ4_XS", 256 weights in 136 bytes;
    MXFP4 = 39, "MXFP4", 32 weights in 17 bytes;
    NVFP4 = 40, "NVFP4", 64 weights in 36 bytes;
}

impl TensorType {
    /// Bytes of a row of `weights` weights, or `None` when that is not a whole number of blocks (or overflows).
    pub fn row_bytes(self, weights: u64) -> Option<u64> {
        let per_block = self.block_weights() as u64;
        if !weights.is_multiple_of(per_block) {
            return None;
        }
        (weights / per_block).checked_mul(self.block_bytes() as u64)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
