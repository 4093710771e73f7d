//! ELF header, program headers and section header 0.
//!
//! Structures and numbers are those of the System V ABI, chapter 4 "Object Files" and chapter 5 "Program Header", as
//! include/uapi/linux/elf.h has them.

use std::ops::Range;

use coresift_sdk::{Error, Machine};

/// `EI_MAG0` to `EI_MAG3`: the first four bytes.
pub const MAGIC: &[u8; 4] = b"\x7fELF";

/// `e_flags` bit by which makedumpfile marks an ELF file that it could not finish (`DUMP_ELF_INCOMPLETE`, elf_info.h of
/// makedumpfile); crash reads it.
pub const INCOMPLETE: u32 = 0x1;

/// `e_phnum` of a file with this many program headers or more; their number is then `sh_info` of section header 0.
pub const PN_XNUM: u16 = 0xffff;

/// `e_type` of a core file.
const ET_CORE: u16 = 4;

/// `EI_VERSION` and `e_version`.
const EV_CURRENT: u8 = 1;

/// `p_flags` of memory: `PF_R | PF_W | PF_X`, as kexec has them; pages of different rights share a segment.
const RWX: u32 = 7;

/// Alignment of notes in bytes. Not 8, even in ELF64: elfutils and gdb then align the notes' texts to 8 bytes.
pub const NOTE_ALIGN: usize = 4;

/// Class of a file: how wide its addresses and offsets are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// `ELFCLASS32`
    Elf32,
    /// `ELFCLASS64`
    Elf64,
}

/// Class and byte order of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// width of addresses
    pub class: Class,
    /// byte order of the machine
    pub big_endian: bool,
}

/// `p_type`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentType {
    /// `PT_LOAD`
    Load = 1,
    /// `PT_NOTE`
    Note = 4,
}

/// A program header.
#[derive(Debug, Clone, Copy)]
pub struct ProgramHeader {
    /// `p_type`
    pub kind: SegmentType,
    /// `p_offset`, bytes
    pub offset: u64,
    /// `p_vaddr`
    pub vaddr: u64,
    /// `p_paddr`
    pub paddr: u64,
    /// `p_filesz`, bytes
    pub filesz: u64,
    /// `p_memsz`, bytes
    pub memsz: u64,
    /// `p_align`, bytes
    pub align: u64,
}

impl Format {
    /// A 32-bit value as it stands in the file.
    pub fn word32(self, value: u32) -> [u8; 4] {
        if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() }
    }

    /// A 32-bit value of the file; 0 if it is cut.
    pub fn read32(self, bytes: &[u8]) -> u32 {
        bytes.first_chunk().map_or(0, |&b| if self.big_endian { u32::from_be_bytes(b) } else { u32::from_le_bytes(b) })
    }

    /// `sizeof(Elf32_Ehdr)` or `sizeof(Elf64_Ehdr)`
    pub fn header_len(self) -> u64 {
        if self.class == Class::Elf32 { 52 } else { 64 }
    }

    /// `sizeof(Elf32_Phdr)` or `sizeof(Elf64_Phdr)`
    pub fn program_header_len(self) -> u64 {
        if self.class == Class::Elf32 { 32 } else { 56 }
    }

    /// `sizeof(Elf32_Shdr)` or `sizeof(Elf64_Shdr)`
    pub fn section_header_len(self) -> u64 {
        if self.class == Class::Elf32 { 40 } else { 64 }
    }

    /// Where `e_flags` stands in the file.
    pub fn flags_at(self) -> Range<usize> {
        let at = if self.class == Class::Elf32 { 36 } else { 48 };
        at..at + 4
    }

    /// Where the section header would stand: behind the ELF header and so many program headers.
    pub fn tables_end(self, program_headers: u64) -> u64 {
        self.header_len().saturating_add(program_headers.saturating_mul(self.program_header_len()))
    }

    /// The ELF header of a file with so many program headers, marked incomplete.
    pub fn header(self, elf_machine: u16, program_headers: u64) -> Vec<u8> {
        let mut s = Struct::new(self);
        s.bytes.extend_from_slice(MAGIC);
        s.bytes.push(if self.class == Class::Elf32 { 1 } else { 2 }); // EI_CLASS
        s.bytes.push(if self.big_endian { 2 } else { 1 }); // EI_DATA
        s.bytes.push(EV_CURRENT);
        s.bytes.resize(16, 0); // EI_OSABI, EI_ABIVERSION, padding: none, as kexec
        s.half(ET_CORE);
        s.half(elf_machine);
        s.word(EV_CURRENT.into());
        s.wide(0); // e_entry
        s.wide(self.header_len());
        let extended = needs_section(program_headers);
        s.wide(if extended { self.tables_end(program_headers) } else { 0 });
        s.word(INCOMPLETE);
        s.half(self.header_len() as u16);
        s.half(self.program_header_len() as u16);
        s.half(if extended { PN_XNUM } else { program_headers as u16 });
        s.half(if extended { self.section_header_len() as u16 } else { 0 });
        s.half(extended.into()); // e_shnum
        s.half(0); // e_shstrndx: SHN_UNDEF
        s.bytes
    }

    /// Section header 0, which holds what does not fit into the ELF header; empty if all fits.
    pub fn section(self, program_headers: u64) -> Vec<u8> {
        if !needs_section(program_headers) {
            return Vec::new();
        }
        let mut s = Struct::new(self);
        s.word(0); // sh_name
        s.word(0); // sh_type: SHT_NULL
        s.wide(0); // sh_flags
        s.wide(0); // sh_addr
        s.wide(0); // sh_offset
        s.wide(1); // sh_size: the number of section headers
        s.word(0); // sh_link: the index of the string table
        s.word(program_headers as u32); // sh_info
        s.wide(0); // sh_addralign
        s.wide(0); // sh_entsize
        s.bytes
    }

    /// Adds a program header's bytes to a table.
    pub fn append(self, ph: &ProgramHeader, table: &mut Vec<u8>) {
        let mut s = Struct { format: self, bytes: std::mem::take(table) };
        let flags = if ph.kind == SegmentType::Load { RWX } else { 0 };
        s.word(ph.kind as u32);
        if self.class == Class::Elf64 {
            s.word(flags);
        }
        for field in [ph.offset, ph.vaddr, ph.paddr, ph.filesz, ph.memsz] {
            s.wide(field);
        }
        if self.class == Class::Elf32 {
            s.word(flags);
        }
        s.wide(ph.align);
        *table = s.bytes;
    }
}

/// True if the number of program headers does not fit into `e_phnum`.
fn needs_section(program_headers: u64) -> bool {
    program_headers >= PN_XNUM.into()
}

/// ELF counts program headers with 32 bits.
pub fn too_many(count: u64) -> Error {
    Error::unsupported(format!("the pages need {count} program headers, and ELF cannot count so many"))
        .hint("set holes = \"coarse\", or write a kdump file: output.writer = \"kdump\"")
}

/// A structure being put together field by field. No field needs padding in front in any of them.
struct Struct {
    format: Format,
    bytes: Vec<u8>,
}

impl Struct {
    fn new(format: Format) -> Self {
        Self { format, bytes: Vec::new() }
    }

    fn half(&mut self, value: u16) {
        let bytes = if self.format.big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
        self.bytes.extend_from_slice(&bytes);
    }

    fn word(&mut self, value: u32) {
        self.bytes.extend_from_slice(&self.format.word32(value));
    }

    /// Address, offset or size: as wide as the class. ELF32 is chosen only where all of them fit.
    fn wide(&mut self, value: u64) {
        match (self.format.class, self.format.big_endian) {
            (Class::Elf32, _) => self.word(value as u32),
            (Class::Elf64, true) => self.bytes.extend_from_slice(&value.to_be_bytes()),
            (Class::Elf64, false) => self.bytes.extend_from_slice(&value.to_le_bytes()),
        }
    }
}

/// `e_machine` by `uname -m`, for inputs that are no ELF files and whose reader knows only the name.
///
/// Numbers: include/uapi/linux/elf-em.h.
const BY_NAME: [(&str, u16); 15] = [
    ("x86_64", 62),
    ("i386", 3),
    ("i486", 3),
    ("i586", 3),
    ("i686", 3),
    ("aarch64", 183),
    ("aarch64_be", 183),
    ("armv7l", 40),
    ("ppc64", 21),
    ("ppc64le", 21),
    ("s390x", 22),
    ("riscv64", 243),
    ("loongarch64", 258),
    ("mips64", 8),
    ("sparc64", 43),
];

/// `e_machine` of a machine, 0 (`EM_NONE`) if unknown.
pub fn elf_machine(machine: &Machine) -> u16 {
    if machine.elf_machine != 0 {
        return machine.elf_machine;
    }
    BY_NAME.iter().find(|(name, _)| *name == machine.arch).map_or(0, |(_, number)| *number)
}
