//! SURVEY and CLASSIFY: which pages are RAM, and which of them go into the dump, block by block and in parallel.

use std::sync::atomic::{AtomicU64, Ordering};

use coresift_kernel::memmap::MapRun;
use coresift_sdk::{Erase, Extent, ExtentKind, RangeVerdict, Run, Stages, Survey, Verdict};
use rayon::ThreadPool;
use rayon::iter::{IntoParallelIterator, ParallelIterator};

use crate::error::Result;
use crate::image::Image;
use crate::pack::RunningFilter;
use crate::pageset::{BLOCK_PAGES, BlockBits, BlockSet, PageSet, count_bits, extent_of_bits, set_bits};
use crate::progress::Progress;
use crate::report::{Issues, Tally};
use crate::struct_pages::StructPages;
use crate::verdicts::BlockVerdicts;

/// What a filter's survey found, sorted so that it can be looked up.
#[derive(Debug, Default)]
pub struct Surveyed {
    ranges: Vec<RangeVerdict>,
    /// for each range: the highest end of it and those before it
    reach: Vec<u64>,
    erase: Vec<Erase>,
}

impl Surveyed {
    fn sort(&mut self) {
        self.ranges.sort_by_key(|r| r.run.first_pfn);
        let mut reach = 0;
        self.reach = self
            .ranges
            .iter()
            .map(|r| {
                reach = r.run.end_pfn().max(reach);
                reach
            })
            .collect();
    }

    /// The ranges that touch the block at `base`, as verdicts on its pages `start..end`.
    fn in_block(&self, base: u64) -> impl Iterator<Item = (std::ops::Range<usize>, Verdict)> + '_ {
        let from = self.reach.partition_point(|end| *end <= base);
        let near = self.ranges.iter().skip(from).take_while(move |r| r.run.first_pfn < base + BLOCK_PAGES);
        near.filter_map(move |r| overlap(&r.run, base).map(|(start, end)| (start..end, r.verdict)))
    }
}

impl Survey for Surveyed {
    fn ranges(&mut self, ranges: &[RangeVerdict]) {
        self.ranges.extend_from_slice(ranges);
    }

    fn erase(&mut self, patches: &[Erase]) {
        self.erase.extend(patches.iter().filter(|p| p.len > 0));
    }
}

/// Bytes to erase, by physical address; overlapping ones are all applied.
#[derive(Debug, Default)]
pub struct Patches {
    sorted: Vec<Erase>,
    longest: u64,
}

impl Patches {
    fn new(mut patches: Vec<Erase>) -> Self {
        patches.sort_by_key(|p| p.paddr);
        let longest = patches.iter().map(|p| p.len).max().unwrap_or(0);
        Self { sorted: patches, longest }
    }

    /// True if there is nothing to erase.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The patches that touch `len` bytes from `paddr` on.
    pub fn touching(&self, paddr: u64, len: u64) -> impl Iterator<Item = &Erase> {
        let from = self.sorted.partition_point(|p| p.paddr.saturating_add(self.longest) <= paddr);
        let end = paddr.saturating_add(len);
        let near = self.sorted.get(from..).unwrap_or_default().iter().take_while(move |p| p.paddr < end);
        near.filter(move |p| p.paddr.saturating_add(p.len) > paddr)
    }
}

/// The result.
#[derive(Debug, Default)]
pub struct Classified {
    /// RAM that the input has or left out
    pub ram: PageSet,
    /// pages to copy: what the input has less what filters excluded
    pub dumped: PageSet,
    /// pages that a filter wants kept whatever others say, also those that look at their bytes later
    pub pinned: PageSet,
    /// pages that the input left out
    pub absent: u64,
    /// pages that the kernel has no struct page for: kept
    pub unknown: u64,
    /// bytes that must not reach the output
    pub patches: Patches,
}

/// One block's share of the result.
struct Classed {
    number: u64,
    ram: BlockSet,
    dumped: BlockSet,
    pinned: BlockSet,
    absent: u64,
}

/// Asks filters for ranges, then classifies every block. `map` is false where the input is to be read, not mapped.
///
/// # Errors
/// A filter failed that must not fail (it erases secrets, or the profile says `on_failure = "stop"`).
pub fn classify(
    image: &Image,
    filters: &[RunningFilter],
    tally: &Tally,
    issues: &Issues,
    progress: &dyn Progress,
    pool: Option<&ThreadPool>,
    map: bool,
) -> Result<Classified> {
    let mut surveys = Vec::with_capacity(filters.len());
    let mut patches = Vec::new();
    for filter in filters {
        let mut found = Surveyed::default();
        if filter.stages.contains(Stages::SURVEY) {
            let outcome = filter.filter.survey(&mut found);
            if !filter.check(outcome, "survey", issues)? {
                // It may have been about to correct itself: what it excluded stays in, what it protects stays protected.
                found.ranges.retain(|r| r.verdict == Verdict::KEEP);
            }
        }
        patches.append(&mut found.erase);
        found.sort();
        surveys.push(found);
    }
    let context = Context { image, filters, surveys: &surveys, tally, issues, progress, map, unknown: AtomicU64::new(0) };
    let numbers = block_numbers(&image.extents);
    let mut blocks: Vec<Classed> = match pool {
        Some(pool) => pool.install(|| numbers.into_par_iter().map(|n| context.block(n)).collect::<Result<_>>())?,
        None => numbers.into_iter().map(|n| context.block(n)).collect::<Result<_>>()?,
    };
    // Buffers are for this phase only: the next one has its own.
    match pool {
        Some(pool) => drop(pool.broadcast(|_| SCRATCH.take())),
        None => drop(SCRATCH.take()),
    }
    let absent = blocks.iter().map(|b| b.absent).sum();
    let unknown = context.unknown.load(Ordering::Relaxed);
    let mut classified = Classified { absent, unknown, patches: Patches::new(patches), ..Classified::default() };
    let set = |part: fn(&mut Classed) -> &mut BlockSet, blocks: &mut [Classed]| {
        PageSet::from_blocks(blocks.iter_mut().map(|b| (b.number, std::mem::replace(part(b), BlockSet::None))))
    };
    classified.ram = set(|b| &mut b.ram, &mut blocks);
    classified.dumped = set(|b| &mut b.dumped, &mut blocks);
    classified.pinned = set(|b| &mut b.pinned, &mut blocks);
    Ok(classified)
}

/// Blocks with RAM, ascending, as the extents are.
fn block_numbers(extents: &[Extent]) -> Vec<u64> {
    let mut numbers: Vec<u64> = extents.iter().flat_map(|e| e.first_pfn / BLOCK_PAGES..e.end_pfn().div_ceil(BLOCK_PAGES)).collect();
    numbers.dedup();
    numbers
}

struct Context<'a> {
    image: &'a Image,
    filters: &'a [RunningFilter],
    surveys: &'a [Surveyed],
    tally: &'a Tally,
    issues: &'a Issues,
    progress: &'a dyn Progress,
    /// map the mem_map, do not read it
    map: bool,
    /// pages that the kernel has no struct page for
    unknown: AtomicU64,
}

impl Context<'_> {
    fn block(&self, number: u64) -> Result<Classed> {
        let base = number * BLOCK_PAGES;
        let mut ram: BlockBits = [0; _];
        let mut has: BlockBits = [0; _];
        let mut absent = 0;
        let extents = &self.image.extents;
        let from = extents.partition_point(|e| e.end_pfn() <= base);
        // Address space that the input has no pages of can be a thousand times the memory: nothing is to be decided there.
        let whole = |e: &&Extent| e.kind == ExtentKind::ABSENT && e.first_pfn <= base && e.end_pfn() >= base + BLOCK_PAGES;
        if extents.get(from).filter(whole).is_some() {
            self.progress.advance(BLOCK_PAGES);
            return Ok(Classed { number, ram: BlockSet::All, dumped: BlockSet::None, pinned: BlockSet::None, absent: BLOCK_PAGES });
        }
        for e in extents.iter().skip(from).take_while(|e| e.first_pfn < base + BLOCK_PAGES) {
            let (start, end) = (e.first_pfn.max(base) - base, e.end_pfn().min(base + BLOCK_PAGES) - base);
            set_bits(&mut ram, start, end);
            match e.kind {
                ExtentKind::MAPPED | ExtentKind::ENCODED | ExtentKind::STORED => set_bits(&mut has, start, end),
                _ => absent += end - start,
            }
        }
        let mut pinned: BlockBits = [0; _];
        if has.iter().any(|word| *word != 0) && self.decides_here(base) {
            self.exclude(base, &mut has, &mut pinned)?;
        }
        let ram = BlockSet::from_bits(&ram);
        self.progress.advance(ram.count());
        Ok(Classed { number, ram, dumped: BlockSet::from_bits(&has), pinned: BlockSet::from_bits(&pinned), absent })
    }

    /// True if any filter may have a verdict on a page of this block without its bytes.
    fn decides_here(&self, base: u64) -> bool {
        let classifies = self.filters.iter().any(|f| f.stages.contains(Stages::CLASSIFY));
        classifies || self.surveys.iter().any(|s| s.in_block(base).next().is_some())
    }

    /// Takes the pages out that filters exclude.
    fn exclude(&self, base: u64, has: &mut BlockBits, pinned: &mut BlockBits) -> Result<()> {
        SCRATCH.with_borrow_mut(|scratch| {
            let outcome = self.judge(base, has, scratch);
            scratch.struct_pages.clear();
            outcome?;
            let mut counts = self.tally.local();
            scratch.verdicts.take_out(has, pinned, &mut counts);
            self.tally.add(&counts);
            Ok(())
        })
    }

    /// Asks every filter and joins their verdicts.
    fn judge(&self, base: u64, has: &BlockBits, scratch: &mut Scratch) -> Result<()> {
        let Scratch { struct_pages, verdicts, own } = scratch;
        verdicts.clear();
        let mut loaded = false;
        for ((index, filter), survey) in self.filters.iter().enumerate().zip(self.surveys) {
            let classifies = filter.stages.contains(Stages::CLASSIFY);
            let mut ranges = survey.in_block(base).peekable();
            if !classifies && ranges.peek().is_none() {
                continue;
            }
            own.clear();
            own.resize(BLOCK_PAGES as usize, Verdict::UNDECIDED);
            if classifies {
                if !loaded {
                    self.load(base, has, struct_pages, self.map);
                    loaded = true;
                }
                self.ask(filter, base, struct_pages, own)?;
                if struct_pages.damaged() {
                    self.load(base, has, struct_pages, false);
                    own.fill(Verdict::UNDECIDED);
                    self.ask(filter, base, struct_pages, own)?;
                }
            }
            for (pages, verdict) in ranges {
                own.get_mut(pages).unwrap_or_default().iter_mut().for_each(|v| *v = v.merge(verdict));
            }
            filter.forget_unknown(own, self.issues);
            verdicts.join(index, own);
        }
        Ok(())
    }

    /// Brings the `struct page`s of the block's pages into reach, and says which pages have none.
    fn load(&self, base: u64, has: &BlockBits, struct_pages: &mut StructPages, map: bool) {
        let Ok(kernel) = &self.image.kernel else { return };
        let Some((first, pages)) = extent_of_bits(has) else { return };
        struct_pages.load(self.image, kernel, base + first, pages, map);
        if struct_pages.count() == pages || kernel.mem_map().is_err() {
            return;
        }
        let bits = |run: MapRun| count_bits(has, run.first_pfn - base, run.first_pfn - base + run.pages);
        let (mut unreadable, mut unknown) = (0, 0);
        for block in struct_pages.blocks(base + first, pages, self.image.machine.page_shift) {
            if block.mem_map().is_some() {
                continue;
            }
            let part = MapRun { first_pfn: block.first_pfn(), pages: block.pages() as u64, address: 0 };
            let known: u64 = kernel.mem_map().map_or(0, |m| m.within(part.first_pfn, part.pages).map(bits).sum());
            (unreadable, unknown) = (unreadable + known, unknown + bits(part) - known);
        }
        // Memory of firmware and devices that some dump tools include: no kernel has struct pages for it.
        self.unknown.fetch_add(unknown, Ordering::Relaxed);
        if unreadable > 0 {
            let place = format!("block at PFN {base:#x}");
            self.issues.add_pages("kernel", &place, "pages whose struct page cannot be read are kept", unreadable);
        }
    }

    /// Lets a filter classify a block, part by part. A part that it fails on stays undecided.
    fn ask(&self, filter: &RunningFilter, base: u64, struct_pages: &StructPages, own: &mut [Verdict]) -> Result<()> {
        let blocks = struct_pages.blocks(base, BLOCK_PAGES, self.image.machine.page_shift);
        for block in blocks {
            let from = (block.first_pfn() - base) as usize;
            let Some(part) = own.get_mut(from..from + block.pages()) else { continue };
            let outcome = filter.filter.classify(&block, part);
            if !filter.check(outcome, &format!("block at PFN {:#x}", block.first_pfn()), self.issues)? {
                // What it found so far excludes nothing; but a read of broken memory may cost the whole dump.
                part.iter_mut().filter(|v| !v.forbids_reading()).for_each(|v| *v = Verdict::UNDECIDED);
            }
        }
        Ok(())
    }
}

/// What a worker keeps from block to block.
#[derive(Default)]
struct Scratch {
    struct_pages: StructPages,
    verdicts: BlockVerdicts,
    own: Vec<Verdict>,
}

thread_local! {
    static SCRATCH: std::cell::RefCell<Scratch> = std::cell::RefCell::default();
}

/// The part of a run that lies in the block at `base`, as indexes.
fn overlap(run: &Run, base: u64) -> Option<(usize, usize)> {
    let (start, end) = (run.first_pfn.max(base), run.end_pfn().min(base + BLOCK_PAGES));
    (start < end).then(|| ((start - base) as usize, (end - base) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_found_where_they_touch() {
        let p = |paddr, len| Erase { paddr, len, fill: 0 };
        let patches = Patches::new(vec![p(0x3000, 8), p(0x1ff8, 16), p(0x10, 0x2000)]);
        let touching = |at| patches.touching(at, 0x1000).map(|p| p.paddr).collect::<Vec<_>>();
        assert_eq!(touching(0), [0x10]);
        assert_eq!(touching(0x1000), [0x10, 0x1ff8]);
        assert_eq!(touching(0x2000), [0x10, 0x1ff8]);
        assert_eq!(touching(0x3000), [0x3000]);
        assert!(touching(0x4000).is_empty());
    }
}
