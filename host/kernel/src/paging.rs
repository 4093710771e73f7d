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
    /// no page tables are known for the address
    Unknown(u64),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Outside(v) => write!(f, "{v:#x} is no kernel address"),
            Self::NotPresent(v, level, at) => write!(f, "{v:#x} is not mapped: level {level}, entry at physical {at:#x}"),
            Self::Unreadable(v, level, at) => write!(f, "{v:#x}: level {level}, entry at physical {at:#x} cannot be read"),
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
            let address = self.format.address_of(entry);
            let leaf = number == last || level.leaf && self.format.is_leaf(entry);
            if leaf || self.format.inherit {
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
