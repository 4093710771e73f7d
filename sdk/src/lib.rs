//! # coresift-sdk: write a plugin for coresift
//!
//! A plugin is an ordinary Rust library with one type that implements [`Reader`], [`Filter`], [`Compressor`] or
//! [`Writer`], and one [`export_plugin!`] line. This is a whole one: a filter that drops pages which hold one byte value
//! only.
//!
//! ```
//! use coresift_sdk::{Filter, Key, Manifest, PageBatch, Result, Setup, Stages, Verdict, export_plugin};
//!
//! struct Uniform {
//!     byte: u8,
//! }
//!
//! fn manifest() -> Manifest {
//!     Manifest::filter("uniform", "0.1.0", "drops pages that hold one byte value only", Stages::INSPECT)
//!         .class("uniform") // the page class that reports name
//!         .key(Key::integer("byte", 0xff, 0, 255, "the byte value"))
//! }
//!
//! fn open(setup: Setup) -> Result<Box<dyn Filter>> {
//!     // The profile was checked against the manifest: the key is there, is a number, and is within 0 to 255.
//!     Ok(Box::new(Uniform { byte: setup.config.integer("byte")? as u8 }))
//! }
//!
//! impl Filter for Uniform {
//!     fn inspect(&self, batch: &PageBatch<'_>, verdicts: &mut [Verdict]) -> Result<()> {
//!         for (page, verdict) in batch.pages().zip(verdicts) {
//!             if page.iter().all(|&b| b == self.byte) {
//!                 *verdict = Verdict::plugin_class(0);
//!             }
//!         }
//!         Ok(())
//!     }
//! }
//!
//! export_plugin! { kind: filter, name: "uniform", manifest: manifest, open: open }
//!
//! // In a unit test, without a host:
//! use coresift_sdk::testkit;
//! let filter = open(testkit::setup(&manifest(), &[])?)?;
//! let verdicts = testkit::inspect(filter.as_ref(), 12, &[vec![0xff; 4096], vec![1; 4096]])?;
//! assert_eq!(verdicts, [Verdict::plugin_class(0), Verdict::UNDECIDED]);
//! # Ok::<(), coresift_sdk::Error>(())
//! ```
//!
//! In `Cargo.toml`: `crate-type = ["cdylib"]`, a dependency on `coresift-sdk`, and never `panic = "abort"` (the host
//! refuses such a library, since a bug in it would kill the run). The file must be called `lib<kind>_<name>.so`, here
//! `libfilter_uniform.so`, which is what a package named `filter-uniform` gives.
//!
//! ## Rules of the road
//! - Calls come per block or per batch, from several threads; do not allocate, lock or log per page.
//! - A page that cannot be read is data. Return an error only when a whole call gives nothing, and put into
//!   [`Error::hint`] what the user can do.
//! - Buffers belong to the host. Nothing of a call outlives it.
//! - Never print: [`Host::log`]. Look at [`Host::cancelled`] once a batch in long work.
//!
//! ## Map
//! [`page`] extents, verdicts, batches · [`config`] keys and settings · [`machine`] the crashed machine ·
//! [`error`] errors · [`host`] services of the host · [`Kernel`] the crashed kernel · [`linux`] what is known of Linux · [`testkit`] tests without a host · [`hello`] ABI number ·
//! [`abi`] the stable ABI underneath (nothing an author needs)

pub mod abi;
pub mod arch;
pub mod config;
pub mod error;
mod export;
pub mod hello;
pub mod host;
mod kernel;
pub mod linux;
pub mod machine;
mod manifest;
pub mod page;
mod parts;
mod prefetch;
pub mod testkit;
mod traits;
mod zero;

pub use config::{Config, Key, KeyType, Value};
pub use error::{Error, ErrorKind, Result};
pub use hello::Hello;
pub use host::{Host, Level, PhysicalMemory, Source};
pub use kernel::{Folio, KERNEL, Kernel, KernelTable, Mapping};
pub use machine::{Machine, UtsName, vmcoreinfo_value};
pub use manifest::{FLAG_ERASES, Kind, Manifest, Stages, codec};
pub use page::{
    Block, ClassSet, Erase, Extent, ExtentKind, PackBuffer, Packed, PackedBatch, PackedPage, PageBatch, PageContent, PageList, PageState,
    RangeVerdict, Run, StoredPage, Verdict,
};
pub use parts::Parts;
pub use traits::{Compressor, End, Filter, Finding, PageSet, PageSets, Plan, Reader, Score, Setup, Sink, Survey, Writer, decompress_each};
