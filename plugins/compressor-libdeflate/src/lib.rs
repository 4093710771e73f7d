//! zlib pages by libdeflate: for readers of every age, where size counts more than speed. At level 1 pages are as small
//! as the C zlib makes them, in half its time; `zlib` (zlib-rs) is faster still, its pages 18 % larger.
//!
//! | key | meaning |
//! |---|---|
//! | `level` | 1 (fast) to 12 (small), default 1. Level 6 takes twice the time of level 1 for 6 % of the size |
//!
//! Measured on pages of 4 KiB, one core: level 1 149 MB/s, ratio 3.3; level 6 70 MB/s, ratio 3.5.

use coresift_sdk::{Compressor, Error, ErrorKind, Key, Manifest, Packed, PageBatch, Result, Setup, codec, decompress_each};
use libdeflater::CompressionLvl;

/// What the plugin is.
pub fn manifest() -> Manifest {
    Manifest::compressor("libdeflate", env!("CARGO_PKG_VERSION"), "zlib, small, by libdeflate", codec::ZLIB).key(Key::integer(
        "level",
        1,
        1,
        12,
        "1 is fast, 12 is small",
    ))
}

/// Makes the compressor.
///
/// # Errors
/// The configuration lacks a key of the manifest, or libdeflate refuses the level.
pub fn open(setup: Setup) -> Result<Box<dyn Compressor>> {
    let level = setup.config.integer("level")?;
    let level = i32::try_from(level).ok().and_then(|level| CompressionLvl::new(level).ok());
    let level = level.ok_or_else(|| Error::new(ErrorKind::Config, "libdeflate has no such level"))?;
    Ok(Box::new(Libdeflate { deflate: libdeflater::Compressor::new(level), inflate: libdeflater::Decompressor::new() }))
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: compressor, name: "libdeflate", manifest: manifest, open: open }

struct Libdeflate {
    deflate: libdeflater::Compressor,
    inflate: libdeflater::Decompressor,
}

impl Compressor for Libdeflate {
    fn compress(&mut self, batch: &PageBatch<'_>, out: &mut Packed<'_>) -> Result<()> {
        // Its only error is that the room does not do.
        out.each(batch, |page, room| self.deflate.zlib_compress(page, room).ok());
        Ok(())
    }

    fn decompress(&mut self, stored: &[&[u8]], page_size: usize, out: &mut [u8]) -> Result<()> {
        decompress_each("libdeflate", stored, page_size, out, |bytes, page| {
            self.inflate.zlib_decompress(bytes, page).map_err(|e| e.to_string())
        })
    }
}
