//! # coresift-kernel: what a Linux kernel left in memory
//!
//! A crashed kernel is data: its own description of itself, its symbols and types, its page tables, its table of all
//! pages, its log. This crate reads them, from bytes that the caller fetches; it knows neither dump formats nor the
//! engine, and no architecture is compiled in: a kernel of any machine is read on any host.
//!
//! Nothing that stands in memory is trusted: numbers are checked, walks are bounded, and what is missing is `None`.
//!
//! | module | reads |
//! |---|---|
//! | [`Vmcoreinfo`] | VMCOREINFO: the text by which a kernel tells dump tools its layout (lives in the SDK) |

pub mod arch;
mod kernel;
pub mod memmap;
mod memory;
pub mod paging;
pub mod space;
#[cfg(test)]
#[allow(clippy::indexing_slicing)] // a test that cannot go on fails
mod testing;

pub use coresift_sdk::linux::Vmcoreinfo;
pub use kernel::{Kernel, Span};
pub use memory::{Memory, read_all};
pub use space::AddressSpace;
