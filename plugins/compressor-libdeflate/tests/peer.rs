//! zlib by libdeflate against the C zlib.

// clippy.toml allows these in test functions only, not in their helpers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../../compressor-zlib/tests/common/mod.rs"]
#[macro_use]
mod common;
#[path = "../../compressor-zlib/tests/common/libz.rs"]
mod libz;

use coresift_sdk::{Compressor, Value, testkit};

fn open(level: i64) -> Box<dyn Compressor> {
    let setup = testkit::setup(&compressor_libdeflate::manifest(), &[("level", Value::Integer(level))]);
    compressor_libdeflate::open(setup.unwrap()).unwrap()
}

codec_tests! { open: open, levels: [1, 6, 12], peer: libz::peer() }

#[test]
fn the_default_is_level_1_and_every_level_of_the_range_opens() {
    let manifest = compressor_libdeflate::manifest();
    assert_eq!(manifest.configure(&[]).unwrap().integer("level").unwrap(), 1);
    for level in 1..=12 {
        open(level);
    }
    assert!(manifest.configure(&[("level", Value::Integer(13))]).is_err());
}
