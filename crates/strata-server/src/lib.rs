//! HTTP over an engine: the APIs that clients speak.

#[allow(dead_code)] // until the router takes it
mod page;
