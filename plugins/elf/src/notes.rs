//! The notes: what the kernel and the hypervisor say about the crash.
//!
//! Layout of a note: System V ABI, chapter 5 "Note Section"; the three words of its header and the paddings are of four
//! bytes in ELF64 files too (include/uapi/linux/elf.h, `Elf64_Nhdr`).

use coresift_sdk::{Result, Source};
use goblin::container::Ctx;
use goblin::elf::note::{NT_FILE, NT_PRSTATUS, NoteDataIterator};

/// More bytes of notes than this are left out. Registers of 8,192 CPUs take a few MiB.
const MAX_BYTES: u64 = 64 << 20;

/// Bytes read at a time, so that a false length costs no more memory than the file has bytes.
const CHUNK: u64 = 1 << 20;

/// Name of the note with the kernel's description of itself (Documentation/admin-guide/kdump/vmcoreinfo.rst).
const VMCOREINFO: &str = "VMCOREINFO";

/// Name of the same of a Xen hypervisor (xen/include/xen/elfcore.h).
const VMCOREINFO_XEN: &str = "VMCOREINFO_XEN";

/// The auxiliary vector, which only processes have (include/uapi/linux/elf.h).
const NT_AUXV: u32 = 6;

/// What the notes say.
#[derive(Debug, Default)]
pub struct Notes {
    /// all notes as they stand in the file, each segment padded to four bytes
    pub bytes: Vec<u8>,
    /// text of the VMCOREINFO note
    pub vmcoreinfo: Vec<u8>,
    /// number of register notes
    pub cpus: u32,
    /// a Xen hypervisor wrote notes
    pub xen: bool,
    /// the notes are those of a process
    pub process: bool,
    /// the file ends before the notes do
    pub incomplete: bool,
}

/// Counts of what is wrong; each becomes one warning, however many segments it hits.
#[derive(Debug, Default)]
struct Oddities {
    unreadable: u64,
    missing_bytes: u64,
    malformed_bytes: u64,
}

impl Notes {
    /// Reads the notes at these places (file offset, length). Whatever is broken is left out with a warning.
    pub fn read(source: &Source, places: &[(u64, u64)], ctx: Ctx, warnings: &mut Vec<String>) -> Self {
        let mut notes = Self::default();
        let mut odd = Oddities::default();
        for &(offset, len) in places {
            let start = notes.bytes.len();
            let room = MAX_BYTES.saturating_sub(start as u64);
            let wanted = len.min(room);
            match append(source, offset, wanted, &mut notes.bytes) {
                Ok(read) => odd.missing_bytes = odd.missing_bytes.saturating_add(wanted - read),
                Err(_) => odd.unreadable += 1,
            }
            odd.malformed_bytes += notes.walk(start, ctx) as u64;
            // A writer copies all as one segment: every note has to begin at a multiple of four.
            notes.bytes.resize(notes.bytes.len().next_multiple_of(4), 0);
            if len > room {
                warnings.push(format!("the file claims to have more than {} MiB of notes; the rest is left out", MAX_BYTES >> 20));
                break;
            }
        }
        notes.incomplete = odd.missing_bytes > 0;
        odd.describe(warnings);
        notes
    }

    /// Looks at the notes from byte `start` of `bytes` on; returns how many bytes at the end make no sense.
    fn walk(&mut self, start: usize, ctx: Ctx) -> usize {
        let data = self.bytes.get(start..).unwrap_or_default();
        let mut vmcoreinfo = None;
        let mut malformed = 0;
        let mut notes = NoteDataIterator { data, size: data.len(), offset: 0, ctx: (4, ctx) };
        loop {
            let rest = data.get(notes.offset..).unwrap_or_default();
            let Some(note) = notes.next() else { break };
            let Ok(note) = note else {
                // A tail of zeros is room that the kernel did not need.
                malformed = if rest.iter().all(|&b| b == 0) { 0 } else { rest.len() };
                break;
            };
            match (note.name, note.n_type) {
                (VMCOREINFO, _) => vmcoreinfo = vmcoreinfo.or(Some(note.desc)),
                (VMCOREINFO_XEN, _) => self.xen = true,
                ("CORE", NT_PRSTATUS) => self.cpus = self.cpus.saturating_add(1),
                ("CORE", NT_AUXV | NT_FILE) => self.process = true,
                _ => {}
            }
        }
        if self.vmcoreinfo.is_empty() {
            self.vmcoreinfo = vmcoreinfo.unwrap_or_default().to_vec();
        }
        malformed
    }
}

impl Oddities {
    fn describe(&self, warnings: &mut Vec<String>) {
        let mut say = |count: u64, what: &str| {
            if count > 0 {
                warnings.push(format!("{count} {what}"));
            }
        };
        say(self.unreadable, "PT_NOTEs cannot be read");
        say(self.missing_bytes, "bytes of notes are missing: the file is cut");
        say(self.malformed_bytes, "bytes of notes are not looked at: a malformed note stands before them");
    }
}

/// Appends up to `len` bytes at `offset`, fewer if the file ends before; returns how many.
fn append(source: &Source, offset: u64, len: u64, to: &mut Vec<u8>) -> Result<u64> {
    let mut done = 0;
    while done < len {
        let start = to.len();
        let want = (len - done).min(CHUNK);
        to.resize(start + want as usize, 0);
        let got = source.read_at(offset.saturating_add(done), to.get_mut(start..).unwrap_or_default());
        to.truncate(start + got.as_ref().copied().unwrap_or(0));
        let got = got? as u64;
        done += got;
        if got < want {
            break;
        }
    }
    Ok(done)
}
