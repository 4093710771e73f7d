//! # coresift-engine: the host
//!
//! Reads a vmcore through plugins and writes a dump. Data goes one way, and each stage is one module:
//!
//! [`source`] (bytes of a file) → a reader plugin → [`image`] (pages and where they are, and the kernel among them) →
//! [`classify`] (verdicts per block) → [`batch`], [`load`], [`pack`] (pages in batches: read, filtered, compressed, in parallel) → [`scheduler`]
//! (back into PFN order) → a writer plugin → [`sink`] (the output file).
//!
//! Around it: [`registry`] finds plugins, [`profile`] chooses them, [`dump`] runs the whole, [`info`] only looks,
//! [`report`] says what was done, [`progress`] shows it, [`budget`] keeps memory bounded.

pub mod batch;
pub mod budget;
pub mod classify;
mod decode;
pub mod dump;
mod error;
pub mod image;
pub mod info;
pub mod load;
pub mod pack;
pub mod pageset;
mod parts;
pub mod profile;
pub mod progress;
pub mod registry;
pub mod report;
pub mod restore;
pub mod scheduler;
mod services;
pub mod sink;
pub mod size;
pub mod source;
mod struct_pages;
mod verdicts;
mod vmcoreinfo;
mod vmemmap;
pub mod window;

pub use error::{Error, Exit, Result, plain};
