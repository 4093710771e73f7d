//! Reads the memory images that LiME and AVML take of a running machine.
//!
//! ```text
//! header        magic    u32   "LiME" 0x4c694d45, or "AVML" 0x4c4d5641
//! (32 bytes)    version  u32   1 for LiME, 2 for AVML
//!               start    u64   physical address of the first byte
//!               end      u64   physical address of the last byte (not one behind it)
//!               reserved 8 bytes
//! payload       LiME: the bytes as they are
//!               AVML: a stream of the Snappy framing format, then its length in bytes, u64
//! header        the next range, and so on to the end of the file
//! ```
//!
//! Each range has its own header, so one file may have ranges of both kinds. AVML writes LiME headers where it was not
//! asked to compress. Sources: LiME's `doc/` folder and `lime.h`; AVML's `src/image.rs`; Snappy's `framing_format.txt`.
//!
//! The format says where memory was, and nothing of the machine: architecture and page size are settings. AVML leaves out
//! blocks of zeros (16 MiB each), so what no range has need not be a hole in the machine's memory.
//!
//! | module | does |
//! |---|---|
//! | [`header`] | one header |
//! | [`ranges`] | all headers of a file, up to its end or to where it is damaged |
//! | [`frames`] | a compressed range: an index of its chunks, and decoding of those that are asked for |
//! | [`layout`] | from ranges in any order to ascending, disjoint extents of pages |
//! | [`image`] | the reader itself: joins the above |
//!
//! Nothing in the input is trusted; what is damaged or cut costs its own pages and no others.

pub mod frames;
pub mod header;
pub mod image;
pub mod layout;
pub mod ranges;

use coresift_sdk::{Manifest, Parts, Reader, Result, Score, Setup, Source, arch};

use crate::header::Head;
use crate::image::LimeImage;

/// What this plugin says about itself.
pub fn manifest() -> Manifest {
    Manifest::reader("lime", env!("CARGO_PKG_VERSION"), "reads LiME and AVML memory images", &["LiME image", "AVML image"])
        .key(arch::arch_key())
        .key(arch::page_size_key())
}

/// Says whether the input is a LiME or AVML image, or each part of it is one; looks at the first header only.
///
/// # Errors
/// The input cannot be read.
pub fn probe(sources: &[Source]) -> Result<Score> {
    let mut score = Score::no("no input");
    for source in sources {
        score = match Head::read(source, 0)? {
            Head::Range(range) => Score::certain(range.describe()),
            Head::End => return Ok(Score::no("an empty file")),
            Head::Cut => return Ok(Score::no("too short for a LiME header")),
            Head::Other(why) => return Ok(Score::no(why)),
        }
    }
    Ok(score)
}

/// Opens a LiME or AVML image.
///
/// # Errors
/// It is none, or its first range makes no sense.
pub fn open(setup: Setup) -> Result<Box<dyn Reader>> {
    let (name, page_size) = (setup.config.text("arch")?, arch::page_size(&setup.config)?);
    let open = |source: &Source| Ok(Box::new(LimeImage::open(source.clone(), name, page_size)?) as Box<dyn Reader>);
    Parts::join(&setup.sources, setup.sources.iter().map(open).collect::<Result<_>>()?)
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: reader, name: "lime", manifest: manifest, probe: probe, open: open }
