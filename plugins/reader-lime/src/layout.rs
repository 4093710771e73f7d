//! From ranges to pages.
//!
//! Ranges may come in any order, overlap, and begin and end anywhere. [`pieces`] makes disjoint ones of them: where several
//! have a byte, the first in the file wins. Pages that lie wholly in one stored piece are mapped; those of compressed
//! ranges, and those with an edge in them, are encoded.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use coresift_sdk::{Extent, ExtentKind};

use crate::ranges::{Data, Range};

impl Data {
    /// What is `bytes` further on.
    fn behind(self, bytes: u64) -> Self {
        match self {
            Self::Raw(at) => Self::Raw(at.saturating_add(bytes)),
            Self::Block(number, pos) => Self::Block(number, pos.saturating_add(bytes)),
        }
    }
}

/// Makes ascending, disjoint ranges of those in file order; the second value is the number of bytes that came twice.
pub fn pieces(ranges: Vec<Range>) -> (Vec<Range>, u64) {
    let sound = ranges.is_sorted_by(|a, b| a.end <= b.start);
    if sound { (ranges, 0) } else { cut(ranges) }
}

/// Sweeps over the addresses, O(n log n). Of the ranges that have the byte at `at`, the first in the file is taken until it
/// ends or another begins.
fn cut(ranges: Vec<Range>) -> (Vec<Range>, u64) {
    let total: u64 = ranges.iter().fold(0, |sum, r| sum.saturating_add(r.end - r.start));
    let mut order: Vec<usize> = (0..ranges.len()).collect();
    order.sort_by_key(|&rank| ranges.get(rank).map(|r| r.start));
    let mut waiting = order.into_iter().filter_map(|rank| ranges.get(rank).map(|r| (rank, *r))).peekable();
    let mut open: BinaryHeap<Reverse<usize>> = BinaryHeap::new();
    let mut pieces: Vec<Range> = Vec::with_capacity(ranges.len());
    let mut at = 0;
    loop {
        while let Some((rank, _)) = waiting.next_if(|(_, r)| r.start <= at) {
            open.push(Reverse(rank));
        }
        let next_start = waiting.peek().map(|(_, r)| r.start);
        let best = open.peek().and_then(|Reverse(rank)| ranges.get(*rank));
        match (best, next_start) {
            (Some(r), _) if r.end <= at => drop(open.pop()),
            (Some(r), next) => {
                let end = next.map_or(r.end, |next| next.min(r.end));
                let piece = Range { start: at, end, data: r.data.behind(at - r.start) };
                match pieces.last_mut() {
                    Some(last) if last.end == at && last.data.behind(at - last.start) == piece.data => last.end = end,
                    _ => pieces.push(piece),
                }
                at = end;
            }
            (None, Some(next)) => at = next,
            (None, None) => break,
        }
    }
    let kept: u64 = pieces.iter().fold(0, |sum, p| sum.saturating_add(p.end - p.start));
    (pieces, total.saturating_sub(kept))
}

/// The extents of these pieces, and how many pages are there only in part.
pub fn extents(pieces: &[Range], page_shift: u32) -> (Vec<Extent>, u64) {
    let page_size = 1u64 << page_shift;
    let mut extents: Vec<Extent> = Vec::new();
    let mut edges = Edges::default();
    for piece in pieces {
        let (first, end) = (piece.start >> page_shift, piece.end >> page_shift);
        let first_whole = piece.start.div_ceil(page_size);
        if first < first_whole {
            let covered = piece.end.min(first_whole.saturating_mul(page_size)) - piece.start;
            edges.add(first, covered, page_size);
            append_encoded(&mut extents, first, first + 1);
        }
        if first_whole < end {
            match piece.data {
                Data::Raw(offset) => {
                    let skipped = (first_whole << page_shift) - piece.start;
                    extents.push(Extent::mapped(first_whole, end - first_whole, 0, offset + skipped));
                }
                Data::Block(..) => append_encoded(&mut extents, first_whole, end),
            }
        }
        if end >= first_whole && end << page_shift < piece.end {
            edges.add(end, piece.end - (end << page_shift), page_size);
            append_encoded(&mut extents, end, end + 1);
        }
    }
    (extents, edges.partial(page_size))
}

/// Adds encoded pages; a page in which pieces meet comes once for each of them.
fn append_encoded(extents: &mut Vec<Extent>, first: u64, end: u64) {
    match extents.last_mut() {
        Some(last) if last.end_pfn() >= end => {}
        Some(last) if last.kind == ExtentKind::ENCODED && last.end_pfn() == first => last.pages += end - first,
        _ => extents.push(Extent::encoded(first, end - first)),
    }
}

/// Counts the bytes of pages with edges in them.
#[derive(Debug, Default)]
struct Edges {
    pfn: u64,
    covered: u64,
    partial: u64,
}

impl Edges {
    fn add(&mut self, pfn: u64, bytes: u64, page_size: u64) {
        if pfn != self.pfn {
            *self = Self { pfn, covered: 0, partial: self.partial(page_size) };
        }
        self.covered += bytes;
    }

    fn partial(&self, page_size: u64) -> u64 {
        self.partial + u64::from(self.covered > 0 && self.covered < page_size)
    }
}
