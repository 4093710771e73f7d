//! The bitmaps, compared with a model that goes page by page.

use coresift_sdk::ExtentKind;

use crate::synth::{PAGE, Rng, Sadump, Shape, check, dumped, left_out, open, patch, warns};

#[test]
fn bits_are_most_significant_first() {
    let image = Sadump::new(Shape::Single, dumped([0, 7, 8, 13]));
    let bytes = image.bytes();
    assert_eq!(bytes[image.bitmap_at()..][..3], [0x81, 0x84, 0], "the builder");
    let firsts: Vec<_> = open(vec![bytes]).unwrap().extents().iter().map(|e| (e.first_pfn, e.pages)).collect();
    assert_eq!(firsts, [(0, 1), (7, 2), (13, 1)]);
}

#[test]
fn random_bitmaps_agree_with_the_model_page_by_page() {
    let mut rng = Rng(11);
    for round in 0..60 {
        // Runs of 1 to 150 pages, so that they begin and end anywhere in words of 64.
        let (mut ram, mut pfn) = (Vec::new(), rng.below(100));
        for _ in 0..1 + rng.below(12) {
            let longest = [2, 20, 150][rng.below(3) as usize];
            let run = pfn..pfn + 1 + rng.below(longest);
            pfn = run.end;
            match rng.below(4) {
                0 => {}
                1 => ram.extend(left_out(run)),
                _ => ram.extend(dumped(run)),
            }
        }
        ram.extend(dumped(pfn..=pfn));
        let shape = [Shape::Single, Shape::Media, Shape::Set(2), Shape::Set(5)][round % 4];
        let image = Sadump { version: (round % 2) as u32, ..Sadump::new(shape, ram) };
        check(&image.build(), &image, round % 3 == 0);
    }
}

#[test]
fn runs_go_on_across_chunks() {
    // A chunk is 1 MiB: 8 Mi pages.
    let edge = 8 << 20;
    let image = Sadump::new(Shape::Single, [dumped([3]), left_out(edge - 70..edge - 1), dumped(edge - 1..edge + 2)].concat());
    check(&image.build(), &image, false);
    let runs: Vec<_> = open(image.build()).unwrap().extents().iter().map(|e| (e.first_pfn, e.pages)).collect();
    assert_eq!(runs, [(3, 1), (edge - 70, 69), (edge - 1, 3)]);
}

#[test]
fn bits_behind_max_mapnr_are_no_pages() {
    for max_pfn in [1, 63, 64, 65, 66] {
        let image = Sadump { max_pfn, ..Sadump::new(Shape::Single, dumped(0..70)) };
        let reader = open(image.build()).unwrap();
        assert_eq!(reader.extents().iter().map(|e| e.pages).sum::<u64>(), max_pfn);
        assert_eq!(reader.machine().max_pfn, max_pfn);
    }
}

#[test]
fn a_max_mapnr_without_bits_is_not_believed() {
    for max_pfn in [0, 1 << 40, u64::MAX] {
        let image = Sadump { max_pfn, ..Sadump::new(Shape::Single, dumped(0..70)) };
        let reader = open(image.build()).unwrap();
        assert!(warns(reader.as_ref(), "the bitmaps have 0x8000 bits"));
        assert_eq!(reader.extents().iter().map(|e| e.pages).sum::<u64>(), 70);
    }
}

#[test]
fn dumpable_pages_that_are_no_ram_are_kept_and_pointed_out() {
    let image = Sadump::new(Shape::Single, dumped(0..70));
    let mut bytes = image.bytes();
    patch(&mut bytes, image.bitmap_at(), &[0x7f, 0xff, 0]);
    let reader = open(vec![bytes]).unwrap();
    assert!(warns(reader.as_ref(), "9 pages are dumpable, but not in the bitmap of RAM"));
    let extents = reader.extents();
    assert_eq!((extents.len(), extents[0].pages, extents[0].kind), (1, 70, ExtentKind::MAPPED));
}

#[test]
fn bitmaps_of_different_lengths_are_filled_with_zeros() {
    let image = Sadump { bitmap_blocks: 2, ..Sadump::new(Shape::Single, [dumped(0..3), left_out([0x8000])].concat()) };
    // Only one block of dumpable bitmap: the pages begin a block earlier.
    let mut bytes = image.bytes();
    bytes.drain(image.data_at() - PAGE..image.data_at());
    bytes[image.dump_at() + 56] = 1;
    let runs: Vec<_> = open(vec![bytes]).unwrap().extents().iter().map(|e| (e.first_pfn, e.pages, e.offset)).collect();
    assert_eq!(runs, [(0, 3, (image.data_at() - PAGE) as u64), (0x8000, 1, 0)]);
}
