//! Writes images and reads them back with a reader written from the format alone.

// clippy.toml allows these in test functions only, not in their helpers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use coresift_sdk::{
    ClassSet, End, Error, ErrorKind, Machine, PackedBatch, PackedPage, PageSet, PageSets, Plan, Result, Run, Sink, Value, Writer, testkit,
};

const WHOLE: End = End { incomplete: false, lost_pages: 0 };

/// What was done to a sink: offset and bytes of each write.
#[derive(Default)]
struct Recorder {
    ops: Vec<(u64, Vec<u8>)>,
    stream: bool,
    /// the write of this number arrives by half
    fail_at: Option<usize>,
}

impl Sink for Recorder {
    fn write_at(&mut self, offset: u64, pieces: &[&[u8]]) -> Result<()> {
        let bytes = pieces.concat();
        if self.fail_at.take_if(|n| *n == self.ops.len()).is_some() {
            self.ops.push((offset, bytes[..bytes.len() / 2].to_vec()));
            return Err(Error::new(ErrorKind::Io, "the disk broke"));
        }
        self.ops.push((offset, bytes));
        Ok(())
    }
    fn reserve(&mut self, _: u64) -> Result<()> {
        panic!("reserving would fill the holes");
    }
    fn positioned(&self) -> bool {
        !self.stream
    }
}

impl Recorder {
    /// The file after the first `whole` writes and `bytes` bytes of the next.
    fn cut(&self, whole: usize, bytes: usize) -> Vec<u8> {
        let mut file = testkit::Memory::default();
        self.ops[..whole].iter().for_each(|(at, data)| file.write_at(*at, &[data]).unwrap());
        if let Some((at, data)) = self.ops.get(whole) {
            file.write_at(*at, &[&data[..bytes]]).unwrap();
        }
        file.bytes
    }
    fn file(&self) -> Vec<u8> {
        self.cut(self.ops.len(), 0)
    }
    fn written(&self) -> usize {
        self.ops.iter().map(|(_, data)| data.len()).sum()
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

fn machine(page_shift: u32) -> Machine {
    Machine { page_shift, word_bits: 64, max_pfn: 1 << 40, ..Machine::default() }
}

fn begin(page_shift: u32, sparse: bool, sink: &mut dyn Sink) -> Box<dyn Writer> {
    let mut writer = writer_lime::open(testkit::setup(&writer_lime::manifest(), &[("sparse", Value::Bool(sparse))]).unwrap()).unwrap();
    let machine = machine(page_shift);
    let excluded = ClassSet::default();
    let plan =
        Plan { machine: &machine, pages: &NoSets, excluded, codec: 0, first_pfn: 0, end_pfn: 1 << 40, part: 0, parts: 1, written_at: 0 };
    writer.begin(&plan, sink).unwrap();
    writer
}

type Pages = Vec<(u64, Option<Vec<u8>>)>;

/// `None` is a missing page, a page of zeros is sent as such.
fn packed<'a>(pages: &'a [(u64, Option<Vec<u8>>)]) -> (Vec<u64>, Vec<PackedPage<'a>>) {
    let pack = |page: &'a (u64, Option<Vec<u8>>)| match page.1.as_deref() {
        None => (page.0, PackedPage::missing()),
        Some(data) if data.iter().all(|b| *b == 0) => (page.0, PackedPage::zero()),
        Some(data) => (page.0, PackedPage::stored(data, 0)),
    };
    pages.iter().map(pack).unzip()
}

fn dump(pages: &Pages, batch: usize, sparse: bool, sink: &mut Recorder) {
    let mut writer = begin(12, sparse, sink);
    for pages in pages.chunks(batch) {
        let (pfns, contents) = packed(pages);
        writer.write(&PackedBatch::new(&pfns, &contents), sink).unwrap();
    }
    writer.finish(&WHOLE, sink).unwrap();
}

/// A range of a file: first PFN, and its pages. By lime.h: magic, version, s_addr, e_addr, reserved; then the memory.
type Ranges = Vec<(u64, Vec<Vec<u8>>)>;

/// Reads ranges up to the end or to what is no header; pages that the file cuts are left out.
fn read(file: &[u8]) -> Ranges {
    let (mut at, mut ranges) = (0, Vec::new());
    let u64_at = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    while file.get(at..at + 8).is_some_and(|b| b == b"EMiL\x01\0\0\0") && file.len() >= at + 32 {
        let (start, last) = (u64_at(at + 8), u64_at(at + 16));
        assert_eq!((start % 4096, last % 4096, u64_at(at + 24)), (0, 4095, 0));
        let data = &file[at + 32..];
        let len = (last + 1 - start) as usize;
        ranges.push((start / 4096, data[..len.min(data.len())].chunks_exact(4096).map(<[u8]>::to_vec).collect()));
        at = (at + 32).saturating_add(len);
    }
    ranges
}

/// The pages in ranges, by PFN.
fn pages_of(ranges: &Ranges) -> Vec<(u64, &Vec<u8>)> {
    ranges.iter().flat_map(|(first, pages)| (*first..).zip(pages)).collect()
}

/// A page that differs from all others; none begins like a header.
fn data(pfn: u64) -> Option<Vec<u8>> {
    Some((0..4096u64).map(|at| (at * 31 + pfn * 7) as u8 | 1).collect())
}

/// Runs of many lengths with missing pages and zero pages, some of these in long runs.
fn content() -> Pages {
    let mut pages = Pages::new();
    for pfn in (3..40).chain(41..43).chain(100..160).chain([200, 202, 204]).chain(1 << 21..(1 << 21) + 9) {
        let page = match pfn {
            7 | 20 | 21 | 203 => None,
            9 | 41 | 110..140 | 159 => Some(vec![0; 4096]),
            _ => data(pfn),
        };
        pages.push((pfn, page));
    }
    pages
}

/// What the file should hold.
fn there(pages: &Pages) -> Vec<(u64, &Vec<u8>)> {
    pages.iter().filter_map(|(pfn, page)| page.as_ref().map(|p| (*pfn, p))).collect()
}

#[test]
fn a_page_is_where_the_format_says() {
    let mut sink = Recorder::default();
    dump(&vec![(5, data(5)), (6, data(6)), (9, data(9))], 10, true, &mut sink);
    let header = |first: u64, last: u64| {
        let mut h = vec![0x45, 0x4d, 0x69, 0x4c, 1, 0, 0, 0];
        h.extend([first.to_le_bytes(), last.to_le_bytes(), [0; 8]].concat());
        h
    };
    let expected = [header(0x5000, 0x6fff), data(5).unwrap(), data(6).unwrap(), header(0x9000, 0x9fff), data(9).unwrap()].concat();
    assert!(sink.file() == expected);
}

#[test]
fn one_range_a_run_however_the_batches_are() {
    let pages = content();
    for batch in [1, 2, 7, 1000] {
        for sparse in [false, true] {
            let mut sink = Recorder::default();
            dump(&pages, batch, sparse, &mut sink);
            let file = sink.file();
            let ranges = read(&file);
            assert!(pages_of(&ranges) == there(&pages), "batch {batch}");
            let runs: Vec<_> = ranges.iter().map(|(first, pages)| (*first, pages.len())).collect();
            let expected = [(3, 4), (8, 12), (22, 18), (41, 2), (100, 60), (200, 1), (202, 1), (204, 1), (1 << 21, 9)];
            assert_eq!(runs, expected, "batch {batch}");
            assert_eq!(file.len(), expected.iter().map(|(_, pages)| 32 + pages * 4096).sum::<usize>());
        }
    }
}

#[test]
fn a_stream_is_written_forwards() {
    let pages = content();
    for batch in [1, 7, 1000] {
        let mut sink = Recorder { stream: true, ..Recorder::default() };
        dump(&pages, batch, true, &mut sink);
        let mut end = 0;
        for (at, data) in &sink.ops {
            assert_eq!(*at, end, "batch {batch}");
            end += data.len() as u64;
        }
        assert!(pages_of(&read(&sink.file())) == there(&pages));
    }
}

#[test]
fn many_zero_pages_are_a_hole() {
    let mut pages: Pages = (0..1000).map(|pfn| (pfn, Some(vec![0; 4096]))).collect();
    pages[0].1 = data(0);
    pages[500].1 = data(500);
    let mut sink = Recorder::default();
    dump(&pages, 250, true, &mut sink);
    assert!(sink.written() < 20 * 4096, "{} bytes", sink.written());
    assert!(pages_of(&read(&sink.file())) == there(&pages), "the file has its length");
    let mut sink = Recorder::default();
    dump(&pages, 250, false, &mut sink);
    assert!(sink.written() >= 1000 * 4096);
}

#[test]
fn cut_anywhere_the_file_has_no_wrong_page_and_loses_none() {
    let pages = content();
    let expected = there(&pages);
    for (batch, stream) in [(7, false), (7, true), (1, false), (1000, false)] {
        let mut sink = Recorder { stream, ..Recorder::default() };
        dump(&pages, batch, true, &mut sink);
        let mut most = 0;
        for whole in 0..sink.ops.len() {
            let (at, len) = (sink.ops[whole].0, sink.ops[whole].1.len());
            // The end of a range that is prolonged: no disk writes half of it.
            if len == 8 {
                assert_eq!(at % 8, 0);
                continue;
            }
            for bytes in (0..len).step_by(if len < 100 { 1 } else { 997 }) {
                let ranges = read(&sink.cut(whole, bytes));
                let seen = pages_of(&ranges);
                assert!(seen == expected[..seen.len()], "batch {batch}: write {whole} cut at {bytes}");
                assert!(seen.len() >= most, "batch {batch}: write {whole} cut at {bytes}: {} pages after {most}", seen.len());
                most = seen.len();
            }
        }
        assert!(most > expected.len() / 2);
    }
}

#[test]
fn a_batch_that_failed_may_come_again_with_fewer_pages() {
    let pages = content();
    let mut writes = Recorder::default();
    dump(&pages, 30, true, &mut writes);
    for fail_at in 0..writes.ops.len() {
        let mut sink = Recorder { fail_at: Some(fail_at), ..Recorder::default() };
        let mut writer = begin(12, true, &mut sink);
        let mut kept = pages.clone();
        for batch in kept.chunks_mut(30) {
            let (pfns, contents) = packed(batch);
            if writer.write(&PackedBatch::new(&pfns, &contents), &mut sink).is_err() {
                drop((pfns, contents));
                // The input broke under the first page; the rest comes in smaller pieces.
                batch[0].1 = None;
                for part in batch.chunks(4) {
                    let (pfns, contents) = packed(part);
                    writer.write(&PackedBatch::new(&pfns, &contents), &mut sink).unwrap();
                }
            }
        }
        writer.finish(&WHOLE, &mut sink).unwrap();
        let file = sink.file();
        let ranges = read(&file);
        assert!(pages_of(&ranges) == there(&kept), "write {fail_at} failed");
    }
}

#[test]
fn what_is_no_whole_raw_page_is_refused() {
    let mut sink = Recorder::default();
    let mut writer = begin(12, true, &mut sink);
    let page = data(1).unwrap();
    let mut one = |pfn, page| writer.write(&PackedBatch::new(&[pfn], &[page]), &mut sink);
    assert!(one(1, PackedPage::stored(&page[..100], 0x2)).unwrap_err().message.contains("codec 0x2"));
    assert!(one(1, PackedPage::stored(&page[..4095], 0)).is_err());
    assert!(one(u64::MAX, PackedPage::zero()).is_err());
    one(5, PackedPage::stored(&page, 0)).unwrap();
    assert_eq!(one(5, PackedPage::stored(&page, 0)).unwrap_err().pfn, Some(5));
}

#[test]
fn an_image_without_a_page_is_an_error() {
    let mut sink = Recorder::default();
    let mut writer = begin(16, true, &mut sink);
    let error = writer.finish(&WHOLE, &mut sink).unwrap_err();
    assert!(!error.hint.is_empty() && error.message.contains("not one page"));
    assert!(writer.finish(&WHOLE, &mut sink).unwrap_err().message.contains("not begun"));
}

#[test]
fn other_page_sizes_are_written() {
    let mut sink = Recorder::default();
    let mut writer = begin(16, true, &mut sink);
    let page = vec![7; 65536];
    writer.write(&PackedBatch::new(&[2, 3], &[PackedPage::stored(&page, 0), PackedPage::zero()]), &mut sink).unwrap();
    writer.finish(&WHOLE, &mut sink).unwrap();
    let file = sink.file();
    assert_eq!((&file[8..16], &file[16..24]), (&0x20000u64.to_le_bytes()[..], &0x3ffffu64.to_le_bytes()[..]));
    assert_eq!(file.len(), 32 + 2 * 65536);
    assert!(file[32 + 65536..].iter().all(|b| *b == 0));
}
