//! The scheduler under virtual time: a drive and a backend that take time, fail and cancel, and a mirror of the arena that
//! checks every answer.

mod early;
mod leaving;
mod mirror;
mod properties;
mod scenarios;
mod simulator;
mod trace;
