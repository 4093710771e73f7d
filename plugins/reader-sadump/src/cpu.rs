//! What the CPUs saved to SMRAM when the firmware stopped them: their registers, made into ELF notes.
//!
//! The sub header (crash's and makedumpfile's view of it):
//!
//! ```text
//! u32                   bytes of all states together
//! { u64, u64 } a CPU    APIC ID, logical destination register
//! state a CPU           struct sadump_smram_cpu_state, the state save map of Intel's SMM for 64-bit CPUs
//! ```

use coresift_sdk::{Result, Source};

use crate::container::Container;
use crate::header::{BLOCK, u32_at, u64_at};

/// Bytes of a `struct sadump_smram_cpu_state`.
pub const STATE_SIZE: usize = 1024;

/// Bytes of a `struct sadump_apic_state`.
const APIC_SIZE: u64 = 16;

/// More CPUs than this are not believed; Linux for x86_64 has up to 8192 (`NR_CPUS`).
const CPUS_MAX: u32 = 1 << 16;

/// Bytes of `struct elf_prstatus` of x86_64 (include/linux/elfcore.h).
pub const PRSTATUS_SIZE: usize = 336;

/// Offset of `pr_reg` in it.
const PR_REG_AT: usize = 112;

/// `n_type` of a note with registers (include/uapi/linux/elf.h).
const NT_PRSTATUS: u32 = 1;

/// `LMA` of `IA32_EFER`: the CPU runs 64-bit code (Intel SDM, volume 3, section 2.2.1).
const EFER_LMA: u64 = 1 << 10;

/// `LA57` of CR4: page tables have five levels.
const CR4_LA57: u32 = 1 << 12;

// Offsets in the state, from its struct in sadump_mod.h.
const IDT_UPPER: usize = 472;
const CR4: usize = 576;
const IDT_LOWER: usize = 660;
/// R15 to R8, then RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, 8 bytes each.
const GENERAL: usize = 796;
/// ES, CS, SS, DS, FS, GS, 4 bytes each.
const SELECTORS: usize = 936;
const RIP: usize = 984;
const EFER: usize = 992;
const RFLAGS: usize = 1000;
const CR3: usize = 1008;

/// Where a register of `struct user_regs_struct` comes from.
enum From {
    /// number in [`GENERAL`]
    General(usize),
    /// number in [`SELECTORS`]
    Selector(usize),
    /// offset in the state
    At(usize),
    /// SMRAM does not have it
    Nowhere,
}

/// `struct user_regs_struct` (arch/x86/include/asm/user_64.h), in its order. `orig_rax` is RAX, as makedumpfile sets it.
const USER_REGS: [From; 27] = [
    From::General(0),  // r15
    From::General(1),  // r14
    From::General(2),  // r13
    From::General(3),  // r12
    From::General(13), // rbp
    From::General(11), // rbx
    From::General(4),  // r11
    From::General(5),  // r10
    From::General(6),  // r9
    From::General(7),  // r8
    From::General(8),  // rax
    From::General(9),  // rcx
    From::General(10), // rdx
    From::General(14), // rsi
    From::General(15), // rdi
    From::General(8),  // orig_rax
    From::At(RIP),
    From::Selector(1), // cs
    From::At(RFLAGS),
    From::General(12), // rsp
    From::Selector(2), // ss
    From::Nowhere,     // fs_base
    From::Nowhere,     // gs_base
    From::Selector(3), // ds
    From::Selector(0), // es
    From::Selector(4), // fs
    From::Selector(5), // gs
];

/// The state of one CPU.
#[derive(Debug, Clone)]
pub struct CpuState(Vec<u8>);

impl CpuState {
    /// CR3, with the PCID in its low bits.
    pub fn cr3(&self) -> u64 {
        u64_at(&self.0, CR3)
    }

    /// Linear address of the interrupt descriptor table.
    pub fn idt(&self) -> u64 {
        u64::from(u32_at(&self.0, IDT_UPPER)) << 32 | u64::from(u32_at(&self.0, IDT_LOWER))
    }

    /// Levels of the page tables.
    pub fn levels(&self) -> u32 {
        if u32_at(&self.0, CR4) & CR4_LA57 == 0 { 4 } else { 5 }
    }

    /// True if the CPU ran 64-bit code.
    pub fn long_mode(&self) -> bool {
        u64_at(&self.0, EFER) & EFER_LMA != 0
    }

    /// True if the firmware saved nothing.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|b| *b == 0)
    }

    fn register(&self, from: &From) -> u64 {
        match from {
            From::General(number) => u64_at(&self.0, GENERAL + number * 8),
            // Selectors have 16 bits; what stands above them is not said.
            From::Selector(number) => u64::from(u32_at(&self.0, SELECTORS + number * 4) & 0xffff),
            From::At(at) => u64_at(&self.0, *at),
            From::Nowhere => 0,
        }
    }
}

/// Reads the states of all CPUs; none, and a warning, where they make no sense.
///
/// # Errors
/// The input cannot be read.
pub fn states(source: &Source, container: &Container, warnings: &mut Vec<String>) -> Result<Vec<CpuState>> {
    let (cpus, room) = (container.dump.cpus, u64::from(container.dump.sub_blocks) * BLOCK);
    if room == 0 {
        warnings.push("the image has no registers (no sub header)".into());
        return Ok(Vec::new());
    }
    let all = u64::from(u32_at(&source.read_vec(container.sub_at, 4)?, 0));
    let each = all.checked_div(u64::from(cpus)).unwrap_or(0);
    let first = 4 + u64::from(cpus) * APIC_SIZE;
    if !(1..=CPUS_MAX).contains(&cpus) || each < STATE_SIZE as u64 || first + all > room {
        warnings.push(format!(
            "registers are not read: {cpus} CPUs with {all} bytes of state do not fit into a sub header of {room} bytes, or are less than {STATE_SIZE} bytes each"
        ));
        return Ok(Vec::new());
    }
    let states = (0..u64::from(cpus)).map(|cpu| source.read_vec(container.sub_at + first + cpu * each, STATE_SIZE).map(CpuState));
    let states = states.collect::<Result<Vec<_>>>()?;
    let empty = states.iter().filter(|s| s.is_empty()).count();
    if empty > 0 {
        warnings.push(format!("{empty} of {cpus} CPUs left no registers; their notes are zero"));
    }
    if states.iter().any(|s| !s.is_empty()) && !states.iter().any(CpuState::long_mode) {
        warnings.push("no CPU ran 64-bit code: the kernel was a 32-bit one, or none; the image is taken as x86_64".into());
    }
    Ok(states)
}

/// One `NT_PRSTATUS` note a CPU, in order of the image. What is not known (process, signals, bases of FS and GS) is 0.
pub fn notes(states: &[CpuState]) -> Vec<u8> {
    const NAME: &[u8] = b"CORE\0\0\0\0";
    let mut notes = Vec::with_capacity(states.len() * (12 + NAME.len() + PRSTATUS_SIZE));
    for state in states {
        // namesz without the padding, descsz, type
        for number in [5, PRSTATUS_SIZE as u32, NT_PRSTATUS] {
            notes.extend_from_slice(&number.to_le_bytes());
        }
        notes.extend_from_slice(NAME);
        notes.extend_from_slice(&[0; PR_REG_AT]);
        USER_REGS.iter().for_each(|from| notes.extend_from_slice(&state.register(from).to_le_bytes()));
        // pr_fpvalid, and padding
        notes.extend_from_slice(&[0; PRSTATUS_SIZE - PR_REG_AT - USER_REGS.len() * 8]);
    }
    notes
}
