//! HTTP over an engine: the APIs that clients speak.
