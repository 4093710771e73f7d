//! Page tables: x86_64 (4 levels), i386 (2 levels), s390x (region third and segment tables).

use super::arch::Arch;
use super::memory::Memory;

/// _PAGE_PRESENT | _PAGE_RW | _PAGE_ACCESSED | _PAGE_DIRTY, arch/x86/include/asm/pgtable_types.h.
const X86_TABLE: u64 = 0x63;
/// The same with _PAGE_PSE: a leaf above the lowest level.
const X86_LEAF: u64 = 0xe3;
/// s390: _REGION_ENTRY_TYPE_R3 and a table length of 4 pages, arch/s390/include/asm/pgtable.h.
const S390_REGION3: u64 = 0x07;
/// s390: _SEGMENT_ENTRY_LARGE (EDAT1): 1 MiB.
const S390_LARGE: u64 = 0x400;
/// s390: _SEGMENT_ENTRY_INVALID and _REGION_ENTRY_INVALID.
const S390_INVALID: u64 = 0x20;

/// Page tables under construction.
#[derive(Debug)]
pub struct Tables {
    /// physical address of the top level table
    pub root: u64,
    /// table pages there are, by physical address and index of the entry that points to each
    known: std::collections::BTreeMap<(u64, u64), u64>,
    below: u64,
}

impl Tables {
    /// A top level at `root`; tables come from pages below PFN `below`.
    pub fn new(root: u64, below: u64) -> Self {
        Self { root, known: std::collections::BTreeMap::new(), below }
    }

    /// The table that entry `index` of `table` points to, made if it is not there.
    fn next(&mut self, memory: &mut Memory, table: u64, index: u64, bits: u64, pages: u64) -> u64 {
        if let Some(at) = self.known.get(&(table, index)) {
            return *at;
        }
        let at = memory.system(pages, pages, self.below);
        memory.word(table + index * memory.arch.word(), at | bits);
        self.known.insert((table, index), at);
        at
    }

    /// Maps `va` to `pa` with a leaf of 4 KiB, or of 2 MiB (4 MiB on i386, 1 MiB on s390x) if `large`.
    pub fn map(&mut self, memory: &mut Memory, va: u64, pa: u64, large: bool) {
        match memory.arch {
            Arch::X86_64 => {
                let index = |level: u32| va >> (12 + 9 * level) & 511;
                let mut table = self.root;
                for level in [3, 2] {
                    table = self.next(memory, table, index(level), X86_TABLE, 1);
                }
                if large {
                    memory.word(table + index(1) * 8, pa | X86_LEAF);
                } else {
                    table = self.next(memory, table, index(1), X86_TABLE, 1);
                    memory.word(table + index(0) * 8, pa | X86_TABLE);
                }
            }
            Arch::I386 => {
                assert!(large, "i386: 4 MiB leaves only");
                memory.word(self.root + (va >> 22) * 4, pa | X86_LEAF);
            }
            Arch::S390x => {
                assert!(large, "s390x: 1 MiB leaves only");
                let fresh = !self.known.contains_key(&(self.root, va >> 31));
                let segments = self.next(memory, self.root, va >> 31, S390_REGION3, 4);
                if fresh {
                    (0..2048).for_each(|i| memory.word(segments + i * 8, S390_INVALID));
                }
                memory.word(segments + (va >> 20 & 2047) * 8, pa | S390_LARGE);
            }
            Arch::Ppc64 | Arch::Ppc32 => {}
        }
    }

    /// Length of the top level table in bytes.
    pub fn root_len(arch: Arch) -> u64 {
        if arch == Arch::S390x { 0x4000 } else { 0x1000 }
    }

    /// Entries of an empty top level table.
    pub fn clear(&self, memory: &mut Memory) {
        if memory.arch == Arch::S390x {
            (0..2048).for_each(|i| memory.word(self.root + i * 8, S390_INVALID | 0x04));
        }
    }

    /// Maps RAM in the linear map and the kernel's image.
    pub fn map_ram(&mut self, memory: &mut Memory) {
        let step = match memory.arch {
            Arch::X86_64 => 0x20_0000,
            Arch::I386 => 0x40_0000,
            Arch::S390x => 0x10_0000,
            Arch::Ppc64 | Arch::Ppc32 => return,
        };
        let shift = memory.arch.page_shift();
        let starts: std::collections::BTreeSet<u64> =
            memory.pieces.iter().flat_map(|p| ((p.start << shift) / step..(p.end << shift).div_ceil(step)).map(|n| n * step)).collect();
        for at in starts {
            let va = memory.linear(at);
            self.map(memory, va, at, true);
        }
        if memory.arch == Arch::X86_64 {
            let va = memory.arch.image_va(memory.version);
            self.map(memory, va, memory.arch.image_at(), true);
        }
    }
}
