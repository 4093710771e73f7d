//! i386: two levels of 4-byte entries, or three of 8-byte entries with PAE; RAM below 896 MiB is mapped at PAGE_OFFSET.

use super::{Candidate, Linear, Question, Ways};
use crate::paging::{Format, Leaf, Level, Paging};

/// `PAGE_OFFSET` with the default split of 3 GiB to 1 GiB (CONFIG_PAGE_OFFSET), and the other splits there are.
const PAGE_OFFSETS: [u64; 4] = [0xc000_0000, 0xb000_0000, 0x8000_0000, 0x4000_0000];

fn format(entry: usize) -> Format {
    Format {
        entry,
        big_endian: false,
        present: 1,
        leaf: Leaf::Bit(7),
        address: if entry == 4 { 0xffff_f000 } else { 0x000f_ffff_ffff_f000 },
        moved: None,
        no_execute: if entry == 8 { 1 << 63 } else { 0 },
        writable: 2,
        read_only: 0,
        inherit: true,
        plain_top: entry == 8,
    }
}

/// Page directory of 4 MiB leaves and tables of 4 KiB pages (SDM volume 3, 4.3).
fn two_levels(root: u64) -> Paging {
    let levels = vec![Level { shift: 22, bits: 10, leaf: true }, Level { shift: 12, bits: 10, leaf: false }];
    Paging { root, levels, format: format(4), va_bits: 32, upper_half: false }
}

/// PAE (SDM volume 3, 4.4). Bits 1 and 63 of the entries of the top table are reserved (table 4-8): no rules there.
fn pae(root: u64) -> Paging {
    let levels = vec![
        Level { shift: 30, bits: 2, leaf: false },
        Level { shift: 21, bits: 9, leaf: true },
        Level { shift: 12, bits: 9, leaf: false },
    ];
    Paging { root, levels, format: format(8), va_bits: 32, upper_half: false }
}

pub(super) fn ways(question: &Question<'_>) -> Option<Ways> {
    let root = question.info.symbol("swapper_pg_dir");
    let mut told = Vec::new();
    for start in PAGE_OFFSETS {
        let image = Linear { start, last: u64::from(u32::MAX), paddr: 0 };
        let make = |paging: Option<Paging>, what: &str| Candidate {
            image,
            paging,
            direct: Some(image),
            phys_base: None,
            what: format!("i386, {what}, PAGE_OFFSET {start:#x}"),
        };
        if let Some((paddr, _)) = root.and_then(|r| image.translate(r)) {
            told.push(make(Some(pae(paddr)), "PAE"));
            told.push(make(Some(two_levels(paddr)), "2 levels"));
        }
        told.push(make(None, "no page tables"));
    }
    Some(Ways { told, number: "", search: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tables;

    #[test]
    fn two_levels_with_both_leaves() {
        let mut memory = Tables::default();
        let v = 0xc040_3abc_u64;
        memory.put(0x1000 + (v >> 22) * 4, &(0x2000u32 | 3).to_le_bytes());
        memory.put(0x2000 + (v >> 12 & 1023) * 4, &(0x0765_4000u32 | 1).to_le_bytes());
        let found = two_levels(0x1000).translate(&memory, v).unwrap();
        assert_eq!((found.paddr, found.len, found.writable), (0x0765_4abc, 0x1000 - 0xabc, false));
        memory.put(0x1000 + (v >> 22) * 4, &(0x0040_0000u32 | 3 | 1 << 7).to_le_bytes());
        assert_eq!(two_levels(0x1000).translate(&memory, v).unwrap().paddr, 0x0040_3abc, "4 MiB");
        assert!(two_levels(0x1000).translate(&memory, v | 1 << 32).is_err());
    }

    #[test]
    fn pae_reaches_above_4_gib() {
        let mut memory = Tables::default();
        let v = 0xf7c0_1010_u64;
        memory.put64(0x1000 + (v >> 30) * 8, 0x2000 | 1);
        memory.put64(0x2000 + (v >> 21 & 511) * 8, 0x3000 | 3);
        memory.put64(0x3000 + (v >> 12 & 511) * 8, 0xa_0000_0000 | 3 | 1 << 63);
        let found = pae(0x1000).translate(&memory, v).unwrap();
        assert_eq!((found.paddr, found.executable, found.writable), (0xa_0000_0010, false, true));
        memory.put64(0x3000 + (v >> 12 & 511) * 8, 0xa_0000_0000 | 1);
        let found = pae(0x1000).translate(&memory, v).unwrap();
        assert!(found.executable && !found.writable, "text is not writable: {found:?}");
        memory.put64(0x2000 + (v >> 21 & 511) * 8, 0xa_0020_0000 | 1 | 1 << 7);
        let found = pae(0x1000).translate(&memory, v).unwrap();
        assert_eq!(
            (found.paddr, found.len, found.writable),
            (0xa_0020_1010 - 0x1000 + (v & 0x1f_f000), 0x20_0000 - (v & 0x1f_ffff), false),
            "2 MiB"
        );
    }
}
