//! Zstandard against the C library of the system, called as crash and libkdumpfile call it.

// clippy.toml allows these in test functions only, not in their helpers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../../compressor-zlib/tests/common/mod.rs"]
#[macro_use]
mod common;

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::Arc;

use common::{Peer, library};
use coresift_sdk::{Compressor, Value, testkit};
use libloading::Library;

fn open(level: i64) -> Box<dyn Compressor> {
    let setup = testkit::setup(&compressor_zstd::manifest(), &[("level", Value::Integer(level))]);
    compressor_zstd::open(setup.unwrap()).unwrap()
}

// The types of zstd.h.
type CreateDctx = unsafe extern "C" fn() -> *mut c_void;
type FreeDctx = unsafe extern "C" fn(*mut c_void) -> usize;
type DecompressDctx = unsafe extern "C" fn(*mut c_void, *mut u8, usize, *const u8, usize) -> usize;
type Decompress = unsafe extern "C" fn(*mut u8, usize, *const u8, usize) -> usize;
type Compress = unsafe extern "C" fn(*mut u8, usize, *const u8, usize, c_int) -> usize;
type IsError = unsafe extern "C" fn(usize) -> c_uint;
type FrameContentSize = unsafe extern "C" fn(*const u8, usize) -> c_ulonglong;

/// `ZSTD_decompressDCtx` with one context for all pages (crash), `ZSTD_decompress` (libkdumpfile), `ZSTD_compress`.
fn peer() -> Peer {
    let z = Arc::new(library("libzstd.so.1", "libzstd1"));
    let kept = z.clone();
    Peer {
        decode: Box::new(move |stream, page_size| {
            let by_crash = decode(&kept, stream, page_size, true);
            assert_eq!(by_crash, decode(&kept, stream, page_size, false), "crash and libkdumpfile");
            by_crash
        }),
        encode: Box::new(move |page| encode(&z, page)),
    }
}

fn decode(z: &Library, stream: &[u8], page_size: usize, with_context: bool) -> Option<Vec<u8>> {
    let mut page = vec![0u8; page_size];
    // SAFETY: the types are those of zstd.h, the lengths those of the buffers, and the context is freed once.
    unsafe {
        let size = z.get::<FrameContentSize>(b"ZSTD_getFrameContentSize").unwrap()(stream.as_ptr(), stream.len());
        assert_eq!(size, page_size as u64, "the frame says its content size");
        let len = if with_context {
            let context = z.get::<CreateDctx>(b"ZSTD_createDCtx").unwrap()();
            let len = z.get::<DecompressDctx>(b"ZSTD_decompressDCtx").unwrap()(
                context,
                page.as_mut_ptr(),
                page_size,
                stream.as_ptr(),
                stream.len(),
            );
            z.get::<FreeDctx>(b"ZSTD_freeDCtx").unwrap()(context);
            len
        } else {
            z.get::<Decompress>(b"ZSTD_decompress").unwrap()(page.as_mut_ptr(), page_size, stream.as_ptr(), stream.len())
        };
        let failed = z.get::<IsError>(b"ZSTD_isError").unwrap()(len) != 0;
        page.truncate(len);
        (!failed).then_some(page)
    }
}

fn encode(z: &Library, page: &[u8]) -> Vec<u8> {
    let mut stream = vec![0u8; page.len() * 2 + 64];
    // SAFETY: as in `decode`.
    let len = unsafe { z.get::<Compress>(b"ZSTD_compress").unwrap()(stream.as_mut_ptr(), stream.len(), page.as_ptr(), page.len(), 1) };
    assert!(len <= stream.len(), "ZSTD_compress");
    stream.truncate(len);
    stream
}

codec_tests! { open: open, levels: [-7, 0, 1, 3, 22], peer: peer() }

#[test]
fn the_default_is_level_1_and_the_range_is_zstds() {
    let manifest = compressor_zstd::manifest();
    assert_eq!(manifest.configure(&[]).unwrap().integer("level").unwrap(), 1);
    for level in [-8, 23] {
        assert!(manifest.configure(&[("level", Value::Integer(level))]).is_err());
    }
}
