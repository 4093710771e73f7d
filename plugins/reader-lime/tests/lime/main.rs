//! Reads files that `synth` makes by the formats' specifications.
//!
//! Expected pages come from the builder's side, not from the reader's.

// Helpers outside of test functions may fail a test the short way, too.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod damage;
mod header;
mod pages;
mod synth;
