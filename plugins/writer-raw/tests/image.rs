//! Writes images and compares them with what each byte must be.

// clippy.toml allows these in test functions only, not in their helpers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use coresift_sdk::testkit::{self, Messages};
use coresift_sdk::{
    ClassSet, End, Error, ErrorKind, Machine, PackedBatch, PackedPage, PageSet, PageSets, Plan, Result, Run, Setup, Sink, Value, Writer,
};

const WHOLE: End = End { incomplete: false, lost_pages: 0 };
const CUT: End = End { incomplete: true, lost_pages: 0 };
/// One behind the last PFN of the machine.
const MAX_PFN: u64 = 100;

/// A file with what was there before, and a count of the bytes that were written.
#[derive(Default)]
struct File {
    file: testkit::Memory,
    writes: usize,
    bytes: usize,
    stream: bool,
    /// the write of this number arrives by half
    fail_at: Option<usize>,
}

impl Sink for File {
    fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> Result<()> {
        let bytes = pieces.concat();
        self.writes += 1;
        self.bytes += bytes.len();
        if self.fail_at == Some(self.writes - 1) {
            self.file.write_at(offset, &[&bytes[..bytes.len() / 2]])?;
            return Err(Error::new(ErrorKind::Io, "the disk broke"));
        }
        self.file.write_at(offset, &[&bytes])
    }
    fn reserve(&mut self, _: u64) -> Result<()> {
        panic!("reserving would fill the holes");
    }
    fn positioned(&self) -> bool {
        !self.stream
    }
}

struct NoSets;

impl PageSets for NoSets {
    fn bitmap(&self, _: PageSet, _: u64, out: &mut [u8]) {
        out.fill(0);
    }
    fn runs(&self, _: PageSet, _: u64, _: &mut [Run]) -> usize {
        0
    }
    fn count(&self, _: PageSet) -> u64 {
        0
    }
}

fn setup(settings: &[(&str, Value)]) -> Setup {
    testkit::setup(&writer_raw::manifest(), settings).unwrap()
}

fn begin(setup: Setup, max_pfn: u64, sink: &mut File) -> Result<Box<dyn Writer>> {
    let mut writer = writer_raw::open(setup)?;
    let machine = Machine { page_shift: 12, max_pfn, ..Machine::default() };
    let excluded = ClassSet::default();
    let plan =
        Plan { machine: &machine, pages: &NoSets, excluded, codec: 0, first_pfn: 0, end_pfn: max_pfn, part: 0, parts: 1, written_at: 0 };
    writer.begin(&plan, sink)?;
    Ok(writer)
}

fn data(pfn: u64) -> Vec<u8> {
    (0..4096u64).map(|at| (at * 31 + pfn * 7) as u8 | 1).collect()
}

/// Stored pages, with zero pages and missing ones between them.
fn content() -> (Vec<u64>, Vec<Vec<u8>>) {
    let pfns: Vec<u64> = (3..9).chain(20..30).chain(60..62).collect();
    let pages = pfns.iter().map(|&pfn| data(pfn)).collect();
    (pfns, pages)
}

fn packed<'a>(pfns: &[u64], pages: &'a [Vec<u8>]) -> Vec<PackedPage<'a>> {
    let pack = |(pfn, page): (&u64, &'a Vec<u8>)| match pfn {
        5 => PackedPage::zero(),
        22 => PackedPage::missing(),
        _ => PackedPage::stored(page, 0),
    };
    pfns.iter().zip(pages).map(pack).collect()
}

/// The image, from the page `base` on.
fn expected(base: u64) -> Vec<u8> {
    let there = |pfn: &u64| content().0.contains(pfn) && ![5, 22].contains(pfn);
    (base..MAX_PFN).flat_map(|pfn| if there(&pfn) { data(pfn) } else { vec![0; 4096] }).collect()
}

fn write(writer: &mut dyn Writer, batch: usize, sink: &mut File) -> Result<()> {
    let (pfns, pages) = content();
    let packed = packed(&pfns, &pages);
    let batches = pfns.chunks(batch).zip(packed.chunks(batch));
    batches.into_iter().try_for_each(|(pfns, pages)| writer.write(&PackedBatch::new(pfns, pages), sink))
}

#[test]
fn every_page_is_at_its_address() {
    for batch in [1, 3, 100] {
        let mut sink = File::default();
        let mut writer = begin(setup(&[]), MAX_PFN, &mut sink).unwrap();
        write(writer.as_mut(), batch, &mut sink).unwrap();
        writer.finish(&WHOLE, &mut sink).unwrap();
        assert!(sink.file.bytes == expected(0), "batch {batch}");
        assert_eq!(sink.bytes, 16 * 4096 + 1, "what is zero is not written");
    }
}

#[test]
fn a_base_address_is_where_the_file_begins() {
    let (host, messages) = Messages::host();
    let mut sink = File::default();
    let setup = Setup { host, ..setup(&[("base", Value::Size(7 * 4096))]) };
    let mut writer = begin(setup, MAX_PFN, &mut sink).unwrap();
    write(writer.as_mut(), 4, &mut sink).unwrap();
    writer.finish(&WHOLE, &mut sink).unwrap();
    assert!(sink.file.bytes == expected(7));
    assert_eq!(messages.said(), ["4 pages below the base address 0x7000 are not in the raw image"]);
}

#[test]
fn without_holes_every_byte_is_written() {
    let mut sink = File::default();
    sink.file.bytes = vec![0xee; 110 * 4096];
    let mut writer = begin(setup(&[("sparse", Value::Bool(false))]), MAX_PFN, &mut sink).unwrap();
    write(writer.as_mut(), 3, &mut sink).unwrap();
    writer.finish(&WHOLE, &mut sink).unwrap();
    assert!(sink.file.bytes[..100 * 4096] == expected(0));
    assert_eq!(sink.bytes, 100 * 4096);
}

#[test]
fn an_incomplete_image_ends_behind_its_last_page() {
    let mut sink = File::default();
    let mut writer = begin(setup(&[]), MAX_PFN, &mut sink).unwrap();
    write(writer.as_mut(), 3, &mut sink).unwrap();
    writer.finish(&CUT, &mut sink).unwrap();
    assert!(sink.file.bytes == expected(0)[..62 * 4096]);
}

#[test]
fn what_a_failed_batch_left_is_cleared() {
    let (pfns, pages) = content();
    for fail_at in 0..6 {
        for end in [WHOLE, CUT] {
            let mut sink = File { fail_at: Some(fail_at), ..File::default() };
            let mut writer = begin(setup(&[]), MAX_PFN, &mut sink).unwrap();
            let packed = packed(&pfns, &pages);
            let mut expected = expected(0);
            for (pfns, pages) in pfns.chunks(4).zip(packed.chunks(4)) {
                if writer.write(&PackedBatch::new(pfns, pages), &mut sink).is_err() {
                    // All of it is lost.
                    let missing = vec![PackedPage::missing(); pfns.len()];
                    writer.write(&PackedBatch::new(pfns, &missing), &mut sink).unwrap();
                    pfns.iter().for_each(|pfn| expected[*pfn as usize * 4096..][..4096].fill(0));
                }
            }
            writer.finish(&end, &mut sink).unwrap();
            let file = &sink.file.bytes;
            assert!(*file == expected[..file.len()], "write {fail_at} failed");
            assert!(end == CUT || file.len() == 100 * 4096);
        }
    }
}

#[test]
fn what_cannot_be_written_is_refused_at_the_beginning() {
    let why = |settings: &[(&str, Value)], max_pfn, stream| {
        let error = begin(setup(settings), max_pfn, &mut File { stream, ..File::default() }).err().unwrap();
        assert!(!error.hint.is_empty());
        error.message
    };
    assert!(why(&[], 1, true).contains("stream"));
    assert!(why(&[("base", Value::Size(100))], 1, false).contains("no multiple of the page size"));
    assert!(why(&[("base", Value::Size(4096))], 1, false).contains("behind the end of memory"));
    assert!(why(&[], 1 << 51, false).contains("no file is so long"));
}

#[test]
fn what_is_no_whole_raw_page_is_refused() {
    let mut sink = File::default();
    let mut writer = begin(setup(&[]), MAX_PFN, &mut sink).unwrap();
    let page = data(1);
    let mut one = |pfn, page| writer.write(&PackedBatch::new(&[pfn], &[page]), &mut sink);
    assert!(one(1, PackedPage::stored(&page[..100], 0x2)).unwrap_err().message.contains("codec 0x2"));
    assert!(one(MAX_PFN, PackedPage::stored(&page, 0)).is_err());
    assert!(one(u64::MAX, PackedPage::zero()).is_err());
    one(5, PackedPage::stored(&page, 0)).unwrap();
    assert_eq!(one(4, PackedPage::stored(&page, 0)).unwrap_err().pfn, Some(4));
}
