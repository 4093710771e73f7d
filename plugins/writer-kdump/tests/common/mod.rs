//! A dump to write, a sink that remembers every operation, and a reader written from the format alone.

use coresift_sdk::{ClassSet, End, Machine, PackedBatch, PackedPage, PageSet, PageSets, Plan, Result, Run, Sink, UtsName, Writer, testkit};

/// A writer as the host makes it.
pub fn writer() -> Box<dyn Writer> {
    writer_kdump::open(testkit::setup(&writer_kdump::manifest(), &[]).unwrap()).unwrap()
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
    let names = UtsName {
        sysname: "Linux".into(),
        nodename: "db1".into(),
        release: "6.1.0-57".into(),
        version: "#1 SMP".into(),
        machine: arch.into(),
        domainname: "(none)".into(),
    };
    Machine {
        arch: arch.into(),
        elf_machine,
        word_bits,
        big_endian,
        page_shift: 12,
        cpus: 3,
        utsname: names,
        crash_time: 0x6b0d_dee7,
        phys_base: Some(0x1234_5678),
        max_pfn: 0x0001_3fd7,
        notes: [note("CORE", 1, &[9; 20], big_endian), note("VMCOREINFO", 0, VMCOREINFO, big_endian)].concat(),
        vmcoreinfo: VMCOREINFO.to_vec(),
        ..Machine::default()
    }
}

/// RAM and dumped pages.
#[derive(Default, Clone)]
pub struct Pages {
    pub ram: Vec<u64>,
    pub dumped: Vec<u64>,
}

impl PageSets for Pages {
    fn bitmap(&self, which: PageSet, first_pfn: u64, out: &mut [u8]) {
        out.fill(0);
        let bits = out.len() as u64 * 8;
        for &pfn in self.of(which).iter().filter(|&&pfn| (first_pfn..first_pfn + bits).contains(&pfn)) {
            out[((pfn - first_pfn) / 8) as usize] |= 1 << ((pfn - first_pfn) % 8);
        }
    }
    fn runs(&self, which: PageSet, from_pfn: u64, out: &mut [Run]) -> usize {
        let pfns = self.of(which).iter().filter(|&&pfn| pfn >= from_pfn);
        out.iter_mut().zip(pfns).map(|(run, &first_pfn)| *run = Run { first_pfn, pages: 1 }).count()
    }
    fn count(&self, which: PageSet) -> u64 {
        self.of(which).len() as u64
    }
}

impl Pages {
    fn of(&self, which: PageSet) -> &[u64] {
        if which == PageSet::Ram { &self.ram } else { &self.dumped }
    }
}

/// A plan for one output.
pub fn plan<'a>(machine: &'a Machine, pages: &'a Pages) -> Plan<'a> {
    let end_pfn = machine.max_pfn;
    Plan {
        machine,
        pages,
        excluded: ClassSet::from_dump_level(31),
        codec: 0x20,
        first_pfn: 0,
        end_pfn,
        part: 0,
        parts: 1,
        written_at: 1_700_000_000,
    }
}

/// What was done to a sink.
#[derive(Debug, Clone)]
pub enum Op {
    Write(u64, Vec<u8>),
    Reserve(u64),
}

/// Remembers operations; fails when told to.
#[derive(Default)]
pub struct Recorder {
    pub ops: Vec<Op>,
    pub stream: bool,
    /// number of the write to fail, and whether its first half arrives before
    pub fail_at: Option<usize>,
}

impl Sink for Recorder {
    fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> Result<()> {
        let bytes = pieces.concat();
        if self.fail_at == Some(self.ops.len()) {
            let half = bytes.len() / 2;
            self.ops.push(Op::Write(offset, bytes[..half].to_vec()));
            return Err(coresift_sdk::Error::new(coresift_sdk::ErrorKind::Io, "the disk broke"));
        }
        self.ops.push(Op::Write(offset, bytes));
        Ok(())
    }
    fn reserve(&mut self, len: u64) -> Result<()> {
        self.ops.push(Op::Reserve(len));
        Ok(())
    }
    fn positioned(&self) -> bool {
        !self.stream
    }
}

impl Recorder {
    /// The file after the first `whole` operations and `bytes` bytes of the next.
    pub fn cut(&self, whole: usize, bytes: usize) -> Vec<u8> {
        let mut file = testkit::Memory::default();
        for op in &self.ops[..whole] {
            match op {
                Op::Write(offset, data) => file.write_at(*offset, &[data]).unwrap(),
                // A stream cannot reserve.
                Op::Reserve(_) if self.stream => {}
                Op::Reserve(len) => file.reserve(*len).unwrap(),
            }
        }
        if let Some(Op::Write(offset, data)) = self.ops.get(whole) {
            file.write_at(*offset, &[&data[..bytes.min(data.len())]]).unwrap();
        }
        file.bytes
    }

    /// The file after all operations.
    pub fn file(&self) -> Vec<u8> {
        self.cut(self.ops.len(), 0)
    }
}

/// Writes pages in batches of `batch` to the sink; a batch that fails is left behind.
pub fn dump(plan: &Plan<'_>, content: &[(u64, PackedPage<'_>)], batch: usize, end: &End, sink: &mut Recorder) -> Result<()> {
    let mut writer = writer();
    writer.begin(plan, sink)?;
    for pages in content.chunks(batch) {
        let (pfns, contents): (Vec<u64>, Vec<PackedPage<'_>>) = pages.iter().copied().unzip();
        let _ = writer.write(&PackedBatch::new(&pfns, &contents), sink);
    }
    writer.finish(end, sink)
}

/// Stands for a compressed page: like a real one it tells a decoder when it is cut, here by its length in front.
pub fn compressed(len: usize, seed: u64) -> Vec<u8> {
    let mut data = (len.max(4) as u32).to_le_bytes().to_vec();
    data.extend((4..len).map(|at| (at as u64 * 31 + seed) as u8));
    data
}

/// A dump as a reader of the format sees it (little endian, 64 bits).
pub struct Seen {
    pub status: u32,
    /// PFN, codec bits and stored bytes of each page that is there
    pub there: Vec<(u64, u32, Vec<u8>)>,
    /// PFNs that the dump says it has and has not
    pub lost: Vec<u64>,
}

/// Reads a file; `None` if it is no dump (yet).
pub fn read(file: &[u8]) -> Option<Seen> {
    let u32_at = |at: usize| file.get(at..at + 4).map(|b| u32::from_le_bytes(b.try_into().unwrap()));
    let u64_at = |at: usize| file.get(at..at + 8).map(|b| u64::from_le_bytes(b.try_into().unwrap()));
    if file.get(..8)? != b"KDUMP   " {
        return None;
    }
    // Behind the signature all of the head must be there, or crash dies.
    let (status, block) = (u32_at(424).unwrap(), u32_at(428).unwrap() as usize);
    let (sub_blocks, bitmap_blocks) = (u32_at(432).unwrap() as usize, u32_at(436).unwrap() as usize);
    let (split, start, end) = (u32_at(block + 12).unwrap(), u64_at(block + 80).unwrap(), u64_at(block + 88).unwrap());
    let max_pfn = u64_at(block + 96).unwrap();
    let bitmap = (1 + sub_blocks + bitmap_blocks / 2) * block;
    let dumped = &file[bitmap..bitmap + bitmap_blocks / 2 * block];
    let head = (1 + sub_blocks + bitmap_blocks) * block;
    let mut descriptor = head;
    let mut seen = Seen { status, there: Vec::new(), lost: Vec::new() };
    let pfns = if split == 0 { 0..max_pfn } else { start..end };
    for pfn in pfns.filter(|pfn| dumped[(pfn / 8) as usize] >> (pfn % 8) & 1 == 1) {
        let offset = u64_at(descriptor).unwrap_or(0) as usize;
        let size = u32_at(descriptor + 8).unwrap_or(0) as usize;
        let flags = u32_at(descriptor + 12).unwrap_or(0);
        descriptor += 24;
        // Raw pages are whole; a compressed one is refused if it is cut, see `compressed`.
        let sound = |data: &&[u8]| {
            if flags == 0 { size == block } else { data.first_chunk().is_some_and(|&len| u32::from_le_bytes(len) as usize == size) }
        };
        match file.get(offset..offset + size).filter(|_| offset >= head).filter(sound) {
            Some(data) => seen.there.push((pfn, flags, data.to_vec())),
            None => seen.lost.push(pfn),
        }
    }
    Some(seen)
}
