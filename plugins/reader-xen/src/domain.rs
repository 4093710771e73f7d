//! A dump-core file.

use coresift_elf::segments::PHYSICAL_END;
use coresift_sdk::{Error, Extent, Machine, Reader, Result, Source, UtsName};
use goblin::elf::header::{EM_386, EM_AARCH64, EM_ARM, EM_IA_64, EM_X86_64};

use crate::bytes::read_up_to;
use crate::image::{Entries, Memory, View};
use crate::index::{Builder, Index, Place, Run, Runs};
use crate::notes::{self, DumpCore};
use crate::registers;
use crate::sections::{P2M, PAGES, PFN, PRSTATUS, Section, Sections};
use crate::tables::{Scope, Tables};

/// What people call the format.
pub const FORMAT: &str = "xl dump-core";

/// More bytes of notes than this are left out; Xen writes 1,384.
const MAX_NOTES: u64 = 1 << 20;

/// More vCPUs than this are not looked at: their contexts would be 40 MiB.
const MAX_VCPUS: u64 = 8192;
/// Most bytes of a vCPU context: more than any architecture has.
const CONTEXT_MAX: u64 = 1 << 20;

/// PFNs that `xl` never writes for an HVM or PVH domain of x86, where the VGA memory is (`xc_core_arch_gpfn_may_present`,
/// tools/libs/guest/xg_core_x86.c of Xen).
const VGA: std::ops::Range<u64> = 0xa0..0xc0;

/// The pages of the file, by PFN.
#[derive(Debug)]
struct Pages {
    source: Source,
    /// where they begin, bytes
    offset: u64,
    page_shift: u32,
    /// so many are whole; those behind are missing
    present: u64,
    /// from PFN to position
    runs: Runs,
}

impl Memory for Pages {
    fn extents(&self) -> Vec<Extent> {
        let mut extents = Vec::with_capacity(self.runs.list().len());
        for run in self.runs.list() {
            let there = self.present.saturating_sub(run.value).min(run.pages);
            if there > 0 {
                extents.push(Extent::mapped(run.key, there, 0, self.offset + (run.value << self.page_shift)));
            }
            if there < run.pages {
                extents.push(Extent::absent(run.key + there, run.pages - there));
            }
        }
        extents
    }

    fn read(&self, pfn: u64, page: &mut [u8]) -> Result<bool> {
        match self.runs.find(pfn).filter(|at| *at < self.present) {
            Some(at) => Ok(self.source.read_at(self.offset + (at << self.page_shift), page)? == page.len()),
            None => Ok(false),
        }
    }
}

/// Says what the input is if it is a dump-core file.
///
/// # Errors
/// It is not; the message says what it is instead.
pub fn recognise(source: &Source) -> Result<String> {
    let sections = Sections::read(source)?;
    let bytes = read_notes(source, &sections)?;
    if !notes::is_dump_core(&bytes, sections.ctx) {
        return Err(Error::unsupported("an ELF core file of sections, without notes of Xen"));
    }
    Ok("an ELF core file with the notes of xl dump-core".into())
}

/// Opens a dump-core file.
///
/// # Errors
/// It has no pages, or nothing says which pages they are.
pub fn open(source: Source, entries: Entries) -> Result<Box<dyn Reader>> {
    let mut warnings = Vec::new();
    let sections = Sections::read(&source)?;
    let notes = read_notes(&source, &sections)?;
    let header = notes::dump_core(&notes, sections.ctx, &mut warnings)?;
    let mut incomplete = sections.cut;
    if !sections.named {
        warnings.push("the section names are missing: the file is cut or damaged; sections are taken for what they look like".into());
        incomplete = true;
    }
    let (pages, index) = read_pages(&source, &sections, &header, &mut warnings, &mut incomplete)?;
    let contexts = Contexts::read(&source, &sections, &header, &mut warnings, &mut incomplete);

    let wide = sections.machine == EM_X86_64 && !header.narrow;
    let tables = match entries {
        Entries::Guest(scope) if header.pv && wide => find_tables(&pages, index.frames, &contexts, scope, &mut warnings),
        _ => Tables::default(),
    };
    let mut machine = machine(&sections, &header, warnings);
    machine.cpus = u32::try_from(contexts.count()).unwrap_or(u32::MAX);
    if wide {
        machine.notes = contexts.each().filter_map(registers::note).flatten().collect();
    }
    machine.notes.extend(notes);
    machine.max_pfn = pages.runs.end();
    machine.incomplete = incomplete;
    Ok(Box::new(View::new(pages, machine, tables)))
}

fn read_notes(source: &Source, sections: &Sections) -> Result<Vec<u8>> {
    let Some(section) = sections.notes() else {
        return Err(Error::unsupported("an ELF core file of sections, none of them .note.Xen"));
    };
    let mut bytes = read_up_to(source, section.offset, section.size.min(MAX_NOTES))?;
    // A writer copies all notes as one segment: what comes behind begins at a multiple of four.
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    Ok(bytes)
}

/// The pages and what they are.
fn read_pages(
    source: &Source,
    sections: &Sections,
    header: &DumpCore,
    warnings: &mut Vec<String>,
    incomplete: &mut bool,
) -> Result<(Pages, Index)> {
    let page_shift = header.page_size.trailing_zeros();
    let size_of = |n: u64, each: u64| n.checked_mul(each).filter(|size| *size != 0);
    let whole = size_of(header.pages, header.page_size);
    let section = sections.find(PAGES, |s| s.entry == header.page_size && Some(s.size) == whole);
    let Some(section) = section else {
        let message = format!("{}: there is no section {PAGES}: the file holds no memory", source.name());
        return Err(Error::format(message).hint("the file is cut or damaged; copy it again"));
    };
    let count = section.size >> page_shift;
    if count != header.pages {
        warnings.push(format!("the header note says {} pages, the section {PAGES} has room for {count}", header.pages));
    }
    let file_end = source.size().unwrap_or(i64::MAX as u64);
    let present = (file_end.saturating_sub(section.offset) >> page_shift).min(count);
    if present < count {
        warnings.push(format!("{} of {count} pages are missing: the file is cut", count - present));
        *incomplete = true;
    }

    let looks = |entry: u64| move |s: &Section| s.entry == entry && Some(s.size) == size_of(header.pages, entry);
    let index = match (sections.find(P2M, looks(16)), sections.find(PFN, looks(8))) {
        (Some(pairs), _) => Some((pairs, true)),
        (None, Some(numbers)) => Some((numbers, false)),
        (None, None) => None,
    };
    let pfn_end = PHYSICAL_END >> page_shift;
    let mut read = Index::default();
    if let Some((table, pairs)) = index {
        let width = if pairs { 16 } else { 8 };
        let place =
            Place { offset: table.offset, entries: (table.size / width).min(count), pairs, big_endian: !sections.ctx.is_little_endian() };
        read = Index::read(source, place, pfn_end, warnings)?;
    }
    if read.read == 0 {
        *incomplete = true;
        read.pages = by_order(sections, header, present, file_end, warnings, source)?;
    } else if read.read < count {
        warnings.push(format!("{} pages are left out: the index ends before it tells their numbers", count - read.read));
        *incomplete = true;
    }
    if read.pages.list().is_empty() {
        return Err(Error::format(format!("{}: no entry of the index is a page number: the file holds no memory", source.name())));
    }
    Ok((Pages { source: source.clone(), offset: section.offset, page_shift, present, runs: std::mem::take(&mut read.pages) }, read))
}

/// Numbers for the pages of a file that is cut before its index. `xl` writes the pages in ascending order, from 0 on.
fn by_order(
    sections: &Sections,
    header: &DumpCore,
    present: u64,
    file_end: u64,
    warnings: &mut Vec<String>,
    source: &Source,
) -> Result<Runs> {
    let behind_end = |s: &Section| (s.name == P2M || s.name == PFN) && s.size > 0 && s.offset >= file_end;
    let cut = source.size().is_some() && (!sections.named || sections.list.iter().any(behind_end));
    if !cut || present == 0 {
        let message = format!("{}: there is no index ({P2M} or {PFN}): nothing says which pages these are", source.name());
        return Err(Error::format(message).hint("the file is cut or damaged; copy it again"));
    }
    let x86 = matches!(sections.machine, EM_X86_64 | EM_386);
    let mut runs = Builder::default();
    let low = if !header.pv && x86 { present.min(VGA.start) } else { present };
    runs.push_run(Run { key: 0, pages: low, value: 0 });
    if low < present {
        runs.push_run(Run { key: VGA.end, pages: present - low, value: low });
    }
    warnings.push(
        "the file is cut before its index: page numbers are taken from the order that xl writes, which is right up to the first hole in the domain's memory".into(),
    );
    Ok(runs.finish().0)
}

/// The vCPU contexts of the file.
#[derive(Debug, Default)]
struct Contexts {
    bytes: Vec<u8>,
    /// bytes of each, not 0
    each: usize,
}

impl Contexts {
    fn read(source: &Source, sections: &Sections, header: &DumpCore, warnings: &mut Vec<String>, incomplete: &mut bool) -> Self {
        let looks = |s: &Section| s.entry == registers::CONTEXT as u64 && header.vcpus.checked_mul(s.entry) == Some(s.size);
        let none = Self { bytes: Vec::new(), each: 1 };
        let Some(section) = sections.find(PRSTATUS, looks) else {
            warnings.push(format!("there is no section {PRSTATUS}: registers are missing"));
            return none;
        };
        if section.entry == 0 || section.entry > CONTEXT_MAX {
            warnings.push(format!("the section {PRSTATUS} has entries of {} bytes: registers are missing", section.entry));
            return none;
        }
        let count = (section.size / section.entry).min(MAX_VCPUS);
        if count != header.vcpus {
            warnings.push(format!("the header note says {} vCPUs, the section {PRSTATUS} has {count}", header.vcpus));
        }
        let mut bytes = read_up_to(source, section.offset, count * section.entry).unwrap_or_default();
        let each = section.entry as usize;
        let there = bytes.len() / each;
        bytes.truncate(there * each);
        if (there as u64) < count {
            warnings.push(format!("the registers of {} vCPUs are missing: the file is cut or damaged", count - there as u64));
            *incomplete = true;
        }
        Self { bytes, each }
    }

    fn count(&self) -> usize {
        self.bytes.len() / self.each
    }

    fn each(&self) -> impl Iterator<Item = &[u8]> {
        // Contexts of another size are of another architecture or a Xen to come.
        self.bytes.chunks_exact(self.each).filter(|c| c.len() == registers::CONTEXT)
    }
}

fn find_tables(pages: &Pages, frames: Runs, contexts: &Contexts, scope: Scope, warnings: &mut Vec<String>) -> Tables {
    let roots: Vec<u64> = contexts.each().flat_map(registers::roots).collect();
    let tables = Tables::find(pages, frames, &roots, scope);
    if tables.count() == 0 {
        warnings.push("no page tables could be found from the vCPUs' registers: those in the dump have frames of the machine".into());
    }
    tables
}

fn machine(sections: &Sections, header: &DumpCore, mut warnings: Vec<String>) -> Machine {
    let (arch, word_bits) = match sections.machine {
        EM_X86_64 if header.narrow => ("i686", 32),
        EM_X86_64 => ("x86_64", 64),
        EM_386 => ("i686", 32),
        EM_AARCH64 => ("aarch64", 64),
        EM_ARM => ("armv7l", 32),
        EM_IA_64 => ("ia64", 64),
        other => {
            warnings.push(format!("e_machine {other} is an unknown architecture"));
            ("", if sections.ctx.is_big() { 64 } else { 32 })
        }
    };
    if sections.machine == EM_X86_64 && header.narrow {
        warnings.push("a paravirtualised domain of 32 bits: its page tables have frames of the machine, its registers are left out".into());
    }
    Machine {
        format: FORMAT.into(),
        arch: arch.into(),
        elf_machine: if arch == "i686" { EM_386 } else { sections.machine },
        word_bits,
        big_endian: !sections.ctx.is_little_endian(),
        page_shift: header.page_size.trailing_zeros(),
        utsname: UtsName { sysname: "Linux".into(), machine: arch.into(), ..UtsName::default() },
        warnings,
        ..Machine::default()
    }
}
