//! Kernels for the processor, on plain slices.
//!
//! Owns: the arithmetic of every operation of a layer, its vectorised forms and the threads that run them.
//! Promises: one arithmetic for every number of rows — an output value is computed by the same operations in the same
//! order whether its row comes alone or with thousands, by one thread or by many. In float32, on x86-64 with FMA and on
//! aarch64, the bytes are also the same from one vector width to the next.
//! Refuses: to know of files, models, layers or memory that it was not handed.

#![allow(unsafe_code)] // vector loads, and threads that write disjoint parts of one output

#[cfg(target_arch = "x86_64")]
mod amx;
pub mod attention;
pub mod bfloat16;
pub mod conv;
mod cpu;
pub mod decode;
pub mod experts;
pub mod gdn;
pub mod hyper;
pub mod inputs;
pub mod math;
pub mod matmul;
pub mod norm;
mod pages;
pub mod peaks;
pub mod ple;
mod pool;
mod products;
pub mod rope;
pub mod route;
mod scratch;
mod vector;

pub use cpu::{Arithmetic, Cpu, Isa, UnavailableIsa};
pub use pages::reserve;
pub use vector::dot;
