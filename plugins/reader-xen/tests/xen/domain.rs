//! Dump-core files: which page is which.

use std::collections::BTreeMap;

use coresift_sdk::{Extent, ExtentKind, testkit};

use crate::synth::{Core, INVALID, Kind, PAGE, Rng, noise, open, open_with, page, pages, read, text, warns};

/// What the builder put in: the first of several with one PFN, nothing without one.
fn expected(core: &Core) -> BTreeMap<u64, Option<Vec<u8>>> {
    let mut map = BTreeMap::new();
    for (pfn, _, bytes) in core.pages.iter().filter(|p| p.0 != INVALID) {
        map.entry(*pfn).or_insert_with(|| Some(bytes.clone()));
    }
    map
}

#[test]
fn both_indexes_in_order_are_one_extent_each() {
    for kind in [Kind::Pv, Kind::Hvm] {
        let core = Core::of(kind, &[3, 4, 5, 6]);
        let built = core.build();
        let reader = open(built.bytes.clone()).unwrap();
        assert_eq!(reader.extents(), [Extent::mapped(3, 4, 0, built.pages_at)]);
        assert_eq!(pages(&built.bytes, reader.as_ref()), expected(&core));
        let machine = reader.machine();
        assert_eq!((machine.format.as_str(), machine.arch.as_str(), machine.elf_machine), ("xl dump-core", "x86_64", 62));
        assert_eq!((machine.page_shift, machine.word_bits, machine.big_endian, machine.max_pfn), (12, 64, false, 7));
        assert!(!machine.incomplete && machine.vmcoreinfo.is_empty());
        assert_eq!(machine.notes, built.notes, "the notes are kept");
    }
}

#[test]
fn pages_in_any_order_with_holes_and_padding() {
    // Descending, a hole, padding in the middle (xl -L pads what a live domain gave back).
    for kind in [Kind::Pv, Kind::Hvm] {
        let mut core = Core::of(kind, &[0x10_0000, 9, 8, 2, 3, 1]);
        core.pages.insert(3, (INVALID, INVALID, vec![0; PAGE]));
        let bytes = core.bytes();
        let reader = open(bytes.clone()).unwrap();
        assert_eq!(pages(&bytes, reader.as_ref()), expected(&core));
        // 1 is behind 3 in the file, 8 before 9: only 2 and 3 go on in both.
        assert_eq!(
            reader.extents().iter().map(|e| (e.first_pfn, e.pages)).collect::<Vec<_>>(),
            [(1, 1), (2, 2), (8, 1), (9, 1), (0x10_0000, 1)]
        );
        assert!(!warns(reader.as_ref(), "more than once"));
    }
}

#[test]
fn a_page_without_a_machine_frame_is_still_there() {
    let mut core = Core::of(Kind::Pv, &[0, 1, 2]);
    core.pages[1].1 = INVALID;
    let bytes = core.bytes();
    assert_eq!(pages(&bytes, open(bytes.clone()).unwrap().as_ref()), expected(&core));
}

#[test]
fn of_pages_twice_the_first_is_taken() {
    let mut core = Core::of(Kind::Hvm, &[5, 6, 7, 6, 8, 5]);
    core.pages[3].2 = noise(99, PAGE);
    core.pages[5].2 = noise(98, PAGE);
    let bytes = core.bytes();
    let reader = open(bytes.clone()).unwrap();
    assert_eq!(pages(&bytes, reader.as_ref()), expected(&core));
    assert!(warns(reader.as_ref(), "2 pages are in the file more than once"));
}

#[test]
fn random_orders_agree_with_the_builder() {
    let mut rng = Rng(8);
    for round in 0..200 {
        let kind = if round % 2 == 0 { Kind::Pv } else { Kind::Hvm };
        let span = 1 + rng.below(60);
        let pfns: Vec<u64> = (0..1 + rng.below(40)).map(|_| rng.below(span)).collect();
        let mut core = Core::new(kind, Vec::new());
        for (i, pfn) in pfns.iter().enumerate() {
            let pfn = if rng.below(8) == 0 && i > 0 { INVALID } else { *pfn };
            core.pages.push((pfn, rng.below(1 << 20), noise(round * 100 + i as u64, PAGE)));
        }
        core.index_first = rng.below(4) == 0;
        let bytes = core.bytes();
        let reader = open(bytes.clone()).unwrap();
        let expected = expected(&core);
        assert_eq!(pages(&bytes, reader.as_ref()), expected, "round {round}");
        for (pfn, bytes) in expected {
            assert_eq!(read(reader.as_ref(), pfn), bytes, "read_pages has mapped pages, too");
        }
        assert_eq!(read(reader.as_ref(), span), None);
    }
}

#[test]
fn both_classes_and_byte_orders() {
    for (wide, big_endian) in [(true, true), (false, false), (false, true)] {
        let core = Core { wide, big_endian, machine: 50, ..Core::of(Kind::Hvm, &[7, 4, 5]) };
        let bytes = core.bytes();
        let reader = open(bytes.clone()).unwrap();
        assert_eq!(pages(&bytes, reader.as_ref()), expected(&core));
        assert_eq!((reader.machine().arch.as_str(), reader.machine().big_endian), ("ia64", big_endian));
    }
}

#[test]
fn the_version_note_tells_a_domain_of_32_bits() {
    let core = Core { narrow: true, contexts: vec![vec![0; 5168]], ..Core::of(Kind::Pv, &[0, 1]) };
    let reader = open(core.bytes()).unwrap();
    let machine = reader.machine();
    assert_eq!((machine.arch.as_str(), machine.word_bits, machine.elf_machine, machine.cpus), ("i686", 32, 3, 1));
    assert_eq!(machine.notes, core.build().notes, "no registers of x86_64 are made of those of i386");
}

#[test]
fn counts_that_disagree_are_a_warning() {
    let core = Core { claims_pages: Some(9), format: 1 << 32, ..Core::of(Kind::Hvm, &[0, 1]) };
    let bytes = core.bytes();
    let reader = open(bytes.clone()).unwrap();
    assert_eq!(pages(&bytes, reader.as_ref()), expected(&core));
    assert!(warns(reader.as_ref(), "the header note says 9 pages, the section .xen_pages has room for 2"));
    assert!(warns(reader.as_ref(), "format version 1.0"));
}

#[test]
fn a_cut_file_with_the_index_first_lacks_its_last_pages() {
    let core = Core { index_first: true, ..Core::of(Kind::Hvm, &[0, 1, 5, 6]) };
    let built = core.build();
    let bytes = built.bytes[..built.pages_at as usize + 2 * PAGE + 100].to_vec();
    let reader = open(bytes.clone()).unwrap();
    let mut expected = expected(&core);
    expected.insert(5, None);
    expected.insert(6, None);
    assert_eq!(pages(&bytes, reader.as_ref()), expected);
    assert_eq!(reader.extents()[1].kind, ExtentKind::ABSENT);
    assert!(reader.machine().incomplete && warns(reader.as_ref(), "2 of 4 pages are missing"));
    assert_eq!(read(reader.as_ref(), 5), None);
}

#[test]
fn a_file_cut_within_its_index_has_what_the_index_tells() {
    let core = Core::of(Kind::Pv, &[0, 1, 2, 3]);
    let built = core.build();
    let bytes = built.bytes[..built.index_at as usize + 2 * 16 + 9].to_vec();
    let reader = open(bytes.clone()).unwrap();
    assert_eq!(pages(&bytes, reader.as_ref()).into_keys().collect::<Vec<_>>(), [0, 1]);
    assert!(reader.machine().incomplete && warns(reader.as_ref(), "2 pages are left out"));
}

#[test]
fn a_file_cut_within_its_pages_is_numbered_as_xl_writes() {
    // xc_core_arch_gpfn_may_present: xl leaves out 0xa0 to 0xbf, the VGA memory, of HVM and PVH domains.
    let pfns: Vec<u64> = (0..0xa0).chain(0xc0..0x100).collect();
    let core = Core { contexts: vec![vec![0; 5168]], ..Core::of(Kind::Hvm, &pfns) };
    let built = core.build();
    let there = 0xa0 + 5;
    let bytes = built.bytes[..built.pages_at as usize + there * PAGE + 1].to_vec();
    let reader = open(bytes.clone()).unwrap();
    let expected: BTreeMap<_, _> = expected(&core).into_iter().take(there).collect();
    assert_eq!(pages(&bytes, reader.as_ref()), expected);
    assert!(reader.machine().incomplete && warns(reader.as_ref(), "the file is cut before its index"));
    assert_eq!(reader.machine().cpus, 1, "registers stand before the pages");
    assert_eq!(reader_xen::probe(&[testkit::source("cut", bytes)]).unwrap().percent, 100);

    let pv: Vec<u64> = (0..0xb0).collect();
    let built = Core::of(Kind::Pv, &pv).build();
    let reader = open(built.bytes[..built.index_at as usize].to_vec()).unwrap();
    assert_eq!(reader.extents(), [Extent::mapped(0, 0xb0, 0, built.pages_at)], "a paravirtualised domain has no VGA");
}

#[test]
fn what_holds_no_memory_is_refused() {
    let cut = |core: Core, len: usize| open(core.bytes()[..len].to_vec()).map(drop).unwrap_err();
    let core = Core::of(Kind::Hvm, &[0, 1]);
    let pages_at = core.build().pages_at as usize;
    assert!(cut(core.clone(), pages_at + 5).message.contains("no index"), "no whole page");
    assert!(cut(core.clone(), core.build().headers_end + 30).message.contains("header note"));
    assert!(cut(core, 40).message.contains("ends inside the ELF header"));
    let empty = Core::new(Kind::Hvm, vec![(INVALID, INVALID, vec![0; PAGE])]);
    assert!(open(empty.bytes()).map(drop).unwrap_err().message.contains("no entry of the index is a page number"));
    let odd = Core { page_size: 5000, ..Core::new(Kind::Hvm, vec![page(0)]) };
    assert!(open(odd.bytes()).map(drop).unwrap_err().message.contains("5000 bytes"));
}

#[test]
fn only_a_hypervisor_has_a_domain_0() {
    let error = open_with(Core::of(Kind::Pv, &[0]).bytes(), &[text("view", "dom0")]).map(drop).unwrap_err();
    assert!(error.message.contains("view") && error.hint.contains("leave the key out"));
}

#[test]
fn probing() {
    let score = |bytes: Vec<u8>| reader_xen::probe(&[testkit::source("input", bytes)]).unwrap();
    assert_eq!(score(Core::of(Kind::Hvm, &[0]).bytes()).percent, 100);
    for (bytes, reason) in [
        (Vec::new(), "not an ELF file"),
        (b"KDUMP   ".to_vec(), "not an ELF file"),
        (crate::synth::vmcore(&[], &[(0, vec![1; PAGE])]), "without notes of Xen"),
    ] {
        let score = score(bytes);
        assert!(score.percent == 0 && score.reason.contains(reason), "{score:?}");
    }
    let two = [testkit::source("a", Vec::new()), testkit::source("b", Vec::new())];
    assert!(reader_xen::probe(&two).unwrap().reason.contains("one file, not 2"));
}
