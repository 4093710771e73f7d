//! p_vaddr is what page tables prove, and nothing else.

// clippy.toml allows these in test functions only, not in their helpers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, dead_code)]

mod common;

use std::sync::Arc;

use common::{Pages, Parsed, Recorder, WHOLE, machine, note, page, plan};
use coresift_sdk::abi::{HostServices, KernelView};
use coresift_sdk::{Host, Machine, Mapping, PackedBatch, PackedPage, testkit};

/// A direct map under KASLR, and `_stext` of x86_64 with its physical address.
const DIRECT: u64 = 0xffff_8a89_c000_0000;
const STEXT: u64 = 0xffff_ffff_a820_0000;
const STEXT_PADDR: u64 = 0x0040_0000;

/// A kernel with page tables that are a list: kernel address, bytes, physical address.
struct Kernel {
    maps: Vec<(u64, u64, u64)>,
    /// value of `mem_section`, at address 0x1000
    mem_section: [u8; 8],
    symbols: Vec<&'static str>,
}

impl Kernel {
    fn new() -> Self {
        let maps = vec![
            (DIRECT, 0x400_0000, 0),
            // Text, a hole of 1 MiB where the start's code was, data.
            (STEXT, 0x20_0000, STEXT_PADDR),
            (STEXT + 0x30_0000, 0x5000, STEXT_PADDR + 0x30_0000),
            // A module: not a part of the image.
            (STEXT + 0x40_0000, 0x1000, 0x7000),
        ];
        Self { maps, mem_section: (DIRECT + 0x3fd_3000).to_le_bytes(), symbols: vec!["mem_section", "_stext"] }
    }
}

impl HostServices for Kernel {
    fn log(&self, _: u32, _: &str) {}
    fn cancelled(&self) -> bool {
        false
    }
    fn kernel(&self) -> Option<&dyn KernelView> {
        Some(self)
    }
}

impl KernelView for Kernel {
    fn symbol(&self, _: &str) -> Option<u64> {
        None
    }
    fn translate(&self, vaddr: u64) -> Option<Mapping> {
        let (start, len, paddr) = self.maps.iter().find(|(start, len, _)| (*start..start + len).contains(&vaddr))?;
        Some(Mapping { paddr: paddr + (vaddr - start), len: start + len - vaddr, ..Mapping::default() })
    }
    fn read(&self, vaddr: u64, buf: &mut [u8]) -> usize {
        if vaddr != 0x1000 || buf.len() != 8 {
            return 0;
        }
        buf.copy_from_slice(&self.mem_section);
        8
    }
    fn struct_page(&self, _: u64) -> Option<u64> {
        None
    }
    fn pfn(&self, _: u64) -> Option<u64> {
        None
    }
}

/// 64 MiB, of which the second is not dumped.
fn pages() -> Pages {
    Pages { ram: (0..0x4000).collect(), ..Pages::all((0..0x100).chain(0x200..0x4000)) }
}

/// Writes all pages; returns `PT_LOAD`s: p_offset, p_vaddr, p_paddr, p_memsz.
fn loads(kernel: Kernel, machine: Machine) -> Vec<(u64, u64, u64, u64)> {
    let text: String = kernel.symbols.iter().map(|s| format!("SYMBOL({s})={:x}\n", if *s == "_stext" { STEXT } else { 0x1000 })).collect();
    let machine = Machine { max_pfn: 0x4000, notes: note("VMCOREINFO", 0, text.as_bytes(), false), vmcoreinfo: text.into(), ..machine };
    let mut setup = testkit::setup(&writer_elf::manifest(), &[]).unwrap();
    setup.host = Host::new(Arc::new(kernel));
    let mut writer = writer_elf::open(setup).unwrap();
    let (pages, mut sink) = (pages(), Recorder::default());
    writer.begin(&plan(&machine, &pages), &mut sink).unwrap();
    for &pfn in &pages.dumped {
        writer.write(&PackedBatch::new(&[pfn], &[PackedPage::stored(&page(pfn, 4096), 0)]), &mut sink).unwrap();
    }
    writer.finish(&WHOLE, &mut sink).unwrap();
    let file = sink.file();
    let elf = Parsed::of(&file).unwrap();
    for ph in elf.loads() {
        for i in 0..ph.p_filesz / 4096 {
            assert_eq!(file[(ph.p_offset + i * 4096) as usize..][..4096], page(ph.p_paddr / 4096 + i, 4096));
        }
    }
    elf.loads().map(|ph| (ph.p_offset, ph.p_vaddr, ph.p_paddr, ph.p_memsz)).collect()
}

fn x86_64() -> Machine {
    machine("x86_64", 62, 64, false)
}

/// The two runs of pages with addresses from `base` on.
fn data(base: u64) -> [(u64, u64, u64, u64); 2] {
    [(0x1000, base, 0, 0x10_0000), (0x10_1000, base + 0x20_0000, 0x20_0000, 0x3e0_0000)]
}

/// The same with the image's pieces taken out of the second run.
fn with_image(base: u64) -> [(u64, u64, u64, u64); 6] {
    let at = |vaddr: u64, paddr: u64, len| (paddr - 0xf_f000, vaddr, paddr, len);
    [
        data(base)[0],
        at(base + 0x20_0000, 0x20_0000, 0x20_0000),
        at(STEXT, STEXT_PADDR, 0x20_0000),
        at(base + 0x60_0000, 0x60_0000, 0x10_0000),
        at(STEXT + 0x30_0000, 0x70_0000, 0x5000),
        at(base + 0x70_5000, 0x70_5000, 0x400_0000 - 0x70_5000),
    ]
}

#[test]
fn the_direct_map_and_the_image_have_their_addresses() {
    assert_eq!(loads(Kernel::new(), x86_64()), with_image(DIRECT));
}

#[test]
fn an_image_within_the_direct_map_is_not_cut_out() {
    let mut kernel = Kernel::new();
    kernel.maps = vec![(STEXT - STEXT_PADDR, 0x400_0000, 0)];
    kernel.mem_section = (STEXT + 0x8000).to_le_bytes();
    assert_eq!(loads(kernel, x86_64()), data(STEXT - STEXT_PADDR));
}

#[test]
fn an_offset_that_page_tables_contradict_is_not_used() {
    let unproved = |change: &dyn Fn(&mut Kernel)| {
        let mut kernel = Kernel::new();
        change(&mut kernel);
        assert_eq!(loads(kernel, x86_64()), with_image(0));
    };
    unproved(&|k| k.symbols = vec!["_stext"]);
    unproved(&|k| k.mem_section = [0; 8]);
    // Not a pointer into the direct map.
    unproved(&|k| k.mem_section = (STEXT + 8).to_le_bytes());
    // The second half of memory is elsewhere.
    unproved(&|k| {
        k.maps[0].1 = 0x200_0000;
        k.mem_section = (DIRECT + 0x3000).to_le_bytes();
        k.maps.push((DIRECT + 0x200_0000, 0x200_0000, 0x300_0000));
    });
    // Nearly nothing of it is mapped.
    unproved(&|k| {
        k.maps[0].1 = 0x10_0000;
        k.mem_section = (DIRECT + 0x3000).to_le_bytes();
    });
}

#[test]
fn a_few_pages_without_an_address_do_no_harm() {
    let mut kernel = Kernel::new();
    kernel.maps[0].1 = 0x300_0000;
    kernel.mem_section = (DIRECT + 0x3000).to_le_bytes();
    assert_eq!(loads(kernel, x86_64()), with_image(DIRECT));
}

#[test]
fn an_unknown_or_narrow_kernel_leaves_physical_addresses() {
    let mut kernel = Kernel::new();
    kernel.symbols.clear();
    assert_eq!(loads(kernel, x86_64()), data(0));
    assert_eq!(loads(Kernel::new(), machine("i686", 3, 32, false)), data(0));
}

#[test]
fn wild_page_tables_come_to_an_end() {
    let mut kernel = Kernel::new();
    // An image of all addresses, at the end of them, in entries of impossible lengths.
    kernel.maps = vec![(STEXT, u64::MAX - STEXT, 0x1000)];
    kernel.mem_section = u64::MAX.to_le_bytes();
    let loads = loads(kernel, x86_64());
    assert_eq!(loads.iter().map(|load| load.3).sum::<u64>(), 0x3f0_0000);
}
