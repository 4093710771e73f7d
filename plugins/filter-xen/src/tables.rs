//! Xen's own page tables, and memory by Xen's addresses.
//!
//! Layout of entries: Intel SDM volume 3, 4.5 "4-level paging". Xen uses four levels.

use coresift_sdk::PhysicalMemory;

use crate::bytes::{u16_at, u64_at};

/// Bytes of a page and of a table.
pub const PAGE: u64 = 4096;
/// Bit 0: the entry leads somewhere.
const PRESENT: u64 = 1;
/// Bit 7 of levels 2 and 3: the entry maps memory itself.
const LARGE: u64 = 1 << 7;
/// Bits 12 to 51: the frame.
const FRAME: u64 = 0x000f_ffff_ffff_f000;
/// Tables read at most by [`Tables::leaves`]: enough for 32 TiB by pages of 2 MiB.
const TABLES_MAX: u32 = 1 << 15;

/// Memory by the addresses of one top table.
#[derive(Debug, Clone)]
pub struct Tables {
    memory: PhysicalMemory,
    /// physical address of the top table
    root: u64,
}

/// A piece of memory that one entry maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    /// virtual address
    pub vaddr: u64,
    /// physical address
    pub paddr: u64,
    /// bytes
    pub len: u64,
}

/// Bytes read by virtual address; some pages of them may be missing.
#[derive(Debug, Default)]
pub struct Span {
    vaddr: u64,
    bytes: Vec<u8>,
    /// for each page that the bytes touch: it could be read
    there: Vec<bool>,
}

impl Span {
    /// `len` bytes at a virtual address; `None` if any of them is missing.
    pub fn get(&self, vaddr: u64, len: u64) -> Option<&[u8]> {
        let from = usize::try_from(vaddr.checked_sub(self.vaddr)?).ok()?;
        let bytes = self.bytes.get(from..from.checked_add(len as usize)?)?;
        let page = |at: u64| (at / PAGE - self.vaddr / PAGE) as usize;
        let pages = self.there.get(page(vaddr)..=page(vaddr + len.max(1) - 1))?;
        pages.iter().all(|there| *there).then_some(bytes)
    }
}

impl Tables {
    /// Memory as the top table at this physical address maps it.
    pub fn new(memory: PhysicalMemory, root: u64) -> Self {
        Self { memory, root: root & FRAME }
    }

    /// Physical address of the top table.
    pub fn root(&self) -> u64 {
        self.root
    }

    /// True if the input has the page of this frame.
    pub fn has_frame(&self, pfn: u64) -> bool {
        pfn.checked_mul(PAGE).is_some_and(|paddr| self.memory.read(paddr, &mut [0]).is_ok())
    }

    /// The rest, from `vaddr` on, of what maps it.
    pub fn translate(&self, vaddr: u64) -> Option<Leaf> {
        let mut table = self.root;
        for level in (0..4u32).rev() {
            let shift = 12 + 9 * level;
            let entry = self.entry(table, vaddr >> shift & 511)?;
            if level == 0 || level < 3 && entry & LARGE != 0 {
                let inside = vaddr & ((1 << shift) - 1);
                return Some(Leaf { vaddr, paddr: (entry & FRAME & !((1 << shift) - 1)) + inside, len: (1 << shift) - inside });
            }
            table = entry & FRAME;
        }
        None
    }

    fn entry(&self, table: u64, index: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        let n = self.memory.read(table + index * 8, &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes)).filter(|entry| n == 8 && entry & PRESENT != 0)
    }

    /// Calls `visit` with all that entries `slots` of the top table map, ascending. Returns false if a table is missing or
    /// there are too many.
    pub fn leaves(&self, slots: std::ops::Range<u64>, visit: &mut dyn FnMut(Leaf)) -> bool {
        let mut budget = TABLES_MAX;
        let mut whole = true;
        for slot in slots {
            // Addresses from the middle on have their upper 16 bits set.
            let vaddr = slot << 39 | if slot > 255 { 0xffff << 48 } else { 0 };
            if let Some(entry) = self.entry(self.root, slot) {
                whole &= self.walk(entry & FRAME, 2, vaddr, &mut budget, visit);
            }
        }
        whole
    }

    fn walk(&self, table: u64, level: u32, vaddr: u64, budget: &mut u32, visit: &mut dyn FnMut(Leaf)) -> bool {
        let mut bytes = [0; PAGE as usize];
        let Some(left) = budget.checked_sub(1) else { return false };
        *budget = left;
        if !self.memory.read(table, &mut bytes).is_ok_and(|n| n == PAGE as usize) {
            return false;
        }
        let shift = 12 + 9 * level;
        let mut whole = true;
        for index in 0..512u64 {
            let entry = u64_at(&bytes, index as usize * 8).unwrap_or(0);
            let vaddr = vaddr + (index << shift);
            if entry & PRESENT == 0 {
                continue;
            }
            if level == 0 || entry & LARGE != 0 {
                visit(Leaf { vaddr, paddr: entry & FRAME & !((1 << shift) - 1), len: 1 << shift });
            } else {
                // A table that is missing leaves a gap; the others still count.
                whole &= self.walk(entry & FRAME, level - 1, vaddr, budget, visit);
            }
        }
        whole
    }

    /// Reads `len` bytes; what is missing is marked in the span. Bound `len` before.
    pub fn read(&self, vaddr: u64, len: u64) -> Span {
        let pages = if len == 0 { 0 } else { ((vaddr & (PAGE - 1)) + len).div_ceil(PAGE) };
        let mut span = Span { vaddr, bytes: vec![0; len as usize], there: vec![false; pages as usize] };
        let mut at = 0u64;
        while at < len {
            let here = vaddr.wrapping_add(at);
            let leaf = self.translate(here);
            let want = leaf.map_or(0, |l| l.len).min(len - at);
            let room = span.bytes.get_mut(at as usize..(at + want) as usize).unwrap_or_default();
            let got = leaf.and_then(|l| self.memory.read(l.paddr, room).ok()).unwrap_or(0) as u64;
            // Whole pages of what was read, the last one also if the bytes end in it.
            let end = here.wrapping_add(got);
            let (first, last) = (page_of(vaddr, here), if at + got == len { pages } else { page_of(vaddr, end) });
            span.there.iter_mut().take(last as usize).skip(first as usize).for_each(|there| *there = true);
            // Go on behind the page that is missing.
            at += if got < want || want == 0 { (got + here) / PAGE * PAGE + PAGE - here } else { got };
        }
        span
    }

    /// A number of eight bytes.
    pub fn u64(&self, vaddr: u64) -> Option<u64> {
        u64_at(self.read(vaddr, 8).get(vaddr, 8)?, 0)
    }

    /// A number of two bytes.
    pub fn u16(&self, vaddr: u64) -> Option<u16> {
        u16_at(self.read(vaddr, 2).get(vaddr, 2)?, 0)
    }
}

/// Number of the page that `at` is in, counted from the one `start` is in.
fn page_of(start: u64, at: u64) -> u64 {
    (at / PAGE).wrapping_sub(start / PAGE)
}
