//! Builds ELF core files of both classes and byte orders, sound or broken on purpose.

use coresift_sdk::testkit;
use coresift_sdk::{Extent, ExtentKind, PageState, Reader, Result, Value};

/// A page of the tests, unless a test sets another size.
pub const PAGE: u64 = 4096;

/// Both classes and byte orders.
pub const ALL_KINDS: [Kind; 4] = [
    Kind { wide: true, big_endian: false },
    Kind { wide: true, big_endian: true },
    Kind { wide: false, big_endian: false },
    Kind { wide: false, big_endian: true },
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    pub wide: bool,
    pub big_endian: bool,
}

/// A `PT_LOAD`.
#[derive(Debug, Clone)]
pub struct Load {
    pub paddr: u64,
    pub memsz: u64,
    /// the bytes in the file
    pub data: Vec<u8>,
    /// what the program header claims instead of the length of `data`
    pub filesz: Option<u64>,
    /// what the program header claims instead of where `data` really is
    pub offset: Option<u64>,
}

/// A file to be built; the fields are what the ELF header says, or where things are put.
#[derive(Debug, Clone)]
pub struct Elf {
    pub kind: Kind,
    pub e_type: u16,
    pub machine: u16,
    pub flags: u32,
    /// bytes between the ELF header and the program headers
    pub gap: usize,
    /// bytes between two program headers, more than they need
    pub slack: usize,
    /// number of program headers in section header 0, `e_phnum` is PN_XNUM
    pub xnum: bool,
    /// contents of the `PT_NOTE`s, which come first
    pub notes: Vec<Vec<u8>>,
    pub loads: Vec<Load>,
}

/// What it is made of, in order of the file: the ends of each part.
#[derive(Debug)]
pub struct Built {
    pub bytes: Vec<u8>,
    pub headers_end: usize,
    pub table_end: usize,
    pub notes_end: usize,
    /// file offset of each load's data
    pub data: Vec<u64>,
}

pub fn load(paddr: u64, data: Vec<u8>) -> Load {
    Load { paddr, memsz: data.len() as u64, data, filesz: None, offset: None }
}

/// `len` bytes that differ by position and `seed`, and never are zero.
pub fn noise(seed: u64, len: u64) -> Vec<u8> {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..len).map(|_| (rng.next() >> 33) as u8 | 1).collect()
}

/// xorshift64: the same numbers in every run.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
}

impl Elf {
    /// An x86_64 (or, of class 32, i386) core without memory.
    pub fn new(kind: Kind) -> Self {
        let machine = if kind.wide { 62 } else { 3 };
        Self { kind, e_type: 4, machine, flags: 0, gap: 0, slack: 0, xnum: false, notes: Vec::new(), loads: Vec::new() }
    }

    /// An x86_64 core with these loads.
    pub fn x86_64(loads: Vec<Load>) -> Self {
        Self { loads, ..Self::new(ALL_KINDS[0]) }
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.build().bytes
    }

    pub fn build(&self) -> Built {
        let (ehdr, phdr, shdr) = if self.kind.wide { (64, 56, 64) } else { (52, 32, 40) };
        let count = self.notes.len() + self.loads.len();
        let table = ehdr + self.gap;
        let section = table + count * (phdr + self.slack);
        let notes = section + if self.xnum { shdr } else { 0 };
        let mut end = notes + self.notes.iter().map(Vec::len).sum::<usize>();
        let notes_end = end;

        let mut w = Wire { kind: self.kind, bytes: Vec::new() };
        w.bytes.extend_from_slice(b"\x7fELF");
        w.bytes.extend_from_slice(&[1 + u8::from(self.kind.wide), 1 + u8::from(self.kind.big_endian), 1]);
        w.bytes.resize(16, 0);
        w.half(self.e_type);
        w.half(self.machine);
        w.int(1);
        w.word(0);
        w.word(table as u64);
        w.word(if self.xnum { section as u64 } else { 0 });
        w.int(self.flags);
        w.half(ehdr as u16);
        w.half((phdr + self.slack) as u16);
        w.half(if self.xnum { 0xffff } else { u16::try_from(count).unwrap() });
        w.half(shdr as u16);
        w.half(u16::from(self.xnum));
        w.half(0);
        assert_eq!(w.bytes.len(), ehdr);
        w.bytes.resize(table, 0xee);

        let mut at = notes as u64;
        for note in &self.notes {
            w.program_header(4, at, 0, note.len() as u64, 0);
            w.bytes.resize(w.bytes.len() + self.slack, 0xee);
            at += note.len() as u64;
        }
        let mut data = Vec::new();
        for l in &self.loads {
            data.push(end as u64);
            w.program_header(1, l.offset.unwrap_or(end as u64), l.paddr, l.filesz.unwrap_or(l.data.len() as u64), l.memsz);
            w.bytes.resize(w.bytes.len() + self.slack, 0xee);
            end += l.data.len();
        }
        assert_eq!(w.bytes.len(), section);
        if self.xnum {
            w.int(0); // sh_name, sh_type, sh_flags, sh_addr, sh_offset, sh_size, sh_link, sh_info
            w.int(0);
            (0..4).for_each(|_| w.word(0));
            w.int(0);
            w.int(count as u32);
            w.bytes.resize(notes, 0);
        }
        self.notes.iter().for_each(|n| w.bytes.extend_from_slice(n));
        self.loads.iter().for_each(|l| w.bytes.extend_from_slice(&l.data));
        assert_eq!(w.bytes.len(), end);
        Built { bytes: w.bytes, headers_end: ehdr, table_end: section, notes_end, data }
    }

    /// A note in this file's byte order.
    pub fn note(&self, name: &str, n_type: u32, desc: &[u8]) -> Vec<u8> {
        let mut w = Wire { kind: self.kind, bytes: Vec::new() };
        w.int(name.len() as u32 + 1);
        w.int(desc.len() as u32);
        w.int(n_type);
        w.bytes.extend_from_slice(name.as_bytes());
        w.bytes.push(0);
        w.bytes.resize(w.bytes.len().next_multiple_of(4), 0);
        w.bytes.extend_from_slice(desc);
        w.bytes.resize(w.bytes.len().next_multiple_of(4), 0);
        w.bytes
    }

    /// The same with a VMCOREINFO note of this text.
    pub fn with_vmcoreinfo(mut self, text: &str) -> Self {
        let note = self.note("VMCOREINFO", 0, text.as_bytes());
        self.notes.push(note);
        self
    }
}

struct Wire {
    kind: Kind,
    bytes: Vec<u8>,
}

impl Wire {
    fn half(&mut self, v: u16) {
        self.bytes.extend(if self.kind.big_endian { v.to_be_bytes() } else { v.to_le_bytes() });
    }
    fn int(&mut self, v: u32) {
        self.bytes.extend(if self.kind.big_endian { v.to_be_bytes() } else { v.to_le_bytes() });
    }
    /// An address, offset or size: 8 bytes in ELF64, 4 in ELF32.
    fn word(&mut self, v: u64) {
        if self.kind.wide {
            self.bytes.extend(if self.kind.big_endian { v.to_be_bytes() } else { v.to_le_bytes() });
        } else {
            self.int(u32::try_from(v).unwrap());
        }
    }
    fn program_header(&mut self, p_type: u32, offset: u64, paddr: u64, filesz: u64, memsz: u64) {
        self.int(p_type);
        if self.kind.wide {
            self.int(7); // p_flags
        }
        let rest = [offset, 0xc000_0000, paddr, filesz, memsz];
        rest.into_iter().for_each(|v| self.word(v));
        if !self.kind.wide {
            self.int(7);
        }
        self.word(0);
    }
}

pub fn open(bytes: Vec<u8>) -> Result<Box<dyn Reader>> {
    open_with(bytes, &[])
}

pub fn open_with(bytes: Vec<u8>, settings: &[(&str, Value)]) -> Result<Box<dyn Reader>> {
    reader_elf::open(testkit::reader_setup(&reader_elf::manifest(), settings, vec![bytes])?)
}

/// Opens and gives the extents; checks that they are ascending, disjoint and not empty.
pub fn extents(bytes: Vec<u8>) -> Vec<Extent> {
    let reader = open(bytes).unwrap();
    let extents = reader.extents();
    check_order(&extents);
    assert_eq!(reader.machine().max_pfn, extents.last().unwrap().end_pfn());
    extents
}

pub fn check_order(extents: &[Extent]) {
    assert!(extents.iter().all(|e| e.pages > 0), "an empty extent");
    assert!(extents.windows(2).all(|e| e[0].end_pfn() <= e[1].first_pfn), "extents overlap or go back: {extents:x?}");
}

/// The bytes of a page as the host gets them: `None` if it is absent or in no extent.
pub fn page(bytes: &[u8], reader: &dyn Reader, extents: &[Extent], pfn: u64) -> Option<Vec<u8>> {
    let size = reader.machine().page_size();
    let extent = extents.iter().find(|e| (e.first_pfn..e.end_pfn()).contains(&pfn))?;
    match extent.kind {
        ExtentKind::MAPPED => {
            let at = extent.offset as usize + (pfn - extent.first_pfn) as usize * size;
            Some(bytes[at..at + size].to_vec())
        }
        ExtentKind::ENCODED => {
            let (mut out, mut present) = (vec![0xaa; size], [PageState::MISSING]);
            reader.read_pages(&[pfn], &mut out, &mut present).unwrap();
            assert!(present[0] == PageState::PRESENT, "page {pfn:#x} is encoded but not there");
            Some(out)
        }
        _ => None,
    }
}

/// One of the warnings says this.
pub fn warns(reader: &dyn Reader, what: &str) -> bool {
    reader.machine().warnings.iter().any(|w| w.contains(what))
}
