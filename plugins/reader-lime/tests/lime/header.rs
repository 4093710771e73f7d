//! What is taken for an image, what is said of all else, and what the settings do.

use coresift_sdk::{Score, Value, testkit};

use crate::synth::{PAGE, avml, header, lime, noise, open, open_with, warns};

fn probe(bytes: Vec<u8>) -> Score {
    reader_lime::probe(&[testkit::source("a file", bytes)]).unwrap()
}

/// Probing refuses for this reason, and opening does too.
fn refused(bytes: Vec<u8>, why: &str) {
    let score = probe(bytes.clone());
    assert_eq!(score.percent, 0);
    assert!(score.reason.contains(why), "{}", score.reason);
    assert!(open(bytes).is_err());
}

#[test]
fn both_formats_are_certain() {
    let data = noise(1, PAGE);
    let score = probe(lime(PAGE, &data));
    assert_eq!((score.percent, score.reason.as_str()), (100, "LiME image, first range 0x1000 to 0x1fff"));
    let score = probe(avml(PAGE, &data));
    assert_eq!((score.percent, score.reason.as_str()), (100, "AVML image, first range 0x1000 to 0x1fff"));
    assert_eq!(open(lime(PAGE, &data)).unwrap().machine().format, "LiME image");
    assert_eq!(open(avml(PAGE, &data)).unwrap().machine().format, "AVML image");
}

#[test]
fn headers_are_read_byte_by_byte_as_specified() {
    // lime.h: u32 magic, u32 version, u64 s_addr, u64 e_addr (inclusive), 8 bytes reserved; here 0x1000 to 0x9fbff.
    let rest = b"\x00\x10\0\0\0\0\0\0\xff\xfb\x09\0\0\0\0\0\0\0\0\0\0\0\0\0";
    assert_eq!(probe([&b"EMiL\x01\0\0\0"[..], rest].concat()).reason, "LiME image, first range 0x1000 to 0x9fbff");
    assert_eq!(probe([&b"AVML\x02\0\0\0"[..], rest].concat()).reason, "AVML image, first range 0x1000 to 0x9fbff");
}

#[test]
fn other_files_are_refused() {
    refused(Vec::new(), "empty");
    refused(b"EMiL".to_vec(), "too short");
    refused(b"\x7fELF and so on, more than a header of any length".to_vec(), "neither");
    refused(header(b"EMiL", 2, 0, 4095), "LiME version 2");
    refused(header(b"AVML", 1, 0, 4095), "AVML version 1");
    refused(header(b"EMiL", 1, 4096, 4095), "makes no sense");
    refused(header(b"EMiL", 1, 0, u64::MAX), "makes no sense");
}

#[test]
fn several_inputs_are_parts_of_one_image_or_refused() {
    let part = |page: u64| lime(page * PAGE, &noise(page, PAGE));
    let open = |files: &[Vec<u8>]| reader_lime::open(testkit::reader_setup(&reader_lime::manifest(), &[], files.to_vec()).unwrap());
    let extents = open(&[part(9), part(1)]).unwrap().extents();
    assert_eq!(extents.iter().map(|e| (e.first_pfn, e.pages, e.source)).collect::<Vec<_>>(), [(1, 1, 1), (9, 1, 0)]);
    assert!(open(&[part(1), part(1)]).err().unwrap().message.contains("both have a page"));
    let sources = [part(1), vec![0; 100]].map(|f| testkit::source("part", f));
    assert_eq!(reader_lime::probe(&sources).unwrap().percent, 0);
    assert_eq!(reader_lime::probe(&[]).unwrap().percent, 0);
}

#[test]
fn big_endian_headers_tell_a_big_endian_machine() {
    let data = noise(1, PAGE);
    let be = [&b"LiME"[..], &1u32.to_be_bytes(), &PAGE.to_be_bytes(), &(2 * PAGE - 1).to_be_bytes(), &[0; 8], &data].concat();
    let reader = open_with(be.clone(), &[]).unwrap();
    assert!(reader.machine().big_endian);
    assert_eq!(reader.extents()[0].first_pfn, 1);
    assert!(warns(open(be).unwrap().as_ref(), "big endian"));
}

#[test]
fn an_architecture_that_is_not_set_is_guessed_with_a_warning() {
    let bytes = lime(PAGE, &noise(1, PAGE));
    let guessed = open_with(bytes.clone(), &[]).unwrap();
    assert_eq!(guessed.machine().arch, "x86_64");
    assert!(warns(guessed.as_ref(), "does not tell its architecture: x86_64"));
    assert_eq!(open(bytes).unwrap().machine().warnings, Vec::<String>::new());
}

#[test]
fn the_settings_make_the_machine() {
    // Values of `uname -m`, e_machine (EM_* of the ELF specification), bits, byte order, usual page size.
    let expected = [
        ("x86_64", 62, 64, false, 12),
        ("aarch64", 183, 64, false, 12),
        ("i686", 3, 32, false, 12),
        ("armv7l", 40, 32, false, 12),
        ("ppc64le", 21, 64, false, 16),
        ("ppc64", 21, 64, true, 16),
        ("s390x", 22, 64, true, 12),
        ("riscv64", 243, 64, false, 12),
        ("loongarch64", 258, 64, false, 14),
    ];
    let bytes = lime(0, &noise(1, 1 << 16));
    for (arch, elf, bits, big, shift) in expected {
        let m = open_with(bytes.clone(), &[("arch", Value::Text(arch.into()))]).unwrap().machine();
        assert_eq!((m.arch.as_str(), m.elf_machine, m.word_bits, m.big_endian, m.page_shift), (arch, elf, bits, big, shift));
        assert_eq!(m.max_pfn, 1 << (16 - shift));
    }
    let set = |size| open_with(bytes.clone(), &[("arch", Value::Text("aarch64".into())), ("page_size", Value::Size(size))]);
    assert_eq!(set(16384).unwrap().machine().page_shift, 14);
    assert!(set(16384).unwrap().machine().warnings.is_empty());
    assert!(set(5000).err().unwrap().message.contains("not a power of two"));
    assert!(open_with(bytes.clone(), &[("arch", Value::Text("vax".into()))]).is_err());
}
