//! The reader for views by PFN: pages from one of the formats, page tables translated.

use coresift_sdk::{Error, ErrorKind, Extent, ExtentKind, Machine, PageState, Reader, Result};

use crate::tables::{Scope, Tables};

/// Which frame numbers page tables of a paravirtualised kernel have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entries {
    /// the domain's own, as every tool for Linux expects
    Guest(Scope),
    /// the machine's, as the input has them
    Machine,
}

/// From so many extents on, short ones are joined. A domain whose frames are in no order has one for each page.
const MANY: usize = 4096;

/// Pages of an extent that is too short to be worth a mapping: 64 KiB with pages of 4 KiB.
const SHORT: u64 = 16;

/// Pages by PFN.
pub trait Memory: Send + Sync {
    /// All RAM: ascending, not overlapping.
    fn extents(&self) -> Vec<Extent>;

    /// Reads a page; false if the file does not have it.
    ///
    /// # Errors
    /// A read failed.
    fn read(&self, pfn: u64, page: &mut [u8]) -> Result<bool>;
}

/// An opened domain.
#[derive(Debug)]
pub struct View<M> {
    memory: M,
    machine: Machine,
    tables: Tables,
}

impl<M: Memory> View<M> {
    /// Joins the parts.
    pub fn new(memory: M, machine: Machine, tables: Tables) -> Self {
        Self { memory, machine, tables }
    }

    fn read_page(&self, pfn: u64, page: &mut [u8]) -> Result<bool> {
        let there = self.memory.read(pfn, page)?;
        if there {
            self.tables.translate(pfn, page);
        }
        Ok(there)
    }
}

impl<M: Memory> Reader for View<M> {
    fn machine(&self) -> Machine {
        self.machine.clone()
    }

    fn extents(&self) -> Vec<Extent> {
        let extents = self.tables.cut(self.memory.extents(), self.machine.page_size() as u64);
        if extents.len() > MANY { join_short(extents) } else { extents }
    }

    fn read_pages(&self, pfns: &[u64], out: &mut [u8], states: &mut [PageState]) -> Result<()> {
        let page_size = self.machine.page_size();
        if out.len() != pfns.len().saturating_mul(page_size) || states.len() != pfns.len() {
            return Err(Error::new(ErrorKind::Other, "room for another number of pages than asked for"));
        }
        let mut failure = None;
        for ((&pfn, page), state) in pfns.iter().zip(out.chunks_exact_mut(page_size)).zip(states.iter_mut()) {
            let there = self.read_page(pfn, page).unwrap_or_else(|e| {
                failure.get_or_insert(e.at_pfn(pfn));
                false
            });
            *state = if there { PageState::PRESENT } else { PageState::MISSING };
        }
        // One bad page is data; only if there is no good one at all, the caller learns why.
        match failure {
            Some(e) if !states.contains(&PageState::PRESENT) => Err(e),
            _ => Ok(()),
        }
    }
}

/// Makes neighbours that are short one encoded extent: the reader puts them in order page by page.
fn join_short(extents: Vec<Extent>) -> Vec<Extent> {
    let short = |e: &Extent| e.kind == ExtentKind::ENCODED || e.kind == ExtentKind::MAPPED && e.pages <= SHORT;
    let mut joined: Vec<Extent> = Vec::new();
    for extent in extents {
        match joined.last_mut() {
            Some(last) if last.end_pfn() == extent.first_pfn && short(last) && short(&extent) => {
                *last = Extent::encoded(last.first_pfn, last.pages + extent.pages);
            }
            _ => joined.push(extent),
        }
    }
    joined
}
