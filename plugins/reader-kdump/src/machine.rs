//! The machine that crashed, by the headers and the notes.

use coresift_sdk::{ClassSet, Machine, Verdict, arch, codec, vmcoreinfo_value};

use crate::header::{EXCLUDED_VMEMMAP, Header, INCOMPLETE};
use crate::layout::Layout;

/// Name of the note with the kernel's description of itself (Documentation/admin-guide/kdump/vmcoreinfo.rst).
const VMCOREINFO: &[u8] = b"VMCOREINFO\0";
/// Name of the same of a Xen hypervisor (xen/include/xen/elfcore.h).
const VMCOREINFO_XEN: &[u8] = b"VMCOREINFO_XEN\0";
/// Type of the note with a CPU's registers (include/uapi/linux/elf.h).
const NT_PRSTATUS: u32 = 1;
/// Bytes of a note's header.
const NOTE_HEADER: usize = 12;

/// `sizeof(struct elf_prstatus)` in bytes, by which the machine of a dump without a name is told (QEMU writes none).
const PRSTATUS: [(&str, usize); 12] = [
    ("x86_64", 336),
    ("i686", 144),
    ("aarch64", 392),
    ("armv7l", 148),
    ("ppc64le", 504),
    ("ppc64", 504),
    ("ppc", 268),
    // As QEMU 7.2 and 10 write it.
    ("ppc", 328),
    ("s390x", 336),
    ("riscv64", 376),
    ("riscv32", 204),
    ("loongarch64", 480),
];

/// What the notes say.
#[derive(Debug, Default)]
struct Notes {
    vmcoreinfo: Vec<u8>,
    cpus: u32,
    /// length of the first register note
    prstatus: usize,
    /// the dump of a hypervisor: its pages are frames of the host
    xen: bool,
}

impl Notes {
    fn walk(bytes: &[u8], layout: Layout) -> Self {
        let mut notes = Self::default();
        let mut rest = bytes;
        while let Some(header) = rest.get(..NOTE_HEADER) {
            let word = |i: usize| layout.u32(header.get(i * 4..).unwrap_or_default());
            let (name_len, desc_len, kind) = (word(0) as usize, word(1) as usize, word(2));
            let desc_at = NOTE_HEADER.saturating_add(name_len).checked_next_multiple_of(4).unwrap_or(usize::MAX);
            let name = rest.get(NOTE_HEADER..NOTE_HEADER.saturating_add(name_len));
            let desc = rest.get(desc_at..desc_at.saturating_add(desc_len));
            let (Some(name), Some(desc)) = (name, desc) else { break };
            if name == VMCOREINFO && notes.vmcoreinfo.is_empty() {
                notes.vmcoreinfo = desc.to_vec();
            } else if name == VMCOREINFO_XEN {
                notes.xen = true;
            } else if kind == NT_PRSTATUS && name == b"CORE\0" {
                notes.cpus = notes.cpus.saturating_add(1);
                notes.prstatus = if notes.prstatus == 0 { desc_len } else { notes.prstatus };
            }
            let end = desc_at.saturating_add(desc_len).checked_next_multiple_of(4).unwrap_or(usize::MAX);
            rest = rest.get(end..).unwrap_or_default();
        }
        notes
    }
}

/// The machine. What the pages say (`incomplete` because the file is cut) is not yet in it.
pub fn machine(header: &Header, parts: usize) -> Machine {
    let notes = Notes::walk(&header.notes, header.layout);
    let mut warnings = header.warnings.clone();
    let vmcoreinfo = if header.vmcoreinfo.is_empty() { notes.vmcoreinfo } else { header.vmcoreinfo.clone() };
    let (arch, elf_machine) = architecture(header, notes.prstatus);
    if arch.is_empty() {
        warnings.push(format!("the dump does not say its architecture (machine name {:?})", header.utsname.machine));
    }
    let number = |key| vmcoreinfo_value(&vmcoreinfo, key).map(str::trim);
    let mut utsname = header.utsname.clone();
    if utsname.release.is_empty() {
        utsname.release = number("OSRELEASE").unwrap_or_default().chars().take(64).collect();
    }
    // QEMU writes a guess into the header; the kernel itself knows.
    let told = number("NUMBER(phys_base)").and_then(|v| v.parse::<i64>().ok()).map(i64::cast_unsigned);
    let phys_base = told.or((arch == "x86_64" && vmcoreinfo.is_empty()).then_some(header.phys_base));
    let status_codec = header.status & (codec::ZLIB | codec::LZO | codec::SNAPPY | codec::ZSTD);
    let mut excluded = ClassSet::from_dump_level(u32::try_from(header.dump_level).unwrap_or(0));
    if header.status & EXCLUDED_VMEMMAP != 0 {
        excluded = excluded.with(Verdict::MEMMAP);
    }
    let mut format = format!("kdump-compressed v{}", header.version);
    if header.part.is_some() {
        format.push_str(&format!(", {parts} of a split set"));
    }
    let incomplete = header.status & INCOMPLETE != 0;
    if incomplete {
        warnings.push("the dump is marked as incomplete: pages are missing at its end".into());
    }
    Machine {
        format,
        arch,
        elf_machine,
        word_bits: header.layout.word_bits(),
        big_endian: header.layout.big_endian,
        page_shift: header.block.trailing_zeros(),
        cpus: if notes.cpus > 0 { notes.cpus } else { header.cpus },
        utsname,
        crash_time: number("CRASHTIME").and_then(|v| v.parse().ok()).unwrap_or(header.time),
        phys_base,
        max_pfn: header.max_mapnr,
        excluded,
        incomplete,
        codec: status_codec,
        notes: header.notes.clone(),
        vmcoreinfo,
        erased: header.erased.clone(),
        hypervisor: notes.xen,
        warnings,
    }
}

fn architecture(header: &Header, prstatus: usize) -> (String, u16) {
    // QEMU writes this name, or none.
    let name = Some(header.utsname.machine.as_str()).filter(|name| *name != "Unknown").unwrap_or_default();
    if let Some(known) = arch::by_name(name) {
        return (name.to_owned(), known.elf_machine);
    }
    let machines = PRSTATUS.iter().filter(|(_, size)| *size == prstatus).filter_map(|(known, _)| arch::by_name(known));
    match machines.into_iter().find(|known| known.big_endian == header.layout.big_endian) {
        Some(known) if name.is_empty() => (known.name.to_owned(), known.elf_machine),
        _ => (name.to_owned(), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, desc: &[u8]) -> Vec<u8> {
        let mut bytes = [name.len() as u32, desc.len() as u32, kind].map(u32::to_le_bytes).concat();
        for part in [name, desc] {
            bytes.extend_from_slice(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn the_notes_of_a_hypervisor_say_whose_frames_they_are() {
        let layout = Layout { big_endian: false, words: crate::layout::Words::Wide };
        let linux = [note(b"CORE\0", 1, &[0; 336]), note(b"VMCOREINFO\0", 0, b"PAGESIZE=4096\n")].concat();
        let xen = [linux.as_slice(), &note(b"VMCOREINFO_XEN\0", 0, b"SIZE(page_info)=32\n")].concat();
        let (linux, xen) = (Notes::walk(&linux, layout), Notes::walk(&xen, layout));
        assert!(!linux.xen && xen.xen);
        assert_eq!((linux.cpus, linux.prstatus, linux.vmcoreinfo), (1, 336, b"PAGESIZE=4096\n".to_vec()));
    }
}
