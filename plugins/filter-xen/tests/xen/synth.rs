//! A machine of 8 MiB with a hypervisor, made from Xen's headers: image, page tables, direct map, frame table, domains.

use std::collections::BTreeMap;
use std::sync::Arc;

use coresift_sdk::{Block, Filter, Finding, Machine, Result, Setup, Value, Verdict, testkit};

pub const PAGE: u64 = 4096;
/// Frames of the machine.
pub const FRAMES: u64 = 0x800;
/// Physical address of Xen's image, and its virtual one.
pub const IMAGE: u64 = 0x20_0000;
const IMAGE_VIRT: u64 = 0xffff_82d0_4000_0000;
/// Frames of `pgd_l4` (in the image), the first struct domain, the frame table.
pub const TOP: u64 = 0x201;
pub const DOMAINS: u64 = 0x300;
pub const TABLE: u64 = 0x400;
pub const TABLE_VIRT: u64 = 0xffff_82e0_0000_0000;
pub const DIRECT: u64 = 0xffff_8300_0000_0000;
/// Bytes of page_info, and its members (Xen 4.17's VMCOREINFO_XEN).
const SIZE: u64 = 32;
const COUNT: u64 = 8;
const OWNER: u64 = 24;
/// `count_info`: `PGC_allocated`, `PGC_xen_heap`.
pub const ALLOCATED: u64 = 1 << 63;
pub const HEAP: u64 = 1 << 62;

/// Domain numbers of the struct domains from [`DOMAINS`] on: domain 0, a guest, dom_xen, dom_io, dom_cow.
const IDS: [u16; 5] = [0, 1, 0x7ff2, 0x7ff1, 0x7ff3];

pub struct Synth {
    pub pages: BTreeMap<u64, Vec<u8>>,
    /// next frame for a page table
    pub next: u64,
    pub version: (u64, u64),
    pub symbols: Vec<(&'static str, u64)>,
    pub numbers: Vec<(&'static str, u64)>,
    /// words of the crash note behind the first eight
    pub tail: Vec<u64>,
    pub cr3: u64,
    pub hypervisor: bool,
    pub arch: &'static str,
    pub settings: Vec<(&'static str, Value)>,
}

impl Synth {
    /// Xen 4 of this version; every frame is Xen's own (`count_info` 0) but for the domains' heap pages.
    pub fn new(version: (u64, u64)) -> Self {
        let mut s = Self::bare(version);
        s.map_all();
        s
    }

    /// Without the direct map.
    pub fn bare(version: (u64, u64)) -> Self {
        let at = |offset: u64| IMAGE_VIRT + offset;
        let mut s = Self {
            pages: (0..FRAMES).map(|pfn| (pfn, vec![0; PAGE as usize])).collect(),
            next: 0x210,
            version,
            symbols: vec![
                ("domain_list", at(0x10)),
                ("frame_table", at(0x20)),
                ("dom_xen", at(0x30)),
                ("dom_io", at(0x40)),
                ("pgd_l4", at(0x1000)),
            ],
            numbers: vec![
                ("SIZE(page_info)", SIZE),
                ("OFFSET(page_info.count_info)", COUNT),
                ("OFFSET(page_info._domain)", OWNER),
                ("OFFSET(domain.domain_id)", 0),
                ("OFFSET(domain.next_in_list)", 136),
            ],
            tail: vec![IMAGE, 0x2ff],
            cr3: 0,
            hypervisor: true,
            arch: "x86_64",
            settings: Vec::new(),
        };
        s.map(IMAGE_VIRT, IMAGE, 1);
        (0..FRAMES * SIZE / PAGE).for_each(|i| s.map(TABLE_VIRT + i * PAGE, (TABLE + i) * PAGE, 0));
        for (i, id) in (0..).zip(IDS) {
            s.put(DOMAINS + i, 0, &id.to_le_bytes());
            // Rubbish behind the two bytes of the number: domid_t has no more.
            s.put(DOMAINS + i, 2, &[0xee; 2]);
            s.info(DOMAINS + i, HEAP, 0);
        }
        for (offset, value) in [(0x10, DIRECT + DOMAINS * PAGE), (0x20, TABLE_VIRT), (0x30, DIRECT + (DOMAINS + 2) * PAGE)] {
            s.put(IMAGE / PAGE, offset, &u64::to_le_bytes(value));
        }
        s
    }

    /// The direct map: frame = index.
    pub fn map_all(&mut self) {
        (0..4).for_each(|i| self.map(DIRECT + (i << 21), i << 21, 1));
    }

    pub fn put(&mut self, pfn: u64, at: u64, bytes: &[u8]) {
        self.pages.get_mut(&pfn).unwrap()[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    pub fn info(&mut self, index: u64, count_info: u64, owner: u32) {
        let at = index * SIZE;
        let (pfn, at) = (TABLE + at / PAGE, at % PAGE);
        self.put(pfn, at + COUNT, &count_info.to_le_bytes());
        self.put(pfn, at + OWNER, &owner.to_le_bytes());
    }

    pub fn infos(&mut self, indexes: std::ops::Range<u64>, count_info: u64, owner: u32) {
        indexes.for_each(|i| self.info(i, count_info, owner));
    }

    /// Maps a page (level 0) or 2 MiB (level 1).
    pub fn map(&mut self, vaddr: u64, paddr: u64, level: u32) {
        let mut table = TOP;
        for l in (level..4).rev() {
            let at = (vaddr >> (12 + 9 * l) & 511) * 8;
            let old = u64::from_le_bytes(self.pages[&table][at as usize..at as usize + 8].try_into().unwrap());
            if l == level {
                let large = if level > 0 { 0x80 } else { 0 };
                // No-execute and accessed, dirty, writable, present, as Xen has them.
                self.put(table, at, &(paddr | 1 << 63 | 0x63 | large).to_le_bytes());
            } else if old & 1 != 0 {
                table = (old & 0xf_ffff_ffff_f000) / PAGE;
            } else {
                self.put(table, at, &((self.next * PAGE) | 0x63).to_le_bytes());
                table = self.next;
                self.next += 1;
            }
        }
    }

    pub fn without(mut self, name: &str) -> Self {
        self.symbols.retain(|(n, _)| *n != name);
        self.numbers.retain(|(n, _)| *n != name);
        self
    }

    pub fn notes(&self) -> Vec<u8> {
        let mut text = "PAGESIZE=4096\n".to_owned();
        self.symbols.iter().for_each(|(name, at)| text += &format!("SYMBOL({name})={at:x}\n"));
        self.numbers.iter().for_each(|(key, value)| text += &format!("{key}={value}\n"));
        let info: Vec<u64> = [self.version.0, self.version.1, 0, 0, 0, 0, 0, 0].into_iter().chain(self.tail.clone()).collect();
        let words = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let mut notes = note("CORE", 1, &[7; 336]);
        notes.extend(note("Xen", 0x100_0002, &words(&[0x8005_0033, 0, self.cr3, 0x660])));
        notes.extend(note("Xen", 0x100_0001, &words(&info)));
        notes.extend(note("VMCOREINFO_XEN", 0, text.as_bytes()));
        notes
    }

    pub fn machine(&self) -> Machine {
        Machine {
            arch: self.arch.into(),
            word_bits: 64,
            page_shift: 12,
            max_pfn: self.pages.keys().last().map_or(0, |pfn| pfn + 1),
            notes: self.notes(),
            hypervisor: self.hypervisor,
            ..Machine::default()
        }
    }

    pub fn open(self) -> Box<dyn Filter> {
        let machine = self.machine();
        self.open_as(machine)
    }

    pub fn open_as(self, machine: Machine) -> Box<dyn Filter> {
        let mut pieces: Vec<(u64, Vec<u8>)> = Vec::new();
        for (pfn, bytes) in self.pages {
            match pieces.last_mut() {
                Some((start, all)) if *start + all.len() as u64 == pfn * PAGE => all.extend(bytes),
                _ => pieces.push((pfn * PAGE, bytes)),
            }
        }
        let setup = testkit::setup(&filter_xen::manifest(), &self.settings).unwrap();
        let setup = Setup { machine: Some(Arc::new(machine)), host: testkit::host_with_memory(pieces), ..setup };
        filter_xen::open(setup).unwrap()
    }
}

pub fn note(name: &str, n_type: u32, desc: &[u8]) -> Vec<u8> {
    let pad = |bytes: &mut Vec<u8>| bytes.resize(bytes.len().next_multiple_of(4), 0);
    let mut note: Vec<u8> = [name.len() as u32 + 1, desc.len() as u32, n_type].iter().flat_map(|n| n.to_le_bytes()).collect();
    note.extend(name.as_bytes());
    note.push(0);
    pad(&mut note);
    note.extend(desc);
    pad(&mut note);
    note
}

/// Verdicts on frames from `pfn` on.
pub fn judge(filter: &dyn Filter, pfn: u64, pages: u32) -> Vec<Verdict> {
    testkit::classify(filter, &Block::new(pfn, pages, 12)).unwrap()
}

pub fn try_judge(filter: &dyn Filter, pfn: u64, pages: u32) -> Result<Vec<Verdict>> {
    testkit::classify(filter, &Block::new(pfn, pages, 12))
}

/// The one finding that says this.
pub fn finding(filter: &dyn Filter, what: &str) -> Finding {
    let found = filter.findings();
    found.iter().find(|f| f.text.contains(what)).unwrap_or_else(|| panic!("nothing says {what:?}: {found:?}")).clone()
}
