//! Random numbers that are the same on every platform: SplitMix64 (Steele, Lea, Flood 2014).

/// The increment of the state: 2^64 over the golden ratio.
pub(crate) const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The number of a state. States that are [`STEP`] apart give the numbers of one stream.
pub(crate) fn number(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A number as a fraction in `0..1`, by its 53 highest bits.
pub(crate) fn unit(number: u64) -> f64 {
    (number >> 11) as f64 / (1u64 << 53) as f64
}
