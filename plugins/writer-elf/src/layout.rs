//! Where everything stands in a dump. All of it is known before the first page comes.

use coresift_sdk::{Error, Plan, Result, Sink};

use crate::direct_map::DirectMap;
use crate::header::{Class, Format, NOTE_ALIGN, ProgramHeader, SegmentType};
use crate::segments::Segment;

/// Program headers go out in pieces of about this many bytes: a million of them are 56 MiB.
const TABLE_PIECE: usize = 1 << 20;

/// log2 of the page sizes that are believed: Linux has 12 to 16 and, on a few machines, 18.
const PAGE_SHIFTS: std::ops::RangeInclusive<u32> = 9..=24;

/// The layout of a dump.
#[derive(Debug)]
pub struct Layout {
    /// class and byte order
    pub format: Format,
    /// the `PT_LOAD`s, ascending, without gaps in the file
    segments: Vec<Segment>,
    page_shift: u32,
    /// offset of the notes, and their length in bytes
    notes: (u64, u64),
    /// offset of the first page
    pub data_at: u64,
}

/// A place in the file, and what is needed to find the next one without a search.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cursor {
    /// all PFNs so far are below this one
    next_pfn: u64,
    /// number of the segment of the last page
    segment: usize,
    /// pages that the file has room for in the segments before it
    before: u64,
}

impl Layout {
    /// The layout of these segments with notes of this length: ELF32 if the machine has 32 bits and all offsets, sizes
    /// and addresses fit, else ELF64, as kexec does it.
    ///
    /// # Errors
    /// A file cannot be that long, or the machine's page size makes no sense.
    pub fn of(plan: &Plan<'_>, segments: Vec<Segment>, notes_len: u64) -> Result<Self> {
        let machine = plan.machine;
        if !PAGE_SHIFTS.contains(&machine.page_shift) {
            return Err(Error::unsupported(format!("pages of 2^{} bytes are of no known machine", machine.page_shift)));
        }
        let pages = |count: u64| count.checked_mul(1 << machine.page_shift);
        let memory = pages(segments.last().map_or(0, |s| s.first_pfn.saturating_add(s.mem_pages))).ok_or_else(too_large)?;
        let data = pages(segments.iter().map(|s| s.file_pages).sum()).ok_or_else(too_large)?;
        let mut layout = Self {
            format: Format { class: Class::Elf32, big_endian: machine.big_endian },
            segments,
            page_shift: machine.page_shift,
            notes: (0, notes_len),
            data_at: 0,
        };
        let narrow = layout.place(data);
        if machine.word_bits == 32 && narrow.is_some_and(|end| end.max(memory) <= u32::MAX.into()) {
            return Ok(layout);
        }
        layout.format.class = Class::Elf64;
        layout.place(data).map(|_| layout).ok_or_else(too_large)
    }

    /// Sets the offsets; returns the end of the file, `None` if there is no such offset.
    fn place(&mut self, data: u64) -> Option<u64> {
        let tables_end = self.format.tables_end(self.program_headers());
        self.notes.0 = tables_end.checked_add(self.format.section(self.program_headers()).len() as u64)?;
        self.data_at = self.notes.0.checked_add(self.notes.1)?.checked_next_multiple_of(1 << self.page_shift)?;
        // Offsets are signed in system calls.
        self.data_at.checked_add(data).filter(|end| i64::try_from(*end).is_ok())
    }

    /// Number of program headers.
    pub fn program_headers(&self) -> u64 {
        self.segments.len() as u64 + 1
    }

    /// Bytes between the notes and the first page.
    pub fn padding(&self) -> u64 {
        self.data_at - self.notes.0 - self.notes.1
    }

    /// Writes the program headers; returns the offset behind them.
    ///
    /// # Errors
    /// The sink's.
    pub fn write_table(&self, direct_map: Option<DirectMap>, sink: &mut dyn Sink) -> Result<u64> {
        let mut at = self.format.header_len();
        let mut table = Vec::with_capacity(TABLE_PIECE.min(self.program_headers() as usize * self.format.program_header_len() as usize));
        let (offset, size) = self.notes;
        let note =
            ProgramHeader { kind: SegmentType::Note, offset, vaddr: 0, paddr: 0, filesz: size, memsz: size, align: NOTE_ALIGN as u64 };
        self.format.append(&note, &mut table);
        let mut offset = self.data_at;
        for segment in &self.segments {
            let paddr = segment.first_pfn << self.page_shift;
            let (filesz, memsz) = (segment.file_pages << self.page_shift, segment.mem_pages << self.page_shift);
            let vaddr = direct_map.map_or(paddr, |map| map.address(paddr));
            let load = ProgramHeader { kind: SegmentType::Load, offset, vaddr, paddr, filesz, memsz, align: 1 << self.page_shift };
            self.format.append(&load, &mut table);
            offset += filesz;
            if table.len() + self.format.program_header_len() as usize > TABLE_PIECE {
                sink.write_at(at, &[&table])?;
                at += table.len() as u64;
                table.clear();
            }
        }
        sink.write_at(at, &[&table])?;
        Ok(at + table.len() as u64)
    }

    /// Offset of a page, and moves the cursor behind it. PFNs ascend.
    ///
    /// # Errors
    /// The page has no place.
    pub fn offset_of(&self, pfn: u64, cursor: &mut Cursor) -> Result<u64> {
        if pfn < cursor.next_pfn {
            return Err(Error::format("pages out of order").at_pfn(pfn));
        }
        loop {
            let segment = self.segments.get(cursor.segment).filter(|s| s.first_pfn <= pfn);
            let segment = segment.ok_or_else(|| Error::format("a page that was not planned").at_pfn(pfn))?;
            let index = pfn - segment.first_pfn;
            if index < segment.file_pages {
                cursor.next_pfn = pfn.saturating_add(1);
                return Ok(self.data_at + ((cursor.before + index) << self.page_shift));
            }
            cursor.before += segment.file_pages;
            cursor.segment += 1;
        }
    }
}

fn too_large() -> Error {
    Error::unsupported("the dump would be longer than a file can be")
}
