//! The machine that crashed, by the ELF header and VMCOREINFO.

use coresift_sdk::{Machine, UtsName, vmcoreinfo_value};
use goblin::elf::header::{
    EM_386, EM_AARCH64, EM_ARM, EM_IA_64, EM_LOONGARCH, EM_MIPS, EM_PPC, EM_PPC64, EM_RISCV, EM_S390, EM_SPARCV9, EM_X86_64,
};

use crate::header::FileHeader;
use crate::notes::Notes;

/// Smallest page size of Linux.
const MIN_PAGE_SIZE: u64 = 4 << 10;

/// Largest page size that is believed; Linux has up to 256 KiB.
pub const MAX_PAGE_SIZE: u64 = 1 << 20;

/// Longest field of `struct new_utsname`, without its NUL (`__NEW_UTS_LEN`, include/uapi/linux/utsname.h).
const UTS_LEN: usize = 64;

/// What an `e_machine` means.
struct Architecture {
    /// as `uname -m` says; empty if unknown
    name: &'static str,
    word_bits: u32,
    page_size: u64,
    /// no kernel of this architecture has another page size
    fixed: bool,
}

/// True for a power of two from 4 KiB to 1 MiB.
pub fn is_page_size(bytes: u64) -> bool {
    bytes.is_power_of_two() && (MIN_PAGE_SIZE..=MAX_PAGE_SIZE).contains(&bytes)
}

/// One line for people, such as `ELF64 vmcore of x86_64`.
pub fn describe(header: &FileHeader) -> String {
    match architecture(header).name {
        "" => format!("{} of unknown architecture (e_machine {})", format_name(header), header.machine),
        name => format!("{} of {name}", format_name(header)),
    }
}

/// The machine; what the segments say (`max_pfn`, `incomplete`) is not yet in it. `page_size` is the setting, 0 = none.
pub fn machine(header: &FileHeader, notes: Notes, page_size: u64, mut warnings: Vec<String>) -> Machine {
    let arch = architecture(header);
    if arch.name.is_empty() {
        warnings.push(format!("e_machine {} is an unknown architecture", header.machine));
    }
    if notes.xen {
        warnings.push("the dump of a Xen hypervisor: page frames are those of the host, not of a domain".into());
    }
    let page_shift = find_page_size(&arch, &notes.vmcoreinfo, page_size, &mut warnings).trailing_zeros();
    let text = notes.vmcoreinfo.as_slice();
    let number = |key| vmcoreinfo_value(text, key).map(str::trim);
    Machine {
        format: format_name(header),
        arch: arch.name.into(),
        elf_machine: header.machine,
        word_bits: arch.word_bits,
        big_endian: header.big_endian(),
        page_shift,
        cpus: notes.cpus,
        utsname: UtsName {
            sysname: "Linux".into(),
            release: uts_field(vmcoreinfo_value(text, "OSRELEASE").unwrap_or_default()),
            machine: arch.name.into(),
            ..UtsName::default()
        },
        crash_time: number("CRASHTIME").and_then(|v| v.parse().ok()).unwrap_or(0),
        // Printed with %ld: negative if the kernel was moved down (arch/x86/kernel/machine_kexec_64.c).
        phys_base: number("NUMBER(phys_base)").and_then(|v| v.parse::<i64>().ok()).map(i64::cast_unsigned),
        warnings,
        hypervisor: notes.xen,
        vmcoreinfo: notes.vmcoreinfo,
        notes: notes.bytes,
        ..Machine::default()
    }
}

fn format_name(header: &FileHeader) -> String {
    format!("ELF{} vmcore", header.class_bits())
}

/// VMCOREINFO knows best, then the person who set the key, then the architecture's usual size.
fn find_page_size(arch: &Architecture, vmcoreinfo: &[u8], setting: u64, warnings: &mut Vec<String>) -> u64 {
    if let Some(text) = vmcoreinfo_value(vmcoreinfo, "PAGESIZE") {
        match text.trim().parse() {
            Ok(size) if arch.fixed && is_page_size(size) && size != arch.page_size => {
                let (name, own) = (arch.name, arch.page_size);
                warnings.push(format!("VMCOREINFO says PAGESIZE={size}, which {name} cannot have: damaged; {own} is taken"));
                return own;
            }
            Ok(size) if is_page_size(size) => {
                if setting != 0 && setting != size {
                    warnings.push(format!("the key page_size = {setting} is not used: VMCOREINFO says {size}"));
                }
                return size;
            }
            _ => warnings.push(format!("VMCOREINFO has a page size that makes no sense: {:?}", uts_field(text))),
        }
    }
    if setting != 0 {
        return setting;
    }
    if !arch.fixed {
        let name = if arch.name.is_empty() { "an unknown architecture" } else { arch.name };
        let size = arch.page_size;
        warnings.push(format!("the input does not tell its page size: {size} is taken for {name}; the key page_size changes it"));
    }
    arch.page_size
}

/// At most as long as the field of the kernel, so that it fits into every output format.
fn uts_field(text: &str) -> String {
    let mut field = String::from(text.trim());
    while field.len() > UTS_LEN {
        field.pop();
    }
    field
}

/// The machines that Linux dumps. Some have two names for one `e_machine`, by class or byte order; the class says the
/// word size only where both exist, since kexec writes ELF64 for 32-bit machines with more than 4 GiB too.
fn architecture(header: &FileHeader) -> Architecture {
    let class = header.class_bits();
    let by_class = |wide, narrow| if class == 64 { wide } else { narrow };
    let by_order = |big, little| if header.big_endian() { big } else { little };
    let (name, word_bits, page_size, fixed) = match header.machine {
        EM_X86_64 => ("x86_64", 64, 4096, true),
        EM_386 => ("i686", 32, 4096, true),
        EM_ARM => (by_order("armv7b", "armv7l"), 32, 4096, true),
        EM_AARCH64 => (by_order("aarch64_be", "aarch64"), 64, 4096, false),
        EM_PPC64 => (by_order("ppc64", "ppc64le"), 64, 65536, false),
        EM_PPC => ("ppc", 32, 4096, false),
        EM_S390 => (by_class("s390x", "s390"), class, 4096, true),
        EM_RISCV => (by_class("riscv64", "riscv32"), class, 4096, true),
        EM_LOONGARCH => (by_class("loongarch64", "loongarch32"), class, 16384, false),
        EM_MIPS => (by_class("mips64", "mips"), class, 4096, false),
        EM_IA_64 => ("ia64", 64, 16384, false),
        EM_SPARCV9 => ("sparc64", 64, 8192, true),
        _ => ("", class, 4096, false),
    };
    Architecture { name, word_bits, page_size, fixed }
}
