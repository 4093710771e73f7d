//! Architectures by name: what an image without a word about its machine cannot say.

use coresift_sdk::{Machine, UtsName};

/// Value of the setting `arch` that leaves the choice to the reader.
pub const AUTO: &str = "auto";

/// Smallest page size of Linux, bytes.
const MIN_PAGE_SIZE: u64 = 4 << 10;

/// Largest page size that is believed, bytes; Linux has up to 256 KiB.
pub const MAX_PAGE_SIZE: u64 = 1 << 20;

/// What a name of an architecture stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Architecture {
    /// as `uname -m` says
    pub name: &'static str,
    /// `e_machine` of the ELF specification
    pub elf_machine: u16,
    /// 32 or 64
    pub word_bits: u32,
    /// byte order
    pub big_endian: bool,
    /// the usual page size in bytes
    pub page_size: u64,
    /// its kernels can be built with other page sizes
    pub varies: bool,
}

const fn arch(name: &'static str, elf_machine: u16, word_bits: u32, page_size: u64, varies: bool) -> Architecture {
    Architecture { name, elf_machine, word_bits, big_endian: false, page_size, varies }
}

/// The architectures that can be named; the first is taken if none is. `e_machine`: ELF specification (`EM_*`).
pub const ARCHITECTURES: [Architecture; 9] = [
    arch("x86_64", 62, 64, 4096, false),
    arch("aarch64", 183, 64, 4096, true),
    arch("i686", 3, 32, 4096, false),
    arch("armv7l", 40, 32, 4096, false),
    arch("ppc64le", 21, 64, 65536, true),
    Architecture { big_endian: true, ..arch("s390x", 22, 64, 4096, false) },
    Architecture { big_endian: true, ..arch("ppc64", 21, 64, 65536, true) },
    arch("riscv64", 243, 64, 4096, false),
    arch("loongarch64", 258, 64, 16384, true),
];

/// All values of the setting `arch`.
pub fn choices() -> Vec<&'static str> {
    std::iter::once(AUTO).chain(ARCHITECTURES.iter().map(|a| a.name)).collect()
}

/// True for a power of two from 4 KiB to 1 MiB.
pub fn is_page_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && (MIN_PAGE_SIZE..=MAX_PAGE_SIZE).contains(&bytes)
}

/// The machine by the settings `arch` and `page_size` (bytes, 0 = by architecture).
pub fn machine(name: &str, page_size: u64) -> Machine {
    let mut warnings = Vec::new();
    let named = ARCHITECTURES.iter().find(|a| a.name == name);
    let Some(arch) = named.or(ARCHITECTURES.first()) else { return Machine::default() };
    if named.is_none() {
        warnings.push(format!("the image does not tell its architecture: {} is taken (--set input.arch=NAME)", arch.name));
    }
    let bytes = if page_size == 0 { arch.page_size } else { page_size };
    if page_size == 0 && arch.varies {
        let name = arch.name;
        warnings.push(format!("the image does not tell its page size: {bytes} is taken for {name}; the setting page_size changes it"));
    }
    Machine {
        arch: arch.name.into(),
        elf_machine: arch.elf_machine,
        word_bits: arch.word_bits,
        big_endian: arch.big_endian,
        page_shift: bytes.trailing_zeros(),
        utsname: UtsName { sysname: "Linux".into(), machine: arch.name.into(), ..UtsName::default() },
        warnings,
        ..Machine::default()
    }
}
