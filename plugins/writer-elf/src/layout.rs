//! Where everything stands in a dump. All of it is known before the first page comes.

use coresift_sdk::{Error, Plan, Result, Run, Sink};

use crate::addresses::Addresses;
use crate::header::{Class, Format, NOTE_ALIGN, ProgramHeader, SegmentType};
use crate::segments::Segments;

/// Program headers go out in pieces of about this many bytes: a million of them are 56 MiB.
const TABLE_PIECE: usize = 1 << 20;

/// `p_align` of memory. 0 means none, as kexec has it: crash takes a file whose first `PT_LOAD` says anything else for one
/// of the old netdump, and then does not look for KASLR.
const LOAD_ALIGN: u64 = 0;

/// log2 of the page sizes that are believed: Linux has 12 to 16 and, on a few machines, 18.
const PAGE_SHIFTS: std::ops::RangeInclusive<u32> = 9..=24;

/// The layout of a dump.
#[derive(Debug)]
pub struct Layout {
    /// class and byte order
    pub format: Format,
    /// the `PT_LOAD`s; those with bytes stand in the file without gaps
    segments: Segments,
    addresses: Addresses,
    /// number of program headers
    program_headers: u64,
    page_shift: u32,
    /// offset of the notes, and their length in bytes
    notes: (u64, u64),
    /// offset of the first page
    pub data_at: u64,
    /// offset behind the last page
    end: u64,
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
    pub fn of(plan: &Plan<'_>, segments: Segments, addresses: &Addresses, notes_len: u64) -> Result<Self> {
        let machine = plan.machine;
        if !PAGE_SHIFTS.contains(&machine.page_shift) {
            return Err(Error::unsupported(format!("pages of 2^{} bytes are of no known machine", machine.page_shift)));
        }
        let pages = |count: u64| count.checked_mul(1 << machine.page_shift);
        let last = segments.loads.last().into_iter().chain(segments.absent.last());
        let memory = pages(last.map(Run::end_pfn).max().unwrap_or(0)).ok_or_else(too_large)?;
        let data = pages(segments.loads.iter().map(|run| run.pages).sum()).ok_or_else(too_large)?;
        let mut layout = Self {
            format: Format { class: Class::Elf32, big_endian: machine.big_endian },
            // PT_NOTE is the first.
            program_headers: (1 + addresses.split(&segments.loads, machine.page_shift).count() + segments.absent.len()) as u64,
            segments,
            addresses: addresses.clone(),
            page_shift: machine.page_shift,
            notes: (0, notes_len),
            data_at: 0,
            end: 0,
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
        self.end = self.data_at.checked_add(data)?;
        // Offsets are signed in system calls.
        i64::try_from(self.end).ok().map(|_| self.end)
    }

    /// Number of program headers.
    pub fn program_headers(&self) -> u64 {
        self.program_headers
    }

    /// Bytes between the notes and the first page.
    pub fn padding(&self) -> u64 {
        self.data_at - self.notes.0 - self.notes.1
    }

    /// Writes the program headers; returns the offset behind them.
    ///
    /// # Errors
    /// The sink's.
    pub fn write_table(&self, sink: &mut dyn Sink) -> Result<u64> {
        let mut at = self.format.header_len();
        let entry = self.format.program_header_len() as usize;
        let mut table = Vec::with_capacity((self.program_headers() as usize).saturating_mul(entry).min(TABLE_PIECE));
        let (offset, size) = self.notes;
        let note =
            ProgramHeader { kind: SegmentType::Note, offset, vaddr: 0, paddr: 0, filesz: size, memsz: size, align: NOTE_ALIGN as u64 };
        for header in std::iter::once(note).chain(self.loads()) {
            if table.len() + entry > TABLE_PIECE {
                sink.write_at(at, &[&table])?;
                at += table.len() as u64;
                table.clear();
            }
            self.format.append(&header, &mut table);
        }
        sink.write_at(at, &[&table])?;
        Ok(at + table.len() as u64)
    }

    /// All `PT_LOAD`s.
    fn loads(&self) -> impl Iterator<Item = ProgramHeader> {
        let bytes = |pages: u64| pages << self.page_shift;
        let load = move |run: &Run, vaddr, offset, filesz| {
            let (paddr, memsz) = (bytes(run.first_pfn), bytes(run.pages));
            ProgramHeader { kind: SegmentType::Load, offset, vaddr, paddr, filesz, memsz, align: LOAD_ALIGN }
        };
        let data = self.addresses.split(&self.segments.loads, self.page_shift).scan(self.data_at, move |end, (run, vaddr)| {
            let offset = *end;
            *end += bytes(run.pages);
            Some(load(&run, vaddr, offset, bytes(run.pages)))
        });
        // An offset that no page has: makedumpfile finds segments by offset.
        let absent = self.segments.absent.iter().map(move |run| load(run, self.addresses.of(bytes(run.first_pfn)), self.end, 0));
        data.chain(absent)
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
            let run = self.segments.loads.get(cursor.segment).filter(|run| run.first_pfn <= pfn);
            let run = run.ok_or_else(|| Error::format("a page that was not planned").at_pfn(pfn))?;
            let index = pfn - run.first_pfn;
            if index < run.pages {
                cursor.next_pfn = pfn.saturating_add(1);
                return Ok(self.data_at + ((cursor.before + index) << self.page_shift));
            }
            cursor.before += run.pages;
            cursor.segment += 1;
        }
    }
}

fn too_large() -> Error {
    Error::unsupported("the dump would be longer than a file can be")
}
