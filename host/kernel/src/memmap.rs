//! Memory models: where the kernel keeps the `struct page` of each PFN.
//!
//! Five models, one result: a [`MemMap`] of runs, in each of which `struct page`s stand one behind the other in kernel
//! address space. SPARSEMEM_VMEMMAP needs no case of its own: all its sections decode to the same base, so their runs
//! join, and page tables do the rest.

mod sparse;

use coresift_sdk::Machine;
use coresift_sdk::linux::{Vmcoreinfo, Words};

/// Most nodes of a NUMA machine (MAX_NUMNODES, CONFIG_NODES_SHIFT is at most 10).
const NODES_MAX: u64 = 1024;

/// Reads kernel memory: true if all of the buffer could be filled.
pub type Read<'a> = dyn Fn(u64, &mut [u8]) -> bool + 'a;

/// `struct page`s that stand one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapRun {
    /// PFN of the first
    pub first_pfn: u64,
    /// how many
    pub pages: u64,
    /// kernel address of the first
    pub address: u64,
}

impl MapRun {
    fn end_pfn(&self) -> u64 {
        self.first_pfn.saturating_add(self.pages)
    }
}

/// The mem_map of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemMap {
    /// name of the memory model
    pub model: &'static str,
    /// bytes of a `struct page`
    struct_page: u64,
    /// ascending by PFN, not overlapping
    runs: Vec<MapRun>,
    /// the same by address: indexes
    by_address: Vec<u32>,
}

/// What finding the mem_map needs.
pub(crate) struct Search<'a> {
    machine: &'a Machine,
    info: &'a Vmcoreinfo,
    read: &'a Read<'a>,
    words: Words,
    struct_page: u64,
}

impl Search<'_> {
    fn long(&self, address: u64) -> Option<u64> {
        let mut raw = [0u8; 8];
        let raw = raw.get_mut(..self.words.long)?;
        (self.read)(address, raw).then(|| self.words.long(raw, 0))?
    }

    /// Bytes that are all there.
    fn bytes(&self, address: u64, len: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        (self.read)(address, &mut bytes).then_some(bytes)
    }

    /// True if a `struct page` can be read there.
    fn has_struct_page(&self, address: u64) -> bool {
        self.bytes(address, self.struct_page).is_some()
    }
}

impl MemMap {
    /// Finds the mem_map.
    ///
    /// # Errors
    /// One sentence: what is missing, or what does not fit.
    pub fn find(machine: &Machine, info: &Vmcoreinfo, read: &Read<'_>, first_pfn: u64) -> Result<Self, String> {
        let struct_page = info.size("page").filter(|s| (1..=4096).contains(s)).ok_or("VMCOREINFO has no usable SIZE(page)")?;
        let search = Search { machine, info, read, words: Words::of(machine), struct_page };
        let (model, mut runs) = if info.symbol("mem_section").is_some() {
            sparse::find(&search)?
        } else if info.symbol("mem_map").is_some() {
            ("FLATMEM", search.flat(first_pfn)?)
        } else if info.symbol("node_data").is_some() || info.symbol("pgdat_list").is_some() {
            ("DISCONTIGMEM", search.nodes()?)
        } else {
            return Err("VMCOREINFO names no mem_map: neither mem_section, mem_map nor node_data".to_owned());
        };
        runs.retain(|r| r.pages > 0);
        runs.sort_by_key(|r| r.first_pfn);
        // Of two that claim a PFN the first counts: nodes of an interleaved machine may span each other.
        let mut end = 0;
        runs.retain_mut(|r| {
            let from = r.first_pfn.max(end);
            let skip = from - r.first_pfn;
            *r = MapRun {
                first_pfn: from,
                pages: r.pages.saturating_sub(skip),
                address: r.address.wrapping_add(skip.wrapping_mul(struct_page)),
            };
            end = end.max(r.end_pfn());
            r.pages > 0
        });
        let mut by_address: Vec<u32> = (0..runs.len() as u32).collect();
        by_address.sort_by_key(|i| runs.get(*i as usize).map(|r| r.address));
        Ok(Self { model, struct_page, runs, by_address })
    }

    /// All runs, ascending by PFN.
    pub fn runs(&self) -> &[MapRun] {
        &self.runs
    }

    /// Bytes of a `struct page`.
    pub fn struct_page_size(&self) -> u64 {
        self.struct_page
    }

    /// The parts of a range of PFNs that have `struct page`s.
    pub fn within(&self, first_pfn: u64, pages: u64) -> impl Iterator<Item = MapRun> + '_ {
        let end = first_pfn.saturating_add(pages);
        let from = self.runs.partition_point(|r| r.end_pfn() <= first_pfn);
        self.runs.iter().skip(from).take_while(move |r| r.first_pfn < end).map(move |r| {
            let start = r.first_pfn.max(first_pfn);
            let address = r.address.wrapping_add((start - r.first_pfn).wrapping_mul(self.struct_page));
            MapRun { first_pfn: start, pages: r.end_pfn().min(end) - start, address }
        })
    }

    /// Address of the `struct page` of a PFN.
    pub fn struct_page(&self, pfn: u64) -> Option<u64> {
        self.within(pfn, 1).next().map(|r| r.address)
    }

    /// PFN of the `struct page` at an address.
    pub fn pfn(&self, address: u64) -> Option<u64> {
        let run = |i: &u32| self.runs.get(*i as usize);
        let after = self.by_address.partition_point(|i| run(i).is_some_and(|r| r.address <= address));
        let run = run(self.by_address.get(after.checked_sub(1)?)?)?;
        let distance = address - run.address;
        let index = distance / self.struct_page;
        (distance.is_multiple_of(self.struct_page) && index < run.pages).then(|| run.first_pfn + index)
    }
}

impl Search<'_> {
    /// FLATMEM: one array, `mem_map` points to it. It begins at PFN 0, on ARM where RAM begins (ARCH_PFN_OFFSET).
    fn flat(&self, first_pfn: u64) -> Result<Vec<MapRun>, String> {
        let symbol = self.info.symbol("mem_map").unwrap_or_default();
        let address = self.long(symbol).ok_or(format!("mem_map at {symbol:#x} cannot be read"))?;
        let first_pfn = if self.machine.arch.starts_with("arm") { first_pfn } else { 0 };
        if !self.has_struct_page(address) {
            return Err(format!("mem_map points to {address:#x}, which cannot be read"));
        }
        Ok(vec![MapRun { first_pfn, pages: self.machine.max_pfn.saturating_sub(first_pfn), address }])
    }

    /// Addresses of all `struct pglist_data`.
    fn pgdats(&self) -> Vec<u64> {
        if let Some(array) = self.info.symbol("node_data") {
            let length = self.info.length("node_data").unwrap_or(1).min(NODES_MAX);
            let slots = (0..length).map_while(|i| self.long(array.wrapping_add(i * self.words.long as u64)));
            return slots.filter(|p| *p != 0).collect();
        }
        // Before 2.6.17 the nodes are a list.
        let (Some(list), Some(next)) = (self.info.symbol("pgdat_list"), self.info.offset("pglist_data.pgdat_next")) else {
            return Vec::new();
        };
        let mut pgdats = Vec::new();
        let mut at = self.long(list);
        while let Some(pgdat) = at.filter(|p| *p != 0 && (pgdats.len() as u64) < NODES_MAX) {
            pgdats.push(pgdat);
            at = self.long(pgdat.wrapping_add(next));
        }
        pgdats
    }

    /// DISCONTIGMEM: an array for each node.
    fn nodes(&self) -> Result<Vec<MapRun>, String> {
        let offset = |member: &str| {
            let name = format!("pglist_data.{member}");
            self.info.offset(&name).ok_or(format!("VMCOREINFO has no OFFSET({name})"))
        };
        let (map, start, spanned) = (offset("node_mem_map")?, offset("node_start_pfn")?, offset("node_spanned_pages")?);
        let mut runs = Vec::new();
        for pgdat in self.pgdats() {
            let member = |offset: u64| self.long(pgdat.wrapping_add(offset));
            let (Some(address), Some(first_pfn), Some(pages)) = (member(map), member(start), member(spanned)) else { continue };
            let end = first_pfn.saturating_add(pages).min(self.machine.max_pfn);
            if address != 0 && self.has_struct_page(address) {
                runs.push(MapRun { first_pfn, pages: end.saturating_sub(first_pfn), address });
            }
        }
        if runs.is_empty() { Err("no node has a mem_map that can be read".to_owned()) } else { Ok(runs) }
    }
}
