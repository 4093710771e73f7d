//! Where everything stands in a dump.

use coresift_sdk::{Error, PageSet, Plan, Result, Run};

use crate::descriptors::DESCRIPTOR;
use crate::header::sub_header_len;
use crate::layout::Layout;

/// log2 of the page sizes that the format can have: the headers must fit into a block each (464 and 104 bytes), and
/// sizes are C `int`s. Linux has 12 to 16 and, on a few machines, 18.
const PAGE_SHIFTS: std::ops::RangeInclusive<u32> = 9..=24;

/// Offsets and sizes of the parts of a dump; they stand in this order, without gaps but the one before a split dump's data.
#[derive(Debug, Clone, Copy)]
pub struct Geometry {
    /// the unit, a page; block 0 is the header
    pub block: u64,
    /// blocks of sub-header and notes, from block 1 on
    pub sub_header_blocks: u32,
    /// blocks of both bitmaps
    pub bitmap_blocks: u32,
    /// offset of the first bitmap
    pub bitmaps_at: u64,
    /// bytes of one bitmap
    pub bitmap_len: u64,
    /// offset of the page descriptors
    pub descriptors_at: u64,
    /// page descriptors: the dumped pages of this output
    pub descriptors: u64,
    /// offset of the page that all zero pages share: behind the descriptors of the whole dump, also in a part of a split
    /// one, which has fewer. There `makedumpfile --reassemble` (1.7.9, `reassemble_kdump_pages`) takes every part to have
    /// its zero page: other data at this offset would be lost.
    pub zero_at: u64,
}

impl Geometry {
    /// The geometry of a dump with notes of this length.
    ///
    /// # Errors
    /// The format cannot hold it.
    pub fn of(plan: &Plan<'_>, layout: Layout, notes_len: usize) -> Result<Self> {
        let shift = plan.machine.page_shift;
        if !PAGE_SHIFTS.contains(&shift) {
            return Err(Error::unsupported(format!("the kdump format cannot have pages of 2^{shift} bytes")));
        }
        let block = 1u64 << shift;
        let sub_header = blocks(sub_header_len(layout) as u64 + notes_len as u64, block)?;
        let bitmap = blocks(plan.machine.max_pfn.div_ceil(8), block)?;
        let bitmap_blocks = bitmap.checked_mul(2).ok_or_else(too_large)?;
        let dumped = plan.pages.count(PageSet::Dumped);
        let descriptors = if plan.parts > 1 { dumped_within(plan).min(dumped) } else { dumped };

        // Block counts have 32 bits and blocks at most 2^24 bytes: only the descriptors can overflow.
        let bitmaps_at = block * (1 + u64::from(sub_header));
        let descriptors_at = bitmaps_at + block * u64::from(bitmap_blocks);
        let all_descriptors = dumped.checked_mul(DESCRIPTOR as u64).ok_or_else(too_large)?;
        let zero_at = descriptors_at.checked_add(all_descriptors).ok_or_else(too_large)?;
        Ok(Self {
            block,
            sub_header_blocks: sub_header,
            bitmap_blocks,
            bitmaps_at,
            bitmap_len: block * u64::from(bitmap),
            descriptors_at,
            descriptors,
            zero_at,
        })
    }

    /// Offset of the bitmap of dumped pages, the second one.
    pub fn dumped_at(&self) -> u64 {
        self.bitmaps_at + self.bitmap_len
    }

    /// Bytes up to the last descriptor: what an output needs before the first page can come.
    pub fn head_len(&self) -> u64 {
        self.descriptors_at + self.descriptors * DESCRIPTOR as u64
    }

    /// Offset of the first page's data.
    pub fn data_at(&self) -> u64 {
        self.zero_at + self.block
    }
}

fn blocks(len: u64, block: u64) -> Result<u32> {
    u32::try_from(len.div_ceil(block)).map_err(|_| too_large())
}

fn too_large() -> Error {
    Error::unsupported("the machine has more memory than the kdump format can describe")
}

/// Counts the dumped pages of one part of a split dump: readers count a part's descriptors from its first PFN on.
fn dumped_within(plan: &Plan<'_>) -> u64 {
    let mut runs = [Run { first_pfn: 0, pages: 0 }; 256];
    let (mut from, mut pages) = (plan.first_pfn, 0u64);
    while from < plan.end_pfn {
        let filled = plan.pages.runs(PageSet::Dumped, from, &mut runs);
        for run in runs.iter().take(filled) {
            let end = run.end_pfn().min(plan.end_pfn);
            pages += end.saturating_sub(run.first_pfn.max(from));
            from = from.max(run.end_pfn());
        }
        if filled < runs.len() {
            break;
        }
    }
    pages
}
