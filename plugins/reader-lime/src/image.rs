//! The reader: an opened image.

use std::sync::Mutex;

use coresift_sdk::{Error, ErrorKind, Extent, Machine, PageState, Reader, Result, Source, arch};

use crate::frames::{Block, Cursor};
use crate::header::Head;
use crate::layout;
use crate::ranges::{Data, Range, Ranges};

/// Cursors kept between calls: about one a thread, and some for pages that are asked for alone. Each has some 300 KiB.
const CURSORS_MAX: usize = 16;

/// An opened image.
#[derive(Debug)]
pub struct LimeImage {
    source: Source,
    machine: Machine,
    /// ascending, disjoint
    pieces: Vec<Range>,
    blocks: Vec<Block>,
    extents: Vec<Extent>,
    /// at rest; each call takes one
    cursors: Mutex<Vec<Cursor>>,
}

impl LimeImage {
    /// Opens it. `arch` and `page_size` (bytes) are the settings, `auto` and 0 if they are not set.
    ///
    /// # Errors
    /// The input is no LiME or AVML image, or has no memory.
    pub fn open(source: Source, arch: &str, page_size: u64) -> Result<Self> {
        // The byte order of the headers is all that the file says of the machine.
        let big_endian = matches!(Head::read(&source, 0)?, Head::Range(first) if first.big_endian);
        let mut machine = machine(arch, page_size, big_endian);
        let ranges = Ranges::read(&source, machine.page_shift, &mut machine.warnings)?;
        machine.incomplete = ranges.incomplete;
        machine.format = if ranges.blocks.is_empty() { "LiME image" } else { "AVML image" }.into();
        let (pieces, twice) = layout::pieces(ranges.list);
        if twice > 0 {
            machine.warnings.push(format!("ranges overlap: {twice} bytes are there twice; the first in the file is taken"));
        }
        let (extents, partial) = layout::extents(&pieces, machine.page_shift);
        if partial > 0 {
            machine.warnings.push(format!("{partial} pages are there only in part; their rest is filled with zeros"));
        }
        if extents.is_empty() {
            let message = format!("{}: there is not one whole page in it", source.name());
            return Err(Error::format(message).hint("the file is cut; copy it again"));
        }
        machine.max_pfn = extents.last().map_or(0, Extent::end_pfn);
        Ok(Self { source, machine, pieces, blocks: ranges.blocks, extents, cursors: Mutex::default() })
    }

    /// Makes page `pfn`; bytes that no range has are zero. False if no range has a byte of it, or the file ends in it.
    fn read_page(&self, pfn: u64, page: &mut [u8], cursor: &mut Cursor) -> Result<bool> {
        page.fill(0);
        let Some(page_start) = pfn.checked_mul(page.len() as u64) else { return Ok(false) };
        let page_end = page_start.saturating_add(page.len() as u64);
        let first = self.pieces.partition_point(|p| p.end <= page_start);
        let mut found = false;
        for piece in self.pieces.iter().skip(first).take_while(|p| p.start < page_end) {
            let (start, end) = (piece.start.max(page_start), piece.end.min(page_end));
            let room = page.get_mut((start - page_start) as usize..(end - page_start) as usize).unwrap_or_default();
            match piece.data {
                Data::Raw(offset) => {
                    if self.source.read_at(offset.saturating_add(start - piece.start), room)? < room.len() {
                        return Ok(false);
                    }
                }
                Data::Block(number, pos) => {
                    let Some(block) = self.blocks.get(number) else { return Ok(false) };
                    cursor.read(&self.source, number, block, pos.saturating_add(start - piece.start), room)?;
                }
            }
            found = true;
        }
        Ok(found)
    }

    /// Takes the cursor that is at this page, or any.
    fn take_cursor(&self, pfn: u64) -> Cursor {
        let paddr = pfn.saturating_mul(self.machine.page_size() as u64);
        let piece = self.pieces.get(self.pieces.partition_point(|p| p.end <= paddr));
        let Ok(mut cursors) = self.cursors.lock() else { return Cursor::default() };
        let there = piece.and_then(|piece| match piece.data {
            Data::Block(number, pos) => {
                let pos = pos.saturating_add(paddr.saturating_sub(piece.start));
                cursors.iter().position(|c| c.holds(number, pos))
            }
            Data::Raw(_) => None,
        });
        match there {
            Some(i) => cursors.remove(i),
            // The one that rests longest goes first, so that those used last stay where they are.
            None if cursors.len() >= CURSORS_MAX => cursors.remove(0),
            None => Cursor::default(),
        }
    }

    fn give_back(&self, cursor: Cursor) {
        if let Ok(mut cursors) = self.cursors.lock()
            && cursors.len() < CURSORS_MAX
        {
            cursors.push(cursor);
        }
    }
}

/// The machine by the settings `arch` and `page_size`. `big_endian` is the byte order of the file's headers, which LiME
/// writes as the machine has them.
fn machine(name: &str, page_size: u64, big_endian: bool) -> Machine {
    let named = arch::by_name(name);
    let Some(taken) = named.or_else(|| arch::usual(big_endian)) else { return Machine::default() };
    let mut machine = taken.machine(page_size);
    if named.is_none() {
        let given = taken.name;
        let warning = format!("the image does not tell its architecture: {given} is taken (--set input.reader=lime --set input.arch=NAME)");
        machine.warnings.insert(0, warning);
    } else if big_endian && !taken.big_endian {
        let warning = format!("the headers are big endian, which a {name} is not: is the setting arch right?");
        machine.warnings.insert(0, warning);
    }
    machine
}

impl Reader for LimeImage {
    fn machine(&self) -> Machine {
        self.machine.clone()
    }

    fn extents(&self) -> Vec<Extent> {
        self.extents.clone()
    }

    fn read_pages(&self, pfns: &[u64], out: &mut [u8], states: &mut [PageState]) -> Result<()> {
        let page_size = self.machine.page_size();
        if out.len() != pfns.len().saturating_mul(page_size) || states.len() != pfns.len() {
            return Err(Error::new(ErrorKind::Other, "room for another number of pages than asked for"));
        }
        let mut cursor = self.take_cursor(pfns.first().copied().unwrap_or(0));
        let mut failure = None;
        for ((&pfn, page), state) in pfns.iter().zip(out.chunks_exact_mut(page_size)).zip(states.iter_mut()) {
            let there = self.read_page(pfn, page, &mut cursor).unwrap_or_else(|e| {
                failure.get_or_insert(e.at_pfn(pfn));
                false
            });
            *state = if there { PageState::PRESENT } else { PageState::MISSING };
        }
        self.give_back(cursor);
        // One bad page is data; only if there is no good one at all, the caller learns why.
        match failure {
            Some(e) if !states.contains(&PageState::PRESENT) => Err(e),
            _ => Ok(()),
        }
    }
}
