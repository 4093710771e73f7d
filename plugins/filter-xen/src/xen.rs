//! The hypervisor's own data: where it is, and what it says of frames and domains.

use std::collections::HashMap;
use std::sync::Mutex;

use coresift_sdk::{Machine, PhysicalMemory};

use crate::bytes::{u32_at, u64_at};
use crate::frames::{DIRECT_MAP, Frames};
use crate::notes::Notes;
use crate::rules::{self, Frame, Layout, XEN_HEAP};
use crate::tables::{PAGE, Tables};

/// Xen's image is mapped from a multiple of 1 GiB on, and `domain_list` is in it (xen/arch/x86/xen.lds.S).
const IMAGE_ALIGN: u64 = 1 << 30;
/// `FRAMETABLE_VIRT_START` of Xen 4.3 on, and of versions before, where no symbol says it (xen/arch/x86/include/asm/config.h).
const FRAME_TABLE: u64 = 0xffff_82e0_0000_0000;
const FRAME_TABLE_BEFORE_4_3: u64 = 0xffff_82f6_0000_0000;
/// Bytes that a `struct page_info` can have; releases have 32 to 64.
const PAGE_INFO: std::ops::RangeInclusive<u64> = 16..=256;
/// Frames looked at in one go: at most 1 MiB of the frame table.
pub const FRAMES_AT_ONCE: u64 = 4096;
/// Pieces of the frame table that are read to see which layout it has, and votes that are enough.
const SAMPLES: u64 = 1024;
const VOTES: u64 = 256;
/// The winner has so many times the votes of the other.
const CLEAR: u64 = 8;
/// Owners remembered.
const OWNERS_MAX: usize = 4096;

/// Domain numbers with a meaning (xen/include/public/xen.h): the last ordinary one, `DOMID_IO`, `DOMID_XEN`, `DOMID_COW`.
const LAST: u16 = 0x7fef;
const IO: u16 = 0x7ff1;
const XEN: u16 = 0x7ff2;
const COW: u16 = 0x7ff3;

/// Whose a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// domain 0
    Dom0,
    /// another domain, or several that share it
    Other,
    /// Xen itself, as the domains for sharing with others and for I/O
    Special,
    /// what stands there is no domain
    Unknown,
}

/// How a version says which frames are the Xen heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heap {
    /// those before this one
    Below(u64),
    /// by a bit of `count_info`
    Bit,
}

/// The rules of a version, and what they need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    /// `alloc_bitmap`'s address; if `_domain` is a frame number (since 3.4), not an address
    Three { bitmap: u64, heap: Heap, by_frame: bool },
    /// where the moved bits are, if that is known
    Four(Option<Layout>),
}

/// The hypervisor.
#[derive(Debug)]
pub struct Xen {
    tables: Tables,
    frames: Frames,
    rules: Rules,
    version: (u64, u64),
    /// address of the frame table, bytes of an entry, and where its parts are
    table: u64,
    size: u64,
    count_info: u64,
    domain: u64,
    /// where `domain_id` is in `struct domain`
    domain_id: u64,
    owners: Mutex<HashMap<u32, Owner>>,
}

impl Xen {
    /// Finds the hypervisor's data.
    ///
    /// # Errors
    /// Something that decides is missing or is not what it should be; the sentence says what.
    pub fn find(memory: PhysicalMemory, machine: &Machine, phys_start: Option<u64>) -> Result<Self, String> {
        if machine.arch != "x86_64" || machine.big_endian || machine.page_shift != 12 {
            return Err(format!("the rules for Xen are known for x86_64 only, not for {:?}", machine.arch));
        }
        let notes = Notes::of(machine);
        if !notes.has_symbols() {
            return Err("no note VMCOREINFO_XEN says where Xen's data is".into());
        }
        let version = notes.version.ok_or("no crash note says which version of Xen it is")?;
        let tables = tables(memory, &notes, phys_start)?;
        let frames = Frames::read(&tables, version.0)?;
        let need = |key: &str| notes.number(key).ok_or_else(|| format!("VMCOREINFO_XEN has no {key}"));
        let size = need("SIZE(page_info)")?;
        let (count_info, domain) = (need("OFFSET(page_info.count_info)")?, need("OFFSET(page_info._domain)")?);
        let fits = |at: u64, len: u64| at.checked_add(len).is_some_and(|end| end <= size);
        if !PAGE_INFO.contains(&size) || !fits(count_info, 8) || !fits(domain, 4) {
            return Err(format!("VMCOREINFO_XEN has an impossible page_info: {size} bytes, members at {count_info} and {domain}"));
        }
        let domain_id = need("OFFSET(domain.domain_id)")?;
        if domain_id > PAGE - 2 {
            return Err(format!("VMCOREINFO_XEN has domain_id at {domain_id} of struct domain, which has one page"));
        }
        let table = match notes.symbol("frame_table") {
            Some(at) => tables.u64(at).ok_or("the variable frame_table cannot be read")?,
            None if version < (4, 3) => FRAME_TABLE_BEFORE_4_3,
            None => FRAME_TABLE,
        };
        let rules = Rules::Four(None);
        let mut xen = Self { tables, frames, rules, version, table, size, count_info, domain, domain_id, owners: Mutex::default() };
        xen.rules = match version.0 {
            ..4 => xen.three(&notes)?,
            _ => Rules::Four(xen.layout(machine.max_pfn).or(Layout::of_version(version.0, version.1))),
        };
        xen.check(&notes)?;
        Ok(xen)
    }

    /// What the filter cannot know, for the report.
    pub fn gap(&self) -> Option<String> {
        let (major, minor) = self.version;
        matches!(self.rules, Rules::Four(None)).then(|| {
            format!("no free page tells which layout Xen {major}.{minor}'s count_info has: free, broken and offlined pages are kept")
        })
    }

    /// True if frames have other numbers in the frame table.
    pub fn compressed(&self) -> bool {
        self.frames.differ()
    }

    fn three(&self, notes: &Notes) -> Result<Rules, String> {
        let value = |name: &str| notes.symbol(name).map(|at| self.tables.u64(at).ok_or(format!("the variable {name} cannot be read")));
        let bitmap = value("alloc_bitmap").ok_or("VMCOREINFO_XEN has no SYMBOL(alloc_bitmap), by which Xen 3 tells free pages")??;
        let since_3_4 = self.version >= (3, 4);
        let heap = match value("xenheap_phys_end") {
            Some(end) => Heap::Below(end? / PAGE),
            None if since_3_4 => Heap::Bit,
            None => return Err("VMCOREINFO_XEN has no SYMBOL(xenheap_phys_end), by which Xen 3 tells its own memory".into()),
        };
        Ok(Rules::Three { bitmap, heap, by_frame: since_3_4 })
    }

    /// The layout that free pages have; `None` if none or both are found.
    fn layout(&self, max_pfn: u64) -> Option<Layout> {
        let step = (max_pfn / SAMPLES).max(FRAMES_AT_ONCE / 2) as usize;
        let (mut below, mut no_cache) = (0u64, 0u64);
        for pfn in (0..max_pfn).step_by(step) {
            self.each_info(pfn, FRAMES_AT_ONCE / 2, |_, info| {
                let Some(count) = info.and_then(|i| self.count_info(i)) else { return };
                below += u64::from(rules::BELOW_CACHE.votes(count));
                no_cache += u64::from(rules::NO_CACHE.votes(count));
            });
            if below.max(no_cache) >= VOTES {
                break;
            }
        }
        let (winner, most, least) =
            if below > no_cache { (rules::BELOW_CACHE, below, no_cache) } else { (rules::NO_CACHE, no_cache, below) };
        (most > 0 && most >= least.saturating_mul(CLEAR)).then_some(winner)
    }

    /// Frames and domains whose nature is known must be judged so: else something was found that is not what it seems.
    fn check(&self, notes: &Notes) -> Result<(), String> {
        let list = notes.symbol("domain_list").ok_or("VMCOREINFO_XEN has no SYMBOL(domain_list)")?;
        let first = self.tables.u64(list).ok_or("the variable domain_list cannot be read")?;
        let dom0 = self.dom0(first, notes.number("OFFSET(domain.next_in_list)"));
        let dom0 = dom0.ok_or_else(|| format!("there is no domain 0 in the list of domains that begins at {first:#x}"))?;
        if let Some(at) = notes.symbol("dom_xen") {
            let dom_xen = self.tables.u64(at).ok_or("the variable dom_xen cannot be read")?;
            if self.domain_at(dom_xen) != Owner::Special {
                return Err(format!("dom_xen leads to {dom_xen:#x}, where no such domain is"));
            }
        }
        let frame = |vaddr: u64| self.tables.translate(vaddr).map(|leaf| leaf.paddr / PAGE);
        let own = [("page table", Some(self.tables.root() / PAGE)), ("frame table", frame(self.table)), ("domain 0", frame(dom0))];
        for (what, pfn) in own {
            if let Some((pfn, frame)) = pfn.and_then(|pfn| Some((pfn, self.one(pfn)?))).filter(|(_, frame)| *frame != Frame::Xen) {
                return Err(format!("Xen's own {what} (PFN {pfn:#x}) would be taken for {frame:?}"));
            }
        }
        Ok(())
    }

    /// Address of domain 0 in the list of domains, which is in the order of their numbers (`domain_create`,
    /// xen/common/domain.c). A damaged number would make a guest of it.
    fn dom0(&self, first: u64, next: Option<u64>) -> Option<u64> {
        let follow = |at: &u64| self.tables.u64(at.checked_add(next.filter(|n| *n <= PAGE - 8)?)?);
        std::iter::successors(Some(first), follow).take(usize::from(LAST)).find(|at| self.domain_at(*at) == Owner::Dom0)
    }

    /// Which domain is at this address.
    fn domain_at(&self, vaddr: u64) -> Owner {
        let offset = vaddr.checked_sub(DIRECT_MAP).map(|at| if self.by_frame() { at / PAGE } else { at });
        offset.and_then(|owner| u32::try_from(owner).ok()).map_or(Owner::Unknown, |owner| self.resolve(owner))
    }

    /// What one frame is.
    fn one(&self, pfn: u64) -> Option<Frame> {
        let mut found = None;
        self.judge(pfn, 1, |_, frame| found = frame);
        found
    }

    /// What each of these frames is, in order; `None` if it cannot be known.
    pub fn judge(&self, pfn: u64, pages: u64, mut visit: impl FnMut(u64, Option<Frame>)) {
        match self.rules {
            Rules::Four(layout) => self.each_info(pfn, pages, |pfn, info| {
                let both = info.and_then(|i| Some((self.count_info(i)?, self.owner(i)?)));
                visit(pfn, both.map(|(count, owner)| rules::xen4(count, owner, layout)));
            }),
            Rules::Three { bitmap, heap, .. } => {
                // Words of 64 bits: their bytes' order is that of the frames.
                let first = bitmap.wrapping_add(pfn / 8);
                let bits = self.tables.read(first, pages.div_ceil(8) + 1);
                self.each_info(pfn, pages, |pfn, info| {
                    let byte = bits.get(bitmap.wrapping_add(pfn / 8), 1).and_then(|b| b.first().copied());
                    let count = info.and_then(|i| self.count_info(i));
                    let heap = match heap {
                        Heap::Below(end) => pfn < end,
                        Heap::Bit => count.is_some_and(|c| c & XEN_HEAP != 0),
                    };
                    let owner = info.and_then(|i| self.owner(i));
                    visit(pfn, byte.and_then(|byte| rules::xen3(byte >> (pfn % 8) & 1 != 0, count, owner, heap)));
                });
            }
        }
    }

    /// Calls `visit` with the `struct page_info` of each frame, or `None` if it cannot be read.
    fn each_info(&self, pfn: u64, pages: u64, mut visit: impl FnMut(u64, Option<&[u8]>)) {
        let mut next = pfn;
        for (first, count, index) in self.frames.within(pfn, pages) {
            (next..first).for_each(|pfn| visit(pfn, None));
            let at = |i: u64| self.table.wrapping_add(index.wrapping_add(i).wrapping_mul(self.size));
            let span = self.tables.read(at(0), count.min(pages) * self.size);
            (0..count).for_each(|i| visit(first + i, span.get(at(i), self.size)));
            next = first + count;
        }
        (next..pfn.saturating_add(pages)).for_each(|pfn| visit(pfn, None));
    }

    fn count_info(&self, info: &[u8]) -> Option<u64> {
        u64_at(info, self.count_info as usize)
    }

    fn owner(&self, info: &[u8]) -> Option<u32> {
        u32_at(info, self.domain as usize)
    }

    /// True if the input has the frame's page.
    pub fn has_frame(&self, pfn: u64) -> bool {
        self.tables.has_frame(pfn)
    }

    fn by_frame(&self) -> bool {
        !matches!(self.rules, Rules::Three { by_frame: false, .. })
    }

    /// Whose a page with this `_domain` is.
    pub fn who(&self, owner: u32) -> Owner {
        if let Some(known) = self.owners.lock().ok().and_then(|owners| owners.get(&owner).copied()) {
            return known;
        }
        let found = self.resolve(owner);
        if let Ok(mut owners) = self.owners.lock()
            && owners.len() < OWNERS_MAX
        {
            owners.insert(owner, found);
        }
        found
    }

    /// Follows the number to the domain: a page of the Xen heap, in the direct map, with a domain's number in it. So it does
    /// not matter if the list of domains is broken or a domain has left it.
    fn resolve(&self, owner: u32) -> Owner {
        let offset = if self.by_frame() { u64::from(owner) * PAGE } else { u64::from(owner) };
        let vaddr = DIRECT_MAP + offset;
        let heap = self.tables.translate(vaddr).and_then(|leaf| match self.rules {
            Rules::Three { heap: Heap::Below(end), .. } => Some(leaf.paddr / PAGE < end),
            _ => {
                let at = self.table.wrapping_add((offset / PAGE).wrapping_mul(self.size));
                let count = self.count_info(self.tables.read(at, self.size).get(at, self.size)?)?;
                Some(count & XEN_HEAP != 0)
            }
        });
        let id = self.tables.u16(vaddr + self.domain_id).filter(|_| heap == Some(true));
        match id {
            Some(0) => Owner::Dom0,
            Some(1..=LAST | COW) => Owner::Other,
            Some(IO | XEN) => Owner::Special,
            _ => Owner::Unknown,
        }
    }
}

/// Xen's page tables: `pgd_l4`, found by where Xen's image lies, else by what a CPU used. The table must map itself.
fn tables(memory: PhysicalMemory, notes: &Notes, phys_start: Option<u64>) -> Result<Tables, String> {
    let top = notes.symbol("pgd_l4").ok_or("VMCOREINFO_XEN has no SYMBOL(pgd_l4): Xen's page tables cannot be found")?;
    let image = notes.symbol("domain_list").unwrap_or(top) & !(IMAGE_ALIGN - 1);
    let mut last = None;
    let by_image = [phys_start, notes.phys_start].into_iter().flatten().map(|start| top.wrapping_sub(image).wrapping_add(start));
    for root in by_image.chain(notes.cr3.iter().copied()) {
        let tables = Tables::new(memory.clone(), root);
        let Some(leaf) = tables.translate(top) else { continue };
        let own = Tables::new(memory.clone(), leaf.paddr);
        if own.translate(top).is_some_and(|again| again.paddr == leaf.paddr) {
            return Ok(own);
        }
        last = Some(leaf.paddr);
    }
    Err(match last {
        Some(at) => format!("what Xen's page tables should be, at physical address {at:#x}, does not map itself"),
        None => "Xen's page tables cannot be read".into(),
    })
}
