//! Tests of reads.
