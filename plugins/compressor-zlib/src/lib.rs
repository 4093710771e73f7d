//! zlib pages by flate2 over zlib-rs: for readers of every age (zlib is the one codec that no build of crash or
//! libkdumpfile lacks), where speed counts more than size. `libdeflate` makes the same format smaller and slower, `zstd`
//! is better at both for readers of 2022 and later.
//!
//! | key | meaning |
//! |---|---|
//! | `level` | 1 (fast) to 9 (small), default 1. Level 6 takes four times the time of level 1 for a fifth of the size |
//!
//! Measured on pages of 4 KiB, one core: level 1 210 MB/s, ratio 2.8; level 6 56 MB/s, ratio 3.5.

use coresift_sdk::{Compressor, Key, Manifest, Packed, PageBatch, Result, Setup, codec, decompress_each};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// Pages carry the two-byte zlib header and the Adler-32 trailer (RFC 1950), as crash's `uncompress()` demands.
const ZLIB_HEADER: bool = true;

/// What the plugin is.
pub fn manifest() -> Manifest {
    Manifest::compressor("zlib", env!("CARGO_PKG_VERSION"), "zlib, fast, by zlib-rs", codec::ZLIB).key(Key::integer(
        "level",
        1,
        1,
        9,
        "1 is fast, 9 is small",
    ))
}

/// Makes the compressor.
///
/// # Errors
/// The configuration lacks a key of the manifest.
pub fn open(setup: Setup) -> Result<Box<dyn Compressor>> {
    let level = u32::try_from(setup.config.integer("level")?).unwrap_or(1);
    Ok(Box::new(Zlib { deflate: Compress::new(Compression::new(level), ZLIB_HEADER), inflate: Decompress::new(ZLIB_HEADER) }))
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: compressor, name: "zlib", manifest: manifest, open: open }

struct Zlib {
    deflate: Compress,
    inflate: Decompress,
}

impl Compressor for Zlib {
    fn compress(&mut self, batch: &PageBatch<'_>, out: &mut Packed<'_>) -> Result<()> {
        out.each(batch, |page, room| {
            // A new state for each page would allocate some 260 KiB and take a fifth of the speed.
            self.deflate.reset();
            match self.deflate.compress(page, room, FlushCompress::Finish) {
                Ok(Status::StreamEnd) => usize::try_from(self.deflate.total_out()).ok(),
                // No error: the room ended before the stream did.
                _ => None,
            }
        });
        Ok(())
    }

    fn decompress(&mut self, stored: &[&[u8]], page_size: usize, out: &mut [u8]) -> Result<()> {
        decompress_each("zlib", stored, page_size, out, |bytes, page| {
            self.inflate.reset(ZLIB_HEADER);
            match self.inflate.decompress(bytes, page, FlushDecompress::Finish) {
                Ok(Status::StreamEnd) => usize::try_from(self.inflate.total_out()).map_err(|e| e.to_string()),
                Ok(_) => Err("the stream is cut or longer than a page".into()),
                Err(e) => Err(e.to_string()),
            }
        })
    }
}
