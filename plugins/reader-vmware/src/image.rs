//! The reader: regions of a memory file as extents.

use coresift_sdk::{Error, Extent, Machine, PageState, Reader, Result, Source, arch};

use crate::checkpoint::{Checkpoint, Region};

/// log2 of VMware's page size.
const PAGE_SHIFT: u32 = 12;
/// One behind the highest PFN that is believed: x86_64 has 52 bits of physical addresses.
const PFN_END: u64 = 1 << (52 - PAGE_SHIFT);

/// An opened guest.
#[derive(Debug)]
pub struct VmwareImage {
    machine: Machine,
    extents: Vec<Extent>,
}

/// Where the pages are.
struct Place {
    /// number of the source
    source: u32,
    /// file offset of page 0
    offset: u64,
    /// bytes
    len: u64,
    /// the file ends before
    cut: bool,
}

impl VmwareImage {
    /// Joins a checkpoint and a memory file, each with its number among the inputs.
    ///
    /// # Errors
    /// The memory is in neither.
    pub fn new(checkpoint: &Checkpoint, own: (usize, &Source), file: Option<(usize, &Source)>, name: &str) -> Result<Self> {
        let named = arch::by_name(name);
        let taken = named.or_else(|| arch::usual(false));
        let mut machine = taken.map(|taken| taken.machine(1 << PAGE_SHIFT)).unwrap_or_default();
        machine.format = "VMware checkpoint".into();
        machine.warnings.extend(checkpoint.warnings.iter().cloned());
        let place = place(checkpoint, own, file, &mut machine.warnings)?;
        machine.incomplete = place.cut;

        let pages = place.len >> PAGE_SHIFT;
        let whole = [Region { first_pfn: 0, file_page: 0, pages }];
        let mut regions = if checkpoint.regions.is_empty() { whole.to_vec() } else { checkpoint.regions.clone() };
        regions.sort_by_key(|region| region.first_pfn);
        let (mut extents, mut end, mut missing, mut odd) = (Vec::new(), 0, 0, 0u64);
        for region in regions {
            // What an earlier region has is taken from that one.
            let first = region.first_pfn.max(end);
            let last = region.first_pfn.saturating_add(region.pages).min(PFN_END);
            odd += u64::from(first != region.first_pfn || last != region.first_pfn.saturating_add(region.pages));
            if first >= last {
                continue;
            }
            end = last;
            let file_page = region.file_page.saturating_add(first - region.first_pfn);
            let there = (last - first).min(pages.saturating_sub(file_page));
            if there > 0 {
                extents.push(Extent::mapped(first, there, place.source, place.offset.saturating_add(file_page << PAGE_SHIFT)));
            }
            if there < last - first {
                missing += last - first - there;
                extents.push(Extent::absent(first + there, last - first - there));
            }
        }
        if odd > 0 {
            machine.warnings.push(format!("{odd} memory regions of the checkpoint overlap others, or reach too far, and are cut"));
        }
        if missing > 0 {
            machine.incomplete = true;
            machine.warnings.push(format!("the memory file is cut: {missing} pages that the checkpoint names are not in it"));
        }
        if !extents.iter().any(|e| e.kind == coresift_sdk::ExtentKind::MAPPED) {
            let message = format!("{}: not one page of the guest's memory is there", own.1.name());
            return Err(Error::format(message).hint("the memory file is empty or cut; copy it again"));
        }
        machine.max_pfn = end;
        Ok(Self { machine, extents })
    }
}

/// Finds the memory: in the checkpoint, or in a file of its own.
fn place(checkpoint: &Checkpoint, own: (usize, &Source), file: Option<(usize, &Source)>, warnings: &mut Vec<String>) -> Result<Place> {
    let (number, source) = own;
    match (checkpoint.memory, file) {
        (Some(inside), _) if inside.compressed => {
            let message = format!("{}: the guest's memory in it is compressed, which is not supported", source.name());
            Err(Error::unsupported(message).at_offset(inside.offset).hint("VMware's vmss2core makes an ELF vmcore of it"))
        }
        (Some(inside), file) => {
            if let Some((_, file)) = file {
                warnings.push(format!("{} is not used: the checkpoint has the memory itself", file.name()));
            }
            let len = source.size().map_or(inside.len, |size| size.saturating_sub(inside.offset).min(inside.len));
            if len < inside.len {
                warnings.push(format!("the checkpoint is cut: {} bytes of the memory are missing", inside.len - len));
            }
            Ok(Place { source: number as u32, offset: inside.offset, len, cut: len < inside.len })
        }
        (None, Some((number, file))) => {
            let Some(len) = file.size() else {
                return Err(Error::unsupported(format!("{}: its length is unknown", file.name())).hint("copy it into a file"));
            };
            Ok(Place { source: number as u32, offset: 0, len, cut: false })
        }
        (None, None) => {
            let message = format!("{}: the guest's memory is not in the checkpoint", source.name());
            Err(Error::unsupported(message).hint("give the .vmem file of the same name, too: it stands beside it"))
        }
    }
}

impl Reader for VmwareImage {
    fn machine(&self) -> Machine {
        self.machine.clone()
    }

    fn extents(&self) -> Vec<Extent> {
        self.extents.clone()
    }

    fn read_pages(&self, _: &[u64], _: &mut [u8], _: &mut [PageState]) -> Result<()> {
        // All pages stand in a file as they are: the host reads them itself.
        Ok(())
    }
}
