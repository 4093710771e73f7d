//! Raw images and their settings.

// clippy.toml allows these in test functions only, not in their helpers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use coresift_sdk::{Extent, PageState, Reader, Result, Value, testkit};

const PAGE: usize = 4096;

fn open(bytes: &[u8], settings: &[(&str, Value)]) -> Result<Box<dyn Reader>> {
    let named = [("arch", Value::Text("x86_64".into()))];
    let settings: Vec<_> =
        named.into_iter().filter(|(k, _)| settings.iter().all(|(s, _)| s != k)).chain(settings.iter().cloned()).collect();
    reader_raw::open(testkit::reader_setup(&reader_raw::manifest(), &settings, vec![bytes.to_vec()])?)
}

fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / PAGE) as u8 | 1).collect()
}

#[test]
fn no_file_is_taken_for_one_but_the_reason_says_what_to_give() {
    let score = reader_raw::probe(&[testkit::source("a file", noise(PAGE))]).unwrap();
    assert_eq!(score.percent, 0);
    assert!(score.reason.contains("--set input.reader=raw"));
}

#[test]
fn all_of_the_file_is_memory() {
    let reader = open(&noise(5 * PAGE), &[]).unwrap();
    assert_eq!(reader.extents(), [Extent::mapped(0, 5, 0, 0)]);
    let machine = reader.machine();
    assert_eq!((machine.max_pfn, machine.arch.as_str(), machine.format.as_str()), (5, "x86_64", "raw image"));
    assert!(machine.warnings.is_empty() && !machine.incomplete);
}

#[test]
fn the_base_address_is_that_of_the_first_byte() {
    let reader = open(&noise(2 * PAGE), &[("base", Value::Size(0x8000_0000))]).unwrap();
    assert_eq!(reader.extents(), [Extent::mapped(0x80000, 2, 0, 0)]);
    assert_eq!(reader.machine().max_pfn, 0x80002);
}

#[test]
fn a_last_page_in_part_is_filled_with_zeros() {
    let bytes = noise(2 * PAGE + 100);
    let reader = open(&bytes, &[("base", Value::Size(PAGE as u64))]).unwrap();
    assert_eq!(reader.extents(), [Extent::mapped(1, 2, 0, 0), Extent::encoded(3, 1)]);
    assert!(reader.machine().warnings[0].contains("100 bytes into a page of 4096"));
    let (mut out, mut states) = (vec![0xaa; 5 * PAGE], [PageState::MISSING; 5]);
    reader.read_pages(&[0, 1, 3, 4, u64::MAX], &mut out, &mut states).unwrap();
    assert_eq!(states.map(|s| s == PageState::PRESENT), [false, true, true, false, false]);
    assert!(out[PAGE..2 * PAGE] == bytes[..PAGE]);
    assert!(out[2 * PAGE..2 * PAGE + 100] == bytes[2 * PAGE..] && out[2 * PAGE + 100..3 * PAGE].iter().all(|b| *b == 0));
    assert!(reader.read_pages(&[1], &mut out, &mut states).is_err(), "room for five pages, one asked for");
}

#[test]
fn less_than_a_page_is_one_page() {
    let reader = open(&[7; 10], &[]).unwrap();
    assert_eq!((reader.extents(), reader.machine().max_pfn), (vec![Extent::encoded(0, 1)], 1));
}

#[test]
fn the_settings_make_the_machine() {
    let bytes = noise(1 << 17);
    let text = |t: &str| Value::Text(t.into());
    // `uname -m`, e_machine (EM_* of the ELF specification), bits, byte order, usual page size.
    for (arch, elf, bits, big, shift) in [("aarch64", 183, 64, false, 12), ("ppc64le", 21, 64, false, 16), ("s390x", 22, 64, true, 12)] {
        let machine = open(&bytes, &[("arch", text(arch))]).unwrap().machine();
        assert_eq!((machine.elf_machine, machine.word_bits, machine.big_endian, machine.page_shift), (elf, bits, big, shift));
    }
    let machine = open(&bytes, &[("arch", text("aarch64")), ("page_size", Value::Size(65536))]).unwrap().machine();
    assert_eq!((machine.page_shift, machine.max_pfn, machine.warnings.len()), (16, 2, 0));
    let guessed = open(&bytes, &[("arch", text("auto"))]).unwrap().machine();
    assert!(guessed.arch == "x86_64" && guessed.warnings[0].contains("does not tell its architecture"));
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let why = |settings: &[(&str, Value)]| open(&noise(PAGE), settings).err().unwrap().message;
    assert!(why(&[("base", Value::Size(100))]).contains("no multiple of the page size"));
    assert!(why(&[("page_size", Value::Size(5000))]).contains("not a power of two"));
    assert!(why(&[("arch", Value::Text("vax".into()))]).contains("vax"));
    assert!(open(&[], &[]).err().unwrap().message.contains("empty"));
}

fn regions(texts: &[&str]) -> [(&'static str, Value); 1] {
    [("regions", Value::List(texts.iter().map(|t| (*t).into()).collect()))]
}

#[test]
fn regions_stand_one_behind_the_other() {
    let bytes = noise(5 * PAGE);
    let reader = open(&bytes, &regions(&["0x1000-0x2fff", "0x100000000+12KiB"])).unwrap();
    let second = Extent::mapped(0x100000, 3, 0, 2 * PAGE as u64);
    assert_eq!(reader.extents(), [Extent::mapped(1, 2, 0, 0), second]);
    assert_eq!((reader.machine().max_pfn, reader.machine().incomplete, reader.machine().warnings.len()), (0x100003, false, 0));
    let (mut out, mut states) = (vec![0xaa; 3 * PAGE], [PageState::MISSING; 3]);
    reader.read_pages(&[2, 3, 0x100002], &mut out, &mut states).unwrap();
    assert_eq!(states.map(|s| s == PageState::PRESENT), [true, false, true]);
    assert!(out[..PAGE] == bytes[PAGE..2 * PAGE] && out[2 * PAGE..] == bytes[4 * PAGE..]);
}

#[test]
fn ends_of_regions_within_pages_are_left_out() {
    // As in the memory map of a PC: 0x1000 to 0x9fbff, which is 0x9ec00 bytes.
    let bytes = noise(0x9ec00 + 2 * PAGE);
    let reader = open(&bytes, &regions(&["0x1000-0x9fbff", "0x100000-0x101fff"])).unwrap();
    assert_eq!(reader.extents(), [Extent::mapped(1, 0x9e, 0, 0), Extent::mapped(0x100, 2, 0, 0x9ec00)]);
    assert!(reader.machine().warnings[0].contains("1 ends of regions lie within pages"));
}

#[test]
fn a_file_of_another_length_than_its_regions_is_incomplete() {
    let with = |len: usize| open(&noise(len), &regions(&["0x0+8KiB", "0x10000+8KiB"])).unwrap();
    let short = with(3 * PAGE - 1);
    assert_eq!(short.extents(), [Extent::mapped(0, 2, 0, 0)]);
    assert!(short.machine().incomplete && short.machine().warnings[0].contains("4097 bytes shorter"));
    let long = with(5 * PAGE);
    assert_eq!(long.machine().max_pfn, 0x12);
    assert!(long.machine().incomplete && long.machine().warnings[0].contains("4096 bytes longer"));
    assert!(open(&noise(100), &regions(&["0x0+8KiB"])).err().unwrap().message.contains("not one whole page"));
}

#[test]
fn regions_that_make_no_sense_are_refused() {
    let why = |texts: &[&str]| {
        let error = open(&noise(PAGE), &regions(texts)).err().unwrap();
        assert!(error.hint.contains("0x1000-0x9ffff"), "{error}");
        error.message
    };
    assert!(why(&["4096"]).contains("no range"));
    assert!(why(&["1000-1fff"]).contains("does not begin with 0x"));
    assert!(why(&["0x1000-0xfff"]).contains("ends before it begins"));
    assert!(why(&["0x1000+0"]).contains("ends before it begins"));
    assert!(why(&["0x1000+much"]).contains("no length"));
    assert!(why(&["0x+1-0x2"]).contains("no number"));
    assert!(why(&["0x0-0xffffffffffffffff"]).contains("beyond 64 bits"));
    assert!(why(&["0x0+8KiB", "0x1000+4KiB"]).contains("does not lie behind"));
    let both = [("base", Value::Size(4096)), regions(&["0x0+4KiB"])[0].clone()];
    assert!(open(&noise(PAGE), &both).err().unwrap().message.contains("`base` and `regions`"));
}
