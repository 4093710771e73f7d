//! Disks in any order, missing, twice, or of another set.

use coresift_sdk::{Extent, ExtentKind};

use crate::synth::{PAGE, Rng, Sadump, Shape, check, dumped, left_out, open, patch, refused, small, warns};

#[test]
fn the_order_of_inputs_does_not_matter() {
    let image = Sadump { disk_set_blocks: 2, ..Sadump::new(Shape::Set(3), [dumped(0..9), left_out(9..20), dumped(20..30)].concat()) };
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let files = image.build();
        check(&order.map(|i| files[i].clone()), &image, false);
    }
}

#[test]
fn each_disk_has_the_next_part_of_the_pages() {
    let image = Sadump { shares: vec![2 * PAGE, PAGE], ..Sadump::new(Shape::Set(3), dumped(0..5)) };
    let at = image.data_at() as u64;
    let mut files = image.build();
    files.swap(0, 2);
    assert_eq!(open(files).unwrap().extents(), [Extent::mapped(0, 2, 2, at), Extent::mapped(2, 1, 1, 4096), Extent::mapped(3, 2, 0, 4096)]);
}

#[test]
fn a_disk_may_have_no_pages() {
    let image = Sadump { shares: vec![0, 0, 3 * PAGE], ..Sadump::new(Shape::Set(4), dumped(0..3)) };
    check(&image.build(), &image, false);
}

#[test]
fn pages_across_two_disks_are_put_together() {
    let mut rng = Rng(5);
    for _ in 0..50 {
        let mut left = 8 * PAGE;
        let shares: Vec<usize> = (0..3)
            .map(|_| {
                let share = rng.below(left as u64 + 1) as usize;
                left -= share;
                share
            })
            .collect();
        let image = Sadump { shares, ..Sadump::new(Shape::Set(4), [dumped(3..7), left_out(7..9), dumped(9..13)].concat()) };
        check(&image.build(), &image, false);
        check(&image.build(), &image, true);
    }
    let image = Sadump { shares: vec![PAGE + 10], ..Sadump::new(Shape::Set(2), dumped(0..4)) };
    let kinds: Vec<_> = open(image.build()).unwrap().extents().iter().map(|e| (e.first_pfn, e.pages, e.kind)).collect();
    assert_eq!(kinds, [(0, 1, ExtentKind::MAPPED), (1, 1, ExtentKind::ENCODED), (2, 2, ExtentKind::MAPPED)]);
}

#[test]
fn what_stands_behind_the_used_bytes_is_not_looked_at() {
    // Dump devices are larger than dumps, and have pages of older ones at their ends.
    for shape in [Shape::Single, Shape::Media, Shape::Set(3)] {
        let image = Sadump { shares: vec![PAGE + 10, 3 * PAGE], ..Sadump::new(shape, [dumped(0..9), left_out(9..12)].concat()) };
        let mut files = image.build();
        files.iter_mut().for_each(|f| f.extend([0xdd; 3 * PAGE]));
        check(&files, &image, false);
    }
}

#[test]
fn a_cut_disk_costs_its_own_pages_only() {
    let image = Sadump { shares: vec![3 * PAGE], ..Sadump::new(Shape::Set(2), dumped(0..6)) };
    let mut files = image.build();
    let len = files[0].len();
    files[0].truncate(len - 2 * PAGE + 1);
    let reader = open(files).unwrap();
    assert_eq!(reader.extents(), [Extent::mapped(0, 1, 0, image.data_at() as u64), Extent::absent(1, 2), Extent::mapped(3, 3, 1, 4096)]);
    assert!(reader.machine().incomplete);
}

#[test]
fn pages_that_no_disk_has_are_lost() {
    let image = small(Shape::Set(2));
    let mut files = image.build();
    // The last disk uses a page less than it should.
    patch(&mut files[1], 160, &(3 * PAGE as u64).to_le_bytes());
    let reader = open(files).unwrap();
    assert_eq!(reader.extents().last(), Some(&Extent::absent(9, 1)));
    assert!(warns(reader.as_ref(), "1 pages are not in the input"));
}

#[test]
fn missing_disks_are_named() {
    let files = small(Shape::Set(4)).build();
    let error = refused(vec![files[2].clone(), files[0].clone()], "has 4 disks; missing: disk 2");
    assert!(error.message.contains("disk 2 (volume 12121212-1212-1212-1212-121212121212), disk 4 (volume 14141414-"), "{error}");
    refused(vec![files[2].clone(), files[1].clone()], "disk 1 of the sadump disk set is missing");
    refused(vec![files[2].clone()], "input 0 is disk 3");
    refused(vec![files[0].clone()], "missing: disk 2");
}

#[test]
fn a_disk_twice_is_named() {
    let files = small(Shape::Set(3)).build();
    let twice = |i: usize| [files.as_slice(), &files[i..=i]].concat();
    refused(twice(0), "input 0 and input 3 are both disk 1 (of the same set)");
    refused(twice(2), "input 2 and input 3 are both disk 3");
    let mut other = twice(0);
    other[3][104] = 1;
    refused(other, "are both disk 1 (of different sets)");
}

#[test]
fn foreign_disks_are_named_with_the_reason() {
    for (at, value, why) in [
        (88, 0xcc, "it is of system aaaaaacc-aaaa-"),
        (104, 0xcc, "its disk set ID is bbbbbbcc-"),
        (120, 0xcc, "its volume ID is 121212cc-1212-1212-1212-121212121212, disk 1 lists 12121212-"),
        (152, 7, "it is disk 7, the set has 2 disks"),
    ] {
        let mut files = small(Shape::Set(2)).build();
        files[1][at] = value;
        let error = refused(files, why);
        assert!(error.message.starts_with("input 1: "), "{error}");
        assert_eq!(error.offset, Some(at as u64));
    }
    let mut files = small(Shape::Set(2)).build();
    files[1][136 + 6] = 59;
    assert!(warns(open(files).unwrap().as_ref(), "differ"), "only time stamps may differ");
}

#[test]
fn what_is_no_disk_of_a_set_is_named() {
    let files = small(Shape::Set(2)).build();
    let with = |other: Vec<u8>| vec![files[0].clone(), other];
    refused(with(small(Shape::Single).bytes()), "input 1: not a disk of a sadump disk set: a single partition");
    refused(with(small(Shape::Media).bytes()), "input 1: not a disk of a sadump disk set: a media backup");
    refused(with(vec![0; 9000]), "input 1: not a disk of a sadump disk set: no sadump signature");
    let mut damaged = files[1].clone();
    damaged[4000] ^= 1;
    refused(with(damaged), "input 1: wrong magic number");
    refused(vec![small(Shape::Single).bytes(), small(Shape::Single).bytes()], "a single partition, which is a dump by itself");
}

#[test]
fn damaged_disk_set_headers_are_refused() {
    let image = small(Shape::Set(2));
    for (at, value, why) in
        [(0, 0u32, "has no blocks"), (4, 0, "counts 0 disks"), (4, 17, "counts 17 disks"), (4, u32::MAX, "disks; a set has")]
    {
        let mut files = image.build();
        patch(&mut files[0], PAGE + at, &value.to_le_bytes());
        refused(files, why);
    }
    let mut files = image.build();
    patch(&mut files[0], PAGE, &u32::MAX.to_le_bytes());
    refused(files, "too early");
    let mut files = image.build();
    patch(&mut files[1], 160, &4095u64.to_le_bytes());
    refused(files, "disk 2 uses 4095 bytes, less than its headers take");
}
