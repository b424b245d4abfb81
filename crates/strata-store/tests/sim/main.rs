//! The simulator: small cases by hand, the statistics of made-up routes, files of routes, and the reference's table.

mod by_hand;
mod file;
mod properties;
mod reference;
mod replay;
mod statistics;
