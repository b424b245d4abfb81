//! Tests of reads.

mod faulty;
mod interleavings;
mod ports;
mod scripted;

/// What memory holds before anything is read into it.
const POISON: u8 = 0xa5;
