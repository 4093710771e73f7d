//! Brings the `struct page`s of a block into reach: mapped where they are contiguous in the input, else copied once.

use coresift_kernel::memmap::MapRun;
use coresift_kernel::{Kernel, Span};
use coresift_sdk::{Block, ExtentKind};

use crate::image::Image;
use crate::window::{AlignedBuffer, Window};

/// `struct page`s of consecutive PFNs, and where their bytes are.
#[derive(Debug, Clone, Copy)]
struct Part {
    run: MapRun,
    /// byte range in the window or the buffer
    start: usize,
    end: usize,
    mapped: bool,
}

/// The `struct page`s of a block. Reused for the next one.
#[derive(Debug, Default)]
pub struct StructPages {
    window: Option<Window>,
    buffer: AlignedBuffer,
    parts: Vec<Part>,
    struct_page: usize,
}

impl StructPages {
    /// Loads those of a range of PFNs. `map` is false to copy them all. What cannot be had is left out.
    pub fn load(&mut self, image: &Image, kernel: &Kernel, first_pfn: u64, pages: u64, map: bool) {
        self.clear();
        let Ok(mem_map) = kernel.mem_map() else { return };
        self.struct_page = mem_map.struct_page_size() as usize;
        let mut spans = Vec::new();
        let runs: Vec<_> = mem_map.within(first_pfn, pages).collect();
        let mut filled = 0;
        for run in &runs {
            spans.clear();
            kernel.spans(image, run.address, run.pages * self.struct_page as u64, |span| spans.push(span));
            let whole = match spans.as_slice() {
                [Span { paddr: Some(paddr), len, .. }] if map && self.window.is_none() => self.map(image, *paddr, *len as usize),
                _ => false,
            };
            if whole {
                let end = self.window.as_ref().map_or(0, |w| w.bytes().len());
                self.parts.push(Part { run: *run, start: 0, end, mapped: true });
            } else {
                filled = self.copy(image, run, &spans, filled);
            }
        }
    }

    /// Maps a stretch of physical memory, if it stands in one piece at a page of the input.
    fn map(&mut self, image: &Image, paddr: u64, len: usize) -> bool {
        let shift = image.machine.page_shift;
        let Some(extent) = image.extent_of(paddr >> shift).filter(|e| e.kind == ExtentKind::MAPPED) else { return false };
        let within = paddr - (extent.first_pfn << shift);
        let (offset, fits) = (extent.offset + within, within + len as u64 <= extent.pages << shift);
        let Some(source) = image.sources.get(extent.source as usize).filter(|s| s.maps()) else { return false };
        if !fits || !offset.is_multiple_of(rustix::param::page_size() as u64) {
            return false;
        }
        self.window = Window::map(source.file(), offset, len).ok();
        self.window.iter().for_each(Window::populate);
        self.window.is_some()
    }

    /// Copies the stretches of a run behind what the buffer holds already; returns how far it is filled then.
    fn copy(&mut self, image: &Image, run: &MapRun, spans: &[Span], filled: usize) -> usize {
        let size = self.struct_page;
        let len = run.pages as usize * size;
        // The buffer grows only in front of the first run of a block, so that nothing in it is lost: a block's struct
        // pages are as many as its pages.
        let room = (crate::pageset::BLOCK_PAGES as usize * size).max(filled + len);
        let Ok(buffer) = self.buffer.lend(room) else { return filled };
        // Entries from here to `at` are good and not in a part yet.
        let (mut good, mut at) = (0, 0);
        let mut close = |good: usize, at: usize| {
            // An entry that straddles the edge of what could be read is no entry.
            let (from, to) = (good.div_ceil(size), at / size);
            if from < to {
                let run = MapRun {
                    first_pfn: run.first_pfn + from as u64,
                    pages: (to - from) as u64,
                    address: run.address.wrapping_add((from * size) as u64),
                };
                self.parts.push(Part { run, start: filled + from * size, end: filled + to * size, mapped: false });
            }
        };
        for span in spans {
            let (from, to) = (span.at as usize, (span.at + span.len) as usize);
            let Some(room) = buffer.get_mut(filled + from..filled + to) else { break };
            let mut done = 0;
            while let Some((paddr, rest)) = span.paddr.zip(room.get_mut(done..)).filter(|(_, rest)| !rest.is_empty()) {
                let n = image.read_physical(paddr + done as u64, rest);
                at = from + done + n;
                if n == rest.len() {
                    break;
                }
                close(good, at);
                // On behind the page that is missing.
                let page = image.machine.page_size() as u64;
                done = ((paddr + (done + n) as u64) / page * page + page - paddr) as usize;
                good = from + done;
                at = good;
            }
            if span.paddr.is_none() {
                close(good, at);
                (good, at) = (to, to);
            }
        }
        close(good, at);
        filled + len
    }

    /// The block in parts, in order: those with `struct page`s, and `None` for the pages between them.
    pub fn blocks(&self, first_pfn: u64, pages: u64, page_shift: u32) -> Vec<Block<'_>> {
        let end = first_pfn + pages;
        let mut blocks = Vec::new();
        let mut at = first_pfn;
        let mut parts: Vec<&Part> = self.parts.iter().collect();
        parts.sort_by_key(|p| p.run.first_pfn);
        for part in parts.into_iter().filter(|p| p.run.first_pfn < end) {
            if at < part.run.first_pfn {
                blocks.push(Block::new(at, (part.run.first_pfn - at) as u32, page_shift));
            }
            let bytes = match &self.window {
                Some(window) if part.mapped => window.bytes(),
                _ => self.buffer.bytes(),
            };
            let block = Block::new(part.run.first_pfn, part.run.pages as u32, page_shift);
            blocks.push(match bytes.get(part.start..part.end) {
                Some(bytes) => block.with_struct_pages(bytes, self.struct_page as u32, part.run.address),
                None => block,
            });
            at = part.run.first_pfn + part.run.pages;
        }
        if at < end {
            blocks.push(Block::new(at, (end - at) as u32, page_shift));
        }
        blocks
    }

    /// Gives the window back; the buffer stays.
    pub fn clear(&mut self) {
        self.window = None;
        self.parts.clear();
    }

    /// True if the input broke under the window: load again without.
    pub fn damaged(&self) -> bool {
        self.window.as_ref().is_some_and(Window::damaged)
    }

    /// Number of pages whose `struct page` is there.
    pub fn count(&self) -> u64 {
        self.parts.iter().map(|p| p.run.pages).sum()
    }
}
