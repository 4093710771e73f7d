//! From segments to pages.
//!
//! Segments may overlap (the kernel's text is in every kdump vmcore twice), begin and end anywhere, and there may be a
//! million of them. Two steps make extents of them, both in O(n log n):
//!
//! 1. `pieces`: a sweep over the physical addresses cuts overlapping segments into disjoint *pieces*. Where several
//!    segments have a byte, the first in file order wins, as in makedumpfile and crash.
//! 2. [`Layout::extents`]: pages that lie wholly within one piece are mapped; pages with an edge in them are encoded and
//!    put together by [`Layout::read_page`]; the other pages of RAM are absent.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use coresift_sdk::{Extent, ExtentKind, Result, Run, Source};

use crate::segments::Segment;

/// Bytes of memory that stand one behind the other in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    /// physical address of the first byte
    start: u64,
    /// one behind the last
    end: u64,
    /// file offset of the first byte
    offset: u64,
}

/// Where the bytes of all pages are.
#[derive(Debug)]
pub struct Layout {
    page_shift: u32,
    /// ascending, disjoint
    pieces: Vec<Piece>,
    /// all RAM, ascending, with gaps between
    ram: Vec<Run>,
}

impl Layout {
    /// Lays out segments, given in file order.
    pub fn new(segments: &[Segment], page_shift: u32, warnings: &mut Vec<String>) -> Self {
        let mut data: Vec<Piece> = Vec::with_capacity(segments.len());
        for s in segments {
            let end = s.paddr + s.filesz;
            // The page in which a file was cut is missing: half a page with zeros behind it would be a lie.
            let end = if s.cut { end >> page_shift << page_shift } else { end };
            data.push(Piece { start: s.paddr, end: end.max(s.paddr), offset: s.offset });
        }
        Self { page_shift, pieces: pieces(&data, warnings), ram: ram(segments, page_shift) }
    }

    /// One behind the highest PFN of RAM.
    pub fn max_pfn(&self) -> u64 {
        self.ram.last().map_or(0, Run::end_pfn)
    }

    /// All RAM as extents, ascending and disjoint.
    pub fn extents(&self) -> Vec<Extent> {
        let mut extents = Vec::new();
        let mut data = self.data_extents().into_iter().peekable();
        for run in &self.ram {
            let mut next = run.first_pfn;
            while let Some(extent) = data.next_if(|e| e.first_pfn < run.end_pfn()) {
                if next < extent.first_pfn {
                    extents.push(Extent::absent(next, extent.first_pfn - next));
                }
                next = extent.end_pfn();
                extents.push(extent);
            }
            if next < run.end_pfn() {
                extents.push(Extent::absent(next, run.end_pfn() - next));
            }
        }
        extents
    }

    /// The pages that have bytes in the file.
    fn data_extents(&self) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for piece in &self.pieces {
            let first_whole = self.page_up(piece.start);
            let end_whole = piece.end >> self.page_shift;
            if !self.is_page_start(piece.start) {
                append_encoded(&mut extents, piece.start >> self.page_shift);
            }
            if first_whole < end_whole {
                let offset = piece.offset + ((first_whole << self.page_shift) - piece.start);
                extents.push(Extent::mapped(first_whole, end_whole - first_whole, 0, offset));
            }
            if !self.is_page_start(piece.end) {
                append_encoded(&mut extents, end_whole);
            }
        }
        extents
    }

    /// Puts page `pfn` together; bytes that no segment has are zero, as makedumpfile does it. False if the file has
    /// nothing of the page, or ends within it.
    ///
    /// # Errors
    /// A read failed.
    pub fn read_page(&self, source: &Source, pfn: u64, page: &mut [u8]) -> Result<bool> {
        page.fill(0);
        let Some(page_start) = pfn.checked_mul(1 << self.page_shift) else { return Ok(false) };
        let page_end = page_start.saturating_add(page.len() as u64);
        let first = self.pieces.partition_point(|p| p.end <= page_start);
        let mut found = false;
        for piece in self.pieces.iter().skip(first).take_while(|p| p.start < page_end) {
            let start = piece.start.max(page_start);
            let end = piece.end.min(page_end);
            let room = page.get_mut((start - page_start) as usize..(end - page_start) as usize).unwrap_or_default();
            if source.read_at(piece.offset + (start - piece.start), room)? < room.len() {
                return Ok(false);
            }
            found = true;
        }
        Ok(found)
    }

    fn is_page_start(&self, paddr: u64) -> bool {
        paddr >> self.page_shift << self.page_shift == paddr
    }

    /// First page that begins at or behind `paddr`.
    fn page_up(&self, paddr: u64) -> u64 {
        paddr.div_ceil(1 << self.page_shift)
    }
}

/// Cuts overlapping data (in file order) into disjoint pieces; of several the first in file order wins. Empty data are
/// left out, and pieces that go on in the file and in memory are joined.
fn pieces(data: &[Piece], warnings: &mut Vec<String>) -> Vec<Piece> {
    let mut by_start: Vec<(usize, Piece)> = data.iter().copied().enumerate().filter(|(_, p)| p.start < p.end).collect();
    by_start.sort_unstable_by_key(|&(rank, p)| (p.start, Reverse(p.end), rank));
    warn_of_overlaps(&by_start, warnings);

    let mut pieces: Vec<Piece> = Vec::new();
    let mut waiting = by_start.into_iter().peekable();
    // Segments that have the byte at `at` (and some that are over: they are thrown away when they come up).
    let mut open: BinaryHeap<Reverse<(usize, u64, u64, u64)>> = BinaryHeap::new();
    let mut at = 0;
    loop {
        while let Some((rank, p)) = waiting.next_if(|(_, p)| p.start <= at) {
            open.push(Reverse((rank, p.start, p.end, p.offset)));
        }
        let next_start = waiting.peek().map(|(_, p)| p.start);
        match (open.peek(), next_start) {
            (Some(&Reverse((_, _, end, _))), _) if end <= at => drop(open.pop()),
            // The winner holds until it ends or the next begins, which may have a better rank.
            (Some(&Reverse((_, start, end, offset))), next) => {
                let until = next.map_or(end, |next| next.min(end));
                append(&mut pieces, Piece { start: at, end: until, offset: offset + (at - start) });
                at = until;
            }
            (None, Some(next)) => at = next,
            (None, None) => return pieces,
        }
    }
}

fn append(pieces: &mut Vec<Piece>, piece: Piece) {
    match pieces.last_mut() {
        Some(last) if last.end == piece.start && last.offset + (last.end - last.start) == piece.offset => last.end = piece.end,
        _ => pieces.push(piece),
    }
}

/// Adds an encoded page; a page in which pieces meet comes once for each of them.
fn append_encoded(extents: &mut Vec<Extent>, pfn: u64) {
    match extents.last_mut() {
        Some(last) if last.end_pfn() > pfn => {}
        Some(last) if last.kind == ExtentKind::ENCODED && last.end_pfn() == pfn => last.pages += 1,
        _ => extents.push(Extent::encoded(pfn, 1)),
    }
}

/// A segment within another one is normal (the kernel's text is once in its own segment and once in that of all RAM).
/// Segments that overlap by a part of each are not: whoever wrote the file was not sure of the memory map.
fn warn_of_overlaps(by_start: &[(usize, Piece)], warnings: &mut Vec<String>) {
    let mut crossing = 0u64;
    let mut open_ends: Vec<u64> = Vec::new();
    for (_, p) in by_start {
        while open_ends.pop_if(|end| *end <= p.start).is_some() {}
        crossing += u64::from(open_ends.last().is_some_and(|&end| end < p.end));
        open_ends.push(p.end);
    }
    if crossing > 0 {
        warnings.push(format!("{crossing} PT_LOADs overlap others in part; where they do, the first in the file is taken"));
    }
}

/// All pages that any segment touches.
fn ram(segments: &[Segment], page_shift: u32) -> Vec<Run> {
    let mut pages: Vec<(u64, u64)> =
        segments.iter().map(|s| (s.paddr >> page_shift, (s.paddr + s.memsz).div_ceil(1 << page_shift))).collect();
    pages.sort_unstable();
    let mut runs: Vec<Run> = Vec::new();
    for (first_pfn, end) in pages {
        match runs.last_mut() {
            Some(last) if first_pfn <= last.end_pfn() => last.pages = last.pages.max(end - last.first_pfn),
            _ => runs.push(Run { first_pfn, pages: end - first_pfn }),
        }
    }
    runs
}
