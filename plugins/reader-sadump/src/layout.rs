//! From runs of PFNs to extents, and from PFNs to bytes.
//!
//! The pages of all disks are one *stream*: page after page, in order of the dumpable PFNs, each disk has the next part.
//! A run of PFNs is therefore a range of the stream, and a mapped extent wherever that lies on one disk. A page that begins
//! on one disk and ends on the next is encoded and put together.

use coresift_sdk::{Error, Extent, ExtentKind, Result, Source};

use crate::bitmap::PageKind;
use crate::header::BLOCK;

/// Most extents: a bitmap whose bits alternate makes one of every page, and each takes 40 bytes.
const EXTENTS_MAX: usize = 1 << 26;

/// The part of the stream that one disk has.
#[derive(Debug, Clone, Copy)]
pub struct Disk {
    /// number of the input
    source: u32,
    /// file offset of the first byte
    data_at: u64,
    /// bytes of the stream, by the headers
    bytes: u64,
    /// bytes of them that the file really has
    there: u64,
}

impl Disk {
    /// `bytes` bytes at `data_at` of the input.
    pub fn new(source: &Source, input: u32, data_at: u64, bytes: u64) -> Self {
        // No file is longer than an off_t counts; then no sum of offsets overflows.
        let bytes = bytes.min(i64::MAX.cast_unsigned().saturating_sub(data_at));
        // Without a length the headers are trusted; what is not there after all turns up when pages are read.
        let there = source.size().map_or(bytes, |size| size.saturating_sub(data_at).min(bytes));
        Self { source: input, data_at, bytes, there }
    }
}

/// The stream: all disks in order.
#[derive(Debug, Default)]
pub struct Disks(Vec<Disk>);

/// A place in the stream.
struct Place {
    source: u32,
    offset: u64,
    /// bytes of the stream from here to the end of the disk's part
    left: u64,
    /// bytes of them that are there
    there: u64,
}

impl Disks {
    /// The stream of an image that is one file.
    pub fn one(source: &Source, data_at: u64) -> Self {
        Self(vec![Disk::new(source, 0, data_at, u64::MAX)])
    }

    /// Adds the next disk.
    pub fn push(&mut self, disk: Disk) {
        self.0.push(disk);
    }

    fn place(&self, at: u64) -> Option<Place> {
        let mut within = at;
        for disk in &self.0 {
            if within < disk.bytes {
                let (left, there) = (disk.bytes - within, disk.there.saturating_sub(within));
                return Some(Place { source: disk.source, offset: disk.data_at + within, left, there });
            }
            within -= disk.bytes;
        }
        None
    }

    /// Fills `buf` from the stream; false if not all of it is there.
    fn read(&self, sources: &[Source], at: u64, buf: &mut [u8]) -> Result<bool> {
        let (mut rest, mut at) = (buf, at);
        while !rest.is_empty() {
            let Some(place) = self.place(at) else { return Ok(false) };
            let n = usize::try_from(place.left).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at_mut(n);
            let Some(source) = sources.get(place.source as usize) else { return Ok(false) };
            if source.read_at(place.offset, now)? < n {
                return Ok(false);
            }
            (rest, at) = (later, at + n as u64);
        }
        Ok(true)
    }
}

/// Where the bytes of all pages are.
#[derive(Debug)]
pub struct Layout {
    disks: Disks,
    /// pages that the firmware left out are pages of zeros
    zeros: bool,
    extents: Vec<Extent>,
    /// pages of which the bytes lie on two disks: PFN and place in the stream
    split: Vec<(u64, u64)>,
    /// dumped pages so far: the next one's place in the stream
    dumped: u64,
    /// pages that should be in the files, but are not
    pub lost: u64,
    /// pages that the firmware left out
    pub left_out: u64,
}

impl Layout {
    /// No pages yet. `zeros`: those that the firmware left out are to be pages of zeros, not absent.
    pub fn new(disks: Disks, zeros: bool) -> Self {
        Self { disks, zeros, extents: Vec::new(), split: Vec::new(), dumped: 0, lost: 0, left_out: 0 }
    }

    /// Adds the next run of pages, as [`crate::bitmap::runs`] finds them.
    ///
    /// # Errors
    /// There are more runs than a sound bitmap has.
    pub fn add(&mut self, kind: PageKind, first_pfn: u64, pages: u64) -> Result<()> {
        if self.extents.len() >= EXTENTS_MAX {
            let message = format!("more than {EXTENTS_MAX} runs of pages: the bitmaps are damaged, or memory is too fragmented");
            return Err(Error::unsupported(message).at_pfn(first_pfn));
        }
        match kind {
            PageKind::Dumped => self.dumped(first_pfn, pages),
            PageKind::LeftOut => {
                self.left_out += pages;
                self.extents.push(if self.zeros { Extent::encoded(first_pfn, pages) } else { Extent::absent(first_pfn, pages) });
            }
        }
        Ok(())
    }

    fn dumped(&mut self, first_pfn: u64, pages: u64) {
        let (mut pfn, end) = (first_pfn, first_pfn + pages);
        while pfn < end {
            let at = self.dumped * BLOCK;
            // PFNs have at most 36 bits and `pfn < end`: no n is larger than what is left of the run, or 0.
            let extent = match self.disks.place(at) {
                Some(place) if place.left < BLOCK => {
                    self.split.push((pfn, at));
                    Extent::encoded(pfn, 1)
                }
                Some(place) if place.there >= BLOCK => {
                    Extent::mapped(pfn, (place.there / BLOCK).min(end - pfn), place.source, place.offset)
                }
                Some(place) => self.lose(pfn, (place.left / BLOCK).min(end - pfn)),
                None => self.lose(pfn, end - pfn),
            };
            pfn = extent.end_pfn();
            self.dumped += extent.pages;
            self.extents.push(extent);
        }
    }

    fn lose(&mut self, pfn: u64, pages: u64) -> Extent {
        self.lost += pages;
        Extent::absent(pfn, pages)
    }

    /// Bytes of the stream that the bitmaps ask for.
    pub fn stream_bytes(&self) -> u64 {
        self.dumped * BLOCK
    }

    /// All RAM as extents, ascending and disjoint.
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Puts page `pfn` together; false if the input does not have it.
    ///
    /// # Errors
    /// A read failed.
    pub fn read_page(&self, sources: &[Source], pfn: u64, page: &mut [u8]) -> Result<bool> {
        let i = self.extents.partition_point(|e| e.end_pfn() <= pfn);
        let Some(extent) = self.extents.get(i).filter(|e| e.first_pfn <= pfn) else { return Ok(false) };
        if extent.kind == ExtentKind::MAPPED {
            let offset = extent.offset + (pfn - extent.first_pfn) * BLOCK;
            let Some(source) = sources.get(extent.source as usize) else { return Ok(false) };
            return Ok(source.read_at(offset, page)? == page.len());
        }
        if extent.kind != ExtentKind::ENCODED {
            return Ok(false);
        }
        match self.split.iter().find(|(split, _)| *split == pfn) {
            Some((_, at)) => self.disks.read(sources, *at, page),
            None => {
                page.fill(0);
                Ok(true)
            }
        }
    }

    /// Reads a 64-bit little endian number of physical memory.
    pub fn read_u64(&self, sources: &[Source], paddr: u64) -> Option<u64> {
        let mut page = [0; BLOCK as usize];
        let there = self.read_page(sources, paddr / BLOCK, &mut page).ok()?;
        let bytes = page.get((paddr % BLOCK) as usize..)?.first_chunk()?;
        there.then(|| u64::from_le_bytes(*bytes))
    }
}
