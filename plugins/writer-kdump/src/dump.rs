//! A dump being written.

use coresift_sdk::codec::ZLIB;
use coresift_sdk::{End, Error, PackedBatch, PageContent, PageSet, Plan, Result, Run, Sink, Verdict};

use crate::descriptors::{DESCRIPTOR, Descriptor};
use crate::geometry::Geometry;
use crate::header::{EXCLUDED_VMEMMAP, INCOMPLETE, SIGNATURE, header, status, sub_header};
use crate::layout::Layout;
use crate::marks::Marks;
use crate::notes::Notes;
use crate::sharing::Sharing;

/// Bitmaps go out in pieces of this size, so that memory stays the same for any machine: the two of 4 TiB of RAM have
/// 128 MiB each.
const BITMAP_PIECE: usize = 1 << 20;

/// Between `begin` and `finish`.
pub struct Dump {
    layout: Layout,
    geometry: Geometry,
    /// the status of a complete dump
    status: u32,
    status_at: u64,
    /// pages that came, of those planned
    come: u64,
    /// descriptors that are written; the next page's rank
    described: u64,
    /// all PFNs so far are below this one
    next_pfn: u64,
    /// where the next data goes
    data_at: u64,
    /// bits of the bitmap of dumped pages; `None` in a stream, which has all of them in front
    marks: Option<Marks>,
    /// pages with the same bytes share them
    sharing: Option<Sharing>,
    /// PFNs and descriptors of a batch, kept to be used again
    pfns: Vec<u64>,
    table: Vec<u8>,
}

impl Dump {
    /// Writes all that goes before the pages.
    ///
    /// The signature comes last: killed before it, the file is no dump; after it, it is one without pages.
    pub fn begin(plan: &Plan<'_>, dedup: bool, sink: &mut dyn Sink) -> Result<Self> {
        let layout = Layout::of(plan.machine);
        let notes = Notes::of(plan.machine, layout);
        let geometry = Geometry::of(plan, layout, notes.len() + notes.erased.len())?;
        let mut status = status(plan.codec)?;
        if plan.excluded.contains(Verdict::MEMMAP) {
            status |= EXCLUDED_VMEMMAP;
        }
        let zeros = vec![0u8; plan.machine.page_size()];
        // A page's bit is set when the page is there, so that a file never claims one that it has not got. Going back to
        // the bitmap costs the reader of a stream, so a stream claims all pages in front. So does each part of a split
        // dump: its bitmap is that of the whole, and a part does not know what became of the others' pages.
        let marks = (sink.positioned() && plan.parts <= 1).then(Marks::default);

        // crash before 8.0.6 dies of SIGBUS in a file too short for its bitmaps. Behind them a part has a hole.
        sink.reserve(geometry.head_len())?;
        let sub = sub_header(plan, layout, &geometry, &notes);
        // Readers read whole blocks.
        let padding = padding(&zeros, sub.len() + notes.len() + notes.erased.len());
        sink.write_at(geometry.block, &[&sub, notes.input, &notes.added, notes.erased, padding])?;
        bitmap(plan, PageSet::Ram, geometry.bitmap_len, geometry.bitmaps_at, sink)?;
        if marks.is_none() {
            bitmap(plan, PageSet::Dumped, geometry.bitmap_len, geometry.dumped_at(), sink)?;
        }
        // Written in any case: it is one page, and whether a zero page will come is not known yet.
        sink.write_at(geometry.zero_at, &[&zeros])?;
        let status_at = write_header(plan, layout, &geometry, status | INCOMPLETE, &zeros, sink)?;
        let data_at = geometry.data_at();
        let (pfns, table, sharing) = (Vec::new(), Vec::new(), dedup.then(Sharing::new));
        Ok(Self { layout, geometry, status, status_at, come: 0, described: 0, next_pfn: 0, data_at, marks, sharing, pfns, table })
    }

    /// Writes a batch: the data, then the descriptors, then the bits that say that both are there.
    ///
    /// A batch that fails leaves nothing behind that a reader sees; it may be given again in smaller pieces.
    pub fn write(&mut self, batch: &PackedBatch<'_>, sink: &mut dyn Sink) -> Result<()> {
        let written = self.try_write(batch, sink);
        if written.is_err() {
            // It knows of bytes that are not in the file.
            self.sharing = self.sharing.take().map(|_| Sharing::new());
        }
        written
    }

    fn try_write(&mut self, batch: &PackedBatch<'_>, sink: &mut dyn Sink) -> Result<()> {
        let come = self.come.saturating_add(batch.iter().len() as u64);
        if come > self.geometry.descriptors {
            return Err(Error::format(format!("more pages than the {} planned", self.geometry.descriptors)));
        }
        let block = self.geometry.block as usize;
        let (mut data_at, mut next_pfn) = (self.data_at, self.next_pfn);
        let mut pieces = Vec::with_capacity(batch.iter().len());
        self.table.clear();
        self.pfns.clear();
        for (pfn, content) in batch.iter() {
            if pfn < next_pfn {
                return Err(Error::format("pages out of order").at_pfn(pfn));
            }
            next_pfn = pfn.saturating_add(1);
            let descriptor = match content {
                PageContent::Stored { data, codec } => {
                    // crash copies a whole page out of a raw one, however short. A compressed one is shorter than a page.
                    let fits = if codec == 0 { data.len() == block } else { (1..block).contains(&data.len()) };
                    if !fits {
                        return Err(Error::format(format!("a page of codec {codec:#x} with {} bytes", data.len())).at_pfn(pfn));
                    }
                    let stored = Descriptor { offset: data_at, size: data.len() as u32, flags: status(codec)? };
                    match self.sharing.as_mut().and_then(|sharing| sharing.find(data, stored)) {
                        Some(same) => same,
                        None => {
                            data_at += data.len() as u64;
                            pieces.push(data);
                            stored
                        }
                    }
                }
                PageContent::Zero => Descriptor { offset: self.geometry.zero_at, size: block as u32, flags: 0 },
                PageContent::Missing if self.marks.is_some() => continue,
                // A stream or part has claimed the page, so it needs a descriptor. crash does not look at the offset of one in a
                // flattened file: of a raw page without bytes it returns what its buffer held before; of a zlib page
                // without bytes it says that it cannot be uncompressed.
                PageContent::Missing => Descriptor { flags: ZLIB, ..Descriptor::default() },
            };
            descriptor.append_to(&mut self.table, self.layout);
            self.pfns.push(pfn);
        }
        if !pieces.is_empty() {
            sink.write_at(self.data_at, &pieces)?;
        }
        if !self.table.is_empty() {
            sink.write_at(self.geometry.descriptors_at + self.described * DESCRIPTOR as u64, &[&self.table])?;
        }
        if let Some(marks) = &mut self.marks {
            marks.write(&self.pfns, self.geometry.dumped_at(), sink)?;
        }
        self.described += self.pfns.len() as u64;
        (self.come, self.data_at, self.next_pfn) = (come, data_at, next_pfn);
        Ok(())
    }

    /// Takes the incomplete mark away if every page is there.
    pub fn finish(&self, end: &End, sink: &mut dyn Sink) -> Result<()> {
        let missing = self.geometry.descriptors - self.come;
        let complete = !end.incomplete && end.lost_pages == 0 && missing == 0;
        if complete {
            sink.write_at(self.status_at, &[&self.layout.word32(self.status)])?;
        } else if !sink.positioned() {
            sink.write_at(self.status_at, &[&self.layout.word32(self.status | INCOMPLETE)])?;
        }
        if missing != 0 && !end.incomplete {
            return Err(Error::format(format!("{missing} of the {} pages planned did not come", self.geometry.descriptors)));
        }
        Ok(())
    }
}

/// Writes a bitmap.
fn bitmap(plan: &Plan<'_>, which: PageSet, len: u64, at: u64, sink: &mut dyn Sink) -> Result<()> {
    let mut done = 0u64;
    let mut piece = vec![0u8; usize::try_from(len).map_or(BITMAP_PIECE, |len| len.min(BITMAP_PIECE))];
    // Address space without memory can be a thousand times the memory: its bits are the zeros that are there already.
    while let Some(pfn) = next_page(plan, which, done * 8).filter(|pfn| pfn / 8 < len) {
        done += (pfn / 8 - done) / BITMAP_PIECE as u64 * BITMAP_PIECE as u64;
        let rest = usize::try_from(len - done).unwrap_or(BITMAP_PIECE).min(piece.len());
        let Some(bits) = piece.get_mut(..rest) else { break };
        plan.pages.bitmap(which, done * 8, bits);
        sink.write_at(at + done, &[bits])?;
        done += rest as u64;
    }
    Ok(())
}

/// The first page of a set at or behind `from`.
fn next_page(plan: &Plan<'_>, which: PageSet, from: u64) -> Option<u64> {
    let mut run = [Run { first_pfn: 0, pages: 0 }];
    (plan.pages.runs(which, from, &mut run) == 1).then(|| run.first().map(|r| r.first_pfn))?
}

/// Writes the header's block, the signature last, and returns the offset of the status.
///
/// A stream's status is left out, and written by `finish` alone: crash reads flattened files without sorting out which
/// of two records for an offset is the later one, and a stream without its end mark opens nowhere anyway.
fn write_header(plan: &Plan<'_>, layout: Layout, geometry: &Geometry, status: u32, zeros: &[u8], sink: &mut dyn Sink) -> Result<u64> {
    let (bytes, status_at) = header(plan, layout, geometry, status);
    let part = |range: std::ops::Range<usize>| bytes.get(range).unwrap_or_default();
    let padding = padding(zeros, bytes.len());
    if sink.positioned() {
        sink.write_at(SIGNATURE.len() as u64, &[part(SIGNATURE.len()..bytes.len()), padding])?;
    } else {
        let behind = status_at + size_of::<u32>();
        sink.write_at(SIGNATURE.len() as u64, &[part(SIGNATURE.len()..status_at)])?;
        sink.write_at(behind as u64, &[part(behind..bytes.len()), padding])?;
    }
    sink.write_at(0, &[SIGNATURE])?;
    Ok(status_at as u64)
}

/// The zeros that fill the last block after `len` bytes.
fn padding(zeros: &[u8], len: usize) -> &[u8] {
    zeros.get(..len.next_multiple_of(zeros.len().max(1)) - len).unwrap_or_default()
}
