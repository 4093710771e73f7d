//! The reader: an opened raw image.

use coresift_sdk::{Error, ErrorKind, Extent, Machine, PageState, Reader, Result, Source};

use crate::regions::Region;

/// An opened raw image.
#[derive(Debug)]
pub struct RawImage {
    source: Source,
    machine: Machine,
    /// whole pages, mapped
    whole: Vec<Extent>,
    /// a page of which the file has only the first bytes
    last: Option<Part>,
}

/// The beginning of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    pfn: u64,
    /// file offset
    offset: u64,
    /// bytes that are there
    len: usize,
}

impl RawImage {
    /// Opens a file that is memory from physical address `base` on.
    ///
    /// # Errors
    /// `base` is no multiple of the page size, or the file's length is unknown or zero.
    pub fn open(source: Source, mut machine: Machine, base: u64) -> Result<Self> {
        let page_size = machine.page_size() as u64;
        if !base.is_multiple_of(page_size) {
            let message = format!("key `base`: {base:#x} is no multiple of the page size {page_size:#x}");
            return Err(Error::new(ErrorKind::Config, message).hint("give the address of a page; cut the file if it begins within one"));
        }
        let len = length(&source)?;
        let end = base.checked_add(len).and_then(|end| end.checked_next_multiple_of(page_size));
        if end.is_none() {
            let message = format!("key `base`: {base:#x} and the file's length are beyond 64 bits");
            return Err(Error::new(ErrorKind::Config, message).hint("give the physical address of the file's first byte"));
        }
        let (pages, rest) = (len / page_size, len % page_size);
        let first_pfn = base / page_size;
        let whole = if pages > 0 { vec![Extent::mapped(first_pfn, pages, 0, 0)] } else { Vec::new() };
        let last = (rest > 0).then(|| Part { pfn: first_pfn + pages, offset: pages * page_size, len: rest as usize });
        if rest > 0 {
            let message = format!("the file ends {rest} bytes into a page of {page_size}; the rest of the page is filled with zeros");
            machine.warnings.push(message);
        }
        Ok(Self::new(source, machine, whole, last))
    }

    /// Opens a file that has these regions one behind the other.
    ///
    /// # Errors
    /// The file's length is unknown, or it has not one whole page.
    pub fn open_regions(source: Source, mut machine: Machine, regions: &[Region]) -> Result<Self> {
        let len = length(&source)?;
        let page_size = machine.page_size() as u64;
        let (mut offset, mut missing, mut edges) = (0u64, 0u64, 0u64);
        let mut whole = Vec::with_capacity(regions.len());
        for region in regions {
            let want = region.end - region.start;
            let there = want.min(len.saturating_sub(offset));
            missing = missing.saturating_add(want - there);
            let end = region.start + there;
            // A page that two regions share, or that the file cuts, is left out: half a page with zeros would be a lie.
            let (first, behind) = (region.start.div_ceil(page_size), end / page_size);
            if first < behind {
                let skipped = first * page_size - region.start;
                whole.push(Extent::mapped(first, behind - first, 0, offset + skipped));
            }
            edges += u64::from(!region.start.is_multiple_of(page_size)) + u64::from(!region.end.is_multiple_of(page_size));
            offset = offset.saturating_add(want);
        }
        if whole.is_empty() {
            let message = format!("{}: it has not one whole page of the regions", source.name());
            return Err(Error::format(message).hint("look at the setting regions"));
        }
        if edges > 0 {
            machine.warnings.push(format!("{edges} ends of regions lie within pages; these pages are left out"));
        }
        if missing > 0 {
            machine.warnings.push(format!("the file is {missing} bytes shorter than its regions: it is cut, or they are others"));
            machine.incomplete = true;
        }
        if offset < len {
            machine.warnings.push(format!("the file is {} bytes longer than its regions; these are left out", len - offset));
            machine.incomplete = true;
        }
        Ok(Self::new(source, machine, whole, None))
    }

    fn new(source: Source, mut machine: Machine, whole: Vec<Extent>, last: Option<Part>) -> Self {
        machine.format = "raw image".into();
        machine.max_pfn = last.map(|part| part.pfn + 1).or(whole.last().map(Extent::end_pfn)).unwrap_or(0);
        Self { source, machine, whole, last }
    }

    /// Makes page `pfn`; false if the file does not have it.
    fn read_page(&self, pfn: u64, page: &mut [u8]) -> Result<bool> {
        page.fill(0);
        let extent = self.whole.get(self.whole.partition_point(|e| e.end_pfn() <= pfn)).filter(|e| e.first_pfn <= pfn);
        let (offset, len) = match (extent, self.last.filter(|part| part.pfn == pfn)) {
            (Some(e), _) => (e.offset + ((pfn - e.first_pfn) << self.machine.page_shift), page.len()),
            (None, Some(part)) => (part.offset, part.len),
            (None, None) => return Ok(false),
        };
        let room = page.get_mut(..len).unwrap_or_default();
        Ok(self.source.read_at(offset, room)? == len)
    }
}

/// The file's length in bytes.
fn length(source: &Source) -> Result<u64> {
    let name = source.name();
    match source.size() {
        Some(0) => Err(Error::format(format!("{name}: it is empty")).hint("copy it again")),
        Some(len) => Ok(len),
        None => {
            Err(Error::unsupported(format!("{name}: its length is not known, and a raw image tells nothing else"))
                .hint("copy it to a file"))
        }
    }
}

impl Reader for RawImage {
    fn machine(&self) -> Machine {
        self.machine.clone()
    }

    fn extents(&self) -> Vec<Extent> {
        self.whole.iter().copied().chain(self.last.map(|part| Extent::encoded(part.pfn, 1))).collect()
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
