//! x86_64: four or five levels of 512 entries, leaves of 4 KiB, 2 MiB and 1 GiB.

use super::{Candidate, Linear, Question, Search, Ways};
use crate::paging::{Format, Leaf, Level, Paging};

/// `__START_KERNEL_map` (arch/x86/include/asm/page_64_types.h).
const START_KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;
/// Largest `KERNEL_IMAGE_SIZE`, with KASLR.
const IMAGE_SIZE: u64 = 1 << 30;
/// `CONFIG_PHYSICAL_ALIGN` is at least this.
const ALIGN: u64 = 2 << 20;

/// How far the image was moved in physical memory (arch/x86/kernel/vmcore_info_64.c).
const PHYS_BASE: &str = "phys_base";

const SHIFTS: [u32; 5] = [48, 39, 30, 21, 12];

/// Names of the top table: since 4.15, since 2.6.25 or so, before.
const ROOTS: [&str; 3] = ["init_top_pgt", "swapper_pg_dir", "init_level4_pgt"];

fn paging(root: u64, levels: usize, sme_mask: u64) -> Paging {
    let shifts = SHIFTS.iter().skip(SHIFTS.len() - levels);
    Paging {
        // The low bits of a value taken from CR3 are no address.
        root: root & 0x000f_ffff_ffff_f000 & !sme_mask,
        levels: shifts.map(|&shift| Level { shift, bits: 9, leaf: matches!(shift, 21 | 30) }).collect(),
        format: Format {
            entry: 8,
            big_endian: false,
            present: 1,
            leaf: Leaf::Bit(7),
            // SDM table 4-15 and following: bits 12 to 51; PAT of a large leaf (bit 12) lies below its address.
            address: 0x000f_ffff_ffff_f000 & !sme_mask,
            moved: None,
            no_execute: 1 << 63,
            writable: 2,
            read_only: 0,
            inherit: true,
            plain_top: false,
        },
        va_bits: if levels == 5 { 57 } else { 48 },
        upper_half: false,
    }
}

/// The map of all RAM where KASLR does not move it, newest first (`__PAGE_OFFSET_BASE`, PAGE_OFFSET of each release).
fn direct(levels: usize, release: &str) -> Linear {
    let version = coresift_sdk::linux::Version::parse(release);
    let before = |a, b, c| version.is_some_and(|v| v < coresift_sdk::linux::Version(a, b, c));
    let start: u64 = match levels {
        5 => 0xff11_0000_0000_0000,
        _ if before(2, 6, 27) => 0xffff_8100_0000_0000,
        _ if before(4, 20, 0) => 0xffff_8800_0000_0000,
        _ => 0xffff_8880_0000_0000,
    };
    Linear { start, last: start + (1 << 46) - 1, paddr: 0 }
}

pub(super) fn ways(question: &Question<'_>) -> Option<Ways> {
    let info = question.info;
    let roots: Vec<u64> = ROOTS.iter().filter_map(|name| info.symbol(name)).collect();
    let sme_mask = info.number("sme_mask").map_or(0, i64::cast_unsigned);
    // A mask is one bit above the page; a damaged one must not eat address bits that every machine has.
    let sme_mask = if sme_mask.is_power_of_two() && sme_mask >= 1 << 32 { sme_mask } else { 0 };
    let levels: Vec<usize> = match info.number("pgtable_l5_enabled") {
        Some(0) => vec![4, 5],
        Some(_) => vec![5, 4],
        None => vec![4, 5],
    };
    let release = info.release().unwrap_or_default().to_owned();
    let at = move |phys_base: u64| -> Vec<Candidate> {
        let image = Linear { start: START_KERNEL_MAP, last: START_KERNEL_MAP + IMAGE_SIZE - 1, paddr: phys_base };
        let mut candidates = Vec::new();
        for &count in &levels {
            for root in &roots {
                let Some((paddr, _)) = image.translate(*root) else { continue };
                candidates.push(Candidate {
                    image,
                    paging: Some(paging(paddr, count, sme_mask)),
                    direct: Some(direct(count, &release)),
                    phys_base: Some(phys_base),
                    what: format!("x86_64, {count} levels, phys_base {phys_base:#x}"),
                });
            }
        }
        if let Some(&count) = levels.first() {
            candidates.push(Candidate {
                image,
                paging: None,
                direct: Some(direct(count, &release)),
                phys_base: Some(phys_base),
                what: format!("x86_64, no page tables, phys_base {phys_base:#x}"),
            });
        }
        candidates
    };
    // Where the image begins, physical and virtual addresses differ by a multiple of the alignment.
    let anchor = ["_stext", "init_uts_ns", "swapper_pg_dir"].iter().find_map(|name| info.symbol(name))?;
    let image_start = anchor & !(ALIGN - 1);
    let into_image = image_start.wrapping_sub(START_KERNEL_MAP);
    // What the kernel says; what the input's header says; where a kernel is that was not moved.
    let mut bases: Vec<u64> =
        info.number(PHYS_BASE).map(i64::cast_unsigned).into_iter().chain(question.machine.phys_base).chain([0]).collect();
    bases.dedup();
    let told = bases.into_iter().flat_map(&at).collect();
    let search = Search { image_start, align: ALIGN, at: Box::new(move |start| at(start.wrapping_sub(into_image))) };
    Some(Ways { told, number: PHYS_BASE, search: Some(search) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paging::{Fault, Mapping};
    use crate::testing::Tables;

    const PRESENT_RW: u64 = 3;

    #[test]
    fn four_levels_with_every_leaf() {
        // SDM volume 3, 4.5: PML4E, PDPTE, PDE, PTE; PS is bit 7; XD is bit 63.
        let mut memory = Tables::default();
        let v = 0xffff_8880_4030_2123_u64;
        let (i4, i3, i2, i1) = (v >> 39 & 511, v >> 30 & 511, v >> 21 & 511, v >> 12 & 511);
        memory.put64(0x1000 + i4 * 8, 0x2000 | PRESENT_RW);
        memory.put64(0x2000 + i3 * 8, 0x3000 | PRESENT_RW);
        memory.put64(0x3000 + i2 * 8, 0x4000 | PRESENT_RW);
        memory.put64(0x4000 + i1 * 8, 0x0008_7654_3210_0000 | 1 | 1 << 63);
        let p = paging(0x1000, 4, 0);
        let found = p.translate(&memory, v).unwrap();
        assert_eq!(found, Mapping { paddr: 0x0008_7654_3210_0123, len: 0x1000 - 0x123, executable: false, writable: false });
        memory.put64(0x3000 + i2 * 8, 0x1_2340_0000 | PRESENT_RW | 1 << 7 | 1 << 12);
        let found = p.translate(&memory, v).unwrap();
        assert_eq!((found.paddr, found.len), (0x1_2340_0000 + (v & 0x1f_ffff), 0x20_0000 - (v & 0x1f_ffff)), "2 MiB, PAT set");
        assert!(found.executable && found.writable);
        memory.put64(0x2000 + i3 * 8, 0x80_0000_0000 | PRESENT_RW | 1 << 7);
        assert_eq!(p.translate(&memory, v).unwrap().paddr, 0x80_0000_0000 + (v & 0x3fff_ffff), "1 GiB");
        assert_eq!(p.translate(&memory, v + (1 << 39)), Err(Fault::NotPresent(v + (1 << 39), 0, 0x1000 + (i4 + 1) * 8)));
        assert_eq!(p.translate(&memory, 0x0001_8880_4030_2123), Err(Fault::Outside(0x0001_8880_4030_2123)));
    }

    #[test]
    fn five_levels_and_the_encryption_bit() {
        let mut memory = Tables::default();
        let v = 0xff11_0000_0020_0fff_u64;
        let c_bit = 1 << 51;
        let index = |shift: u32| (v >> shift & 511) * 8;
        memory.put64(0x1000 + index(48), 0x2000 | 3 | c_bit);
        memory.put64(0x2000 + index(39), 0x3000 | 3 | c_bit);
        memory.put64(0x3000 + index(30), 0x4000 | 3 | c_bit);
        memory.put64(0x4000 + index(21), 0x5000 | 3 | c_bit);
        memory.put64(0x5000 + index(12), 0x0000_1234_5678_9000 | 3 | c_bit);
        assert_eq!(paging(0x1000, 5, c_bit).translate(&memory, v).unwrap().paddr, 0x0000_1234_5678_9fff);
        assert!(paging(0x1000, 5, 0).translate(&memory, v).is_err(), "without the mask the next table is nowhere");
        assert!(paging(0x1000, 4, c_bit).translate(&memory, v).is_err(), "not canonical with 48 bits");
    }

    #[test]
    fn a_table_that_leads_to_itself_ends() {
        let mut memory = Tables::default();
        (0..512).for_each(|i| memory.put64(0x1000 + i * 8, 0x1000 | PRESENT_RW));
        assert_eq!(paging(0x1000, 4, 0).translate(&memory, u64::MAX).unwrap().paddr, 0x1fff);
    }
}
