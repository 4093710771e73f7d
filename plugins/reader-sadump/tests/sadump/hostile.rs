//! Inputs made to break a reader: it may refuse, but never panic, hang or take the memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use coresift_sdk::abi::SourceBytes;
use coresift_sdk::{Error, ErrorKind, ExtentKind, PageState, Reader, Result, Source, testkit};

use crate::synth::{PAGE, Rng, Sadump, Shape, dumped, left_out, open, patch, small};

/// An input that keeps count and can be told to fail.
struct Odd {
    bytes: Vec<u8>,
    tells_length: bool,
    /// reads that reach beyond this offset fail
    bad_from: u64,
    /// most bytes asked for at once
    largest: AtomicUsize,
}

impl SourceBytes for Odd {
    fn name(&self) -> String {
        "odd".into()
    }
    fn size(&self) -> Option<u64> {
        self.tells_length.then_some(self.bytes.len() as u64)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.largest.fetch_max(buf.len(), Ordering::Relaxed);
        if offset.saturating_add(buf.len() as u64) > self.bad_from {
            return Err(Error { errno: 5, ..Error::new(ErrorKind::Io, "Input/output error") });
        }
        let rest = usize::try_from(offset).ok().and_then(|o| self.bytes.get(o..)).unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
}

fn odd(bytes: Vec<u8>) -> Odd {
    Odd { bytes, tells_length: true, bad_from: u64::MAX, largest: AtomicUsize::new(0) }
}

fn open_odd(odds: &[Arc<Odd>]) -> Result<Box<dyn Reader>> {
    let mut setup = testkit::reader_setup(&reader_sadump::manifest(), &[], Vec::new()).unwrap();
    setup.sources = odds.iter().map(|odd| Source::new(odd.clone())).collect();
    reader_sadump::open(setup)
}

/// What the host checks and does.
fn use_it(reader: &dyn Reader, files: usize) {
    let extents = reader.extents();
    assert!(extents.iter().all(|e| e.pages > 0 && (e.source as usize) < files));
    assert!(extents.windows(2).all(|e| e[0].end_pfn() <= e[1].first_pfn));
    assert!(extents.iter().all(|e| e.offset.checked_add(e.pages * PAGE as u64).is_some()));
    for extent in extents.iter().filter(|e| e.kind == ExtentKind::ENCODED).take(4) {
        let (mut out, mut state) = (vec![0; PAGE], [PageState::MISSING]);
        reader.read_pages(&[extent.first_pfn], &mut out, &mut state).unwrap();
    }
}

#[test]
fn flipped_bytes_in_headers_do_no_harm() {
    let samples: Vec<(Sadump, Vec<Vec<u8>>)> = [Shape::Single, Shape::Media, Shape::Set(2)]
        .map(|shape| Sadump { shares: vec![PAGE + 100], ..small(shape) })
        .map(|image| (image.clone(), image.build()))
        .to_vec();
    let mut rng = Rng(7);
    let mut opened = 0;
    for round in 0..6000 {
        let (image, files) = &samples[round % 3];
        let mut files = files.clone();
        for _ in 0..1 + rng.below(4) {
            let file = rng.below(files.len() as u64) as usize;
            // Behind the magic numbers, which refuse all: the IDs and sizes, and what comes after the block.
            let headers = if file == 0 { image.data_at() } else { PAGE } as u64;
            let part = if file == 0 { image.part_at() as u64 } else { 0 };
            let mut at = rng.below(headers);
            if (part + 168..part + PAGE as u64).contains(&at) {
                at = part + 136 + at % 32;
            }
            // Half of them in the fields of the dump header.
            if file == 0 && rng.below(2) == 0 {
                at = image.dump_at() as u64 + rng.below(120);
            }
            let byte = &mut files[file][at as usize];
            *byte = match rng.below(4) {
                0 => 0,
                1 => 0xff,
                2 => *byte ^ (1 << rng.below(8)),
                _ => rng.next() as u8,
            };
        }
        if rng.below(8) == 0 {
            let len = files[0].len() as u64;
            files[0].truncate(rng.below(len) as usize);
        }
        let tells_length = rng.below(2) == 0;
        let odds: Vec<_> = files.into_iter().map(|f| Arc::new(Odd { tells_length, ..odd(f) })).collect();
        if let Ok(reader) = open_odd(&odds) {
            opened += 1;
            use_it(reader.as_ref(), odds.len());
        }
        assert!(odds.iter().all(|odd| odd.largest.load(Ordering::Relaxed) <= 1 << 20));
    }
    assert!(opened > 1000, "many of the files have something left: {opened}");
}

#[test]
fn files_cut_anywhere_do_no_harm() {
    for shape in [Shape::Single, Shape::Media, Shape::Set(2)] {
        let image = small(shape);
        let files = image.build();
        for len in (0..files[0].len()).step_by(509) {
            let mut cut = files.clone();
            cut[0].truncate(len);
            if let Ok(reader) = open(cut) {
                use_it(reader.as_ref(), files.len());
            }
        }
    }
}

#[test]
fn huge_bitmaps_take_no_memory() {
    let image = small(Shape::Single);
    for (at, value) in [(52, u32::MAX), (56, u32::MAX), (48, u32::MAX)] {
        let mut bytes = image.bytes();
        patch(&mut bytes, image.dump_at() + at, &value.to_le_bytes());
        patch(&mut bytes, image.dump_at() + 88, &u64::MAX.to_le_bytes());
        let input = Arc::new(Odd { tells_length: false, ..odd(bytes.clone()) });
        assert!(open_odd(std::slice::from_ref(&input)).is_err());
        assert!(input.largest.load(Ordering::Relaxed) <= 1 << 20);
        assert!(open(vec![bytes]).err().unwrap().message.contains("before the first page"));
    }
}

#[test]
fn alternating_bits_are_no_quadratic_work() {
    // 2^20 pages, every second one dumped: half a million runs.
    let image = Sadump { max_pfn: 1 << 20, bitmap_blocks: 32, ..Sadump::new(Shape::Set(2), dumped(0..1)) };
    let mut files = image.build();
    files[0][image.bitmap_at()..image.data_at()].fill(0xaa);
    files[1].resize(PAGE, 0);
    patch(&mut files[1], 160, &(1u64 << 40).to_le_bytes());
    let odds: Vec<_> = files.into_iter().map(|f| Arc::new(Odd { tells_length: false, ..odd(f) })).collect();
    let begun = std::time::Instant::now();
    let reader = open_odd(&odds).unwrap();
    assert_eq!(reader.extents().len(), 1 << 19);
    assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn without_a_length_the_headers_are_trusted() {
    for shape in [Shape::Single, Shape::Set(2)] {
        let files = small(shape).build();
        let known = open(files.clone()).unwrap();
        let odds: Vec<_> = files.into_iter().map(|f| Arc::new(Odd { tells_length: false, ..odd(f) })).collect();
        let unknown = open_odd(&odds).unwrap();
        assert_eq!(unknown.extents(), known.extents());
        assert_eq!(unknown.machine(), known.machine());
    }
}

#[test]
fn unreadable_pages_are_data_unless_all_are() {
    // Page 1 lies across the disks, and the second of them cannot be read any more.
    let image = Sadump { shares: vec![PAGE + 10], ..Sadump::new(Shape::Set(2), [dumped(0..4), left_out([4])].concat()) };
    let mut odds: Vec<_> = image.build().into_iter().map(odd).collect();
    odds[1].bad_from = PAGE as u64 + 8;
    let odds: Vec<_> = odds.into_iter().map(Arc::new).collect();
    // Looking at the first blocks reads two of them; let that end before.
    let short: Vec<_> = vec![odds[0].clone(), Arc::new(Odd { bad_from: 3 * PAGE as u64, ..odd(odds[1].bytes.clone()) })];
    let reader = open_odd(&short).unwrap();
    let (mut out, mut states) = (vec![0; 5 * PAGE], [PageState::PRESENT; 5]);
    reader.read_pages(&[0, 3, 4, 77, u64::MAX], &mut out, &mut states).unwrap();
    assert_eq!(states.map(|s| s == PageState::PRESENT), [true, false, false, false, false]);
    let error = reader.read_pages(&[3], &mut out[..PAGE], &mut states[..1]).unwrap_err();
    assert_eq!((error.errno, error.pfn), (5, Some(3)));
    assert!(reader.read_pages(&[1, 2], &mut out[..PAGE], &mut states[..1]).is_err(), "room for one page, two asked for");
}

#[test]
fn an_unreadable_header_is_an_error_not_another_format() {
    let source = Source::new(Arc::new(Odd { bad_from: 0, ..odd(small(Shape::Single).bytes()) }));
    assert_eq!(reader_sadump::probe(&[source]).unwrap_err().kind, ErrorKind::Io);
}
