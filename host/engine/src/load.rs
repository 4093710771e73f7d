//! Brings the pages of a batch into reach: by mapping windows, by reading, or through the reader.

use coresift_sdk::{ExtentKind, Run, StoredPage};

use crate::batch::{BatchPlan, Piece, Place};
use crate::decode::Stored;
use crate::image::Image;
use crate::report::Issues;
use crate::window::{AlignedBuffer, Window};

/// Shorter stretches are read: mapping and unmapping costs more than copying them.
const WINDOW_MIN: u64 = 64 << 10;

/// Where a page of a loaded batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spot {
    Window {
        index: usize,
        at: usize,
    },
    Buffer {
        at: usize,
    },
    /// in the buffer of stored bytes, not decompressed
    Stored,
    Missing,
}

/// The pages of a batch. Reused for the next one.
#[derive(Debug, Default)]
pub struct Loaded {
    pfns: Vec<u64>,
    spots: Vec<Spot>,
    windows: Vec<Window>,
    buffer: AlignedBuffer,
    filled: usize,
    /// pages as they are stored, and what of them is where; as many as there are pages, or none
    stored: AlignedBuffer,
    stored_pages: Vec<StoredPage>,
    page_size: usize,
    /// bytes taken from the input
    pub bytes_read: u64,
}

/// Consecutive pieces of one source, near enough to share a window.
struct Stretch<'a> {
    pieces: &'a [Piece],
    source: u32,
    start: u64,
    end: u64,
}

impl Loaded {
    /// Loads a batch by windows of at most `map_size` bytes; 0 = everything is read.
    pub fn load(&mut self, plan: &BatchPlan, image: &Image, map_size: usize, issues: &Issues) {
        self.clear();
        self.page_size = image.machine.page_size();
        let mut rest = plan.pieces.as_slice();
        while let Some(first) = rest.first() {
            let alike = rest.iter().take_while(|piece| piece.place == first.place).count();
            let n = match first.place {
                Place::Reader => {
                    self.make(ExtentKind::ENCODED, rest.get(..alike).unwrap_or_default(), image, issues);
                    alike
                }
                Place::Stored => {
                    self.fetch(rest.get(..alike).unwrap_or_default(), image, issues);
                    alike
                }
                Place::File { source, offset } => {
                    let stretch = self.stretch(rest, source, offset, map_size as u64);
                    let n = stretch.pieces.len();
                    if !self.map(&stretch, image, map_size) {
                        stretch.pieces.iter().for_each(|p| self.read(p, image));
                    }
                    n
                }
            };
            rest = rest.get(n..).unwrap_or_default();
        }
    }

    /// Stands in for a batch whose bytes nobody will look at: every page is the same page of zeros.
    pub fn stand_in(&mut self, plan: &BatchPlan, page_size: usize) {
        self.clear();
        self.page_size = page_size;
        let spot = if self.buffer.lend(page_size).is_ok() { Spot::Buffer { at: 0 } } else { Spot::Missing };
        for piece in &plan.pieces {
            (piece.run.first_pfn..piece.run.end_pfn()).for_each(|pfn| self.push(pfn, spot));
        }
    }

    /// Gives windows back; buffers stay.
    pub fn clear(&mut self) {
        self.pfns.clear();
        self.spots.clear();
        self.windows.clear();
        self.stored_pages.clear();
        self.filled = 0;
        self.bytes_read = 0;
    }

    /// PFNs of the batch, ascending.
    pub fn pfns(&self) -> &[u64] {
        &self.pfns
    }

    /// The bytes of page number `i` of the batch; `None` if the input could not give them.
    pub fn page(&self, i: usize) -> Option<&[u8]> {
        let (bytes, at) = match *self.spots.get(i)? {
            Spot::Window { index, at } => (self.windows.get(index)?.bytes(), at),
            Spot::Buffer { at } => (self.buffer.bytes(), at),
            Spot::Stored | Spot::Missing => return None,
        };
        bytes.get(at..)?.get(..self.page_size)
    }

    /// True if the input broke under a window since it was mapped: load again without windows.
    pub fn damaged(&self) -> bool {
        self.windows.iter().any(Window::damaged)
    }

    fn stretch<'a>(&self, pieces: &'a [Piece], source: u32, start: u64, span_max: u64) -> Stretch<'a> {
        let mut stretch = Stretch { pieces: &[], source, start, end: start };
        for (i, piece) in pieces.iter().enumerate() {
            let Place::File { source: s, offset } = piece.place else { break };
            let end = offset + piece.run.pages * self.page_size as u64;
            let near = s == source && offset >= stretch.end && (i == 0 || end - start <= span_max);
            if !near {
                break;
            }
            stretch.end = end;
            stretch.pieces = pieces.get(..=i).unwrap_or_default();
        }
        stretch
    }

    /// Maps a stretch; false if it has to be read.
    fn map(&mut self, stretch: &Stretch<'_>, image: &Image, map_size: usize) -> bool {
        let len = stretch.end - stretch.start;
        // Offsets that are not page-congruent are read: the pages would straddle those of the page cache.
        let congruent = stretch.start.is_multiple_of(rustix::param::page_size() as u64);
        let Some(source) = image.sources.get(stretch.source as usize) else { return false };
        if map_size == 0 || !congruent || len < WINDOW_MIN || !source.maps() {
            return false;
        }
        let window = match Window::map(source.file(), stretch.start, len as usize) {
            Ok(window) => window,
            Err(e) => {
                // A file system that cannot map never will; other errors (no memory, too many windows) may pass.
                if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::EINVAL | libc::EACCES | libc::EPERM)) {
                    source.cannot_map();
                }
                return false;
            }
        };
        let index = self.windows.len();
        self.windows.push(window);
        for piece in stretch.pieces {
            let Place::File { offset, .. } = piece.place else { continue };
            for i in 0..piece.run.pages {
                let at = (offset - stretch.start) as usize + i as usize * self.page_size;
                self.push(piece.run.first_pfn + i, Spot::Window { index, at });
            }
            self.bytes_read += piece.run.pages * self.page_size as u64;
        }
        true
    }

    fn push(&mut self, pfn: u64, spot: Spot) {
        self.pfns.push(pfn);
        self.spots.push(spot);
    }

    /// Room for pages in the buffer, whose size is a batch: made at the first need.
    fn room(&mut self, pages: usize) -> std::ops::Range<usize> {
        let start = self.filled;
        self.filled += pages * self.page_size;
        start..self.filled
    }

    /// Lends a part of the buffer, which is a batch long from its first use on.
    fn lend(&mut self, room: &std::ops::Range<usize>) -> Option<&mut [u8]> {
        let capacity = crate::batch::BATCH_BYTES.max(self.page_size).max(room.end);
        self.buffer.lend(capacity).ok()?.get_mut(room.clone())
    }

    fn read(&mut self, piece: &Piece, image: &Image) {
        let Place::File { source, offset } = piece.place else { return };
        let (at, page_size) = (self.room(piece.run.pages as usize), self.page_size);
        let (Some(source), Some(room)) = (image.sources.get(source as usize), self.lend(&at)) else {
            return self.missing(piece.run);
        };
        let (n, error) = source.read_up_to(offset, room);
        let whole = n / page_size;
        let mut good: Vec<bool> = (0..piece.run.pages as usize).map(|i| i < whole).collect();
        if n < room.len() && (error.is_some() || source.may_go_on(offset + n as u64)) {
            // One bad page hides the good ones behind it: try each.
            let pages = room.chunks_exact_mut(page_size).zip(&mut good).enumerate().skip(whole);
            for (i, (page, good)) in pages {
                *good = source.read_up_to(offset + (i * page_size) as u64, page).0 == page_size;
            }
        }
        self.take(piece.run.first_pfn.., at.start, &good);
    }

    /// Lets the reader make pages.
    fn make(&mut self, kind: ExtentKind, pieces: &[Piece], image: &Image, issues: &Issues) {
        let pfns = pfns_of(pieces);
        let at = self.room(pfns.len());
        let mut good = vec![false; pfns.len()];
        let Some(room) = self.lend(&at) else { return pieces.iter().for_each(|p| self.missing(p.run)) };
        if let Some(why) = image.make_pages(kind, &pfns, room, &mut good) {
            self.complain(image, &pfns, &why, issues);
        }
        self.take(pfns, at.start, &good);
    }

    /// Lets the reader give pages as they are stored.
    fn fetch(&mut self, pieces: &[Piece], image: &Image, issues: &Issues) {
        if !self.pfns.is_empty() {
            // A batch has pages of one input format, so this is its first and only call; if not, the later pages are made.
            return self.make(ExtentKind::STORED, pieces, image, issues);
        }
        let pfns = pfns_of(pieces);
        let capacity = crate::batch::BATCH_BYTES.max(pfns.len() * self.page_size);
        let Ok(room) = self.stored.lend(capacity) else { return pieces.iter().for_each(|p| self.missing(p.run)) };
        self.stored_pages.resize(pfns.len(), StoredPage::default());
        if let Some(why) = image.read_stored(&pfns, room, &mut self.stored_pages) {
            self.complain(image, &pfns, &why, issues);
        }
        for (i, pfn) in pfns.into_iter().enumerate() {
            let page = self.stored_pages.get(i).copied().unwrap_or_default();
            self.push(pfn, if page.state == StoredPage::MISSING { Spot::Missing } else { Spot::Stored });
            self.bytes_read += u64::from(page.len);
        }
    }

    fn complain(&self, image: &Image, pfns: &[u64], why: &str, issues: &Issues) {
        issues.add(&image.plugin.title(), &format!("PFN {:#x}", pfns.first().copied().unwrap_or(0)), why);
    }

    /// Page number `i` as it is stored in the input, if it is: its bytes and their codec bit.
    pub fn stored(&self, i: usize) -> Option<(&[u8], u32)> {
        let page = self.stored_pages.get(i)?;
        Some((page.bytes(self.stored.bytes())?, page.codec))
    }

    /// True if page number `i` is there, but only as it is stored.
    pub fn is_stored(&self, i: usize) -> bool {
        self.spots.get(i) == Some(&Spot::Stored)
    }

    /// True if the input says that page number `i` holds only zeros, and nobody asked for its bytes.
    pub fn is_zero(&self, i: usize) -> bool {
        self.spots.get(i) == Some(&Spot::Stored) && self.stored_pages.get(i).is_some_and(|p| p.state == StoredPage::ZERO)
    }

    /// Decompresses the stored pages whose bytes are wanted; one that does not decompress is missing from then on.
    pub fn decode(&mut self, wanted: impl Fn(usize) -> bool, image: &Image, issues: &Issues) {
        let mut from = 0;
        while from < self.stored_pages.len() {
            let is_wanted = |i: &usize| self.spots.get(*i) == Some(&Spot::Stored) && wanted(*i);
            let n = (from..self.stored_pages.len()).take_while(is_wanted).count();
            if n == 0 {
                from += 1;
                continue;
            }
            let at = self.room(n);
            let mut good = vec![false; n];
            let capacity = crate::batch::BATCH_BYTES.max(at.end);
            let room = self.buffer.lend(capacity).ok().and_then(|b| b.get_mut(at.clone()));
            let pages = self.stored_pages.get(from..from + n).unwrap_or_default();
            let stored = Stored { bytes: self.stored.bytes(), pages, page_size: self.page_size };
            if let Some(why) = room.and_then(|room| image.decode(&stored, room, &mut good)) {
                let pfn = self.pfns.get(from).copied().unwrap_or(0);
                issues.add("input", &format!("pages from PFN {pfn:#x} on"), &why);
            }
            for (i, good) in good.into_iter().enumerate() {
                let spot = if good { Spot::Buffer { at: at.start + i * self.page_size } } else { Spot::Missing };
                self.spots.iter_mut().skip(from + i).take(1).for_each(|s| *s = spot);
            }
            from += n;
        }
    }

    fn take(&mut self, pfns: impl IntoIterator<Item = u64>, start: usize, good: &[bool]) {
        for (i, (pfn, good)) in pfns.into_iter().zip(good).enumerate() {
            let spot = if *good { Spot::Buffer { at: start + i * self.page_size } } else { Spot::Missing };
            self.push(pfn, spot);
            self.bytes_read += if *good { self.page_size as u64 } else { 0 };
        }
    }

    fn missing(&mut self, run: Run) {
        (run.first_pfn..run.end_pfn()).for_each(|pfn| self.push(pfn, Spot::Missing));
    }
}

fn pfns_of(pieces: &[Piece]) -> Vec<u64> {
    pieces.iter().flat_map(|p| p.run.first_pfn..p.run.end_pfn()).collect()
}
