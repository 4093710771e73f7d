//! PageSet: a set of PFNs whose size follows fragmentation, not RAM.

use coresift_sdk::Run;

/// Pages of a block: one memory section of x86_64 with 4 KiB pages (128 MiB), the unit of classification.
pub const BLOCK_PAGES: u64 = 1 << BLOCK_SHIFT;
const BLOCK_SHIFT: u32 = 15;
const WORDS: usize = (BLOCK_PAGES / 64) as usize;

/// Most runs that are stored as runs (4 bytes each); above, bits (4 KiB) are smaller.
const RUNS_MAX: usize = 1000;

/// The bits of one block, for making a [`BlockSet`].
pub type BlockBits = [u64; WORDS];

/// A run within a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ShortRun {
    first: u16,
    /// length - 1, so that a whole block fits
    more: u16,
}

/// The pages of one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockSet {
    /// none of its pages
    None,
    /// all of its pages
    All,
    /// some runs
    Runs(RunList),
    /// a bit a page
    Bits(Box<BlockBits>),
}

/// Runs of a block, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunList(Box<[ShortRun]>);

/// Sets bits `from..to` of a block.
pub fn set_bits(bits: &mut BlockBits, from: u64, to: u64) {
    let (mut at, to) = (from, to.min(BLOCK_PAGES));
    while at < to {
        let bit = at % 64;
        let n = (64 - bit).min(to - at);
        let mask = if n == 64 { u64::MAX } else { ((1u64 << n) - 1) << bit };
        if let Some(word) = bits.get_mut((at / 64) as usize) {
            *word |= mask;
        }
        at += n;
    }
}

/// Number of set bits among `from..to` of a block.
pub fn count_bits(bits: &BlockBits, from: u64, to: u64) -> u64 {
    let mut counted: BlockBits = [0; _];
    set_bits(&mut counted, from, to);
    bits.iter().zip(&counted).map(|(b, c)| u64::from((b & c).count_ones())).sum()
}

/// The first set bit of a block, and the pages from it to the last one.
pub fn extent_of_bits(bits: &BlockBits) -> Option<(u64, u64)> {
    let bit = |word: usize, within: u32| word as u64 * 64 + u64::from(within);
    let first = bits.iter().enumerate().find(|(_, w)| **w != 0).map(|(i, w)| bit(i, w.trailing_zeros()))?;
    let last = bits.iter().enumerate().rfind(|(_, w)| **w != 0).map(|(i, w)| bit(i, 63 - w.leading_zeros()))?;
    Some((first, last - first + 1))
}

/// The first run of set bits at or behind `from`, as `(start, end)`.
fn next_run_of_bits(bits: &BlockBits, from: u64) -> Option<(u64, u64)> {
    let find = |from: u64, invert: u64| -> u64 {
        let mut at = from;
        while at < BLOCK_PAGES {
            let word = (bits.get((at / 64) as usize).copied().unwrap_or(0) ^ invert) >> (at % 64);
            if word != 0 {
                return (at + u64::from(word.trailing_zeros())).min(BLOCK_PAGES);
            }
            at = (at / 64 + 1) * 64;
        }
        BLOCK_PAGES
    };
    let start = find(from, 0);
    (start < BLOCK_PAGES).then(|| (start, find(start, u64::MAX)))
}

impl BlockSet {
    /// The smallest form of these bits.
    pub fn from_bits(bits: &BlockBits) -> Self {
        let mut runs = Vec::new();
        let mut at = 0;
        while let Some((start, end)) = next_run_of_bits(bits, at) {
            if runs.len() == RUNS_MAX {
                return Self::Bits(Box::new(*bits));
            }
            runs.push(ShortRun { first: start as u16, more: (end - start - 1) as u16 });
            at = end;
        }
        match runs.as_slice() {
            [] => Self::None,
            [ShortRun { first: 0, more }] if u64::from(*more) == BLOCK_PAGES - 1 => Self::All,
            _ => Self::Runs(RunList(runs.into())),
        }
    }

    /// The same as bits.
    fn bits(&self) -> BlockBits {
        let mut bits: BlockBits = [0; _];
        let mut at = 0;
        while let Some((start, end)) = self.next_run(at) {
            set_bits(&mut bits, start, end);
            at = end;
        }
        bits
    }

    /// The first run at or behind `from`, as `(start, end)` within the block.
    fn next_run(&self, from: u64) -> Option<(u64, u64)> {
        match self {
            Self::None => None,
            Self::All => (from < BLOCK_PAGES).then_some((from, BLOCK_PAGES)),
            Self::Bits(bits) => next_run_of_bits(bits, from),
            Self::Runs(RunList(runs)) => {
                let end = |r: &ShortRun| u64::from(r.first) + u64::from(r.more) + 1;
                let i = runs.partition_point(|r| end(r) <= from);
                runs.get(i).map(|r| (u64::from(r.first).max(from), end(r)))
            }
        }
    }

    /// Number of pages.
    pub fn count(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::All => BLOCK_PAGES,
            Self::Bits(bits) => bits.iter().map(|w| u64::from(w.count_ones())).sum(),
            Self::Runs(RunList(runs)) => runs.iter().map(|r| u64::from(r.more) + 1).sum(),
        }
    }
}

/// A set of PFNs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageSet {
    /// blocks that are not empty, by block number, ascending
    blocks: Vec<(u64, BlockSet)>,
}

impl PageSet {
    /// The set of these blocks; block numbers must ascend.
    pub fn from_blocks(blocks: impl IntoIterator<Item = (u64, BlockSet)>) -> Self {
        Self { blocks: blocks.into_iter().filter(|(_, b)| *b != BlockSet::None).collect() }
    }

    /// Takes pages out; the runs ascend. Returns how many were in the set.
    pub fn remove(&mut self, runs: &[Run]) -> u64 {
        let mut removed = 0;
        for (number, block) in &mut self.blocks {
            let (base, end) = (*number << BLOCK_SHIFT, (*number + 1) << BLOCK_SHIFT);
            let from = runs.partition_point(|r| r.end_pfn() <= base);
            let mut near = runs.get(from..).unwrap_or_default().iter().take_while(|r| r.first_pfn < end).peekable();
            if near.peek().is_none() {
                continue;
            }
            let mut gone: BlockBits = [0; _];
            for run in near {
                set_bits(&mut gone, run.first_pfn.max(base) - base, run.end_pfn().min(end) - base);
            }
            let mut bits = block.bits();
            bits.iter_mut().zip(&gone).for_each(|(b, g)| {
                removed += u64::from((*b & g).count_ones());
                *b &= !g;
            });
            *block = BlockSet::from_bits(&bits);
        }
        self.blocks.retain(|(_, b)| *b != BlockSet::None);
        removed
    }

    /// The bits of a block by its number.
    pub fn block_bits(&self, number: u64) -> BlockBits {
        let found = self.blocks.binary_search_by_key(&number, |(n, _)| *n).ok().and_then(|i| self.blocks.get(i));
        found.map_or([0; _], |(_, block)| block.bits())
    }

    /// Number of pages.
    pub fn count(&self) -> u64 {
        self.blocks.iter().map(|(_, b)| b.count()).sum()
    }

    /// The first run at or behind `from`. A run ends at a block's end even if the next block goes on.
    pub fn next_run(&self, from: u64) -> Option<Run> {
        let i = self.blocks.partition_point(|(n, _)| *n < from >> BLOCK_SHIFT);
        self.blocks.get(i..)?.iter().find_map(|(n, block)| {
            let base = n << BLOCK_SHIFT;
            let (start, end) = block.next_run(from.saturating_sub(base))?;
            Some(Run { first_pfn: base + start, pages: end - start })
        })
    }

    /// All runs from a PFN on; one that crosses blocks comes in pieces, so that asking for the next is cheap.
    pub fn runs(&self, from: u64) -> impl Iterator<Item = Run> + '_ {
        let mut at = from;
        std::iter::from_fn(move || {
            let run = self.next_run(at)?;
            at = run.end_pfn();
            Some(run)
        })
    }

    /// True if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// True if the page is in the set.
    pub fn contains(&self, pfn: u64) -> bool {
        self.next_run(pfn).is_some_and(|r| r.first_pfn == pfn)
    }

    /// Fills `out` with bits, least significant first: bit `i` is PFN `first_pfn + i`.
    pub fn bitmap(&self, first_pfn: u64, out: &mut [u8]) {
        out.fill(0);
        let end = first_pfn.saturating_add(out.len() as u64 * 8);
        let mut at = first_pfn;
        while let Some(run) = self.next_run(at).filter(|r| r.first_pfn < end) {
            let (from, to) = (run.first_pfn - first_pfn, run.end_pfn().min(end) - first_pfn);
            fill_bits(out, from as usize, to as usize);
            at = run.end_pfn();
        }
    }

    /// Bytes of memory the set takes; a test bounds it.
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        let block = |b: &BlockSet| match b {
            BlockSet::None | BlockSet::All => 0,
            BlockSet::Runs(RunList(r)) => size_of_val(&**r),
            BlockSet::Bits(b) => size_of_val(&**b),
        };
        self.blocks.capacity() * size_of::<(u64, BlockSet)>() + self.blocks.iter().map(|(_, b)| block(b)).sum::<usize>()
    }
}

fn fill_bits(out: &mut [u8], from: usize, to: usize) {
    let mut at = from;
    while at < to {
        if at.is_multiple_of(8) && to - at >= 8 {
            let whole = (to - at) / 8;
            if let Some(bytes) = out.get_mut(at / 8..at / 8 + whole) {
                bytes.fill(0xff);
            }
            at += whole * 8;
        } else {
            if let Some(byte) = out.get_mut(at / 8) {
                *byte |= 1 << (at % 8);
            }
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(runs: &[(u64, u64)]) -> PageSet {
        let mut blocks = std::collections::BTreeMap::<u64, BlockBits>::new();
        for &(first, pages) in runs {
            for pfn in first..first + pages {
                let bits = blocks.entry(pfn / BLOCK_PAGES).or_insert([0; WORDS]);
                set_bits(bits, pfn % BLOCK_PAGES, pfn % BLOCK_PAGES + 1);
            }
        }
        PageSet::from_blocks(blocks.into_iter().map(|(n, b)| (n, BlockSet::from_bits(&b))))
    }

    #[test]
    fn runs_come_back_as_they_went_in_in_every_form() {
        let sparse: Vec<_> = (0..5000).map(|i| (i * 3, 1)).collect();
        for runs in [vec![], vec![(0, BLOCK_PAGES)], vec![(5, 1), (63, 2), (1000, 40_000)], sparse, vec![(1 << 34, 3), (1 << 40, 1)]] {
            let s = set(&runs);
            let mut back: Vec<(u64, u64)> = Vec::new();
            for r in s.runs(0) {
                match back.last_mut().filter(|(first, pages)| first + pages == r.first_pfn) {
                    Some(last) => last.1 += r.pages,
                    None => back.push((r.first_pfn, r.pages)),
                }
            }
            assert!(runs.iter().all(|r| s.contains(r.0) && s.contains(r.0 + r.1 - 1) && !s.contains(r.0 + r.1)));
            assert_eq!(back, runs);
            assert_eq!(s.count(), runs.iter().map(|r| r.1).sum::<u64>());
        }
    }

    #[test]
    fn bitmaps_have_the_bits_of_the_runs() {
        let s = set(&[(3, 1), (8, 17), (BLOCK_PAGES - 1, 2)]);
        let mut out = [0u8; 4];
        s.bitmap(0, &mut out);
        assert_eq!(out, [0b1000, 0xff, 0xff, 1]);
        s.bitmap(8, &mut out);
        assert_eq!(out, [0xff, 0xff, 1, 0]);
        let mut edge = [0u8; 1];
        s.bitmap(BLOCK_PAGES - 4, &mut edge);
        assert_eq!(edge, [0b11000]);
    }

    #[test]
    fn a_terabyte_without_holes_takes_little_memory() {
        let blocks = (0..(4u64 << 40 >> 12) / BLOCK_PAGES).map(|n| (n, BlockSet::All));
        assert!(PageSet::from_blocks(blocks).memory() < 2 << 20);
    }
}
