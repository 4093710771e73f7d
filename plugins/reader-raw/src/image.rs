//! The reader: an opened raw image.

use coresift_sdk::{Error, ErrorKind, Extent, Machine, PageState, Reader, Result, Source};

/// An opened raw image.
#[derive(Debug)]
pub struct RawImage {
    source: Source,
    machine: Machine,
    /// PFN of the file's first byte
    first_pfn: u64,
    /// pages that are whole in the file
    whole: u64,
    /// bytes behind the last whole page
    rest: u64,
}

impl RawImage {
    /// Opens it; `base` is the physical address of the file's first byte.
    ///
    /// # Errors
    /// `base` is no multiple of the page size, or the file's length is unknown or zero.
    pub fn open(source: Source, mut machine: Machine, base: u64) -> Result<Self> {
        let page_size = machine.page_size() as u64;
        if !base.is_multiple_of(page_size) {
            let message = format!("key `base`: {base:#x} is no multiple of the page size {page_size:#x}");
            return Err(Error::new(ErrorKind::Config, message).hint("give the address of a page; cut the file if it begins within one"));
        }
        let name = source.name();
        let len = source.size().ok_or_else(|| {
            Error::unsupported(format!("{name}: its length is not known, and a raw image tells nothing else")).hint("copy it to a file")
        })?;
        if len == 0 {
            return Err(Error::format(format!("{name}: it is empty")).hint("copy it again"));
        }
        let end = base.checked_add(len).and_then(|end| end.checked_next_multiple_of(page_size));
        let end =
            end.ok_or_else(|| Error::new(ErrorKind::Config, format!("key `base`: {base:#x} and the file's length are beyond 64 bits")))?;
        let (whole, rest) = (len / page_size, len % page_size);
        if rest > 0 {
            let message = format!("the file ends {rest} bytes into a page of {page_size}; the rest of the page is filled with zeros");
            machine.warnings.push(message);
        }
        machine.format = "raw image".into();
        machine.max_pfn = end / page_size;
        Ok(Self { source, machine, first_pfn: base / page_size, whole, rest })
    }

    /// Makes page `pfn`; false if the file does not have it.
    fn read_page(&self, pfn: u64, page: &mut [u8]) -> Result<bool> {
        page.fill(0);
        let Some(number) = pfn.checked_sub(self.first_pfn) else { return Ok(false) };
        let len = match number {
            n if n < self.whole => page.len(),
            n if n == self.whole => self.rest as usize,
            _ => 0,
        };
        let room = page.get_mut(..len).filter(|room| !room.is_empty());
        let Some(room) = room else { return Ok(false) };
        Ok(self.source.read_at(number << self.machine.page_shift, room)? == len)
    }
}

impl Reader for RawImage {
    fn machine(&self) -> Machine {
        self.machine.clone()
    }

    fn extents(&self) -> Vec<Extent> {
        let mapped = (self.whole > 0).then(|| Extent::mapped(self.first_pfn, self.whole, 0, 0));
        let last = (self.rest > 0).then(|| Extent::encoded(self.first_pfn + self.whole, 1));
        mapped.into_iter().chain(last).collect()
    }

    fn read_pages(&self, pfns: &[u64], out: &mut [u8], states: &mut [PageState]) -> Result<()> {
        let page_size = self.machine.page_size();
        if out.len() != pfns.len().saturating_mul(page_size) || states.len() != pfns.len() {
            return Err(Error::new(ErrorKind::Other, "room for another number of pages than asked for"));
        }
        let mut failure = None;
        for ((&pfn, page), state) in pfns.iter().zip(out.chunks_exact_mut(page_size)).zip(states.iter_mut()) {
            let there = self.read_page(pfn, page).unwrap_or_else(|e| {
                failure.get_or_insert(e.at_pfn(pfn));
                false
            });
            *state = if there { PageState::PRESENT } else { PageState::MISSING };
        }
        // One bad page is data; only if there is no good one at all, the caller learns why.
        match failure {
            Some(e) if !states.contains(&PageState::PRESENT) => Err(e),
            _ => Ok(()),
        }
    }
}
