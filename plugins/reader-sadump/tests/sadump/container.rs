//! The three layouts, and what is said of all else.

use coresift_sdk::{Extent, Score, testkit};

use crate::synth::{PAGE, Sadump, Shape, TIME_UNIX, check, dumped, open, open_with, patch, refused, small, warns};

const SHAPES: [Shape; 4] = [Shape::Single, Shape::Media, Shape::Set(2), Shape::Set(16)];

fn probe(files: Vec<Vec<u8>>) -> Score {
    let sources: Vec<_> = files.into_iter().map(|f| testkit::source("a file", f)).collect();
    reader_sadump::probe(&sources).unwrap()
}

#[test]
fn all_layouts_and_versions_give_all_pages() {
    for shape in SHAPES {
        for version in [0, 1, 2] {
            let image = Sadump { version, ..small(shape) };
            let files = image.build();
            assert_eq!(probe(files.clone()).percent, 100);
            check(&files, &image, false);
            check(&files, &image, true);
            let machine = open(files).unwrap().machine();
            assert_eq!((machine.arch.as_str(), machine.elf_machine, machine.word_bits, machine.page_shift), ("x86_64", 62, 64, 12));
            assert_eq!((machine.max_pfn, machine.crash_time, machine.cpus), (10, TIME_UNIX, 1));
            assert!(!machine.incomplete);
            let unknown = machine.warnings.iter().any(|w| w.contains("version 2 is not known"));
            assert_eq!(unknown, version == 2, "{:?}", machine.warnings);
            // The other one: the builder's CPU saved nothing.
            assert_eq!(machine.warnings.len(), 1 + usize::from(unknown), "{:?}", machine.warnings);
        }
    }
}

#[test]
fn formats_are_named() {
    let names = [Shape::Single, Shape::Media, Shape::Set(2)].map(|s| open(small(s).build()).unwrap().machine().format);
    assert_eq!(names, ["sadump single partition", "sadump media backup", "sadump disk set"]);
    assert_eq!(reader_sadump::manifest().formats, ["sadump single partition", "sadump disk set", "sadump media backup"]);
    assert_eq!(probe(small(Shape::Media).build()).reason, "sadump media backup");
    assert_eq!(probe(small(Shape::Set(2)).build().split_off(1)).reason, "disk 2 of a sadump disk set");
}

#[test]
fn runs_of_dumpable_pages_are_mapped_where_they_stand() {
    let image = small(Shape::Single);
    let at = image.data_at() as u64;
    let reader = open(image.build()).unwrap();
    assert_eq!(reader.extents(), [Extent::mapped(1, 4, 0, at), Extent::absent(5, 4), Extent::mapped(9, 1, 0, at + 4 * 4096)]);
}

#[test]
fn what_the_firmware_left_out_counts_as_zero_pages() {
    // makedumpfile's dump level 1, as it sets it for such images.
    assert_eq!(open(small(Shape::Single).build()).unwrap().machine().excluded.dump_level(), 1);
    assert_eq!(open_with(small(Shape::Single).build(), "zero").unwrap().machine().excluded.dump_level(), 0);
    let whole = Sadump::new(Shape::Single, dumped(0..4));
    assert_eq!(open(whole.build()).unwrap().machine().excluded.dump_level(), 0);
}

#[test]
fn other_files_are_not_claimed() {
    for bytes in [Vec::new(), b"\x7fELF".to_vec(), vec![0; 3 * PAGE], b"KDUMP   and more".repeat(1000)] {
        let score = probe(vec![bytes.clone()]);
        assert_eq!(score.percent, 0);
        assert!(score.reason.contains("no sadump signature"), "{}", score.reason);
        refused(vec![bytes], "no sadump signature");
    }
    assert_eq!(probe(Vec::new()).percent, 0);
}

#[test]
fn damaged_partition_headers_are_claimed_and_refused() {
    for (shape, block) in [(Shape::Single, 0), (Shape::Media, PAGE)] {
        let image = small(shape);
        let mut magic = image.bytes();
        magic[block + 168 + 4 * 500] ^= 1;
        assert_eq!(probe(vec![magic.clone()]).percent, 60);
        assert_eq!(refused(vec![magic], "wrong magic number").offset, Some((block + 168 + 4 * 500) as u64));
        let cut = image.bytes()[..block + PAGE - 1].to_vec();
        assert_eq!(probe(vec![cut.clone()]).percent, 60);
        // A media header says nothing of itself: what is cut within the next block may be anything that begins like it.
        refused(vec![cut], if block == 0 { "ends inside" } else { "not with the signature" });
    }
    // The dump header has the same signature: this is no media backup.
    let mut signature = small(Shape::Single).bytes();
    patch(&mut signature, 4, b"np");
    assert_eq!(probe(vec![signature.clone()]).percent, 60);
    assert_eq!(refused(vec![signature], "\"sadunp\\x00\\x00\"").offset, Some(0));
}

#[test]
fn damaged_dump_headers_are_refused_by_field() {
    for shape in SHAPES {
        let image = small(shape);
        for (field, value, why) in [
            (0, b"sadumq\0\0".as_slice(), "no dump header"),
            (40, &8192u32.to_le_bytes(), "blocks of 8192 bytes"),
            (40, &0u32.to_le_bytes(), "blocks of 0 bytes"),
            (52, &[0; 4], "RAM bitmap has no blocks"),
            (56, &[0; 4], "dumpable bitmap has no blocks"),
        ] {
            let mut files = image.build();
            patch(&mut files[0], image.dump_at() + field, value);
            assert_eq!(refused(files, why).offset, Some((image.dump_at() + field) as u64));
        }
    }
}

#[test]
fn a_media_backup_says_twice_whose_it_is() {
    let image = small(Shape::Media);
    for (at, value, why) in [(0, 1, "names system 01aaaaaa"), (16, 1, "names disk set 01bbbbbb"), (48, 2, "medium number 2")] {
        // A GUID's first group is a little endian number: its last byte is printed first.
        let at = if at < 48 { at + 3 } else { at };
        let mut bytes = image.bytes();
        bytes[at] = value;
        refused(vec![bytes], why);
    }
    let mut bytes = image.bytes();
    bytes[32 + 6] = 59;
    let reader = open(vec![bytes]).unwrap();
    assert!(warns(reader.as_ref(), "media header (2026-11-30 20:30:59) and partition header (2026-11-30 20:30:15) differ"));
}

#[test]
fn a_cut_file_gives_the_pages_it_has() {
    let image = small(Shape::Single);
    let at = image.data_at() as u64;
    let mut bytes = image.bytes();
    bytes.truncate(image.data_at() + 2 * PAGE + 100);
    let reader = open(vec![bytes]).unwrap();
    assert_eq!(reader.extents(), [Extent::mapped(1, 2, 0, at), Extent::absent(3, 2), Extent::absent(5, 4), Extent::absent(9, 1)]);
    assert!(reader.machine().incomplete);
    assert!(warns(reader.as_ref(), "3 pages are not in the input"));

    for len in [image.data_at() + PAGE - 1, image.data_at()] {
        refused(vec![image.bytes()[..len].to_vec()], "ends before the first of 5 pages");
        assert!(open_with(vec![image.bytes()[..len].to_vec()], "zero").is_err(), "pages of zeros are no pages of the input");
    }
    refused(vec![image.bytes()[..image.data_at() - 1].to_vec()], "before the first page");
    refused(vec![image.bytes()[..image.dump_at() + 8].to_vec()], "ends 112 bytes too early");
}

#[test]
fn an_empty_dump_is_refused() {
    refused(Sadump { max_pfn: 64, ..Sadump::new(Shape::Single, []) }.build(), "names no page");
    refused(Sadump { max_pfn: 64, ..Sadump::new(Shape::Single, crate::synth::left_out(0..9)) }.build(), "names no page");
}

#[test]
fn fields_that_mean_nothing_yet_are_pointed_out() {
    let image = small(Shape::Single);
    for (field, what) in [(36, "pages are compressed (1)"), (44, "1 blocks of a reserved header")] {
        let mut bytes = image.bytes();
        bytes[image.dump_at() + field] = 1;
        assert!(warns(open(vec![bytes]).unwrap().as_ref(), what), "{what}");
    }
    let mut bytes = image.bytes();
    patch(&mut bytes, 160, &9000u64.to_le_bytes());
    assert!(warns(open(vec![bytes]).unwrap().as_ref(), "9000 bytes are used"));
}

#[test]
fn without_a_time_in_the_partition_header_the_dump_headers_is_taken() {
    let mut bytes = small(Shape::Single).bytes();
    patch(&mut bytes, 136, &[0; 16]);
    assert_eq!(open(vec![bytes.clone()]).unwrap().machine().crash_time, TIME_UNIX);
    patch(&mut bytes, PAGE + 16, &[0; 16]);
    assert_eq!(open(vec![bytes]).unwrap().machine().crash_time, 0);
}
