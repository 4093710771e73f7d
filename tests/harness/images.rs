//! Images as firmware and hypervisors write them, around real memory: the pages of [`crate::vmcores::KDUMP_6_1`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::vmcores::KDUMP_6_1;

const PAGE: usize = 4096;

/// Pages of the vmcore by PFN, up to `most` of them. The kernel's image is in it twice, with the same bytes.
pub fn pages(most: usize) -> BTreeMap<u64, Vec<u8>> {
    let file = File::open(KDUMP_6_1.path()).unwrap();
    let manifest = KDUMP_6_1.manifest();
    let hex = |value: &serde_json::Value| u64::from_str_radix(value.as_str().unwrap().trim_start_matches("0x"), 16).unwrap();
    let mut pages = BTreeMap::new();
    for load in manifest["loads"].as_array().unwrap() {
        let (paddr, size, offset) = (hex(&load["paddr"]), hex(&load["filesz"]), hex(&load["offset"]));
        for at in (0..size).step_by(PAGE) {
            if pages.len() < most {
                let mut page = vec![0; PAGE];
                file.read_exact_at(&mut page, offset + at).unwrap();
                pages.insert((paddr + at) / PAGE as u64, page);
            }
        }
    }
    pages
}

/// Pads to a block.
fn block(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(PAGE), 0);
    bytes
}

/// Writes sadump images, header version 1, of one disk (a single partition) or more (a disk set); the firmware leaves zero
/// pages out. Layout: `sadump.h` of crash and `sadump_mod.h` of makedumpfile.
pub fn sadump(pages: &BTreeMap<u64, Vec<u8>>, disks: &[&Path]) {
    let max_pfn = pages.keys().next_back().unwrap() + 1;
    let bitmap = |set: &dyn Fn(&[u8]) -> bool| {
        let mut bits = vec![0u8; (max_pfn as usize).div_ceil(8)];
        pages.iter().filter(|(_, page)| set(page)).for_each(|(pfn, _)| bits[(pfn / 8) as usize] |= 0x80 >> (pfn % 8));
        block(bits)
    };
    let (ram, there) = (bitmap(&|_| true), bitmap(&|page| page.iter().any(|b| *b != 0)));
    let time = [0xea, 0x07, 11, 30, 20, 30, 15, 0, 0, 0, 0, 0, 0xff, 0x07, 0, 0];
    let blocks = (ram.len() / PAGE) as u32;

    let mut header = b"sadump\0\0\x01\0\0\0\0\0\0\0".to_vec();
    header.extend(time);
    // Status, compressed, block size, extra header, sub header, bitmaps; numbers of 32 bits that version 1 ignores; CPUs.
    for number in [0, 0, PAGE as u32, 0, 1, blocks, blocks, 0, 0, 0, 0, 0, 1, 0] {
        header.extend(number.to_le_bytes());
    }
    [max_pfn, 1, 1, 1].iter().for_each(|number: &u64| header.extend(number.to_le_bytes()));
    // One CPU: the length of its saved state, its APIC ID, the state.
    let cpus = [&1024u32.to_le_bytes()[..], &[0; 16], &[0; 1024]].concat();
    let head = [block(header), block(cpus), ram, there].concat();

    let stored: Vec<&Vec<u8>> = pages.values().filter(|page| page.iter().any(|b| *b != 0)).collect();
    let share = stored.len().div_ceil(disks.len());
    for (i, (disk, stored)) in disks.iter().zip(stored.chunks(share)).enumerate() {
        let many = disks.len() > 1;
        let mut front = Vec::new();
        if many && i == 0 {
            // The set: blocks of this header, disks, a number, then ID and reserved bytes of each other volume.
            let mut set = [1u32.to_le_bytes(), (disks.len() as u32).to_le_bytes()].concat();
            set.extend([0; 8]);
            (1..disks.len()).for_each(|volume| set.extend([[0x11 + volume as u8; 16], [0; 16]].concat()));
            front.extend(block(set));
        }
        if i == 0 {
            front.extend_from_slice(&head);
        }
        let used = (PAGE + front.len() + stored.len() * PAGE) as u64;
        let mut part = b"sadump\0\0".to_vec();
        [1u32, 60, 0, 0].iter().for_each(|number| part.extend(number.to_le_bytes()));
        part.extend([0; 64]);
        part.extend([[0xaa; 16], [0xbb; 16], [0x11 + i as u8; 16], time].concat());
        part.extend((if many { i as u32 + 1 } else { 0 }).to_le_bytes());
        part.extend([0; 4]);
        part.extend(used.to_le_bytes());
        let mut magic = 0x1234_5678_u32;
        while part.len() < PAGE {
            part.extend(magic.to_le_bytes());
            magic = magic.wrapping_add(7).wrapping_mul(11);
        }
        let mut file = BufWriter::new(File::create(disk).unwrap());
        file.write_all(&part).unwrap();
        file.write_all(&front).unwrap();
        stored.iter().for_each(|page| file.write_all(page).unwrap());
        file.flush().unwrap();
    }
}

/// Writes a suspended VMware guest: its checkpoint, and the memory file without the hole between these two runs of PFNs.
/// Layout: `vmware_vmss.h` of crash; crash 9.0.2 opens these two files, with `--kaslr` and `-m phys_base=`, since no
/// registers are in them, and Debian's 8.0.2 stops at those.
pub fn vmware(pages: &BTreeMap<u64, Vec<u8>>, hole: (u64, u64), vmss: &Path, vmem: &Path) {
    let end = pages.keys().next_back().unwrap() + 1;
    let regions = [(0, 0, hole.0), (hole.1, hole.0, end - hole.1)];
    // A tag: length of the name, number of indices, length of the value.
    let tag = |name: &str, indices: &[u32], value: u32| {
        let head = ((name.len() as u16) << 8 | (indices.len() as u16) << 6 | 4).to_le_bytes();
        let indices: Vec<u8> = indices.iter().flat_map(|i| i.to_le_bytes()).collect();
        [&head, name.as_bytes(), &indices, &value.to_le_bytes()].concat()
    };
    let mut map = tag("align_mask", &[], 0xffff);
    map.extend(tag("regionsCount", &[], regions.len() as u32));
    for (i, (first_pfn, file_page, pages)) in (0u32..).zip(regions) {
        map.extend(tag("regionPageNum", &[i], file_page as u32));
        map.extend(tag("regionPPN", &[i], first_pfn as u32));
        map.extend(tag("regionSize", &[i], pages as u32));
    }
    map.extend([0, 0]);
    let groups = [("Checkpoint", &[0u8, 0][..]), ("memory", &map)];
    let mut at = 12 + 80 * groups.len() as u64;
    let mut file = [0xbed2_bed2_u32, 8, groups.len() as u32].map(u32::to_le_bytes).concat();
    for (name, content) in groups {
        let mut text = name.as_bytes().to_vec();
        text.resize(64, 0);
        file.extend(text);
        file.extend([at.to_le_bytes(), (content.len() as u64).to_le_bytes()].concat());
        at += content.len() as u64;
    }
    groups.iter().for_each(|(_, content)| file.extend_from_slice(content));
    // Real ones have the devices' state, too; crash wants so many bytes behind the table.
    file.resize(1 << 20, 0);
    std::fs::write(vmss, file).unwrap();
    let mut memory = BufWriter::new(File::create(vmem).unwrap());
    let none = vec![0; PAGE];
    for (first_pfn, _, count) in regions {
        (first_pfn..first_pfn + count).for_each(|pfn| memory.write_all(pages.get(&pfn).unwrap_or(&none)).unwrap());
    }
    memory.flush().unwrap();
}

/// Writes what `xl dump-core` leaves of an HVM domain without vCPUs: ELF sections, no program headers, pages in the order
/// of `.xen_pfn`, which is backwards here. Layout: docs/misc/dump-core-format.txt of Xen.
pub fn xen_core(pages: &BTreeMap<u64, Vec<u8>>, path: &Path) {
    let longs = |values: &[u64]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let note = |kind: u32, desc: &[u8]| {
        let head = [4, desc.len() as u32, kind].map(u32::to_le_bytes).concat();
        [&head, b"Xen\0".as_slice(), desc].concat()
    };
    // Version: 4.17, 1248 bytes of texts, start of the hypervisor's addresses, page size.
    let version = [longs(&[4, 17]), vec![0; 16 + 144 + 1024 + 64], longs(&[0xffff_8000_0000_0000, PAGE as u64])].concat();
    let notes = [
        note(0x200_0000, &[]),
        note(0x200_0001, &longs(&[0xf00f_ebee, 0, pages.len() as u64, PAGE as u64])),
        note(0x200_0002, &version),
        note(0x200_0003, &longs(&[1])),
    ]
    .concat();
    let names = b"\0.shstrtab\0.note.Xen\0.xen_pages\0.xen_pfn\0";
    let name = |text: &[u8]| names.windows(text.len()).position(|w| w == text).unwrap() as u32;
    let headers_end = 64 + 5 * 64;
    let notes_at = headers_end as u64;
    let names_at = notes_at + notes.len() as u64;
    let pages_at = (names_at + names.len() as u64).next_multiple_of(PAGE as u64);
    let index_at = pages_at + (pages.len() * PAGE) as u64;

    let mut head = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x04\0\x3e\0\x01\0\0\0".to_vec();
    head.extend(longs(&[0, 0, 64]));
    head.extend(0u32.to_le_bytes());
    [64u16, 56, 0, 64, 5, 1].iter().for_each(|v| head.extend(v.to_le_bytes()));
    let mut section = |name: u32, kind: u32, offset: u64, size: usize, entry: u64| {
        head.extend([name, kind].map(u32::to_le_bytes).concat());
        head.extend(longs(&[0, 0, offset, size as u64, 0, 1, entry]));
    };
    section(0, 0, 0, 0, 0);
    section(name(b".shstrtab"), 3, names_at, names.len(), 0);
    section(name(b".note.Xen"), 7, notes_at, notes.len(), 0);
    section(name(b".xen_pages"), 1, pages_at, pages.len() * PAGE, PAGE as u64);
    section(name(b".xen_pfn"), 1, index_at, pages.len() * 8, 8);
    assert_eq!(head.len(), headers_end);
    let mut file = BufWriter::new(File::create(path).unwrap());
    file.write_all(&head).unwrap();
    file.write_all(&notes).unwrap();
    file.write_all(names).unwrap();
    file.write_all(&vec![0; (pages_at - names_at) as usize - names.len()]).unwrap();
    pages.values().rev().for_each(|page| file.write_all(page).unwrap());
    pages.keys().rev().for_each(|pfn| file.write_all(&pfn.to_le_bytes()).unwrap());
    file.flush().unwrap();
}
