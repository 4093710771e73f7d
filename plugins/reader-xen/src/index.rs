//! From index entries to runs of pages.

use coresift_sdk::{Result, Source};

use crate::bytes::{for_each_chunk, u64_at};

/// A number that stands for no page (`XC_CORE_INVALID_PFN` and `INVALID_P2M_ENTRY` of Xen).
pub const NONE: u64 = u64::MAX;

/// Numbers that go up by one on both sides: `key + i` leads to `value + i`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// first number looked for: a PFN, or a machine frame
    pub key: u64,
    /// pages
    pub pages: u64,
    /// what the first leads to: a position in the file, or a frame number
    pub value: u64,
}

impl Run {
    /// One behind the last key.
    pub fn end(&self) -> u64 {
        self.key.saturating_add(self.pages)
    }
}

/// Runs, ascending by key and disjoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runs(Vec<Run>);

impl Runs {
    /// All of them.
    pub fn list(&self) -> &[Run] {
        &self.0
    }

    /// What `key` leads to.
    pub fn find(&self, key: u64) -> Option<u64> {
        let run = self.0.get(self.0.partition_point(|r| r.end() <= key))?;
        Some(run.value + key.checked_sub(run.key)?)
    }

    /// One behind the highest key.
    pub fn end(&self) -> u64 {
        self.0.last().map_or(0, Run::end)
    }

    /// Number of keys.
    pub fn pages(&self) -> u64 {
        self.0.iter().map(|r| r.pages).sum()
    }
}

/// Makes runs of single entries in any order.
#[derive(Debug, Default)]
pub struct Builder(Vec<Run>);

impl Builder {
    /// Adds an entry.
    pub fn push(&mut self, key: u64, value: u64) {
        match self.0.last_mut() {
            Some(last) if last.end() == key && last.value.checked_add(last.pages) == Some(value) => last.pages += 1,
            _ => self.0.push(Run { key, pages: 1, value }),
        }
    }

    /// Adds a run.
    pub fn push_run(&mut self, run: Run) {
        self.0.push(run);
    }

    /// Sorts. Returns how many entries had the key of another one; the one with the lowest value stays, in an index the
    /// first in the file.
    pub fn finish(self) -> (Runs, u64) {
        let mut runs = self.0;
        runs.sort_unstable_by_key(|r| (r.key, r.value));
        if runs.iter().zip(runs.iter().skip(1)).all(|(a, b)| a.end() <= b.key) {
            return (Runs(join(runs.into_iter())), 0);
        }
        // No sound input comes here, so it may be slow: one by one. There are as many as the input has entries.
        let mut pages: Vec<(u64, u64)> = runs.iter().flat_map(|r| (0..r.pages).map(|i| (r.key + i, r.value + i))).collect();
        pages.sort_unstable();
        let all = pages.len();
        pages.dedup_by_key(|(key, _)| *key);
        let twice = (all - pages.len()) as u64;
        (Runs(join(pages.into_iter().map(|(key, value)| Run { key, pages: 1, value }))), twice)
    }
}

/// Joins runs that go on in the next one.
fn join(sorted: impl Iterator<Item = Run>) -> Vec<Run> {
    let mut joined: Vec<Run> = Vec::new();
    for run in sorted {
        match joined.last_mut() {
            Some(last) if last.end() == run.key && last.value.checked_add(last.pages) == Some(run.value) => last.pages += run.pages,
            _ => joined.push(run),
        }
    }
    joined
}

/// Where an index stands.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// file offset in bytes
    pub offset: u64,
    /// entries
    pub entries: u64,
    /// entries are pairs of PFN and machine frame, not PFNs alone
    pub pairs: bool,
    /// byte order
    pub big_endian: bool,
}

/// An index.
#[derive(Debug, Default)]
pub struct Index {
    /// from PFN to the position in the file
    pub pages: Runs,
    /// from machine frame to PFN; empty without pairs
    pub frames: Runs,
    /// entries that could be read
    pub read: u64,
}

impl Index {
    /// Reads an index; PFNs of `pfn_end` and more are left out.
    ///
    /// # Errors
    /// No entry could be read.
    pub fn read(source: &Source, place: Place, pfn_end: u64, warnings: &mut Vec<String>) -> Result<Self> {
        let width = if place.pairs { 16 } else { 8 };
        let (mut pages, mut frames, mut at, mut too_high) = (Builder::default(), Builder::default(), 0, 0u64);
        let len = place.entries.saturating_mul(width);
        let done = for_each_chunk(source, place.offset, len, width as usize, |chunk| {
            for entry in chunk.chunks_exact(width as usize) {
                let pfn = u64_at(entry, 0, place.big_endian).unwrap_or(NONE);
                if pfn < pfn_end {
                    pages.push(pfn, at);
                    match u64_at(entry, 8, place.big_endian) {
                        Some(frame) if frame < pfn_end => frames.push(frame, pfn),
                        _ => {}
                    }
                } else {
                    too_high += u64::from(pfn != NONE);
                }
                at += 1;
            }
        });
        // What cannot be read ends it, as the end of the file does.
        match done {
            Err(e) if at == 0 => return Err(e),
            _ => {}
        }
        let (pages, twice) = pages.finish();
        let (frames, _) = frames.finish();
        if twice > 0 {
            warnings.push(format!("{twice} pages are in the file more than once; the first of each is taken"));
        }
        if too_high > 0 {
            warnings
                .push(format!("{too_high} index entries are beyond the physical address space of every known machine and are left out"));
        }
        Ok(Self { pages, frames, read: at })
    }
}
