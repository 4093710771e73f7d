//! From segments to pages, compared with a model that goes byte by byte.

use coresift_sdk::{Extent, ExtentKind, PageState};

use crate::synth::{Elf, Load, PAGE, Rng, check_order, extents, load, noise, open, page, warns};

#[test]
fn the_kernels_text_twice_is_no_oddity() {
    let elf = Elf::x86_64(vec![load(4 * PAGE, noise(1, 2 * PAGE)), load(PAGE, noise(2, 8 * PAGE))]);
    let data = elf.build().data;
    assert_eq!(
        extents(elf.bytes()),
        [Extent::mapped(1, 3, 0, data[1]), Extent::mapped(4, 2, 0, data[0]), Extent::mapped(6, 3, 0, data[1] + 5 * PAGE)]
    );
    assert!(open(elf.bytes()).unwrap().machine().warnings.is_empty());
}

#[test]
fn the_first_of_crossing_segments_wins_with_a_warning() {
    let elf = Elf::x86_64(vec![load(3 * PAGE, noise(1, 4 * PAGE)), load(PAGE, noise(2, 4 * PAGE))]);
    let data = elf.build().data;
    assert_eq!(extents(elf.bytes()), [Extent::mapped(1, 2, 0, data[1]), Extent::mapped(3, 4, 0, data[0])]);
    assert!(warns(open(elf.bytes()).unwrap().as_ref(), "1 PT_LOADs overlap others in part"));
}

#[test]
fn segments_that_go_on_in_file_and_memory_are_one_extent() {
    let elf = Elf::x86_64((0..16).map(|i| load((1 + i) * PAGE / 2, noise(i, PAGE / 2))).collect());
    // 16 half pages from the middle of page 0 to the middle of page 8.
    assert_eq!(extents(elf.bytes()), [Extent::encoded(0, 1), Extent::mapped(1, 7, 0, elf.build().data[1]), Extent::encoded(8, 1)]);
}

#[test]
fn edges_within_a_page_are_filled_with_zeros() {
    let data = noise(1, 2 * PAGE);
    let bytes = Elf::x86_64(vec![load(PAGE + 100, data.clone())]).bytes();
    let reader = open(bytes.clone()).unwrap();
    let extents = reader.extents();
    assert_eq!(
        extents.iter().map(|e| (e.first_pfn, e.pages, e.kind)).collect::<Vec<_>>(),
        [(1, 1, ExtentKind::ENCODED), (2, 1, ExtentKind::MAPPED), (3, 1, ExtentKind::ENCODED)]
    );
    let first = page(&bytes, reader.as_ref(), &extents, 1).unwrap();
    assert_eq!((&first[..100], &first[100..]), (&[0; 100][..], &data[..4096 - 100]));
    let last = page(&bytes, reader.as_ref(), &extents, 3).unwrap();
    assert_eq!((&last[..100], &last[100..]), (&data[8192 - 100..], &[0; 4096 - 100][..]));
}

#[test]
fn a_page_across_two_segments_is_stitched() {
    let (a, b) = (noise(1, 1000), noise(2, PAGE));
    // In memory a, 96 bytes of nothing, b; in the file b comes first.
    let bytes = Elf::x86_64(vec![load(8192 + 1096, b.clone()), load(8192, a.clone())]).bytes();
    let reader = open(bytes.clone()).unwrap();
    let extents = reader.extents();
    assert_eq!(extents, [Extent::encoded(2, 2)]);
    let stitched = page(&bytes, reader.as_ref(), &extents, 2).unwrap();
    assert_eq!([&a[..], &[0; 96], &b[..4096 - 1096]].concat(), stitched);
}

#[test]
fn asking_for_pages_that_are_not_there_is_no_error() {
    let bytes = Elf::x86_64(vec![load(PAGE + 1, noise(1, PAGE))]).bytes();
    let reader = open(bytes).unwrap();
    let (mut out, mut present) = (vec![0; 4 * 4096], [PageState::PRESENT; 4]);
    reader.read_pages(&[0, 1, 77, u64::MAX], &mut out, &mut present).unwrap();
    assert_eq!(present.map(|p| p == PageState::PRESENT), [false, true, false, false]);
    assert!(reader.read_pages(&[1], &mut out, &mut present[..1]).is_err(), "room for four pages, one asked for");
}

/// What the file says about each byte of a small memory: `None` = no segment has it.
struct Model {
    bytes: Vec<Option<u8>>,
    /// RAM, by page
    ram: Vec<bool>,
}

fn model(loads: &[Load], pages: usize) -> Model {
    let mut model = Model { bytes: vec![None; pages * 4096], ram: vec![false; pages] };
    for load in loads {
        for (at, &byte) in (load.paddr as usize..).zip(&load.data) {
            model.bytes[at].get_or_insert(byte);
        }
        (load.paddr..load.paddr + load.memsz).for_each(|at| model.ram[(at / PAGE) as usize] = true);
    }
    model
}

#[test]
fn random_segments_agree_with_the_model_byte_by_byte() {
    const PAGES: u64 = 24;
    let mut rng = Rng(20);
    for round in 0..400 {
        let unit = [1, 512, PAGE][rng.below(3) as usize];
        let loads: Vec<Load> = (0..1 + rng.below(8))
            .map(|i| {
                let start = rng.below(PAGES * PAGE / unit - 1);
                let len = 1 + rng.below((PAGES * PAGE / unit - start).min(6 * PAGE / unit));
                let filesz = if rng.below(4) == 0 { rng.below(len + 1) } else { len };
                Load { memsz: len * unit, ..load(start * unit, noise(round * 8 + i, filesz * unit)) }
            })
            .collect();
        let model = model(&loads, PAGES as usize);
        let bytes = Elf::x86_64(loads.clone()).with_vmcoreinfo("PAGESIZE=4096\n").bytes();
        let reader = open(bytes.clone()).unwrap();
        let extents = reader.extents();
        check_order(&extents);
        for pfn in 0..PAGES {
            let expected = &model.bytes[pfn as usize * 4096..][..4096];
            let extent = extents.iter().find(|e| (e.first_pfn..e.end_pfn()).contains(&pfn));
            assert_eq!(extent.is_some(), model.ram[pfn as usize], "round {round}, page {pfn}: {loads:?}");
            match page(&bytes, reader.as_ref(), &extents, pfn) {
                Some(got) => assert!(got.iter().zip(expected).all(|(g, e)| *g == e.unwrap_or(0)), "round {round}, page {pfn}"),
                None => assert!(expected.iter().all(Option::is_none), "round {round}: page {pfn} has data"),
            }
            if extent.is_some_and(|e| e.kind == ExtentKind::MAPPED) {
                assert!(expected.iter().all(Option::is_some), "round {round}: page {pfn} is mapped, but not whole");
            }
        }
    }
}
