//! From bitmaps to extents: which pages are RAM, which of them the dump has.

use coresift_sdk::{Extent, Source};

use crate::header::Header;

/// Bytes of a bitmap that are read at a time.
const PIECE: usize = 1 << 20;
/// Bytes that are read at a time where a disk cannot read all of a piece.
const SECTOR: usize = 512;

/// Most runs of pages that are believed: 64 TiB of memory in which pages are dumped here and there have 2^26, if each run
/// is 256 pages away from the next. Bounds memory where a damaged header makes bitmaps of other bytes: each takes some 60
/// bytes here.
const RUNS_MAX: usize = 1 << 27;

/// A run of dumped pages, and how many are dumped before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranked {
    /// first PFN
    pub first_pfn: u64,
    /// pages
    pub pages: u64,
    /// number of the first page's descriptor
    pub rank: u64,
}

/// Both bitmaps, as runs.
#[derive(Debug, Default)]
pub struct Bitmaps {
    /// stored and absent pages, ascending
    pub extents: Vec<Extent>,
    /// the stored ones
    pub runs: Vec<Ranked>,
    /// number of dumped pages
    pub dumped: u64,
    /// the bitmaps end, or cannot be read, from this PFN on: the pages behind are lost
    pub cut: Option<u64>,
    /// pages whose bits of RAM cannot be read in any file: those that are not dumped are taken for holes
    pub ram_unknown: u64,
    /// there are more runs than [`RUNS_MAX`]: the rest is left out
    pub full: bool,
}

impl Bitmaps {
    /// Reads the bitmaps of a dump, which every file of a split set has whole: where one is damaged, the next is asked. A
    /// page of the second that the first lacks counts as RAM all the same.
    pub fn read(files: &[(Source, Header)]) -> Self {
        let mut found = Self::default();
        let Some((_, header)) = files.first() else { return found };
        let len = header.bitmap_len().min(header.max_mapnr.div_ceil(8));
        let two = header.two_bitmaps();
        let (mut ram, mut dumped) = (vec![0u8; PIECE], vec![0u8; PIECE]);
        let mut at = 0u64;
        while at < len && !found.full && found.cut.is_none() {
            let n = usize::try_from(len - at).unwrap_or(PIECE).min(PIECE);
            let (Some(ram), Some(dumped)) = (ram.get_mut(..n), dumped.get_mut(..n)) else { break };
            let second_at = |header: &Header| header.bitmaps_at() + if two { header.bitmap_len() } else { 0 } + at;
            let good = fill(files, second_at, dumped);
            if good < n {
                // Which descriptor is a page's is known only as long as all bits before are.
                found.cut = Some((at + good as u64) * 8);
            }
            let known = if two { fill(files, |header| header.bitmaps_at() + at, ram) } else { 0 };
            if two && known < n {
                found.ram_unknown += (n - known) as u64 * 8;
            }
            found.piece(at * 8, header.max_mapnr, ram, dumped);
            at += n as u64;
        }
        found
    }

    /// Adds a piece of the bitmaps whose first bit is a PFN.
    fn piece(&mut self, first: u64, end: u64, ram: &[u8], dumped: &[u8]) {
        for (i, (ram, dumped)) in ram.chunks(8).zip(dumped.chunks(8)).enumerate() {
            let word = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
            let base = first + i as u64 * 64;
            let mask = if end - base < 64 { (1 << (end - base)) - 1 } else { u64::MAX };
            let (dumped, ram) = (word(dumped) & mask, word(ram) & mask);
            let ram = ram | dumped;
            let mut bit = 0;
            // Runs of equal bits, 64 at a time where all are the same.
            while bit < 64 && ram >> bit != 0 {
                let (r, d) = (ram >> bit, dumped >> bit);
                if r & 1 == 0 {
                    bit += r.trailing_zeros();
                    continue;
                }
                let same = if d & 1 == 1 { d.trailing_ones() } else { (r & !d).trailing_ones() };
                let pages = same.min(64 - bit);
                self.add(base + u64::from(bit), u64::from(pages), d & 1 == 1);
                bit += pages;
            }
            if base + 64 >= end {
                break;
            }
        }
    }

    fn add(&mut self, first_pfn: u64, pages: u64, dumped: bool) {
        let extent = if dumped { Extent::stored(first_pfn, pages) } else { Extent::absent(first_pfn, pages) };
        let joins = |last: &Extent| last.end_pfn() == first_pfn && last.kind == extent.kind;
        let full = self.extents.len() >= RUNS_MAX;
        match self.extents.last_mut().filter(|last| joins(last)) {
            Some(last) => {
                last.pages += pages;
                if let Some(run) = self.runs.last_mut().filter(|_| dumped) {
                    run.pages += pages;
                }
            }
            None if full => {
                self.full = true;
                return;
            }
            None => {
                self.extents.push(extent);
                if dumped {
                    self.runs.push(Ranked { first_pfn, pages, rank: self.dumped });
                }
            }
        }
        self.dumped += if dumped { pages } else { 0 };
    }
}

/// Fills a buffer from the file that has most of it, and the rest with 0. How many bytes are good.
fn fill(files: &[(Source, Header)], offset: impl Fn(&Header) -> u64, buf: &mut [u8]) -> usize {
    let mut best: Option<(usize, &Source, u64)> = None;
    for (source, header) in files {
        let n = read_up_to(source, offset(header), buf);
        if n == buf.len() {
            return n;
        }
        if best.is_none_or(|(most, ..)| n > most) {
            best = Some((n, source, offset(header)));
        }
    }
    let good = best.map_or(0, |(_, source, offset)| read_up_to(source, offset, buf));
    buf.get_mut(good..).unwrap_or_default().fill(0);
    good
}

/// Reads what can be read before the first bad sector, or the end.
fn read_up_to(source: &Source, offset: u64, buf: &mut [u8]) -> usize {
    if let Ok(n) = source.read_at(offset, buf) {
        return n;
    }
    let mut good = 0;
    for sector in buf.chunks_mut(SECTOR) {
        match source.read_at(offset + good as u64, sector) {
            Ok(n) => good += n,
            Err(_) => break,
        }
        if !good.is_multiple_of(SECTOR) {
            break;
        }
    }
    good
}

/// The rank of each page's descriptor among all dumped pages, `None` for pages that are not dumped. PFNs ascend.
pub fn ranks(runs: &[Ranked], pfns: &[u64]) -> Vec<Option<u64>> {
    let mut at = pfns.first().map_or(0, |pfn| runs.partition_point(|r| r.first_pfn + r.pages <= *pfn));
    let rank = |pfn: &u64| {
        while runs.get(at)?.first_pfn + runs.get(at)?.pages <= *pfn {
            at += 1;
        }
        let run = runs.get(at)?;
        pfn.checked_sub(run.first_pfn).map(|distance| run.rank + distance)
    };
    pfns.iter().map(rank).collect()
}

/// How many pages are dumped below a PFN.
pub fn dumped_below(runs: &[Ranked], pfn: u64) -> u64 {
    let before = runs.partition_point(|r| r.first_pfn < pfn).checked_sub(1).and_then(|i| runs.get(i));
    before.map_or(0, |run| run.rank + run.pages.min(pfn - run.first_pfn))
}
