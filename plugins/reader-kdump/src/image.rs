//! The reader: an opened dump of one file, or of the parts of a split set.

use coresift_sdk::{Error, ErrorKind, Extent, ExtentKind, Machine, PageState, Reader, Result, Source, StoredPage, codec};

use crate::bitmaps::{Bitmaps, Ranked, dumped_below, ranks};
use crate::header::Header;
use crate::layout::Layout;
use crate::machine::machine;

/// Bytes of `struct page_desc`: off_t offset, u32 size, u32 flags, u64 page_flags, the same in all layouts.
const DESCRIPTOR: usize = 24;
/// All codec bits that the format has.
const CODECS: u32 = codec::ZLIB | codec::LZO | codec::SNAPPY | codec::ZSTD;

/// One file.
#[derive(Debug)]
struct Part {
    source: Source,
    /// its PFNs
    first_pfn: u64,
    end_pfn: u64,
    /// rank of its first descriptor among all dumped pages
    first_rank: u64,
    descriptors_at: u64,
    /// offset of the page that all zero pages share, 0 if there is none
    zero_at: u64,
}

/// An opened dump.
#[derive(Debug)]
pub struct Dump {
    machine: Machine,
    layout: Layout,
    block: u64,
    /// by first PFN
    parts: Vec<Part>,
    runs: Vec<Ranked>,
    extents: Vec<Extent>,
}

impl Dump {
    /// Opens it.
    ///
    /// # Errors
    /// An input is no dump, or they are not the parts of one.
    pub fn open(sources: &[Source]) -> Result<Self> {
        let mut files = Vec::new();
        for source in sources {
            files.push((source.clone(), Header::read(source)?));
        }
        if files.len() > 1 {
            one_set(&files)?;
        }
        files.sort_by_key(|(_, header)| header.part);
        let Some((source, header)) = files.first() else { return Err(Error::format("no input")) };
        let mut machine = machine(header, files.len());
        for (_, other) in files.iter().skip(1) {
            machine.incomplete |= other.status & crate::header::INCOMPLETE != 0;
        }
        let bitmaps = Bitmaps::read(&files);
        if let Some(pfn) = bitmaps.cut {
            machine.incomplete = true;
            let what = format!("its bitmaps end, or cannot be read, at PFN {pfn:#x}: the pages from there on are lost");
            machine.warnings.push(format!("{}: {what}", source.name()));
        }
        if bitmaps.ram_unknown > 0 {
            let what = "its bitmap of all RAM cannot be read for";
            let then = "those that are not dumped are taken for holes";
            machine.warnings.push(format!("{}: {what} {} pages: {then}", source.name(), bitmaps.ram_unknown));
        }
        if bitmaps.full {
            machine.incomplete = true;
            let what = "has more runs of pages in its bitmaps than any machine: damaged; those at high addresses are left out";
            machine.warnings.push(format!("{}: {what}", source.name()));
        }
        let mut dump =
            Self { machine, layout: header.layout, block: header.block, parts: Vec::new(), runs: bitmaps.runs, extents: bitmaps.extents };
        dump.take_parts(&files)?;
        Ok(dump)
    }

    fn take_parts(&mut self, files: &[(Source, Header)]) -> Result<()> {
        let mut covered = 0;
        for (source, header) in files {
            let (first_pfn, end_pfn) = header.part.unwrap_or((0, u64::MAX));
            if first_pfn < covered {
                let message = format!("{}: its pages from PFN {first_pfn:#x} on overlap those of another part", source.name());
                return Err(Error::format(message).hint("give each part of the split dump once"));
            }
            if first_pfn > covered {
                self.missing(covered, first_pfn);
            }
            covered = end_pfn;
            let first_rank = dumped_below(&self.runs, first_pfn);
            let here = dumped_below(&self.runs, end_pfn.min(header.max_mapnr)).saturating_sub(first_rank);
            let descriptors_at = header.descriptors_at();
            let data_at = here.checked_mul(DESCRIPTOR as u64).and_then(|len| descriptors_at.checked_add(len));
            // The page that all zero pages share stands behind the descriptors; in a part behind room for those of all
            // parts, and then the hole before it is zero, too.
            let all = dumped_below(&self.runs, header.max_mapnr).checked_mul(DESCRIPTOR as u64);
            let behind_all = all.and_then(|len| descriptors_at.checked_add(len));
            let places = [behind_all, data_at].into_iter().flatten();
            let zero_at = places.into_iter().find(|at| self.is_zero_block(source, *at)).unwrap_or(0);
            if let (Some(size), Some(data_at)) = (source.size(), data_at)
                && size < data_at
                && here > 0
            {
                self.machine.incomplete = true;
                self.machine.warnings.push(format!(
                    "{}: ends before its page descriptors do: {} of {here} pages are in it at most",
                    source.name(),
                    size.saturating_sub(descriptors_at) / DESCRIPTOR as u64
                ));
            }
            self.parts.push(Part { source: source.clone(), first_pfn, end_pfn, first_rank, descriptors_at, zero_at });
        }
        let end = self.machine.max_pfn;
        if covered < end {
            self.missing(covered, end);
        }
        Ok(())
    }

    /// Pages of a part that was not given: absent.
    fn missing(&mut self, first: u64, end: u64) {
        let pages = dumped_below(&self.runs, end) - dumped_below(&self.runs, first);
        if pages == 0 {
            return;
        }
        self.machine.incomplete = true;
        self.machine.warnings.push(format!(
            "the part of the split dump with PFNs {first:#x} to {:#x} is missing: {pages} pages are absent; give all parts as inputs",
            end - 1
        ));
        let mut extents = Vec::with_capacity(self.extents.len() + 2);
        for e in &self.extents {
            let cut = [(e.first_pfn, first), (e.first_pfn.max(first), end), (e.first_pfn.max(end), u64::MAX)];
            for (i, (from, to)) in cut.into_iter().enumerate() {
                let to = to.min(e.end_pfn());
                if from < to && e.kind == ExtentKind::STORED {
                    let pages = to - from;
                    extents.push(if i == 1 { Extent::absent(from, pages) } else { Extent::stored(from, pages) });
                } else if i == 0 && e.kind != ExtentKind::STORED {
                    extents.push(*e);
                }
            }
        }
        self.extents = extents;
    }

    fn is_zero_block(&self, source: &Source, at: u64) -> bool {
        source.read_vec(at, self.block as usize).is_ok_and(|block| coresift_sdk::page::is_zero(&block))
    }

    fn part_of(&self, pfn: u64) -> Option<&Part> {
        let part = self.parts.get(self.parts.partition_point(|p| p.first_pfn <= pfn).checked_sub(1)?)?;
        (pfn < part.end_pfn).then_some(part)
    }

    /// Reads pages whose descriptors stand one behind the other in one part: `count` from `rank` on.
    fn read_run(&self, part: &Part, rank: u64, buf: &mut [u8], used: &mut usize, pages: &mut [StoredPage]) -> Result<()> {
        let table_at = part.descriptors_at.saturating_add((rank - part.first_rank).saturating_mul(DESCRIPTOR as u64));
        let mut table = vec![0u8; pages.len() * DESCRIPTOR];
        let read = part.source.read_at(table_at, &mut table);
        let failure = match read {
            Ok(n) => {
                table.truncate(n / DESCRIPTOR * DESCRIPTOR);
                Ok(())
            }
            Err(e) => {
                // A bad sector hides the good ones beside it: those descriptors that can be read count.
                for (at, one) in (table_at..).step_by(DESCRIPTOR).zip(table.chunks_exact_mut(DESCRIPTOR)) {
                    if part.source.read_at(at, one).ok() != Some(DESCRIPTOR) {
                        one.fill(0);
                    }
                }
                Err(e)
            }
        };
        // Data of neighbours mostly stands one behind the other: one read for as many as possible.
        let mut stretch = Stretch { first: 0, pages: 0, offset: 0, len: 0 };
        for (i, descriptor) in table.chunks_exact(DESCRIPTOR).enumerate() {
            let offset = self.layout.u64(descriptor);
            let size = self.layout.u32(descriptor.get(8..).unwrap_or_default());
            let flags = self.layout.u32(descriptor.get(12..).unwrap_or_default());
            let good = offset != 0 && size != 0 && u64::from(size) <= self.block && (flags & CODECS).count_ones() <= 1;
            let raw_fits = flags & CODECS != 0 || u64::from(size) == self.block;
            let Some(page) = pages.get_mut(i).filter(|_| good && raw_fits) else { continue };
            if offset == part.zero_at && flags & CODECS == 0 {
                *page = StoredPage::zero();
                continue;
            }
            if stretch.pages > 0 && (stretch.end() != Some(offset) || stretch.first + stretch.pages != i) {
                stretch.take(part, buf, used, pages);
                stretch.pages = 0;
            }
            if stretch.pages == 0 {
                stretch = Stretch { first: i, pages: 0, offset, len: 0 };
            }
            stretch.pages += 1;
            stretch.len += u64::from(size);
            if let Some(page) = pages.get_mut(i) {
                *page = StoredPage::stored(0, size, flags & CODECS);
            }
        }
        if stretch.pages > 0 {
            stretch.take(part, buf, used, pages);
        }
        failure
    }
}

/// Pages whose bytes stand one behind the other in the file.
struct Stretch {
    first: usize,
    pages: usize,
    offset: u64,
    len: u64,
}

impl Stretch {
    fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }

    /// Reads the bytes behind what the buffer holds; pages that the file has not got become missing.
    fn take(&self, part: &Part, buf: &mut [u8], used: &mut usize, pages: &mut [StoredPage]) {
        let room = buf.get_mut(*used..).and_then(|rest| rest.get_mut(..self.len as usize)).unwrap_or_default();
        let Ok(got) = part.source.read_at(self.offset, room) else { return self.take_each(part, room, used, pages) };
        let mut at = 0usize;
        for page in pages.iter_mut().skip(self.first).take(self.pages) {
            let end = at + page.len as usize;
            if end <= got {
                page.at = (*used + at) as u32;
            } else {
                *page = StoredPage::default();
            }
            at = end;
        }
        *used += got.min(at);
    }

    /// Reads page by page: a bad sector hides the good ones beside it.
    fn take_each(&self, part: &Part, mut room: &mut [u8], used: &mut usize, pages: &mut [StoredPage]) {
        let mut offset = self.offset;
        for page in pages.iter_mut().skip(self.first).take(self.pages) {
            let len = page.len as usize;
            let (bytes, rest) = std::mem::take(&mut room).split_at_mut_checked(len).unwrap_or_default();
            room = rest;
            if !bytes.is_empty() && part.source.read_at(offset, bytes).ok() == Some(len) {
                page.at = *used as u32;
            } else {
                *page = StoredPage::default();
            }
            *used += len;
            offset += len as u64;
        }
    }
}

impl Reader for Dump {
    fn machine(&self) -> Machine {
        self.machine.clone()
    }

    fn extents(&self) -> Vec<Extent> {
        self.extents.clone()
    }

    fn read_pages(&self, _: &[u64], _: &mut [u8], _: &mut [PageState]) -> Result<()> {
        Err(Error::new(ErrorKind::Other, "pages of a kdump file are stored ones, not encoded"))
    }

    fn read_stored(&self, pfns: &[u64], buf: &mut [u8], pages: &mut [StoredPage]) -> Result<usize> {
        if buf.len() < pfns.len().saturating_mul(self.block as usize) || pages.len() != pfns.len() {
            return Err(Error::new(ErrorKind::Other, "room for another number of pages than asked for"));
        }
        let ranks = ranks(&self.runs, pfns);
        let (mut i, mut used) = (0, 0);
        let mut failure = None;
        while let (Some(pfn), Some(rank)) = (pfns.get(i), ranks.get(i)) {
            let Some((part, first)) = self.part_of(*pfn).zip(*rank) else {
                i += 1;
                continue;
            };
            let rest = pfns.iter().zip(&ranks).skip(i).take_while(|(pfn, _)| **pfn < part.end_pfn);
            let n = (first..).zip(rest).take_while(|(expected, (_, rank))| **rank == Some(*expected)).count().max(1);
            let room = pages.get_mut(i..i + n).unwrap_or_default();
            if let Err(e) = self.read_run(part, first, buf, &mut used, room) {
                failure.get_or_insert(e.at_pfn(*pfn));
            }
            i += n;
        }
        match failure {
            Some(e) if pages.iter().all(|p| p.state == StoredPage::MISSING) => Err(e),
            _ => Ok(pfns.len()),
        }
    }
}

/// Seconds between the headers of a set's parts at most: whoever writes them one by one takes the time for each.
const PARTS_TIME_MAX: u64 = 3600;

/// Checks that the files are parts of one dump.
fn one_set(files: &[(Source, Header)]) -> Result<()> {
    let Some((first_source, first)) = files.first() else { return Ok(()) };
    for (source, header) in files {
        if header.part.is_none() {
            let message = format!("{}: a whole dump, not a part of a split one", source.name());
            return Err(Error::unsupported(message).hint("give one dump, or all parts of one split dump"));
        }
        let key = |h: &Header| (h.layout, h.block, h.max_mapnr, h.bitmap_blocks, h.utsname.clone());
        let told = |h: &Header| !h.vmcoreinfo.is_empty();
        let other_kernel = told(header) && told(first) && header.vmcoreinfo != first.vmcoreinfo;
        if key(header) != key(first) || header.time.abs_diff(first.time) > PARTS_TIME_MAX || other_kernel {
            let message = format!("{} and {} are parts of different dumps", first_source.name(), source.name());
            return Err(Error::format(message).hint("give the parts of one split dump"));
        }
    }
    Ok(())
}
