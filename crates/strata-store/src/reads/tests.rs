//! Tests of reads.

mod hand_over;
mod ports;

/// What memory holds before anything is read into it.
const POISON: u8 = 0xa5;
