//! Reads files that `synth` makes by Xen's description of the formats, one module of tests for each topic.
//!
//! No file of a real machine is here: every oddity is built by hand, so that the test says what it is about, and the
//! expected pages come from the builder's side, not from the reader's.

// Helpers outside of test functions may fail a test the short way, too.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod dom0;
mod domain;
mod hostile;
mod hypervisor;
mod registers;
mod synth;
mod tables;
