//! Where the kernel's direct map of all memory is: the difference between its addresses and physical ones.
//!
//! It moves at every boot (KASLR), and no kernel exports it. But `mem_section`, which VMCOREINFO names for every kernel
//! with sparse memory, is or begins with a pointer to memory that the kernel got from memblock or kmalloc, and such
//! pointers are addresses in the direct map. Page tables say where it leads, and they have to agree for other pages, too:
//! nothing is guessed.

use coresift_sdk::{Host, Kernel, PageSet, Plan, Run};

/// Pages looked at to prove it.
const PROOFS: usize = 16;

/// What is added to a physical address, modulo 2^64, to get its address in the direct map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectMap(u64);

impl DirectMap {
    /// Finds it; `None` if it cannot be proved.
    ///
    /// Not on 32 bits: most of their memory is outside of it.
    pub fn find(host: &Host, plan: &Plan<'_>) -> Option<Self> {
        let machine = plan.machine;
        if machine.word_bits != 64 {
            return None;
        }
        let kernel = Kernel::of(host, machine)?;
        let mem_section = kernel.info().symbol("mem_section")?;
        let mut bytes = [0; 8];
        kernel.read(mem_section, &mut bytes).ok()?;
        let pointer = if machine.big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) };
        let candidate = Self(pointer.wrapping_sub(kernel.translate(pointer)?.paddr));
        candidate.proved(&kernel, plan).then_some(candidate)
    }

    /// The kernel's address of a physical one.
    pub fn address(self, paddr: u64) -> u64 {
        paddr.wrapping_add(self.0)
    }

    /// Looks at dumped pages all over memory: some must be where they should, and none elsewhere. A page may be in no
    /// place at all: kernels take broken and secret ones out of the direct map.
    fn proved(self, kernel: &Kernel, plan: &Plan<'_>) -> bool {
        let mut right = 0;
        let step = (plan.machine.max_pfn / PROOFS as u64).max(1);
        for i in 0..PROOFS as u64 {
            let mut run = [Run { first_pfn: 0, pages: 0 }];
            if plan.pages.runs(PageSet::Dumped, i.saturating_mul(step), &mut run) == 0 {
                break;
            }
            let [Run { first_pfn, .. }] = run;
            let Some(paddr) = first_pfn.checked_shl(plan.machine.page_shift) else { return false };
            match kernel.translate(self.address(paddr)) {
                Some(mapping) if mapping.paddr == paddr => right += 1,
                Some(_) => return false,
                None => {}
            }
        }
        right >= PROOFS / 2
    }
}
