//! The machine that crashed, as far as the input itself says.

/// The six fields of `struct new_utsname` (include/uapi/linux/utsname.h), each at most 64 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UtsName {
    /// `Linux`
    pub sysname: String,
    /// host name
    pub nodename: String,
    /// kernel release, `uname -r`
    pub release: String,
    /// build number and date, `uname -v`
    pub version: String,
    /// architecture, `uname -m`
    pub machine: String,
    /// NIS domain
    pub domainname: String,
}

/// What a reader knows of the crashed machine without looking into its memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// the input's format, for people: `ELF64 vmcore`
    pub format: String,
    /// architecture as `uname -m` names it, empty if unknown
    pub arch: String,
    /// `e_machine` of the ELF specification, 0 if unknown
    pub elf_machine: u16,
    /// 32 or 64
    pub word_bits: u32,
    /// byte order of the machine
    pub big_endian: bool,
    /// log2 of the page size in bytes
    pub page_shift: u32,
    /// CPUs that left a register note, 0 if unknown
    pub cpus: u32,
    /// kernel names; empty fields where the input has none
    pub utsname: UtsName,
    /// seconds since 1970 at the crash, 0 if unknown
    pub crash_time: u64,
    /// physical address that the kernel's link address 0 lies at (x86_64 `phys_base`), two's complement
    pub phys_base: Option<u64>,
    /// one behind the highest PFN that the input knows of, RAM or not
    pub max_pfn: u64,
    /// page classes that the input was already filtered by
    pub excluded: crate::ClassSet,
    /// the input says that it is incomplete
    pub incomplete: bool,
    /// all ELF notes, as they stand in the input's PT_NOTE segments, in the machine's byte order
    pub notes: Vec<u8>,
    /// the text of the VMCOREINFO note (a part of `notes`), empty if there is none
    pub vmcoreinfo: Vec<u8>,
    /// the pages are those of a hypervisor's machine: no Linux kernel that is found among them has `struct page`s for them
    pub hypervisor: bool,
    /// codec bit that most pages of the input are stored with, 0 = raw, see [`crate::codec`]
    pub codec: u32,
    /// what was erased on the way here, a line each (`erase SYMBOL.member LENGTH`, the eraseinfo of makedumpfile), empty if
    /// nothing was
    pub erased: Vec<u8>,
    /// oddities of the input that a person should know, one sentence each
    pub warnings: Vec<String>,
}

impl Machine {
    /// Page size in bytes.
    pub fn page_size(&self) -> usize {
        1 << self.page_shift
    }
}

/// Value of `key` in a VMCOREINFO text (`KEY=value` lines), e.g. `PAGESIZE`, `OSRELEASE`, `NUMBER(phys_base)`.
///
/// Source of the format: Documentation/admin-guide/kdump/vmcoreinfo.rst of Linux.
pub fn vmcoreinfo_value<'a>(text: &'a [u8], key: &str) -> Option<&'a str> {
    text.split(|&b| b == b'\n' || b == 0).find_map(|line| {
        let value = line.strip_prefix(key.as_bytes())?.strip_prefix(b"=")?;
        std::str::from_utf8(value).ok()
    })
}
