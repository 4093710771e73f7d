//! What is taken for a vmcore, and what is said of all else.

use coresift_sdk::{Score, testkit};

use crate::synth::{ALL_KINDS, Elf, PAGE, extents, load, noise, open};

fn probe(bytes: Vec<u8>) -> Score {
    reader_elf::probe(&[testkit::source("a file", bytes)]).unwrap()
}

/// Probing refuses for this reason, and opening does too.
fn refused(bytes: Vec<u8>, why: &str) {
    let score = probe(bytes.clone());
    assert_eq!(score.percent, 0);
    assert!(score.reason.contains(why), "{}", score.reason);
    let error = open(bytes).err().unwrap();
    assert!(error.message.contains(why), "{error}");
}

#[test]
fn cores_of_both_classes_and_byte_orders_are_likely() {
    for kind in ALL_KINDS {
        let elf = Elf { loads: vec![load(PAGE, noise(1, PAGE))], ..Elf::new(kind) };
        let score = probe(elf.bytes());
        assert_eq!(score.percent, 60);
        assert!(score.reason.starts_with(if kind.wide { "ELF64 vmcore of x86_64" } else { "ELF32 vmcore of i686" }), "{}", score.reason);
        let machine = open(elf.bytes()).unwrap().machine();
        assert_eq!((machine.word_bits, machine.big_endian), (if kind.wide { 64 } else { 32 }, kind.big_endian));
    }
}

#[test]
fn other_files_are_refused_by_what_they_are() {
    let elf = Elf::x86_64(vec![load(PAGE, noise(1, PAGE))]);
    refused(Vec::new(), "empty");
    refused(b"KDUMP   and more".to_vec(), "not an ELF file");
    refused(Elf { e_type: 1, ..elf.clone() }.bytes(), "object file");
    refused(Elf { e_type: 2, ..elf.clone() }.bytes(), "kernel image");
    refused(Elf { e_type: 3, ..elf.clone() }.bytes(), "a program or a library");
    refused(Elf { e_type: 0xfe00, ..elf.clone() }.bytes(), "something else");
    refused(Elf::x86_64(Vec::new()).bytes(), "without program headers");
    refused(
        {
            let mut b = elf.bytes();
            b[4] = 3;
            b
        },
        "unknown class 3",
    );
    refused(
        {
            let mut b = elf.bytes();
            b[5] = 0;
            b
        },
        "unknown byte order 0",
    );
    // `xl dump-core`: no program headers, but sections (e_shnum).
    refused(
        {
            let mut b = Elf::x86_64(Vec::new()).bytes();
            b[60] = 7;
            b
        },
        "Xen dump-core",
    );
}

#[test]
fn a_file_cut_within_the_elf_header_is_refused_at_every_byte() {
    for kind in ALL_KINDS {
        let built = Elf { loads: vec![load(PAGE, noise(1, PAGE))], ..Elf::new(kind) }.build();
        for len in 4..built.headers_end {
            refused(built.bytes[..len].to_vec(), "ends inside the ELF header");
        }
    }
}

#[test]
fn several_inputs_are_parts_of_one_vmcore_or_refused() {
    let part = |page: u64| Elf::x86_64(vec![load(page * PAGE, noise(page, PAGE))]).bytes();
    let sources = |files: &[Vec<u8>]| files.iter().map(|f| testkit::source("part", f.clone())).collect::<Vec<_>>();
    let open = |files: &[Vec<u8>]| reader_elf::open(testkit::reader_setup(&reader_elf::manifest(), &[], files.to_vec()).unwrap());
    let two = [part(9), part(1)];
    assert!(reader_elf::probe(&sources(&two)).unwrap().percent > 0);
    let extents = open(&two).unwrap().extents();
    assert_eq!(extents.iter().map(|e| (e.first_pfn, e.pages, e.source)).collect::<Vec<_>>(), [(1, 1, 1), (9, 1, 0)]);
    assert!(open(&[part(1), part(1)]).err().unwrap().message.contains("both have a page"));
    let other = Elf { loads: vec![load(PAGE, noise(1, PAGE))], ..Elf::new(ALL_KINDS[1]) }.bytes();
    assert!(open(&[part(9), other]).err().unwrap().message.contains("different dumps"));
    assert_eq!(reader_elf::probe(&sources(&[part(1), vec![0; 100]])).unwrap().percent, 0);
    assert_eq!(reader_elf::probe(&[]).unwrap().percent, 0);
}

#[test]
fn the_program_headers_are_where_the_header_says() {
    for kind in ALL_KINDS {
        // QEMU puts two section headers before them; entries may be longer than this reader knows.
        let plain = Elf { loads: vec![load(PAGE, noise(1, PAGE)), load(9 * PAGE, noise(2, PAGE))], ..Elf::new(kind) };
        let moved = Elf { gap: 128, slack: 24, ..plain.clone() };
        let data = moved.build().data;
        let extents = extents(moved.bytes());
        assert_eq!(extents.iter().map(|e| (e.first_pfn, e.pages, e.offset)).collect::<Vec<_>>(), [(1, 1, data[0]), (9, 1, data[1])]);
    }
}

#[test]
fn a_too_short_entry_size_is_an_error() {
    let mut bytes = Elf::x86_64(vec![load(PAGE, noise(1, PAGE))]).bytes();
    bytes[54] = 32; // e_phentsize of ELF32 in an ELF64 file
    assert!(open(bytes).err().unwrap().message.contains("32 bytes; they need 56"));
}

#[test]
fn an_entry_size_of_64_kib_takes_no_memory() {
    let mut bytes = Elf::x86_64(vec![load(PAGE, noise(1, PAGE))]).bytes();
    bytes[54..58].fill(0xff); // e_phentsize, e_phnum (PN_XNUM, but no section header)
    let reader = open(bytes).unwrap();
    assert_eq!(reader.extents().len(), 1);
    assert!(reader.machine().incomplete);
}

#[test]
fn more_than_65535_program_headers_are_counted_in_section_0() {
    for kind in ALL_KINDS {
        let loads: Vec<_> = (0..70_000).map(|i| load(2 * i * 16 + 0x1000, vec![i as u8; 16])).collect();
        let elf = Elf { xnum: true, loads, ..Elf::new(kind) };
        let extents = extents(elf.bytes());
        // One every 32 bytes: 546.875 pages, each put together from 128 loads.
        assert_eq!(extents.iter().map(|e| e.pages).sum::<u64>(), 547);
    }
}

#[test]
fn makedumpfiles_mark_of_an_incomplete_file_is_passed_on() {
    let elf = Elf::x86_64(vec![load(PAGE, noise(1, PAGE))]);
    assert!(!open(elf.bytes()).unwrap().machine().incomplete);
    assert!(open(Elf { flags: 1, ..elf }.bytes()).unwrap().machine().incomplete);
}
