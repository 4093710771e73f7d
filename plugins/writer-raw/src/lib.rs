//! Writes raw memory images: for tools that know no format at all (`strings`, hex editors, Volatility, own scripts).
//!
//! ```text
//! offset 0                              physical address `base`
//! offset PFN × page size − base         the page of this PFN
//! offset end of memory − base           end of the file
//! ```
//!
//! There is no header and nothing else: no architecture, no registers, no VMCOREINFO, no mark of an incomplete image. Holes
//! of the machine's memory, zero pages, and pages that were left out or could not be read all read as zeros, and nothing
//! tells them apart. The file is as long as the machine's physical memory reaches, but sparse: it takes the room of its
//! pages. Copy it with a program that keeps holes (`cp --sparse=always`, `rsync -S`).
//!
//! A device has no holes: what stood there before would look like memory. The setting `sparse = false` writes all zeros.

mod image;

use coresift_sdk::{End, Error, Key, Manifest, PackedBatch, Plan, Result, Setup, Sink, Writer};

use crate::image::Image;

/// What the plugin is.
pub fn manifest() -> Manifest {
    let description = "raw image, each page at its physical address; cannot be marked as incomplete";
    // Codec bits: none, pages are stored as they are.
    Manifest::writer("raw", env!("CARGO_PKG_VERSION"), description, "raw image", 0)
        .key(Key::size("base", 0, 0, i64::MAX.cast_unsigned(), "physical address of the file's first byte; memory below is left out"))
        .key(Key::bool("sparse", true, "leave holes where no pages or zero pages are; set it to false for a block device"))
}

/// Makes the writer.
///
/// # Errors
/// None but bugs: all keys have defaults.
pub fn open(setup: Setup) -> Result<Box<dyn Writer>> {
    let (base, sparse) = (setup.config.size("base")?, setup.config.bool("sparse")?);
    Ok(Box::new(Raw { setup, base, sparse, image: None }))
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: writer, name: "raw", manifest: manifest, open: open }

struct Raw {
    setup: Setup,
    base: u64,
    sparse: bool,
    image: Option<Image>,
}

impl Writer for Raw {
    fn begin(&mut self, plan: &Plan<'_>, sink: &mut dyn Sink) -> Result<()> {
        self.image = Some(Image::begin(plan, self.base, self.sparse, sink)?);
        Ok(())
    }

    fn write(&mut self, batch: &PackedBatch<'_>, sink: &mut dyn Sink) -> Result<()> {
        self.image.as_mut().ok_or_else(not_begun)?.write(batch, sink)
    }

    fn finish(&mut self, end: &End, sink: &mut dyn Sink) -> Result<()> {
        self.image.take().ok_or_else(not_begun)?.finish(end, &self.setup.host, sink)
    }
}

fn not_begun() -> Error {
    Error::format("the image was not begun, or is finished")
}
