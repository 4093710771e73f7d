//! Writes LiME memory images: for Volatility, Rekall and all else that reads what LiME and AVML take of a live machine.
//!
//! ```text
//! header        magic    u32   0x4c694d45
//! (32 bytes)    version  u32   1
//!               start    u64   physical address of the first byte
//!               end      u64   physical address of the last byte
//!               reserved 8 bytes
//! pages         as they are, not compressed
//! header        the next run of pages, and so on to the end of the file
//! ```
//!
//! Source: LiME's `lime.h`. All fields are little endian whatever the machine, as all readers expect. A range is a run of
//! dumped pages; pages that were left out are in no range.
//!
//! What the format cannot say is lost: the machine's architecture, its notes (registers, VMCOREINFO), which pages were
//! left out and why, and that an image is incomplete. An image that ends early looks like that of a smaller machine;
//! the report of the run says if it did.
//!
//! Zero pages are written as zeros, or, where there are many, as holes of the file. A device has no holes: the setting
//! `sparse = false` writes all zeros.

mod image;

use coresift_sdk::{End, Error, Key, Manifest, PackedBatch, Plan, Result, Setup, Sink, Writer};

use crate::image::Image;

/// What the plugin is.
pub fn manifest() -> Manifest {
    let description = "LiME image, for Volatility; cannot be marked as incomplete";
    // Codec bits: none, pages are stored as they are.
    Manifest::writer("lime", env!("CARGO_PKG_VERSION"), description, "LiME image", 0).key(Key::bool(
        "sparse",
        true,
        "leave holes in the file where many zero pages are; set it to false for a block device",
    ))
}

/// Makes the writer.
///
/// # Errors
/// None but bugs: `sparse` has a default.
pub fn open(setup: Setup) -> Result<Box<dyn Writer>> {
    Ok(Box::new(Lime { sparse: setup.config.bool("sparse")?, image: None }))
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: writer, name: "lime", manifest: manifest, open: open }

struct Lime {
    sparse: bool,
    image: Option<Image>,
}

impl Writer for Lime {
    fn begin(&mut self, plan: &Plan<'_>, _: &mut dyn Sink) -> Result<()> {
        self.image = Some(Image::begin(plan, self.sparse));
        Ok(())
    }

    fn write(&mut self, batch: &PackedBatch<'_>, sink: &mut dyn Sink) -> Result<()> {
        self.image.as_mut().ok_or_else(not_begun)?.write(batch, sink)
    }

    fn finish(&mut self, _: &End, _: &mut dyn Sink) -> Result<()> {
        // There is no mark to take away: the file is as good as it was after the last batch.
        self.image.take().ok_or_else(not_begun)?.finish()
    }
}

fn not_begun() -> Error {
    Error::format("the image was not begun, or is finished")
}
