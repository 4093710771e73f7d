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
//! | [`vmcoreinfo`] | VMCOREINFO: the text by which a kernel tells dump tools its layout |

pub mod vmcoreinfo;

pub use vmcoreinfo::Vmcoreinfo;
