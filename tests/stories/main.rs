//! End to end tests, one file per story.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test that cannot go on fails

mod bad_input;
mod containment;
mod corruption;
mod crash;
mod dump;
mod firmware;
mod formats;
mod fuzz;
mod incomplete;
mod input;
mod layouts;
mod levels;
mod plugins;
mod profiles;
mod progress;
mod ranges;
mod roundtrip;
mod vmcoreinfo;
