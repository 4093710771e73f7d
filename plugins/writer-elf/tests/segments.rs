//! Which pages stand in which PT_LOAD.

// clippy.toml allows these in test functions only, not in their helpers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, dead_code)]
// Lists of ranges, some of them with one.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use std::ops::Range;

use common::{Pages, Parsed, Recorder, WHOLE, dump, machine, page, plan};
use coresift_sdk::{PackedPage, Plan};

fn pfns(ranges: &[Range<u64>]) -> Vec<u64> {
    ranges.iter().cloned().flatten().collect()
}

/// Writes all pages and reads them back; returns the `PT_LOAD`s.
fn written(holes: &str, plan: &Plan<'_>, dumped: &[u64], stream: bool) -> Vec<(u64, u64, u64)> {
    let bytes: Vec<Vec<u8>> = dumped.iter().map(|&pfn| page(pfn, 4096)).collect();
    let content: Vec<_> = dumped.iter().zip(&bytes).map(|(&pfn, bytes)| (pfn, PackedPage::stored(bytes, 0))).collect();
    let mut sink = Recorder { stream, ..Recorder::default() };
    dump(holes, plan, &content, 100, &WHOLE, &mut sink).unwrap();
    let file = sink.file();
    let elf = Parsed::of(&file).unwrap();
    assert!(!elf.incomplete());
    let there = elf.pages(&file);
    for (pfn, page) in &there {
        match dumped.binary_search(pfn) {
            Ok(i) => assert_eq!(*page, bytes[i], "PFN {pfn:#x}"),
            Err(_) => assert!(holes == "coarse" && page.iter().all(|&b| b == 0), "PFN {pfn:#x} was not dumped"),
        }
    }
    assert!(dumped.iter().all(|pfn| there.contains_key(pfn)));
    let end = elf.loads().map(|ph| ph.p_offset + ph.p_filesz).max().unwrap();
    assert_eq!(file.len() as u64, end, "no byte too many");
    elf.runs()
}

#[test]
fn exact_segments_are_the_runs_of_dumped_pages() {
    let machine = machine("x86_64", 62, 64, false);
    for piece in [1, 3, u64::MAX] {
        let dumped = pfns(&[0..1, 2..9, 10..11, 600..1700]);
        let pages = Pages { ram: pfns(&[0..2000]), dumped: dumped.clone(), piece };
        let expected = [(0, 1, 1), (2, 7, 7), (10, 1, 1), (600, 1100, 1100)];
        assert_eq!(written("exact", &plan(&machine, &pages), &dumped, false), expected, "runs in pieces of {piece}");
    }
}

/// RAM, dumped pages, and the segments (first PFN, pages in the file, pages of memory).
type Case = (Vec<Range<u64>>, Vec<Range<u64>>, Vec<(u64, u64, u64)>);

/// By the rule of `makedumpfile -E`: 256 excluded pages end a segment, 255 do not.
fn coarse() -> Vec<Case> {
    vec![
        // A gap in the middle.
        (vec![0..1000], vec![0..10, 265..1000], vec![(0, 1000, 1000)]),
        (vec![0..1000], vec![0..10, 266..1000], vec![(0, 10, 10), (266, 734, 734), (10, 0, 256)]),
        // In front.
        (vec![0..1000], vec![255..1000], vec![(0, 1000, 1000)]),
        (vec![0..1000], vec![256..1000], vec![(256, 744, 744), (0, 0, 256)]),
        // At the end any is left out.
        (vec![0..1000], vec![0..999], vec![(0, 999, 999), (999, 0, 1)]),
        // Gaps do not go on in another extent.
        (vec![0..1000, 1100..1200], vec![0..900, 1180..1200], vec![(0, 900, 900), (1100, 100, 100), (900, 0, 100)]),
        // Extents without a page.
        (vec![0..4, 8..12, 16..20], vec![8..9], vec![(8, 1, 1), (0, 0, 4), (9, 0, 3), (16, 0, 4)]),
        // Dumped pages that are no RAM: in front, across, between, behind.
        (vec![10..20], vec![3..4, 8..12], vec![(3, 1, 1), (8, 2, 2), (10, 2, 2), (12, 0, 8)]),
        (vec![10..20, 30..40], vec![18..32, 50..51], vec![(10, 10, 10), (20, 10, 10), (30, 2, 2), (50, 1, 1), (32, 0, 8)]),
        (vec![], vec![7..9], vec![(7, 2, 2)]),
    ]
}

#[test]
fn coarse_segments_cover_ram_and_keep_short_gaps() {
    let machine = machine("x86_64", 62, 64, false);
    for (ram, dumped, expected) in coarse() {
        let dumped = pfns(&dumped);
        for (piece, stream) in [(1, false), (7, true), (u64::MAX, false)] {
            let pages = Pages { ram: pfns(&ram), dumped: dumped.clone(), piece };
            let seen = written("coarse", &plan(&machine, &pages), &dumped, stream);
            assert_eq!(seen, expected, "RAM {ram:?}, dumped {} pages from {}", dumped.len(), dumped[0]);
        }
    }
}

#[test]
fn memory_without_bytes_points_at_no_page() {
    let machine = machine("x86_64", 62, 64, false);
    let pages = Pages { ram: pfns(&[0..3000]), ..Pages::all(pfns(&[300..310, 2000..2001])) };
    let mut sink = Recorder::default();
    let content: Vec<_> = pages.dumped.iter().map(|&pfn| (pfn, PackedPage::zero())).collect();
    dump("coarse", &plan(&machine, &pages), &content, 100, &WHOLE, &mut sink).unwrap();
    let file = sink.file();
    let elf = Parsed::of(&file).unwrap();
    // makedumpfile takes p_offset + p_memsz for places in the file.
    let absent: Vec<_> = elf.loads().filter(|ph| ph.p_filesz == 0).map(|ph| (ph.p_offset, ph.p_paddr >> 12, ph.p_memsz >> 12)).collect();
    let end = file.len() as u64;
    assert_eq!(absent, [(end, 0, 300), (end, 310, 1690), (end, 2001, 999)]);
}

#[test]
fn a_part_of_a_split_set_is_a_file_of_its_own() {
    let machine = machine("x86_64", 62, 64, false);
    for holes in ["exact", "coarse"] {
        let pages = Pages { ram: pfns(&[0..0x13fd7]), dumped: (0..0x13fd7).filter(|pfn| pfn % 700 < 300).collect(), piece: u64::MAX };
        let mut all = Vec::new();
        for (part, range) in [0..0x8000, 0x8000..0x10000, 0x10000..0x13fd7].into_iter().enumerate() {
            let plan = Plan { first_pfn: range.start, end_pfn: range.end, part: part as u32, parts: 3, ..plan(&machine, &pages) };
            let own: Vec<u64> = pages.dumped.iter().copied().filter(|pfn| range.contains(pfn)).collect();
            let runs = written(holes, &plan, &own, false);
            assert!(runs.iter().all(|(first, _, memory)| range.contains(first) && first + memory <= range.end));
            all.extend(runs);
        }
        let (file, memory) = all.iter().fold((0, 0), |(file, memory), run| (file + run.1, memory + run.2));
        let dumped = pages.dumped.len() as u64;
        // The second part begins with a gap of 132 pages (0x8000 is 46 * 700 + 568), the third with one of 264.
        assert_eq!((file, memory), if holes == "exact" { (dumped, dumped) } else { (dumped + 132, 0x13fd7) });
    }
}
