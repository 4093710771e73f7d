//! Builds dump-core files (docs/misc/dump-core-format.txt of Xen) and ELF vmcores with notes of Xen, sound or broken on
//! purpose.

use std::collections::BTreeMap;

use coresift_sdk::{Extent, ExtentKind, PageState, Reader, Result, Value, testkit};

/// A page of the tests.
pub const PAGE: usize = 4096;
/// Number that stands for no page.
pub const INVALID: u64 = u64::MAX;

/// Which index the file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `.xen_p2m`
    Pv,
    /// `.xen_pfn`
    Hvm,
}

/// A dump-core file to be built.
#[derive(Debug, Clone)]
pub struct Core {
    pub kind: Kind,
    pub wide: bool,
    pub big_endian: bool,
    pub machine: u16,
    /// vCPU contexts
    pub contexts: Vec<Vec<u8>>,
    /// PFN, machine frame and bytes of each page
    pub pages: Vec<(u64, u64, Vec<u8>)>,
    /// what the header note says instead of the number of pages
    pub claims_pages: Option<u64>,
    /// a domain of 32 bits: the page size stands four bytes before in the version note
    pub narrow: bool,
    /// the index stands before the pages, as no Xen writes it
    pub index_first: bool,
    /// major and minor of the format
    pub format: u64,
    pub page_size: u64,
}

/// Where things are in a built file.
#[derive(Debug)]
pub struct Built {
    pub bytes: Vec<u8>,
    pub notes: Vec<u8>,
    pub headers_end: usize,
    pub pages_at: u64,
    pub index_at: u64,
}

/// `len` bytes that differ by position and `seed`, and never are zero.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
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

/// Numbers of either byte order.
pub struct Wire {
    pub big_endian: bool,
    pub bytes: Vec<u8>,
}

impl Wire {
    pub fn half(&mut self, v: u16) {
        self.bytes.extend(if self.big_endian { v.to_be_bytes() } else { v.to_le_bytes() });
    }
    pub fn int(&mut self, v: u32) {
        self.bytes.extend(if self.big_endian { v.to_be_bytes() } else { v.to_le_bytes() });
    }
    pub fn long(&mut self, v: u64) {
        self.bytes.extend(if self.big_endian { v.to_be_bytes() } else { v.to_le_bytes() });
    }
    pub fn word(&mut self, wide: bool, v: u64) {
        if wide { self.long(v) } else { self.int(u32::try_from(v).unwrap()) }
    }
    pub fn note(&mut self, name: &str, n_type: u32, desc: &[u8]) {
        self.int(name.len() as u32 + 1);
        self.int(desc.len() as u32);
        self.int(n_type);
        for part in [name.as_bytes(), &[0], desc] {
            self.bytes.extend_from_slice(part);
            if part != name.as_bytes() {
                self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
            }
        }
    }
}

pub fn longs(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A page of noise with this PFN; its machine frame is another number.
pub fn page(pfn: u64) -> (u64, u64, Vec<u8>) {
    (pfn, pfn ^ 0x5000, noise(pfn, PAGE))
}

impl Core {
    /// An x86_64 domain without vCPUs.
    pub fn new(kind: Kind, pages: Vec<(u64, u64, Vec<u8>)>) -> Self {
        Self {
            kind,
            wide: true,
            big_endian: false,
            machine: 62,
            contexts: Vec::new(),
            pages,
            claims_pages: None,
            narrow: false,
            index_first: false,
            format: 1,
            page_size: PAGE as u64,
        }
    }

    /// One with these PFNs.
    pub fn of(kind: Kind, pfns: &[u64]) -> Self {
        Self::new(kind, pfns.iter().map(|p| page(*p)).collect())
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.build().bytes
    }

    fn wire(&self) -> Wire {
        Wire { big_endian: self.big_endian, bytes: Vec::new() }
    }

    fn notes(&self) -> Vec<u8> {
        let mut w = self.wire();
        w.note("Xen", 0x200_0000, &[]);
        let mut header = self.wire();
        header.long(if self.kind == Kind::Pv { 0xf00f_ebed } else { 0xf00f_ebee });
        header.long(self.contexts.len() as u64);
        header.long(self.claims_pages.unwrap_or(self.pages.len() as u64));
        header.long(self.page_size);
        w.note("Xen", 0x200_0001, &header.bytes);
        // struct xen_dumpcore_elfnote_xen_version_desc: 4.17, extraversion[16], compile_info (64 + 16 + 32 + 32),
        // capabilities[1024], changeset[64], virt_start, pagesize
        let mut version = self.wire();
        version.long(4);
        version.long(17);
        version.bytes.resize(version.bytes.len() + 16 + 144 + 1024 + 64, b'x');
        if self.narrow {
            version.int(0xf580_0000);
            version.long(self.page_size);
            version.int(0);
        } else {
            version.long(0xffff_8000_0000_0000);
            version.long(self.page_size);
        }
        w.note("Xen", 0x200_0002, &version.bytes);
        let mut format = self.wire();
        format.long(self.format);
        w.note("Xen", 0x200_0003, &format.bytes);
        w.bytes
    }

    pub fn build(&self) -> Built {
        let notes = self.notes();
        let (ehdr, shdr) = if self.wide { (64, 64) } else { (52, 40) };
        let index_name = if self.kind == Kind::Pv { ".xen_p2m" } else { ".xen_pfn" };
        let mut index = self.wire();
        for (pfn, mfn, _) in &self.pages {
            index.long(*pfn);
            if self.kind == Kind::Pv {
                index.long(*mfn);
            }
        }
        let pages: Vec<u8> = self.pages.iter().flat_map(|p| p.2.iter().copied()).collect();
        let contexts = self.contexts.concat();
        let context = self.contexts.first().map_or(5168, Vec::len);
        let entry = if self.kind == Kind::Pv { 16 } else { 8 };
        // Name, type, content, entry size, alignment in the file; as Xen orders them, the names come last.
        let mut parts: Vec<(&str, u32, Vec<u8>, usize, usize)> = vec![
            (".note.Xen", 7, notes.clone(), 0, 1),
            (".xen_prstatus", 1, contexts, context, 1),
            (".xen_shared_info", 1, vec![0; PAGE], PAGE, 1),
        ];
        let last = vec![(".xen_pages", 1, pages, self.page_size as usize, PAGE), (index_name, 1, index.bytes, entry, 1)];
        if self.index_first {
            parts.extend(last.into_iter().rev())
        } else {
            parts.extend(last)
        }
        let mut names = b"\0.shstrtab\0".to_vec();
        let mut name_at = Vec::new();
        for part in &parts {
            name_at.push(names.len() as u32);
            names.extend_from_slice(part.0.as_bytes());
            names.push(0);
        }
        let count = parts.len() + 2;
        let headers_end = ehdr + shdr * count;
        let mut at = headers_end;
        let mut places = Vec::new();
        for part in &parts {
            at = at.next_multiple_of(part.4);
            places.push(at);
            at += part.2.len();
        }

        let mut w = self.wire();
        w.bytes.extend_from_slice(b"\x7fELF");
        w.bytes.extend_from_slice(&[1 + u8::from(self.wide), 1 + u8::from(self.big_endian), 1]);
        w.bytes.resize(16, 0);
        w.half(4);
        w.half(self.machine);
        w.int(1);
        w.word(self.wide, 0);
        w.word(self.wide, 0);
        w.word(self.wide, ehdr as u64);
        w.int(0);
        for v in [ehdr, 56, 0, shdr, count, 1] {
            w.half(v as u16);
        }
        let mut section = |name: u32, kind: u32, offset: usize, size: usize, align: usize, entry: usize| {
            w.int(name);
            w.int(kind);
            w.word(self.wide, 0);
            w.word(self.wide, 0);
            w.word(self.wide, offset as u64);
            w.word(self.wide, size as u64);
            w.int(0);
            w.int(0);
            w.word(self.wide, align as u64);
            w.word(self.wide, entry as u64);
        };
        section(0, 0, 0, 0, 0, 0);
        section(1, 3, at, names.len(), 0, 0);
        for ((part, place), name) in parts.iter().zip(&places).zip(&name_at) {
            section(*name, part.1, *place, part.2.len(), part.4, part.3);
        }
        assert_eq!(w.bytes.len(), headers_end);
        for (part, place) in parts.iter().zip(&places) {
            w.bytes.resize(*place, 0);
            w.bytes.extend_from_slice(&part.2);
        }
        w.bytes.extend_from_slice(&names);
        let place_of = |name: &str| places[parts.iter().position(|p| p.0 == name).unwrap()] as u64;
        Built { notes, headers_end, pages_at: place_of(".xen_pages"), index_at: place_of(index_name), bytes: w.bytes }
    }
}

/// Registers of a vCPU, as they stand in `struct vcpu_guest_context` of x86_64.
#[derive(Debug, Clone, Default)]
pub struct Context {
    pub flags: u64,
    /// r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi
    pub general: [u64; 15],
    pub rip: u64,
    pub cs: u16,
    pub rflags: u64,
    pub rsp: u64,
    /// ss es ds fs gs
    pub segments: [u16; 5],
    /// CR0 to CR7
    pub control: [u64; 8],
    /// fs, gs of the kernel, gs of the process
    pub bases: [u64; 3],
}

impl Context {
    /// In the order of xen/include/public/arch-x86/xen.h.
    pub fn bytes(&self) -> Vec<u8> {
        let mut w = Wire { big_endian: false, bytes: vec![0xf1; 512] };
        w.long(self.flags);
        self.general.iter().for_each(|r| w.long(*r));
        w.int(0xe44); // error_code
        w.int(0xe45); // entry_vector
        w.long(self.rip);
        w.half(self.cs);
        w.half(0xdead);
        w.int(0xff); // saved_upcall_mask
        w.long(self.rflags);
        w.long(self.rsp);
        for s in self.segments {
            w.half(s);
            w.half(0xdead);
            w.int(0xdead_dead);
        }
        w.bytes.resize(w.bytes.len() + 256 * 16, 0x7a); // trap_ctxt
        w.bytes.resize(w.bytes.len() + 16 + 17 * 8 + 16, 0x1d); // ldt, gdt_frames and gdt_ents, kernel_ss and _sp
        self.control.iter().for_each(|r| w.long(*r));
        w.bytes.resize(w.bytes.len() + 64, 0xdb); // debugreg
        w.bytes.resize(w.bytes.len() + 4 * 8, 0xcb); // event, failsafe, syscall callbacks, vm_assist
        self.bases.iter().for_each(|r| w.long(*r));
        assert_eq!(w.bytes.len(), 5168, "sizeof(vcpu_guest_context_t)");
        w.bytes
    }
}

/// An ELF64 vmcore of x86_64 with these notes and loads (physical address, bytes).
pub fn vmcore(notes: &[u8], loads: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut w = Wire { big_endian: false, bytes: b"\x7fELF\x02\x01\x01".to_vec() };
    w.bytes.resize(16, 0);
    w.half(4);
    w.half(62);
    w.int(1);
    for v in [0, 64, 0] {
        w.long(v);
    }
    w.int(0);
    for v in [64, 56, 1 + loads.len(), 64, 0, 0] {
        w.half(v as u16);
    }
    let mut at = 64 + 56 * (1 + loads.len()) as u64;
    let mut header = |p_type: u32, paddr: u64, len: usize| {
        w.int(p_type);
        w.int(7);
        for v in [at, 0, paddr, len as u64, len as u64, 0] {
            w.long(v);
        }
        at += len as u64;
    };
    header(4, 0, notes.len());
    loads.iter().for_each(|(paddr, bytes)| header(1, *paddr, bytes.len()));
    w.bytes.extend_from_slice(notes);
    loads.iter().for_each(|(_, bytes)| w.bytes.extend_from_slice(bytes));
    w.bytes
}

/// The notes of a hypervisor with two CPUs, as Xen 4.17 writes them.
pub fn crash_notes(cr3: [u64; 2], frame_list_list: u64) -> Vec<u8> {
    let mut w = Wire { big_endian: false, bytes: Vec::new() };
    let info = [4, 17, 0x1000, 0x1100, 0x1200, 0x1300, 0x1400, 0, 0x2380_0000, frame_list_list];
    for (cpu, cr3) in cr3.into_iter().enumerate() {
        w.note("CORE", 1, &[7; 336]);
        w.note("Xen", 0x100_0002, &longs(&[0x8005_0033, 0xbad, cr3, 0x660]));
        if cpu == 0 {
            w.note("Xen", 0x100_0001, &longs(&info));
        }
    }
    w.note("VMCOREINFO_XEN", 0, b"PAGESIZE=4096\nSYMBOL(frame_table)=ffff82d04039e858\n");
    w.bytes
}

pub fn open(bytes: Vec<u8>) -> Result<Box<dyn Reader>> {
    open_with(bytes, &[])
}

pub fn open_with(bytes: Vec<u8>, settings: &[(&str, Value)]) -> Result<Box<dyn Reader>> {
    reader_xen::open(testkit::reader_setup(&reader_xen::manifest(), settings, vec![bytes])?)
}

/// A setting of text.
pub fn text<'a>(key: &'a str, value: &str) -> (&'a str, Value) {
    (key, Value::Text(value.into()))
}

pub fn check_order(extents: &[Extent]) {
    assert!(extents.iter().all(|e| e.pages > 0), "an empty extent");
    assert!(extents.windows(2).all(|e| e[0].end_pfn() <= e[1].first_pfn), "extents overlap or go back: {extents:x?}");
}

/// All pages as the host gets them; `None` = RAM that the file lacks.
pub fn pages(bytes: &[u8], reader: &dyn Reader) -> BTreeMap<u64, Option<Vec<u8>>> {
    let extents = reader.extents();
    check_order(&extents);
    assert_eq!(reader.machine().max_pfn, extents.last().unwrap().end_pfn());
    let mut pages = BTreeMap::new();
    for e in &extents {
        for i in 0..e.pages {
            let got = match e.kind {
                ExtentKind::MAPPED => {
                    let at = e.offset as usize + i as usize * PAGE;
                    Some(bytes[at..at + PAGE].to_vec())
                }
                ExtentKind::ENCODED => read(reader, e.first_pfn + i),
                _ => None,
            };
            pages.insert(e.first_pfn + i, got);
        }
    }
    pages
}

/// A page by `read_pages`.
pub fn read(reader: &dyn Reader, pfn: u64) -> Option<Vec<u8>> {
    let (mut out, mut state) = (vec![0xaa; PAGE], [PageState::MISSING]);
    reader.read_pages(&[pfn], &mut out, &mut state).unwrap();
    (state[0] == PageState::PRESENT).then_some(out)
}

/// One of the warnings says this.
pub fn warns(reader: &dyn Reader, what: &str) -> bool {
    reader.machine().warnings.iter().any(|w| w.contains(what))
}
