//! zlib by zlib-rs against the C zlib.

// clippy.toml allows these in test functions only, not in their helpers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

#[macro_use]
mod common;
#[path = "common/libz.rs"]
mod libz;

use coresift_sdk::{Compressor, Value, testkit};

fn open(level: i64) -> Box<dyn Compressor> {
    let setup = testkit::setup(&compressor_zlib::manifest(), &[("level", Value::Integer(level))]);
    compressor_zlib::open(setup.unwrap()).unwrap()
}

codec_tests! { open: open, levels: [1, 2, 6, 9], peer: libz::peer() }

#[test]
fn the_default_is_level_1_and_the_range_is_zlibs() {
    let manifest = compressor_zlib::manifest();
    assert_eq!(manifest.configure(&[]).unwrap().integer("level").unwrap(), 1);
    for level in [0, 10] {
        assert!(manifest.configure(&[("level", Value::Integer(level))]).is_err());
    }
}
