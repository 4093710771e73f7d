//! Inputs made to break a reader: it may refuse, but never panic, hang or take the memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coresift_sdk::abi::SourceBytes;
use coresift_sdk::{Error, ErrorKind, ExtentKind, PageState, Reader, Result, Source, testkit};

use crate::synth::{ALL_KINDS, Elf, Load, PAGE, Rng, check_order, load, noise, open};

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

fn open_odd(odd: Arc<Odd>) -> Result<Box<dyn Reader>> {
    let mut setup = testkit::reader_setup(&reader_elf::manifest(), &[], Vec::new()).unwrap();
    setup.sources = vec![Source::new(odd)];
    reader_elf::open(setup)
}

/// A small file with one of each: notes, whole pages, edges, overlaps, absent memory.
fn sample(kind: usize) -> (Vec<u8>, usize) {
    let mut elf = Elf {
        loads: vec![
            load(3 * PAGE, noise(1, 2 * PAGE)),
            load(PAGE, noise(2, 6 * PAGE)),
            load(9 * PAGE + 100, noise(3, PAGE)),
            Load { memsz: 4 * PAGE, ..load(20 * PAGE, noise(4, PAGE)) },
        ],
        ..Elf::new(ALL_KINDS[kind])
    };
    elf.notes = vec![elf.note("CORE", 1, &[7; 48])];
    let built = elf.with_vmcoreinfo("PAGESIZE=4096\nCRASHTIME=1\n").build();
    (built.bytes, built.notes_end)
}

fn use_it(reader: &dyn Reader) {
    let extents = reader.extents();
    check_order(&extents);
    let size = reader.machine().page_size();
    for extent in extents.iter().filter(|e| e.kind == ExtentKind::ENCODED).take(4) {
        let (mut out, mut present) = (vec![0; size], [PageState::MISSING]);
        reader.read_pages(&[extent.first_pfn], &mut out, &mut present).unwrap();
    }
}

#[test]
fn flipped_bytes_in_headers_and_notes_do_no_harm() {
    let mut rng = Rng(7);
    let mut opened = 0;
    for round in 0..20_000 {
        let (mut bytes, headers) = sample(round % 4);
        for _ in 0..1 + rng.below(6) {
            let at = rng.below(headers as u64) as usize;
            bytes[at] = match rng.below(4) {
                0 => 0,
                1 => 0xff,
                2 => bytes[at] ^ (1 << rng.below(8)),
                _ => rng.next() as u8,
            };
        }
        if rng.below(8) == 0 {
            bytes.truncate(rng.below(bytes.len() as u64) as usize);
        }
        let input = Arc::new(Odd { tells_length: rng.below(2) == 0, ..odd(bytes) });
        if let Ok(reader) = open_odd(input.clone()) {
            opened += 1;
            use_it(reader.as_ref());
        }
        // Read buffers are the only memory whose size comes from the input; all else grows with headers really there.
        assert!(input.largest.load(Ordering::Relaxed) <= 1 << 20);
    }
    assert!(opened > 10_000, "most of the files have something left: {opened}");
}

#[test]
fn a_million_segments_are_sorted_not_searched() {
    const LOADS: u64 = 1_000_000;
    let mut rng = Rng(3);
    // Descending, every second page, each overlapping the next by some bytes in every seventh.
    let loads = (0..LOADS).rev().map(|i| {
        let len = if i % 7 == 0 { 2 * PAGE + 1 } else { PAGE };
        Load { memsz: len, filesz: Some(len), offset: Some(rng.below(1 << 16)), ..load(2 * i * PAGE, Vec::new()) }
    });
    let elf = Elf { xnum: true, loads: loads.collect(), ..Elf::new(ALL_KINDS[0]) };
    let bytes = elf.bytes();
    let begun = Instant::now();
    let extents = open(bytes).unwrap().extents();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    check_order(&extents);
    // Every seventh fills the page up to the next one; the last (999,999 is one of them) has a page of its own more.
    assert_eq!(extents.iter().map(|e| e.pages).sum::<u64>(), LOADS + LOADS.div_ceil(7) + 1);
}

#[test]
fn nested_segments_by_the_thousand_are_no_quadratic_work() {
    // Each within the one before, and better ranked from inside out.
    let loads: Vec<Load> = (0..50_000u64)
        .rev()
        .map(|i| {
            let len = (100_001 - 2 * i) * 16;
            Load { memsz: len, filesz: Some(len), offset: Some(i % 4096), ..load(i * 16, Vec::new()) }
        })
        .collect();
    let mut elf = Elf { loads, ..Elf::new(ALL_KINDS[0]) }.with_vmcoreinfo("PAGESIZE=4096\n");
    elf.loads.push(load(0x1000_0000, noise(1, 2 << 20)));
    let begun = Instant::now();
    let reader = open(elf.bytes()).unwrap();
    check_order(&reader.extents());
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn without_a_length_the_headers_are_trusted() {
    let (bytes, _) = sample(0);
    let known = open(bytes.clone()).unwrap();
    let unknown = open_odd(Arc::new(Odd { tells_length: false, ..odd(bytes.clone()) })).unwrap();
    assert_eq!(unknown.extents(), known.extents());
    assert_eq!(unknown.machine(), known.machine());

    // What is not there after all turns up when pages are read.
    let cut = open_odd(Arc::new(Odd { tells_length: false, ..odd(bytes[..bytes.len() - 5000].to_vec()) })).unwrap();
    let (mut out, mut present) = (vec![0; 4096], [PageState::PRESENT]);
    cut.read_pages(&[20], &mut out, &mut present).unwrap();
    assert_eq!(present, [PageState::MISSING]);
}

#[test]
fn unreadable_pages_are_data_unless_all_are() {
    let mut elf = Elf::x86_64(vec![load(PAGE + 1, noise(1, 2000)), load(5 * PAGE + 1, noise(2, 2000))]);
    elf.notes = vec![elf.note("CORE", 1, &[0; 8])];
    let built = elf.build();
    let reader = open_odd(Arc::new(Odd { bad_from: built.data[1], ..odd(built.bytes) })).unwrap();
    let (mut out, mut present) = (vec![0; 2 * 4096], [PageState::PRESENT; 2]);
    reader.read_pages(&[1, 5], &mut out, &mut present).unwrap();
    assert_eq!(present, [PageState::PRESENT, PageState::MISSING]);
    let error = reader.read_pages(&[5], &mut out[..4096], &mut present[..1]).unwrap_err();
    assert_eq!((error.errno, error.pfn), (5, Some(5)));
}

#[test]
fn an_unreadable_header_is_an_error_not_another_format() {
    let (bytes, _) = sample(0);
    let source = Source::new(Arc::new(Odd { bad_from: 0, ..odd(bytes) }));
    assert_eq!(reader_elf::probe(&[source]).unwrap_err().kind, ErrorKind::Io);
}
