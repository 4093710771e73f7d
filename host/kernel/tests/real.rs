//! Real vmcores: kernel addresses must lead where the crashed kernel itself says.
//!
//! What is true comes from the kernel, not from this crate: the virtual and physical addresses that it wrote into the
//! PT_LOADs of `/proc/vmcore`, and where an input has none, the distances that it exports for its own linear maps.
//! `CORESIFT_CORPUS` may name a folder of further vmcores, unpacked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)] // a test that cannot go on fails

use std::ops::Range;
use std::path::{Path, PathBuf};

use coresift_kernel::{AddressSpace, Memory, Vmcoreinfo};
use coresift_sdk::Machine;
use goblin::elf::{Elf, header::*, program_header::PT_LOAD};

/// An ELF vmcore in memory, read without any of our readers.
struct Core {
    name: String,
    bytes: Vec<u8>,
    /// physical range, where its bytes are, kernel address (0: none)
    loads: Vec<(Range<u64>, usize, u64)>,
    machine: Machine,
    text: String,
}

impl Memory for Core {
    fn read(&self, paddr: u64, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buf.len() {
            let at = paddr.wrapping_add(done as u64);
            let Some((range, file, _)) = self.loads.iter().find(|(r, ..)| r.contains(&at)) else { break };
            let n = (buf.len() - done).min((range.end - at) as usize);
            let from = file + (at - range.start) as usize;
            buf[done..done + n].copy_from_slice(&self.bytes[from..from + n]);
            done += n;
        }
        done
    }
}

impl Core {
    fn open(path: &Path) -> Self {
        let packed = std::fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut bytes = Vec::new();
        if path.extension().is_some_and(|e| e == "zst") {
            let mut decoder = zstd::stream::read::Decoder::new(packed).unwrap();
            decoder.window_log_max(31).unwrap();
            std::io::copy(&mut decoder, &mut bytes).unwrap();
        } else {
            std::io::copy(&mut &packed, &mut bytes).unwrap();
        }
        let elf = Elf::parse(&bytes).unwrap();
        let loads = elf.program_headers.iter().filter(|p| p.p_type == PT_LOAD);
        let loads = loads.map(|p| (p.p_paddr..p.p_paddr + p.p_filesz, p.p_offset as usize, p.p_vaddr)).collect();
        let mut notes = elf.iter_note_headers(&bytes).unwrap().filter_map(Result::ok);
        let text = notes.find(|n| n.name == "VMCOREINFO").map(|n| String::from_utf8_lossy(n.desc).into_owned()).unwrap();
        let arch = match elf.header.e_machine {
            EM_X86_64 => "x86_64",
            EM_AARCH64 => "aarch64",
            other => panic!("machine {other}"),
        };
        let page_size = Vmcoreinfo::parse(text.as_bytes()).page_size().unwrap();
        let (big_endian, page_shift) = (!elf.little_endian, page_size.ilog2());
        let machine = Machine { arch: arch.to_owned(), word_bits: 64, big_endian, page_shift, ..Machine::default() };
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        Self { name, loads, machine, text, bytes }
    }

    fn find(&self, text: &str) -> Result<AddressSpace, String> {
        let mut ram: Vec<_> = self.loads.iter().map(|(r, ..)| r.clone()).collect();
        ram.sort_by_key(|r| r.start);
        AddressSpace::find(&self.machine, &Vmcoreinfo::parse(text.as_bytes()), self, &ram)
    }

    /// The text with other values of some keys; without a line if the value is empty.
    fn text_with(&self, changes: &[(&str, &str)]) -> String {
        let line = |line: &str| match changes.iter().find(|(key, _)| line.split('=').next() == Some(*key)) {
            Some((_, "")) => String::new(),
            Some((key, value)) => format!("{key}={value}\n"),
            None => format!("{line}\n"),
        };
        self.text.lines().map(line).collect()
    }

    /// Kernel addresses and where they lead: what the kernel wrote into PT_LOADs, and its linear maps.
    fn truth(&self) -> Vec<(u64, u64)> {
        let info = Vmcoreinfo::parse(self.text.as_bytes());
        let number = |name: &str| info.number(name).map(i64::cast_unsigned);
        let step = 1 << self.machine.page_shift;
        let mut truth = Vec::new();
        for (range, _, vaddr) in self.loads.iter().filter(|(_, _, v)| *v >> 47 != 0) {
            truth.extend(range.clone().step_by(step).map(|p| (vaddr + (p - range.start), p)));
        }
        // arm64: __phys_to_virt(), arch/arm64/include/asm/memory.h.
        if let (Some(bits), Some(offset)) = (number("VA_BITS"), number("PHYS_OFFSET").filter(|_| truth.is_empty())) {
            let page_offset = u64::MAX << bits;
            let most = self.loads.iter().max_by_key(|(r, ..)| r.end - r.start).unwrap();
            truth.extend(most.0.clone().step_by(step).map(|p| (p.wrapping_sub(offset).wrapping_add(page_offset), p)));
        }
        truth
    }
}

/// Checks an address space against the kernel's own words; the number of addresses that agree.
fn check(core: &Core, space: &AddressSpace, what: &str) -> usize {
    let name = &core.name;
    let info = Vmcoreinfo::parse(core.text.as_bytes());
    let names = space.utsname().expect("names");
    assert_eq!(Some(names.release.as_str()), info.release(), "{name} {what}");
    assert_eq!((names.sysname.as_str(), names.machine.as_str()), ("Linux", core.machine.arch.as_str()), "{name} {what}");
    let (truth, mut agree, mut unmapped) = (core.truth(), 0, 0);
    for &(vaddr, paddr) in &truth {
        match space.translate(core, vaddr) {
            Ok(found) => {
                assert_eq!(found.paddr, paddr, "{name} {what}: {vaddr:#x}");
                agree += 1;
            }
            // Firmware's ranges, the crash kernel's, and init memory that was freed have no mapping.
            Err(_) => unmapped += 1,
        }
    }
    assert!(agree > 10_000 && unmapped < agree / 4, "{name} {what}: {agree} addresses agree, {unmapped} are not mapped");
    // The text runs and is not written; the section table and the middle of the mem_map can be read.
    let stext = space.translate(core, info.symbol("_stext").unwrap()).unwrap();
    assert!(stext.executable && !stext.writable, "{name} {what}: {stext:?}");
    let mut raw = [0u8; 16];
    assert_eq!(space.read(core, info.symbol("mem_section").unwrap(), &mut raw), 16, "{name} {what}");
    if let Some(vmemmap) = info.symbol("vmemmap") {
        let (_, paddr) = truth[truth.len() / 2];
        let page = vmemmap + (paddr >> core.machine.page_shift) * info.size("page").unwrap();
        assert_eq!(space.read(core, page, &mut raw), 16, "{name} {what}: struct page of {paddr:#x}");
    }
    agree
}

/// Changes of VMCOREINFO: key and value, empty for a line that is missing.
type Changes = &'static [(&'static str, &'static str)];

const X86_64: &[Changes] = &[
    &[("NUMBER(phys_base)", "")],
    &[("NUMBER(phys_base)", "16777216")],
    &[("NUMBER(phys_base)", "-1")],
    &[("NUMBER(pgtable_l5_enabled)", "")],
    &[("NUMBER(pgtable_l5_enabled)", "1")],
    &[("SYMBOL(swapper_pg_dir)", ""), ("NUMBER(phys_base)", "")],
    &[("SYMBOL(init_top_pgt)", ""), ("NUMBER(phys_base)", "0")],
    &[("NUMBER(sme_mask)", "4096")],
    &[("OFFSET(uts_namespace.name)", "")],
    &[("OFFSET(uts_namespace.name)", "18446744073709551615")],
    &[("OSRELEASE", "")],
];

const ARM64: &[Changes] = &[
    &[("NUMBER(kimage_voffset)", "")],
    &[("NUMBER(kimage_voffset)", "0xffff800000000000")],
    &[("NUMBER(TCR_EL1_T1SZ)", "")],
    &[("NUMBER(TCR_EL1_T1SZ)", "0x19")],
    &[("NUMBER(VA_BITS)", ""), ("NUMBER(TCR_EL1_T1SZ)", "")],
    &[("NUMBER(kimage_voffset)", ""), ("NUMBER(TCR_EL1_T1SZ)", ""), ("NUMBER(VA_BITS)", "39")],
    &[("NUMBER(PHYS_OFFSET)", "")],
    &[("OFFSET(uts_namespace.name)", "")],
    &[("OFFSET(uts_namespace.name)", "18446744073709551615")],
];

/// As it is, and with numbers that are missing or wrong.
fn all_ways(path: &Path) {
    let core = Core::open(path);
    let space = core.find(&core.text).unwrap_or_else(|e| panic!("{}: {e}", core.name));
    assert_eq!(space.notes(), &[] as &[String], "{}", core.name);
    let agree = check(&core, &space, "as it is");
    println!("{}: {}; {agree} addresses agree", core.name, space.describe());
    for changes in if core.machine.arch == "x86_64" { X86_64 } else { ARM64 } {
        let what = format!("{changes:?}");
        let space = core.find(&core.text_with(changes)).unwrap_or_else(|e| panic!("{} {what}: {e}", core.name));
        println!("  {what}: {:?}", space.notes());
        assert_eq!(check(&core, &space, &what), agree, "{what}");
    }
    // A kernel of another name is not this one; nor is one without an address.
    assert!(core.find(&core.text_with(&[("OSRELEASE", "1.2.3")])).is_err());
    assert!(core.find(&core.text_with(&[("SYMBOL(init_uts_ns)", "")])).is_err());
    assert!(core.find("").is_err());
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

#[test]
fn x86_64_kdump() {
    all_ways(&data("kdump-6.1.vmcore.zst"));
}

#[test]
fn arm64_kdump_built_for_52_bits_on_48() {
    all_ways(&data("arm64-4k-kdump.elf.zst"));
}

#[test]
fn arm64_with_16k_pages_and_lpa2() {
    all_ways(&data("arm64-16k-va52.elf.zst"));
}

#[test]
fn further_ones() {
    let Some(folder) = std::env::var_os("CORESIFT_CORPUS") else { return };
    let names = ["kdump-5.10.vmcore", "kdump-6.1.vmcore", "kdump-6.12-hotplug.vmcore", "kdump-7.3.vmcore"];
    for name in names.iter().chain(&["arm64-4k.elf", "arm64-4k-kdump.elf", "arm64-16k-va52.elf"]) {
        all_ways(&Path::new(&folder).join(name));
    }
}
