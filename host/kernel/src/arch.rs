//! Architectures as data: for each, the ways its kernel addresses may map, to be tried one after the other.
//!
//! What a kernel tells of itself has gaps, and may be damaged. So an architecture gives *candidates*, and
//! [`crate::space`] takes the first by which the kernel's own name can be read.

use coresift_sdk::Machine;
use coresift_sdk::linux::Vmcoreinfo;

use crate::paging::Paging;

mod arm64;
mod linear;
mod x86;
mod x86_64;

/// A range of kernel addresses that maps at a fixed distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linear {
    /// first kernel address
    pub start: u64,
    /// last kernel address
    pub last: u64,
    /// physical address of the first
    pub paddr: u64,
}

impl Linear {
    /// Physical address and bytes to the end of the range.
    pub fn translate(&self, vaddr: u64) -> Option<(u64, u64)> {
        let inside = (self.start..=self.last).contains(&vaddr);
        inside.then(|| (self.paddr.wrapping_add(vaddr - self.start), (self.last - vaddr).saturating_add(1)))
    }
}

/// How kernel addresses may map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// where the kernel image is, by which symbols are found
    pub image: Linear,
    /// page tables, if the architecture's are known
    pub paging: Option<Paging>,
    /// map of all RAM, for what the page tables do not give
    pub direct: Option<Linear>,
    /// `phys_base` of x86_64
    pub phys_base: Option<u64>,
    /// in words
    pub what: String,
}

/// The ways in which an architecture's kernel may map.
pub struct Ways {
    /// candidates by what the kernel says of itself, likeliest first
    pub told: Vec<Candidate>,
    /// the `NUMBER()` of VMCOREINFO that the first candidate is made of, if the kernel has it
    pub number: &'static str,
    /// how to look for an image that is elsewhere
    pub search: Option<Search>,
}

/// Candidates for a place that the image may begin at.
pub type At = dyn Fn(u64) -> Vec<Candidate>;

/// How an image is searched in physical memory.
pub struct Search {
    /// kernel address that lies at such a place, as aligned as the image
    pub image_start: u64,
    /// alignment of the image in physical memory
    pub align: u64,
    /// given the physical address of `image_start`, the candidates
    pub at: Box<At>,
}

/// What the table of architectures needs to know.
pub(crate) struct Question<'a> {
    pub machine: &'a Machine,
    pub info: &'a Vmcoreinfo,
    /// physical address of the first byte of RAM
    pub ram_start: u64,
}

/// The ways of a machine's architecture; `None` for one that is not known at all.
pub(crate) fn ways(question: &Question<'_>) -> Option<Ways> {
    match question.machine.arch.as_str() {
        "x86_64" => x86_64::ways(question),
        "aarch64" | "arm64" => arm64::ways(question),
        "i386" | "i486" | "i586" | "i686" | "x86" => x86::ways(question),
        _ => linear::ways(question),
    }
}
