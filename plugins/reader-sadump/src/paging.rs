//! `phys_base`, by what the CPUs knew themselves.
//!
//! An interrupt descriptor table points into the text of the kernel. Its entry 0 (divide error) is a link address moved by
//! KASLR; the page tables at CR3 say which physical address that is; and the difference is `phys_base`:
//!
//! ```text
//! IDT register ──CR3──► IDT ──entry 0──► address V in kernel text ──CR3──► physical address P
//! phys_base = P - (V - __START_KERNEL_map)
//! ```
//!
//! makedumpfile goes the same way, but takes V and the table's address from the vmlinux, which also gives the KASLR offset.
//! Without a vmlinux the second walk replaces it for `phys_base`; the KASLR offset cannot be known.

use crate::cpu::CpuState;

/// Where the text of the kernel is linked to (arch/x86/include/asm/page_64_types.h).
const START_KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

/// Bytes from there on in which the kernel may lie (`KERNEL_IMAGE_SIZE` with KASLR).
const KERNEL_IMAGE_SIZE: u64 = 1 << 30;

/// The kernel lies at multiples of this, in both address spaces (smallest `CONFIG_PHYSICAL_ALIGN` of x86_64).
const KERNEL_ALIGN: u64 = 2 << 20;

/// Address bits of CR3 and of page table entries: 12 to 51 (Intel SDM, volume 3, section 4.5).
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// The bit of CR3 that tells the page tables of user space with page table isolation (`PTI_USER_PGTABLE_BIT`,
/// arch/x86/include/asm/pgtable.h).
const PTI_USER: u64 = 1 << 12;

/// Reads a 64-bit number of physical memory.
pub type ReadU64<'a> = &'a dyn Fn(u64) -> Option<u64>;

/// `phys_base`, if all CPUs that tell one tell the same.
pub fn phys_base(states: &[CpuState], read: ReadU64<'_>, warnings: &mut Vec<String>) -> Option<u64> {
    let mut found: Vec<u64> = states.iter().filter_map(|state| phys_base_of(state, read)).collect();
    found.sort_unstable();
    found.dedup();
    match found.as_slice() {
        [one] => Some(*one),
        [] => None,
        [one, .., other] => {
            warnings.push(format!(
                "the CPUs ran kernels at different places (phys_base {one:#x} and {other:#x}): a kdump kernel was running, and had moved the first 640 KiB elsewhere"
            ));
            None
        }
    }
}

fn phys_base_of(state: &CpuState, read: ReadU64<'_>) -> Option<u64> {
    let (root, idt) = (state.cr3() & ADDRESS, state.idt());
    if root == 0 || idt == 0 || !state.long_mode() {
        return None;
    }
    // Where user space was running, the entry text is in its page tables too, so bit 12 need not be cleared. It may be the
    // address bit of a kernel without isolation: the other root is for tables of user space that miss something.
    [root, root & !PTI_USER].into_iter().find_map(|root| {
        let walk = |vaddr| translate(read, root, state.levels(), vaddr);
        let handler = handler_of_vector_0(read, walk(idt)?)?;
        let base = walk(handler)?.wrapping_sub(handler - START_KERNEL_MAP);
        base.is_multiple_of(KERNEL_ALIGN).then_some(base)
    })
}

/// The address in entry 0 of an interrupt descriptor table, if it is in kernel text (`struct gate_struct`,
/// arch/x86/include/asm/desc_defs.h).
fn handler_of_vector_0(read: ReadU64<'_>, paddr: u64) -> Option<u64> {
    let (low, high) = (read(paddr)?, read(paddr.checked_add(8)?)?);
    let handler = low & 0xffff | low >> 32 & 0xffff_0000 | high << 32;
    let present = low >> 47 & 1 == 1;
    (present && (START_KERNEL_MAP..START_KERNEL_MAP + KERNEL_IMAGE_SIZE).contains(&handler)).then_some(handler)
}

/// Walks page tables of four or five levels (Intel SDM, volume 3, section 4.5).
fn translate(read: ReadU64<'_>, root: u64, levels: u32, vaddr: u64) -> Option<u64> {
    const PRESENT: u64 = 1;
    /// this entry is a page of 2 MiB (level 1) or 1 GiB (level 2)
    const LARGE: u64 = 1 << 7;
    let mut table = root;
    for level in (0..levels).rev() {
        let shift = 12 + 9 * level;
        let entry = read(table + (vaddr >> shift & 511) * 8)?;
        if entry & PRESENT == 0 {
            return None;
        }
        if level == 0 || (level <= 2 && entry & LARGE != 0) {
            let within = (1u64 << shift) - 1;
            return Some(entry & ADDRESS & !within | vaddr & within);
        }
        table = entry & ADDRESS;
    }
    None
}
