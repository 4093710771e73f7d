//! The ELF notes: they go into the dump as they are, and readers are told where in them the VMCOREINFO text stands.

use std::ops::Range;

use coresift_sdk::Machine;

use crate::layout::Layout;

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
    /// where the text is, from the first note on; empty if there is none
    pub vmcoreinfo: Range<usize>,
    /// behind the notes: what was erased before, as makedumpfile's eraseinfo
    pub erased: &'a [u8],
}

impl<'a> Notes<'a> {
    /// The notes of a machine.
    pub fn of(machine: &'a Machine, layout: Layout) -> Self {
        let input = machine.notes.as_slice();
        let mut notes = Self { input, added: Vec::new(), vmcoreinfo: find(input, layout).unwrap_or_default(), erased: &machine.erased };
        if notes.vmcoreinfo.is_empty() && !machine.vmcoreinfo.is_empty() {
            notes.add(&machine.vmcoreinfo, layout);
        }
        notes
    }

    /// Length of all notes.
    pub fn len(&self) -> usize {
        self.input.len() + self.added.len()
    }

    /// Adds a VMCOREINFO note: libkdumpfile takes the text from the notes alone, crash from where the header points.
    fn add(&mut self, text: &[u8], layout: Layout) {
        self.align();
        for word in [VMCOREINFO.len(), text.len(), 0] {
            self.added.extend_from_slice(&layout.word32(word as u32));
        }
        self.added.extend_from_slice(VMCOREINFO);
        self.align();
        self.vmcoreinfo = self.len()..self.len() + text.len();
        self.added.extend_from_slice(text);
        self.align();
    }

    /// Header, name and text of a note are aligned to 4 bytes each.
    fn align(&mut self) {
        let missing = self.len().next_multiple_of(4) - self.len();
        self.added.resize(self.added.len() + missing, 0);
    }
}

/// Finds the text of the VMCOREINFO note.
fn find(notes: &[u8], layout: Layout) -> Option<Range<usize>> {
    let mut at = 0usize;
    loop {
        let header = notes.get(at..)?.first_chunk::<NOTE_HEADER>()?;
        let field = |i: usize| usize::try_from(layout.read32(header.get(i * 4..)?)).ok();
        let (name_len, text_len) = (field(0)?, field(1)?);
        let name = at.checked_add(NOTE_HEADER)?;
        let text = name.checked_add(name_len)?.checked_next_multiple_of(4)?;
        let end = text.checked_add(text_len)?;
        if notes.get(name..name.checked_add(name_len)?)? == VMCOREINFO && end <= notes.len() {
            return Some(text..end);
        }
        at = end.checked_next_multiple_of(4)?;
    }
}
