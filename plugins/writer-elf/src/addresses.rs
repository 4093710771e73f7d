//! Kernel addresses of physical memory, for `p_vaddr`: the direct map of all memory, and the kernel's image.
//!
//! Both move at every boot (KASLR), and no kernel exports where the direct map is. But `mem_section`, which VMCOREINFO
//! names for every kernel with sparse memory, is or begins with a pointer to memory that the kernel got from memblock or
//! kmalloc, and such pointers are addresses in the direct map. Page tables say where it leads, and they have to agree for
//! other pages, too: nothing is guessed.

use coresift_sdk::{Host, Kernel, PageSet, Plan, Run};

/// Pages looked at to prove the direct map.
const PROOFS: u64 = 16;

/// Bytes of the largest image: `KERNEL_IMAGE_SIZE` of x86_64 (arch/x86/include/asm/page_64_types.h); others are smaller.
const IMAGE_MAX: u64 = 1 << 30;

/// Largest hole in an image in bytes: kernels unmap the code of their start when they have started.
const IMAGE_HOLE_MAX: u64 = 16 << 20;

/// What is known of the kernel's addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Addresses {
    /// what is added to a physical address, modulo 2^64, to get its address in the direct map
    direct: Option<u64>,
    /// pieces of the kernel's image, if it is mapped elsewhere
    pub image: Vec<Image>,
}

/// A piece of the kernel's image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// kernel address of the first byte
    pub vaddr: u64,
    /// its pages
    pub run: Run,
}

impl Addresses {
    /// Asks the kernel. Not one of 32 bits: most of its memory has no address.
    pub fn find(host: &Host, plan: &Plan<'_>) -> Self {
        if plan.machine.word_bits != 64 {
            return Self::default();
        }
        let Some(kernel) = Kernel::of(host, plan.machine) else { return Self::default() };
        let direct = direct_map(&kernel, plan).filter(|offset| proved(*offset, &kernel, plan));
        Self { direct, image: image(&kernel, plan, direct).unwrap_or_default() }
    }

    /// Cuts runs at the edges of the kernel's image, and gives each piece its first page's address.
    ///
    /// A page of the image has that address and not, in a second `PT_LOAD` as kexec has it, one in the direct map, too:
    /// libkdumpfile (0.5.1) does not see the pages behind a `PT_LOAD` within another one.
    pub fn split<'a>(&'a self, runs: &'a [Run], page_shift: u32) -> impl Iterator<Item = (Run, u64)> {
        Split { addresses: self, runs: runs.iter(), rest: None, images: &self.image, page_shift }
    }

    /// The kernel's address of a physical one; the same number if it is unknown, as QEMU has it. drgn gets lost with 0.
    pub fn of(&self, paddr: u64) -> u64 {
        paddr.wrapping_add(self.direct.unwrap_or(0))
    }
}

/// See [`Addresses::split`]. Runs and pieces of the image ascend.
struct Split<'a> {
    addresses: &'a Addresses,
    runs: std::slice::Iter<'a, Run>,
    /// what is left of a run
    rest: Option<Run>,
    images: &'a [Image],
    page_shift: u32,
}

impl Iterator for Split<'_> {
    type Item = (Run, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let run = self.rest.take().or_else(|| self.runs.next().copied())?;
        while let Some((_, behind)) = self.images.split_first().filter(|(image, _)| image.run.end_pfn() <= run.first_pfn) {
            self.images = behind;
        }
        let (end, vaddr) = match self.images.first() {
            Some(image) if image.run.first_pfn <= run.first_pfn => {
                let into = (run.first_pfn - image.run.first_pfn) << self.page_shift;
                (image.run.end_pfn(), image.vaddr.wrapping_add(into))
            }
            Some(image) => (image.run.first_pfn, self.addresses.of(run.first_pfn << self.page_shift)),
            None => (u64::MAX, self.addresses.of(run.first_pfn << self.page_shift)),
        };
        let end = end.min(run.end_pfn());
        if end < run.end_pfn() {
            self.rest = Some(Run { first_pfn: end, pages: run.end_pfn() - end });
        }
        Some((Run { first_pfn: run.first_pfn, pages: end - run.first_pfn }, vaddr))
    }
}

/// A candidate for the direct map's offset.
fn direct_map(kernel: &Kernel, plan: &Plan<'_>) -> Option<u64> {
    let mut bytes = [0; 8];
    kernel.read(kernel.info().symbol("mem_section")?, &mut bytes).ok()?;
    let pointer = if plan.machine.big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) };
    Some(pointer.wrapping_sub(kernel.translate(pointer)?.paddr))
}

/// Looks at dumped pages all over memory: half of them must be where they should, and none elsewhere. A page may be in no
/// place at all: kernels take broken and secret ones out of the direct map.
fn proved(offset: u64, kernel: &Kernel, plan: &Plan<'_>) -> bool {
    let step = (plan.machine.max_pfn / PROOFS).max(1);
    let (mut right, mut tried) = (0u64, 0);
    for i in 0..PROOFS {
        let mut run = [Run { first_pfn: 0, pages: 0 }];
        if plan.pages.runs(PageSet::Dumped, i.saturating_mul(step), &mut run) == 0 {
            break;
        }
        let [Run { first_pfn, .. }] = run;
        let Some(paddr) = first_pfn.checked_mul(plan.machine.page_size() as u64) else { return false };
        tried += 1;
        match kernel.translate(paddr.wrapping_add(offset)) {
            Some(mapping) if mapping.paddr == paddr => right += 1,
            Some(_) => return false,
            None => {}
        }
    }
    right > 0 && right * 2 >= tried
}

/// The kernel's image from its text on, where it has addresses of its own. drgn 0.0.22 finds the kernel's page table at
/// these only, and gdb everything that has a symbol.
fn image(kernel: &Kernel, plan: &Plan<'_>, direct: Option<u64>) -> Option<Vec<Image>> {
    let shift = plan.machine.page_shift;
    let page = 1u64.checked_shl(shift)?;
    let start = kernel.info().symbol("_stext")? & !(page - 1);
    let offset = start.wrapping_sub(kernel.translate(start)?.paddr);
    if direct == Some(offset) || offset & (page - 1) != 0 {
        return None;
    }
    let mut pieces: Vec<Image> = Vec::new();
    let (mut at, mut hole) = (0, 0);
    while at < IMAGE_MAX && hole < IMAGE_HOLE_MAX {
        let vaddr = start.checked_add(at)?;
        let Some(mapping) = kernel.translate(vaddr) else {
            (at, hole) = (at + page, hole + page);
            continue;
        };
        if mapping.paddr.wrapping_add(offset) != vaddr {
            break;
        }
        let pages = (mapping.len.min(IMAGE_MAX - at) >> shift).max(1);
        let run = Run { first_pfn: mapping.paddr >> shift, pages };
        match pieces.last_mut() {
            Some(last) if last.run.end_pfn() == run.first_pfn => last.run.pages += pages,
            _ => pieces.push(Image { vaddr, run }),
        }
        (at, hole) = (at + pages * page, 0);
    }
    Some(pieces)
}
