//! Page tables of any geometry: the walk is one loop, an architecture is a value.
//!
//! Sources: Intel SDM volume 3 chapter 4 (x86), Arm ARM DDI 0487 chapter D8 (arm64).

use coresift_sdk::linux::Words;

use crate::memory::{Memory, read_all};

/// Which entry a level takes: address bits `shift..shift + bits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// lowest address bit
    pub shift: u32,
    /// number of address bits
    pub bits: u32,
    /// an entry of this level may map memory itself
    pub leaf: bool,
}

/// How a leaf above the last level is told from a pointer to the next table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaf {
    /// this bit is set (x86 PS)
    Bit(u32),
    /// this bit is clear (arm64: type 01 is a block, 11 a table)
    BitClear(u32),
}

/// A group of entry bits that are physical address bits elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// lowest bit in the entry
    pub from: u32,
    /// number of bits
    pub bits: u32,
    /// lowest bit of the address
    pub to: u32,
}

/// What the bits of an entry mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// bytes of an entry: 4 or 8
    pub entry: usize,
    /// byte order of entries
    pub big_endian: bool,
    /// an entry with one of these bits leads somewhere
    pub present: u64,
    /// how leaves above the last level are told
    pub leaf: Leaf,
    /// entry bits that are the same bits of the physical address
    pub address: u64,
    /// entry bits that stand elsewhere in the address
    pub moved: Option<Moved>,
    /// set = not executable for the kernel; 0 = always executable
    pub no_execute: u64,
    /// set = writable, 0 = by `read_only`
    pub writable: u64,
    /// set = not writable
    pub read_only: u64,
    /// entries above the leaf restrict, too (x86); else only the leaf counts
    pub inherit: bool,
    /// except those of the top table, which have no such bits (PAE)
    pub plain_top: bool,
}

/// Page tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paging {
    /// physical address of the top table
    pub root: u64,
    /// levels, top first
    pub levels: Vec<Level>,
    /// entries
    pub format: Format,
    /// address bits that the tables translate; those above must all be equal to the highest of them, or all ones
    pub va_bits: u32,
    /// kernel addresses have only ones above `va_bits` (arm64 TTBR1); else they are sign-extended (x86), if 64 bits wide
    pub upper_half: bool,
}

/// Where an address leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// physical address
    pub paddr: u64,
    /// bytes from here to the end of the leaf's range
    pub len: u64,
    /// the kernel may run code there
    pub executable: bool,
    /// the kernel may write there
    pub writable: bool,
}

/// Why an address leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// the address lies outside of what the tables translate
    Outside(u64),
    /// the entry is not present: level from the top, physical address of the entry
    NotPresent(u64, usize, u64),
    /// the entry cannot be read
    Unreadable(u64, usize, u64),
    /// the entry is present, but of a kind that its level does not have: what was read is no page table
    Reserved(u64, usize, u64),
    /// no page tables are known for the address
    Unknown(u64),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Outside(v) => write!(f, "{v:#x} is no kernel address"),
            Self::NotPresent(v, level, at) => write!(f, "{v:#x} is not mapped: level {level}, entry at physical {at:#x}"),
            Self::Unreadable(v, level, at) => write!(f, "{v:#x}: level {level}, entry at physical {at:#x} cannot be read"),
            Self::Reserved(v, level, at) => write!(f, "{v:#x}: level {level}, entry at physical {at:#x} is no page-table entry"),
            Self::Unknown(v) => write!(f, "{v:#x}: no page tables are known for this address"),
        }
    }
}

/// One entry that a walk passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// level, 0 = top
    pub level: usize,
    /// physical address of the entry
    pub at: u64,
    /// the entry
    pub entry: u64,
}

const fn low_bits(n: u32) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}

impl Format {
    /// The physical address in an entry.
    fn address_of(&self, entry: u64) -> u64 {
        let moved = self.moved.map_or(0, |m| (entry >> m.from & low_bits(m.bits)) << m.to);
        entry & self.address | moved
    }

    /// Pages of the last level are told like tables (arm64: 11); on x86 the bit means something else there (PAT).
    fn page_is_table_like(&self) -> bool {
        matches!(self.leaf, Leaf::BitClear(_))
    }

    fn is_leaf(&self, entry: u64) -> bool {
        match self.leaf {
            Leaf::Bit(bit) => entry >> bit & 1 == 1,
            Leaf::BitClear(bit) => entry >> bit & 1 == 0,
        }
    }
}

impl Paging {
    /// Where an address leads. Bounded by the number of levels; nothing read is trusted beyond that.
    ///
    /// # Errors
    /// It leads nowhere, or a table cannot be read.
    pub fn translate(&self, memory: &dyn Memory, vaddr: u64) -> Result<Mapping, Fault> {
        self.walk(memory, vaddr, |_| {})
    }

    /// The same; `each` sees every entry on the way.
    ///
    /// # Errors
    /// As [`Self::translate`].
    pub fn walk(&self, memory: &dyn Memory, vaddr: u64, mut each: impl FnMut(Step)) -> Result<Mapping, Fault> {
        if !self.translates(vaddr) {
            return Err(Fault::Outside(vaddr));
        }
        let words = Words { long: self.format.entry, big_endian: self.format.big_endian };
        let mut table = self.root;
        let (mut executable, mut writable) = (true, true);
        let last = self.levels.len().saturating_sub(1);
        for (number, level) in self.levels.iter().enumerate() {
            let index = vaddr >> level.shift & low_bits(level.bits);
            let at = table.wrapping_add(index * self.format.entry as u64);
            let mut raw = [0u8; 8];
            let read = raw.get_mut(..self.format.entry).and_then(|raw| read_all(memory, at, raw));
            let entry = read.and_then(|()| words.long(&raw, 0)).ok_or(Fault::Unreadable(vaddr, number, at))?;
            each(Step { level: number, at, entry });
            if entry & self.format.present == 0 {
                return Err(Fault::NotPresent(vaddr, number, at));
            }
            // A leaf where none may be: arm64's 01 at the last level or above the blocks, x86's PS above 1 GiB.
            let looks_leaf = self.format.is_leaf(entry);
            let reserved = if number == last { looks_leaf && self.format.page_is_table_like() } else { looks_leaf && !level.leaf };
            if reserved {
                return Err(Fault::Reserved(vaddr, number, at));
            }
            let address = self.format.address_of(entry);
            let leaf = number == last || looks_leaf;
            if leaf || self.format.inherit && !(self.format.plain_top && number == 0) {
                executable &= entry & self.format.no_execute == 0;
                writable &= (self.format.writable == 0 || entry & self.format.writable != 0) && entry & self.format.read_only == 0;
            }
            if leaf {
                let within = low_bits(level.shift);
                let paddr = address & !within | vaddr & within;
                return Ok(Mapping { paddr, len: within - (vaddr & within) + 1, executable, writable });
            }
            table = address;
        }
        Err(Fault::Unknown(vaddr))
    }

    fn translates(&self, vaddr: u64) -> bool {
        if self.va_bits >= 64 {
            return true;
        }
        if self.format.entry == 4 || self.va_bits == 32 {
            return vaddr >> 32 == 0;
        }
        let above = |bits: u32| vaddr >> bits == u64::MAX >> bits;
        if self.upper_half { above(self.va_bits) } else { above(self.va_bits - 1) || vaddr >> (self.va_bits - 1) == 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tables;

    /// Two levels of 512 entries over pages of 4 KiB, entries told apart as by x86 (PS) or by arm64 (type).
    fn paging(leaf: Leaf) -> Paging {
        let format = Format {
            entry: 8,
            big_endian: false,
            present: 1,
            leaf,
            address: 0x000f_ffff_ffff_f000,
            moved: None,
            no_execute: 1 << 63,
            writable: 2,
            read_only: 0,
            inherit: true,
            plain_top: false,
        };
        let levels = vec![Level { shift: 21, bits: 9, leaf: false }, Level { shift: 12, bits: 9, leaf: false }];
        Paging { root: 0x1000, levels, format, va_bits: 30, upper_half: false }
    }

    #[test]
    fn entries_that_a_level_does_not_have_are_no_page_tables() {
        let mut memory = Tables::default();
        // x86: PS in an entry that must lead to a table; in the last level the bit is PAT and means nothing here.
        let x86 = paging(Leaf::Bit(7));
        memory.put64(0x1000, 0x2000 | 3 | 1 << 7);
        assert_eq!(x86.translate(&memory, 0), Err(Fault::Reserved(0, 0, 0x1000)));
        memory.put64(0x1000, 0x2000 | 3);
        memory.put64(0x2000, 0x5000 | 3 | 1 << 7);
        assert_eq!(x86.translate(&memory, 0x12).map(|m| m.paddr), Ok(0x5012));
        // arm64: 01 is a block, which neither this level nor the last one has (Arm ARM D8.3).
        let arm64 = paging(Leaf::BitClear(1));
        memory.put64(0x1000, 0x2000 | 1);
        assert_eq!(arm64.translate(&memory, 0), Err(Fault::Reserved(0, 0, 0x1000)));
        memory.put64(0x1000, 0x2000 | 3);
        memory.put64(0x2000, 0x5000 | 1);
        assert_eq!(arm64.translate(&memory, 0), Err(Fault::Reserved(0, 1, 0x2000)));
    }

    #[test]
    fn what_a_table_forbids_no_leaf_allows() {
        let mut memory = Tables::default();
        memory.put64(0x1000, 0x2000 | 1 | 1 << 63);
        memory.put64(0x2000, 0x5000 | 3);
        let x86 = paging(Leaf::Bit(7));
        let rules = |paging: &Paging| paging.translate(&memory, 0).map(|m| (m.executable, m.writable));
        assert_eq!(rules(&x86), Ok((false, false)), "SDM volume 3, 4.6");
        assert_eq!(rules(&Paging { format: Format { plain_top: true, ..x86.format }, ..x86.clone() }), Ok((true, true)));
        assert_eq!(rules(&Paging { format: Format { inherit: false, ..x86.format }, ..x86 }), Ok((true, true)));
    }

    #[test]
    fn a_walk_shows_what_it_passes_and_a_fault_is_one_line() {
        let mut memory = Tables::default();
        let x86 = paging(Leaf::Bit(7));
        memory.put64(0x1008, 0x2000 | 3);
        memory.put64(0x2000, 0);
        let mut steps = Vec::new();
        let found = x86.walk(&memory, 0x20_3000, |step| steps.push(step));
        assert_eq!(found, Err(Fault::NotPresent(0x20_3000, 1, 0x2018)));
        assert_eq!(steps, [Step { level: 0, at: 0x1008, entry: 0x2003 }, Step { level: 1, at: 0x2018, entry: 0 }]);
        memory.put64(0x1008, 0x7000_0000 | 3);
        let cases = [
            (0x20_3000, "0x203000: level 1, entry at physical 0x70000018 cannot be read"),
            (0x40_0000, "0x400000 is not mapped: level 0, entry at physical 0x1010"),
            (0x4000_0000, "0x40000000 is no kernel address"),
        ];
        for (vaddr, text) in cases {
            assert_eq!(x86.translate(&memory, vaddr).map_err(|e| e.to_string()), Err(text.to_owned()));
        }
        assert_eq!(Fault::Reserved(1, 2, 3).to_string(), "0x1: level 2, entry at physical 0x3 is no page-table entry");
    }

    #[test]
    fn entries_of_the_other_byte_order_and_of_4_bytes() {
        let mut memory = Tables::default();
        let base = paging(Leaf::Bit(7));
        let big = Paging { format: Format { big_endian: true, ..base.format }, ..base.clone() };
        memory.put(0x1000, &(0x2000u64 | 3).to_be_bytes());
        memory.put(0x2000, &(0x5000u64 | 3).to_be_bytes());
        assert_eq!(big.translate(&memory, 0x34).map(|m| m.paddr), Ok(0x5034));
        assert!(base.translate(&memory, 0x34).is_err());
    }

    #[test]
    fn garbage_never_does_more_than_a_walk() {
        // A generator with a fixed seed (Knuth's MMIX): every entry, address and geometry is noise.
        let mut seed = 42u64;
        let mut noise = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed ^ seed >> 29
        };
        let mut memory = Tables::default();
        (0..4096).for_each(|i| memory.put64(i * 8, noise()));
        for _ in 0..20_000 {
            let leaf = if noise() & 1 == 0 { Leaf::Bit(7) } else { Leaf::BitClear(1) };
            let mut p = paging(leaf);
            p.root = noise() & if noise() & 1 == 0 { 0x7000 } else { u64::MAX };
            p.format.address = if noise() & 1 == 0 { 0x7000 } else { u64::MAX };
            p.format.moved = Some(Moved { from: 12, bits: 4, to: 48 }).filter(|_| noise() & 1 == 0);
            p.va_bits = 64;
            let (vaddr, mut steps) = (noise(), 0);
            let found = p.walk(&memory, vaddr, |_| steps += 1);
            assert!(steps <= p.levels.len());
            assert!(found.is_ok_and(|m| m.len > 0 && m.len <= 4096) || found.is_err());
        }
    }
}
