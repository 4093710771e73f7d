//! Inputs made to break a reader: it may refuse, but never panic, hang or take the memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use coresift_sdk::abi::SourceBytes;
use coresift_sdk::{Error, ErrorKind, Extent, ExtentKind, PageState, Reader, Result, Source, testkit};

use crate::synth::{Context, Core, Kind, PAGE, Rng, check_order, crash_notes, longs, noise, page, text, vmcore, warns};

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

fn open_odd(odd: Arc<Odd>, dom0: bool) -> Result<Box<dyn Reader>> {
    let settings = [text("view", if dom0 { "dom0" } else { "machine" }), text("page_tables", "all")];
    let mut setup = testkit::reader_setup(&reader_xen::manifest(), &settings, Vec::new()).unwrap();
    setup.sources = vec![Source::new(odd)];
    reader_xen::open(setup)
}

/// A small domain with page tables, vCPUs, pages out of order and a page twice.
fn domain(kind: Kind, index_first: bool) -> Core {
    let mut pages: Vec<_> = [9, 3, 4, 5, 1, 4].into_iter().map(page).collect();
    let next = |pfn: u64| longs(&[(pfn ^ 0x5000) << 12 | 3; 512]);
    for (at, (pfn, leads_to)) in [(9, 3), (3, 4), (4, 5)].into_iter().enumerate() {
        assert_eq!(pages[at].0, pfn);
        pages[at].2 = next(leads_to);
    }
    let context = Context { control: [0, 0, 0, (9 ^ 0x5000) << 12, 0, 0, 0, 0], ..Context::default() };
    Core { contexts: vec![context.bytes(), context.bytes()], index_first, ..Core::new(kind, pages) }
}

/// A small host whose domain 0 has a few pages and page tables.
fn host() -> (Vec<u8>, usize) {
    let mut memory = noise(3, 16 * PAGE);
    let mut put = |frame: usize, table: &[u64]| memory[frame * PAGE..(frame + 1) * PAGE].copy_from_slice(&longs(table));
    put(1, &[&[2], &[0; 511][..]].concat());
    put(2, &[&[3], &[0; 511][..]].concat());
    put(3, &[&[8, 9, 10, 11, 1 << 62, 1 << 63], &[u64::MAX; 506][..]].concat());
    put(8, &[9 << 12 | 3; 512]);
    put(9, &[10 << 12 | 3; 512]);
    let notes = crash_notes([8 << 12, 0], 1);
    let headers = 64 + 2 * 56 + notes.len();
    (vmcore(&notes, &[(0, memory)]), headers + 4 * PAGE)
}

fn use_it(reader: &dyn Reader) {
    let extents = reader.extents();
    check_order(&extents);
    let size = reader.machine().page_size();
    for extent in extents.iter().filter(|e| e.kind == ExtentKind::ENCODED).take(4) {
        let (mut out, mut present) = (vec![0; size], [PageState::MISSING]);
        let _ = reader.read_pages(&[extent.first_pfn], &mut out, &mut present);
    }
}

#[test]
fn flipped_bytes_in_headers_notes_and_indexes_do_no_harm() {
    let samples: Vec<(Vec<u8>, Vec<std::ops::Range<usize>>, bool)> = [(Kind::Pv, false), (Kind::Pv, true), (Kind::Hvm, false)]
        .into_iter()
        .map(|(kind, first)| {
            let built = domain(kind, first).build();
            let index = built.index_at as usize;
            let len = built.bytes.len();
            (built.bytes, vec![0..built.headers_end + built.notes.len(), index..(index + 180).min(len)], false)
        })
        .chain([{
            let (bytes, end) = host();
            (bytes, std::iter::once(0..end).collect(), true)
        }])
        .collect();
    let mut rng = Rng(11);
    let mut opened = 0;
    for round in 0..8000 {
        let (bytes, ranges, dom0) = &samples[round % samples.len()];
        let mut bytes = bytes.clone();
        for _ in 0..1 + rng.below(5) {
            let range = &ranges[rng.below(ranges.len() as u64) as usize];
            let at = range.start + rng.below(range.len() as u64) as usize;
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
        let _ = reader_xen::probe(&[Source::new(input.clone())]);
        if let Ok(reader) = open_odd(input.clone(), *dom0) {
            opened += 1;
            use_it(reader.as_ref());
        }
        // Read buffers are the only memory whose size comes from the input; all else grows with entries really there.
        assert!(input.largest.load(Ordering::Relaxed) <= 1 << 20);
    }
    assert!(opened > 3_000, "most of the files have something left: {opened}");
}

#[test]
fn a_million_pages_in_random_order_are_sorted_not_searched() {
    const PAGES: u64 = 1 << 20;
    let mut core = Core::new(Kind::Pv, Vec::new());
    // An odd factor times the number gives each number once: no two are neighbours. The pages themselves are left out.
    for i in 0..PAGES {
        let pfn = i.wrapping_mul(0x9e37_79b1) % PAGES;
        core.pages.push((pfn, pfn ^ 0x5_5555, Vec::new()));
    }
    core.index_first = true;
    let mut bytes = core.bytes();
    // .xen_pages says how long it would be: the fifth section header.
    let size = 64 + 64 * 6 + 32;
    bytes[size..size + 8].copy_from_slice(&(PAGES << 12).to_le_bytes());
    let input = Arc::new(Odd { tells_length: false, ..odd(bytes) });
    let begun = Instant::now();
    let reader = open_odd(input, false).unwrap();
    let extents = reader.extents();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    // One extent for each page would be 40 MiB of them: the reader puts them in order.
    assert_eq!(extents, [Extent::encoded(0, PAGES)]);
}

#[test]
fn a_cut_file_without_a_length_claims_no_more_than_numbers() {
    // Section names gone, and .xen_pages of 2^60 bytes: numbering the pages must not take a step for each.
    let mut core = Core::of(Kind::Hvm, &[0, 1]);
    core.claims_pages = Some(1 << 48);
    let built = core.build();
    let mut bytes = built.bytes[..built.index_at as usize].to_vec();
    let size = 64 + 64 * 5 + 32;
    bytes[size..size + 8].copy_from_slice(&(1u64 << 60).to_le_bytes());
    let input = Arc::new(Odd { tells_length: false, ..odd(bytes) });
    let begun = Instant::now();
    assert!(open_odd(input, false).map(drop).unwrap_err().message.contains("there is no index"));
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn unreadable_pages_are_data_unless_all_are() {
    let built = domain(Kind::Pv, true).build();
    // Of the pages 9, 3, 4, 5, 1, 4 only the first two can be read, and the section names behind them cannot.
    let bad_from = built.pages_at + 2 * PAGE as u64;
    let reader = open_odd(Arc::new(Odd { bad_from, ..odd(built.bytes.clone()) }), false).unwrap();
    assert!(reader.machine().incomplete && warns(reader.as_ref(), "section names are missing"));
    let (mut out, mut present) = (vec![0; 3 * PAGE], [PageState::PRESENT; 3]);
    reader.read_pages(&[9, 5, 77], &mut out, &mut present).unwrap();
    assert_eq!(present, [PageState::PRESENT, PageState::MISSING, PageState::MISSING]);
    let error = reader.read_pages(&[5], &mut out[..PAGE], &mut present[..1]).unwrap_err();
    assert_eq!((error.errno, error.pfn), (5, Some(5)));
    assert!(reader.read_pages(&[9], &mut out, &mut present[..1]).is_err(), "room for three pages, one asked for");

    let source = Source::new(Arc::new(Odd { bad_from: 0, ..odd(built.bytes) }));
    assert_eq!(reader_xen::probe(&[source]).unwrap_err().kind, ErrorKind::Io);
}
