//! What is known of Linux kernels: VMCOREINFO, the layout of `struct page`, and how each fact about a page is told.
//!
//! Plain Rust, no ABI: host and plugins are each compiled with it. [`PageRules`] is the heart: from the keys that a
//! kernel exports (and, where they leave a gap, its version) it picks one rule for each fact out of one table,
//! [`rules::TABLE`], and judges `struct page`s with them. A new kernel is a row there.

mod judge;
pub mod rules;
mod vmcoreinfo;
mod words;

pub use judge::{Contradiction, Gap, Judgement, PageRules, StructPages};
pub use rules::Version;
pub use vmcoreinfo::Vmcoreinfo;
pub use words::Words;
