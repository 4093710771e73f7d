//! Brings the pages of a batch into reach: by mapping windows, by reading, or through the reader.

use coresift_sdk::{PageState, Run};

use crate::batch::{BatchPlan, Piece, Place};
use crate::image::Image;
use crate::report::Issues;
use crate::window::{AlignedBuffer, Window};

/// Shorter stretches are read: mapping and unmapping costs more than copying them.
const WINDOW_MIN: u64 = 64 << 10;

/// Where a page of a loaded batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spot {
    Window { index: usize, at: usize },
    Buffer { at: usize },
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
            let n = match first.place {
                Place::Reader => {
                    self.make(first.run, image, issues);
                    1
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
            Spot::Missing => return None,
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

    /// Room for a run in the buffer, whose size is a batch: made at the first need.
    fn room(&mut self, run: Run) -> std::ops::Range<usize> {
        let start = self.filled;
        self.filled += run.pages as usize * self.page_size;
        start..self.filled
    }

    /// Lends a part of the buffer, which is a batch long from its first use on.
    fn lend(&mut self, room: &std::ops::Range<usize>) -> Option<&mut [u8]> {
        let capacity = crate::batch::BATCH_BYTES.max(self.page_size).max(room.end);
        self.buffer.lend(capacity).ok()?.get_mut(room.clone())
    }

    fn read(&mut self, piece: &Piece, image: &Image) {
        let Place::File { source, offset } = piece.place else { return };
        let (at, page_size) = (self.room(piece.run), self.page_size);
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
        self.take(piece.run, at.start, &good);
    }

    fn make(&mut self, run: Run, image: &Image, issues: &Issues) {
        let at = self.room(run);
        let pfns: Vec<u64> = (run.first_pfn..run.end_pfn()).collect();
        let mut states = vec![PageState::MISSING; pfns.len()];
        let page_size = self.page_size;
        let Some(room) = self.lend(&at) else { return self.missing(run) };
        if let Err(e) = image.reader().read_pages(&pfns, room, &mut states) {
            issues.add(&image.plugin.title(), &format!("PFN {:#x}", run.first_pfn), &e.message);
            // One bad page must not cost its neighbours.
            for ((pfn, page), state) in pfns.iter().zip(room.chunks_exact_mut(page_size)).zip(&mut states) {
                let alone = std::slice::from_mut(state);
                alone.fill(PageState::MISSING);
                if image.reader().read_pages(std::slice::from_ref(pfn), page, alone).is_err() {
                    alone.fill(PageState::MISSING);
                }
            }
        }
        let good: Vec<bool> = states.iter().map(|s| *s == PageState::PRESENT).collect();
        self.take(run, at.start, &good);
    }

    fn take(&mut self, run: Run, start: usize, good: &[bool]) {
        for (i, (pfn, good)) in (run.first_pfn..).zip(good).enumerate() {
            let spot = if *good { Spot::Buffer { at: start + i * self.page_size } } else { Spot::Missing };
            self.push(pfn, spot);
            self.bytes_read += if *good { self.page_size as u64 } else { 0 };
        }
    }

    fn missing(&mut self, run: Run) {
        (run.first_pfn..run.end_pfn()).for_each(|pfn| self.push(pfn, Spot::Missing));
    }
}
