//! Runs a plugin in a unit test, without the host.
//!
//! [`setup`] checks settings against the manifest as the host does; the other functions drive one kind of plugin each.

use std::sync::{Arc, Mutex};

use crate::abi::{HostServices, KernelView, ReadPhysical, SourceBytes};
use crate::config::Value;
use crate::error::{Error, ErrorKind, Result};
use crate::host::{Host, Source};
use crate::kernel::Mapping;
use crate::machine::Machine;
use crate::manifest::Manifest;
use crate::page::{Block, ClassSet, Erase, PackBuffer, PackedBatch, PackedPage, PageList, RangeVerdict, Run, Verdict};
use crate::traits::{Compressor, End, Filter, PageSet, PageSets, Plan, Setup, Sink, Survey, Writer};

/// A setup with these settings, no sources, and a machine with 4 KiB pages.
///
/// # Errors
/// A setting that the manifest does not allow.
pub fn setup(manifest: &Manifest, settings: &[(&str, Value)]) -> Result<Setup> {
    let machine = Machine { page_shift: 12, word_bits: 64, arch: "x86_64".into(), ..Machine::default() };
    Ok(Setup {
        config: manifest.configure(settings)?,
        host: Host::new(Arc::new(Quiet)),
        machine: Some(Arc::new(machine)),
        sources: Vec::new(),
    })
}

/// A setup for a reader of these inputs.
///
/// # Errors
/// As [`setup`].
pub fn reader_setup(manifest: &Manifest, settings: &[(&str, Value)], inputs: Vec<Vec<u8>>) -> Result<Setup> {
    let sources = inputs.into_iter().enumerate().map(|(i, bytes)| source(&format!("input {i}"), bytes)).collect();
    Ok(Setup { machine: None, sources, ..setup(manifest, settings)? })
}

/// An input in memory.
pub fn source(name: &str, bytes: Vec<u8>) -> Source {
    bad_source(name, bytes, 0..0)
}

/// An input in memory in which some bytes cannot be read, as on a disk with a bad sector: a read that touches them fails.
pub fn bad_source(name: &str, bytes: Vec<u8>, bad: std::ops::Range<u64>) -> Source {
    Source::new(Arc::new(Bytes { name: name.into(), bytes, bad }))
}

/// A filter's verdicts on pages by their bytes; all pages are `1 << page_shift` long, PFNs count from 0.
///
/// # Errors
/// What the filter says.
pub fn inspect(filter: &dyn Filter, page_shift: u32, pages: &[Vec<u8>]) -> Result<Vec<Verdict>> {
    let mut list = PageList::with_capacity(pages.len());
    for (pfn, page) in (0..).zip(pages) {
        list.push(pfn, page);
    }
    let mut verdicts = vec![Verdict::UNDECIDED; pages.len()];
    filter.inspect(&list.batch(page_shift)?, &mut verdicts)?;
    Ok(verdicts)
}

/// A filter's verdicts on a block.
///
/// # Errors
/// What the filter says.
pub fn classify(filter: &dyn Filter, block: &Block<'_>) -> Result<Vec<Verdict>> {
    let mut verdicts = vec![Verdict::UNDECIDED; block.pages()];
    filter.classify(block, &mut verdicts)?;
    Ok(verdicts)
}

/// What a filter's survey found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Surveyed {
    /// verdicts on ranges
    pub ranges: Vec<RangeVerdict>,
    /// bytes to erase
    pub erase: Vec<Erase>,
}

impl Survey for Surveyed {
    fn ranges(&mut self, ranges: &[RangeVerdict]) {
        self.ranges.extend_from_slice(ranges);
    }
    fn erase(&mut self, patches: &[Erase]) {
        self.erase.extend_from_slice(patches);
    }
}

/// Compresses pages, decompresses them again and compares; returns the compressed length of each, `None` = stored raw.
///
/// # Errors
/// What the compressor says, or that a page came back changed.
pub fn round_trip(compressor: &mut dyn Compressor, page_shift: u32, pages: &[Vec<u8>]) -> Result<Vec<Option<usize>>> {
    let page_size = 1usize << page_shift;
    let mut list = PageList::with_capacity(pages.len());
    for (pfn, page) in (0..).zip(pages) {
        list.push(pfn, page);
    }
    let mut buffer = PackBuffer::default();
    compressor.compress(&list.batch(page_shift)?, &mut buffer.lend(pages.len(), page_size))?;
    let mut lens = Vec::with_capacity(pages.len());
    let mut back = vec![0u8; page_size];
    for ((stored, page), pfn) in buffer.pages().zip(pages).zip(0..) {
        lens.push(stored.map(<[u8]>::len));
        if let Some(stored) = stored {
            compressor.decompress(&[stored], page_size, &mut back)?;
            if back != *page {
                return Err(Error::format("a page came back changed").at_pfn(pfn));
            }
        }
    }
    Ok(lens)
}

/// Lets a writer write these pages (PFN, content) of a machine in batches of `batch` pages, and returns the file.
/// RAM and dumped pages are both the PFNs given.
///
/// # Errors
/// What the writer says.
pub fn write(writer: &mut dyn Writer, machine: &Machine, codec: u32, pages: &[(u64, PackedPage<'_>)], batch: usize) -> Result<Vec<u8>> {
    let pfns: Vec<u64> = pages.iter().map(|p| p.0).collect();
    let contents: Vec<PackedPage<'_>> = pages.iter().map(|p| p.1).collect();
    let sets = List(pfns.clone());
    let mut file = Memory::default();
    let plan = Plan {
        machine,
        pages: &sets,
        excluded: ClassSet::default(),
        codec,
        first_pfn: 0,
        end_pfn: machine.max_pfn,
        part: 0,
        parts: 1,
        written_at: 0,
    };
    writer.begin(&plan, &mut file)?;
    for (pfns, contents) in pfns.chunks(batch.max(1)).zip(contents.chunks(batch.max(1))) {
        writer.write(&PackedBatch::new(pfns, contents), &mut file)?;
    }
    writer.finish(&End { incomplete: false, lost_pages: 0 }, &mut file)?;
    Ok(file.bytes)
}

/// A sink in memory.
#[derive(Debug, Default)]
pub struct Memory {
    /// what was written
    pub bytes: Vec<u8>,
}

impl Sink for Memory {
    fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> Result<()> {
        let mut at = usize::try_from(offset).map_err(|_| Error::new(ErrorKind::NoSpace, "beyond memory"))?;
        for piece in pieces {
            let end = at.saturating_add(piece.len());
            if self.bytes.len() < end {
                self.bytes.resize(end, 0);
            }
            if let Some(room) = self.bytes.get_mut(at..end) {
                room.copy_from_slice(piece);
            }
            at = end;
        }
        Ok(())
    }
    fn reserve(&mut self, len: u64) -> Result<()> {
        let len = usize::try_from(len).map_err(|_| Error::new(ErrorKind::NoSpace, "beyond memory"))?;
        self.bytes.resize(self.bytes.len().max(len), 0);
        Ok(())
    }
    fn positioned(&self) -> bool {
        true
    }
}

/// A page set that is a sorted list.
struct List(Vec<u64>);

impl PageSets for List {
    fn bitmap(&self, _: PageSet, first_pfn: u64, out: &mut [u8]) {
        out.fill(0);
        for pfn in &self.0 {
            let bit = pfn.wrapping_sub(first_pfn);
            if let Some(byte) = usize::try_from(bit / 8).ok().and_then(|i| out.get_mut(i)) {
                *byte |= 1 << (bit % 8);
            }
        }
    }
    fn runs(&self, _: PageSet, from_pfn: u64, out: &mut [Run]) -> usize {
        let mut singles = self.0.iter().filter(|&&p| p >= from_pfn);
        out.iter_mut().zip(&mut singles).map(|(run, &first_pfn)| *run = Run { first_pfn, pages: 1 }).count()
    }
    fn count(&self, _: PageSet) -> u64 {
        self.0.len() as u64
    }
}

struct Quiet;

impl HostServices for Quiet {
    fn log(&self, _: u32, _: &str) {}
    fn cancelled(&self) -> bool {
        false
    }
}

/// A host whose machine has these pieces of physical memory (address, bytes), for [`Setup::host`].
pub fn host_with_memory(pieces: Vec<(u64, Vec<u8>)>) -> Host {
    Host::new(Arc::new(WithMemory(pieces)))
}

struct WithMemory(Vec<(u64, Vec<u8>)>);

impl HostServices for WithMemory {
    fn log(&self, _: u32, _: &str) {}
    fn cancelled(&self) -> bool {
        false
    }
    fn physical_memory(&self) -> Option<&dyn ReadPhysical> {
        Some(self)
    }
}

impl ReadPhysical for WithMemory {
    fn read_physical(&self, paddr: u64, buf: &mut [u8]) -> usize {
        let found = self.0.iter().find_map(|(start, bytes)| bytes.get(usize::try_from(paddr.checked_sub(*start)?).ok()?..));
        let from = found.unwrap_or_default();
        let n = from.len().min(buf.len());
        if let (Some(to), Some(from)) = (buf.get_mut(..n), from.get(..n)) {
            to.copy_from_slice(from);
        }
        n
    }
}

/// A host whose machine has a kernel, for [`Setup::host`]: pieces of memory by kernel address, and the mem_map as one of
/// them. Kernel and physical addresses are the same.
#[derive(Debug, Default)]
pub struct WithKernel {
    /// (kernel address, bytes)
    pub memory: Vec<(u64, Vec<u8>)>,
    /// names and addresses
    pub symbols: Vec<(String, u64)>,
    /// address of the `struct page` of PFN 0, and bytes of each
    pub mem_map: (u64, u64),
}

impl WithKernel {
    /// The host.
    pub fn host(self) -> Host {
        Host::new(Arc::new(self))
    }

    fn at(&self, address: u64) -> &[u8] {
        let piece = |(start, bytes): &'_ (u64, Vec<u8>)| address.checked_sub(*start).filter(|d| *d < bytes.len() as u64).is_some();
        let found = self.memory.iter().find(|p| piece(p));
        found.and_then(|(start, bytes)| bytes.get((address - start) as usize..)).unwrap_or_default()
    }
}

impl HostServices for WithKernel {
    fn log(&self, _: u32, _: &str) {}
    fn cancelled(&self) -> bool {
        false
    }
    fn kernel(&self) -> Option<&dyn KernelView> {
        Some(self)
    }
}

impl KernelView for WithKernel {
    fn symbol(&self, name: &str) -> Option<u64> {
        self.symbols.iter().find(|(n, _)| n == name).map(|(_, address)| *address)
    }
    fn translate(&self, vaddr: u64) -> Option<Mapping> {
        let len = self.at(vaddr).len() as u64;
        (len > 0).then_some(Mapping { paddr: vaddr, len, flags: 0, reserved: 0 })
    }
    fn read(&self, vaddr: u64, buf: &mut [u8]) -> usize {
        let from = self.at(vaddr);
        let n = from.len().min(buf.len());
        buf.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
        n
    }
    fn struct_page(&self, pfn: u64) -> Option<u64> {
        let address = pfn.checked_mul(self.mem_map.1)?.checked_add(self.mem_map.0)?;
        (!self.at(address).is_empty()).then_some(address)
    }
    fn pfn(&self, struct_page: u64) -> Option<u64> {
        let distance = struct_page.checked_sub(self.mem_map.0)?;
        (!self.at(struct_page).is_empty()).then(|| distance / self.mem_map.1.max(1))
    }
}

/// Collects a plugin's messages.
#[derive(Debug, Default)]
pub struct Messages(Mutex<Vec<String>>);

impl Messages {
    /// A host that keeps what plugins say.
    pub fn host() -> (Host, Arc<Messages>) {
        let messages = Arc::new(Messages::default());
        (Host::new(messages.clone()), messages)
    }

    /// What was said so far.
    pub fn said(&self) -> Vec<String> {
        self.0.lock().map(|m| m.clone()).unwrap_or_default()
    }
}

impl HostServices for Messages {
    fn log(&self, _: u32, message: &str) {
        if let Ok(mut m) = self.0.lock() {
            m.push(message.into());
        }
    }
    fn cancelled(&self) -> bool {
        false
    }
}

struct Bytes {
    name: String,
    bytes: Vec<u8>,
    bad: std::ops::Range<u64>,
}

impl SourceBytes for Bytes {
    fn name(&self) -> String {
        self.name.clone()
    }
    fn size(&self) -> Option<u64> {
        Some(self.bytes.len() as u64)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if offset < self.bad.end && self.bad.start < offset.saturating_add(buf.len() as u64) {
            return Err(Error::new(ErrorKind::Io, format!("{}: bad sector", self.name)).at_offset(offset));
        }
        let rest = usize::try_from(offset).ok().and_then(|o| self.bytes.get(o..)).unwrap_or_default();
        let n = rest.len().min(buf.len());
        if let (Some(to), Some(from)) = (buf.get_mut(..n), rest.get(..n)) {
            to.copy_from_slice(from);
        }
        Ok(n)
    }
}
