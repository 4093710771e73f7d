//! The crashed kernel, as far as its memory makes sense.

use std::ops::Range;

use coresift_sdk::Machine;
use coresift_sdk::linux::Vmcoreinfo;

use crate::memmap::MemMap;
use crate::memory::Memory;
use crate::space::AddressSpace;

/// What is known of the crashed kernel. It holds no memory: every call is given where to read.
#[derive(Debug)]
pub struct Kernel {
    info: Vmcoreinfo,
    space: AddressSpace,
    mem_map: Result<MemMap, String>,
}

/// A stretch of kernel addresses that is contiguous in physical memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// bytes from the start of the stretch asked for
    pub at: u64,
    /// length in bytes
    pub len: u64,
    /// physical address, `None` if the addresses lead nowhere
    pub paddr: Option<u64>,
}

impl Kernel {
    /// Makes sense of a kernel. `ram` is the physical memory that the input knows of, ascending.
    ///
    /// # Errors
    /// One sentence: why not even addresses can be translated. A mem_map that is not found is no error here.
    pub fn find(machine: &Machine, memory: &dyn Memory, ram: &[Range<u64>]) -> Result<Self, String> {
        if machine.vmcoreinfo.is_empty() {
            return Err("the input has no VMCOREINFO".to_owned());
        }
        let info = Vmcoreinfo::parse(&machine.vmcoreinfo);
        let space = AddressSpace::find(machine, &info, memory, ram)?;
        let first_pfn = ram.first().map_or(0, |r| r.start >> machine.page_shift);
        let mem_map = MemMap::find(machine, &info, &|vaddr, buf| space.read(memory, vaddr, buf) == buf.len(), first_pfn);
        Ok(Self { info, space, mem_map })
    }

    /// The kernel's text about itself.
    pub fn info(&self) -> &Vmcoreinfo {
        &self.info
    }

    /// How its addresses map.
    pub fn space(&self) -> &AddressSpace {
        &self.space
    }

    /// Its mem_map, or why there is none.
    pub fn mem_map(&self) -> Result<&MemMap, &str> {
        self.mem_map.as_ref().map_err(String::as_str)
    }

    /// Oddities, one sentence each.
    pub fn notes(&self) -> &[String] {
        self.space.notes()
    }

    /// The physically contiguous stretches of a range of kernel addresses, in order and without gaps: `each` is given one
    /// after the other.
    pub fn spans(&self, memory: &dyn Memory, address: u64, len: u64, mut each: impl FnMut(Span)) {
        let mut open: Option<Span> = None;
        let mut at = 0;
        while at < len {
            let mapping = self.space.translate(memory, address.wrapping_add(at)).ok();
            // Without a mapping the next page may have one: no leaf is smaller than 4 KiB.
            let step = mapping.map_or(4096 - (address.wrapping_add(at) & 4095), |m| m.len).clamp(1, len - at);
            let paddr = mapping.map(|m| m.paddr);
            open = match open {
                Some(span) if follows(&span, paddr) => Some(Span { len: span.len + step, ..span }),
                other => {
                    other.into_iter().for_each(&mut each);
                    Some(Span { at, len: step, paddr })
                }
            };
            at += step;
        }
        open.into_iter().for_each(&mut each);
    }
}

fn follows(span: &Span, paddr: Option<u64>) -> bool {
    match (span.paddr, paddr) {
        (None, None) => true,
        (Some(start), Some(next)) => start.checked_add(span.len) == Some(next),
        _ => false,
    }
}
