//! Writes kdump-compressed files, header version 6: for everybody who opens dumps with crash, drgn, libkdumpfile or
//! makedumpfile; it is the format that makedumpfile writes.
//!
//! ```text
//! block 0                 header                      header.rs
//! block 1 …               sub-header, ELF notes       header.rs, notes.rs
//! behind them             bitmap of RAM, bitmap of dumped pages, one bit a PFN: marks.rs
//! behind them             page descriptors            descriptors.rs
//! behind them             a zero page for all zero pages, then the pages' data
//! ```
//!
//! A block is a page of the crashed machine; fields have its byte order and word size (layout.rs). geometry.rs says
//! where the parts stand, dump.rs in which order they are written, so that the file opens whenever the writer dies.
//!
//! With the key `dedup` identical pages are stored once (sharing.rs).

mod descriptors;
mod dump;
mod geometry;
mod header;
mod layout;
mod marks;
mod notes;
mod sharing;

use coresift_sdk::{End, Error, Key, Manifest, PackedBatch, Plan, Result, Setup, Sink, Writer, codec};

use crate::dump::Dump;

/// What the plugin is.
pub fn manifest() -> Manifest {
    let codecs = codec::ZLIB | codec::LZO | codec::SNAPPY | codec::ZSTD;
    Manifest::writer("kdump", env!("CARGO_PKG_VERSION"), "kdump-compressed, for crash, drgn and makedumpfile", "kdump", codecs)
        .key(Key::bool("dedup", false, "store identical pages once; takes 8 MiB more memory"))
}

/// Makes the writer.
///
/// # Errors
/// The setting is missing: a bug of the host.
pub fn open(setup: Setup) -> Result<Box<dyn Writer>> {
    Ok(Box::new(Kdump { dedup: setup.config.bool("dedup")?, dump: None }))
}

#[cfg(feature = "export")]
coresift_sdk::export_plugin! { kind: writer, name: "kdump", manifest: manifest, open: open }

struct Kdump {
    dedup: bool,
    dump: Option<Dump>,
}

impl Writer for Kdump {
    fn begin(&mut self, plan: &Plan<'_>, sink: &mut dyn Sink) -> Result<()> {
        self.dump = Some(Dump::begin(plan, self.dedup, sink)?);
        Ok(())
    }

    fn write(&mut self, batch: &PackedBatch<'_>, sink: &mut dyn Sink) -> Result<()> {
        self.dump.as_mut().ok_or_else(not_begun)?.write(batch, sink)
    }

    fn finish(&mut self, end: &End, sink: &mut dyn Sink) -> Result<()> {
        self.dump.take().ok_or_else(not_begun)?.finish(end, sink)
    }
}

fn not_begun() -> Error {
    Error::format("the dump was not begun, or is finished")
}
