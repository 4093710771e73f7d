//! LZO1X pages: for speed where readers are not known. It is RHEL's default (`makedumpfile -l`), and the crash,
//! libkdumpfile and makedumpfile of RHEL and Debian all read it; pages are a little smaller than with Snappy.
//!
//! It has no configuration keys. Encoder and decoder are our own, written from the format's description: every other
//! fast encoder is under the GPL.

use coresift_sdk::{Compressor, Manifest, Packed, PageBatch, Result, Setup, codec, decompress_each};

pub mod decode;
pub mod encode;

/// What the plugin is.
pub fn manifest() -> Manifest {
    Manifest::compressor("lzo", env!("CARGO_PKG_VERSION"), "LZO1X, read by every stock tool", codec::LZO)
}

/// Makes the compressor.
///
/// # Errors
/// None: there is nothing to configure.
pub fn open(_: Setup) -> Result<Box<dyn Compressor>> {
    Ok(Box::new(Lzo { encoder: encode::Encoder::new() }))
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: compressor, name: "lzo", manifest: manifest, open: open }

struct Lzo {
    encoder: encode::Encoder,
}

impl Compressor for Lzo {
    fn compress(&mut self, batch: &PageBatch<'_>, out: &mut Packed<'_>) -> Result<()> {
        out.each(batch, |page, room| self.encoder.compress(page, room));
        Ok(())
    }

    fn decompress(&mut self, stored: &[&[u8]], page_size: usize, out: &mut [u8]) -> Result<()> {
        decompress_each("lzo", stored, page_size, out, |bytes, page| decode::decompress(bytes, page).map_err(|e| e.to_string()))
    }
}
