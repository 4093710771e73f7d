//! The ELF notes: they go into the dump as they are. Every reader of ELF vmcores takes VMCOREINFO from them, so it is
//! added where the input had it elsewhere.

use coresift_sdk::Machine;

use crate::header::{Format, NOTE_ALIGN};

/// Name of the note, with its NUL (Documentation/admin-guide/kdump/vmcoreinfo.rst of Linux).
const VMCOREINFO: &[u8] = b"VMCOREINFO\0";

/// Size of `Elf32_Nhdr` and `Elf64_Nhdr` alike: n_namesz, n_descsz, n_type (elf.h).
const NOTE_HEADER: usize = 12;

/// Notes of a dump: two pieces, one behind the other.
pub struct Notes<'a> {
    /// the notes of the input
    pub input: &'a [u8],
    /// a VMCOREINFO note of our own, where the input had the text elsewhere; empty otherwise
    pub added: Vec<u8>,
}

impl<'a> Notes<'a> {
    /// The notes of a machine.
    pub fn of(machine: &'a Machine, format: Format) -> Self {
        let (whole, found) = walk(&machine.notes, format);
        if found || machine.vmcoreinfo.is_empty() {
            return Self { input: &machine.notes, added: Vec::new() };
        }
        // Behind a damaged note readers find nothing, so what follows it makes way for what they need.
        let mut notes = Self { input: machine.notes.get(..whole).unwrap_or_default(), added: Vec::new() };
        notes.add(&machine.vmcoreinfo, format);
        notes
    }

    /// Length of all notes in bytes.
    pub fn len(&self) -> usize {
        self.input.len() + self.added.len()
    }

    fn add(&mut self, text: &[u8], format: Format) {
        self.align();
        for word in [VMCOREINFO.len(), text.len(), 0] {
            self.added.extend_from_slice(&format.word32(word as u32));
        }
        self.added.extend_from_slice(VMCOREINFO);
        self.align();
        self.added.extend_from_slice(text);
        self.align();
    }

    /// Header, name and text of a note are aligned to 4 bytes each.
    fn align(&mut self) {
        let missing = self.len().next_multiple_of(NOTE_ALIGN) - self.len();
        self.added.resize(self.added.len() + missing, 0);
    }
}

/// Walks the notes; returns the length of the whole ones from the start on, and if VMCOREINFO is among them.
fn walk(notes: &[u8], format: Format) -> (usize, bool) {
    let mut at = 0usize;
    while let Some((name, end)) = note_at(notes, at, format) {
        if name == VMCOREINFO {
            return (end, true);
        }
        at = end;
    }
    (at, false)
}

/// Name of the note at `at`, and where the next one begins. Room that the kernel did not need is zeros: it ends the notes.
fn note_at(notes: &[u8], at: usize, format: Format) -> Option<(&[u8], usize)> {
    let header = notes.get(at..)?.first_chunk::<NOTE_HEADER>()?;
    let field = |i: usize| usize::try_from(format.read32(header.get(i * 4..)?)).ok();
    let (name_len, text_len) = (field(0)?, field(1)?);
    if name_len == 0 {
        return None;
    }
    let name = at.checked_add(NOTE_HEADER)?;
    let name_end = name.checked_add(name_len)?;
    let end = name_end.checked_next_multiple_of(NOTE_ALIGN)?.checked_add(text_len)?;
    (end <= notes.len()).then_some(())?;
    // The padding of the last note may be missing.
    Some((notes.get(name..name_end)?, end.checked_next_multiple_of(NOTE_ALIGN)?.min(notes.len())))
}
