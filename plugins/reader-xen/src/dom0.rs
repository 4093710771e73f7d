//! Domain 0 within the vmcore of a hypervisor, by its own page frames.
//!
//! The crash note of an x86 hypervisor has `dom0_pfn_to_mfn_frame_list_list`: the machine frame of a page of frames of
//! pages of frames of pages, the last of which have the machine frame of each PFN. Linux builds these for Xen in
//! `xen_build_mfn_list_list` (arch/x86/xen/p2m.c), up to 2^27 pages (512 GiB).
//!
//! ```text
//! crash note ─► 512 frames ─► 512 frames each ─► 512 entries each: PFN p = 2^18·i + 2^9·j + k is machine frame …
//! ```

use std::collections::HashSet;

use coresift_elf::segments::PHYSICAL_END;
use coresift_sdk::{Error, Extent, Reader, Result};
use goblin::elf::header::EM_X86_64;

use crate::bytes::u64_at;
use crate::hypervisor::Hypervisor;
use crate::image::{Entries, Memory, View};
use crate::index::{Builder, NONE, Runs};
use crate::notes;
use crate::tables::Tables;

/// Bytes of a page of x86_64.
const PAGE: usize = 4096;
/// Entries of a page of the list.
const ENTRIES: u64 = 512;
/// `FOREIGN_FRAME_BIT`: memory of another domain (arch/x86/include/asm/xen/page.h of Linux).
const FOREIGN: u64 = 1 << 63;
/// `IDENTITY_FRAME_BIT`: no RAM, machine frame and PFN are the same (devices, reserved memory).
const IDENTITY: u64 = 1 << 62;

/// Entries of the list that are believed for each page of the file.
const MOST: u64 = 64;

/// Domain 0's pages.
#[derive(Debug)]
struct Dom0 {
    host: Hypervisor,
    /// from PFN to machine frame
    runs: Runs,
}

impl Memory for Dom0 {
    fn extents(&self) -> Vec<Extent> {
        let mut extents = Vec::new();
        for run in self.runs.list() {
            self.host.renumbered(run.value, run.pages, run.key, &mut extents);
        }
        extents
    }

    fn read(&self, pfn: u64, page: &mut [u8]) -> Result<bool> {
        match self.runs.find(pfn) {
            Some(mfn) => self.host.read_frame(mfn, page),
            None => Ok(false),
        }
    }
}

/// Opens the view.
///
/// # Errors
/// The notes do not lead to domain 0's frames, or those are not in the file.
pub fn open(host: Hypervisor, entries: Entries) -> Result<Box<dyn Reader>> {
    let mut machine = host.machine();
    let use_machine = "leave out view = \"dom0\" to read the machine's memory";
    if machine.elf_machine != EM_X86_64 {
        return Err(Error::unsupported(format!("view = \"dom0\" is for x86_64, this is {}", machine.arch)).hint(use_machine));
    }
    let Some(root) = host.crash().p2m else {
        return Err(Error::unsupported("no note of the hypervisor says where domain 0's frames are").hint(use_machine));
    };
    // What only holds for the view of the machine.
    machine.warnings.retain(|w| !w.contains("page frames are those of the host") && !w.contains("view = \"dom0\""));
    machine.vmcoreinfo = host.linux_vmcoreinfo();
    machine.hypervisor = false;
    let list = FrameList::read(&host, root, &mut machine.warnings)?;
    if list.pages.list().is_empty() {
        let message = format!("domain 0's frame list at machine frame {root:#x} has no page in it");
        return Err(Error::format(message).hint(use_machine));
    }
    let roots: Vec<u64> = host.crash().cr3.iter().map(|cr3| cr3 >> 12).collect();
    let ctx = host.ctx();
    let memory = Dom0 { host, runs: list.pages };
    let tables = match entries {
        Entries::Guest(scope) => Tables::find(&memory, list.frames, &roots, scope),
        Entries::Machine => Tables::default(),
    };
    if entries != Entries::Machine && tables.count() == 0 {
        machine.warnings.push("no CPU was in domain 0: its page tables could not be found and have frames of the machine".into());
    }
    machine.format = "Xen hypervisor vmcore, domain 0".into();
    machine.max_pfn = memory.runs.end();
    // The registers are those of the hypervisor's CPUs, and readers that see its notes would take PFNs for machine frames.
    machine.notes = linux_notes(&machine.notes, ctx);
    machine.cpus = 0;
    Ok(Box::new(View::new(memory, machine, tables)))
}

/// The notes of Linux: VMCOREINFO, if there is one.
fn linux_notes(all: &[u8], ctx: goblin::container::Ctx) -> Vec<u8> {
    let mut kept = Vec::new();
    notes::each(all, ctx, |name, n_type, desc| {
        if name != "VMCOREINFO" {
            return;
        }
        for word in [name.len() as u32 + 1, desc.len() as u32, n_type] {
            kept.extend(word.to_le_bytes());
        }
        for part in [name.as_bytes(), &[0]] {
            kept.extend(part);
        }
        kept.resize(kept.len().next_multiple_of(4), 0);
        kept.extend(desc);
        kept.resize(kept.len().next_multiple_of(4), 0);
    });
    kept
}

/// Domain 0's frames.
#[derive(Debug, Default)]
struct FrameList {
    /// from PFN to machine frame
    pages: Runs,
    /// from machine frame to PFN, devices included
    frames: Runs,
}

/// The list as far as it is read.
struct Walk<'a> {
    host: &'a Hypervisor,
    pages: Builder,
    frames: Builder,
    devices: Vec<u64>,
    /// entries that may still be taken, so that a false list takes no more memory than about the file has bytes
    room: u64,
    /// pages of the list without an entry: Linux uses one for all that are empty
    empty: HashSet<u64>,
    missing: u64,
    foreign: u64,
}

impl FrameList {
    fn read(host: &Hypervisor, root: u64, warnings: &mut Vec<String>) -> Result<Self> {
        let mut walk = Walk {
            host,
            pages: Builder::default(),
            frames: Builder::default(),
            devices: Vec::new(),
            // Many pages may be left out of the file, and devices are no pages; but a small file has no large list.
            room: host.pages().saturating_mul(MOST).saturating_add(1 << 20),
            empty: HashSet::new(),
            missing: 0,
            foreign: 0,
        };
        let Some(top) = walk.page(root) else {
            let message = format!("domain 0's frame list (machine frame {root:#x}) is not in the file");
            return Err(Error::format(message).hint("leave out view = \"dom0\" to read the machine's memory"));
        };
        for (i, mid) in (0..).zip(top) {
            let Some(mid) = walk.page(mid) else { continue };
            for (j, leaf) in (0..).zip(mid) {
                walk.leaf(leaf, (i * ENTRIES + j) * ENTRIES);
            }
        }
        let mut say = |count: u64, what: &str| {
            if count > 0 {
                warnings.push(format!("{count} {what}"));
            }
        };
        say(walk.missing, "pages of domain 0's frame list cannot be read or are not in the file; the memory that they list is left out");
        say(walk.foreign, "pages of domain 0 are memory of other domains and are left out");
        let (pages, _) = walk.pages.finish();
        let (own, twice) = walk.frames.finish();
        say(twice, "machine frames are in domain 0's frame list more than once");
        if walk.room == 0 {
            warnings.push("domain 0's frame list is longer than the machine can have memory; the rest is left out".into());
        }
        // What lies outside of domain 0's RAM has identity entries too, and its own pages may be there on the machine.
        let mut frames = Builder::default();
        own.list().iter().for_each(|run| frames.push_run(*run));
        walk.devices.iter().filter(|pfn| own.find(**pfn).is_none()).for_each(|pfn| frames.push(*pfn, *pfn));
        let (frames, _) = frames.finish();
        Ok(Self { pages, frames })
    }
}

impl Walk<'_> {
    /// The entries of a page of the list; `None` for one that cannot be read or is known to be empty.
    fn page(&mut self, mfn: u64) -> Option<Vec<u64>> {
        if mfn == 0 || mfn == NONE || self.room == 0 || self.empty.contains(&mfn) {
            return None;
        }
        let mut page = vec![0; PAGE];
        if mfn >= PHYSICAL_END >> 12 || !self.host.read_frame(mfn, &mut page).unwrap_or(false) {
            self.missing += 1;
            self.empty.insert(mfn);
            return None;
        }
        Some(page.chunks_exact(8).filter_map(|b| u64_at(b, 0, false)).collect())
    }

    fn leaf(&mut self, leaf: u64, first_pfn: u64) {
        let Some(entries) = self.page(leaf) else { return };
        if entries.iter().all(|e| *e == NONE) {
            self.empty.insert(leaf);
        }
        for (pfn, entry) in (first_pfn..).zip(entries).filter(|(_, e)| *e != NONE) {
            if self.room == 0 {
                break;
            }
            self.room -= 1;
            if entry & FOREIGN != 0 {
                self.foreign += 1;
            } else if entry & IDENTITY != 0 {
                // One page of such entries serves all places: the number in the entry means nothing.
                self.devices.push(pfn);
            } else if entry < PHYSICAL_END >> 12 {
                self.pages.push(pfn, entry);
                self.frames.push(entry, pfn);
            }
        }
    }
}
