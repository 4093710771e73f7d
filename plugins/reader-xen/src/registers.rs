//! From vCPU contexts to the register notes that dump readers look for.
//!
//! In: `struct vcpu_guest_context` of x86_64 (xen/include/public/arch-x86/xen.h and xen-x86_64.h of Xen).
//! Out: `NT_PRSTATUS` notes as Linux makes them (`struct elf_prstatus`, include/linux/elfcore.h; `struct
//! user_regs_struct`, arch/x86/include/asm/user_64.h).

use crate::bytes::{u16_le, u64_at};

/// Bytes of a `vcpu_guest_context` of x86_64.
pub const CONTEXT: usize = 5168;

/// `flags`, behind 512 bytes of FPU state.
const FLAGS: usize = 512;
/// `VGCF_IN_KERNEL`
const IN_KERNEL: u64 = 1 << 2;
/// `user_regs`: 15 registers from r15 to rdi of 8 bytes, then those below
const REGS: usize = 520;
/// `rip`, behind `error_code` and `entry_vector`
const RIP: usize = REGS + 128;
/// `cs`
const CS: usize = REGS + 136;
/// `rflags`
const RFLAGS: usize = REGS + 144;
/// `rsp`
const RSP: usize = REGS + 152;
/// `ss`; `es`, `ds`, `fs` and `gs` follow, 8 bytes each
const SS: usize = REGS + 160;
/// `ctrlreg[8]`, behind the trap table (256 of 16 bytes), LDT (16), GDT frames (136) and kernel stack (16)
const CTRLREG: usize = REGS + 200 + 4096 + 16 + 136 + 16;
/// `fs_base`; `gs_base_kernel` and `gs_base_user` follow
const FS_BASE: usize = CONTEXT - 24;

/// `NT_PRSTATUS` (include/uapi/linux/elf.h)
const NT_PRSTATUS: u32 = 1;
/// Bytes of `struct elf_prstatus` of x86_64.
const PRSTATUS: usize = 336;
/// Where `pr_reg` begins in it.
const PR_REG: usize = 112;

/// Machine frames of the top page tables of a vCPU of a paravirtualised domain: the kernel's and the one for user mode.
pub fn roots(context: &[u8]) -> Vec<u64> {
    // CR3 of a 64-bit domain is a machine address (xen_cr3_to_pfn); CR1 has the user's table, 0 if none.
    [3, 1].iter().filter_map(|i| u64_at(context, CTRLREG + 8 * i, false)).filter(|cr| *cr != 0).map(|cr| cr >> 12).collect()
}

/// The register note of a vCPU, with its header.
pub fn note(context: &[u8]) -> Option<Vec<u8>> {
    let long = |at| u64_at(context, at, false);
    let selector = |at| u16_le(context, at).map(u64::from);
    let general: Option<Vec<u64>> = (0..15).map(|i| long(REGS + 8 * i)).collect();
    let cs = selector(CS)?;
    // A paravirtualised kernel of x86_64 runs in ring 3 as its processes do: the flag tells them apart. HVM has ring 0.
    let in_kernel = long(FLAGS)? & IN_KERNEL != 0 || cs & 3 == 0;
    let gs_base = long(FS_BASE + if in_kernel { 8 } else { 16 })?;

    let mut regs = general?;
    // orig_rax: -1 = not in a system call. Xen uses its place for itself.
    regs.push(u64::MAX);
    regs.extend([long(RIP)?, cs, long(RFLAGS)?, long(RSP)?, selector(SS)?, long(FS_BASE)?, gs_base]);
    // ds, es, fs, gs
    for at in [SS + 16, SS + 8, SS + 24, SS + 32] {
        regs.push(selector(at)?);
    }
    let mut note = Vec::with_capacity(20 + PRSTATUS);
    for word in [5, PRSTATUS as u32, NT_PRSTATUS] {
        note.extend(word.to_le_bytes());
    }
    note.extend(b"CORE\0\0\0\0");
    let desc = note.len();
    note.resize(desc + PR_REG, 0);
    regs.iter().for_each(|r| note.extend(r.to_le_bytes()));
    // pr_fpvalid and padding. No process is named: pr_pid stays 0.
    note.resize(desc + PRSTATUS, 0);
    Some(note)
}
