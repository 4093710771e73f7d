//! The filter over hypervisors' images made from Xen's headers; expected verdicts are by hand.

// Helpers outside of test functions may fail a test the short way, too.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod damage;
mod frames;
mod synth;
mod versions;
