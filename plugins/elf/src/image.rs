//! The reader: an opened ELF vmcore.

use coresift_sdk::{Error, ErrorKind, Extent, Machine, PageState, Reader, Result, Source};

use crate::header::FileHeader;
use crate::layout::Layout;
use crate::machine;
use crate::notes::Notes;
use crate::segments::Segments;

/// An opened ELF vmcore.
#[derive(Debug)]
pub struct ElfImage {
    source: Source,
    machine: Machine,
    layout: Layout,
}

impl ElfImage {
    /// Opens it; `page_size` is the setting for inputs that do not tell theirs, 0 = none.
    ///
    /// # Errors
    /// The input is not the core of a machine.
    pub fn open(source: Source, page_size: u64) -> Result<Self> {
        let mut warnings = Vec::new();
        let header = FileHeader::read(&source)?;
        let segments = Segments::read(&source, &header, &mut warnings)?;
        let notes = Notes::read(&source, &segments.notes, header.ctx, &mut warnings);
        refuse_without_memory(&segments, &notes)?;

        let incomplete = header.incomplete || segments.incomplete || notes.incomplete;
        if header.incomplete {
            warnings.push("makedumpfile marked the file as incomplete".into());
        }
        let mut machine = machine::machine(&header, notes, page_size, warnings);
        let layout = Layout::new(&segments.loads, machine.page_shift, &mut machine.warnings);
        machine.max_pfn = layout.max_pfn();
        machine.incomplete = incomplete;
        Ok(Self { source, machine, layout })
    }
}

impl Reader for ElfImage {
    fn machine(&self) -> Machine {
        self.machine.clone()
    }

    fn extents(&self) -> Vec<Extent> {
        self.layout.extents()
    }

    fn read_pages(&self, pfns: &[u64], out: &mut [u8], states: &mut [PageState]) -> Result<()> {
        let page_size = self.machine.page_size();
        if out.len() != pfns.len().saturating_mul(page_size) || states.len() != pfns.len() {
            return Err(Error::new(ErrorKind::Other, "room for another number of pages than asked for"));
        }
        let mut failure = None;
        for ((&pfn, page), state) in pfns.iter().zip(out.chunks_exact_mut(page_size)).zip(states.iter_mut()) {
            let there = self.layout.read_page(&self.source, pfn, page).unwrap_or_else(|e| {
                failure.get_or_insert(e.at_pfn(pfn));
                false
            });
            *state = if there { PageState::PRESENT } else { PageState::MISSING };
        }
        // One bad page is data; only if there is no good one at all, the caller learns why.
        match failure {
            Some(e) if !states.contains(&PageState::PRESENT) => Err(e),
            _ => Ok(()),
        }
    }
}

fn refuse_without_memory(segments: &Segments, notes: &Notes) -> Result<()> {
    if segments.loads.is_empty() {
        let error = Error::format("no PT_LOAD says which physical memory it holds");
        return Err(if segments.addresses_unknown() {
            error.hint("a /proc/kcore has physical addresses from Linux 4.11 on, and for RAM only")
        } else {
            error
        });
    }
    // A process has no physical addresses: its segments all say 0. So says the only segment of a machine whose RAM
    // begins at 0, too, but then no note of a process is there.
    let looks_like_process = segments.all_at_zero && notes.vmcoreinfo.is_empty() && (segments.loads.len() > 1 || notes.process);
    if looks_like_process {
        return Err(Error::unsupported("looks like the core of a process, not of a machine: no PT_LOAD has a physical address")
            .hint("coresift wants a vmcore; so old a /proc/kcore (before Linux 4.11) is none"));
    }
    Ok(())
}
