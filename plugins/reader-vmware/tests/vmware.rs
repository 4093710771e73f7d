//! Checkpoints built tag by tag, whole and broken.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // a test that cannot go on fails

use coresift_sdk::{Extent, ExtentKind, Reader, Result, testkit};

const PAGE: u64 = 4096;

/// A value of four bytes, with its name and indices.
fn tag(name: &str, indices: &[u32], value: u32) -> Vec<u8> {
    let head = ((name.len() as u16) << 8 | (indices.len() as u16) << 6 | 4).to_le_bytes();
    let indices: Vec<u8> = indices.iter().flat_map(|i| i.to_le_bytes()).collect();
    [&head, name.as_bytes(), &indices, &value.to_le_bytes()].concat()
}

/// A block, whose lengths have 4 bytes in old checkpoints; 3 bytes of padding before the data.
fn block(name: &str, data: &[u8], old: bool, compressed: bool) -> Vec<u8> {
    let head = ((name.len() as u16) << 8 | if compressed { 62 } else { 63 }).to_le_bytes();
    let len = if old { (data.len() as u32).to_le_bytes().to_vec() } else { (data.len() as u64).to_le_bytes().to_vec() };
    [&head, name.as_bytes(), &len, &len, &3u16.to_le_bytes(), &[0xee; 3], data].concat()
}

fn checkpoint(magic: u32, memory: &[u8]) -> Vec<u8> {
    let mut file = [magic, 8, 2].map(u32::to_le_bytes).concat();
    for (name, at, len) in [("cpu", 172u64, 2u64), ("memory", 174, memory.len() as u64)] {
        let mut text = name.as_bytes().to_vec();
        text.resize(64, 0);
        file.extend(text);
        file.extend([at.to_le_bytes(), len.to_le_bytes()].concat());
    }
    [&file, &[0, 0][..], memory].concat()
}

/// (PFN, page of the file, pages) of each region.
fn map(regions: &[(u32, u32, u32)]) -> Vec<u8> {
    let mut bytes = tag("regionsCount", &[], regions.len() as u32);
    for (i, (pfn, page, pages)) in (0..).zip(regions) {
        bytes.extend([tag("regionPPN", &[i], *pfn), tag("regionPageNum", &[i], *page), tag("regionSize", &[i], *pages)].concat());
    }
    bytes.extend([0, 0]);
    bytes
}

fn open(files: &[Vec<u8>]) -> Result<Box<dyn Reader>> {
    reader_vmware::open(testkit::reader_setup(&reader_vmware::manifest(), &[], files.to_vec())?)
}

fn refused(files: &[Vec<u8>], why: &str) {
    let error = open(files).err().unwrap();
    assert!(error.message.contains(why) && !error.hint.is_empty(), "{error}");
}

#[test]
fn regions_say_where_pages_of_the_memory_file_belong() {
    let vmss = checkpoint(0xbed2_bed2, &map(&[(0, 0, 3), (16, 3, 2)]));
    let reader = open(&[vec![1; 5 * PAGE as usize], vmss]).unwrap();
    assert_eq!(reader.extents(), [Extent::mapped(0, 3, 0, 0), Extent::mapped(16, 2, 0, 3 * PAGE)]);
    let machine = reader.machine();
    assert_eq!((machine.arch.as_str(), machine.page_shift, machine.max_pfn, machine.incomplete), ("x86_64", 12, 18, false));
    assert!(machine.warnings.is_empty(), "{:?}", machine.warnings);
}

#[test]
fn without_regions_memory_has_no_hole() {
    for magic in [0xbed2_bed2, 0xbed3_bed3, 0xbad1_bad1, 0xbad2_bad2, 0xbed0_bed0] {
        let vmss = checkpoint(magic, &map(&[]));
        let reader = open(&[vmss, vec![1; 4 * PAGE as usize]]).unwrap();
        assert_eq!(reader.extents(), [Extent::mapped(0, 4, 1, 0)]);
    }
}

#[test]
fn memory_may_stand_in_the_checkpoint() {
    for (magic, old) in [(0xbed2_bed2, false), (0xbed0_bed0, true)] {
        let memory = [
            map(&[(0, 0, 1), (8, 1, 1)]).split_last_chunk::<2>().unwrap().0,
            &block("Memory", &[7; 2 * PAGE as usize], old, false),
            &[0, 0],
        ]
        .concat();
        let file = checkpoint(magic, &memory);
        let at = file.windows(16).position(|w| w == [7; 16]).unwrap() as u64;
        let reader = open(std::slice::from_ref(&file)).unwrap();
        assert_eq!(reader.extents(), [Extent::mapped(0, 1, 0, at), Extent::mapped(8, 1, 0, at + PAGE)]);
        let cut = open(&[file[..at as usize + 5000].to_vec()]).unwrap();
        assert_eq!(cut.extents(), [Extent::mapped(0, 1, 0, at), Extent::absent(8, 1)]);
        assert!(cut.machine().incomplete);
    }
}

#[test]
fn what_is_missing_is_named() {
    let vmss = checkpoint(0xbed2_bed2, &map(&[(0, 0, 3), (16, 3, 2)]));
    refused(std::slice::from_ref(&vmss), "not in the checkpoint");
    refused(&[vmss.clone(), vmss.clone()], "one checkpoint and one memory file");
    refused(&[vec![1; 9000]], "none of the inputs");
    refused(&[vmss.clone(), vec![1; 100]], "not one page");
    refused(&[checkpoint(0xbed2_bed2, &[&block("Memory", &[7; 9000], false, true)[..], &[0, 0]].concat())], "compressed");
    refused(&[vmss[..60].to_vec(), vec![1; 9000]], "without a group `memory`");
    let reader = open(&[vmss.clone(), vec![1; 4 * PAGE as usize]]).unwrap();
    assert_eq!(reader.extents(), [Extent::mapped(0, 3, 1, 0), Extent::mapped(16, 1, 1, 3 * PAGE), Extent::absent(17, 1)]);
    assert!(reader.machine().incomplete && reader.machine().warnings[0].contains("1 pages"));
    let sources = |files: &[Vec<u8>]| files.iter().map(|f| testkit::source("file", f.clone())).collect::<Vec<_>>();
    let percent = |files: &[Vec<u8>]| reader_vmware::probe(&sources(files)).unwrap().percent;
    assert_eq!((percent(std::slice::from_ref(&vmss)), percent(&[vec![1; 9000], vmss.clone()])), (100, 100));
    assert_eq!((percent(&[vec![1; 9000]]), percent(&[]), percent(&[vmss.clone(), vmss])), (0, 0, 0));
}

#[test]
fn whatever_is_damaged_or_cut_no_page_is_outside_its_file() {
    let memory = map(&[(0, 0, 3), (16, 3, 2), (100, 5, 4)]);
    let memory = [memory.split_last_chunk::<2>().unwrap().0, &block("Memory", &[7; 9 * PAGE as usize], false, false), &[0, 0]].concat();
    let whole = checkpoint(0xbed2_bed2, &memory);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % n
    };
    let (mut opened, mut errors) = (0, 0);
    for _ in 0..20_000 {
        let mut file = whole.clone();
        for _ in 0..=below(3) {
            let at = below(600) as usize;
            file[at] = if below(2) == 0 { 0xff } else { below(256) as u8 };
        }
        if below(4) == 0 {
            file.truncate(below(file.len() as u64) as usize);
        }
        let len = file.len() as u64;
        let Ok(reader) = open(&[file]) else {
            errors += 1;
            continue;
        };
        opened += 1;
        let extents = reader.extents();
        assert!(extents.windows(2).all(|e| e[0].end_pfn() <= e[1].first_pfn), "{extents:x?}");
        let inside = |e: &Extent| e.kind == ExtentKind::ABSENT || e.offset + e.pages * PAGE <= len;
        assert!(extents.iter().all(|e| e.pages > 0 && inside(e)), "{extents:x?} in {len} bytes");
    }
    assert!(opened > 5000 && errors > 500, "{opened} opened, {errors} errors");
}
