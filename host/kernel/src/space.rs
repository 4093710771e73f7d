//! The kernel's address space: how it is found, and reading by kernel address.

use std::ops::Range;

use coresift_sdk::linux::Vmcoreinfo;
use coresift_sdk::{Machine, UtsName};

use crate::arch::{self, Candidate, Question};
use crate::memory::Memory;
use crate::paging::{Fault, Mapping};

/// Bytes of a field of `struct new_utsname` (`__NEW_UTS_LEN` + 1, include/uapi/linux/utsname.h).
const FIELD: usize = 65;
/// Bytes of the struct.
const NAMES: usize = 6 * FIELD;
/// Bytes from `init_uts_ns` in which the names may begin: before 5.11 the offset is not exported, and a reference count of
/// 4 bytes stands in front.
const BEFORE_NAMES: usize = 64;
/// Most places that are tried when the kernel does not say where it is: every 2 MiB of 8 TiB.
const PLACES_MAX: usize = 1 << 22;

/// How a crashed kernel's addresses map to physical ones.
#[derive(Debug, Clone)]
pub struct AddressSpace {
    ways: Candidate,
    utsname: Option<UtsName>,
    notes: Vec<String>,
}

/// How well a candidate explains the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Proof {
    /// the kernel's name cannot be read
    None,
    /// the name is right where the image should be
    Image,
    /// and the page tables lead there, too
    Tables,
}

impl AddressSpace {
    /// Finds how the kernel's addresses map. `ram` is the physical memory that the input has, ascending.
    ///
    /// A candidate is believed if the kernel's name can be read by it: `Linux` and, where VMCOREINFO has it, the release.
    ///
    /// # Errors
    /// One sentence: what is missing, or what contradicts itself.
    pub fn find(machine: &Machine, info: &Vmcoreinfo, memory: &dyn Memory, ram: &[Range<u64>]) -> Result<Self, String> {
        let question = Question { machine, info, ram_start: ram.first().map_or(0, |r| r.start) };
        let ways = arch::ways(&question).ok_or_else(|| {
            let arch = if machine.arch.is_empty() { "an unknown architecture" } else { machine.arch.as_str() };
            format!("kernel addresses of {arch} cannot be translated with what VMCOREINFO says")
        })?;
        let names = names_symbol(info).ok_or("VMCOREINFO has neither SYMBOL(init_uts_ns) nor SYMBOL(system_utsname)")?;
        let witness = Witness { info, names, memory };
        let mut best = witness.best(&ways.told);
        let told = best.as_ref().map_or(Proof::None, |(proof, _)| *proof);
        if let Some(search) = ways.search.as_ref().filter(|_| told < Proof::Tables) {
            // The kernel is not where it says it is, or says nothing: every place it may lie at. A name without page tables
            // does not end the search, it may be what an earlier kernel left behind.
            let into_image = names.wrapping_sub(search.image_start);
            for start in places(ram, search.align).filter(|start| witness.names_at(start.wrapping_add(into_image)).is_some()) {
                let Some((proof, found)) = witness.best(&(search.at)(start)) else { continue };
                if best.as_ref().is_none_or(|(p, _)| proof > *p) {
                    best = Some((proof, found));
                }
                if proof == Proof::Tables {
                    break;
                }
            }
        }
        let Some((proof, found)) = best else {
            return Err(format!(
                "the kernel's name cannot be read at {names:#x}: its page is not in the input, or VMCOREINFO and memory do not fit together"
            ));
        };
        let mut notes = Vec::new();
        let said = info.number(ways.number).and_then(|_| ways.told.first());
        if said.is_some_and(|said| said.image != found.image) {
            notes.push(format!("it is not where VMCOREINFO says; found by its name: {}", found.what));
        } else if said.is_none() && !ways.told.iter().any(|c| c.image == found.image) {
            notes.push(format!("VMCOREINFO does not say where it is; found by its name: {}", found.what));
        }
        let found = if proof < Proof::Tables && found.paging.is_some() {
            notes.push("its page tables do not lead to it; addresses are taken from its map of all RAM".to_owned());
            Candidate { paging: None, ..found }
        } else {
            found
        };
        Ok(Self { utsname: witness.names_of(&found), ways: found, notes })
    }

    /// Where a kernel address leads: by the page tables; by the image and the map of all RAM where there are none.
    ///
    /// # Errors
    /// It leads nowhere.
    pub fn translate(&self, memory: &dyn Memory, vaddr: u64) -> Result<Mapping, Fault> {
        match &self.ways.paging {
            Some(paging) => paging.translate(memory, vaddr),
            None => by_formula(&self.ways, vaddr).ok_or(Fault::Unknown(vaddr)),
        }
    }

    /// Reads at a kernel address; returns how many bytes could be read from the start.
    pub fn read(&self, memory: &dyn Memory, vaddr: u64, buf: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|r| !r.is_empty()) {
            let Ok(mapping) = self.translate(memory, vaddr.wrapping_add(done as u64)) else { break };
            let n = usize::try_from(mapping.len).unwrap_or(usize::MAX).min(rest.len());
            let Some(rest) = rest.get_mut(..n) else { break };
            let got = memory.read(mapping.paddr, rest);
            done += got;
            if got < n || n == 0 {
                break;
            }
        }
        done
    }

    /// The kernel's names, as `uname` prints them.
    pub fn utsname(&self) -> Option<&UtsName> {
        self.utsname.as_ref()
    }

    /// Oddities, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// `phys_base` of x86_64.
    pub fn phys_base(&self) -> Option<u64> {
        self.ways.phys_base
    }

    /// Physical address of the top page table; `None` if none is used.
    pub fn root(&self) -> Option<u64> {
        self.ways.paging.as_ref().map(|paging| paging.root)
    }

    /// In words: architecture, levels, where the image is.
    pub fn describe(&self) -> &str {
        &self.ways.what
    }
}

/// Address of the kernel's names: `init_uts_ns` since 2.6.19.
fn names_symbol(info: &Vmcoreinfo) -> Option<u64> {
    info.symbol("init_uts_ns").or_else(|| info.symbol("system_utsname"))
}

fn by_formula(ways: &Candidate, vaddr: u64) -> Option<Mapping> {
    let found = [Some(ways.image), ways.direct].into_iter().flatten().find_map(|range| range.translate(vaddr));
    found.map(|(paddr, len)| Mapping { paddr, len, executable: false, writable: true })
}

/// Physical addresses at which an image may begin; the first of a range may lie before it, as firmware may keep what is there.
fn places(ram: &[Range<u64>], align: u64) -> impl Iterator<Item = u64> + '_ {
    let step = usize::try_from(align.max(1)).unwrap_or(usize::MAX);
    let aligned = ram.iter().flat_map(move |r| (r.start - r.start % align.max(1)..r.end).step_by(step));
    aligned.take(PLACES_MAX)
}

/// What candidates are judged by.
struct Witness<'a> {
    info: &'a Vmcoreinfo,
    names: u64,
    memory: &'a dyn Memory,
}

impl Witness<'_> {
    fn best(&self, candidates: &[Candidate]) -> Option<(Proof, Candidate)> {
        let mut best: Option<(Proof, &Candidate)> = None;
        for candidate in candidates {
            let proof = self.proof(candidate);
            if proof > best.map_or(Proof::None, |(p, _)| p) {
                best = Some((proof, candidate));
            }
            if proof == Proof::Tables {
                break;
            }
        }
        best.map(|(proof, candidate)| (proof, candidate.clone()))
    }

    fn proof(&self, candidate: &Candidate) -> Proof {
        if self.names_of(candidate).is_none() {
            return Proof::None;
        }
        let image = candidate.image.translate(self.names).map(|(paddr, _)| paddr);
        let tables = candidate.paging.as_ref().and_then(|p| p.translate(self.memory, self.names).ok());
        if tables.map(|m| m.paddr) == image { Proof::Tables } else { Proof::Image }
    }

    /// The names where a candidate has them.
    fn names_of(&self, candidate: &Candidate) -> Option<UtsName> {
        candidate.image.translate(self.names).and_then(|(paddr, _)| self.names_at(paddr))
    }

    /// The names, if they are the kernel's.
    fn names_at(&self, paddr: u64) -> Option<UtsName> {
        let mut raw = [0u8; BEFORE_NAMES + NAMES];
        let n = self.memory.read(paddr, &mut raw);
        let raw = raw.get(..n)?;
        let exported = self.info.offset("uts_namespace.name").and_then(|o| usize::try_from(o).ok());
        let offsets = exported.into_iter().chain(0..BEFORE_NAMES);
        let names = offsets.filter_map(|at| raw.get(at..at.checked_add(NAMES)?)).find(|names| names.starts_with(b"Linux\0"))?;
        let field = |number: usize| {
            let bytes = names.get(number * FIELD..(number + 1) * FIELD).unwrap_or_default();
            let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
        };
        let names = UtsName {
            sysname: field(0),
            nodename: field(1),
            release: field(2),
            version: field(3),
            machine: field(4),
            domainname: field(5),
        };
        self.info.release().is_none_or(|release| release == names.release).then_some(names)
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // memory of one range is what is meant
mod tests {
    use super::*;
    use crate::testing::Tables;

    /// `__START_KERNEL_map` and a symbol of each kind, with offsets into the image.
    const MAP: u64 = 0xffff_ffff_8000_0000;
    const TEXT: u64 = 0x100_0000;
    const NAMES_AT: u64 = 0x160_0000;
    const ROOT_AT: u64 = 0x140_0000;
    const LEAD: u64 = 0x41_0000;

    fn machine(arch: &str) -> Machine {
        Machine { arch: arch.to_owned(), word_bits: 64, page_shift: 12, ..Machine::default() }
    }

    fn text(more: &str) -> Vmcoreinfo {
        let symbol = |name: &str, at: u64| format!("SYMBOL({name})={:x}\n", MAP + at);
        let symbols = symbol("_stext", TEXT) + &symbol("init_uts_ns", NAMES_AT) + &symbol("swapper_pg_dir", ROOT_AT);
        Vmcoreinfo::parse(format!("OSRELEASE=6.1.0\n{symbols}{more}").as_bytes())
    }

    /// A kernel's name, behind a reference count.
    fn name(memory: &mut Tables, paddr: u64) {
        memory.put(paddr + 4, &[0; NAMES]);
        memory.put(paddr + 4, b"Linux\0");
        memory.put(paddr + 4 + 2 * FIELD as u64, b"6.1.0\0");
    }

    /// A kernel whose image lies `phys_base` away from its link address.
    fn kernel(memory: &mut Tables, phys_base: u64) {
        name(memory, NAMES_AT.wrapping_add(phys_base));
        // Tables 3 (PML4) -> 2 -> leaf of 2 MiB, SDM volume 3, 4.5.
        let (root, pdpt, pd) = (ROOT_AT.wrapping_add(phys_base), LEAD.wrapping_add(phys_base), (LEAD + 0x1000).wrapping_add(phys_base));
        memory.put64(root + 511 * 8, pdpt | 3);
        memory.put64(pdpt + 510 * 8, pd | 3);
        (0..16).for_each(|i| memory.put64(pd + i * 8, (i << 21).wrapping_add(phys_base) | 0x83));
    }

    #[test]
    fn a_copy_without_tables_does_not_hide_the_kernel() {
        // The name that an earlier kernel, started by kexec, left behind, below the one that runs.
        let mut memory = Tables::default();
        name(&mut memory, NAMES_AT);
        kernel(&mut memory, 0x4000_0000);
        let found = AddressSpace::find(&machine("x86_64"), &text("NUMBER(phys_base)=4096\n"), &memory, &[0..0x8000_0000]).unwrap();
        assert_eq!((found.phys_base(), found.describe()), (Some(0x4000_0000), "x86_64, 4 levels, phys_base 0x40000000"));
        assert!(found.notes()[0].contains("not where VMCOREINFO says"), "{:?}", found.notes());
        assert_eq!(found.root(), Some(ROOT_AT + 0x4000_0000));
    }

    #[test]
    fn what_is_not_said_is_not_wrong() {
        let mut memory = Tables::default();
        kernel(&mut memory, 0x4000_0000);
        let ram = [0..0x8000_0000];
        let found = AddressSpace::find(&machine("x86_64"), &text(""), &memory, &ram).unwrap();
        assert_eq!(found.phys_base(), Some(0x4000_0000));
        assert!(found.notes()[0].contains("VMCOREINFO does not say"), "{:?}", found.notes());
        // The input's header is the next to be asked, before a search; if it is right where VMCOREINFO is wrong, that is said.
        let told = Machine { phys_base: Some(0x4000_0000), ..machine("x86_64") };
        let found = AddressSpace::find(&told, &text(""), &memory, &[]).unwrap();
        assert_eq!((found.phys_base(), found.notes()), (Some(0x4000_0000), &[] as &[String]));
        let found = AddressSpace::find(&told, &text("NUMBER(phys_base)=4096\n"), &memory, &[]).unwrap();
        assert!(found.notes()[0].contains("not where VMCOREINFO says"), "{:?}", found.notes());
    }

    #[test]
    fn nonsense_is_refused_and_ends() {
        let mut memory = Tables::default();
        kernel(&mut memory, 0);
        let find =
            |text: &Vmcoreinfo, ram: &[Range<u64>]| AddressSpace::find(&machine("x86_64"), text, &memory, ram).map(|s| s.phys_base());
        let huge = text("NUMBER(phys_base)=0\nOFFSET(uts_namespace.name)=18446744073709551615\n");
        assert_eq!(find(&huge, &[]), Ok(Some(0)), "an offset that cannot be is as good as none");
        // Ranges at the end of what an address can be, empty ones and ones that end before they begin.
        let other = Vmcoreinfo::parse(b"OSRELEASE=9\nSYMBOL(init_uts_ns)=ffffffff81600000\nSYMBOL(_stext)=ffffffff81000000\n");
        let ends_early = Range { start: 0x1000_0000, end: 0x1000 };
        assert!(find(&other, &[0..0, ends_early, u64::MAX - 5..u64::MAX]).is_err());
        let started = std::time::Instant::now();
        assert!(find(&other, &[0..u64::MAX]).is_err());
        assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
        assert!(AddressSpace::find(&machine("vax"), &text(""), &memory, &[]).is_err_and(|e| e.contains("vax")));
    }

    #[test]
    fn an_image_may_begin_where_ram_does_not_end_on_a_boundary() {
        // Firmware keeps the first 64 KiB of the 2 MiB in which the kernel lies.
        let mut memory = Tables::default();
        kernel(&mut memory, 0);
        let found = AddressSpace::find(&machine("x86_64"), &text("NUMBER(phys_base)=4096\n"), &memory, &[0x101_0000..0x200_0000]);
        assert_eq!(found.map(|s| s.phys_base()), Ok(Some(0)));
    }

    #[test]
    fn reads_go_across_leaves_and_stop_at_holes() {
        let mut memory = Tables::default();
        kernel(&mut memory, 0);
        memory.put(0x1e0_0000 - 2, &[1, 2, 3, 4]);
        let space = AddressSpace::find(&machine("x86_64"), &text("NUMBER(phys_base)=0\n"), &memory, &[]).unwrap();
        let mut buf = [9; 4];
        assert_eq!((space.read(&memory, MAP + 0x1e0_0000 - 2, &mut buf), buf), (4, [1, 2, 3, 4]));
        assert_eq!(space.read(&memory, MAP + (32 << 20) - 2, &mut buf), 0, "no memory");
        assert_eq!(space.read(&memory, MAP + (32 << 20), &mut buf), 0, "no mapping");
        assert_eq!(space.read(&memory, u64::MAX, &mut buf), 0);
    }

    #[test]
    fn without_tables_the_image_and_the_map_of_all_ram_are_left() {
        let mut memory = Tables::default();
        name(&mut memory, NAMES_AT);
        let space = AddressSpace::find(&machine("x86_64"), &text("NUMBER(phys_base)=0\n"), &memory, &[0..0x400_0000]).unwrap();
        assert!(space.notes()[0].contains("page tables"), "{:?}", space.notes());
        assert_eq!(space.translate(&memory, 0xffff_8880_0123_4567).map(|m| m.paddr), Ok(0x123_4567));
        assert_eq!(space.translate(&memory, 0x1234), Err(Fault::Unknown(0x1234)));
        assert_eq!(space.root(), None);
    }

    #[test]
    fn riscv64_by_the_numbers_that_it_exports() {
        // As Debian's 6.12 under QEMU has them (arch/riscv/kernel/vmcore_info.c).
        let text = "OSRELEASE=6.1.0\nSYMBOL(init_uts_ns)=ffffffff81d69cc8\nNUMBER(VA_BITS)=57\nNUMBER(PAGE_OFFSET)=0xff60000000000000\n\
                    NUMBER(phys_ram_base)=2147483648\nNUMBER(va_kernel_pa_offset)=0xfffffffeffe00000\n";
        let mut memory = Tables::default();
        name(&mut memory, 0x81f6_9cc8);
        let space = AddressSpace::find(&machine("riscv64"), &Vmcoreinfo::parse(text.as_bytes()), &memory, &[]).unwrap();
        assert_eq!(space.translate(&memory, 0xff60_0000_0dc0_0000).map(|m| m.paddr), Ok(0x8dc0_0000));
        assert_eq!(space.translate(&memory, 0xffff_ffff_8000_2000).map(|m| m.paddr), Ok(0x8020_2000));
        assert!(space.translate(&memory, 0xff1b_ffff_fe00_0000).is_err(), "vmemmap is not in these maps");
    }

    #[test]
    fn arm64_before_4_6_lies_in_its_map_of_all_ram() {
        // 3.18 with 39 bits: PAGE_OFFSET is -1 << 38, no number says so (arch/arm64/include/asm/memory.h of that time).
        let text = "OSRELEASE=3.18.0\nSYMBOL(_stext)=ffffffc000081000\nSYMBOL(init_uts_ns)=ffffffc000a00000\n\
                    SYMBOL(swapper_pg_dir)=ffffffc00007d000\n";
        let mut memory = Tables::default();
        name(&mut memory, 0x8000_0000 + 0xa0_0000);
        memory.put(0x80a0_0000 + 4 + 2 * FIELD as u64, b"3.18.0\0");
        let space =
            AddressSpace::find(&machine("aarch64"), &Vmcoreinfo::parse(text.as_bytes()), &memory, &[0x8000_0000..0xc000_0000]).unwrap();
        assert_eq!(space.translate(&memory, 0xffff_ffc0_0012_3456).map(|m| m.paddr), Ok(0x8012_3456));
        assert_eq!(space.translate(&memory, 0xffff_ffc0_3012_3456).map(|m| m.paddr), Ok(0xb012_3456), "map of all RAM, far from the image");
    }
}
