//! The program headers: which memory stands where in the file.
//!
//! Dumps come with odd tables: segments without memory, without an address, that overlap, wrap around, or point behind
//! the end of a cut file. This module clips and counts; what it hands on is sane, and the warnings say what was done.

use coresift_sdk::{Error, Result, Source};
use goblin::elf::ProgramHeader;
use goblin::elf::program_header::{PT_LOAD, PT_NOTE};

use crate::header::FileHeader;

/// One behind the highest physical address that is believed. No architecture of Linux has more bits (`MAX_PHYSMEM_BITS`:
/// riscv 56, sparc64 53, x86_64 and arm64 52). Without a limit one broken header would claim 2^52 pages.
pub const PHYSICAL_END: u64 = 1 << 56;

/// Bytes of program headers read at a time: a table of a million is not held in memory twice, and a false entry size
/// takes no memory.
const CHUNK: usize = 256 << 10;

/// `/proc/vmcore` has one `PT_NOTE`, an unmerged elfcorehdr one for each CPU.
const MAX_NOTE_SEGMENTS: usize = 1 << 16;

/// A `PT_LOAD` after all checks: `paddr + memsz <= PHYSICAL_END`, `filesz <= memsz`, and the data lie within the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// physical address of the first byte
    pub paddr: u64,
    /// bytes of memory, not 0
    pub memsz: u64,
    /// bytes of memory, from the first on, that the file has
    pub filesz: u64,
    /// where in the file they are
    pub offset: u64,
    /// the file was meant to have more, but ends before
    pub cut: bool,
}

/// What the program headers say.
#[derive(Debug, Default)]
pub struct Segments {
    /// memory, in file order
    pub loads: Vec<Segment>,
    /// file offset and length of the notes
    pub notes: Vec<(u64, u64)>,
    /// parts of the file are missing
    pub incomplete: bool,
    /// no `PT_LOAD` has a physical address other than 0, as in the core of a process
    pub all_at_zero: bool,
    odd: Oddities,
}

/// Counts of what was skipped or clipped; each becomes one warning, however many segments it hits.
#[derive(Debug, Default)]
struct Oddities {
    /// `PT_LOAD`s whose address is all ones
    unknown_address: u64,
    /// `PT_LOAD`s that begin or reach beyond [`PHYSICAL_END`]
    too_high: u64,
    /// `PT_LOAD`s with more bytes in the file than in memory
    too_long: u64,
    /// bytes of memory that a cut file lacks
    missing_bytes: u64,
    /// program headers that a cut file lacks
    missing_headers: u64,
    /// notes segments over [`MAX_NOTE_SEGMENTS`]
    surplus_notes: u64,
}

impl Segments {
    /// Reads all program headers.
    ///
    /// # Errors
    /// None could be read.
    pub fn read(source: &Source, header: &FileHeader, warnings: &mut Vec<String>) -> Result<Self> {
        let count = header.program_headers(source, warnings);
        // Without a known length: what the largest file could have. Offsets are signed in system calls.
        let file_end = source.size().unwrap_or(i64::MAX as u64);
        let unknown_address = if header.ctx.is_big() { u64::MAX } else { u64::from(u32::MAX) };

        let mut segments = Segments { all_at_zero: true, ..Self::default() };
        let read = for_each_program_header(source, header, count, |ph| match ph.p_type {
            PT_NOTE => segments.add_note(ph),
            PT_LOAD if ph.p_paddr == unknown_address => segments.odd.unknown_address += 1,
            PT_LOAD => segments.add_load(ph, file_end),
            _ => {}
        })?;
        segments.odd.missing_headers = count.saturating_sub(read);
        segments.incomplete = segments.odd.missing_headers > 0 || segments.odd.missing_bytes > 0;
        segments.odd.describe(warnings);
        Ok(segments)
    }

    /// True if `PT_LOAD`s were left out because they have no physical address, as those of `/proc/kcore` for all but RAM.
    pub fn addresses_unknown(&self) -> bool {
        self.odd.unknown_address > 0
    }

    fn add_note(&mut self, ph: &ProgramHeader) {
        if ph.p_filesz == 0 {
            return;
        }
        if self.notes.len() < MAX_NOTE_SEGMENTS {
            self.notes.push((ph.p_offset, ph.p_filesz));
        } else {
            self.odd.surplus_notes += 1;
        }
    }

    fn add_load(&mut self, ph: &ProgramHeader, file_end: u64) {
        if ph.p_memsz == 0 {
            return;
        }
        self.all_at_zero &= ph.p_paddr == 0;
        let memsz = ph.p_memsz.min(PHYSICAL_END.saturating_sub(ph.p_paddr));
        self.odd.too_high += u64::from(memsz < ph.p_memsz);
        if memsz == 0 {
            return;
        }
        self.odd.too_long += u64::from(ph.p_filesz > ph.p_memsz);
        let wanted = ph.p_filesz.min(memsz);
        let filesz = wanted.min(file_end.saturating_sub(ph.p_offset));
        self.odd.missing_bytes = self.odd.missing_bytes.saturating_add(wanted - filesz);
        self.loads.push(Segment { paddr: ph.p_paddr, memsz, filesz, offset: ph.p_offset, cut: filesz < wanted });
    }
}

impl Oddities {
    fn describe(&self, warnings: &mut Vec<String>) {
        let mut say = |count: u64, what: &str| {
            if count > 0 {
                warnings.push(format!("{count} {what}"));
            }
        };
        say(self.unknown_address, "PT_LOADs without a physical address are left out");
        say(self.too_high, "PT_LOADs reach beyond the physical address space of every known machine (2^56) and are clipped");
        say(self.too_long, "PT_LOADs have more bytes in the file than in memory; the surplus is left out");
        say(self.surplus_notes, "PT_NOTEs too many are left out");
        say(self.missing_headers, "program headers are missing: the file is cut");
        let mib = self.missing_bytes.div_ceil(1 << 20);
        say(self.missing_bytes, &format!("bytes of memory (about {mib} MiB) are missing: the file is cut"));
    }
}

/// Calls `visit` for the program headers in file order; returns how many there are before the file ends.
fn for_each_program_header(source: &Source, header: &FileHeader, count: u64, mut visit: impl FnMut(&ProgramHeader)) -> Result<u64> {
    let size = ProgramHeader::size(header.ctx);
    let stride = usize::from(header.phentsize);
    if stride < size {
        let message = format!("the ELF header says that program headers have {stride} bytes; they need {size}");
        return Err(Error::format(message));
    }
    let entries = (CHUNK / stride) as u64;
    let mut bytes = vec![0; count.min(entries) as usize * stride];
    let mut packed = Vec::new();
    let mut done = 0;
    while done < count {
        let want = (count - done).min(entries) as usize * stride;
        let at = header.phoff.checked_add(done.saturating_mul(stride as u64));
        let room = bytes.get_mut(..want).unwrap_or_default();
        let len = match at.map(|at| source.read_at(at, room)) {
            Some(Ok(len)) => len,
            // An unreadable part of the table is like a cut one, unless it is the first.
            Some(Err(e)) if done == 0 => return Err(e),
            Some(Err(_)) | None => 0,
        };
        // goblin parses tables without gaps; entries may have some behind them. The last entry needs none.
        packed.clear();
        let got = bytes.get(..len).unwrap_or_default();
        got.chunks(stride).filter_map(|entry| entry.get(..size)).for_each(|entry| packed.extend_from_slice(entry));
        let headers = ProgramHeader::parse(&packed, 0, packed.len() / size, header.ctx).unwrap_or_default();
        headers.iter().for_each(&mut visit);
        done += headers.len() as u64;
        if len < want || headers.is_empty() {
            break;
        }
    }
    if done == 0 {
        let message = "the file ends before the program headers: it holds no memory";
        return Err(Error::format(message).at_offset(header.phoff).hint("the file is cut; copy it again"));
    }
    Ok(done)
}
