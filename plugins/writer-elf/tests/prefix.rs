//! Cut at any point, the file is no dump yet, or an incomplete one without a wrong page.

// clippy.toml allows these in test functions only, not in their helpers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, dead_code)]

mod common;

use std::collections::BTreeMap;

use common::{Pages, Parsed, Recorder, WHOLE, dump, machine, page, plan, writer};
use coresift_sdk::{End, Machine, PackedBatch, PackedPage};

const CUT: End = End { incomplete: true, lost_pages: 0 };

/// Headers of [`Content`]: 64 + 8 * 56 bytes, and 100 of notes; pages begin at the next page.
const DATA_AT: u64 = 4096;

/// 40 pages in 7 runs; every third, and the last, is zero.
struct Content(BTreeMap<u64, Vec<u8>>);

impl Content {
    fn new() -> Self {
        let pfns = [0..3, 5..6, 9..20, 40..52, 300..306, 309..313, 1000..1003].into_iter().flatten();
        Self(pfns.map(|pfn| (pfn, if pfn % 3 == 0 || pfn == 1002 { vec![0; 4096] } else { page(pfn, 4096) })).collect())
    }

    /// As the host packs them.
    fn packed(&self) -> Vec<(u64, PackedPage<'_>)> {
        let zero = |data: &[u8]| data.iter().all(|&b| b == 0);
        self.0.iter().map(|(&pfn, data)| (pfn, if zero(data) { PackedPage::zero() } else { PackedPage::stored(data, 0) })).collect()
    }

    fn pages(&self) -> Pages {
        Pages { ram: (0..2000).collect(), ..Pages::all(self.0.keys().copied()) }
    }

    /// Panics if a page is other than it should be; returns how many dumped ones are there.
    fn check(&self, file: &[u8], elf: &Parsed) -> usize {
        let there = elf.pages(file);
        for (pfn, data) in &there {
            let expected = self.0.get(pfn).map_or(&[0; 4096][..], |page| page);
            assert!(*data == expected, "PFN {pfn:#x} is wrong");
        }
        self.0.keys().filter(|pfn| there.contains_key(pfn)).count()
    }
}

fn small() -> Machine {
    Machine { max_pfn: 2000, ..machine("x86_64", 62, 64, false) }
}

#[test]
fn a_file_cut_anywhere_is_an_incomplete_dump_without_a_wrong_page() {
    let (machine, content) = (small(), Content::new());
    let pages = content.pages();
    for holes in ["exact", "coarse"] {
        let mut sink = Recorder::default();
        dump(holes, &plan(&machine, &pages), &content.packed(), 7, &WHOLE, &mut sink).unwrap();
        let (mut most, mut cuts, mut opened) = (0, 0, 0);
        for (whole, (_, data)) in sink.writes.iter().enumerate() {
            for bytes in (0..data.len()).step_by(if data.len() < 600 { 1 } else { 97 }) {
                cuts += 1;
                let file = sink.cut(whole, bytes);
                let Some(elf) = Parsed::of(&file) else { continue };
                opened += 1;
                // The last write takes the mark away, in its first byte.
                assert!(elf.incomplete() || (whole + 1 == sink.writes.len() && bytes > 0), "{bytes} bytes of write {whole}");
                assert_eq!(elf.notes(&file), machine.notes);
                let there = content.check(&file, &elf);
                assert!(there >= most, "pages that were there stay there");
                most = there;
            }
        }
        assert!(cuts > 1500 && opened > 1000 && most == 40, "{cuts} cuts, {opened} open, {most} pages at the last");
        let file = sink.file();
        let elf = Parsed::of(&file).unwrap();
        assert_eq!((content.check(&file, &elf), elf.incomplete()), (40, false));
    }
}

#[test]
fn after_every_batch_all_pages_that_came_are_there() {
    let (machine, content) = (small(), Content::new());
    let (pages, packed) = (content.pages(), content.packed());
    for batch in 1..=packed.len() {
        let (mut sink, mut writer) = (Recorder::default(), writer("exact"));
        writer.begin(&plan(&machine, &pages), &mut sink).unwrap();
        let mut come = 0;
        for pages in packed.chunks(batch) {
            let (pfns, contents): (Vec<u64>, Vec<PackedPage<'_>>) = pages.iter().copied().unzip();
            writer.write(&PackedBatch::new(&pfns, &contents), &mut sink).unwrap();
            come += pages.len();
            let file = sink.file();
            let elf = Parsed::of(&file).unwrap();
            assert_eq!((content.check(&file, &elf), elf.incomplete()), (come, true));
        }
        writer.finish(&WHOLE, &mut sink).unwrap();
        assert!(!Parsed::of(&sink.file()).unwrap().incomplete());
    }
}

#[test]
fn a_stream_is_written_in_order_and_becomes_the_same_file() {
    let (machine, content) = (small(), Content::new());
    let pages = content.pages();
    for holes in ["exact", "coarse"] {
        for end in [WHOLE, CUT] {
            let (mut stream, mut file) = (Recorder { stream: true, ..Recorder::default() }, Recorder::default());
            dump(holes, &plan(&machine, &pages), &content.packed(), 7, &end, &mut stream).unwrap();
            dump(holes, &plan(&machine, &pages), &content.packed(), 7, &end, &mut file).unwrap();
            assert!(stream.file() == file.file());
            assert_eq!(Parsed::of(&stream.file()).unwrap().incomplete(), end.incomplete);
            // One hole, the flags (e_flags stands at 48 in ELF64), which come last: no byte is written twice.
            let (flags, data) = stream.writes.split_last().unwrap();
            assert_eq!((flags.0, flags.1.len()), (48, 4));
            let mut at = 0;
            for (offset, bytes) in data {
                assert_eq!(*offset, if at == 48 { 52 } else { at });
                at = offset + bytes.len() as u64;
            }
            assert_eq!(at, stream.file().len() as u64);
        }
    }
}

#[test]
fn adjacent_pages_are_one_write_and_zero_pages_are_holes() {
    let machine = small();
    let pages = Pages::all((0..20).chain(100..110));
    let bytes: Vec<Vec<u8>> = pages.dumped.iter().map(|&pfn| page(pfn, 4096)).collect();
    let zero = |pfn| [4, 5, 18, 19, 109].contains(&pfn);
    let packed = |(&pfn, bytes)| (pfn, if zero(pfn) { PackedPage::zero() } else { PackedPage::stored(bytes, 0) });
    let content: Vec<_> = pages.dumped.iter().zip(bytes.iter().map(Vec::as_slice)).map(packed).collect();
    let mut sink = Recorder::default();
    dump("exact", &plan(&machine, &pages), &content, 100, &WHOLE, &mut sink).unwrap();
    let writes: Vec<(u64, usize)> = sink.writes.iter().map(|(at, data)| (at / 4096, data.len() / 4096)).collect();
    // Behind the headers: pages 0 to 3, 6 to 17, and 20 to 29 of the file; the last is zero but has to be there.
    let data: Vec<_> = writes.into_iter().filter(|(at, _)| *at > 0).collect();
    assert_eq!(data, [(1, 4), (7, 12), (21, 10)]);
    assert_eq!(sink.file().len() as u64, DATA_AT + 30 * 4096);
}

#[test]
fn missing_pages_read_as_zeros_and_keep_the_mark() {
    let (machine, content) = (small(), Content::new());
    let pages = content.pages();
    for stream in [false, true] {
        // In the middle, and the last.
        for (index, pfn) in [(12, 17), (39, 1002)] {
            let mut packed = content.packed();
            assert_eq!(packed[index].0, pfn);
            packed[index].1 = PackedPage::missing();
            let mut sink = Recorder { stream, ..Recorder::default() };
            dump("exact", &plan(&machine, &pages), &packed, 7, &WHOLE, &mut sink).unwrap();
            let file = sink.file();
            let elf = Parsed::of(&file).unwrap();
            assert!(elf.incomplete());
            let there = elf.pages(&file);
            assert!(there.len() == 40 && there[&pfn].iter().all(|&b| b == 0));
        }
        let mut sink = Recorder { stream, ..Recorder::default() };
        let lost = End { incomplete: false, lost_pages: 1 };
        dump("exact", &plan(&machine, &pages), &content.packed(), 7, &lost, &mut sink).unwrap();
        assert!(Parsed::of(&sink.file()).unwrap().incomplete());
    }
}

#[test]
fn a_batch_that_fails_may_come_again_in_pieces_and_with_less() {
    let (machine, content) = (small(), Content::new());
    let (pages, packed) = (content.pages(), content.packed());
    let mut sound = Recorder::default();
    dump("exact", &plan(&machine, &pages), &packed, 40, &WHOLE, &mut sound).unwrap();
    let first = sound.writes.iter().position(|(at, _)| *at == DATA_AT || *at == DATA_AT + 4096).unwrap();
    for fail_at in first..sound.writes.len() - 1 {
        let mut sink = Recorder { fail_at: Some(fail_at), ..Recorder::default() };
        let mut writer = writer("exact");
        writer.begin(&plan(&machine, &pages), &mut sink).unwrap();
        let (pfns, contents): (Vec<u64>, Vec<PackedPage<'_>>) = packed.iter().copied().unzip();
        writer.write(&PackedBatch::new(&pfns, &contents), &mut sink).unwrap_err();
        let file = sink.file();
        content.check(&file, &Parsed::of(&file).unwrap());
        // What was to be stored is withheld now: nothing of it may stay.
        let withheld: Vec<_> = packed.iter().map(|(pfn, _)| (*pfn, PackedPage::missing())).collect();
        for part in [&withheld[..13], &withheld[13..39], &withheld[39..]] {
            let (pfns, contents): (Vec<u64>, Vec<PackedPage<'_>>) = part.iter().copied().unzip();
            writer.write(&PackedBatch::new(&pfns, &contents), &mut sink).unwrap();
        }
        writer.finish(&WHOLE, &mut sink).unwrap();
        let file = sink.file();
        let elf = Parsed::of(&file).unwrap();
        assert!(elf.incomplete() && elf.pages(&file).len() == 40);
        assert!(elf.pages(&file).values().all(|page| page.iter().all(|&b| b == 0)), "write {fail_at}");
    }
}

#[test]
fn what_the_host_gets_wrong_is_refused() {
    let (machine, content) = (small(), Content::new());
    let pages = content.pages();
    let plan = plan(&machine, &pages);
    let begun = |holes| {
        let (mut writer, mut sink) = (writer(holes), Recorder::default());
        writer.begin(&plan, &mut sink).unwrap();
        (writer, sink)
    };
    let bytes = vec![1; 4097];
    for page in [PackedPage::stored(&bytes[..4095], 0), PackedPage::stored(&bytes, 0), PackedPage::stored(&bytes[..4096], 1)] {
        let (mut writer, mut sink) = begun("exact");
        assert!(writer.write(&PackedBatch::new(&[2], &[page]), &mut sink).is_err());
    }
    for pfns in [&[3][..], &[1999], &[2, 1], &[2, 2], &[u64::MAX]] {
        let (mut writer, mut sink) = begun("exact");
        let zeros = vec![PackedPage::zero(); pfns.len()];
        assert!(writer.write(&PackedBatch::new(pfns, &zeros), &mut sink).is_err(), "{pfns:?}");
    }
    for holes in ["exact", "coarse"] {
        let (mut writer, mut sink) = begun(holes);
        assert!(writer.finish(&WHOLE, &mut sink).is_err(), "no pages at all");
        assert!(Parsed::of(&sink.file()).unwrap().incomplete());
        assert!(writer.finish(&WHOLE, &mut sink).is_err(), "finished twice");
        let (mut writer, mut sink) = begun(holes);
        writer.finish(&CUT, &mut sink).unwrap();
        assert!(Parsed::of(&sink.file()).unwrap().incomplete());
    }
    assert!(writer("exact").write(&PackedBatch::new(&[], &[]), &mut Recorder::default()).is_err(), "a batch before begin");
}

#[test]
fn a_dump_without_pages_opens() {
    let machine = small();
    for pages in [Pages::default(), Pages { ram: (0..50).collect(), ..Pages::default() }] {
        for stream in [false, true] {
            let mut sink = Recorder { stream, ..Recorder::default() };
            dump("coarse", &plan(&machine, &pages), &[], 1, &WHOLE, &mut sink).unwrap();
            let elf = Parsed::of(&sink.file()).unwrap();
            assert_eq!((elf.incomplete(), elf.loads().count()), (false, usize::from(!pages.ram.is_empty())));
        }
    }
}
