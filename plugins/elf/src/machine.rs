//! The machine that crashed, by the ELF header and VMCOREINFO.

use crate::header::FileHeader;
use crate::notes::Notes;
use coresift_sdk::arch::{self, Architecture, is_page_size};
use coresift_sdk::{Machine, UtsName, vmcoreinfo_value};

/// Longest field of `struct new_utsname`, without its NUL (`__NEW_UTS_LEN`, include/uapi/linux/utsname.h).
const UTS_LEN: usize = 64;

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
            Ok(size) if !arch.page_size_varies && is_page_size(size) && size != arch.page_size => {
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
    if arch.page_size_varies {
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

/// The architecture of a header; one without a name if it is unknown.
fn architecture(header: &FileHeader) -> Architecture {
    let class = header.class_bits();
    let unknown = Architecture {
        name: "",
        elf_machine: header.machine,
        word_bits: class,
        big_endian: header.big_endian(),
        page_size: 4096,
        page_size_varies: true,
    };
    arch::by_elf(header.machine, class, header.big_endian()).copied().unwrap_or(unknown)
}
