//! Batches: the kept pages cut into pieces of work, in PFN order.

use coresift_sdk::{Extent, ExtentKind, Run};

use crate::pageset::PageSet;

/// Most bytes of kept pages in a batch: what fits a core's second-level cache or nearly so, and makes large writes.
pub const BATCH_BYTES: usize = 2 << 20;

/// Where a piece's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// in a source, from this byte on
    File {
        /// number of the source
        source: u32,
        /// byte offset of the first page
        offset: u64,
    },
    /// the reader makes them
    Reader,
    /// the reader gives them as they are stored
    Stored,
}

/// Consecutive pages of one extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// the pages
    pub run: Run,
    /// where their bytes are
    pub place: Place,
}

/// The pages of one batch, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BatchPlan {
    /// number of the batch, from 0
    pub number: u64,
    /// its pieces
    pub pieces: Vec<Piece>,
    /// number of pages
    pub pages: usize,
}

/// Cuts a set of pages into batches.
#[derive(Debug)]
pub struct Planner<'a> {
    set: &'a PageSet,
    extents: &'a [Extent],
    page_shift: u32,
    /// most pages of a batch
    pages_max: u64,
    /// most bytes of a source that a batch spans, kept or not
    span_max: u64,
    next_pfn: u64,
    end_pfn: u64,
    next_extent: usize,
    next_number: u64,
}

impl<'a> Planner<'a> {
    /// A planner for these pages. `map_size` bounds how far a batch reaches over pages that are not kept.
    pub fn new(set: &'a PageSet, extents: &'a [Extent], page_shift: u32, map_size: usize) -> Self {
        // A window is never larger than was asked for.
        let bytes_max = if map_size == 0 { BATCH_BYTES } else { BATCH_BYTES.min(map_size) };
        let pages_max = (bytes_max as u64 >> page_shift).max(1);
        let span_max = (map_size as u64).max(pages_max << page_shift);
        Self { set, extents, page_shift, pages_max, span_max, next_pfn: 0, end_pfn: u64::MAX, next_extent: 0, next_number: 0 }
    }

    /// Only the pages of these PFNs.
    #[must_use]
    pub fn within(self, pfns: std::ops::Range<u64>) -> Self {
        Self { next_pfn: pfns.start, end_pfn: pfns.end, ..self }
    }

    /// The next piece of at most `pages` pages.
    fn piece(&mut self, pages: u64) -> Option<Piece> {
        let run = self.set.next_run(self.next_pfn).filter(|run| run.first_pfn < self.end_pfn)?;
        // Every kept page lies in an extent: classification took them from there.
        while self.extents.get(self.next_extent)?.end_pfn() <= run.first_pfn {
            self.next_extent += 1;
        }
        let extent = self.extents.get(self.next_extent)?;
        let run = Run { first_pfn: run.first_pfn, pages: run.pages.min(pages).min(extent.end_pfn().min(self.end_pfn) - run.first_pfn) };
        let place = match extent.kind {
            ExtentKind::MAPPED => {
                Place::File { source: extent.source, offset: extent.offset + ((run.first_pfn - extent.first_pfn) << self.page_shift) }
            }
            ExtentKind::STORED => Place::Stored,
            _ => Place::Reader,
        };
        Some(Piece { run, place })
    }
}

impl Iterator for Planner<'_> {
    type Item = BatchPlan;

    fn next(&mut self) -> Option<BatchPlan> {
        let mut plan = BatchPlan { number: self.next_number, ..BatchPlan::default() };
        let mut first_pfn = None;
        while let Some(piece) = self.piece(self.pages_max - plan.pages as u64) {
            let from = *first_pfn.get_or_insert(piece.run.first_pfn);
            if (piece.run.end_pfn() - from) << self.page_shift > self.span_max && !plan.pieces.is_empty() {
                break;
            }
            self.next_pfn = piece.run.end_pfn();
            plan.pages += piece.run.pages as usize;
            plan.pieces.push(piece);
            if plan.pages as u64 == self.pages_max {
                break;
            }
        }
        self.next_number += 1;
        (plan.pages > 0).then_some(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pageset::{BLOCK_PAGES, BlockSet};

    #[test]
    fn batches_cover_every_page_once_in_order_and_stop_at_extents() {
        let set = PageSet::from_blocks([(0, BlockSet::All), (1, BlockSet::All)]);
        let extents =
            [Extent::mapped(0, 1000, 0, 0x1000), Extent::encoded(1000, 1), Extent::mapped(1001, 2 * BLOCK_PAGES - 1001, 0, 0x900_0000)];
        let mut expected = 0;
        for (i, plan) in Planner::new(&set, &extents, 12, 4 << 20).enumerate() {
            assert_eq!(plan.number, i as u64);
            assert!(plan.pages <= 512);
            for piece in &plan.pieces {
                assert_eq!(piece.run.first_pfn, expected);
                expected = piece.run.end_pfn();
                match piece.place {
                    Place::Stored => panic!("no stored extent is here"),
                    Place::Reader => assert_eq!(piece.run, Run { first_pfn: 1000, pages: 1 }),
                    Place::File { offset, .. } if expected <= 1000 => assert_eq!(offset, 0x1000 + (piece.run.first_pfn << 12)),
                    Place::File { offset, .. } => assert_eq!(offset, 0x900_0000 + ((piece.run.first_pfn - 1001) << 12)),
                }
            }
        }
        assert_eq!(expected, 2 * BLOCK_PAGES);
    }

    #[test]
    fn a_batch_does_not_reach_over_more_than_the_map_size() {
        let mut bits = [0; _];
        (0..40).for_each(|i| crate::pageset::set_bits(&mut bits, i * 300, i * 300 + 1));
        let set = PageSet::from_blocks([(0, BlockSet::from_bits(&bits))]);
        let extents = [Extent::mapped(0, BLOCK_PAGES, 0, 0)];
        let plans: Vec<_> = Planner::new(&set, &extents, 12, 4 << 20).collect();
        assert_eq!(plans.iter().map(|p| p.pages).sum::<usize>(), 40);
        for plan in plans {
            let (first, last) = (plan.pieces[0].run.first_pfn, plan.pieces[plan.pieces.len() - 1].run.end_pfn());
            assert!((last - first) << 12 <= 4 << 20);
        }
    }
}
