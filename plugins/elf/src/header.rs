//! The ELF header: the first 52 (ELF32) or 64 (ELF64) bytes.
//!
//! Numbers are those of the System V ABI, chapter 4 "Object Files", as goblin names them.

use coresift_sdk::{Error, Result, Source};
use goblin::container::{Container, Ctx, Endian};
use goblin::elf::SectionHeader;
use goblin::elf::header::{EI_CLASS, EI_DATA, ELFCLASS32, ELFCLASS64, ELFDATA2LSB, ELFDATA2MSB, ELFMAG, ET_CORE, ET_DYN, ET_EXEC, ET_REL};
use goblin::elf::header::{Header, header32, header64};

/// `e_phnum` of a file with more program headers than fit in 16 bits; their number is `sh_info` of section header 0
/// (include/uapi/linux/elf.h). Machines with much fragmented memory get there.
const PN_XNUM: u16 = 0xffff;

/// More program headers than this are not believed. The largest real vmcores have some 70,000; this many would be a
/// table of 900 MiB.
const MAX_PROGRAM_HEADERS: u64 = 1 << 24;

/// `e_flags` bit by which makedumpfile marks an ELF file that it could not finish (elf_info.h of makedumpfile).
const DUMP_ELF_INCOMPLETE: u32 = 0x1;

/// What of the ELF header matters for a vmcore.
#[derive(Debug, Clone, Copy)]
pub struct FileHeader {
    /// class and byte order, as goblin's parsers want them
    pub ctx: Ctx,
    /// `e_machine`
    pub machine: u16,
    /// file offset of the program headers. Not always right behind the header: QEMU puts section headers there.
    pub phoff: u64,
    /// bytes from one program header to the next
    pub phentsize: u16,
    /// makedumpfile could not finish this file
    pub incomplete: bool,
    phnum: u16,
    shoff: u64,
}

impl FileHeader {
    /// Reads the header, and refuses what is not the core of a machine or process. The messages say what the file is
    /// instead: they become the reason of a probe.
    ///
    /// # Errors
    /// The file cannot be read or is something else.
    pub fn read(source: &Source) -> Result<Self> {
        let mut bytes = [0; header64::SIZEOF_EHDR];
        let len = source.read_at(0, &mut bytes)?;
        let bytes = bytes.get(..len).unwrap_or_default();
        if bytes.is_empty() {
            return Err(Error::format("the file is empty"));
        }
        if !bytes.starts_with(ELFMAG) {
            return Err(Error::unsupported("not an ELF file"));
        }
        let cut = || Error::format("begins as an ELF file, but ends inside the ELF header").hint("the file is cut; copy it again");
        let order = match bytes.get(EI_DATA).ok_or_else(cut)? {
            &ELFDATA2LSB => Endian::Little,
            &ELFDATA2MSB => Endian::Big,
            other => return Err(Error::unsupported(format!("an ELF file of unknown byte order {other}"))),
        };
        let (container, header) = match bytes.get(EI_CLASS).ok_or_else(cut)? {
            &ELFCLASS32 => (Container::Little, header32::Header::parse(bytes).map(Header::from)),
            &ELFCLASS64 => (Container::Big, header64::Header::parse(bytes).map(Header::from)),
            other => return Err(Error::unsupported(format!("an ELF file of unknown class {other}"))),
        };
        let header = header.map_err(|_| cut())?;
        refuse_other_types(&header)?;
        Ok(Self {
            ctx: Ctx::new(container, order),
            machine: header.e_machine,
            phoff: header.e_phoff,
            phentsize: header.e_phentsize,
            incomplete: header.e_flags & DUMP_ELF_INCOMPLETE != 0,
            phnum: header.e_phnum,
            shoff: header.e_shoff,
        })
    }

    /// Class 32 or 64.
    pub fn class_bits(&self) -> u32 {
        if self.ctx.is_big() { 64 } else { 32 }
    }

    /// True for a big endian file.
    pub fn big_endian(&self) -> bool {
        !self.ctx.is_little_endian()
    }

    /// Number of program headers, with those beyond 16 bits.
    pub fn program_headers(&self, source: &Source, warnings: &mut Vec<String>) -> u64 {
        // Some writers of files with 65,535 headers know nothing of PN_XNUM: without a section header it is a number.
        let count = match self.phnum {
            PN_XNUM => self.section_0(source).map_or(u64::from(PN_XNUM), |section| u64::from(section.sh_info)),
            phnum => u64::from(phnum),
        };
        if count > MAX_PROGRAM_HEADERS {
            warnings.push(format!("the file claims to have {count} program headers; only {MAX_PROGRAM_HEADERS} are looked at"));
        }
        count.min(MAX_PROGRAM_HEADERS)
    }

    fn section_0(&self, source: &Source) -> Option<SectionHeader> {
        if self.shoff == 0 {
            return None;
        }
        let bytes = source.read_vec(self.shoff, SectionHeader::size(self.ctx)).ok()?;
        SectionHeader::parse_from(&bytes, 0, 1, self.ctx).ok()?.into_iter().next()
    }
}

fn refuse_other_types(header: &Header) -> Result<()> {
    let what = match header.e_type {
        ET_CORE if header.e_phnum != 0 => return Ok(()),
        // `xl dump-core` describes memory by sections (.xen_pages, .xen_p2m) instead of program headers.
        ET_CORE if header.e_shnum != 0 => {
            return Err(Error::unsupported("a Xen dump-core file (sections, no program headers): the reader `xen` opens it"));
        }
        ET_CORE => return Err(Error::format("an ELF core file without program headers: it holds no memory")),
        ET_REL => "an object file or a kernel module",
        ET_EXEC => "a kernel image (vmlinux) or a program",
        ET_DYN => "a program or a library",
        _ => "something else",
    };
    Err(Error::unsupported(format!("an ELF file, but no core file: e_type {} is {what}, not a vmcore", header.e_type))
        .hint("give the vmcore as INPUT; a vmlinux goes with -x"))
}
