//! From ranges to pages.

use coresift_sdk::{Extent, PageState};

use crate::synth::{PAGE, Rng, avml, avml_cut, extents, lime, noise, open, page, warns};

/// Bytes of a header.
const HEADER: u64 = 32;

#[test]
fn stored_ranges_are_mapped_where_they_are() {
    let bytes = [lime(PAGE, &noise(1, 3 * PAGE)), lime(16 * PAGE, &noise(2, PAGE))].concat();
    let second = HEADER + 3 * PAGE + HEADER;
    assert_eq!(extents(bytes.clone()), [Extent::mapped(1, 3, 0, HEADER), Extent::mapped(16, 1, 0, second)]);
    let machine = open(bytes).unwrap().machine();
    assert!(machine.warnings.is_empty() && !machine.incomplete);
}

#[test]
fn compressed_ranges_give_the_same_bytes_in_any_order() {
    let (a, b) = (noise(3, 300 * PAGE), noise(4, 50 * PAGE));
    let bytes = [avml(PAGE, &a), avml(1000 * PAGE, &b)].concat();
    assert!(bytes.len() < a.len() + b.len(), "it is compressed");
    let reader = open(bytes.clone()).unwrap();
    assert_eq!(reader.extents(), [Extent::encoded(1, 300), Extent::encoded(1000, 50)]);
    assert!(!reader.machine().incomplete && reader.machine().warnings.is_empty());

    let all: Vec<u64> = (1..301).chain(1000..1050).collect();
    let (mut out, mut states) = (vec![0; all.len() * 4096], vec![PageState::MISSING; all.len()]);
    reader.read_pages(&all, &mut out, &mut states).unwrap();
    assert!(states.iter().all(|s| *s == PageState::PRESENT));
    assert!(out == [a.clone(), b].concat());

    let mut rng = Rng(7);
    for _ in 0..500 {
        let pfn = 1 + rng.below(300);
        assert!(page(&bytes, reader.as_ref(), pfn).unwrap() == a[(pfn as usize - 1) * 4096..][..4096], "page {pfn}");
    }
}

#[test]
fn chunks_of_any_length_are_found() {
    // Longer than what lies between two entries of the index, and not in line with pages.
    let data = noise(5, 600 * PAGE);
    for cut in [1000, 4096, 10_000, 65_536] {
        let bytes = avml_cut(PAGE, &data, cut);
        let reader = open(bytes.clone()).unwrap();
        for pfn in [1, 2, 17, 255, 256, 257, 258, 300, 599, 600] {
            assert!(page(&bytes, reader.as_ref(), pfn).unwrap() == data[(pfn as usize - 1) * 4096..][..4096], "{cut}: page {pfn}");
        }
    }
}

#[test]
fn a_file_may_have_ranges_of_both_kinds() {
    let bytes = [lime(0, &noise(1, PAGE)), avml(PAGE, &noise(2, PAGE)), lime(2 * PAGE, &noise(3, PAGE))].concat();
    let reader = open(bytes.clone()).unwrap();
    for pfn in 0..3 {
        assert!(page(&bytes, reader.as_ref(), pfn).unwrap() == noise(pfn + 1, PAGE));
    }
    assert_eq!(reader.extents().len(), 3);
}

#[test]
fn threads_read_at_once() {
    let data = noise(6, 400 * PAGE);
    let bytes = avml(0, &data);
    let reader = open(bytes).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let (reader, data) = (&reader, &data);
            scope.spawn(move || {
                let pfns: Vec<u64> = (t * 100..t * 100 + 100).collect();
                let (mut out, mut states) = (vec![0; 100 * 4096], [PageState::MISSING; 100]);
                reader.read_pages(&pfns, &mut out, &mut states).unwrap();
                assert!(out == data[t as usize * 100 * 4096..][..100 * 4096]);
            });
        }
    });
}

#[test]
fn edges_within_a_page_are_filled_with_zeros_and_said() {
    let data = noise(1, 2 * PAGE);
    for bytes in [lime(PAGE + 100, &data), avml(PAGE + 100, &data)] {
        let reader = open(bytes.clone()).unwrap();
        assert!(warns(reader.as_ref(), "2 pages are there only in part"));
        let first = page(&bytes, reader.as_ref(), 1).unwrap();
        assert_eq!((&first[..100], &first[100..]), (&[0; 100][..], &data[..4096 - 100]));
        assert!(page(&bytes, reader.as_ref(), 2).unwrap() == data[4096 - 100..8192 - 100]);
        let last = page(&bytes, reader.as_ref(), 3).unwrap();
        assert_eq!((&last[..100], &last[100..]), (&data[8192 - 100..], &[0; 4096 - 100][..]));
    }
}

#[test]
fn a_page_across_ranges_is_put_together_without_a_warning() {
    let (a, b) = (noise(1, PAGE + 1000), noise(2, 2 * PAGE - 1000));
    let bytes = [avml(0, &a), lime(PAGE + 1000, &b)].concat();
    let reader = open(bytes.clone()).unwrap();
    assert_eq!(extents(bytes.clone()), [Extent::encoded(0, 2), Extent::mapped(2, 1, 0, bytes.len() as u64 - PAGE)]);
    assert!(page(&bytes, reader.as_ref(), 1).unwrap() == [&a[4096..], &b[..4096 - 1000]].concat());
    assert!(reader.machine().warnings.is_empty());
}

#[test]
fn pages_that_are_not_there_are_missing() {
    let reader = open(avml(PAGE, &noise(1, PAGE))).unwrap();
    let (mut out, mut states) = (vec![0; 4 * 4096], [PageState::PRESENT; 4]);
    reader.read_pages(&[0, 1, 77, u64::MAX], &mut out, &mut states).unwrap();
    assert_eq!(states.map(|s| s == PageState::PRESENT), [false, true, false, false]);
    assert!(reader.read_pages(&[1], &mut out, &mut states[..1]).is_err(), "room for four pages, one asked for");
}

#[test]
fn random_ranges_agree_with_the_model_byte_by_byte() {
    const PAGES: u64 = 24;
    let mut rng = Rng(20);
    for round in 0..300 {
        let unit = [1, 512, PAGE][rng.below(3) as usize];
        let (mut bytes, mut model) = (Vec::new(), vec![None; (PAGES * PAGE) as usize]);
        let (mut total, mut described) = (0, String::new());
        for i in 0..1 + rng.below(7) {
            let start = rng.below(PAGES * PAGE / unit - 1);
            let len = 1 + rng.below((PAGES * PAGE / unit - start).min(6 * PAGE / unit));
            let data = noise(round * 8 + i, len * unit);
            let compressed = rng.below(2) == 0;
            bytes.extend(if compressed { avml_cut(start * unit, &data, 3000) } else { lime(start * unit, &data) });
            (start as usize * unit as usize..).zip(&data).for_each(|(at, byte)| model[at] = model[at].or(Some(*byte)));
            total += len * unit;
            described += &format!("{:#x}+{:#x} {compressed}; ", start * unit, len * unit);
        }
        let reader = open(bytes.clone()).unwrap();
        extents(bytes.clone());
        for pfn in 0..PAGES {
            let expected = &model[(pfn * PAGE) as usize..][..4096];
            match page(&bytes, reader.as_ref(), pfn) {
                Some(got) => assert!(got.iter().zip(expected).all(|(g, e)| *g == e.unwrap_or(0)), "round {round}, {pfn}: {described}"),
                None => assert!(expected.iter().all(Option::is_none), "round {round}, page {pfn}: {described}"),
            }
        }
        let twice = total - model.iter().flatten().count() as u64;
        assert_eq!(warns(reader.as_ref(), &format!("overlap: {twice} bytes")), twice > 0, "round {round}: {described}");
        let partial = model.chunks(4096).filter(|p| p.iter().any(Option::is_none) && p.iter().any(Option::is_some)).count();
        assert_eq!(warns(reader.as_ref(), &format!("{partial} pages are there only in part")), partial > 0, "round {round}: {described}");
    }
}

#[test]
fn many_ranges_out_of_order_are_sorted() {
    let bytes: Vec<u8> = (0..3000u64).rev().flat_map(|i| lime(2 * i * PAGE, &noise(i, PAGE))).collect();
    let found = extents(bytes);
    assert_eq!((found.len(), found[0].first_pfn, found[2999].first_pfn), (3000, 0, 5998));
}
