//! From frame to index of the frame table.
//!
//! Where a machine's memory has large holes, Xen leaves address bits out that are the same everywhere and counts frames by
//! the rest: the index ("pdx", xen/include/xen/pdx.h) is not the frame number then. How it is made is in no note and was
//! made in three ways so far. But the direct map has memory in the order of the index, so its page tables say it.

use std::ops::Range;

use crate::tables::{Leaf, PAGE, Tables};

/// `DIRECTMAP_VIRT_START` (xen/arch/x86/include/asm/config.h).
pub const DIRECT_MAP: u64 = 0xffff_8300_0000_0000;
/// Entries of the top table that map it: Xen 4 has 5 TiB, Xen 3 had 1 TiB.
const SLOTS: Range<u64> = 262..272;
const SLOTS_3: Range<u64> = 262..264;
/// More pieces than this are damage.
const PIECES_MAX: usize = 4096;

/// Frames that are consecutive in the direct map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    pfn: u64,
    pages: u64,
    index: u64,
}

/// The index of each frame.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Frames {
    /// ascending, not overlapping; empty if every frame is its own index
    pieces: Vec<Piece>,
}

impl Frames {
    /// Reads the direct map.
    ///
    /// # Errors
    /// It makes no sense; the sentence says why.
    pub fn read(tables: &Tables, major: u64) -> Result<Self, String> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut too_many = false;
        tables.leaves(if major < 4 { SLOTS_3 } else { SLOTS }, &mut |leaf: Leaf| {
            let new = Piece { pfn: leaf.paddr / PAGE, pages: leaf.len / PAGE, index: leaf.vaddr.wrapping_sub(DIRECT_MAP) / PAGE };
            let room = pieces.len() < PIECES_MAX;
            let last = pieces.last_mut().filter(|last| last.pfn + last.pages == new.pfn && last.index + last.pages == new.index);
            match last {
                Some(last) => last.pages += new.pages,
                None if room => pieces.push(new),
                None => too_many = true,
            }
        });
        if too_many {
            return Err(format!("Xen's direct map is in more than {PIECES_MAX} pieces: damaged"));
        }
        if pieces.iter().all(|p| p.pfn == p.index) {
            return match pieces.is_empty() {
                true => Err("Xen's direct map cannot be read".into()),
                false => Ok(Self::default()),
            };
        }
        Ok(Self { pieces: alone(pieces) })
    }

    /// True if frames have other numbers in the frame table.
    pub fn differ(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// The parts of `pages` frames from `pfn` on whose index is known: first frame, number, first index.
    pub fn within(&self, pfn: u64, pages: u64) -> Vec<(u64, u64, u64)> {
        if self.pieces.is_empty() {
            return vec![(pfn, pages, pfn)];
        }
        let end = pfn.saturating_add(pages);
        let from = self.pieces.partition_point(|p| p.pfn + p.pages <= pfn);
        let near = self.pieces.iter().skip(from).take_while(|p| p.pfn < end);
        near.map(|p| {
            let first = p.pfn.max(pfn);
            (first, (p.pfn + p.pages).min(end) - first, p.index + (first - p.pfn))
        })
        .collect()
    }
}

/// Leaves out frames that are mapped more than once: there one mapping is damaged, and nobody knows which.
fn alone(mut pieces: Vec<Piece>) -> Vec<Piece> {
    pieces.sort_by_key(|p| p.pfn);
    let mut cuts: Vec<u64> = pieces.iter().flat_map(|p| [p.pfn, p.pfn + p.pages]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut parts: Vec<Piece> = Vec::new();
    let mut open: Vec<Piece> = Vec::new();
    let mut next = pieces.iter().peekable();
    for (&start, &end) in cuts.iter().zip(cuts.iter().skip(1)) {
        open.retain(|p| p.pfn + p.pages > start);
        while let Some(piece) = next.next_if(|p| p.pfn <= start) {
            open.push(*piece);
        }
        if let [piece] = open.as_slice() {
            parts.push(Piece { pfn: start, pages: end - start, index: piece.index + (start - piece.pfn) });
        }
    }
    parts
}
