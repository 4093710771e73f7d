//! Dumps built field by field from diskdump_mod.h of makedumpfile, in every layout, whole and damaged.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)] // a test that cannot go on fails

use coresift_sdk::{ErrorKind, Extent, Reader, Result, StoredPage, codec, testkit};

const BLOCK: usize = 4096;

/// A dump to be built: PFNs 0 to 199 are RAM but for 50 to 59; those dividable by 3 are dumped.
#[derive(Clone, Copy)]
struct Dump {
    big_endian: bool,
    /// bits of a `long`, and the alignment of 64-bit fields
    word: usize,
    align: usize,
    machine: &'static str,
    version: u32,
    status: u32,
    part: Option<(u64, u64)>,
    two_bitmaps: bool,
    /// a part has room for the descriptors of all parts, as makedumpfile's have
    room: bool,
}

const WIDE: Dump =
    Dump { big_endian: false, word: 8, align: 8, machine: "x86_64", version: 6, status: 2, part: None, two_bitmaps: true, room: false };
const PAGES: u64 = 200;
const NOTES: &str = "OSRELEASE=6.1.0-test\nPAGESIZE=4096\nCRASHTIME=1234567\n";

fn is_ram(pfn: u64) -> bool {
    !(50..60).contains(&pfn)
}
fn is_dumped(pfn: u64) -> bool {
    is_ram(pfn) && pfn.is_multiple_of(3)
}
/// What stands in the file for a page: its length and bytes differ from page to page.
fn data(pfn: u64) -> Vec<u8> {
    (0..100 + pfn % 17).map(|i| (pfn * 31 + i) as u8).collect()
}

impl Dump {
    fn int(&self, value: u32, to: &mut Vec<u8>) {
        to.resize(to.len().next_multiple_of(4), 0);
        to.extend(if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() });
    }
    fn wide(&self, value: u64, to: &mut Vec<u8>) {
        to.resize(to.len().next_multiple_of(self.align), 0);
        to.extend(if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() });
    }
    fn long(&self, value: u64, to: &mut Vec<u8>) {
        if self.word == 8 { self.wide(value, to) } else { self.int(value as u32, to) }
    }

    fn note(&self) -> Vec<u8> {
        let mut note = Vec::new();
        for word in [11, NOTES.len() as u32, 0] {
            self.int(word, &mut note);
        }
        note.extend(b"VMCOREINFO\0\0");
        note.extend(NOTES.as_bytes());
        note.resize(note.len().next_multiple_of(4), 0);
        note
    }

    fn build(self) -> Vec<u8> {
        let mut head = b"KDUMP   ".to_vec();
        self.int(self.version, &mut head);
        for name in ["Linux", "host", "6.1.0-test", "#1", self.machine, "(none)"] {
            let end = head.len() + 65;
            head.extend(name.bytes());
            head.resize(end, 0);
        }
        // struct timeval
        self.long(7654321, &mut head);
        self.long(0, &mut head);
        self.int(self.status, &mut head);
        self.int(BLOCK as u32, &mut head);
        self.int(1, &mut head);
        self.int(if self.two_bitmaps { 2 } else { 1 }, &mut head);
        self.int(PAGES as u32, &mut head);
        (0..4).for_each(|_| self.int(0, &mut head));
        self.int(3, &mut head);
        head.resize(BLOCK, 0);

        let sub_len = |sub: &mut Vec<u8>, places: [(u64, u64); 3]| {
            let (start, end) = self.part.unwrap_or_default();
            self.long(0x1000, sub);
            self.int(31, sub);
            self.int(self.part.is_some().into(), sub);
            self.long(start, sub);
            self.long(end, sub);
            for (offset, len) in places {
                self.wide(offset, sub);
                self.long(len, sub);
            }
            [start, end, PAGES].iter().for_each(|v| self.wide(*v, sub));
        };
        let mut sub = Vec::new();
        sub_len(&mut sub, [(0, 0); 3]);
        let note = self.note();
        let notes_at = (BLOCK + sub.len()) as u64;
        let erased = b"erase jiffies 8\n";
        let places =
            [(notes_at + 24, NOTES.len() as u64), (notes_at, note.len() as u64), (notes_at + note.len() as u64, erased.len() as u64)];
        sub.clear();
        sub_len(&mut sub, places);
        sub.extend(&note);
        sub.extend(erased);
        sub.resize(BLOCK, 0);

        let bitmap = |has: fn(u64) -> bool| {
            let mut bits = vec![0u8; BLOCK];
            (0..PAGES).filter(|pfn| has(*pfn)).for_each(|pfn| bits[pfn as usize / 8] |= 1 << (pfn % 8));
            bits
        };
        let mut file = [head, sub].concat();
        if self.two_bitmaps {
            file.extend(bitmap(is_ram));
        }
        file.extend(bitmap(is_dumped));
        let (from, to) = self.part.unwrap_or((0, PAGES));
        let here: Vec<u64> = (from..to).filter(|pfn| is_dumped(*pfn)).collect();
        let descriptors = if self.room { (0..PAGES).filter(|pfn| is_dumped(*pfn)).count() } else { here.len() };
        let zero_at = file.len() + descriptors * 24;
        let mut at = zero_at + BLOCK;
        let (mut table, mut pages) = (Vec::new(), vec![0u8; BLOCK]);
        for pfn in here {
            let page = data(pfn);
            // Every 30th PFN is a zero page.
            let (offset, size, flags) = if pfn % 30 == 0 { (zero_at, BLOCK, 0) } else { (at, page.len(), self.status & !8) };
            table.extend(if self.big_endian { (offset as u64).to_be_bytes() } else { (offset as u64).to_le_bytes() });
            self.int(size as u32, &mut table);
            self.int(flags, &mut table);
            table.extend([0; 8]);
            if pfn % 30 != 0 {
                at += page.len();
                pages.extend(page);
            }
        }
        table.resize(descriptors * 24, 0);
        [file, table, pages].concat()
    }
}

fn open(inputs: Vec<Vec<u8>>) -> Result<Box<dyn Reader>> {
    reader_kdump::open(testkit::reader_setup(&reader_kdump::manifest(), &[], inputs)?)
}

/// Reads pages as they are stored.
fn read(reader: &dyn Reader, pfns: &[u64]) -> Vec<(StoredPage, Vec<u8>)> {
    let mut buf = vec![0xAAu8; pfns.len() * BLOCK];
    let mut pages = vec![StoredPage::default(); pfns.len()];
    assert_eq!(reader.read_stored(pfns, &mut buf, &mut pages).unwrap(), pfns.len());
    pages.into_iter().map(|page| (page, page.bytes(&buf).unwrap_or_default().to_vec())).collect()
}

/// Asserts that these PFNs are read as they were built.
fn check(reader: &dyn Reader, pfns: &[u64], codec: u32) {
    for ((page, bytes), pfn) in read(reader, pfns).into_iter().zip(pfns) {
        match () {
            () if !is_dumped(*pfn) => assert_eq!(page.state, StoredPage::MISSING, "PFN {pfn}"),
            () if pfn % 30 == 0 => assert_eq!(page, StoredPage::zero(), "PFN {pfn}"),
            () => assert_eq!((page.codec, bytes), (codec, data(*pfn)), "PFN {pfn}"),
        }
    }
}

/// Runs of PFNs by what the bitmaps say.
fn expected_extents() -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    for pfn in (0..PAGES).filter(|pfn| is_ram(*pfn)) {
        let one = if is_dumped(pfn) { Extent::stored(pfn, 1) } else { Extent::absent(pfn, 1) };
        match extents.last_mut().filter(|last| last.kind == one.kind && last.end_pfn() == pfn) {
            Some(last) => last.pages += 1,
            None => extents.push(one),
        }
    }
    extents
}

#[test]
fn every_layout_and_version_gives_the_same_pages() {
    let i386 = Dump { word: 4, align: 4, machine: "i686", ..WIDE };
    let arm = Dump { word: 4, align: 8, machine: "armv7l", ..WIDE };
    let ppc = Dump { big_endian: true, machine: "ppc", ..arm };
    let s390 = Dump { big_endian: true, machine: "s390x", ..WIDE };
    for dump in [WIDE, i386, arm, ppc, s390, Dump { machine: "aarch64", ..WIDE }, Dump { machine: "mips", ..ppc }] {
        for version in 1..=6 {
            let reader = open(vec![Dump { version, ..dump }.build()]).unwrap();
            let machine = reader.machine();
            assert_eq!(
                (machine.arch.as_str(), machine.word_bits as usize, machine.big_endian),
                (dump.machine, dump.word * 8, dump.big_endian)
            );
            assert_eq!((machine.page_shift, machine.max_pfn, machine.codec), (12, PAGES, codec::LZO));
            assert_eq!((machine.utsname.release.as_str(), machine.utsname.nodename.as_str()), ("6.1.0-test", "host"));
            assert_eq!(machine.excluded.dump_level(), 31);
            let text = if version >= 3 { NOTES.as_bytes() } else { b"" };
            assert_eq!(machine.vmcoreinfo, text, "version {version}");
            assert_eq!(machine.crash_time, if version >= 3 { 1_234_567 } else { 7_654_321 });
            assert_eq!(machine.notes, if version >= 4 { dump.note() } else { Vec::new() });
            assert_eq!(machine.erased, if version >= 5 { &b"erase jiffies 8\n"[..] } else { b"" });
            assert_eq!(reader.extents(), expected_extents());
            check(reader.as_ref(), &(0..PAGES).collect::<Vec<_>>(), codec::LZO);
            check(reader.as_ref(), &[3, 9, 12, 48, 60, 63, 198], codec::LZO);
        }
    }
}

#[test]
fn qemu_packs_the_fields_of_every_32_bit_machine_and_does_not_name_it() {
    for big_endian in [false, true] {
        for version in 3..=6 {
            let dump = Dump { word: 4, align: 4, big_endian, machine: "Unknown", version, ..WIDE };
            let reader = open(vec![dump.build()]).unwrap();
            assert_eq!((reader.machine().word_bits, reader.machine().max_pfn), (32, PAGES));
            assert_eq!(reader.machine().vmcoreinfo, NOTES.as_bytes());
            assert_eq!(reader.extents(), expected_extents());
        }
    }
}

#[test]
fn a_number_of_pages_that_the_bitmaps_cannot_hold_is_not_believed() {
    let whole = WIDE.build();
    let at = BLOCK + whole[BLOCK..].windows(8).position(|w| w == PAGES.to_le_bytes()).unwrap();
    for absurd in [1 << 30, 1 << 44, u64::MAX] {
        let mut file = whole.clone();
        file[at..at + 8].copy_from_slice(&u64::to_le_bytes(absurd));
        let reader = open(vec![file]).unwrap();
        assert_eq!(reader.extents(), expected_extents());
        check(reader.as_ref(), &[3, 9, 12, 48, 60, 63, 198], codec::LZO);
    }
}

#[test]
fn a_dump_with_one_bitmap_says_nothing_of_other_ram() {
    let reader = open(vec![Dump { two_bitmaps: false, ..WIDE }.build()]).unwrap();
    assert!(reader.extents().iter().all(|e| e.kind == coresift_sdk::ExtentKind::STORED));
    check(reader.as_ref(), &(0..PAGES).filter(|p| is_dumped(*p)).collect::<Vec<_>>(), codec::LZO);
}

#[test]
fn parts_of_a_split_dump_in_any_order_and_without_one() {
    let tight = |from, to| Dump { part: Some((from, to)), ..WIDE }.build();
    let part = |from, to| Dump { part: Some((from, to)), room: true, ..WIDE }.build();
    // A mixed set is not what any tool writes, but each part stands for itself.
    let (a, b, c) = (part(0, 64), part(64, 128), tight(128, PAGES));
    for set in [[&a, &b, &c], [&c, &a, &b], [&b, &c, &a]] {
        let reader = open(set.into_iter().cloned().collect()).unwrap();
        assert!(!reader.machine().incomplete);
        assert_eq!(reader.extents(), expected_extents());
        check(reader.as_ref(), &(0..PAGES).collect::<Vec<_>>(), codec::LZO);
    }
    for (set, missing) in
        [(vec![b.clone()], "0x0 to 0x3f"), (vec![c.clone(), a.clone()], "0x40 to 0x7f"), (vec![a.clone(), b.clone()], "0x80 to 0xc7")]
    {
        let reader = open(set).unwrap();
        let machine = reader.machine();
        assert!(machine.incomplete && machine.warnings.iter().any(|w| w.contains(missing)), "{:?}", machine.warnings);
        // All RAM is known; what the missing part would have had is absent.
        assert_eq!(reader.extents().iter().map(|e| e.pages).sum::<u64>(), PAGES - 10);
    }
    let reader = open(vec![b.clone()]).unwrap();
    let stored: u64 = reader.extents().iter().filter(|e| e.kind == coresift_sdk::ExtentKind::STORED).map(|e| e.pages).sum();
    assert_eq!(stored, (64..128).filter(|p| is_dumped(*p)).count() as u64);
    check(reader.as_ref(), &[66, 69, 126], codec::LZO);
    // Whoever writes parts one after the other takes the time for each.
    let mut later = b.clone();
    let at = later.windows(4).position(|w| w == 7_654_321_u32.to_le_bytes()).unwrap();
    later[at] += 5;
    assert!(open(vec![a.clone(), later]).is_ok());
    for (set, why) in [
        (vec![a.clone(), b.clone(), a.clone()], "overlap"),
        (vec![a.clone(), WIDE.build()], "a whole dump"),
        (vec![a.clone(), Dump { part: Some((64, 128)), machine: "aarch64", ..WIDE }.build()], "different dumps"),
    ] {
        let error = open(set).err().unwrap();
        assert!(error.message.contains(why), "{}", error.message);
    }
}

#[test]
fn an_incomplete_dump_says_so_and_has_what_it_has() {
    let mut bytes = Dump { status: 2 | 8, ..WIDE }.build();
    // Descriptors that were never written are zeros.
    let table = 4 * BLOCK;
    bytes[table + 24 * 40..table + 24 * 60].fill(0);
    let reader = open(vec![bytes]).unwrap();
    assert!(reader.machine().incomplete);
    let dumped: Vec<u64> = (0..PAGES).filter(|p| is_dumped(*p)).collect();
    check(reader.as_ref(), &dumped[..40], codec::LZO);
    assert!(read(reader.as_ref(), &dumped[40..60]).iter().all(|(page, _)| page.state == StoredPage::MISSING));
    check(reader.as_ref(), &dumped[60..], codec::LZO);
}

#[test]
fn descriptors_that_make_no_sense_are_missing_pages() {
    let whole = WIDE.build();
    let table = 4 * BLOCK;
    // Of PFN 3, the second: beyond the file, longer than a page, two codecs at once, raw but shorter than a page.
    for (at, value) in
        [(0, &(1u64 << 40).to_le_bytes()[..]), (8, &4097u32.to_le_bytes()), (12, &3u32.to_le_bytes()), (12, &0u32.to_le_bytes())]
    {
        let mut bytes = whole.clone();
        bytes[table + 24 + at..table + 24 + at + value.len()].copy_from_slice(value);
        let reader = open(vec![bytes]).unwrap();
        assert_eq!(read(reader.as_ref(), &[3])[0].0.state, StoredPage::MISSING);
        check(reader.as_ref(), &[6, 9], codec::LZO);
    }
}

/// Opens files of which some bytes cannot be read.
fn open_bad(inputs: Vec<(Vec<u8>, std::ops::Range<usize>)>) -> Box<dyn Reader> {
    let mut setup = testkit::reader_setup(&reader_kdump::manifest(), &[], Vec::new()).unwrap();
    let bad = |(bytes, bad): (Vec<u8>, std::ops::Range<usize>)| testkit::bad_source("bad", bytes, bad.start as u64..bad.end as u64);
    setup.sources = inputs.into_iter().map(bad).collect();
    reader_kdump::open(setup).unwrap()
}

#[test]
fn a_bad_sector_loses_only_the_pages_in_it() {
    let whole = WIDE.build();
    let dumped: Vec<u64> = (0..PAGES).filter(|p| is_dumped(*p)).collect();
    let table = 4 * BLOCK;
    let data_at = table + dumped.len() * 24 + BLOCK;
    // One sector of the data, whose pages are 100 to 116 bytes long; and of the descriptors, 24 bytes each.
    for (bad, most) in [(data_at + 1000..data_at + 1512, 7), (table + 512..table + 1024, 23)] {
        let reader = open_bad(vec![(whole.clone(), bad)]);
        let got = read(reader.as_ref(), &dumped);
        let lost: Vec<u64> = got.iter().zip(&dumped).filter(|((p, _), _)| p.state == StoredPage::MISSING).map(|(_, pfn)| *pfn).collect();
        assert!(!lost.is_empty() && lost.len() <= most, "{lost:?}");
        let good: Vec<u64> = dumped.iter().copied().filter(|pfn| !lost.contains(pfn)).collect();
        for ((page, bytes), pfn) in got.iter().zip(&dumped).filter(|(_, pfn)| good.contains(pfn)) {
            assert!(if pfn % 30 == 0 { *page == StoredPage::zero() } else { *bytes == data(*pfn) }, "PFN {pfn}");
        }
    }
}

#[test]
fn a_bitmap_that_one_part_has_not_got_is_taken_from_another() {
    let part = |from, to| Dump { part: Some((from, to)), ..WIDE }.build();
    let (a, b) = (part(0, 64), part(64, PAGES));
    let (ram, second) = (2 * BLOCK..3 * BLOCK, 3 * BLOCK..4 * BLOCK);
    for bad in [ram.clone(), second.clone()] {
        let reader = open_bad(vec![(a.clone(), bad), (b.clone(), 0..0)]);
        assert!(!reader.machine().incomplete);
        assert_eq!(reader.extents(), expected_extents());
        check(reader.as_ref(), &(0..PAGES).collect::<Vec<_>>(), codec::LZO);
    }
    // A cut part has what other parts say it has, as far as it goes.
    let reader = open_bad(vec![(a[..3 * BLOCK].to_vec(), 0..0), (b.clone(), 0..0)]);
    check(reader.as_ref(), &[66, 69, 126], codec::LZO);
    // Nobody knows which other pages are RAM: what is dumped is dumped.
    let whole = WIDE.build();
    let reader = open_bad(vec![(whole.clone(), ram)]);
    assert!(!reader.machine().incomplete && reader.machine().warnings.iter().any(|w| w.contains("bitmap of all RAM")));
    check(reader.as_ref(), &(0..PAGES).filter(|p| is_dumped(*p)).collect::<Vec<_>>(), codec::LZO);
    let reader = open_bad(vec![(whole, second)]);
    assert!(reader.machine().incomplete && reader.machine().warnings.iter().any(|w| w.contains("at PFN 0x0")));
}

#[test]
fn a_bitmap_of_terabytes_in_a_short_file_ends_where_the_file_does() {
    let mut file = WIDE.build();
    let at = BLOCK + file[BLOCK..].windows(8).position(|w| w == PAGES.to_le_bytes()).unwrap();
    file[at..at + 8].copy_from_slice(&((u64::from(u32::MAX >> 1)) << 15).to_le_bytes());
    file[436..440].copy_from_slice(&(u32::MAX - 1).to_le_bytes());
    let reader = open(vec![file]).unwrap();
    assert!(reader.machine().incomplete && reader.machine().warnings.iter().any(|w| w.contains("bitmaps end")));
}

#[test]
fn what_is_no_dump_is_refused() {
    let whole = WIDE.build();
    let mut block = whole.clone();
    block[428..432].copy_from_slice(&4097u32.to_le_bytes());
    for bytes in [b"KDUMP   ".to_vec(), whole[..400].to_vec(), block] {
        let error = open(vec![bytes]).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Format);
        assert!(!error.hint.is_empty() && error.message.contains("makes no sense"), "{}", error.message);
    }
    // A file whose writer ended before the bitmaps is not damaged.
    let mut empty = whole;
    empty[436..440].copy_from_slice(&0u32.to_le_bytes());
    let error = open(vec![empty]).err().unwrap();
    assert!(error.message.contains("has no pages"), "{}", error.message);
}

#[test]
fn whatever_is_damaged_or_cut_nothing_breaks() {
    let whole = WIDE.build();
    let all: Vec<u64> = (0..PAGES).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % n
    };
    let mut opened = 0;
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..=random(4) {
            // Headers and tables, not the data.
            let at = if random(3) == 0 { random(600) } else { random(5 * BLOCK) };
            bytes[at] = if random(2) == 0 { random(256) as u8 } else { bytes[at] ^ 1 << random(8) };
        }
        if random(4) == 0 {
            bytes.truncate(random(whole.len()));
        }
        let Ok(reader) = open(vec![bytes]) else { continue };
        opened += 1;
        let (machine, extents) = (reader.machine(), reader.extents());
        assert!(machine.page_shift >= 12);
        assert!(extents.windows(2).all(|e| e[0].end_pfn() <= e[1].first_pfn));
        if machine.page_shift == 12 {
            let mut buf = vec![0; all.len() * BLOCK];
            let mut pages = vec![StoredPage::default(); all.len()];
            let _ = reader.read_stored(&all, &mut buf, &mut pages);
            assert!(pages.iter().all(|p| p.state != StoredPage::STORED || p.bytes(&buf).is_some()));
        }
    }
    assert!(opened > 5000);
}
