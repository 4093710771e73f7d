//! Reads kdump-compressed dumps: what makedumpfile, QEMU and coresift write; versions 0 to 6, and diskdump's before it.
//!
//! ```text
//! block 0                 header                      header.rs
//! block 1 …               sub-header, ELF notes       header.rs, machine.rs
//! behind them             bitmap of RAM, bitmap of dumped pages, one bit a PFN: bitmaps.rs
//! behind them             page descriptors, then the pages' data: image.rs
//! ```
//!
//! A block is a page of the crashed machine; fields have its byte order and word size (layout.rs). The pages are handed
//! to the host as they are stored: it decompresses them with the compressor plugins, or copies them as they are. So this
//! plugin knows no codec.
//!
//! A split dump is several files with the same bitmaps, each with the descriptors and the data of a range of PFNs. They
//! may be given in any order, and some may be missing: their pages are absent then.
//!
//! Nothing in the input is trusted: a page whose descriptor makes no sense is missing, and a file that is cut still gives
//! all that it has.

mod bitmaps;
mod header;
mod image;
mod layout;
mod machine;

use coresift_sdk::{Manifest, Reader, Result, Score, Setup, Source};

use crate::image::Dump;

/// What this plugin says about itself.
pub fn manifest() -> Manifest {
    let formats = ["kdump-compressed", "diskdump"];
    Manifest::reader("kdump", env!("CARGO_PKG_VERSION"), "reads kdump-compressed dumps (makedumpfile, QEMU), split sets too", &formats)
}

/// Says whether the inputs are kdump files; looks at their signatures only.
///
/// # Errors
/// An input cannot be read.
pub fn probe(sources: &[Source]) -> Result<Score> {
    for source in sources {
        let mut head = [0u8; 8];
        let n = source.read_at(0, &mut head)?;
        if !header::is_dump(head.get(..n).unwrap_or_default()) {
            return Ok(Score::no("no kdump signature"));
        }
    }
    Ok(Score::certain("the signature of a kdump-compressed file"))
}

/// Opens a dump.
///
/// # Errors
/// It is none, its headers make no sense, or several inputs are not parts of one dump.
pub fn open(setup: Setup) -> Result<Box<dyn Reader>> {
    Ok(Box::new(Dump::open(&setup.sources)?))
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: reader, name: "kdump", manifest: manifest, probe: probe, open: open }
