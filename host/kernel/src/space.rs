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
        let mut notes = Vec::new();
        let mut best = witness.best(&ways.told);
        if best.is_none_or(|(proof, _)| proof < Proof::Tables && ways.at.is_some()) {
            // The kernel is not where it says it is, or says nothing: every place it may lie at.
            let found = ways.at.as_ref().and_then(|at| {
                let places = places(ram, ways.align);
                let told = best.map_or(Proof::None, |(proof, _)| proof);
                places
                    .filter_map(|start| {
                        let candidates = at(start);
                        // One candidate tells whether the name is there; most places are settled by that.
                        candidates.first().filter(|c| witness.names_at(c).is_some())?;
                        let (proof, found) = witness.best(&candidates)?;
                        (proof > told).then(|| found.clone())
                    })
                    .next()
            });
            if let Some(found) = found {
                notes.push(format!("it is not where VMCOREINFO says; found by its name: {}", found.what));
                let utsname = witness.names_at(&found);
                return Ok(Self { ways: found, utsname, notes });
            }
        }
        let Some((proof, ways)) = best.take() else {
            return Err(format!("the kernel's name cannot be read at {names:#x}: VMCOREINFO and memory do not fit together"));
        };
        if proof < Proof::Tables && ways.paging.is_some() {
            notes.push("its page tables do not lead to it; addresses are taken from its map of all RAM".to_owned());
        }
        let utsname = witness.names_at(ways);
        let ways = if proof < Proof::Tables { Candidate { paging: None, ..ways.clone() } } else { ways.clone() };
        Ok(Self { ways, utsname, notes })
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

/// Physical addresses at which an image may begin.
fn places(ram: &[Range<u64>], align: u64) -> impl Iterator<Item = u64> + '_ {
    let aligned = ram.iter().flat_map(move |r| (r.start.next_multiple_of(align)..r.end).step_by(align as usize));
    aligned.take(PLACES_MAX)
}

/// What candidates are judged by.
struct Witness<'a> {
    info: &'a Vmcoreinfo,
    names: u64,
    memory: &'a dyn Memory,
}

impl Witness<'_> {
    fn best<'c>(&self, candidates: &'c [Candidate]) -> Option<(Proof, &'c Candidate)> {
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
        best
    }

    fn proof(&self, candidate: &Candidate) -> Proof {
        if self.names_at(candidate).is_none() {
            return Proof::None;
        }
        let image = candidate.image.translate(self.names).map(|(paddr, _)| paddr);
        let tables = candidate.paging.as_ref().and_then(|p| p.translate(self.memory, self.names).ok());
        if tables.map(|m| m.paddr) == image { Proof::Tables } else { Proof::Image }
    }

    /// The names, if they are the kernel's.
    fn names_at(&self, candidate: &Candidate) -> Option<UtsName> {
        let (paddr, _) = candidate.image.translate(self.names)?;
        let mut raw = [0u8; BEFORE_NAMES + NAMES];
        let n = self.memory.read(paddr, &mut raw);
        let raw = raw.get(..n)?;
        let exported = self.info.offset("uts_namespace.name").and_then(|o| usize::try_from(o).ok());
        let offsets = exported.into_iter().chain(0..BEFORE_NAMES);
        let names = offsets.filter_map(|at| raw.get(at..at + NAMES)).find(|names| names.starts_with(b"Linux\0"))?;
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
