//! Reads the memory in an image, whatever its pages are stored as.

use std::sync::{Mutex, PoisonError};

use coresift_sdk::{ClassSet, Extent, ExtentKind, PageState, StoredPage, Verdict};

use super::Image;
use crate::decode::Stored;

/// Pages that are made at once.
const AT_ONCE: usize = 64;
/// Bytes up to which a read is one of a table's entry or of a list's link: the next one is often of the same page.
const FEW: usize = 64;
/// Largest page of which all is read for a few of its bytes.
const CACHED_MAX: usize = 16 << 10;
/// Pages that are remembered: whoever walks page tables or lists reads a few bytes of the same pages again and again.
const SLOTS: usize = 64;

/// The pages made last, by their PFN modulo the number of slots.
pub struct Cache(Vec<Mutex<Option<Made>>>);

/// A page's PFN and its bytes.
type Made = (u64, Box<[u8]>);

impl Default for Cache {
    fn default() -> Self {
        Self((0..SLOTS).map(|_| Mutex::default()).collect())
    }
}

impl Image {
    /// The extent that holds a PFN.
    pub fn extent_of(&self, pfn: u64) -> Option<&Extent> {
        let i = self.extents.partition_point(|e| e.end_pfn() <= pfn);
        self.extents.get(i).filter(|e| e.first_pfn <= pfn)
    }

    /// Makes pages that the input does not have as they are; `out` has a page for each. Says for each whether it is there,
    /// and if nothing else why not.
    pub fn make_pages(&self, kind: ExtentKind, pfns: &[u64], out: &mut [u8], good: &mut [bool]) -> Option<String> {
        if kind == ExtentKind::STORED {
            let mut bytes = vec![0u8; out.len()];
            let mut pages = vec![StoredPage::default(); pfns.len()];
            let failure = self.read_stored(pfns, &mut bytes, &mut pages);
            let stored = Stored { bytes: &bytes, pages: &pages, page_size: self.machine.page_size() };
            return failure.or(self.decoders.decode(&stored, out, good));
        }
        let mut states = vec![PageState::MISSING; pfns.len()];
        let mut failure = None;
        if let Err(e) = self.reader.read_pages(pfns, out, &mut states) {
            failure = Some(e.message);
            // One bad page must not cost its neighbours.
            for ((pfn, page), state) in pfns.iter().zip(out.chunks_exact_mut(self.machine.page_size())).zip(&mut states) {
                let alone = std::slice::from_mut(state);
                alone.fill(PageState::MISSING);
                if self.reader.read_pages(std::slice::from_ref(pfn), page, alone).is_err() {
                    alone.fill(PageState::MISSING);
                }
            }
        }
        good.iter_mut().zip(states).for_each(|(good, state)| *good = state == PageState::PRESENT);
        failure
    }

    /// True if pages stored with this codec can be decompressed.
    pub fn decodes(&self, codec: u32) -> bool {
        self.decoders.has(codec)
    }

    /// Decompresses stored pages, as `Decoders::decode` does.
    pub fn decode(&self, stored: &Stored<'_>, out: &mut [u8], good: &mut [bool]) -> Option<String> {
        self.decoders.decode(stored, out, good)
    }

    /// Reads pages as they are stored. A page whose place in the buffer makes no sense is missing.
    pub fn read_stored(&self, pfns: &[u64], buf: &mut [u8], pages: &mut [StoredPage]) -> Option<String> {
        let (mut from, mut failure) = (0, None);
        let (page_size, end) = (self.machine.page_size(), pfns.len());
        while from < end {
            let room = buf.get_mut(from * page_size..).unwrap_or_default();
            let (pfns, pages) = (pfns.get(from..).unwrap_or_default(), pages.get_mut(from..).unwrap_or_default());
            match self.reader.read_stored(pfns, room, pages) {
                Ok(n) => {
                    let n = n.clamp(1, pfns.len());
                    for page in pages.iter_mut().take(n).filter(|p| p.state == StoredPage::STORED) {
                        page.at = page.at.saturating_add((from * page_size) as u32);
                    }
                    from += n;
                }
                Err(e) => {
                    failure = failure.or(Some(e.message));
                    pages.fill(StoredPage::default());
                    break;
                }
            }
        }
        let inside = |page: &StoredPage| page.bytes(buf).is_some() && page.len as usize <= page_size;
        pages.iter_mut().filter(|p| p.state == StoredPage::STORED && !inside(p)).for_each(|p| *p = StoredPage::default());
        failure
    }

    /// Reads bytes of one page from byte `within` on; false if the input does not have it.
    fn read_page(&self, extent: &Extent, pfn: u64, within: usize, out: &mut [u8]) -> bool {
        if extent.kind == ExtentKind::ABSENT {
            // Pages that are left out of an input without zero pages, and without others, are zeros.
            let only_zero = ClassSet::default().with(Verdict::ZERO);
            let zero = self.machine.excluded == only_zero && !self.machine.incomplete;
            if zero {
                out.fill(0);
            }
            return zero;
        }
        let Some(slot) = self.cache.0.get((pfn % SLOTS as u64) as usize) else { return false };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = slot.take().filter(|(kept, _)| *kept == pfn);
        let (_, page) = match kept.or_else(|| self.make_page(extent, pfn).map(|page| (pfn, page))) {
            Some(made) => slot.insert(made),
            None => return false,
        };
        let bytes = page.get(within..).and_then(|bytes| bytes.get(..out.len()));
        if let Some(bytes) = bytes {
            out.copy_from_slice(bytes);
        }
        bytes.is_some()
    }

    /// One page of an extent that is not absent.
    fn make_page(&self, extent: &Extent, pfn: u64) -> Option<Box<[u8]>> {
        let mut page = vec![0u8; self.machine.page_size()].into_boxed_slice();
        if extent.kind == ExtentKind::MAPPED {
            let at = extent.offset + ((pfn - extent.first_pfn) << self.machine.page_shift);
            let whole = self.sources.get(extent.source as usize)?.read_up_to(at, &mut page).0 == page.len();
            return whole.then_some(page);
        }
        let mut good = [false];
        self.make_pages(extent.kind, &[pfn], &mut page, &mut good);
        (good == [true]).then_some(page)
    }

    /// Reads physical memory; stops at the first page that the input does not have.
    pub fn read_physical(&self, paddr: u64, buf: &mut [u8]) -> usize {
        let (shift, page_size) = (self.machine.page_shift, self.machine.page_size());
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|r| !r.is_empty()) {
            let Some(at) = paddr.checked_add(done as u64) else { break };
            let pfn = at >> shift;
            let Some(extent) = self.extent_of(pfn) else { break };
            let within = at - (extent.first_pfn << shift);
            let within_page = (at & (page_size as u64 - 1)) as usize;
            if extent.kind == ExtentKind::MAPPED {
                let few = rest.len() <= FEW && within_page + rest.len() <= page_size && page_size <= CACHED_MAX;
                if few && self.read_page(extent, pfn, within_page, rest) {
                    return done + rest.len();
                }
                let left = (extent.pages << shift) - within;
                let len = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let (Some(room), Some(source)) = (rest.get_mut(..len), self.sources.get(extent.source as usize)) else { break };
                let n = source.read_up_to(extent.offset + within, room).0;
                done += n;
                if n < len {
                    break;
                }
                continue;
            }
            let left = usize::try_from(extent.end_pfn() - pfn).unwrap_or(usize::MAX);
            let whole = if within_page == 0 { (rest.len() / page_size).min(AT_ONCE).min(left) } else { 0 };
            if whole > 1 && matches!(extent.kind, ExtentKind::STORED | ExtentKind::ENCODED) {
                let pfns: Vec<u64> = (pfn..pfn + whole as u64).collect();
                let mut good = vec![false; whole];
                self.make_pages(extent.kind, &pfns, rest.get_mut(..whole * page_size).unwrap_or_default(), &mut good);
                let n = good.iter().take_while(|good| **good).count();
                done += n * page_size;
                if n < whole {
                    break;
                }
                continue;
            }
            let n = (page_size - within_page).min(rest.len());
            if !rest.get_mut(..n).is_some_and(|to| self.read_page(extent, pfn, within_page, to)) {
                break;
            }
            done += n;
        }
        done
    }
}
