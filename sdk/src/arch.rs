//! Architectures that Linux dumps: what readers take from a name, or from an ELF header, and from nothing else.

use crate::{Config, Error, ErrorKind, Key, Machine, Result, UtsName};

/// Value of the setting `arch` that leaves the choice to the reader.
pub const AUTO: &str = "auto";

/// Smallest page size of Linux in bytes.
const MIN_PAGE_SIZE: u64 = 4 << 10;

/// Largest page size that is believed, in bytes; Linux has up to 256 KiB.
pub const MAX_PAGE_SIZE: u64 = 1 << 20;

/// An architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Architecture {
    /// as `uname -m` says
    pub name: &'static str,
    /// `e_machine` of the ELF specification (`EM_*`)
    pub elf_machine: u16,
    /// 32 or 64
    pub word_bits: u32,
    /// byte order
    pub big_endian: bool,
    /// the usual page size in bytes
    pub page_size: u64,
    /// its kernels can be built with other page sizes
    pub page_size_varies: bool,
}

const fn little(name: &'static str, elf_machine: u16, word_bits: u32, page_size: u64, page_size_varies: bool) -> Architecture {
    Architecture { name, elf_machine, word_bits, big_endian: false, page_size, page_size_varies }
}

const fn big(name: &'static str, elf_machine: u16, word_bits: u32, page_size: u64, page_size_varies: bool) -> Architecture {
    Architecture { big_endian: true, ..little(name, elf_machine, word_bits, page_size, page_size_varies) }
}

/// All of them, those first that are more common. Some have two names for one `e_machine`, by class or byte order.
const ARCHITECTURES: [Architecture; 21] = [
    little("x86_64", 62, 64, 4096, false),
    little("aarch64", 183, 64, 4096, true),
    big("s390x", 22, 64, 4096, false),
    little("ppc64le", 21, 64, 65536, true),
    little("i686", 3, 32, 4096, false),
    little("armv7l", 40, 32, 4096, false),
    little("riscv64", 243, 64, 4096, false),
    little("loongarch64", 258, 64, 16384, true),
    big("ppc64", 21, 64, 65536, true),
    big("ppc", 20, 32, 4096, true),
    big("s390", 22, 32, 4096, false),
    big("aarch64_be", 183, 64, 4096, true),
    big("armv7b", 40, 32, 4096, false),
    little("riscv32", 243, 32, 4096, false),
    little("loongarch32", 258, 32, 16384, true),
    little("mips64", 8, 64, 4096, true),
    big("mips64", 8, 64, 4096, true),
    big("mips", 8, 32, 4096, true),
    little("mips", 8, 32, 4096, true),
    little("ia64", 50, 64, 16384, true),
    big("sparc64", 43, 64, 8192, false),
];

/// The architecture of this name (`uname -m`), or of a name with a version behind it: `armv6l`, `mips64el`, `i586`.
pub fn by_name(name: &str) -> Option<&'static Architecture> {
    let known = |name: &str| ARCHITECTURES.iter().find(|a| a.name == name);
    match name {
        "" => None,
        "i386" | "i486" | "i586" => known("i686"),
        _ if name.starts_with("arm") => known(name).or_else(|| known("armv7l")),
        _ => known(name).or_else(|| ARCHITECTURES.iter().filter(|a| name.starts_with(a.name)).max_by_key(|a| a.name.len())),
    }
}

/// The architecture of an ELF header. The class says the word size only where both exist: kexec writes ELF64 for 32-bit
/// machines with more than 4 GiB, too.
pub fn by_elf(elf_machine: u16, class_bits: u32, big_endian: bool) -> Option<&'static Architecture> {
    let fits = |a: &&Architecture| (a.word_bits == class_bits, a.big_endian == big_endian);
    let same = || ARCHITECTURES.iter().filter(|a| a.elf_machine == elf_machine);
    same()
        .find(|a| fits(a) == (true, true))
        .or_else(|| same().find(|a| fits(a).0))
        .or_else(|| same().find(|a| fits(a).1))
        .or_else(|| same().next())
}

/// The commonest architecture of a byte order.
pub fn usual(big_endian: bool) -> Option<&'static Architecture> {
    ARCHITECTURES.iter().find(|a| a.big_endian == big_endian)
}

/// True for a power of two from 4 KiB to 1 MiB.
pub fn is_page_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && (MIN_PAGE_SIZE..=MAX_PAGE_SIZE).contains(&bytes)
}

/// The key `arch`, for readers of inputs that do not tell it; its default is [`AUTO`].
pub fn arch_key() -> Key {
    let mut names: Vec<&str> = std::iter::once(AUTO).chain(ARCHITECTURES.iter().map(|a| a.name)).collect();
    names.dedup();
    Key::choice("arch", AUTO, &names, "architecture of the machine, which the image does not tell")
}

/// The key `page_size`, for readers of inputs that may not tell it; 0, the default, leaves it to the architecture.
pub fn page_size_key() -> Key {
    Key::size("page_size", 0, 0, MAX_PAGE_SIZE, "page size of the crashed machine where the input does not tell it; 0 = by architecture")
}

/// Value of the key `page_size` in bytes, 0 if it is not set.
///
/// # Errors
/// It is none that Linux has.
pub fn page_size(config: &Config) -> Result<u64> {
    let bytes = config.size("page_size")?;
    if bytes == 0 || is_page_size(bytes) {
        return Ok(bytes);
    }
    Err(Error::new(ErrorKind::Config, format!("key `page_size`: {bytes} is not a power of two from 4 KiB on")))
}

impl Architecture {
    /// The machine of an image that says nothing of it. `page_size` in bytes, 0 = by architecture, which becomes a warning
    /// where that leaves a choice.
    pub fn machine(&self, page_size: u64) -> Machine {
        let mut warnings = Vec::new();
        let bytes = if page_size == 0 { self.page_size } else { page_size };
        if page_size == 0 && self.page_size_varies {
            let name = self.name;
            warnings.push(format!("the image does not tell its page size: {bytes} is taken for {name}; the setting page_size changes it"));
        }
        Machine {
            arch: self.name.into(),
            elf_machine: self.elf_machine,
            word_bits: self.word_bits,
            big_endian: self.big_endian,
            page_shift: bytes.trailing_zeros(),
            utsname: UtsName { sysname: "Linux".into(), machine: self.name.into(), ..UtsName::default() },
            warnings,
            ..Machine::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_versions_and_elf_headers_lead_to_the_same_machines() {
        let name = |name| by_name(name).map(|a| (a.name, a.elf_machine, a.word_bits));
        assert_eq!(name("armv6l"), Some(("armv7l", 40, 32)));
        assert_eq!(name("i586"), Some(("i686", 3, 32)));
        assert_eq!(name("mips64el"), Some(("mips64", 8, 64)));
        assert_eq!(name("ppc64le"), Some(("ppc64le", 21, 64)));
        assert_eq!(name("aarch64_be"), Some(("aarch64_be", 183, 64)));
        assert_eq!(name(""), None);
        assert_eq!(name("Unknown"), None);
        let elf = |machine, class, order| by_elf(machine, class, order).map(|a| (a.name, a.word_bits));
        assert_eq!(elf(3, 64, false), Some(("i686", 32)), "kexec writes ELF64 for PAE");
        assert_eq!(elf(22, 32, true), Some(("s390", 32)));
        assert_eq!(elf(21, 64, true), Some(("ppc64", 64)));
        assert_eq!(elf(8, 32, false), Some(("mips", 32)));
        assert_eq!(elf(40, 64, true), Some(("armv7b", 32)));
        assert_eq!(elf(1, 64, false), None);
        assert_eq!((usual(false).map(|a| a.name), usual(true).map(|a| a.name)), (Some("x86_64"), Some("s390x")));
    }
}
