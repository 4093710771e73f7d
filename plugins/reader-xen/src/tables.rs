//! Page tables of a paravirtualised x86_64 kernel.
//!
//! Such a kernel writes machine frames (MFN) into its own page tables: the processor walks them as they are. Once pages
//! go by PFN, nobody can follow them. So this module finds the pages that are tables, from the top tables that the vCPUs
//! use, and replaces the frame in every entry by the domain's own, as `xl save` does for a migration. An entry whose frame
//! is not the domain's (Xen's own tables, memory of other domains) gets its present bit cleared: as a PFN it would lead
//! to a wrong page.
//!
//! Layout of entries: Intel SDM volume 3, 4.5 "4-level paging". Xen has no paravirtualised domains with five levels.

use std::collections::HashMap;

use coresift_sdk::{Extent, ExtentKind};

use crate::bytes::u64_at;
use crate::image::Memory;
use crate::index::Runs;

/// Bytes of a table.
const TABLE: usize = 4096;
/// Bit 0: the entry leads somewhere.
const PRESENT: u64 = 1;
/// Bit 7 of levels 2 and 3: the entry maps memory itself.
const LARGE: u64 = 1 << 7;
/// Bits 12 to 51: the frame.
const FRAME: u64 = 0x000f_ffff_ffff_f000;
/// Entries of the top table that are Xen's own (`HYPERVISOR_VIRT_START` to `_END`, xen-x86_64.h: 2^43 bytes from
/// 0xffff800000000000 on).
const XENS: std::ops::Range<usize> = 256..272;
/// The kernel's text: the last 512 GiB of addresses.
const TEXT: usize = 511;
/// So many pages to each side of the text's table are searched for the kernel's own top table: both stand in its image,
/// a few pages apart (arch/x86/kernel/head_64.S).
const NEAR: u64 = 1024;

/// Where top tables are looked for, besides those of the vCPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// near the kernel's text: the kernel's own
    Kernel,
    /// in all of memory: those of all processes, too
    All,
}

/// The pages that are page tables, and what their entries mean.
#[derive(Debug, Default)]
pub struct Tables {
    /// PFN and level (1 to 4), ascending
    list: Vec<(u64, u8)>,
    /// from machine frame to PFN
    frames: Runs,
}

impl Tables {
    /// Finds all tables that these top tables (machine frames) lead to. Frames that are not the domain's are passed over,
    /// so `roots` may have those of others. What cannot be read leads nowhere.
    pub fn find(memory: &dyn Memory, frames: Runs, roots: &[u64], scope: Scope) -> Self {
        let mut found: HashMap<u64, u8> = HashMap::new();
        let mut page = vec![0; TABLE];
        let mut todo = Vec::new();
        for pfn in roots.iter().filter_map(|mfn| frames.find(*mfn)) {
            if !found.contains_key(&pfn) && there(memory, pfn, &mut page) {
                found.insert(pfn, 4);
                todo.push((pfn, 4));
                for pfn in alike(memory, &frames, &page, scope) {
                    if found.insert(pfn, 4).is_none() {
                        todo.push((pfn, 4));
                    }
                }
            }
        }
        // Each page once: no loop in the tables matters.
        while let Some((pfn, level)) = todo.pop() {
            if !there(memory, pfn, &mut page) {
                continue;
            }
            for (i, entry) in entries(&page).enumerate() {
                let leads_on = entry & PRESENT != 0 && entry & LARGE == 0 && !(level == 4 && XENS.contains(&i));
                let Some(next) = frames.find((entry & FRAME) >> 12).filter(|_| leads_on) else { continue };
                if let std::collections::hash_map::Entry::Vacant(new) = found.entry(next) {
                    new.insert(level - 1);
                    if level > 2 {
                        todo.push((next, level - 1));
                    }
                }
            }
        }
        let mut list: Vec<(u64, u8)> = found.into_iter().collect();
        list.sort_unstable();
        Self { list, frames }
    }

    /// Number of tables.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Translates page `pfn` if it is a table.
    pub fn translate(&self, pfn: u64, page: &mut [u8]) {
        let Ok(at) = self.list.binary_search_by_key(&pfn, |t| t.0) else { return };
        let level = self.list.get(at).map_or(1, |t| t.1);
        for bytes in page.chunks_exact_mut(8) {
            let Some(entry) = u64_at(bytes, 0, false).filter(|e| e & PRESENT != 0) else { continue };
            bytes.copy_from_slice(&self.entry(entry, level).to_le_bytes());
        }
    }

    fn entry(&self, entry: u64, level: u8) -> u64 {
        let own = self.frames.find((entry & FRAME) >> 12);
        // A large entry maps many frames; its bit 12 is no address (PAT). Domains get them only if told to on Xen's command
        // line, and then their frames are in order.
        let own = match level {
            2 | 3 if entry & LARGE != 0 => {
                let low = if level == 2 { 0x1ff } else { 0x3_ffff };
                let first = (entry & FRAME) >> 12 & !low;
                let own = self.frames.find(first).filter(|pfn| pfn & low == 0 && self.frames.find(first + low) == Some(pfn + low));
                own.map(|pfn| pfn | (entry & FRAME) >> 12 & low)
            }
            _ => own,
        };
        match own {
            Some(pfn) => entry & !FRAME | pfn << 12 & FRAME,
            None => entry & !PRESENT,
        }
    }

    /// Makes the tables encoded pages: the host must not map them.
    pub fn cut(&self, extents: Vec<Extent>, page_size: u64) -> Vec<Extent> {
        let mut tables = self.list.iter().map(|t| t.0).peekable();
        let mut cut = Vec::with_capacity(extents.len());
        for extent in extents {
            let mut rest = extent;
            while tables.next_if(|pfn| *pfn < rest.first_pfn).is_some() {}
            while let Some(pfn) = tables.next_if(|pfn| *pfn < rest.end_pfn()) {
                if extent.kind != ExtentKind::MAPPED {
                    continue;
                }
                let before = pfn - rest.first_pfn;
                if before > 0 {
                    cut.push(Extent { pages: before, ..rest });
                }
                push_encoded(&mut cut, pfn);
                let step = before + 1;
                rest = Extent { first_pfn: pfn + 1, pages: rest.pages - step, offset: rest.offset + step * page_size, ..rest };
            }
            if rest.pages > 0 {
                cut.push(rest);
            }
        }
        cut
    }
}

/// Reads a page; false if the file does not have it or it cannot be read.
fn there(memory: &dyn Memory, pfn: u64, page: &mut [u8]) -> bool {
    memory.read(pfn, page).unwrap_or(false)
}

fn push_encoded(extents: &mut Vec<Extent>, pfn: u64) {
    match extents.last_mut() {
        Some(last) if last.kind == ExtentKind::ENCODED && last.end_pfn() == pfn => last.pages += 1,
        _ => extents.push(Extent::encoded(pfn, 1)),
    }
}

fn entries(table: &[u8]) -> impl Iterator<Item = u64> + '_ {
    table.chunks_exact(8).filter_map(|b| u64_at(b, 0, false))
}

/// Top tables of the same kernel: the one of its own (`init_top_pgt`), which no process and so maybe no vCPU uses, and
/// those of processes. All have the same text and the same first region behind Xen's.
fn alike(memory: &dyn Memory, frames: &Runs, top: &[u8], scope: Scope) -> Vec<u64> {
    let frame = |e: u64| if e & PRESENT != 0 { e & FRAME } else { 0 };
    let of = |table: &[u8], i: usize| u64_at(table, i * 8, false).map_or(0, frame);
    let Some(first) = (XENS.end..TEXT).find(|i| of(top, *i) != 0) else { return Vec::new() };
    let text = of(top, TEXT);
    let Some(near) = frames.find(text >> 12).filter(|_| text != 0) else { return Vec::new() };
    let ranges = match scope {
        Scope::Kernel => std::iter::once(near.saturating_sub(NEAR)..near.saturating_add(NEAR)).collect::<Vec<_>>(),
        Scope::All => memory.extents().iter().map(|e| e.first_pfn..e.end_pfn()).collect(),
    };
    let mut found = Vec::new();
    let mut page = vec![0; TABLE];
    for pfn in ranges.into_iter().flatten() {
        if there(memory, pfn, &mut page) && of(&page, TEXT) == text && of(&page, first) == of(top, first) {
            found.push(pfn);
        }
    }
    found
}
