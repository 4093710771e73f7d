//! Snappy against the C++ library of the system.

// clippy.toml allows these in test functions only, not in their helpers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../../compressor-zlib/tests/common/mod.rs"]
#[macro_use]
mod common;

use std::ffi::c_int;
use std::sync::Arc;

use common::{Peer, library};
use coresift_sdk::{Compressor, testkit};

fn open(_: i64) -> Box<dyn Compressor> {
    compressor_snappy::open(testkit::setup(&compressor_snappy::manifest(), &[]).unwrap()).unwrap()
}

/// `snappy_compress` and `snappy_uncompress` of snappy-c.h have one type.
type Convert = unsafe extern "C" fn(*const u8, usize, *mut u8, *mut usize) -> c_int;

fn peer() -> Peer {
    let library = Arc::new(library("libsnappy.so.1", "libsnappy1v5"));
    let convert = move |function: &[u8], from: &[u8], room: usize| {
        let mut to = vec![0u8; room];
        let mut len = room;
        // SAFETY: the type is that of snappy-c.h and both buffers have the lengths given.
        let code = unsafe { library.get::<Convert>(function).unwrap()(from.as_ptr(), from.len(), to.as_mut_ptr(), &raw mut len) };
        to.truncate(len);
        (code == 0).then_some(to)
    };
    let encode = convert.clone();
    Peer {
        decode: Box::new(move |stream, page_size| convert(b"snappy_uncompress", stream, page_size)),
        encode: Box::new(move |page| encode(b"snappy_compress", page, page.len() * 2 + 64).unwrap()),
    }
}

codec_tests! { open: open, levels: [0], peer: peer() }
