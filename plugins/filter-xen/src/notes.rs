//! What the notes say: `XEN_ELFNOTE_CRASH_INFO` and `_CRASH_REGS` (numbers: xen/include/public/elfnote.h, contents:
//! xen/include/xen/elfcore.h), and the text VMCOREINFO_XEN (xen/common/kexec.c).

use coresift_sdk::{Machine, vmcoreinfo_value};

use crate::bytes::{u32_at, u64_at};

/// Name of the notes that Xen writes.
const XEN: &[u8] = b"Xen\0";
/// Name of the hypervisor's counterpart of VMCOREINFO.
const VMCOREINFO_XEN: &[u8] = b"VMCOREINFO_XEN\0";
const CRASH_INFO: u32 = 0x0100_0001;
const CRASH_REGS: u32 = 0x0100_0002;
/// CPUs whose registers are looked at.
const CPUS: usize = 64;

/// What the notes say.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Notes {
    /// major and minor version
    pub version: Option<(u64, u64)>,
    /// physical address that Xen's image lies at (`xen_phys_start`; since Xen 3.3)
    pub phys_start: Option<u64>,
    /// CR3 of CPUs
    pub cr3: Vec<u64>,
    /// VMCOREINFO_XEN
    text: Vec<u8>,
}

impl Notes {
    /// Reads a machine's notes. What its VMCOREINFO_XEN does not say is looked for in its VMCOREINFO, which the user may
    /// have given.
    pub fn of(machine: &Machine) -> Self {
        let mut notes = Self::default();
        each(&machine.notes, |name, n_type, desc| match n_type {
            _ if name == VMCOREINFO_XEN => notes.text.extend_from_slice(desc),
            CRASH_INFO if name == XEN => {
                let word = |i: usize| u64_at(desc, i * 8);
                notes.version = word(0).zip(word(1)).or(notes.version);
                // Eight words, on x86 then a frame of domain 0's; since 3.3 the address comes before it.
                notes.phys_start = word(9).and(word(8)).or(notes.phys_start);
            }
            CRASH_REGS if name == XEN && notes.cr3.len() < CPUS => notes.cr3.extend(u64_at(desc, 16)),
            _ => {}
        });
        notes.text.push(b'\n');
        notes.text.extend_from_slice(&machine.vmcoreinfo);
        notes
    }

    /// True if there is any note of Xen with symbols.
    pub fn has_symbols(&self) -> bool {
        self.symbol("domain_list").is_some() || self.symbol("pgd_l4").is_some()
    }

    /// Address of a symbol.
    pub fn symbol(&self, name: &str) -> Option<u64> {
        u64::from_str_radix(vmcoreinfo_value(&self.text, &format!("SYMBOL({name})"))?.trim(), 16).ok()
    }

    /// Bytes of a structure, `SIZE(name)`, or into one, `OFFSET(structure.member)`.
    pub fn number(&self, key: &str) -> Option<u64> {
        vmcoreinfo_value(&self.text, key)?.trim().parse().ok()
    }
}

/// Calls `visit` with name (its final zero included), type and content of each note, until one makes no sense.
fn each<'a>(data: &'a [u8], mut visit: impl FnMut(&'a [u8], u32, &'a [u8])) {
    let mut at = 0;
    while let (Some(name_len), Some(desc_len), Some(n_type)) = (u32_at(data, at), u32_at(data, at + 4), u32_at(data, at + 8)) {
        let name_at = at + 12;
        let Some(desc_at) = aligned_end(name_at, name_len) else { break };
        let (Some(name), Some(desc)) = (piece(data, name_at, name_len), piece(data, desc_at, desc_len)) else { break };
        visit(name, n_type, desc);
        let Some(next) = aligned_end(desc_at, desc_len) else { break };
        at = next;
    }
}

fn piece(data: &[u8], at: usize, len: u32) -> Option<&[u8]> {
    data.get(at..at.checked_add(len as usize)?)
}

/// Names and contents fill up to four bytes.
fn aligned_end(at: usize, len: u32) -> Option<usize> {
    at.checked_add(len as usize)?.checked_next_multiple_of(4)
}
