//! A dump being written.

use coresift_sdk::codec::{NONE, ZLIB};
use coresift_sdk::{End, Error, PackedBatch, PageContent, PageSet, Plan, Result, Sink};

use crate::descriptors::{DESCRIPTOR, Descriptor};
use crate::geometry::Geometry;
use crate::header::{INCOMPLETE, SIGNATURE, header, status, sub_header};
use crate::layout::Layout;
use crate::notes::Notes;

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
    /// pages whose descriptors are done; the next page's rank, since batches cover the dumped PFNs in order
    done: u64,
    /// all PFNs so far are below this one
    next_pfn: u64,
    /// where the next data goes
    data_at: u64,
    /// a batch failed
    lost: bool,
    /// what stands for a page that is not there
    missing: Descriptor,
    /// descriptors of a batch, kept to be used again
    table: Vec<u8>,
}

impl Dump {
    /// Writes all that goes before the pages.
    ///
    /// The signature comes last: killed before it, the file is no dump; after it, it is one whose pages are all lost.
    pub fn begin(plan: &Plan<'_>, sink: &mut dyn Sink) -> Result<Self> {
        let layout = Layout::of(plan.machine);
        let notes = Notes::of(plan.machine, layout);
        let geometry = Geometry::of(plan, layout, notes.len())?;
        let status = status(plan.codec)?;
        let zeros = vec![0u8; plan.machine.page_size()];

        // Descriptors that are all zero say "lost"; crash before 8.0.6 dies of SIGBUS in a file too short for its bitmaps.
        sink.reserve(geometry.data_at())?;
        let sub = sub_header(plan, layout, &geometry, &notes);
        // Readers read whole blocks.
        let padding = padding(&zeros, sub.len() + notes.len());
        sink.write_at(geometry.block, &[&sub, notes.input, &notes.added, padding])?;
        bitmap(plan, PageSet::Ram, geometry.bitmap_len, geometry.bitmaps_at, sink)?;
        bitmap(plan, PageSet::Dumped, geometry.bitmap_len, geometry.bitmaps_at + geometry.bitmap_len, sink)?;
        // Written in any case: it is one page, and whether a zero page will come is not known yet.
        sink.write_at(geometry.zero_at, &[&zeros])?;
        let status_at = write_header(plan, layout, &geometry, status | INCOMPLETE, &zeros, sink)?;
        // In a flattened file crash does not look at the offset: of a raw page without bytes it returns what its buffer
        // held before; of a zlib page without bytes it says that it cannot be uncompressed.
        let missing = Descriptor { flags: if sink.positioned() { NONE } else { ZLIB }, ..Descriptor::default() };
        let data_at = geometry.data_at();
        Ok(Self { layout, geometry, status, status_at, done: 0, next_pfn: 0, data_at, lost: false, missing, table: Vec::new() })
    }

    /// Writes a batch: first the data, then the descriptors.
    ///
    /// A batch that fails still takes its descriptors, all zero, so that later batches get theirs at the right place.
    pub fn write(&mut self, batch: &PackedBatch<'_>, sink: &mut dyn Sink) -> Result<()> {
        let first = self.done;
        let done = first.saturating_add(batch.iter().len() as u64);
        if done > self.geometry.descriptors {
            self.lost = true;
            return Err(Error::format(format!("more pages than the {} planned", self.geometry.descriptors)));
        }
        self.done = done;
        let result = self.put(batch, first, sink);
        self.lost |= result.is_err();
        result
    }

    fn put(&mut self, batch: &PackedBatch<'_>, first: u64, sink: &mut dyn Sink) -> Result<()> {
        let block = self.geometry.block as usize;
        let mut at = self.data_at;
        let mut pieces = Vec::with_capacity(batch.iter().len());
        self.table.clear();
        for (pfn, content) in batch.iter() {
            if pfn < self.next_pfn {
                return Err(Error::format("pages out of order").at_pfn(pfn));
            }
            self.next_pfn = pfn.saturating_add(1);
            let descriptor = match content {
                PageContent::Stored { data, codec } => {
                    // crash copies a whole page out of a raw one, however short. A compressed one is shorter than a page,
                    // so that a descriptor torn before its codec is never taken for a raw page's.
                    let fits = if codec == 0 { data.len() == block } else { (1..block).contains(&data.len()) };
                    if !fits {
                        return Err(Error::format(format!("a page of codec {codec:#x} with {} bytes", data.len())).at_pfn(pfn));
                    }
                    let stored = Descriptor { offset: at, size: data.len() as u32, flags: status(codec)? };
                    at += data.len() as u64;
                    pieces.push(data);
                    stored
                }
                PageContent::Zero => Descriptor { offset: self.geometry.zero_at, size: block as u32, flags: 0 },
                // Its bit in the bitmap stays, so its descriptor must too; readers give an error.
                PageContent::Missing => self.missing,
            };
            descriptor.append_to(&mut self.table, self.layout);
        }
        if !pieces.is_empty() {
            sink.write_at(self.data_at, &pieces)?;
            self.data_at = at;
        }
        if !self.table.is_empty() {
            sink.write_at(self.geometry.descriptors_at + first * DESCRIPTOR as u64, &[&self.table])?;
        }
        Ok(())
    }

    /// Takes the incomplete mark away if every page is there.
    pub fn finish(&self, end: &End, sink: &mut dyn Sink) -> Result<()> {
        let missing = self.geometry.descriptors - self.done;
        let complete = !end.incomplete && end.lost_pages == 0 && !self.lost && missing == 0;
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
    let mut piece = vec![0u8; usize::try_from(len).map_or(BITMAP_PIECE, |len| len.min(BITMAP_PIECE))];
    let mut done = 0u64;
    while done < len {
        let rest = usize::try_from(len - done).unwrap_or(BITMAP_PIECE).min(piece.len());
        let Some(bits) = piece.get_mut(..rest) else { break };
        plan.pages.bitmap(which, done * 8, bits);
        sink.write_at(at + done, &[bits])?;
        done += rest as u64;
    }
    Ok(())
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
