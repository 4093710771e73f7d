//! An image being written.
//!
//! At every moment the headers claim no page that is not in the file:
//!
//! * A run that lies in one batch has its end in its header from the beginning; cut in it, the file tells by its length.
//! * A run that goes on in the next batch is prolonged: first come the pages, then the end in its header is written again.
//!   Until then they stand behind the end of the last range, where a reader finds no header and stops. The end is 8 bytes
//!   at an offset that 8 divides, so that it lies in one page of the disk and is written whole or not at all.
//! * In a stream, where going back costs a reader, the run begins a new range with each batch instead.
//! * A page that turns out missing ends its range.

use coresift_sdk::{Error, PackedBatch, PageContent, Plan, Result, Sink};

/// `LIME_MAGIC` of lime.h.
const MAGIC: u32 = 0x4c69_4d45;
/// Version of the header.
const VERSION: u32 = 1;
/// Bytes of a header.
const HEADER: usize = 32;
/// Offset of the range's last address in a header, u64.
const LAST_AT: usize = 16;
/// Zeros from this length on become a hole, in bytes: for fewer a write in two parts costs more than the zeros.
const HOLE_MIN: u64 = 64 << 10;

/// A range of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    /// offset of its header in the file
    at: u64,
    first_pfn: u64,
    end_pfn: u64,
}

/// Where one piece of a batch's output comes from.
#[derive(Debug, Clone, Copy)]
enum Piece<'a> {
    /// number of a header of the batch
    Header(usize),
    Page(&'a [u8]),
    /// this many zero pages
    Zeros(u64),
}

/// Between `begin` and `finish`.
#[derive(Debug)]
pub struct Image {
    page_shift: u32,
    sparse: bool,
    /// end of what counts; offset of the next byte
    end: u64,
    /// bytes behind `end` were perhaps written up to here, by a batch that failed: no holes before it
    tried: u64,
    /// the range that ends at `end`; none in a stream
    last: Option<Range>,
    /// the write that was to prolong it failed: what its header says is not known
    unsure: bool,
    /// all PFNs so far are below this one
    next_pfn: u64,
    zeros: Vec<u8>,
}

impl Image {
    /// An image without a range: an empty file.
    pub fn begin(plan: &Plan<'_>, sparse: bool) -> Self {
        let page_shift = plan.machine.page_shift;
        let zeros = vec![0; (HOLE_MIN as usize).max(plan.machine.page_size())];
        Self { page_shift, sparse, end: 0, tried: 0, last: None, unsure: false, next_pfn: 0, zeros }
    }

    /// Writes a batch. If it fails, it counts as not written and may come again in smaller pieces.
    pub fn write(&mut self, batch: &PackedBatch<'_>, sink: &mut dyn Sink) -> Result<()> {
        let page_size = 1u64 << self.page_shift;
        let going_on = self.last.filter(|_| sink.positioned());
        let mut ranges: Vec<Range> = going_on.into_iter().collect();
        let mut pieces: Vec<Piece<'_>> = Vec::with_capacity(batch.iter().len() + 1);
        let (mut at, mut next_pfn) = (self.end, self.next_pfn);
        for (pfn, content) in batch.iter() {
            if pfn < next_pfn || pfn >= u64::MAX >> self.page_shift {
                return Err(Error::format("pages out of order, or beyond 64 bits of address").at_pfn(pfn));
            }
            next_pfn = pfn + 1;
            let piece = match content {
                PageContent::Missing => continue,
                PageContent::Zero => Piece::Zeros(1),
                PageContent::Stored { data, codec: 0 } if data.len() as u64 == page_size => Piece::Page(data),
                PageContent::Stored { data, codec } => {
                    return Err(Error::format(format!("a page of codec {codec:#x} with {} bytes", data.len())).at_pfn(pfn));
                }
            };
            match ranges.last_mut() {
                Some(range) if range.end_pfn == pfn => range.end_pfn = next_pfn,
                _ => {
                    pieces.push(Piece::Header(ranges.len()));
                    ranges.push(Range { at, first_pfn: pfn, end_pfn: next_pfn });
                    at += HEADER as u64;
                }
            }
            match (pieces.last_mut(), piece) {
                (Some(Piece::Zeros(pages)), Piece::Zeros(_)) => *pages += 1,
                _ => pieces.push(piece),
            }
            at += page_size;
        }
        let headers: Vec<[u8; HEADER]> = ranges.iter().map(|range| self.header(range)).collect();
        let before = self.tried;
        self.tried = self.tried.max(at);
        self.put(&pieces, &headers, before, sink)?;
        // The range of an earlier batch, now that its pages are there.
        if let (Some(old), Some(new), Some(header)) = (going_on, ranges.first(), headers.first())
            && (old != *new || self.unsure)
        {
            self.unsure = true;
            let last = header.get(LAST_AT..LAST_AT + size_of::<u64>()).unwrap_or_default();
            sink.write_at(new.at + LAST_AT as u64, &[last])?;
            self.unsure = false;
        }
        (self.end, self.next_pfn, self.last) = (at, next_pfn, ranges.last().copied());
        Ok(())
    }

    /// Ends the image.
    pub fn finish(&self) -> Result<()> {
        if self.end > 0 {
            return Ok(());
        }
        Err(Error::format("not one page was written, and a LiME image without a page is none").hint("let the profile exclude less"))
    }

    /// Writes pieces from `end` on, with holes for long runs of zeros, but never for what a failed batch may have written
    /// before, up to `tried`, and never at the end, or the file would be too short.
    fn put(&self, pieces: &[Piece<'_>], headers: &[[u8; HEADER]], tried: u64, sink: &mut dyn Sink) -> Result<()> {
        let holes = self.sparse && sink.positioned();
        let (mut start, mut at) = (self.end, self.end);
        let mut out: Vec<&[u8]> = Vec::with_capacity(pieces.len());
        for (i, piece) in pieces.iter().enumerate() {
            match piece {
                Piece::Header(number) => {
                    out.extend(headers.get(*number).map(<[u8; HEADER]>::as_slice));
                    at += HEADER as u64;
                }
                Piece::Page(data) => {
                    out.push(data);
                    at += data.len() as u64;
                }
                Piece::Zeros(pages) => {
                    let end = at + (pages << self.page_shift);
                    let last = i + 1 == pieces.len();
                    let hole_end = if last { end - (1 << self.page_shift) } else { end };
                    if holes && at >= tried && hole_end - at >= HOLE_MIN {
                        if !out.is_empty() {
                            sink.write_at(start, &out)?;
                            out.clear();
                        }
                        (start, at) = (hole_end, hole_end);
                    }
                    while at < end {
                        let n = (end - at).min(self.zeros.len() as u64);
                        out.extend(self.zeros.get(..n as usize));
                        at += n;
                    }
                }
            }
        }
        if out.is_empty() { Ok(()) } else { sink.write_at(start, &out) }
    }

    fn header(&self, range: &Range) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        let (first, end) = (range.first_pfn << self.page_shift, range.end_pfn << self.page_shift);
        let fields = MAGIC.to_le_bytes().into_iter().chain(VERSION.to_le_bytes());
        let fields = fields.chain(first.to_le_bytes()).chain((end - 1).to_le_bytes());
        header.iter_mut().zip(fields).for_each(|(to, byte)| *to = byte);
        header
    }
}
