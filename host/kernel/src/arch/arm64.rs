//! arm64: pages of 4, 16 or 64 KiB, 36 to 52 bits of virtual and up to 52 bits of physical address.

use coresift_sdk::linux::Version;

use super::{Candidate, Linear, Question, Search, Ways};
use crate::paging::{Format, Leaf, Level, Moved, Paging};

/// `MIN_KIMG_ALIGN` (arch/arm64/include/asm/boot.h): the distance of image and physical address is a multiple of it.
const ALIGN: u64 = 2 << 20;
/// How far symbols may lie from `_stext`: the image is at most some 100 MiB, with everything built in.
const IMAGE_BEFORE: u64 = 64 << 20;
const IMAGE_BEHIND: u64 = 512 << 20;
/// Distance of the image's kernel and physical addresses (arch/arm64/kernel/vmcore_info.c).
const VOFFSET: &str = "kimage_voffset";
/// Sizes of the virtual address space that kernels can be built for (CONFIG_ARM64_VA_BITS).
const VA_BITS: [u32; 6] = [48, 39, 42, 47, 36, 52];

/// How the tables of a kernel look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Geometry {
    page_shift: u32,
    /// bits in use (64 - T1SZ)
    va_bits: u32,
    /// bits that the top table is indexed for
    table_bits: u32,
}

impl Geometry {
    /// `configured` is CONFIG_ARM64_VA_BITS. With 64 KiB pages the top table is always that of 52 bits if the kernel can
    /// use them: the upper bits of a shorter address are ones and lead to its end.
    fn new(page_shift: u32, va_bits: u32, configured: u32) -> Self {
        let table_bits = if page_shift == 16 { va_bits.max(configured) } else { va_bits };
        Self { page_shift, va_bits, table_bits }
    }

    fn paging(self, root: u64) -> Paging {
        let per_level = self.page_shift - 3;
        let mut levels = Vec::new();
        let mut shift = self.page_shift;
        // 52 bits with 4 or 16 KiB pages is LPA2 (TCR_EL1.DS): then bits 9:8 hold the address and not the shareability.
        let lpa2 = self.page_shift < 16 && self.va_bits == 52;
        while shift < self.table_bits {
            let bits = per_level.min(self.table_bits - shift);
            // Arm ARM table D8-18: block entries. 4K: 1 GiB, 2 MiB, with DS also 512 GiB; 16K: 32 MiB, with DS also
            // 64 GiB; 64K: 512 MiB, with 52-bit addresses also 4 TiB.
            let leaf = match (self.page_shift, shift) {
                (12, 21 | 30) | (14, 25) | (16, 29 | 42) => true,
                (12, 39) | (14, 36) => lpa2,
                _ => false,
            };
            levels.insert(0, Level { shift, bits, leaf });
            shift += per_level;
        }
        let low = |bits: u32| (1u64 << bits) - 1;
        let (top, moved) = match self.page_shift {
            16 => (48, Some(Moved { from: 12, bits: 4, to: 48 })),
            _ if lpa2 => (50, Some(Moved { from: 8, bits: 2, to: 50 })),
            _ => (48, None),
        };
        Paging {
            root,
            levels,
            format: Format {
                entry: 8,
                big_endian: false,
                present: 1,
                leaf: Leaf::BitClear(1),
                address: low(top) & !low(self.page_shift),
                moved,
                no_execute: 1 << 53, // PXN
                writable: 0,
                read_only: 1 << 7, // AP[2]
                inherit: false,
                plain_top: false,
            },
            va_bits: self.va_bits,
            upper_half: true,
        }
    }
}

pub(super) fn ways(question: &Question<'_>) -> Option<Ways> {
    let info = question.info;
    let page_shift = question.machine.page_shift;
    if !matches!(page_shift, 12 | 14 | 16) {
        return None;
    }
    let big_endian = question.machine.big_endian;
    let anchor = info.symbol("_stext").or_else(|| info.symbol("swapper_pg_dir")).or_else(|| info.symbol("init_uts_ns"))?;
    let number = |name: &str| info.number(name).map(i64::cast_unsigned);
    let bits = |n: Option<u64>| n.and_then(|n| u32::try_from(n).ok()).filter(|n| (36..=52).contains(n));
    let configured = bits(number("VA_BITS"));
    let in_use = bits(number("TCR_EL1_T1SZ").and_then(|t| 64u64.checked_sub(t & 63)));
    // The number of the kernel first, then what a kernel built for 52 bits falls back to, then whatever there is.
    let fallback = if page_shift == 14 { 47 } else { 48 };
    let mut sizes: Vec<u32> = in_use.into_iter().chain(configured).chain([fallback]).chain(VA_BITS).collect();
    let mut seen = Vec::new();
    sizes.retain(|s| {
        !seen.contains(s) && {
            seen.push(*s);
            true
        }
    });
    let root = info.symbol("swapper_pg_dir");
    let flipped = info.release().and_then(Version::parse).is_none_or(|v| v >= Version(5, 4, 0));
    let phys_offset = number("PHYS_OFFSET").unwrap_or(question.ram_start);
    // The map of all RAM: lower half of the kernel's addresses since 5.4, upper half before (commit 14c127c957c1).
    let direct = move |va_bits: u32| {
        let configured = configured.unwrap_or(va_bits);
        let (page_offset, start, last) = if flipped {
            let start = u64::MAX << va_bits;
            (u64::MAX << configured, start, start + ((1u64 << (va_bits - 1)) - 1))
        } else {
            let start = u64::MAX << (va_bits - 1);
            (start, start, u64::MAX)
        };
        Linear { start, last, paddr: start.wrapping_sub(page_offset).wrapping_add(phys_offset) }
    };
    let with = move |offset: u64, va_bits: u32| {
        let start = anchor.saturating_sub(IMAGE_BEFORE);
        let image = Linear { start, last: anchor.saturating_add(IMAGE_BEHIND), paddr: start.wrapping_sub(offset) };
        let geometry = Geometry::new(page_shift, va_bits, configured.unwrap_or(va_bits));
        let paging = root.and_then(|root| image.translate(root)).map(|(paddr, _)| {
            let paging = geometry.paging(paddr);
            Paging { format: Format { big_endian, ..paging.format }, ..paging }
        });
        let what = format!("arm64, pages of {} KiB, {va_bits} bits, kimage_voffset {offset:#x}", 1 << (page_shift - 10));
        Candidate { image, paging, direct: Some(direct(va_bits)), phys_base: None, what }
    };
    let image_start = anchor & !(ALIGN - 1);
    let told = match number(VOFFSET) {
        Some(offset) => sizes.iter().map(|&va_bits| with(offset, va_bits)).collect(),
        // Before 4.6 the image lies in the map of all RAM, whose place depends on the size.
        None => sizes.iter().map(|&va_bits| with(direct(va_bits).start.wrapping_sub(direct(va_bits).paddr), va_bits)).collect(),
    };
    let at = move |start: u64| sizes.iter().map(|&va_bits| with(image_start.wrapping_sub(start), va_bits)).collect();
    Some(Ways { told, number: VOFFSET, search: Some(Search { image_start, align: ALIGN, at: Box::new(at) }) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tables;

    /// Arm ARM D8.3: bits 1:0 are 11 for tables and pages, 01 for blocks.
    const TABLE: u64 = 3;
    const BLOCK: u64 = 1;

    /// Fills the tables on the way to `vaddr` and returns the physical address of the entry of level `depth`.
    fn lead(memory: &mut Tables, paging: &Paging, vaddr: u64, depth: usize) -> u64 {
        let mut table = paging.root;
        for (number, level) in paging.levels.iter().enumerate() {
            let at = table + (vaddr >> level.shift & ((1 << level.bits) - 1)) * 8;
            if number == depth {
                return at;
            }
            table = 0x10_0000 * (number as u64 + 2);
            memory.put64(at, table | TABLE);
        }
        unreachable!()
    }

    #[test]
    fn levels_are_those_of_the_architecture() {
        // Documentation/arch/arm64/memory.rst and Arm ARM D8.2: (page, VA bits) -> levels and bits of the top table.
        let of = |page_shift, va_bits| {
            let paging = Geometry::new(page_shift, va_bits, va_bits).paging(0);
            (paging.levels.len(), paging.levels[0].bits)
        };
        assert_eq!([of(12, 36), of(12, 39), of(12, 48), of(12, 52)], [(3, 6), (3, 9), (4, 9), (5, 4)]);
        assert_eq!([of(14, 36), of(14, 47), of(14, 48), of(14, 52)], [(2, 11), (3, 11), (4, 1), (4, 5)]);
        assert_eq!([of(16, 42), of(16, 48), of(16, 52)], [(2, 13), (3, 6), (3, 10)]);
        let short = Geometry::new(16, 48, 52).paging(0);
        assert_eq!((short.levels.len(), short.levels[0].bits, short.va_bits), (3, 10, 48), "48 bits in a table for 52");
        assert_eq!(Geometry::new(12, 48, 52).paging(0).levels.len(), 4);
    }

    #[test]
    fn pages_and_blocks_of_every_granule() {
        for (page_shift, va_bits, v) in [
            (12, 48, 0xffff_8000_1234_5678_u64),
            (12, 39, 0xffff_ffc0_1234_5678),
            (12, 52, 0xfff0_8000_1234_5678),
            (12, 36, 0xffff_fff0_1234_5678),
            (12, 42, 0xffff_fc00_1234_5678),
            (14, 36, 0xffff_fff0_1234_5678),
            (14, 47, 0xffff_8000_1234_5678),
            (14, 48, 0xffff_8000_1234_5678),
            (14, 52, 0xfff1_8000_1234_5678),
            (16, 42, 0xffff_fc00_1234_5678),
            (16, 48, 0xffff_8000_1234_5678),
            (16, 52, 0xfff2_8000_1234_5678),
        ] {
            let paging = Geometry::new(page_shift, va_bits, va_bits).paging(0x1000_0000);
            let mut memory = Tables::default();
            // Attributes that are no address: AF, SH = inner shareable, contiguous, PXN, UXN.
            let attributes = 1 << 10 | if va_bits == 52 && page_shift < 16 { 0 } else { 3 << 8 } | 1 << 52 | 1 << 53 | 1 << 54;
            for (depth, level) in paging.levels.iter().enumerate() {
                let last = depth + 1 == paging.levels.len();
                if !last && !level.leaf {
                    continue;
                }
                let entry = lead(&mut memory, &paging, v, depth);
                let paddr = 0x0000_4000_0000_0000_u64 & !((1 << level.shift) - 1);
                memory.put64(entry, paddr | attributes | if last { TABLE } else { BLOCK });
                let found = paging.translate(&memory, v).unwrap();
                let within = (1u64 << level.shift) - 1;
                assert_eq!(
                    (found.paddr, found.len),
                    (paddr | v & within, within - (v & within) + 1),
                    "{page_shift} {va_bits} level {depth}"
                );
                assert!(!found.executable && found.writable);
            }
            assert!(paging.translate(&memory, v & 0x0000_ffff_ffff_ffff).is_err(), "TTBR0's half is not the kernel's");
        }
    }

    #[test]
    fn addresses_of_52_bits_stand_in_two_ways() {
        // 64K: PTE[15:12] are PA[51:48].
        let paging = Geometry::new(16, 52, 52).paging(0x1000_0000);
        let (mut memory, v) = (Tables::default(), 0xfff2_8000_1234_5678_u64);
        let entry = lead(&mut memory, &paging, v, 2);
        memory.put64(entry, 0x0000_8765_4321_0000 | 0xa << 12 | TABLE);
        assert_eq!(paging.translate(&memory, v).unwrap().paddr, 0x000a_8765_4321_5678);
        // LPA2, 4K and 16K: PTE[9:8] are PA[51:50], PTE[49:48] are PA[49:48].
        for (page_shift, levels) in [(12, 5), (14, 4)] {
            let paging = Geometry::new(page_shift, 52, 52).paging(0x1000_0000);
            let mut memory = Tables::default();
            let entry = lead(&mut memory, &paging, v, levels - 1);
            memory.put64(entry, 0x0003_8765_4320_0000 | 2 << 8 | TABLE);
            let within = v & ((1 << page_shift) - 1);
            assert_eq!(paging.translate(&memory, v).unwrap().paddr, 0x000b_8765_4320_0000 | within, "{page_shift}");
        }
        // A kernel for 52 bits with 64 KiB pages on a CPU with 48: the top table is still that of 52, its last entries are used.
        let paging = Geometry::new(16, 48, 52).paging(0x1000_0000);
        let (mut memory, v48) = (Tables::default(), 0xffff_8000_1234_5678_u64);
        // Bits 51:42 of the address: 0x3e0, not 0x20 as in a table for 48 bits.
        memory.put64(0x1000_0000 + 0x3e0 * 8, 0x2000_0000 | TABLE);
        memory.put64(0x2000_0000, 0x3000_0000 | TABLE);
        memory.put64(0x3000_0000 + 0x1234 * 8, 0x0000_8765_4321_0000 | TABLE);
        assert_eq!(paging.translate(&memory, v48).unwrap().paddr, 0x0000_8765_4321_5678);
        assert!(paging.translate(&memory, v).is_err(), "beyond 48 bits");
        // The same kernel on a CPU without LPA2: these bits are the shareability.
        let paging = Geometry::new(12, 48, 52).paging(0x1000_0000);
        let (mut memory, v) = (Tables::default(), 0xffff_8000_1234_5678_u64);
        let entry = lead(&mut memory, &paging, v, 3);
        memory.put64(entry, 0x0000_8765_4321_0000 | 3 << 8 | TABLE);
        assert_eq!(paging.translate(&memory, v).unwrap().paddr, 0x0000_8765_4321_0678);
    }
}
