//! The machine's RAM: sparse pages, typed writes, and who got which page.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::arch::Arch;
use super::layout::Version;

/// RAM under construction.
#[derive(Debug)]
pub struct Memory {
    /// machine
    pub arch: Arch,
    /// kernel version, for the address layout
    pub version: Version,
    /// the PFNs there are, ascending
    pub pieces: Vec<Range<u64>>,
    pages: BTreeMap<u64, Vec<u8>>,
    pool: BTreeSet<u64>,
    /// pages of the kernel's own structures: image, tables, mem_map
    pub system: BTreeSet<u64>,
    image: Range<u64>,
}

impl Memory {
    /// Empty RAM of these pieces, with the kernel's image of 1 MiB taken.
    pub fn new(arch: Arch, version: Version, pieces: Vec<Range<u64>>) -> Self {
        let pool: BTreeSet<u64> = pieces.iter().cloned().flatten().collect();
        let image = arch.image_at()..arch.image_at() + 0x10_0000;
        let mut memory = Self { arch, version, pieces, pages: BTreeMap::new(), pool, system: BTreeSet::new(), image };
        let shift = arch.page_shift();
        for pfn in memory.image.start >> shift..memory.image.end >> shift {
            assert!(memory.pool.remove(&pfn), "the image must be in RAM");
            memory.system.insert(pfn);
        }
        memory
    }

    /// PAGE_SIZE
    pub fn page_size(&self) -> u64 {
        1 << self.arch.page_shift()
    }

    /// Is there RAM?
    pub fn has(&self, pfn: u64) -> bool {
        self.pieces.iter().any(|piece| piece.contains(&pfn))
    }

    /// Writes at a physical address; what is not RAM stays away.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let size = self.page_size();
        for (i, byte) in bytes.iter().enumerate() {
            let at = at + i as u64;
            let pfn = at / size;
            if *byte == 0 && !self.pages.contains_key(&pfn) || !self.has(pfn) {
                continue;
            }
            self.pages.entry(pfn).or_insert_with(|| vec![0; size as usize])[(at % size) as usize] = *byte;
        }
    }

    /// A number of `width` bytes in the machine's byte order.
    pub fn bytes(&self, value: u64, width: u64) -> Vec<u8> {
        let width = width as usize;
        if self.arch.big() { value.to_be_bytes()[8 - width..].to_vec() } else { value.to_le_bytes()[..width].to_vec() }
    }

    /// Writes a number of `width` bytes.
    pub fn number(&mut self, at: u64, value: u64, width: u64) {
        let bytes = self.bytes(value, width);
        self.write(at, &bytes);
    }

    /// Writes a long or pointer.
    pub fn word(&mut self, at: u64, value: u64) {
        self.number(at, value, self.arch.word());
    }

    /// Room in the kernel's image: physical and virtual address.
    #[track_caller]
    pub fn image(&mut self, len: u64, align: u64) -> (u64, u64) {
        let at = self.image.start.next_multiple_of(align);
        self.image.start = at + len;
        assert!(self.image.start <= self.image.end, "the image is full");
        (at, at - self.arch.image_at() + self.arch.image_va(self.version))
    }

    /// Address in the linear map.
    pub fn linear(&self, at: u64) -> u64 {
        at + self.arch.linear(self.version)
    }

    /// The highest free run of pages for the kernel's own use, aligned to `align` pages: its physical address.
    #[track_caller]
    pub fn system(&mut self, pages: u64, align: u64, below: u64) -> u64 {
        let fits = |start: &u64| (*start..*start + pages).all(|pfn| self.pool.contains(&pfn));
        let last = *self.pool.range(..below).next_back().expect("free pages");
        let start = (0..=last / align).rev().map(|n| n * align).find(fits).expect("room for the kernel's structures");
        for pfn in start..start + pages {
            self.pool.remove(&pfn);
            self.system.insert(pfn);
        }
        start << self.arch.page_shift()
    }

    /// The lowest free block of this order within `range`.
    pub fn take(&mut self, order: u32, range: Range<u64>) -> Option<u64> {
        self.take_if(order, range, |pfn| pfn % (1 << order) == 0)
    }

    /// The lowest free run of `1 << order` pages whose start fulfils a condition.
    pub fn take_if(&mut self, order: u32, range: Range<u64>, condition: impl Fn(u64) -> bool) -> Option<u64> {
        let whole = |start: &u64| (*start..*start + (1 << order)).all(|pfn| self.pool.contains(&pfn));
        let start = self.pool.range(range).copied().filter(|pfn| condition(*pfn)).find(whole)?;
        (start..start + (1 << order)).for_each(|pfn| {
            self.pool.remove(&pfn);
        });
        Some(start)
    }

    /// Pages nobody took.
    pub fn rest(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.pool)
    }

    /// A page's bytes, if any is not zero.
    pub fn page(&self, pfn: u64) -> Option<&[u8]> {
        self.pages.get(&pfn).map(Vec::as_slice).filter(|bytes| bytes.iter().any(|b| *b != 0))
    }
}
