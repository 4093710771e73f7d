//! The reader: an opened sadump image.

use coresift_sdk::{ClassSet, Error, ErrorKind, Extent, Host, Machine, PageState, Reader, Result, Source, UtsName, Verdict};

use crate::container::{Container, Kind};
use crate::header::BLOCK;
use crate::layout::Layout;
use crate::{bitmap, cpu, paging};

/// `e_machine` of x86_64 (ELF, System V ABI for AMD64).
const EM_X86_64: u16 = 62;

/// An opened sadump image.
#[derive(Debug)]
pub struct SadumpImage {
    sources: Vec<Source>,
    machine: Machine,
    layout: Layout,
}

impl SadumpImage {
    /// Opens it. `zeros`: pages that the firmware left out are pages of zeros, not absent.
    ///
    /// # Errors
    /// The inputs are no image, or have no page of memory.
    pub fn open(sources: Vec<Source>, zeros: bool, host: &Host) -> Result<Self> {
        let mut warnings = Vec::new();
        let mut container = Container::open(&sources, &mut warnings)?;
        let head = sources.get(container.head).ok_or_else(|| Error::format("no such input"))?;
        let mut layout = Layout::new(std::mem::take(&mut container.disks), zeros);
        bitmap::runs(head, &container, host, &mut warnings, |kind, first, pages| layout.add(kind, first, pages))?;
        refuse_without_pages(head, &container, &layout)?;
        warn_of_loss(head, &container, &layout, &mut warnings);

        let states = cpu::states(head, &container, &mut warnings)?;
        let read = |paddr| layout.read_u64(&sources, paddr);
        let phys_base = paging::phys_base(&states, &read, &mut warnings);
        let machine = Machine {
            format: container.kind.format().into(),
            arch: "x86_64".into(),
            elf_machine: EM_X86_64,
            word_bits: 64,
            big_endian: false,
            page_shift: BLOCK.trailing_zeros(),
            cpus: u32::try_from(states.len()).unwrap_or(u32::MAX),
            utsname: UtsName { sysname: "Linux".into(), machine: "x86_64".into(), ..UtsName::default() },
            // makedumpfile takes the partition header's; the dump header has the same.
            crash_time: container.part.time.unix_seconds().or(container.dump.time.unix_seconds()).unwrap_or(0),
            phys_base,
            max_pfn: layout.extents().last().map_or(0, Extent::end_pfn),
            excluded: if layout.left_out > 0 && !zeros { ClassSet::default().with(Verdict::ZERO) } else { ClassSet::default() },
            incomplete: layout.lost > 0,
            notes: cpu::notes(&states),
            vmcoreinfo: Vec::new(),
            warnings,
            ..Machine::default()
        };
        Ok(Self { sources, machine, layout })
    }
}

impl Reader for SadumpImage {
    fn machine(&self) -> Machine {
        self.machine.clone()
    }

    fn extents(&self) -> Vec<Extent> {
        self.layout.extents().to_vec()
    }

    fn read_pages(&self, pfns: &[u64], out: &mut [u8], states: &mut [PageState]) -> Result<()> {
        let page_size = self.machine.page_size();
        if out.len() != pfns.len().saturating_mul(page_size) || states.len() != pfns.len() {
            return Err(Error::new(ErrorKind::Other, "room for another number of pages than asked for"));
        }
        let mut failure = None;
        for ((&pfn, page), state) in pfns.iter().zip(out.chunks_exact_mut(page_size)).zip(states.iter_mut()) {
            let there = self.layout.read_page(&self.sources, pfn, page).unwrap_or_else(|e| {
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

fn refuse_without_pages(head: &Source, container: &Container, layout: &Layout) -> Result<()> {
    // Pages of zeros are made here and say nothing of the input.
    let any = layout.left_out + layout.lost < layout.extents().iter().map(|e| e.pages).sum();
    if any {
        return Ok(());
    }
    let (name, at) = (head.name(), container.dumpable_at);
    Err(if layout.lost > 0 {
        Error::format(format!("{name}: ends before the first of {} pages", layout.lost)).hint("the file is cut; copy it again")
    } else {
        Error::format(format!("{name}: the dumpable bitmap names no page"))
            .at_offset(at)
            .hint("the dump was not finished, or the bitmap is damaged")
    })
}

fn warn_of_loss(head: &Source, container: &Container, layout: &Layout, warnings: &mut Vec<String>) {
    if layout.lost > 0 {
        warnings.push(format!("{} pages are not in the input: a file is cut, or the firmware did not finish the dump", layout.lost));
    }
    // On a dump device, an older dump may stand behind what the last one wrote.
    let before = if container.kind == Kind::MediaBackup { BLOCK } else { 0 };
    let end = container.data_at.saturating_sub(before).saturating_add(layout.stream_bytes());
    let used = container.part.used;
    if container.kind != Kind::DiskSet && used != 0 && used < end {
        let name = head.name();
        warnings.push(format!(
            "{name}: the partition header says that {used} bytes are used, the pages end at {end}: the last ones may be of an older dump"
        ));
    }
}
