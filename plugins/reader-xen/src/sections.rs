//! ELF header and section headers of a dump-core file.
//!
//! Numbers are those of the System V ABI, chapter 4 "Object Files", as goblin names them.

use coresift_sdk::{Error, Result, Source};
use goblin::container::{Container, Ctx, Endian};
use goblin::elf::header::{EI_CLASS, EI_DATA, ELFCLASS32, ELFCLASS64, ELFDATA2LSB, ELFDATA2MSB, ELFMAG, ET_CORE};
use goblin::elf::header::{Header, header32, header64};
use goblin::elf::section_header::SHT_NOTE;
use goblin::elf::{SectionHeader, section_header};

use crate::bytes::read_up_to;

/// Name of the section with the notes (docs/misc/dump-core-format.txt of Xen, as all names here).
pub const NOTE: &str = ".note.Xen";
/// Name of the section with a `vcpu_guest_context` for each vCPU.
pub const PRSTATUS: &str = ".xen_prstatus";
/// Name of the section with the pages.
pub const PAGES: &str = ".xen_pages";
/// Name of the index of a paravirtualised domain.
pub const P2M: &str = ".xen_p2m";
/// Name of the index of a domain whose frames the hardware or the hypervisor translates.
pub const PFN: &str = ".xen_pfn";

/// More sections than this are not looked at; Xen writes seven or eight.
const MAX_SECTIONS: u16 = 256;

/// More bytes of section names than this are not looked at; Xen writes 72.
const MAX_NAMES: u64 = 64 << 10;

/// A section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// its name; empty if the names are missing (they stand at the end of the file)
    pub name: String,
    /// `sh_type`
    pub kind: u32,
    /// file offset in bytes
    pub offset: u64,
    /// bytes
    pub size: u64,
    /// bytes of an entry, 0 if the section has none
    pub entry: u64,
}

/// ELF header and section headers.
#[derive(Debug, Clone)]
pub struct Sections {
    /// class and byte order, as goblin's parsers want them
    pub ctx: Ctx,
    /// `e_machine`
    pub machine: u16,
    /// the sections, without the null section
    pub list: Vec<Section>,
    /// the section names could be read
    pub named: bool,
    /// the file ends within the section headers
    pub cut: bool,
}

impl Sections {
    /// Reads them, and refuses what is not a core file of sections only. The messages say what the file is instead: they
    /// become the reason of a probe.
    ///
    /// # Errors
    /// The file cannot be read or is something else.
    pub fn read(source: &Source) -> Result<Self> {
        let (ctx, header) = read_header(source)?;
        let stride = usize::from(header.e_shentsize);
        let size = SectionHeader::size(ctx);
        if stride < size {
            return Err(Error::format(format!("the ELF header says that section headers have {stride} bytes; they need {size}")));
        }
        let count = header.e_shnum.min(MAX_SECTIONS);
        let table = read_up_to(source, header.e_shoff, u64::from(count) * stride as u64)?;
        let mut headers = Vec::new();
        for entry in table.chunks(stride).filter_map(|e| e.get(..size)) {
            headers.extend(SectionHeader::parse_from(entry, 0, 1, ctx).unwrap_or_default());
        }
        let names = match headers.get(usize::from(header.e_shstrndx)) {
            // They stand at the end of the file, where it is cut or damaged first.
            Some(names) => read_up_to(source, names.sh_offset, names.sh_size.min(MAX_NAMES)).unwrap_or_default(),
            None => Vec::new(),
        };
        let sections = headers.iter().filter(|h| h.sh_type != section_header::SHT_NULL).map(|h| Section {
            name: name_at(&names, h.sh_name),
            kind: h.sh_type,
            offset: h.sh_offset,
            size: h.sh_size,
            entry: h.sh_entsize,
        });
        let list: Vec<Section> = sections.collect();
        let named = list.iter().any(|s| s.name == PAGES || s.name == NOTE);
        Ok(Self { ctx, machine: header.e_machine, list, named, cut: headers.len() < usize::from(count) })
    }

    /// The section of this name.
    pub fn named(&self, name: &str) -> Option<&Section> {
        self.list.iter().find(|s| s.name == name)
    }

    /// The notes: by name, or the only section of their type where the names are missing.
    pub fn notes(&self) -> Option<&Section> {
        self.named(NOTE).or_else(|| self.list.iter().find(|s| !self.named && s.kind == SHT_NOTE))
    }

    /// The section of this name; if the names are missing, the one of which `looks` is true.
    pub fn find(&self, name: &str, looks: impl Fn(&Section) -> bool) -> Option<&Section> {
        self.named(name).or_else(|| self.list.iter().find(|s| !self.named && s.kind != SHT_NOTE && looks(s)))
    }
}

fn read_header(source: &Source) -> Result<(Ctx, Header)> {
    let mut bytes = [0; header64::SIZEOF_EHDR];
    let len = source.read_at(0, &mut bytes)?;
    let bytes = bytes.get(..len).unwrap_or_default();
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
        // The first Xen versions with this format wrote ELF32 for 32-bit hosts.
        &ELFCLASS32 => (Container::Little, header32::Header::parse(bytes).map(Header::from)),
        &ELFCLASS64 => (Container::Big, header64::Header::parse(bytes).map(Header::from)),
        other => return Err(Error::unsupported(format!("an ELF file of unknown class {other}"))),
    };
    let header = header.map_err(|_| cut())?;
    if header.e_type != ET_CORE {
        return Err(Error::unsupported(format!("an ELF file, but no core file (e_type {})", header.e_type)));
    }
    if header.e_phnum != 0 || header.e_shnum == 0 || header.e_shoff == 0 {
        return Err(Error::unsupported("an ELF core file without notes of Xen"));
    }
    Ok((Ctx::new(container, order), header))
}

fn name_at(names: &[u8], at: usize) -> String {
    let rest = names.get(at..).unwrap_or_default();
    let name = rest.split(|&b| b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}
