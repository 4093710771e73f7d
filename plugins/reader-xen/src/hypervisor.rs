//! The vmcore of a hypervisor: an ELF vmcore by machine frames, which `coresift_elf` reads.

use coresift_elf::header::FileHeader;
use coresift_elf::image::ElfImage;
use coresift_elf::notes::Notes;
use coresift_elf::segments::Segments;
use coresift_sdk::{Error, ErrorKind, Extent, ExtentKind, Machine, PageState, Reader, Result, Source};
use goblin::container::Ctx;

use crate::notes::{self, Crash};

/// What people call the format.
pub const FORMAT: &str = "Xen hypervisor vmcore";

/// An opened vmcore.
#[derive(Debug)]
pub struct Hypervisor {
    source: Source,
    elf: ElfImage,
    machine: Machine,
    extents: Vec<Extent>,
    crash: Crash,
    ctx: Ctx,
}

/// Says what the input is if it is an ELF vmcore with notes of Xen.
///
/// # Errors
/// The input cannot be read.
pub fn recognise(source: &Source) -> Result<Option<String>> {
    let crash = match notes_of(source) {
        Ok((crash, _)) => crash,
        Err(e) if e.kind == ErrorKind::Io => return Err(e),
        Err(_) => return Ok(None),
    };
    Ok(crash.any.then(|| match crash.xen {
        Some((major, minor)) => format!("an ELF vmcore with the notes of Xen {major}.{minor}"),
        None => "an ELF vmcore with notes of Xen".into(),
    }))
}

fn notes_of(source: &Source) -> Result<(Crash, Ctx)> {
    // The reader of the file says what is odd about it; here only the notes count.
    let mut warnings = Vec::new();
    let header = FileHeader::read(source)?;
    let segments = Segments::read(source, &header, &mut warnings)?;
    let notes = Notes::read(source, &segments.notes, header.ctx, &mut warnings);
    Ok((notes::crash(&notes.bytes, header.ctx), header.ctx))
}

impl Hypervisor {
    /// Opens it.
    ///
    /// # Errors
    /// See [`ElfImage::open`].
    pub fn open(source: Source) -> Result<Self> {
        let (crash, ctx) = notes_of(&source)?;
        let elf = ElfImage::open(source.clone(), 0)?;
        let mut machine = elf.machine();
        machine.format = FORMAT.into();
        // Domain 0's Linux leaves a VMCOREINFO in memory, and its `struct page`s are by PFN of domain 0: a host that went by
        // them would leave out machine frames by the classes of other pages.
        machine.hypervisor = true;
        let hint = "no kernel decides which of the machine's pages are kept: --profile xen leaves out other domains; view = \"dom0\" has domain 0's alone";
        machine.warnings.push(hint.into());
        let extents = elf.extents();
        Ok(Self { source, elf, machine, extents, crash, ctx })
    }

    /// What its notes say.
    pub fn crash(&self) -> &Crash {
        &self.crash
    }

    /// Text of the VMCOREINFO note of Linux, empty if there is none.
    pub fn linux_vmcoreinfo(&self) -> Vec<u8> {
        self.elf.machine().vmcoreinfo
    }

    /// Class and byte order.
    pub fn ctx(&self) -> Ctx {
        self.ctx
    }

    /// Reads a frame; false if the file does not have it.
    ///
    /// # Errors
    /// A read failed.
    pub fn read_frame(&self, mfn: u64, page: &mut [u8]) -> Result<bool> {
        let at = self.extents.partition_point(|e| e.end_pfn() <= mfn);
        let Some((extent, into)) = self.extents.get(at).and_then(|e| Some((e, mfn.checked_sub(e.first_pfn)?))) else { return Ok(false) };
        match extent.kind {
            ExtentKind::MAPPED => {
                let offset = (into << self.machine.page_shift).checked_add(extent.offset);
                let offset = offset.ok_or_else(|| Error::format("a file offset is beyond 64 bits").at_pfn(mfn))?;
                Ok(self.source.read_at(offset, page)? == page.len())
            }
            ExtentKind::ENCODED => {
                let mut state = [PageState::MISSING];
                self.elf.read_pages(&[mfn], page, &mut state)?;
                Ok(state == [PageState::PRESENT])
            }
            _ => Ok(false),
        }
    }

    /// Where these frames are, under the numbers from `pfn` on.
    pub fn renumbered(&self, mfn: u64, pages: u64, pfn: u64, to: &mut Vec<Extent>) {
        let end = mfn.saturating_add(pages);
        let mut next = mfn;
        let first = self.extents.partition_point(|e| e.end_pfn() <= mfn);
        for extent in self.extents.iter().skip(first).take_while(|e| e.first_pfn < end) {
            if next < extent.first_pfn {
                to.push(Extent::absent(pfn + (next - mfn), extent.first_pfn - next));
                next = extent.first_pfn;
            }
            let until = extent.end_pfn().min(end);
            let skipped = (next - extent.first_pfn) << self.machine.page_shift;
            let offset = if extent.kind == ExtentKind::MAPPED { extent.offset.saturating_add(skipped) } else { 0 };
            to.push(Extent { first_pfn: pfn + (next - mfn), pages: until - next, offset, ..*extent });
            next = until;
        }
        if next < end {
            to.push(Extent::absent(pfn + (next - mfn), end - next));
        }
    }

    /// Pages that have bytes in the file.
    pub fn pages(&self) -> u64 {
        self.extents.iter().filter(|e| e.kind != ExtentKind::ABSENT).map(|e| e.pages).sum()
    }
}

impl Reader for Hypervisor {
    fn machine(&self) -> Machine {
        self.machine.clone()
    }

    fn extents(&self) -> Vec<Extent> {
        self.extents.clone()
    }

    fn read_pages(&self, pfns: &[u64], out: &mut [u8], states: &mut [PageState]) -> Result<()> {
        self.elf.read_pages(pfns, out, states)
    }
}
