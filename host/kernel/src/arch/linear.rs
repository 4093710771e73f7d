//! Architectures whose page tables are not read yet: only their map of all RAM, as rows of a table.

use super::{Candidate, Linear, Question, Ways};

/// A kernel's map of all RAM.
struct Row {
    arches: &'static [&'static str],
    start: u64,
    last: u64,
    /// it begins where RAM begins, not at physical 0
    from_ram: bool,
}

const fn row(arches: &'static [&'static str], start: u64, last: u64) -> Row {
    Row { arches, start, last, from_ram: false }
}

const MIB_32: u64 = u32::MAX as u64;

/// Sources: PAGE_OFFSET, KERNELBASE, XKPHYS, CACHE_BASE of each architecture's headers.
const TABLE: [Row; 9] = [
    row(&["ppc64", "ppc64le"], 0xc000_0000_0000_0000, 0xc00f_ffff_ffff_ffff),
    row(&["ppc", "ppc32"], 0xc000_0000, MIB_32),
    row(&["s390x", "s390"], 0, 0x001f_ffff_ffff_ffff),
    row(&["mips"], 0x8000_0000, 0x9fff_ffff),
    row(&["mips64"], 0xffff_ffff_8000_0000, 0xffff_ffff_9fff_ffff),
    row(&["mips64"], 0x9800_0000_0000_0000, 0x9fff_ffff_ffff_ffff),
    Row { from_ram: true, ..row(&["arm", "armv7l", "armv6l", "armv5tel", "armv7b"], 0xc000_0000, MIB_32) },
    row(&["loongarch64"], 0x9000_0000_0000_0000, 0x9000_ffff_ffff_ffff),
    row(&["loongarch64"], 0x8000_0000_0000_0000, 0x8000_ffff_ffff_ffff),
];

pub(super) fn ways(question: &Question<'_>) -> Option<Ways> {
    let arch = question.machine.arch.as_str();
    if arch == "riscv64" {
        return riscv64(question);
    }
    let rows = TABLE.iter().filter(|row| row.arches.contains(&arch));
    let told: Vec<_> = rows
        .map(|row| {
            let image = Linear { start: row.start, last: row.last, paddr: if row.from_ram { question.ram_start } else { 0 } };
            Candidate {
                image,
                paging: None,
                direct: Some(image),
                phys_base: None,
                what: format!("{arch}, map of all RAM at {:#x} only", row.start),
            }
        })
        .collect();
    (!told.is_empty()).then_some(Ways { told, number: "", search: None })
}

/// `KERNEL_LINK_ADDR` of riscv64: the last 2 GiB (Documentation/arch/riscv/vm-layout.rst).
const RISCV_IMAGE: u64 = 0xffff_ffff_8000_0000;

/// riscv64 exports the distances of both its maps (arch/riscv/kernel/vmcore_info.c), since Linux 6.0.
fn riscv64(question: &Question<'_>) -> Option<Ways> {
    let number = |name: &str| question.info.number(name).map(i64::cast_unsigned);
    let offset = number("va_kernel_pa_offset")?;
    let image = Linear { start: RISCV_IMAGE, last: u64::MAX, paddr: RISCV_IMAGE.wrapping_sub(offset) };
    let direct = || {
        let (start, paddr) = (number("PAGE_OFFSET")?, number("phys_ram_base")?);
        // The map takes a quarter of the address space of a mode (vm-layout.rst: 64 TiB of sv48, 32 PiB of sv57).
        let bits = number("VA_BITS").and_then(|bits| u32::try_from(bits).ok()).filter(|bits| (39..=57).contains(bits))?;
        let last = start.checked_add((1u64 << (bits - 2)) - 1)?;
        Some(Linear { start, last: last.min(RISCV_IMAGE - 1), paddr })
    };
    let what = format!("riscv64, image and map of all RAM only, va_kernel_pa_offset {offset:#x}");
    let told = vec![Candidate { image, paging: None, direct: direct(), phys_base: None, what }];
    Some(Ways { told, number: "va_kernel_pa_offset", search: None })
}
