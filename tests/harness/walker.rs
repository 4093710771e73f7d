//! The kernel of [`crate::vmcores::KDUMP_6_1`] seen through a page walk of the test's own: an oracle for where things are.
//!
//! x86_64 with four levels (Intel SDM volume 3, 4.5); kernel image at __START_KERNEL_map + phys_base.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use coresift_sdk::vmcoreinfo_value;
use serde_json::Value;

use crate::vmcores::KDUMP_6_1;

/// Physical memory and page tables of the vmcore.
pub struct Walker {
    /// the vmcore, or a copy of it
    pub file: File,
    /// (physical address, length, file offset) of each PT_LOAD
    loads: Vec<(u64, u64, u64)>,
    /// file offset and length of VMCOREINFO
    pub info: (u64, u64),
    text: Vec<u8>,
    root: u64,
}

const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

fn hex(value: &Value) -> u64 {
    u64::from_str_radix(value.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
}

impl Walker {
    /// Opens the vmcore or a copy of it, for reading and writing.
    pub fn open(path: &Path) -> Self {
        let file = File::options().read(true).write(true).open(path).unwrap();
        let manifest = KDUMP_6_1.manifest();
        let loads = manifest["loads"].as_array().unwrap();
        let loads = loads.iter().map(|l| (hex(&l["paddr"]), hex(&l["filesz"]), hex(&l["offset"]))).collect();
        let mut head = vec![0u8; 8192];
        file.read_exact_at(&mut head, 0).unwrap();
        let at = head.windows(10).position(|w| w == b"OSRELEASE=").unwrap();
        let info = (at as u64, manifest["vmcoreinfo_size"].as_u64().unwrap());
        let text = head[at..at + info.1 as usize].to_vec();
        let mut walker = Self { file, loads, info, text, root: 0 };
        let phys_base: i64 = vmcoreinfo_value(&walker.text, "NUMBER(phys_base)").unwrap().parse().unwrap();
        walker.root = walker.symbol("swapper_pg_dir").wrapping_sub(0xffff_ffff_8000_0000).wrapping_add(phys_base.cast_unsigned());
        walker
    }

    /// Address of a symbol that VMCOREINFO has.
    pub fn symbol(&self, name: &str) -> u64 {
        u64::from_str_radix(vmcoreinfo_value(&self.text, &format!("SYMBOL({name})")).unwrap(), 16).unwrap()
    }

    /// File offset of a physical address.
    pub fn offset(&self, paddr: u64) -> Option<u64> {
        self.loads.iter().find(|(p, len, _)| (*p..p + len).contains(&paddr)).map(|(p, _, offset)| offset + paddr - p)
    }

    /// The 8 bytes at a physical address; 0 if they are not in the vmcore.
    pub fn word(&self, paddr: u64) -> u64 {
        let mut raw = [0u8; 8];
        self.offset(paddr).map_or(0, |at| {
            self.file.read_exact_at(&mut raw, at).unwrap();
            u64::from_le_bytes(raw)
        })
    }

    /// Physical addresses of the page-table entries on the way to a kernel address.
    pub fn entries(&self, vaddr: u64) -> Vec<u64> {
        let (mut table, mut entries) = (self.root, Vec::new());
        for shift in [39, 30, 21, 12] {
            let at = table + (vaddr >> shift & 511) * 8;
            entries.push(at);
            let entry = self.word(at);
            if entry & 1 == 0 || entry & 0x80 != 0 {
                break;
            }
            table = entry & ADDRESS;
        }
        entries
    }

    /// Physical address of a kernel address.
    pub fn walk(&self, vaddr: u64) -> Option<u64> {
        let entries = self.entries(vaddr);
        let within = (1u64 << [39, 30, 21, 12][entries.len() - 1]) - 1;
        let entry = self.word(*entries.last()?);
        (entry & 1 == 1).then_some(entry & ADDRESS & !within | vaddr & within)
    }

    /// Address of the table of section roots, of the first root, and of the `struct page` of PFN 0 (include/linux/mmzone.h:
    /// SPARSEMEM_VMEMMAP has one base for all sections).
    pub fn mem_map(&self) -> (u64, u64, u64) {
        let roots = self.symbol("mem_section");
        let first = self.word(self.walk(roots).unwrap());
        (roots, first, self.word(self.walk(first).unwrap()) & !0xfff)
    }
}
