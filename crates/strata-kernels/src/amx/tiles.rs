//! The tile registers. The compiler does not know of them, so they hold values inside of single assembly blocks only;
//! what stays between blocks is the configuration, which [`Tiles`] loads and releases.

use std::arch::asm;

use crate::products::Line;

/// Rows of a tile.
pub(super) const TILE_ROWS: usize = 16;
/// Bytes in a row of a tile.
const ROW_BYTES: usize = size_of::<Line>();

/// Sixteen results for each of sixteen weight rows: `[weight][input]`.
pub(super) type Results = [[f32; TILE_ROWS]; TILE_ROWS];

/// Room for the results of one product: for each of two tiles of weights, those for each of two tiles of inputs.
#[repr(align(64))]
pub(super) struct Block(pub(super) [[Results; 2]; 2]);

/// What LDTILECFG loads (palette 1).
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Leave to use tiles on this thread: as long as it lives, they are configured for products.
///
/// Results are in tiles 0 to 3, weights in 4 and 5, inputs in 6 and 7.
pub(super) struct Tiles(());

impl Tiles {
    /// Configures tiles for `first` rows in the first tile of weights and `second` in the second; each is 1 to 16.
    ///
    /// # Safety
    /// Tiles must be available, and no other value of this type may be alive on this thread.
    pub(super) unsafe fn configure(first: usize, second: usize) -> Self {
        let (first, second, inputs) = (first as u8, second as u8, TILE_ROWS as u8);
        let mut configuration =
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        configuration.row_bytes[..8].fill(ROW_BYTES as u16);
        configuration.rows[..8].copy_from_slice(&[first, first, second, second, first, second, inputs, inputs]);
        // SAFETY: 64 readable bytes in the layout that the instruction wants; it sets tiles and nothing else.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const configuration,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags));
        }
        Self(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: sets tiles and nothing else; they are available, since they were configured.
        unsafe {
            asm!("tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, nomem, preserves_flags));
        }
    }
}

/// Operands of a product. Those that are not used may be anything.
pub(super) struct Operands {
    /// First row of each tile of weights.
    pub(super) weights: [*const u8; 2],
    /// From one row of weights to the next.
    pub(super) weight_stride_bytes: usize,
    /// First line of each tile of inputs.
    pub(super) inputs: [*const Line; 2],
    /// Blocks of 32 columns, at least 1: 64 bytes of each row of weights, 16 lines of inputs.
    pub(super) steps: usize,
}

/// A loop of nothing but products of full tiles, of the instruction `$instruction`; returns how many it did.
macro_rules! products_only {
    ($(#[$doc:meta])* $name:ident: $instruction:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// Tiles and the instruction must be available.
        pub(crate) unsafe fn $name() -> usize {
            const ROUNDS: usize = 1 << 9;
            // SAFETY: available by the caller's promise.
            let _tiles = unsafe { Tiles::configure(TILE_ROWS, TILE_ROWS) };
            // SAFETY: on configured tiles, all named below, and a counter.
            unsafe {
                asm!(
                    "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
                    "2:",
                    concat!($instruction, " tmm0, tmm4, tmm6"),
                    concat!($instruction, " tmm1, tmm4, tmm7"),
                    concat!($instruction, " tmm2, tmm5, tmm6"),
                    concat!($instruction, " tmm3, tmm5, tmm7"),
                    "dec {rounds}",
                    "jnz 2b",
                    rounds = inout(reg) ROUNDS => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, nomem),
                );
            }
            4 * ROUNDS
        }
    };
}

products_only! {
    /// Products of bfloat16: 16 x 16 x 32 multiply-adds each.
    bfloat16_products: "tdpbf16ps"
}

products_only! {
    /// Products of 8-bit integers: 16 x 16 x 64 multiply-adds each.
    int8_products: "tdpbusd"
}

/// One product, in one assembly block: clears result tiles, runs over all steps, stores.
macro_rules! product {
    ($(#[$doc:meta])* $name:ident: clear $($clear:literal)*; step $($step:literal)*; store $($store:literal)*) => {
        impl Tiles {
            $(#[$doc])*
            ///
            /// # Safety
            /// The operands that are used must be readable over all steps, for as many rows as were configured.
            #[inline]
            pub(super) unsafe fn $name(&self, operands: &Operands, out: &mut Block) {
                // SAFETY: reads what the caller vouches for, writes tiles (named below) and `out`; tiles are configured.
                unsafe {
                    asm!(
                        $($clear,)*
                        "2:",
                        $($step,)*
                        "add {w0}, 64",
                        "add {w1}, 64",
                        "add {x0}, 1024",
                        "add {x1}, 1024",
                        "dec {steps}",
                        "jnz 2b",
                        $($store,)*
                        w0 = inout(reg) operands.weights[0] => _,
                        w1 = inout(reg) operands.weights[1] => _,
                        weight_stride = in(reg) operands.weight_stride_bytes,
                        x0 = inout(reg) operands.inputs[0] => _,
                        x1 = inout(reg) operands.inputs[1] => _,
                        line = in(reg) ROW_BYTES,
                        steps = inout(reg) operands.steps => _,
                        out = in(reg) out,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    );
                }
            }
        }
    };
}

product! {
    /// Two tiles of weights times two tiles of inputs.
    two_by_two:
    clear "tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3";
    step
        "tileloadd tmm4, [{w0} + {weight_stride}*1]"
        "tileloadd tmm6, [{x0} + {line}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tileloadd tmm7, [{x1} + {line}*1]"
        "tdpbf16ps tmm1, tmm4, tmm7"
        "tileloadd tmm5, [{w1} + {weight_stride}*1]"
        "tdpbf16ps tmm2, tmm5, tmm6"
        "tdpbf16ps tmm3, tmm5, tmm7";
    store
        "tilestored [{out} + {line}*1], tmm0"
        "tilestored [{out} + {line}*1 + 1024], tmm1"
        "tilestored [{out} + {line}*1 + 2048], tmm2"
        "tilestored [{out} + {line}*1 + 3072], tmm3"
}

product! {
    /// Two tiles of weights times the first tile of inputs.
    two_by_one:
    clear "tilezero tmm0" "tilezero tmm2";
    step
        "tileloadd tmm6, [{x0} + {line}*1]"
        "tileloadd tmm4, [{w0} + {weight_stride}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tileloadd tmm5, [{w1} + {weight_stride}*1]"
        "tdpbf16ps tmm2, tmm5, tmm6";
    store
        "tilestored [{out} + {line}*1], tmm0"
        "tilestored [{out} + {line}*1 + 2048], tmm2"
}

product! {
    /// The first tile of weights times two tiles of inputs.
    one_by_two:
    clear "tilezero tmm0" "tilezero tmm1";
    step
        "tileloadd tmm4, [{w0} + {weight_stride}*1]"
        "tileloadd tmm6, [{x0} + {line}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6"
        "tileloadd tmm7, [{x1} + {line}*1]"
        "tdpbf16ps tmm1, tmm4, tmm7";
    store
        "tilestored [{out} + {line}*1], tmm0"
        "tilestored [{out} + {line}*1 + 1024], tmm1"
}

product! {
    /// The first tile of weights times the first tile of inputs.
    one_by_one:
    clear "tilezero tmm0";
    step
        "tileloadd tmm4, [{w0} + {weight_stride}*1]"
        "tileloadd tmm6, [{x0} + {line}*1]"
        "tdpbf16ps tmm0, tmm4, tmm6";
    store
        "tilestored [{out} + {line}*1], tmm0"
}
