//! Cut at any point, the file is no dump yet, or one without a wrong page.

// clippy.toml allows these in test functions only, not in their helpers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, dead_code)]

mod common;

use common::{Op, Pages, Recorder, Seen, compressed, dump, machine, plan, read, writer};
use coresift_sdk::{End, Machine, PackedBatch, PackedPage, Plan};

const WHOLE: End = End { incomplete: false, lost_pages: 0 };
const CUT: End = End { incomplete: true, lost_pages: 0 };
const INCOMPLETE: u32 = 8;

/// 40 pages: raw, "compressed" to many lengths with every codec, zero.
struct Content(Vec<(u64, u32, Vec<u8>)>);

impl Content {
    fn new() -> Self {
        let page = |i: u64| {
            let codec = [0, 1, 2, 4, 0x20, 0][i as usize % 6];
            let data = match (codec, i % 6) {
                (0, 5) => Vec::new(),
                (0, _) => (0..4096).map(|at| (at * 31 + i) as u8).collect(),
                _ => compressed((i as usize * 97) % 4000 + 4, i),
            };
            (i * i + 3, codec, data)
        };
        Self((0..40).map(page).collect())
    }

    /// As the host packs them: no bytes are a zero page.
    fn packed(&self) -> Vec<(u64, PackedPage<'_>)> {
        let packed = |data, codec| if <[u8]>::is_empty(data) { PackedPage::zero() } else { PackedPage::stored(data, codec) };
        self.0.iter().map(|(pfn, codec, data)| (*pfn, packed(data, *codec))).collect()
    }

    fn pages(&self) -> Pages {
        let dumped: Vec<u64> = self.0.iter().map(|page| page.0).collect();
        Pages { ram: dumped.clone(), dumped }
    }

    /// Panics if a page is other than it should be; returns how many are there.
    fn check(&self, seen: &Seen) -> usize {
        let zero = vec![0; 4096];
        for (pfn, codec, data) in &seen.there {
            let (_, expected_codec, expected) = self.0.iter().find(|page| page.0 == *pfn).unwrap();
            let expected = if expected.is_empty() { &zero } else { expected };
            assert!((codec, data) == (expected_codec, expected), "PFN {pfn:#x} is wrong");
        }
        seen.there.len()
    }
}

fn small() -> Machine {
    Machine { max_pfn: 2000, ..machine("x86_64", 62, 64, false) }
}

/// Cuts at every operation, at every byte of those that are short (descriptors, signature, status), and at some bytes of
/// the others.
fn every_cut_opens(stream: bool) {
    let (machine, content) = (small(), Content::new());
    let pages = content.pages();
    let mut sink = Recorder { stream, ..Recorder::default() };
    dump(&plan(&machine, &pages), &content.packed(), 7, &WHOLE, &mut sink).unwrap();
    let (mut most, mut cuts) = (0, 0);
    for (whole, op) in sink.ops.iter().enumerate() {
        let Op::Write(_, data) = op else { continue };
        for bytes in (0..data.len()).step_by(if data.len() < 200 { 1 } else { 499 }) {
            cuts += 1;
            let Some(seen) = read(&sink.cut(whole, bytes)) else { continue };
            let there = content.check(&seen);
            assert!(there >= most, "pages that were there stay there");
            most = there;
            // The last write takes the mark away; a stream has no status before it.
            assert!(stream || seen.status & INCOMPLETE != 0 || whole + 1 == sink.ops.len());
        }
    }
    assert!(cuts > 1000 && most == 40, "{cuts} cuts, {most} pages at the last");
    let seen = read(&sink.file()).unwrap();
    assert_eq!((content.check(&seen), seen.lost.len(), seen.status), (40, 0, 0x20));
}

#[test]
fn a_file_cut_anywhere_shows_no_wrong_page() {
    every_cut_opens(false);
}

#[test]
fn a_stream_cut_anywhere_shows_no_wrong_page() {
    every_cut_opens(true);
}

#[test]
fn a_finished_file_cut_at_any_length_shows_no_wrong_page() {
    let (machine, content) = (small(), Content::new());
    let pages = content.pages();
    let mut sink = Recorder::default();
    dump(&plan(&machine, &pages), &content.packed(), 7, &WHOLE, &mut sink).unwrap();
    let file = sink.file();
    let data = 4 * 4096 + 40 * 24 + 4096;
    for len in (4 * 4096..file.len()).step_by(61) {
        let seen = read(&file[..len]).unwrap();
        content.check(&seen);
        assert!(!seen.lost.is_empty(), "{len} of {} bytes, data from {data} on", file.len());
    }
}

#[test]
fn a_stream_writes_no_byte_twice() {
    let (machine, content) = (small(), Content::new());
    let pages = content.pages();
    for end in [WHOLE, CUT] {
        let mut sink = Recorder { stream: true, ..Recorder::default() };
        dump(&plan(&machine, &pages), &content.packed(), 7, &end, &mut sink).unwrap();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for op in &sink.ops {
            if let Op::Write(at, data) = op {
                ranges.push((*at, at + data.len() as u64));
            }
        }
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
        let status = read(&sink.file()).unwrap().status;
        assert_eq!(status, if end.incomplete { 0x28 } else { 0x20 });
    }
}

#[test]
fn data_goes_before_its_descriptors_and_these_before_its_bits_in_three_writes_a_batch() {
    let (machine, content) = (small(), Content::new());
    let pages = content.pages();
    let mut sink = Recorder::default();
    dump(&plan(&machine, &pages), &content.packed(), 20, &WHOLE, &mut sink).unwrap();
    let writes: Vec<(u64, usize)> =
        sink.ops.iter().filter_map(|op| if let Op::Write(at, data) = op { Some((*at, data.len())) } else { None }).collect();
    let (dumped, descriptors) = (3 * 4096, 4 * 4096);
    let data = descriptors + 40 * 24 + 4096;
    let tail = &writes[writes.len() - 7..];
    assert_eq!(tail[0].0, data);
    assert_eq!(tail[1], (descriptors, 20 * 24));
    // PFNs i * i + 3: 3 to 364, then 403 to 1524.
    assert_eq!(tail[2], (dumped, 364 / 8 + 1));
    assert_eq!(tail[3].0, data + tail[0].1 as u64);
    assert_eq!(tail[4], (descriptors + 20 * 24, 20 * 24));
    assert_eq!(tail[5], (dumped + 364 / 8, 1524 / 8 - 364 / 8 + 1));
    assert_eq!(tail[6], (424, 4));
}

#[test]
fn a_missing_page_is_not_claimed_and_a_lost_one_keeps_the_mark() {
    let (machine, content) = (small(), Content::new());
    let pages = content.pages();
    let mut packed = content.packed();
    packed[11].1 = PackedPage::missing();
    // Excluded by its bytes, or unreadable: only the host knows.
    for (lost_pages, status, stream) in [(0, 0x20, false), (1, 0x28, false), (0, 0x20, true), (1, 0x28, true)] {
        let mut sink = Recorder { stream, ..Recorder::default() };
        dump(&plan(&machine, &pages), &packed, 7, &End { incomplete: false, lost_pages }, &mut sink).unwrap();
        let seen = read(&sink.file()).unwrap();
        // A stream has claimed it in front; there crash needs a codec in the empty descriptor.
        let claimed = if stream { vec![packed[11].0] } else { Vec::new() };
        assert_eq!((content.check(&seen), seen.lost, seen.status), (39, claimed, status));
        if stream {
            let descriptor = &sink.file()[4 * 4096 + 11 * 24..][..24];
            assert_eq!((&descriptor[..12], descriptor[12]), (&[0; 12][..], 1));
        }
    }
}

#[test]
fn a_batch_that_fails_is_not_claimed_and_may_come_again_in_pieces() {
    let (machine, content) = (small(), Content::new());
    let pages = content.pages();
    let packed = content.packed();
    let mut sound = Recorder::default();
    dump(&plan(&machine, &pages), &packed, 40, &WHOLE, &mut sound).unwrap();
    let begun = sound.ops.len() - 4;
    for fail_at in begun..begun + 3 {
        let mut sink = Recorder { fail_at: Some(fail_at), ..Recorder::default() };
        let mut writer = writer();
        writer.begin(&plan(&machine, &pages), &mut sink).unwrap();
        let (pfns, contents): (Vec<u64>, Vec<PackedPage<'_>>) = packed.iter().copied().unzip();
        writer.write(&PackedBatch::new(&pfns, &contents), &mut sink).unwrap_err();
        content.check(&read(&sink.file()).unwrap());
        let (first, second) = (&packed[..13], &packed[13..]);
        for part in [first, second] {
            let (pfns, contents): (Vec<u64>, Vec<PackedPage<'_>>) = part.iter().copied().unzip();
            writer.write(&PackedBatch::new(&pfns, &contents), &mut sink).unwrap();
        }
        writer.finish(&WHOLE, &mut sink).unwrap();
        let seen = read(&sink.file()).unwrap();
        assert_eq!((content.check(&seen), seen.lost.len(), seen.status), (40, 0, 0x20));
    }
}

#[test]
fn what_the_host_gets_wrong_is_refused_not_written() {
    let (machine, content) = (small(), Content::new());
    let pages = content.pages();
    let plan = plan(&machine, &pages);
    let begun = || {
        let (mut writer, mut sink) = (writer(), Recorder::default());
        writer.begin(&plan, &mut sink).unwrap();
        (writer, sink)
    };
    let page = vec![1; 4097];
    let bad = [
        ("a short raw page", PackedPage::stored(&page[..4095], 0)),
        ("a long raw page", PackedPage::stored(&page, 0)),
        ("a compressed page as long as a page", PackedPage::stored(&page[..4096], 1)),
        ("a compressed page without bytes", PackedPage::stored(&[], 1)),
        ("an unknown codec", PackedPage::stored(&page[..9], 0x40)),
        ("two codecs", PackedPage::stored(&page[..9], 3)),
    ];
    for (what, page) in bad {
        let (mut writer, mut sink) = begun();
        assert!(writer.write(&PackedBatch::new(&[3], &[page]), &mut sink).is_err(), "{what}");
    }
    let (mut writer, mut sink) = begun();
    assert!(writer.write(&PackedBatch::new(&[7, 4], &[PackedPage::zero(); 2]), &mut sink).is_err(), "PFNs that go back");

    let (mut writer, mut sink) = begun();
    let pfns: Vec<u64> = (0..41).collect();
    assert!(writer.write(&PackedBatch::new(&pfns, &[PackedPage::zero(); 41]), &mut sink).is_err(), "more pages than planned");

    let (mut writer, mut sink) = begun();
    assert!(writer.finish(&WHOLE, &mut sink).is_err(), "no pages at all");
    assert_eq!(read(&sink.file()).unwrap().status, 0x28);
    assert!(writer.finish(&WHOLE, &mut sink).is_err(), "finished twice");
}

#[test]
fn a_dump_without_pages_opens() {
    let machine = small();
    let pages = Pages::default();
    let mut sink = Recorder::default();
    let plan = Plan { codec: 0, ..plan(&machine, &pages) };
    dump(&plan, &[], 1, &WHOLE, &mut sink).unwrap();
    let seen = read(&sink.file()).unwrap();
    assert_eq!((seen.there.len(), seen.lost.len(), seen.status), (0, 0, 0));
}
