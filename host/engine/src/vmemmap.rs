//! The class `memmap`: pages of the mem_map all of whose `struct page`s describe pages that are not in the dump.
//!
//! Whether a page of the mem_map is needed is only known when every filter has spoken on the pages it describes, which
//! lie elsewhere: so this is a step of its own between classifying and copying. It reads page tables and nothing else.

use coresift_kernel::Span;
use coresift_sdk::Run;

use crate::classify::Classified;
use crate::image::Image;
use crate::pageset::{BLOCK_PAGES, BlockBits};

/// Takes the pages of the mem_map out that describe only RAM that was taken out. Returns how many went, or why none can.
pub fn exclude(image: &Image, classified: &mut Classified) -> Result<u64, String> {
    let kernel = image.kernel.as_ref().map_err(Clone::clone)?;
    let mem_map = kernel.mem_map().map_err(str::to_owned)?;
    let page_size = image.machine.page_size() as u64;
    let (mut gone, mut needed) = (Runs::default(), Runs::default());
    for run in mem_map.runs() {
        // One block at a time: its page tables, then its pages of the mem_map.
        let mut first = run.first_pfn;
        while first < run.first_pfn + run.pages {
            let block = first / BLOCK_PAGES;
            let end = ((block + 1) * BLOCK_PAGES).min(run.first_pfn + run.pages);
            let bits =
                Excluded { ram: classified.ram.block_bits(block), dumped: classified.dumped.block_bits(block), base: block * BLOCK_PAGES };
            if bits.ram.iter().any(|w| *w != 0) {
                let address = run.address.wrapping_add((first - run.first_pfn) * mem_map.struct_page_size());
                let len = (end - first) * mem_map.struct_page_size();
                kernel.spans(image, address, len, |span| {
                    // Sort each page of the span by whether all that it describes is gone.
                    let Span { at, len, paddr: Some(paddr) } = span else { return };
                    let mut from = 0;
                    while from < len {
                        let step = (page_size - (paddr + from) % page_size).min(len - from);
                        let described = |byte: u64| first + byte / mem_map.struct_page_size();
                        let (low, high) = (described(at + from), described(at + from + step - 1));
                        // A page whose edges belong to other pieces is whole only if this piece holds all of it.
                        let whole = step == page_size && bits.all(low, high);
                        if whole { &mut gone } else { &mut needed }.add((paddr + from) / page_size);
                        from += step;
                    }
                });
            }
            first = end;
        }
    }
    // Several addresses may lead to one page: hugetlb lets the tails of many pages share theirs.
    let gone = difference(&gone.sorted(), &needed.sorted());
    // A page that a filter wants kept stays.
    let mut pinned = Runs::default();
    if !classified.pinned.is_empty() {
        gone.iter().flat_map(|run| run.first_pfn..run.end_pfn()).filter(|pfn| classified.pinned.contains(*pfn)).for_each(|p| pinned.add(p));
    }
    Ok(classified.dumped.remove(&difference(&gone, &pinned.sorted())))
}

/// The pages of a block that are RAM and not in the dump.
struct Excluded {
    ram: BlockBits,
    dumped: BlockBits,
    base: u64,
}

impl Excluded {
    /// True if all of the PFNs are excluded RAM.
    fn all(&self, low: u64, high: u64) -> bool {
        let excluded = |pfn: u64| {
            let at = pfn - self.base;
            let word = |bits: &BlockBits| bits.get((at / 64) as usize).copied().unwrap_or(0) >> (at % 64);
            word(&self.ram) & !word(&self.dumped) & 1 == 1
        };
        let whole_word = low.is_multiple_of(64) && high == low + 63;
        if whole_word {
            let at = ((low - self.base) / 64) as usize;
            return self.ram.get(at) == Some(&u64::MAX) && self.dumped.get(at) == Some(&0);
        }
        (low..=high).all(excluded)
    }
}

/// Runs that grow at their end.
#[derive(Default)]
struct Runs(Vec<Run>);

impl Runs {
    fn add(&mut self, pfn: u64) {
        match self.0.last_mut() {
            Some(last) if last.end_pfn() == pfn => last.pages += 1,
            _ => self.0.push(Run { first_pfn: pfn, pages: 1 }),
        }
    }

    /// Ascending, overlapping ones joined.
    fn sorted(mut self) -> Vec<Run> {
        self.0.sort_by_key(|r| r.first_pfn);
        let mut joined: Vec<Run> = Vec::new();
        for run in self.0 {
            match joined.last_mut() {
                Some(last) if run.first_pfn <= last.end_pfn() => last.pages = last.pages.max(run.end_pfn() - last.first_pfn),
                _ => joined.push(run),
            }
        }
        joined
    }
}

/// What is in the first and not in the second; both ascend.
fn difference(gone: &[Run], needed: &[Run]) -> Vec<Run> {
    let mut rest = Vec::new();
    for run in gone {
        let mut at = run.first_pfn;
        let from = needed.partition_point(|n| n.end_pfn() <= run.first_pfn);
        for n in needed.iter().skip(from).take_while(|n| n.first_pfn < run.end_pfn()) {
            if at < n.first_pfn {
                rest.push(Run { first_pfn: at, pages: n.first_pfn - at });
            }
            at = at.max(n.end_pfn());
        }
        if at < run.end_pfn() {
            rest.push(Run { first_pfn: at, pages: run.end_pfn() - at });
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(list: &[(u64, u64)]) -> Vec<Run> {
        list.iter().map(|&(first_pfn, pages)| Run { first_pfn, pages }).collect()
    }

    #[test]
    fn a_page_that_is_needed_elsewhere_stays() {
        assert_eq!(difference(&runs(&[(10, 10), (30, 5)]), &runs(&[(12, 3), (19, 12), (40, 1)])), runs(&[(10, 2), (15, 4), (31, 4)]));
        assert_eq!(difference(&runs(&[(10, 10)]), &runs(&[(0, 100)])), []);
        assert_eq!(difference(&runs(&[(10, 10)]), &[]), runs(&[(10, 10)]));
    }

    #[test]
    fn runs_join() {
        let mut list = Runs::default();
        [5, 6, 9, 7, 5, 20].into_iter().for_each(|p| list.add(p));
        assert_eq!(list.sorted(), runs(&[(5, 3), (9, 1), (20, 1)]));
    }
}
