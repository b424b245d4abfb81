//! Every public kernel against plain double-precision references, on random inputs, odd sizes and poisoned outputs; and
//! the promise of one arithmetic for every number of rows and threads, byte for byte.

#![allow(clippy::single_range_in_vec_init)] // lists of ranges they are

mod attention;
mod cpu;
mod decode;
mod experts;
#[cfg(target_arch = "x86_64")]
mod fast;
mod gdn;
mod matmul;
mod reference;
mod rows;
