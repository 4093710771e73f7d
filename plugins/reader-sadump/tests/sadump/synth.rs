//! Builds sadump images of all layouts and versions; tests break them by changing bytes at known offsets.

use std::collections::BTreeMap;

use coresift_sdk::testkit;
use coresift_sdk::{Error, Extent, ExtentKind, PageState, Reader, Result, Value};

pub const PAGE: usize = 4096;

/// 2026-11-30 20:30:15.123456789, no time zone.
pub const TIME: [u8; 16] = [0xea, 0x07, 11, 30, 20, 30, 15, 0, 0x15, 0xcd, 0x5b, 0x07, 0xff, 0x07, 0, 0];
/// The same in seconds since 1970 (`date -u -d '2026-11-30 20:30:15' +%s`).
pub const TIME_UNIX: u64 = 1_796_070_615;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Single,
    Media,
    /// so many disks
    Set(usize),
}

/// An image to be built.
#[derive(Debug, Clone)]
pub struct Sadump {
    pub shape: Shape,
    pub version: u32,
    /// RAM: the page's bytes, or `None` where the firmware left it out
    pub ram: BTreeMap<u64, Option<Vec<u8>>>,
    pub max_pfn: u64,
    /// blocks of each bitmap
    pub bitmap_blocks: usize,
    /// saved states, 1024 bytes each; none = no sub header
    pub states: Vec<Vec<u8>>,
    /// bytes of the pages on each disk but the last; a half each of what is left where none is given
    pub shares: Vec<usize>,
    pub disk_set_blocks: u32,
}

impl Sadump {
    pub fn new(shape: Shape, ram: impl IntoIterator<Item = (u64, Option<Vec<u8>>)>) -> Self {
        let ram: BTreeMap<_, _> = ram.into_iter().collect();
        let max_pfn = ram.last_key_value().map_or(0, |(pfn, _)| pfn + 1);
        let bitmap_blocks = (max_pfn as usize).div_ceil(8 * PAGE).max(1);
        Self { shape, version: 1, ram, max_pfn, bitmap_blocks, states: vec![vec![0; 1024]], shares: Vec::new(), disk_set_blocks: 1 }
    }

    /// Offset of the partition header in the first file.
    pub fn part_at(&self) -> usize {
        if self.shape == Shape::Media { PAGE } else { 0 }
    }

    /// Offset of the dump header in the first file.
    pub fn dump_at(&self) -> usize {
        let set = if matches!(self.shape, Shape::Set(_)) { self.disk_set_blocks as usize * PAGE } else { 0 };
        self.part_at() + PAGE + set
    }

    /// Offset of the RAM bitmap in the first file.
    pub fn bitmap_at(&self) -> usize {
        self.dump_at() + PAGE + self.sub_header().len()
    }

    /// Offset of the first page in the first file.
    pub fn data_at(&self) -> usize {
        self.bitmap_at() + 2 * self.bitmap_blocks * PAGE
    }

    /// The only file.
    pub fn bytes(&self) -> Vec<u8> {
        self.build().remove(0)
    }

    /// The files, in order of the disks.
    pub fn build(&self) -> Vec<Vec<u8>> {
        let stream: Vec<u8> = self.ram.values().flatten().flatten().copied().collect();
        let mut parts = Vec::new();
        let mut rest = stream.as_slice();
        let disks = if let Shape::Set(disks) = self.shape { disks } else { 1 };
        for i in 0..disks - 1 {
            let share = self.shares.get(i).copied().unwrap_or(rest.len() / 2 / PAGE * PAGE);
            let (part, more) = rest.split_at(share);
            parts.push(part);
            rest = more;
        }
        parts.push(rest);
        let mut files = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let number = if disks == 1 { 0 } else { i as u32 + 1 };
            let headers = if i == 0 { self.data_at() - self.part_at() } else { PAGE };
            let mut file = if self.shape == Shape::Media { media_header() } else { Vec::new() };
            file.extend(part_header(number, i as u8 + 1, (headers + part.len()) as u64));
            if i == 0 {
                if disks > 1 {
                    file.extend(self.disk_set_header(disks));
                }
                file.extend(self.dump_header());
                file.extend(self.sub_header());
                file.extend(self.bitmap(|page| page.is_some()));
                file.extend(self.bitmap(|page| matches!(page, Some(Some(_)))));
                assert_eq!(file.len(), self.data_at());
            }
            file.extend_from_slice(part);
            files.push(file);
        }
        files
    }

    fn bitmap(&self, set: impl Fn(Option<&Option<Vec<u8>>>) -> bool) -> Vec<u8> {
        let mut bytes = vec![0; self.bitmap_blocks * PAGE];
        for (pfn, page) in &self.ram {
            let byte = (pfn / 8) as usize;
            if set(Some(page)) && byte < bytes.len() {
                bytes[byte] |= 0x80 >> (pfn % 8);
            }
        }
        bytes
    }

    fn sub_header(&self) -> Vec<u8> {
        if self.states.is_empty() {
            return Vec::new();
        }
        let all: usize = self.states.iter().map(Vec::len).sum();
        let mut bytes = (all as u32).to_le_bytes().to_vec();
        for id in 0..self.states.len() as u64 {
            bytes.extend(id.to_le_bytes());
            bytes.extend((1u64 << (id % 64)).to_le_bytes());
        }
        self.states.iter().for_each(|s| bytes.extend_from_slice(s));
        bytes.resize(bytes.len().next_multiple_of(PAGE), 0);
        bytes
    }

    fn dump_header(&self) -> Vec<u8> {
        let mut bytes = b"sadump\0\0".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(TIME);
        // From version 1 on the old numbers are not looked at.
        let old = if self.version == 0 { self.max_pfn as u32 } else { u32::MAX };
        let sub = (self.sub_header().len() / PAGE) as u32;
        let bitmap = self.bitmap_blocks as u32;
        let cpus = self.states.len() as u32;
        for number in [0, 0, PAGE as u32, 0, sub, bitmap, bitmap, old, old, old, old, 0, cpus, 0] {
            bytes.extend(number.to_le_bytes());
        }
        if self.version > 0 {
            [self.max_pfn, 1, 1, 1].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        }
        bytes.resize(PAGE, 0);
        bytes
    }

    fn disk_set_header(&self, disks: usize) -> Vec<u8> {
        let mut bytes = self.disk_set_blocks.to_le_bytes().to_vec();
        bytes.extend((disks as u32).to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        for disk in 2..=disks {
            bytes.extend([0x10 + disk as u8; 16]);
            bytes.extend([0; 16]);
        }
        bytes.resize(self.disk_set_blocks as usize * PAGE, 0);
        bytes
    }
}

/// IDs: system aa…, set bb…, volumes 11…, 12…
fn part_header(number: u32, volume: u8, used: u64) -> Vec<u8> {
    let mut bytes = b"sadump\0\0".to_vec();
    [1, 60, 0, 0].iter().for_each(|n: &u32| bytes.extend(n.to_le_bytes()));
    bytes.extend([0; 64]);
    bytes.extend([0xaa; 16]);
    bytes.extend([0xbb; 16]);
    bytes.extend([0x10 + volume; 16]);
    bytes.extend(TIME);
    bytes.extend(number.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(used.to_le_bytes());
    let mut magic = 0x1234_5678_u32;
    for _ in 0..982 {
        bytes.extend(magic.to_le_bytes());
        magic = magic.wrapping_add(7).wrapping_mul(11);
    }
    assert_eq!(bytes.len(), PAGE);
    bytes
}

fn media_header() -> Vec<u8> {
    let mut bytes = [[0xaa; 16], [0xbb; 16], TIME].concat();
    bytes.extend([1, 1, 0, 1]);
    bytes.resize(PAGE, 0);
    bytes
}

/// A page of noise that differs by PFN and never is zero.
pub fn noise(pfn: u64) -> Vec<u8> {
    let mut rng = Rng(pfn.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..PAGE).map(|_| (rng.next() >> 33) as u8 | 1).collect()
}

/// Dumped pages of noise.
pub fn dumped(pfns: impl IntoIterator<Item = u64>) -> Vec<(u64, Option<Vec<u8>>)> {
    pfns.into_iter().map(|pfn| (pfn, Some(noise(pfn)))).collect()
}

/// Pages that the firmware left out.
pub fn left_out(pfns: impl IntoIterator<Item = u64>) -> Vec<(u64, Option<Vec<u8>>)> {
    pfns.into_iter().map(|pfn| (pfn, None)).collect()
}

/// A small image: pages 1 to 4 and 9 dumped, 5 to 8 left out.
pub fn small(shape: Shape) -> Sadump {
    Sadump::new(shape, [dumped(1..5), left_out(5..9), dumped(9..10)].concat())
}

/// xorshift64: the same numbers in every run.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
}

pub fn patch(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

pub fn open(files: Vec<Vec<u8>>) -> Result<Box<dyn Reader>> {
    open_with(files, "absent")
}

pub fn open_with(files: Vec<Vec<u8>>, left_out: &str) -> Result<Box<dyn Reader>> {
    let settings = [("left_out", Value::Text(left_out.into()))];
    reader_sadump::open(testkit::reader_setup(&reader_sadump::manifest(), &settings, files)?)
}

/// It is refused for this reason, and says what to do.
pub fn refused(files: Vec<Vec<u8>>, why: &str) -> Error {
    let error = open(files).err().unwrap();
    assert!(error.message.contains(why), "{error}");
    assert!(!error.hint.is_empty(), "{error}");
    error
}

/// One of the warnings says this.
pub fn warns(reader: &dyn Reader, what: &str) -> bool {
    reader.machine().warnings.iter().any(|w| w.contains(what))
}

/// The bytes of a page as the host gets them: `None` if it is absent or in no extent.
pub fn page(files: &[Vec<u8>], reader: &dyn Reader, extents: &[Extent], pfn: u64) -> Option<Vec<u8>> {
    let extent = extents.iter().find(|e| (e.first_pfn..e.end_pfn()).contains(&pfn))?;
    match extent.kind {
        ExtentKind::MAPPED => {
            let at = extent.offset as usize + (pfn - extent.first_pfn) as usize * PAGE;
            Some(files[extent.source as usize][at..at + PAGE].to_vec())
        }
        ExtentKind::ENCODED => {
            let (mut out, mut state) = (vec![0xaa; PAGE], [PageState::MISSING]);
            reader.read_pages(&[pfn], &mut out, &mut state).unwrap();
            (state[0] == PageState::PRESENT).then_some(out)
        }
        _ => None,
    }
}

/// Extents are ascending, disjoint, not empty and mapped within the files, and all pages are those of the image.
pub fn check(files: &[Vec<u8>], image: &Sadump, zeros: bool) {
    let reader = open_with(files.to_vec(), if zeros { "zero" } else { "absent" }).unwrap();
    let extents = reader.extents();
    assert!(extents.iter().all(|e| e.pages > 0), "an empty extent");
    assert!(extents.windows(2).all(|e| e[0].end_pfn() <= e[1].first_pfn), "extents overlap or go back: {extents:x?}");
    assert_eq!(extents.iter().map(|e| e.pages).sum::<u64>(), image.ram.len() as u64);
    for (pfn, bytes) in &image.ram {
        assert!(extents.iter().any(|e| (e.first_pfn..e.end_pfn()).contains(pfn)), "page {pfn:#x} is no RAM");
        let expected = bytes.clone().or(zeros.then(|| vec![0; PAGE]));
        assert_eq!(page(files, reader.as_ref(), &extents, *pfn), expected, "page {pfn:#x}");
    }
}
