//! A dump to write, a sink that remembers every operation, and a reader made of goblin, which is not ours.

use std::collections::BTreeMap;

use coresift_sdk::{ClassSet, End, Error, ErrorKind, Machine, PackedBatch, PackedPage, PageSet, PageSets, Plan, Result, Run, Sink};
use coresift_sdk::{Value, Writer, testkit};
use goblin::container::{Container, Ctx, Endian};
use goblin::elf::program_header::{PT_LOAD, PT_NOTE};
use goblin::elf::{ProgramHeader, SectionHeader, header::Header, header::header32, header::header64};

/// Nothing is missing.
pub const WHOLE: End = End { incomplete: false, lost_pages: 0 };

/// A writer as the host makes it.
pub fn writer(holes: &str) -> Box<dyn Writer> {
    writer_elf::open(testkit::setup(&writer_elf::manifest(), &[("holes", Value::Text(holes.into()))]).unwrap()).unwrap()
}

/// An ELF note.
pub fn note(name: &str, kind: u32, text: &[u8], big_endian: bool) -> Vec<u8> {
    let word = |v: usize| if big_endian { (v as u32).to_be_bytes() } else { (v as u32).to_le_bytes() };
    let mut note = [word(name.len() + 1), word(text.len()), word(kind as usize)].concat();
    note.extend(name.bytes());
    note.push(0);
    note.resize(note.len().next_multiple_of(4), 0);
    note.extend(text);
    note.resize(note.len().next_multiple_of(4), 0);
    note
}

/// The VMCOREINFO text of [`machine`].
pub const VMCOREINFO: &[u8] = b"OSRELEASE=6.1.0-57\nPAGESIZE=4096\n";

/// A machine with two notes: registers of 20 bytes, then VMCOREINFO.
pub fn machine(arch: &str, elf_machine: u16, word_bits: u32, big_endian: bool) -> Machine {
    Machine {
        arch: arch.into(),
        elf_machine,
        word_bits,
        big_endian,
        page_shift: 12,
        cpus: 1,
        max_pfn: 0x0001_3fd7,
        notes: [note("CORE", 1, &[9; 20], big_endian), note("VMCOREINFO", 0, VMCOREINFO, big_endian)].concat(),
        vmcoreinfo: VMCOREINFO.to_vec(),
        ..Machine::default()
    }
}

/// RAM and dumped pages, each ascending.
#[derive(Default, Clone)]
pub struct Pages {
    pub ram: Vec<u64>,
    pub dumped: Vec<u64>,
    /// most pages in a run: hosts may give long ones in pieces
    pub piece: u64,
}

impl Pages {
    /// All RAM is dumped.
    pub fn all(pfns: impl IntoIterator<Item = u64>) -> Self {
        let dumped: Vec<u64> = pfns.into_iter().collect();
        Self { ram: dumped.clone(), dumped, piece: u64::MAX }
    }

    fn of(&self, which: PageSet) -> &[u64] {
        if which == PageSet::Ram { &self.ram } else { &self.dumped }
    }
}

impl PageSets for Pages {
    fn bitmap(&self, _: PageSet, _: u64, _: &mut [u8]) {
        panic!("an ELF file has no bitmaps");
    }
    fn runs(&self, which: PageSet, from_pfn: u64, out: &mut [Run]) -> usize {
        let pfns = self.of(which);
        let mut rest = pfns[pfns.partition_point(|&pfn| pfn < from_pfn)..].iter().copied().peekable();
        let mut filled = 0;
        for slot in out {
            let Some(first_pfn) = rest.next() else { break };
            *slot = Run { first_pfn, pages: 1 };
            while slot.pages < self.piece && rest.next_if_eq(&slot.end_pfn()).is_some() {
                slot.pages += 1;
            }
            filled += 1;
        }
        filled
    }
    fn count(&self, which: PageSet) -> u64 {
        self.of(which).len() as u64
    }
}

/// A plan for one output.
pub fn plan<'a>(machine: &'a Machine, pages: &'a Pages) -> Plan<'a> {
    Plan {
        machine,
        pages,
        excluded: ClassSet::from_dump_level(31),
        codec: 0,
        first_pfn: 0,
        end_pfn: machine.max_pfn,
        part: 0,
        parts: 1,
        written_at: 1_700_000_000,
    }
}

/// A page that says which it is.
pub fn page(pfn: u64, size: usize) -> Vec<u8> {
    (0..size as u64).map(|at| (at * 31 + pfn * 7 + 1) as u8).collect()
}

/// Remembers what was written.
#[derive(Default)]
pub struct Recorder {
    pub writes: Vec<(u64, Vec<u8>)>,
    pub stream: bool,
    /// number of the write of which only the first half arrives
    pub fail_at: Option<usize>,
}

impl Sink for Recorder {
    fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> Result<()> {
        let mut bytes = pieces.concat();
        let fails = self.fail_at.take_if(|at| *at == self.writes.len()).is_some();
        if fails {
            bytes.truncate(bytes.len() / 2);
        }
        self.writes.push((offset, bytes));
        if fails { Err(Error::new(ErrorKind::Io, "the disk broke")) } else { Ok(()) }
    }
    fn reserve(&mut self, _: u64) -> Result<()> {
        panic!("reserved bytes are no holes");
    }
    fn positioned(&self) -> bool {
        !self.stream
    }
}

impl Recorder {
    /// The file after the first `whole` writes and `bytes` bytes of the next.
    pub fn cut(&self, whole: usize, bytes: usize) -> Vec<u8> {
        let mut file = testkit::Memory::default();
        for (offset, data) in &self.writes[..whole] {
            file.write_at(*offset, &[data]).unwrap();
        }
        if let Some((offset, data)) = self.writes.get(whole) {
            file.write_at(*offset, &[&data[..bytes.min(data.len())]]).unwrap();
        }
        file.bytes
    }

    /// The file after all writes.
    pub fn file(&self) -> Vec<u8> {
        self.cut(self.writes.len(), 0)
    }
}

/// Writes pages in batches of `batch` to the sink.
pub fn dump(holes: &str, plan: &Plan<'_>, content: &[(u64, PackedPage<'_>)], batch: usize, end: &End, sink: &mut Recorder) -> Result<()> {
    let mut writer = writer(holes);
    writer.begin(plan, sink)?;
    for pages in content.chunks(batch) {
        let (pfns, contents): (Vec<u64>, Vec<PackedPage<'_>>) = pages.iter().copied().unzip();
        writer.write(&PackedBatch::new(&pfns, &contents), sink)?;
    }
    writer.finish(end, sink)
}

/// A file as goblin parses it.
pub struct Parsed {
    pub header: Header,
    pub ctx: Ctx,
    pub program_headers: Vec<ProgramHeader>,
    pub section: Option<SectionHeader>,
}

impl Parsed {
    /// Parses headers; `None` if it is no ELF file (yet). Behind the magic bytes all of them must be there.
    pub fn of(file: &[u8]) -> Option<Self> {
        if file.get(..4)? != b"\x7fELF" {
            return None;
        }
        let order = if file[5] == 2 { Endian::Big } else { Endian::Little };
        let (container, header) = match file[4] {
            1 => (Container::Little, Header::from(header32::Header::parse(file).unwrap())),
            2 => (Container::Big, Header::from(header64::Header::parse(file).unwrap())),
            other => panic!("class {other}"),
        };
        let ctx = Ctx::new(container, order);
        // System V ABI: where e_phnum is PN_XNUM, section header 0 has the number in sh_info.
        let section = (header.e_shoff != 0).then(|| SectionHeader::parse(file, header.e_shoff as usize, 1, ctx).unwrap().remove(0));
        let count = if header.e_phnum == 0xffff { section.as_ref().unwrap().sh_info as usize } else { header.e_phnum.into() };
        let program_headers = ProgramHeader::parse(file, header.e_phoff as usize, count, ctx).unwrap();
        Some(Self { header, ctx, program_headers, section })
    }

    pub fn incomplete(&self) -> bool {
        self.header.e_flags & 1 != 0
    }

    pub fn loads(&self) -> impl Iterator<Item = &ProgramHeader> {
        self.program_headers.iter().filter(|ph| ph.p_type == PT_LOAD)
    }

    /// First PFN, pages in the file, pages of memory.
    pub fn runs(&self) -> Vec<(u64, u64, u64)> {
        self.loads().map(|ph| (ph.p_paddr >> 12, ph.p_filesz >> 12, ph.p_memsz >> 12)).collect()
    }

    /// The bytes of the notes.
    pub fn notes<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        let first = &self.program_headers[0];
        assert_eq!(first.p_type, PT_NOTE, "PT_NOTE comes first");
        &file[first.p_offset as usize..][..first.p_filesz as usize]
    }

    /// The pages of 4 KiB that are whole in the file, by PFN.
    pub fn pages<'a>(&self, file: &'a [u8]) -> BTreeMap<u64, &'a [u8]> {
        let mut pages = BTreeMap::new();
        for ph in self.loads() {
            for i in 0..ph.p_filesz >> 12 {
                if let Some(page) = file.get((ph.p_offset + (i << 12)) as usize..).and_then(|rest| rest.get(..4096)) {
                    pages.entry((ph.p_paddr >> 12) + i).or_insert(page);
                }
            }
        }
        pages
    }
}
