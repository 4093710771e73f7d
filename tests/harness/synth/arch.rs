//! Word size, byte order and address layout of the machines that the images are of.

use super::layout::Version;

/// A machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arch {
    /// little-endian, 64 bits, 4-level page tables
    X86_64,
    /// little-endian, 32 bits, 2-level page tables (no PAE)
    I386,
    /// big-endian, 64 bits, 64 KiB pages, linear map only
    Ppc64,
    /// big-endian, 32 bits, linear map only
    Ppc32,
    /// big-endian, 64 bits, identity map through region and segment tables
    S390x,
}

/// Start of x86's kernel text mapping: `__START_KERNEL_map`, arch/x86/include/asm/page_64_types.h.
pub const TEXT_MAP: u64 = 0xffff_ffff_8000_0000;
/// `__PHYSICAL_START` of x86: CONFIG_PHYSICAL_START defaults to 16 MiB.
pub const TEXT_AT: u64 = 0x100_0000;

impl Arch {
    /// Name for files.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::I386 => "i386",
            Self::Ppc64 => "ppc64",
            Self::Ppc32 => "ppc32",
            Self::S390x => "s390x",
        }
    }

    /// What `uname -m` says.
    pub fn machine_name(self) -> &'static str {
        match self {
            Self::I386 => "i686",
            Self::Ppc32 => "ppc",
            other => other.name(),
        }
    }

    /// `sizeof(long)`.
    pub fn word(self) -> u64 {
        if matches!(self, Self::I386 | Self::Ppc32) { 4 } else { 8 }
    }

    /// Big-endian?
    pub fn big(self) -> bool {
        matches!(self, Self::Ppc64 | Self::Ppc32 | Self::S390x)
    }

    /// e_machine, include/uapi/linux/elf-em.h.
    pub fn machine(self) -> u16 {
        match self {
            Self::X86_64 => 62,
            Self::I386 => 3,
            Self::Ppc64 => 21,
            Self::Ppc32 => 20,
            Self::S390x => 22,
        }
    }

    /// sizeof(struct elf_prstatus).
    pub fn prstatus(self) -> usize {
        match self {
            Self::X86_64 | Self::S390x => 336,
            Self::I386 => 144,
            Self::Ppc64 => 504,
            Self::Ppc32 => 268,
        }
    }

    /// PAGE_SHIFT.
    pub fn page_shift(self) -> u32 {
        if self == Self::Ppc64 { 16 } else { 12 }
    }

    /// SECTION_SIZE_BITS, arch/*/include/asm/sparsemem.h: x86_64 27, i386 without PAE 26, ppc64 24, s390 28.
    pub fn section_bits(self) -> u32 {
        match self {
            Self::X86_64 => 27,
            Self::I386 | Self::Ppc32 => 26,
            Self::Ppc64 => 24,
            Self::S390x => 28,
        }
    }

    /// MAX_PHYSMEM_BITS, arch/*/include/asm/sparsemem.h.
    pub fn physmem_bits(self, version: Version) -> u32 {
        match self {
            // 40 before 2.6.26, 44 before 2.6.31, then 46
            Self::X86_64 if version < (2, 6, 26) => 40,
            Self::X86_64 => 46,
            Self::I386 | Self::Ppc32 => 32,
            // 44, then 46 since 3.7
            Self::Ppc64 => 46,
            // 46 since 2.6.3x
            Self::S390x => 46,
        }
    }

    /// Pages of a section.
    pub fn section_pages(self) -> u64 {
        1 << (self.section_bits() - self.page_shift())
    }

    /// PAGE_OFFSET: start of the linear map.
    pub fn linear(self, version: Version) -> u64 {
        match self {
            // 2.6.27 moved it (include/asm-x86/page_64.h), 4.20 too (d52888aa2753 "x86/mm: Move LDT remap out of KASLR region")
            Self::X86_64 if version < (2, 6, 27) => 0xffff_8100_0000_0000,
            Self::X86_64 if version < (4, 20, 0) => 0xffff_8800_0000_0000,
            Self::X86_64 => 0xffff_8880_0000_0000,
            Self::I386 | Self::Ppc32 => 0xc000_0000,
            Self::Ppc64 => 0xc000_0000_0000_0000,
            Self::S390x => 0,
        }
    }

    /// Start of vmemmap on x86_64 since 2.6.31: Documentation/x86/x86_64/mm.txt.
    pub fn vmemmap(self) -> u64 {
        0xffff_ea00_0000_0000
    }

    /// Physical address of the kernel's image; the images keep its first MiB.
    pub fn image_at(self) -> u64 {
        match self {
            Self::X86_64 | Self::I386 | Self::S390x => TEXT_AT,
            Self::Ppc64 | Self::Ppc32 => 0,
        }
    }

    /// How far KASLR moved the text: 0 without, and before we bother (x86_64 has it since 3.14).
    pub fn kaslr(self, version: Version) -> u64 {
        if self == Self::X86_64 && version >= (5, 4, 0) { 0x1e00_0000 } else { 0 }
    }

    /// Virtual address of the kernel's image.
    pub fn image_va(self, version: Version) -> u64 {
        match self {
            Self::X86_64 => TEXT_MAP + TEXT_AT + self.kaslr(version),
            _ => self.linear(version) + self.image_at(),
        }
    }

    /// LENGTH(zone.free_area): MAX_ORDER is 11; with 64 KiB pages 9 (arch/powerpc/Kconfig, FORCE_MAX_ZONEORDER).
    pub fn orders(self) -> u32 {
        if self == Self::Ppc64 { 9 } else { 11 }
    }

    /// Order of a transparent or hugetlb page: 2 MiB, 4 MiB on i386, 1 MiB on s390x; 16 MiB on ppc64 with the hash MMU.
    pub fn huge_order(self) -> u32 {
        match self {
            Self::X86_64 => 9,
            Self::I386 => 10,
            Self::Ppc64 | Self::S390x => 8,
            Self::Ppc32 => 6,
        }
    }
}
