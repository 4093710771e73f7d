//! A dump being written.

use std::ops::Range;

use coresift_sdk::{End, Error, PackedBatch, PageContent, Plan, Result, Sink};

use crate::addresses::Addresses;
use crate::header::{Class, Format, INCOMPLETE, MAGIC, elf_machine, too_many};
use crate::layout::{Cursor, Layout};
use crate::notes::Notes;
use crate::pieces::Pieces;
use crate::segments::{Holes, Segments};

/// Between `begin` and `finish`.
pub struct Dump {
    layout: Layout,
    elf_machine: u16,
    /// a page of zeros
    zeros: Vec<u8>,
    /// pages planned
    planned: u64,
    /// pages that came
    come: u64,
    /// pages that came without bytes
    missing: u64,
    cursor: Cursor,
    /// offset behind the last page that came
    end: u64,
    /// end of all bytes that any write tried to write
    tried: u64,
}

impl Dump {
    /// Writes all that goes before the pages.
    ///
    /// The magic bytes come last: killed before them, the file is no dump; after them, it is one that ends early.
    pub fn begin(plan: &Plan<'_>, holes: Holes, addresses: &Addresses, sink: &mut dyn Sink) -> Result<Self> {
        if plan.codec != 0 {
            return Err(Error::unsupported("an ELF file cannot hold compressed pages")
                .hint("set compress.plugin = \"none\", or write a kdump file: output.writer = \"kdump\""));
        }
        let segments = Segments::of(plan, holes);
        let planned = segments.dumped;
        // Notes have the same form in both classes.
        let notes = Notes::of(plan.machine, Format { class: Class::Elf64, big_endian: plan.machine.big_endian });
        let layout = Layout::of(plan, segments, addresses, notes.len() as u64)?;
        if u32::try_from(layout.program_headers()).is_err() {
            return Err(too_many(layout.program_headers()));
        }
        let format = layout.format;
        let elf_machine = elf_machine(plan.machine);
        let zeros = vec![0u8; plan.machine.page_size()];

        let header = format.header(elf_machine, layout.program_headers());
        let part = |range: Range<usize>| header.get(range).unwrap_or_default();
        let (magic, flags) = (MAGIC.len(), format.flags_at());
        if !sink.positioned() {
            // The flags are left out, and written by `finish` alone: crash reads flattened files without sorting out which
            // of two records for an offset is the later one, and a stream without its end mark opens nowhere anyway.
            sink.write_at(0, &[part(0..flags.start)])?;
            sink.write_at(flags.end as u64, &[part(flags.end..header.len())])?;
        }
        let table_end = layout.write_table(sink)?;
        let section = format.section(layout.program_headers());
        let padding = zeros.get(..layout.padding() as usize).unwrap_or_default();
        sink.write_at(table_end, &[&section, notes.input, &notes.added, padding])?;
        if sink.positioned() {
            sink.write_at(magic as u64, &[part(magic..header.len())])?;
            sink.write_at(0, &[part(0..magic)])?;
        }
        let data_at = layout.data_at;
        Ok(Self { layout, elf_machine, zeros, planned, come: 0, missing: 0, cursor: Cursor::default(), end: data_at, tried: data_at })
    }

    /// False if `e_machine` is 0.
    pub fn architecture_known(&self) -> bool {
        self.elf_machine != 0
    }

    /// Pages that came without bytes and read as zeros.
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// Writes a batch. One that fails may be given again in smaller pieces.
    pub fn write(&mut self, batch: &PackedBatch<'_>, sink: &mut dyn Sink) -> Result<()> {
        let pages = batch.iter().len();
        let (mut cursor, mut missing) = (self.cursor, 0);
        let zeros = self.zeros.as_slice();
        let mut out = Pieces::new(sink, &mut self.tried, self.end, pages);
        for (i, (pfn, content)) in batch.iter().enumerate() {
            let at = self.layout.offset_of(pfn, &mut cursor)?;
            match content {
                PageContent::Stored { data, codec: 0 } if data.len() == zeros.len() => {
                    out.push(at, data, zeros)?;
                    continue;
                }
                PageContent::Stored { data, codec } => {
                    return Err(Error::format(format!("a page of codec {codec:#x} with {} bytes", data.len())).at_pfn(pfn));
                }
                PageContent::Zero => {}
                PageContent::Missing => missing += 1,
            }
            // A hole, but not at the end: the file would be too short.
            if !out.may_skip(at) || i + 1 == pages {
                out.push(at, zeros, zeros)?;
            }
        }
        out.flush()?;
        self.end = out.end();
        self.come += pages as u64;
        self.missing += missing;
        self.cursor = cursor;
        Ok(())
    }

    /// Takes the incomplete mark away if every page is there.
    pub fn finish(&self, end: &End, sink: &mut dyn Sink) -> Result<()> {
        let not_come = self.planned.saturating_sub(self.come);
        let complete = !end.incomplete && end.lost_pages == 0 && self.missing == 0 && not_come == 0;
        if complete || !sink.positioned() {
            let flags = if complete { 0 } else { INCOMPLETE };
            sink.write_at(self.layout.format.flags_at().start as u64, &[&self.layout.format.word32(flags)])?;
        }
        if not_come != 0 && !end.incomplete {
            return Err(Error::format(format!("{not_come} of the {} pages planned did not come", self.planned)));
        }
        Ok(())
    }
}
