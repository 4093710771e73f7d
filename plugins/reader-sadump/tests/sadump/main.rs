//! Reads sadump images that `synth` makes, one module of tests for each module of the reader.
//!
//! No image of a real machine is here: every oddity is built by hand, so that the test says what it is about. Offsets and
//! expected values come from the layout of makedumpfile's `sadump_mod.h` and from the builder, not from the reader.

// Helpers outside of test functions may fail a test the short way, too.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod bitmap;
mod container;
mod cpu;
mod disk_set;
mod hostile;
mod paging;
mod synth;
mod time;
