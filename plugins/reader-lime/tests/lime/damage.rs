//! Cut and damaged files: what is there is read, what is not is said.

use coresift_sdk::PageState;

use crate::synth::{PAGE, Rng, avml, header, lime, noise, open, page, warns};

/// A header, then 4 pages; then a header and 3 pages.
fn two(compressed: bool) -> (Vec<u8>, Vec<u8>) {
    let data = noise(1, 7 * PAGE);
    let (a, b) = data.split_at(4 * 4096);
    let range = if compressed { avml } else { lime };
    ([range(0, a), range(4 * PAGE, b)].concat(), data)
}

#[test]
fn a_file_cut_anywhere_opens_as_what_it_holds() {
    for compressed in [false, true] {
        let (bytes, data) = two(compressed);
        let mut most = 0;
        for len in (0..bytes.len()).filter(|l| l % 61 == 0 || l % 4096 < 40) {
            let cut = bytes[..len].to_vec();
            let Ok(reader) = open(cut.clone()) else {
                assert_eq!(most, 0, "cut at {len}");
                continue;
            };
            let there = (0..7).filter(|&pfn| {
                page(&cut, reader.as_ref(), pfn).is_some_and(|p| {
                    assert!(p == data[pfn as usize * 4096..][..4096], "cut at {len}: page {pfn} is wrong");
                    true
                })
            });
            let there = there.count();
            assert!(there >= most, "cut at {len}: {there} pages");
            most = there;
            // Between two ranges nothing tells that one follows.
            let machine = reader.machine();
            assert_eq!(machine.incomplete, !machine.warnings.is_empty(), "cut at {len}");
            assert!(machine.incomplete || there == 4, "cut at {len}: {:?}", machine.warnings);
        }
        assert_eq!(most, if compressed { 7 } else { 6 });
    }
}

#[test]
fn a_cut_range_says_how_much_is_missing() {
    let (bytes, _) = two(false);
    let reader = open(bytes[..bytes.len() - 5000].to_vec()).unwrap();
    assert!(warns(reader.as_ref(), "5000 bytes of its last range are missing"));
    assert_eq!(reader.machine().max_pfn, 5);
}

#[test]
fn what_is_no_header_ends_a_lime_file() {
    let (mut bytes, _) = two(false);
    bytes.truncate(32 + 4 * 4096);
    bytes.extend([0; 100]);
    let reader = open(bytes.clone()).unwrap();
    assert!(warns(reader.as_ref(), "neither a LiME nor an AVML header; 100 bytes are left out"));
    assert!(reader.machine().incomplete);
    assert_eq!(reader.machine().max_pfn, 4);
}

#[test]
fn a_damaged_chunk_costs_its_own_pages() {
    let data = noise(1, 64 * PAGE);
    let mut bytes = avml(0, &data);
    // Chunks of 64 KiB are 16 pages each. The first page does not compress, so it stands near the first chunk's begin.
    bytes[32 + 10 + 8 + 1000] ^= 0x55;
    let reader = open(bytes.clone()).unwrap();
    let pfns: Vec<u64> = (0..64).collect();
    let (mut out, mut states) = (vec![0; 64 * 4096], [PageState::MISSING; 64]);
    reader.read_pages(&pfns, &mut out, &mut states).unwrap();
    let there: Vec<bool> = states.iter().map(|s| *s == PageState::PRESENT).collect();
    assert_eq!(there.iter().filter(|t| **t).count(), 48);
    let good = there.iter().zip(out.chunks(4096).zip(data.chunks(4096)));
    assert!(good.filter(|(t, _)| **t).all(|(_, (got, expected))| got == expected));
    let lost = pfns.iter().find(|p| !there[**p as usize]).unwrap();
    let error = reader.read_pages(&[*lost], &mut out[..4096], &mut states[..1]).unwrap_err();
    assert!(error.message.contains("damaged Snappy chunk") && error.pfn == Some(*lost), "{error}");
}

#[test]
fn behind_a_damaged_range_the_next_header_is_searched() {
    let (a, b, c) = (noise(1, 40 * PAGE), noise(2, 3 * PAGE), noise(3, 2 * PAGE));
    let (first, second) = (avml(0, &a), avml(100 * PAGE, &b));
    let mut bytes = [first.clone(), second, lime(200 * PAGE, &c)].concat();
    // The kind of the first range's second chunk: behind header, stream identifier and first chunk.
    let len = u32::from_le_bytes([bytes[43], bytes[44], bytes[45], 0]) as usize;
    bytes[32 + 10 + 4 + len] = 0x33;
    let reader = open(bytes.clone()).unwrap();
    assert!(warns(reader.as_ref(), "an unknown kind of Snappy chunk, 0x33"));
    assert!(warns(reader.as_ref(), "65536 of its 163840 bytes are there"));
    assert!(reader.machine().incomplete);
    let pages =
        |from: u64, count: usize| (from..from + count as u64).map(|pfn| page(&bytes, reader.as_ref(), pfn).unwrap()).collect::<Vec<_>>();
    assert!(pages(0, 16).concat() == a[..16 * 4096]);
    assert!(page(&bytes, reader.as_ref(), 16).is_none());
    assert!(pages(100, 3).concat() == b);
    assert!(pages(200, 2).concat() == c);
}

#[test]
fn a_wrong_length_behind_a_range_is_said() {
    let mut bytes = avml(0, &noise(1, PAGE));
    let at = bytes.len() - 8;
    bytes[at] ^= 1;
    let reader = open(bytes).unwrap();
    assert!(warns(reader.as_ref(), "is not that of the range"));
}

#[test]
fn headers_that_claim_what_is_not_there_take_no_memory() {
    for magic in [b"EMiL", b"AVML"] {
        let version = if magic == b"EMiL" { 1 } else { 2 };
        let huge = [header(magic, version, 0, u64::MAX - 1), vec![1; 100]].concat();
        let error = open(huge).err().unwrap();
        assert!(error.message.contains("not one whole page"), "{error}");
    }
}

#[test]
fn chunks_without_end_are_no_endless_loop() {
    // Padding chunks without a byte: 4 bytes each.
    let bytes = [header(b"AVML", 2, 0, 4095), b"\xff\x06\0\0sNaPpY".to_vec(), [0xfe, 0, 0, 0].repeat(10_000)].concat();
    assert!(open(bytes).is_err());
}

#[test]
fn random_damage_is_no_panic() {
    let mut rng = Rng(99);
    for round in 0..3000 {
        let (mut bytes, _) = two(round % 2 == 0);
        for _ in 0..1 + rng.below(4) {
            // Headers and chunk heads are worth more damage than memory.
            let at = if rng.below(2) == 0 { rng.below(80) } else { rng.below(bytes.len() as u64) };
            bytes[at as usize] = [0, 0xff, rng.next() as u8][rng.below(3) as usize];
        }
        let Ok(reader) = open(bytes.clone()) else { continue };
        for extent in reader.extents().iter().take(10) {
            let last = extent.end_pfn() - 1;
            for pfn in [extent.first_pfn, last] {
                let _ = page(&bytes, reader.as_ref(), pfn);
            }
        }
    }
}
